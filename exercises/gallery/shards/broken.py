import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader, TensorDataset

hvd.init()
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
loader = DataLoader(data, batch_size=16, shuffle=True)

model = torch.nn.Linear(8, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
for _ in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
if hvd.rank() == 0:
    seen = hvd.size() * len(loader) * 16
    print(
        f"{hvd.size()} ranks x {len(loader)} steps x 16 = {seen} samples an epoch, of {len(data)}"
    )
