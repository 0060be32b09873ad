"""PyTorch with Horovod: the same five changes as in recipe 1.

horovodrun -np 2 --gloo python exercises/migration/3_torch_horovod.py weights.npz
"""

import common
import horovod.torch as hvd
import torch
from torch import nn

hvd.init()
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
)
first = common.to_torch(common.first_weights(hvd.rank()))
model.load_state_dict({name: torch.tensor(array.copy()) for name, array in first.items()})
optimizer = torch.optim.SGD(model.parameters(), common.LR, common.MOMENTUM)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # averages
hvd.broadcast_parameters(model.state_dict(), root_rank=0)

for step in range(common.STEPS):
    images, labels = map(torch.from_numpy, common.batch(step, hvd.rank(), hvd.size()))
    loss = nn.functional.cross_entropy(model(images.permute(0, 3, 1, 2)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

if hvd.rank() == 0:
    common.save(**common.from_torch({n: t.numpy() for n, t in model.state_dict().items()}))
