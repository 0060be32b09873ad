"""One peer of loaders.py: images per second of class folders in ROOT/train, as uint8 batches.

    python benchmarks/contestant_loader.py opencv ROOT --size 224 --workers 1 [--fast]

`torchvision` is its transforms on Pillow in PyTorch's DataLoader, as in its reference; `opencv`
the same by hand, with simplejpeg to decode; `tfdata` and `dali` the best form known. By hand and in
TensorFlow, an image whose crop holds more than is needed is decoded at a fraction of its size.
Prints the seconds per image, without the first batch.
"""

import argparse
import functools
import json
import math
import os
import random
import time
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
parser = argparse.ArgumentParser()
parser.add_argument("how", choices=("torchvision", "opencv", "tfdata", "dali", "dali-iterator"))
parser.add_argument("root", type=Path)
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--workers", type=int, default=1)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--fast", action="store_true", help="no antialiasing")
args = parser.parse_args()
PATHS = sorted(args.root.glob("train/*/*.jpg"))
RATIOS = (1, 2, 4, 8)


def crop(height, width):
    """Return left, top, width and height of 5 to 100 % of the area, as torchvision draws them."""
    for _ in range(10):
        area = height * width * random.uniform(0.05, 1.0)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    return 0, 0, width, height


class ByHand:
    """Class folders, through simplejpeg and OpenCV."""

    def __len__(self):
        return len(PATHS)

    def __getitem__(self, i):
        import cv2
        import simplejpeg
        import torch

        cv2.setNumThreads(0)
        data = PATHS[i].read_bytes()
        height, width, *_ = simplejpeg.decode_jpeg_header(data)
        x, y, w, h = crop(height, width)
        ratio = max(r for r in RATIOS if r == 1 or min(w, h) >= r * args.size)
        pixels = simplejpeg.decode_jpeg(
            data, min_height=-(-height // ratio), min_width=-(-width // ratio), min_factor=ratio,
            fastdct=True, fastupsample=True,
        )  # fmt: skip
        x, y, w, h = (side // ratio for side in (x, y, w, h))
        how = cv2.INTER_AREA if min(w, h) > args.size else cv2.INTER_LINEAR
        small = cv2.resize(pixels[y : y + h, x : x + w], (args.size, args.size), interpolation=how)
        small = cv2.flip(small, 1) if random.random() < 0.5 else small
        return torch.from_numpy(small), int(PATHS[i].parent.name)


def pytorch():
    """Return the batches of a PyTorch DataLoader."""
    import peers
    import torch

    torch.set_num_threads(1)
    images = ByHand()
    if args.how == "torchvision":
        with peers.missing_operators_allowed():
            from torchvision import datasets, transforms
        steps = [transforms.RandomResizedCrop(args.size, scale=(0.05, 1.0)),
                 transforms.RandomHorizontalFlip(), transforms.PILToTensor()]  # fmt: skip
        images = datasets.ImageFolder(f"{args.root}/train", transforms.Compose(steps))
    return torch.utils.data.DataLoader(
        images, args.batch, shuffle=True, num_workers=args.workers, drop_last=True,
        prefetch_factor=4, persistent_workers=True,
    )  # fmt: skip


def tfdata():
    """Return the batches of tf.data."""
    import tensorflow as tf

    def draw(height, width):  # as above: TensorFlow's sampler draws 6 % smaller crops
        area = tf.random.uniform([10], 0.05, 1.0) * tf.cast(height * width, tf.float32)
        aspect = tf.exp(tf.random.uniform([10], -0.28768, 0.28768))  # from 3 / 4 to 4 / 3
        sides = tf.cast(tf.round(tf.sqrt(tf.stack([area / aspect, area * aspect], 1))), tf.int32)
        fits = tf.reduce_all(sides <= [height, width], 1)
        size = tf.minimum(sides[tf.argmax(tf.cast(fits, tf.int8))], [height, width])
        start = tf.random.uniform([2]) * tf.cast([height, width] - size + 1, tf.float32)
        return tf.concat([tf.cast(start, tf.int32), size], 0)

    def decode(data, window, ratio):
        return tf.io.decode_and_crop_jpeg(
            data, window // ratio, channels=3, ratio=ratio, dct_method="INTEGER_FAST",
            fancy_upscaling=False,
        )  # fmt: skip

    def load(path, label):
        data = tf.io.read_file(path)
        window = draw(*tf.unstack(tf.io.extract_jpeg_shape(data)[:2]))
        fits = tf.reduce_min(window[2:]) // args.size  # how often the crop holds what is needed
        half = tf.reduce_sum(tf.cast(fits >= RATIOS[1:], tf.int32))  # how often to halve it
        part = tf.switch_case(half, [functools.partial(decode, data, window, r) for r in RATIOS])
        small = tf.image.resize(part, (args.size, args.size), antialias=not args.fast)
        return tf.cast(tf.image.random_flip_left_right(small), tf.uint8), label

    labels = [int(path.parent.name) for path in PATHS]
    rows = tf.data.Dataset.from_tensor_slices(([*map(str, PATHS)], labels)).shuffle(len(PATHS))
    options = tf.data.Options()
    options.threading.private_threadpool_size = args.workers
    options.threading.max_intra_op_parallelism = 1
    rows = rows.map(load, args.workers, deterministic=False).batch(args.batch, True)
    return rows.prefetch(4).with_options(options)


def dali():
    """Yield the batches of DALI: views that are not copied, or tensors to keep."""
    import numpy as np
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=args.batch, num_threads=args.workers, device_id=None, seed=0)
    def graph():
        encoded, labels = fn.readers.file(file_root=f"{args.root}/train", random_shuffle=True)
        images = fn.decoders.image_random_crop(
            encoded, random_area=[0.05, 1.0], random_aspect_ratio=[3 / 4, 4 / 3],
            use_fast_idct=True, jpeg_fancy_upsampling=False,
        )  # fmt: skip
        images = fn.resize(
            images, resize_x=args.size, resize_y=args.size, interp_type=types.INTERP_LINEAR,
            antialias=not args.fast,
        )  # fmt: skip
        return fn.flip(images, horizontal=fn.random.coin_flip()), labels

    pipeline = graph()
    pipeline.build()
    batches = len(PATHS) // args.batch
    if args.how == "dali":
        for _ in range(batches):
            images, labels = pipeline.run()
            yield np.asarray(images.as_tensor()), labels
        return
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    for _, made in zip(
        range(batches), DALIGenericIterator(pipeline, ["images", "labels"]), strict=False
    ):
        yield made[0]["images"], made[0]["labels"]


batches = iter({"tfdata": tfdata, "dali": dali, "dali-iterator": dali}.get(args.how, pytorch)())
next(batches)
begin, count = time.perf_counter(), 0
for pixels, _ in batches:
    assert "uint8" in str(pixels.dtype)  # looked at where it is, not copied
    count += args.batch
print(json.dumps({"seconds": (time.perf_counter() - begin) / count}))
