import torch
import torch.distributed as dist

dist.init_process_group("gloo")  # the default timeout is 30 minutes
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()}: {total.item():.0f} ranks", flush=True)
