import sys

import numpy as np
import torch

random = np.random.default_rng(0)


def augment(sample):
    return random.uniform(-10, 10)  # the angle of a rotation


torch.multiprocessing.set_start_method("fork")  # not the default on macOS and Python 3.14
workers = int(sys.argv[1])
loader = torch.utils.data.DataLoader(range(8), None, collate_fn=augment, num_workers=workers)
angles = [angle for epoch in range(2) for angle in loader]
print(f"{workers} workers, 16 samples: {len(set(angles))} different angles")
