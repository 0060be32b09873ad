import math

import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

hvd.init()
torch.manual_seed(0)
data = TensorDataset(torch.randn(101, 8), torch.randn(101, 1))
share = math.ceil(len(data) / hvd.size())  # 51 samples on rank 0, 50 on rank 1
mine = range(hvd.rank() * share, min(len(data), (hvd.rank() + 1) * share))
loader = DataLoader(Subset(data, mine), batch_size=10)

model = torch.nn.Linear(8, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    mean = hvd.allreduce(loss.detach(), name="mean_loss")
    print(f"rank {hvd.rank()}: epoch {epoch}, {len(loader)} steps, loss {mean:.3f}", flush=True)
