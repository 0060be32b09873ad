from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self):
        self.files = [f"/data/imagenet/train/n{i:08d}/{i:08d}.JPEG" for i in range(1_000_000)]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return len(self.files[index])  # instead of decoding the file


for _ in DataLoader(Images(), batch_size=1000, num_workers=2, multiprocessing_context="fork"):
    pass
print("the epoch is complete")
