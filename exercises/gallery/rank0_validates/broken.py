import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inputs, targets = torch.randn(64, 8), torch.randint(0, 2, (64,))
model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def validate():
    correct = (model(inputs).argmax(1) == targets).sum()
    dist.all_reduce(correct)
    return 100 * correct / (dist.get_world_size() * len(inputs))


for epoch in range(2):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    print(f"rank {rank}: epoch {epoch}, trained", flush=True)
    if rank == 0:
        print(f"epoch {epoch}: {validate():.1f}%", flush=True)
    dist.barrier()
print(f"rank {rank} has finished", flush=True)
dist.destroy_process_group()
