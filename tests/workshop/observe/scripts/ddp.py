"""A training script for several GPUs, PyTorch's DistributedDataParallel: all changes are there."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
fixed = torch.Generator().manual_seed(1)
images, labels = torch.randn(256, 20, generator=fixed), torch.arange(256) % 5
data = TensorDataset(images, labels)
model = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5))
model = DistributedDataParallel(model)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001 * size)
for images, labels in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
if rank == 0:
    torch.save(model.state_dict(), "model.pt")
dist.destroy_process_group()
