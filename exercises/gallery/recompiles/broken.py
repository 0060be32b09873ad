import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.means = nn.Linear(32, 10), {}

    def forward(self, x, name):
        y = self.layer(x)
        self.means[name] = y.detach().mean()  # for a plot
        return y


net = Net()
# a compiler of GPU or CPU code takes seconds each time; "eager" only follows the Python code
model = torch.compile(net, backend="eager")
for step in range(12):
    model(torch.randn(8, 32), f"step {step}").sum().backward()
count = torch._dynamo.utils.counters["stats"]["unique_graphs"]
print(f"12 steps: compiled {count} times", flush=True)
