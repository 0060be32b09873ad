import sys

import numpy as np
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __init__(self):
        self.random = np.random.default_rng(0)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.random.uniform(-10, 10)  # the angle of a rotation


workers = int(sys.argv[1])
loader = DataLoader(Augmented(), None, num_workers=workers)
angles = [angle for epoch in range(2) for angle in loader]
print(f"{workers} workers, 16 samples: {len(set(angles))} different angles")
print(" ".join(f"{angle:.2f}" for angle in angles[:8]))
