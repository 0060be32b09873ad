import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
inputs, targets = torch.randn(64, 8), torch.randint(2, (64,))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))


def validate():
    correct = (model(inputs).argmax(1) == targets).sum()
    dist.all_reduce(correct)
    return correct


for epoch in range(2):
    model(inputs).sum().backward()  # instead of an epoch of training
    if rank == 0:
        print(f"epoch {epoch}: {validate()} correct", flush=True)
    dist.barrier()
print(f"rank {rank} has finished", flush=True)
dist.destroy_process_group()
