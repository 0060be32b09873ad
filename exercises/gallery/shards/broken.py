import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader

hvd.init()
torch.manual_seed(0)
data = torch.randn(256, 8)
loader = DataLoader(data, batch_size=16, shuffle=True)
model = torch.nn.Linear(8, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size()))
for batch in loader:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
if hvd.rank() == 0:
    print(f"each of {hvd.size()} ranks makes {len(loader)} steps of 16 samples, of {len(data)}")
