import os
import time

import horovod.torch as hvd
import torch

hvd.init()
model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size()))
images = torch.randn(16, 3, 64, 64)
begin = time.perf_counter()
for _ in range(30):
    optimizer.zero_grad()
    model(images).square().mean().backward()
    optimizer.step()
speed = 30 * len(images) * hvd.size() / (time.perf_counter() - begin)
if hvd.rank() == 0:
    threads, cores = hvd.size() * torch.get_num_threads(), len(os.sched_getaffinity(0))
    print(f"{speed:.0f} img/s with {threads} threads in {hvd.size()} ranks on {cores} cores")
