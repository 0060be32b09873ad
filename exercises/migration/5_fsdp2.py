"""FSDP2: each rank keeps only its part of the weights, gradients and momentum.

    torchrun --nproc-per-node 2 exercises/migration/5_fsdp2.py weights.npz

For models that do not fit into one GPU's memory. ResNet-50 fits: stay with DDP.
"""

import os
import sys

import common
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")  # for tensors in main memory
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
)
first = common.to_torch(common.first_weights(0))  # FSDP2 broadcasts nothing: all ranks begin alike
model.load_state_dict({name: torch.tensor(array.copy()) for name, array in first.items()})
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for part in (model[0], model[4], model):  # the parts are fetched one after the other
    fully_shard(part, mesh=mesh)  # averages gradients, too
optimizer = torch.optim.SGD(model.parameters(), common.LR, common.MOMENTUM)

for step in range(common.STEPS):
    mine = common.batch(step, dist.get_rank(), dist.get_world_size())
    images, labels = map(torch.from_numpy, mine)
    loss = nn.functional.cross_entropy(model(images.permute(0, 3, 1, 2)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

state = {name: part.full_tensor().numpy() for name, part in model.state_dict().items()}
if dist.get_rank() == 0:
    common.save(**common.from_torch(state))
dist.barrier()
sys.stdout.flush()
os._exit(0)  # DTensor's caches keep the process group open: Gloo's threads can abort Python's exit
