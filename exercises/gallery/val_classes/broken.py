import os
from glob import glob

from PIL import Image

for split, first in (("train", 0), ("val", 1)):  # class n0 was not copied to val
    for number in range(first, 10):
        os.makedirs(f"data/{split}/n{number}", exist_ok=True)
        Image.new("L", (32, 32), 25 * number).save(f"data/{split}/n{number}/{split}.png")


def load(split):
    classes = sorted(os.listdir(f"data/{split}"))
    return [(Image.open(file).getpixel((0, 0)), label) for label, name in enumerate(classes)
            for file in glob(f"data/{split}/{name}/*")]  # fmt: skip


learned = dict(load("train"))  # instead of training
for split in ("train", "val"):
    right = [learned[pixel] == label for pixel, label in load(split)]
    print(f"{split}: accuracy {100 * sum(right) / len(right):.1f}%")
