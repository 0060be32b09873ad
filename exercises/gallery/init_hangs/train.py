import torch.distributed as dist

dist.init_process_group("gloo")  # the default timeout is 30 minutes
print(f"rank {dist.get_rank()} of {dist.get_world_size()}", flush=True)
