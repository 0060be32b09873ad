import psutil
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self):
        self.files = [f"/data/imagenet/train/n{i:08d}/{i:08d}.JPEG" for i in range(1_000_000)]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return len(self.files[index])  # in place of decoding the file


def memory():
    workers = psutil.Process().children()
    return sum(w.memory_full_info().uss for w in workers if "resource" not in " ".join(w.cmdline()))


begin = 0
for step, _ in enumerate(DataLoader(Images(), batch_size=1000, num_workers=2)):
    begin = begin or memory()
    if step % 200 == 0 or step == 990:
        print(f"step {step}: own memory of the workers +{(memory() - begin) / 2**20:.0f} MB")
