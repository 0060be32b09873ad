"""Our loaders and those of other scripts: images per second from JPEGs, in turns.

    python benchmarks/loaders.py --rounds 10 --sizes 224 64 --workers 0 1 2
    python benchmarks/loaders.py --gpu --sizes 224 --workers 16 --only dali DALI

Every contestant reads the same road signs (drawn on first use), crops 5 to 100% of their area at
random, resizes the crop with antialiasing and delivers batches of 64 as uint8; the first batch is
not timed. All are held to as many cores as workers and have the same allocator setting; without
workers (0), a DataLoader reads in its own process, and the others have one thread. They do not do
exactly the same: ours start again with each epoch, as training needs, and the others do not; ours,
OpenCV's and TensorFlow's decode with libjpeg's fast transform, and at a fraction of the size if the
crop holds more than is needed, but torchvision's can do neither, and DALI's no fraction; OpenCV
averages over areas, the others use a triangle; TensorFlow's sampler draws 6% smaller crops; DALI's
batches are views that are not copied. With --gpu, DALI decodes and resizes on the GPU and its
batches stay there; without it, the GPU is hidden from all.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import random
import sys
from pathlib import Path

import measure

OURS = {  # name: loader, backend
    "native, torch": ("native", "torch"),
    "native, tensorflow": ("native", "tensorflow"),
    "dali": ("dali", "torch"),
}
OTHERS = ("simplejpeg + OpenCV", "SPDL", "torchvision", "tf.data", "bare DALI", "dynamic DALI")
PAIRS = (*(("native, torch", name) for name in OTHERS),
         ("native, tensorflow", "tf.data"), ("dali", "bare DALI"))  # fmt: skip
BATCH = 64
HIDES = "CUDA_VISIBLE_DEVICES"  # hides every GPU if it is empty
ON_GPU = ("dali", "bare DALI")
RATIOS = (1, 2, 4, 8)  # fractions of the size at which libjpeg can decode
DALI_CROP = {"random_area": [0.05, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3],
             "use_fast_idct": True, "jpeg_fancy_upsampling": False}  # fmt: skip


# --- the peers: each function returns the batches (images, labels) of ROOT/train ------------------


class ByHand:
    """Class folders, through simplejpeg and OpenCV."""

    def __init__(self, root: Path, size: int) -> None:
        self.paths, self.size = sorted(root.glob("train/*/*.jpg")), size
        self.classes = sorted({path.parent.name for path in self.paths})

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int):
        import cv2
        import simplejpeg
        import torch

        cv2.setNumThreads(0)
        data = self.paths[i].read_bytes()
        height, width, *_ = simplejpeg.decode_jpeg_header(data)
        x, y, w, h = sample_crop(height, width)
        ratio = max(r for r in RATIOS if r == 1 or min(w, h) >= r * self.size)
        pixels = simplejpeg.decode_jpeg(
            data, min_height=-(-height // ratio), min_width=-(-width // ratio), min_factor=ratio,
            fastdct=True, fastupsample=True,
        )  # fmt: skip
        x, y, w, h = (side // ratio for side in (x, y, w, h))
        how = cv2.INTER_AREA if min(w, h) > self.size else cv2.INTER_LINEAR
        small = cv2.resize(pixels[y : y + h, x : x + w], (self.size, self.size), interpolation=how)
        small = cv2.flip(small, 1) if random.random() < 0.5 else small
        return torch.from_numpy(small), self.classes.index(self.paths[i].parent.name)


def sample_crop(height: int, width: int) -> tuple[int, int, int, int]:
    """Return left, top, width and height of 5 to 100% of the area, as torchvision draws them."""
    for _ in range(10):
        area = height * width * random.uniform(0.05, 1.0)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    return 0, 0, width, height


def pillow(root: Path, size: int):
    """Return torchvision's data set and transforms, as in its reference script."""
    vision = measure.import_torchvision()
    steps = [vision.transforms.RandomResizedCrop(size, scale=(0.05, 1.0)),
             vision.transforms.RandomHorizontalFlip(), vision.transforms.PILToTensor()]  # fmt: skip
    return vision.datasets.ImageFolder(root / "train", vision.transforms.Compose(steps))


