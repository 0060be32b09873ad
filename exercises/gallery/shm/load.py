import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.zeros(64, 3, 224, 224))
for (images,) in DataLoader(data, batch_size=16, num_workers=2, multiprocessing_context="fork"):
    total = images.sum()
print("the epoch is complete")
