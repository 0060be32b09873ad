import horovod.torch as hvd
import torch

hvd.init()
torch.manual_seed(0)
labels = torch.randint(10, (4096,))
inputs = torch.randn(10, 32)[labels] + 1.5 * torch.randn(4096, 32)
mine = torch.arange(hvd.rank(), len(inputs), hvd.size())
model = torch.nn.Linear(32, 10)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.007))
for _ in range(2):
    for rows in mine.split(32):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
if hvd.rank() == 0:
    correct = (model(inputs).argmax(1) == labels).float().mean()
    print(f"{hvd.size()} rank(s): accuracy {100 * correct:.0f}% after 2 epochs", flush=True)