def pytorch(data_set, root: Path, size: int, workers: int):
    """Return the batches of a PyTorch DataLoader."""
    import torch

    torch.set_num_threads(1)
    options = {"prefetch_factor": 4, "persistent_workers": True, "multiprocessing_context": "fork"}
    return torch.utils.data.DataLoader(
        data_set(root, size), BATCH, shuffle=True, num_workers=workers, drop_last=True,
        **(options if workers else {}),
    )  # fmt: skip


def spdl(root: Path, size: int, workers: int):
    """Yield the batches of SPDL, whose threads run the same functions as `ByHand`'s processes."""
    import torch
    from spdl.pipeline import PipelineBuilder

    files = ByHand(root, size)
    order = random.sample(range(len(files)), len(files))
    line = PipelineBuilder().add_source(order).pipe(files.__getitem__, concurrency=max(1, workers))
    line = line.aggregate(BATCH, drop_last=True).pipe(torch.utils.data.default_collate)
    pipeline = line.add_sink(4).build(num_threads=max(1, workers) + 1)
    with pipeline.auto_stop():
        yield from pipeline.get_iterator()


def tfdata(root: Path, size: int, workers: int):
    """Return the batches of tf.data."""
    import tensorflow as tf

    def decode(data, window, ratio):
        return tf.io.decode_and_crop_jpeg(
            data, window // ratio, channels=3, ratio=ratio, dct_method="INTEGER_FAST",
            fancy_upscaling=False,
        )  # fmt: skip

    def load(path, label):
        data = tf.io.read_file(path)
        start, crop, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(data), [[[0.0, 0.0, 1.0, 1.0]]], area_range=(0.05, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3), min_object_covered=0.0,
        )  # fmt: skip
        window = tf.concat([start[:2], crop[:2]], 0)
        fits = tf.reduce_min(window[2:]) // size  # how often the crop holds what is needed
        half = tf.reduce_sum(tf.cast(fits >= RATIOS[1:], tf.int32))  # how often to halve it
        part = tf.switch_case(half, [functools.partial(decode, data, window, r) for r in RATIOS])
        small = tf.image.resize(part, (size, size), antialias=True)
        return tf.cast(tf.image.random_flip_left_right(small), tf.uint8), label

    files = ByHand(root, size)
    labels = [files.classes.index(path.parent.name) for path in files.paths]
    rows = tf.data.Dataset.from_tensor_slices(([*map(str, files.paths)], labels))
    options = tf.data.Options()
    options.threading.private_threadpool_size = max(1, workers)
    options.threading.max_intra_op_parallelism = 1
    rows = rows.shuffle(len(files)).map(load, max(1, workers), deterministic=False)
    return rows.batch(BATCH, True).prefetch(4).with_options(options)


