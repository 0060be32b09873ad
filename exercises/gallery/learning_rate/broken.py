import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

hvd.init()
torch.manual_seed(0)
centres = torch.randn(10, 32)
labels = torch.arange(4096) % 10
data = TensorDataset(centres[labels] + 1.5 * torch.randn(4096, 32), labels)
sampler = DistributedSampler(data, hvd.size(), hvd.rank())
loader = DataLoader(data, batch_size=32, sampler=sampler)

model = torch.nn.Linear(32, 10)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
if hvd.rank() == 0:
    correct = (model(data.tensors[0]).argmax(1) == labels).float().mean()
    print(f"{hvd.size()} rank(s): accuracy {100 * correct:.0f}% after 2 epochs", flush=True)
