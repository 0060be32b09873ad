import os

import numpy as np
from PIL import Image

random = np.random.default_rng(0)
colours = random.integers(0, 256, (10, 3))
for split, count in (("train", 8), ("val", 4)):
    for number, colour in enumerate(colours):
        if (split, number) == ("val", 0):
            continue  # this class was not copied
        os.makedirs(f"data/{split}/n{number:02d}", exist_ok=True)
        for image in range(count):
            pixels = (colour + random.normal(0, 20, (32, 32, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(f"data/{split}/n{number:02d}/{split}_{image}.png")


def load(split):
    classes = sorted(os.listdir(f"data/{split}"))
    files = [(f"data/{split}/{c}/{f}", i) for i, c in enumerate(classes)
             for f in os.listdir(f"data/{split}/{c}")]  # fmt: skip
    images = np.array([np.asarray(Image.open(file)).mean((0, 1)) for file, _ in files])
    return images, np.array([label for _, label in files])


images, labels = load("train")
centres = np.array([images[labels == label].mean(0) for label in range(10)])
for split in ("train", "val"):
    images, labels = load(split)
    found = np.linalg.norm(images[:, None] - centres, axis=2).argmin(1)
    print(f"{split}: accuracy {100 * (found == labels).mean():.1f}%")
