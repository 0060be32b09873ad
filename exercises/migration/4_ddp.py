"""DistributedDataParallel: the model is wrapped, not the optimizer.

torchrun --nproc-per-node 2 exercises/migration/4_ddp.py weights.npz
"""

import common
import torch
import torch.distributed.nn.functional  # if imported later, it keeps the process group open
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")  # for tensors in main memory
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
)
first = common.to_torch(common.first_weights(dist.get_rank()))
model.load_state_dict({name: torch.tensor(array.copy()) for name, array in first.items()})
model = DistributedDataParallel(model)  # broadcasts rank 0's weights, and averages gradients
optimizer = torch.optim.SGD(model.parameters(), common.LR, common.MOMENTUM)

for step in range(common.STEPS):
    mine = common.batch(step, dist.get_rank(), dist.get_world_size())
    images, labels = map(torch.from_numpy, mine)
    loss = nn.functional.cross_entropy(model(images.permute(0, 3, 1, 2)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

if dist.get_rank() == 0:
    state = model.module.state_dict()
    common.save(**common.from_torch({n: t.numpy() for n, t in state.items()}))
del model  # it keeps the process group open, too
dist.destroy_process_group()  # else a thread of Gloo can abort Python at its exit
