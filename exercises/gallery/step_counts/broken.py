import horovod.torch as hvd
import torch

hvd.init()
samples = torch.randn(101, 8)
mine = samples.tensor_split(hvd.size())[hvd.rank()]  # 51 on rank 0, 50 on rank 1
for epoch in range(2):
    for batch in mine.split(10):
        hvd.allreduce(batch.mean(0), name="gradient")  # instead of a training step
    mean = hvd.allreduce(mine.mean(), name="mean_loss")
    print(f"rank {hvd.rank()}: epoch {epoch} is complete, loss {mean:.3f}", flush=True)
