"""Check in seconds whether the ranks reach each other; start it in place of the training script."""

import os
import socket
import threading
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist

DEADLINE_S = 8
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
backend, device = ("nccl", "cuda") if torch.cuda.is_available() else ("gloo", "cpu")
address = socket.gethostbyname(host)
probe = socket.socket(type=socket.SOCK_DGRAM)
probe.connect((address, port))  # sends nothing, but chooses the route
own = probe.getsockname()[0]
interface = next(name for name, found in psutil.net_if_addrs().items()
                 if own in [a.address for a in found])  # fmt: skip


def end(result, status=1):
    route = f"{own} on {interface} to {host} ({address}) port {port}"
    print(f"rank {rank}: {route}: {result}", flush=True)
    os._exit(status)  # also out of a call that hangs


problem = "no answer: does rank 0 run there, or does a firewall close the port?"
threading.Timer(DEADLINE_S, lambda: end(problem)).start()
try:
    store = dist.TCPStore(address, port, size, rank == 0, timedelta(seconds=DEADLINE_S), False)
    name = f"{backend.upper()}_SOCKET_IFNAME"
    problem = f"answers, but no all-reduce: if all ranks were started, set {name}={interface}"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    dist.all_reduce(torch.ones(1, device=device))
except RuntimeError:
    end(problem)
end("the all-reduce passed", 0)