def dali(root: Path, size: int, workers: int):
    """Yield the batches of DALI; on a GPU, if one is visible."""
    import numpy as np
    from nvidia.dali import fn, pipeline_def, types

    gpu = os.environ.get(HIDES) != ""
    device, number = ("mixed", 0) if gpu else ("cpu", None)

    @pipeline_def(batch_size=BATCH, num_threads=max(1, workers), device_id=number, seed=0)
    def graph():
        encoded, labels = fn.readers.file(file_root=f"{root}/train", random_shuffle=True)
        images = fn.decoders.image_random_crop(encoded, device=device, **DALI_CROP)
        images = fn.resize(images, size=[size] * 2, interp_type=types.INTERP_LINEAR)
        return fn.flip(images, horizontal=fn.random.coin_flip()), labels

    pipeline = graph()
    pipeline.build()
    for _ in range(len(ByHand(root, size)) // BATCH):
        images, labels = pipeline.run()
        yield images if gpu else np.asarray(images.as_tensor()), labels


def dynamic_dali(root: Path, size: int, workers: int):
    """Yield the batches of DALI's dynamic mode, with the next ones made in advance."""
    import numpy as np
    import nvidia.dali.experimental.dynamic as ndd
    from nvidia.dali import types

    ndd.set_num_threads(max(1, workers))
    reader = ndd.readers.File(file_root=f"{root}/train", random_shuffle=True)
    for encoded, labels in reader.next_epoch(batch_size=BATCH, capture=True):
        images = ndd.decoders.image_random_crop(encoded, **DALI_CROP)
        images = ndd.resize(images, size=[size] * 2, interp_type=types.INTERP_LINEAR)
        images = ndd.flip(images, horizontal=ndd.random.coin_flip(batch_size=BATCH))
        if len(labels.shape) == BATCH:
            yield np.asarray(ndd.as_tensor(images)), labels


PEERS = {
    "simplejpeg + OpenCV": functools.partial(pytorch, ByHand),
    "SPDL": spdl,
    "torchvision": functools.partial(pytorch, pillow),
    "tf.data": tfdata,
    "bare DALI": dali,
    "dynamic DALI": dynamic_dali,
}


def read_as_peer(name: str, root: Path, size: int, workers: int) -> float:
    """Read one epoch; return the seconds per image, without the first batch."""
    os.sched_setaffinity(0, measure.CORES[: max(1, workers)])
    batches = iter(PEERS[name](root, size, workers))
    next(batches)
    kinds: list[str] = []

    def wait() -> None:
        if os.environ.get(HIDES) != "":
            import torch

            torch.cuda.synchronize()

    seconds = measure.timed(lambda: kinds.extend(str(x.dtype) for x, _ in batches), False, 1, wait)
    assert all("uint8" in kind.lower() for kind in kinds)  # looked at where they are, not copied
    return seconds / (len(kinds) * BATCH)


# --- the comparison -------------------------------------------------------------------------------


def seconds_per_image(root: Path, size: int, workers: int, name: str) -> float:
    """Run a contestant on its cores; return its seconds per image."""
    if name in PEERS:
        return measure.alone(read_as_peer, name, root, size, workers)
    loader, backend = OURS[name]
    command = [sys.executable, "-m", "rn50", "train", "--test-io", "-e", "1", "--loader", loader,
               "--backend", backend, "--data-root", root, "--data-format", "files", "--recipe",
               "reference", "--image-shape", size, "-b", BATCH, "--data-nthreads", workers,
               "--threads", "1", "--report", "/dev/stdout"]  # fmt: skip
    report = json.loads(measure.output(command, cores=max(1, workers)))
    return 1 / report["metrics"]["train.total_ips"][0]


def main() -> None:
    """Run the comparison."""
    parser = measure.arguments(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 64])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--root", type=Path, default=measure.SIGNS)
    parser.add_argument("--gpu", action="store_true", help="DALI decodes on the GPU")
    args = parser.parse_args()
    measure.set_environment()
    if args.gpu and os.environ.setdefault(HIDES, "0") == "":
        sys.exit(f"error: --gpu: {HIDES} is empty, which hides the GPU: unset it")
    os.environ[HIDES] = os.environ[HIDES] if args.gpu else ""
    measure.draw_signs(args.root)
    names = measure.chosen(ON_GPU if args.gpu else (*OURS, *PEERS), args)
    for size, workers in itertools.product(args.sizes, args.workers):
        what = f"{size} px, {workers} worker(s){', decoded on the GPU' if args.gpu else ''}"
        print(what, flush=True)
        work = {name: functools.partial(seconds_per_image, args.root, size, workers, name)
                for name in names}  # fmt: skip
        measure.print_table(measure.run_rounds(work, args.rounds), PAIRS, what)


if __name__ == "__main__":
    main()
