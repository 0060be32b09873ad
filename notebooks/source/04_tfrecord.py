# %% [markdown]
# # 04 · TFRecord
#
# After this notebook, you can measure whether the input limits a training run, write and read TFRecord shards record by record, and build an input pipeline in PyTorch and, stage by stage and for many ranks, in tf.data.
#
# **Time:** 75 minutes · **Needs:** notebook 03, and TensorFlow for tf.data · **On a CPU:** about 3 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
device: float | None = (
    None  # images/s of the simulated GPU; None: an H100 if you have a GPU, else a V100
)
rounds: int | None = None  # rounds in which the stages take turns
seed: int = 0  # seed of Python's random numbers and of the shuffles

# %%
import io
import json
import os
import random
import shutil
import struct
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image

import workshop
from workshop.lessons import nb04

session = workshop.start("04", profile)
rounds, batch_size = rounds or session.rounds, session.batch_size
cores = session.machine.cores
device = device or session.results[session.device].value
os.chdir(session.folder)  # scratch files are written here
folder = workshop.ladder.shards_folder()  # notebook 05 trains from it
TF = workshop.has("tensorflow")
os.environ |= {"SHARDS": str(folder), "TRAIN": session.train, "TF": "yes" if TF else ""}
if TF:
    with workshop.quiet_stderr():  # TensorFlow logs notes while it is imported
        import tensorflow as tf
    tf.config.set_visible_devices([], "GPU")  # the input pipeline runs on the CPU
random.seed(seed)

# %% [markdown]
# ## Can one loop feed a GPU?
#
# The talk behind this course, *AV Datasets & Multi-GPU Training* (2018), ends its first recipe with a warning: *"Your new bottleneck is likely the data pipeline now!"* Eight GPUs consume about seven times as many images per second as one, from the same CPU and disk. In the recipe, a Python loop prepares the images. The next cell times such a loop.
#
# **Predict:** how many such loops have to run in parallel to keep one V100 busy? (It trains at 1,443 images/s: the *Total IPS* of [NVIDIA's ResNet-50 v1.5 for MXNet, container 18.12](https://github.com/NVIDIA/DeepLearningExamples/tree/a8e1d1cd/MxNet/Classification/RN50v1.5).)

# %%
paths = sorted((session.data_root / "train").rglob("*.jpg"))


def crop(image):
    """Return a random part of an image as uint8 pixels (224, 224, 3)."""
    share = random.uniform(0.2, 0.9)  # of each side
    width, height = share * image.width, share * image.height
    left = random.uniform(0, image.width - width)
    top = random.uniform(0, image.height - height)
    box = (left, top, left + width, top + height)
    return np.array(image.convert("RGB").resize((224, 224), Image.Resampling.BILINEAR, box))


def python_loop():
    """Yield batches of randomly cropped images, made by one thread."""
    while True:
        yield np.stack([crop(Image.open(path)) for path in random.choices(paths, k=batch_size)])


loops = None  # your number
loop = python_loop()
next(loop)  # warm up
seconds = []
for _ in range(rounds):
    begin = time.perf_counter()
    for _ in range(session.batches):
        next(loop)
    seconds.append((time.perf_counter() - begin) / (batch_size * session.batches))
loop_s = np.median(seconds)
print(f"The loop prepares {1 / loop_s:.0f} images/s on one core", end=" ")
print(f"({1 / max(seconds):.0f} to {1 / min(seconds):.0f} in {rounds} rounds)")
gpus = {f"{n} V100, published": f"published.v100.{n}gpu.fp16.ips" for n in (1, 8)}
for gpu, key in (gpus | {"1 H100, recorded": "input.h100.synthetic"}).items():
    needed = session.results[key].value
    print(f"{gpu}: {needed:8,.1f} images/s in FP16 need {needed * loop_s:5.1f} loops")
print(f"You predicted {'?' if loops is None else loops} for one V100")

# %% [markdown]
# ## Many small files
#
# ImageNet has 1.3 million files, and each must be opened, read and closed. **Predict:** if the files are in memory, what percentage of the loop's time does that take, and which takes longer, decoding or resizing?

# %%
guess = "?"  # such as "5%; resizing"
some = random.sample(paths, min(96, len(paths)))


def decode(jpeg):
    """Return the image in a JPEG file's bytes."""
    return Image.open(io.BytesIO(jpeg)).convert("RGB")


jpegs = [path.read_bytes() for path in some]
images = [decode(jpeg) for jpeg in jpegs]
parts = {
    "open, read, close": (Path.read_bytes, some),
    "decode": (decode, jpegs),
    "crop, resize": (crop, images),
    "all in one": (lambda path: crop(Image.open(path)), some),
}
spent = np.empty((rounds, len(parts)))
for turn in spent:
    for number, (part, items) in enumerate(parts.values()):
        begin = time.perf_counter()
        for item in items:
            part(item)
        turn[number] = time.perf_counter() - begin
each = np.median(spent, axis=0)
for name, seconds in zip(parts, each, strict=True):
    print(f"{name:17} {1e6 * seconds / len(some):6,.0f} µs, {seconds / each[-1]:.1%}")
print("You predicted", guess)

# %% [markdown]
# The cell had just read these files, so they came from memory, and reading them was nearly free. Notebook 01 has the cold reads. (The parts are timed separately, so they need not add up to the whole.)
#
# Two remedies: if files are *not* cached, **store** the images so that a few large reads suffice (TFRecord); in any case, **decode** on all cores while the device computes (worker processes, tf.data).
#
# ## Write shards
#
# A data set becomes several TFRecord files, called *shards*. Each is a sequence of records:
#
# | bytes | content |
# |---|---|
# | 8 | length of the data |
# | 4 | checksum of the length |
# | *length* | the data: a `tf.train.Example`, a message of named features |
# | 4 | checksum of the data |
#
# All numbers are little-endian. Each checksum is a *masked* CRC-32C. Feature names and labels follow TensorFlow's ImageNet scripts: there, labels **start at 1** (0 is the background).
#
# **Your turn.** Write the function that makes a record. The cell after yours checks it, shuffles the JPEGs across classes, and copies them into at least eight shards.

# %%
from rn50lib.data.tfrecord import masked_crc


def frame_record(data):
    """Return the bytes of a record: the data with its length and the two checksums."""
    return None  # your code: struct.pack, masked_crc(bytes)


# %%
from data_prep.tfrecordwriter import serialize_example

frame_record = nb04.check("frame_record", frame_record)
IMAGE, LABEL = "image/encoded", "image/class/label"
shutil.rmtree(folder, ignore_errors=True)  # left by an earlier run
(folder / "index").mkdir(parents=True)
classes = sorted({path.parent.name for path in paths})
shuffled = random.sample(paths, len(paths))
count = (cores + 7) // 8 * 8  # one or more per core; a multiple of 8 ranks
for number in range(count):
    name = f"train-{number:05}-of-{count:05}"
    with open(folder / name, "wb") as file, open(folder / f"index/{name}.idx", "w") as index:
        for path in shuffled[number::count]:
            label = classes.index(path.parent.name) + 1
            record = frame_record(serialize_example({IMAGE: path.read_bytes(), LABEL: label}))
            index.write(f"{file.tell()} {len(record)}\n")
            file.write(record)
# the network counts classes from 0, and so does this list
(folder / "classes.txt").write_text("".join(f"{n}\t{name}\n" for n, name in enumerate(classes)))
shards = sorted(map(str, folder.glob("train-*")))
print(f"The last record, {len(record):,} bytes, begins with {record[:12].hex(' ')}")

# %% [markdown]
# The library's `verify` compares every checksum and decodes every image:

# %% language="bash" magic_args="-e"
# ls $SHARDS | tail -n 3
# head -n 3 $SHARDS/index/train-00000-of-*.idx
# set -o pipefail
# python -m data_prep.verify --quiet $SHARDS | tail -n 4

# %% [markdown]
# The warning says that there are no validation shards: you wrote none. (The notes are about grey images.) Each pair of numbers, from the first index, is a record's offset and size. [DALI, in rung 3 of notebook 05, needs this index](../docs/troubleshooting.md#dali-cannot-read-a-tfrecord-the-index-is-empty-or-missing).
#
# **Your turn.** Write the function that reads a shard back. The next cell checks it, reads the first record, and flips one bit of its *length*. **Predict:** what would a reader do without the checksum of the length?


# %%
def read(path):
    """Yield each record's data; raise ValueError if a checksum is wrong, any error if truncated."""
    return None  # your code: struct.unpack, masked_crc(bytes)


# %%
read = nb04.check("read", read)
guess = "?"  # what a reader would do without the checksum of the length
first = next(iter(read(shards[0])))
damaged = bytearray(Path(shards[0]).read_bytes())
damaged[5] ^= 1
Path("damaged").write_bytes(damaged)
print(f"The length is {len(first):,}, damaged {int.from_bytes(damaged[:8], 'little'):,} bytes")
print("You predicted", guess)
try:
    next(iter(read("damaged")))
except ValueError as error:
    print("read:", error)
if TF:
    features = tf.train.Example.FromString(first).features.feature
    print(f"{LABEL}: {features[LABEL].int64_list.value[0]}")
    try:
        next(iter(tf.data.TFRecordDataset("damaged")))
    except tf.errors.DataLossError as error:
        print("TensorFlow:", type(error).__name__)

# %% [markdown]
# Without the checksum, a reader would try to read a terabyte. A checksum catches any single flipped bit, but not a misunderstanding: in the talk's schema, labels start at 0. A program that expects 1 is off by one, often without an error.
#
# What do you gain from shards if opening a file is slow? The next cell computes the gain for one reader, with assumed values. **Predict:** on a hard disk, how many times as fast is reading from a shard? Which disk can feed an H100 (4,875 images/s) from single files?

# %%
guess = "?"  # such as "2 times; the SSD"
disks = {"hard disk": (0.01, 150e6), "NVMe SSD": (0.0001, 3e9)}  # s to open a file, bytes/s
size = np.mean([path.stat().st_size for path in paths])
for name, (open_s, speed) in disks.items():
    file_s, shard_s = (open_s / n + size / speed for n in (1, len(paths) / len(shards)))
    print(f"{name:9} {1 / file_s:6,.0f} images/s from files, {1 / shard_s:6,.0f}", end=" ")
    print(f"from a shard: {file_s / shard_s:.1f} times as fast")
print("You predicted", guess)

# %% [markdown]
# ## Worker processes in PyTorch
#
# For data that is read from front to back, PyTorch has `IterableDataset`. Here, several worker processes each read some of the shards with your `read` and decode with Pillow. In notebook 03, a sampler split a `Dataset` with `__getitem__` among the ranks. An `IterableDataset` has no sampler: each worker on each rank reads everything unless it picks its own shards.
#
# **Your turn.** Every shard needs exactly one reader among all workers of all ranks, and the ranks need equal shares, as they take the same number of steps.


# %%
def my_shards(shards, rank, size, worker, workers):
    """Return the shards that one of `workers` workers reads on one of `size` ranks."""
    return None  # your code


# %%
from rn50lib.data.tfrecord import parse_example

my_shards = nb04.check("my_shards", my_shards)


class Shards(torch.utils.data.IterableDataset):
    """An endless stream of a rank's crops and labels (from 0). To train, add a shuffle buffer."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        mine = list(my_shards(shards, self.rank, self.size, info.id, info.num_workers))
        while mine:  # a worker without a shard ends
            for shard in random.sample(mine, len(mine)):
                for data in read(shard):
                    features = parse_example(data)
                    image = crop(Image.open(io.BytesIO(features[IMAGE][0])))
                    yield image, features[LABEL][0] - 1


# %% [markdown]
# The next cell starts the workers and feeds a simulated device, which sleeps for as long as a real one would compute (`device` is its speed). If you have a GPU, it stays idle. Two inputs take turns; the printed ratio is the median of the turns' ratios, not the ratio of the two medians. A difference is clear if there are at least five turns, all on the same side of 1. If the ends of a range differ by a factor of 2 or more, something else was running: repeat the cell.
#
# **Predict** how many times as fast as the Python loop the workers are. Each later cell that calls `measure` compares another pair: predict its ratio, too.

# %%
photos = Shards(rank=0, size=1)
loader = torch.utils.data.DataLoader(
    photos, batch_size, num_workers=cores, prefetch_factor=2, multiprocessing_context="fork"
)  # fork: workers need Shards, which is defined here
# if you run this cell again, run those below it, too
stages = {"Python loop": python_loop(), "PyTorch workers": iter(loader)}
ahead = {"PyTorch workers"}  # inputs that make whole batches during the device's step
timed = {}


def rate(name, compute_s=batch_size / device):
    """Return images/s when feeding a device that takes `compute_s` seconds per batch."""
    batches, ready = iter(stages[name]), 2 * cores if name in ahead else 0
    for _ in range(1 + ready):
        next(batches)
    count = session.batches * (1 if name in ("Python loop", "tf.data") else cores)
    begin = time.perf_counter()
    for _ in range(count):
        done = time.perf_counter() + compute_s
        if not ready:
            time.sleep(compute_s)
        next(batches)  # inputs that work ahead do so while the device computes
        time.sleep(max(0, done - time.perf_counter()))
    seconds = time.perf_counter() - begin
    time.sleep(seconds * ready / count)  # the workers refill before the next turn
    return batch_size * count / seconds


def measure(name, guess, before="Python loop"):
    """Let two inputs take turns; print their speeds, the ratio and your guess."""
    turns = np.array([(rate(before), rate(name)) for _ in range(rounds)])
    timed[before], timed[name] = turns.T
    old, new = np.median(turns, axis=0)
    gain = workshop.ratio(turns[:, 1] / turns[:, 0])
    print(f"{before} {old:.0f}, {name} {new:.0f} images/s; turn by turn {gain};", end=" ")
    print(f"you predicted {'?' if guess is None else guess}")


rate("PyTorch workers")  # the first batches take longer
guess = None  # your number
measure("PyTorch workers", guess)
print(f"The device alone: {device:,.0f} images/s")

# %% [markdown]
# The speed-up can exceed the number of cores: the workers also work during the device's step.
#
# ## tf.data, one stage at a time
#
# You describe the work once; tf.data then runs it in its own threads, without Python.
#
# **Read, shuffle, parse, decode, batch.** The JPEG's header gives the image's size, so the box can be chosen before decoding, and the decoder can skip much of the work outside it. `antialias=True` matches Pillow, which always antialiases. These steps run one after the other, while the device waits. Is that faster than the Python loop?

# %%
if TF:
    DESCRIPTION = {
        IMAGE: tf.io.FixedLenFeature([], tf.string),
        LABEL: tf.io.FixedLenFeature([], tf.int64),
    }

    def random_box(shape):
        """Return a random box as `crop` draws it: top, left, height, width."""
        whole = tf.cast(shape[:2], tf.float32)
        size = tf.random.uniform([], 0.2, 0.9) * whole
        corner = tf.random.uniform([2]) * (whole - size)
        return tf.cast(tf.concat([corner, size], 0), tf.int32)

    def decode_crop(record):
        example = tf.io.parse_single_example(record, DESCRIPTION)
        jpeg, label = example[IMAGE], example[LABEL] - 1
        box = random_box(tf.io.extract_jpeg_shape(jpeg))
        image = tf.io.decode_and_crop_jpeg(jpeg, box, channels=3)
        image = tf.image.resize(image, (224, 224), antialias=True)
        return tf.cast(tf.round(image), tf.uint8), label

    by_hand = tf.data.Options()  # tf.data adds no stage by itself
    by_hand.experimental_optimization.map_and_batch_fusion = False
    by_hand.experimental_optimization.inject_prefetch = False
    by_hand.experimental_optimization.map_parallelization = False
    records = tf.data.TFRecordDataset(shards).repeat().with_options(by_hand).shuffle(200, seed)
    stages["tf.data"] = records.map(decode_crop).batch(batch_size)
    guess = None  # your number
    measure("tf.data", guess)

# %% [markdown]
# If there is no clear difference, two effects may cancel: tf.data decodes fewer pixels, but its antialiased resize can take longer than Pillow's. **Parallel map** decodes up to *n* images at a time on *n* cores. A batch is still requested only after the device's step, but the map can make up to *n* images during it. The cell prints the largest speed-up that this allows.
#
# **Your turn.** Write this stage and the next, in one line each.


# %%
def parallel_map(records):
    """Return batches of crops in the records' order, made `cores` at a time."""
    return None  # your code: one line of the cell above, changed


if TF:
    parallel_map = nb04.check("parallel_map", parallel_map, decode_crop, cores, batch_size)
    stages["+ parallel map"] = parallel_map(records)
    guess = None  # your number
    measure("+ parallel map", guess, before="tf.data")
    old, wait = 1 / np.median(timed["tf.data"]), 1 / device  # seconds per image
    late = 1 - min(cores / batch_size, 1)  # share of a batch that is made after the wait
    bound = old / (late * (old - wait) / cores + wait)
    print(f"At most {bound:.2f} times as fast, if n cores are n times as fast as one")

# %% [markdown]
# Below the bound? Reading, shuffling and copying still use one thread, and *n* busy cores may be less than *n* times as fast as one.
#
# **Prefetch** prepares whole batches while the device works, so a step takes only as long as the slower of the two.


# %%
def prefetch(records):
    """Return the same batches, two of them prepared ahead."""
    return None  # your code: use parallel_map


if TF:
    prefetch = nb04.check("prefetch", prefetch, decode_crop, cores, batch_size)
    stages["+ prefetch"] = prefetch(records)
    ahead.add("+ prefetch")
    guess = None  # your number
    measure("+ prefetch", guess, before="+ parallel map")
    old = 1 / np.median(timed["+ parallel map"])
    # if the map made all it could during the wait, and prefetching hides nothing else
    rest = min(old, (old - wait) / late) if late else old
    print(f"Expected: at least {old / max(wait, rest):.2f} times as fast;", end=" ")
    print(f"without prefetching, the device was busy {wait / old:.0%} of the time")

# %% [markdown]
# The minimum assumes that prefetching hides only the wait. It can also hide work between batches, such as copying the images into a batch, so the ratio is often higher. Below the minimum? It is computed from one median, which disturbed turns can shift.
#
# ### Is it right?
#
# In tf.data, the split between ranks is one more stage, and its position decides whether the result is right. Each of eight ranks should train on a different eighth. All four programs below run without an error. **Predict** which are right.

# %%
if TF:
    guess = set()  # their names
    total, ranks = 64, 8
    images = tf.data.Dataset.range(total)  # numbers instead of records
    programs = {
        "no shard": lambda r: images.shuffle(total, seed + r),
        "shuffle, shard": lambda r: images.shuffle(total, seed + r).shard(ranks, r),
        "shuffle with one seed, shard": lambda r: images.shuffle(total, seed).shard(ranks, r),
        "shard, shuffle": lambda r: images.shard(ranks, r).shuffle(total, seed + r),
    }
    for name, program in programs.items():
        seen = np.zeros(total, int)
        for rank in range(ranks):
            seen[list(program(rank).as_numpy_iterator())] += 1
        mark = "✓" if np.all(seen == 1) else "✗"
        print(f"{mark} {name}: {np.sum(seen > 1)} of {total} images more than once,", end=" ")
        print(f"{np.sum(seen == 0)} never")
    print("You predicted:", ", ".join(sorted(guess)) or "?")

# %% [markdown]
# - **No shard** is what the talk's recipe 2 does: every rank reads the whole file.
# - **Shuffle, shard**: each rank shuffles with a different seed, so the eighths overlap, and about a third of the images are never read ((7/8)⁸ = 34%).
# - **Shuffle with one seed, shard** is right but wasteful: each rank reads all records and drops seven out of eight.
# - **Shard, shuffle** is right and cheap. Shard the *file names*, before anything is read. If shards differ in size, `.take(steps)` limits all ranks to the steps of the rank with the fewest images. Each rank sees the same eighth in every epoch, unless you reshuffle the files with a common seed.
#
# **Your turn.** Put the stages together, for one rank of many: in what order should `batch`, `interleave`, `map`, `prefetch`, `shard` and `shuffle` come? `tf.data.Dataset.from_tensor_slices(list(shards))` is a dataset of file names, and its `.interleave(tf.data.TFRecordDataset)` takes records from several of them in turn; with `num_parallel_calls`, it reads these files at the same time, which hides network latency. `shuffle` should hold JPEGs of 100 KB, not crops of 150 KB. `decode_crop` above returns an image and its label. `tf.data.AUTOTUNE` lets tf.data choose a buffer size or `num_parallel_calls`.
#
# The next cell checks your function on small shards; then it and `+ prefetch` take turns. **Predict:** do `interleave` and AUTOTUNE change the speed?


# %%
def pipeline(shards, rank, size, batch, seed):
    """Return one rank's full batches (images, labels) as a dataset, in a new order on each pass."""
    return None  # your code


# %%
if TF:
    pipeline = nb04.check("pipeline", pipeline, decode_crop)
    stages["pipeline"] = pipeline(shards * 99, 0, 1, batch_size, seed)  # one long pass
    ahead.add("pipeline")
    guess = None  # your number
    measure("pipeline", guess, before="+ prefetch")

# %% [markdown]
# The next cell measures all inputs once more, in turns (half a minute). The figure shows their speeds and the share of the time in which each keeps the device busy. Inputs with a dark bar prepare whole batches while the device computes. The further a bar ends to the left of the dashed line, the longer **the device waits for its input**; if it ends within a few percent of the line, that input keeps up. If `pipeline` is no faster than `+ prefetch` and both end at the line, the device is the limit. If both end left of it, there is no latency to hide, because the shards are in memory, and AUTOTUNE has no more cores to use. If a ratio above disagrees with the figure, another program probably disturbed one of them.

# %%
timed = dict(zip(timed, np.array([[rate(x) for x in timed] for _ in range(rounds)]).T, strict=True))
speed = {name: float(np.median(values)) for name, values in timed.items()}
if TF:
    once_more = workshop.ratio(timed["+ prefetch"] / timed["+ parallel map"])
    print(f"+ prefetch over + parallel map, once more: {once_more}")
fig, ax = plt.subplots(figsize=(9, 3.8), layout="constrained")
shares = {f"{name}: {speed[name] / device:.0%}": values for name, values in timed.items()}
workshop.ranges(ax, shares, "input")
for name, bar in zip(timed, ax.patches, strict=True):
    bar.set_alpha(1 if name in ahead else 0.4)
ax.axvline(device, color="black", ls="--")
ax.text(device, -0.6, "the device alone ", ha="right")
ax.set_ylabel("dark: makes batches ahead")
busy = max(speed.values()) / device
session.note(
    "busy", 100 * busy, "%", "share of the time in which the device is busy, with the fastest input"
)
title = f"The device is busy {min(speed.values()) / device:.0%} to {busy:.0%} of the time"
ax.set(title=title, xlabel="images/s, 224 px: median, and a dot per turn")
found = ", ".join(f"{name} {value:.0f}" for name, value in speed.items())
workshop.figure(fig, alt=f"Images/s with a device of {device:,.1f}: {found}.")

# %% [markdown]
# ## Which input, and how many cores?
#
# Now the Python loop, on one core, and the inputs that work ahead, on all cores, take turns without a device. If the speed grows linearly with the cores, the number of cores that keep a device busy is its images/s divided by those of one core. **Predict** whether tf.data is faster than PyTorch's workers, and how many cores one H100 needs with each.

# %% tags=["results"]
guess = "?"  # such as "the same; 20 cores"
h100 = session.results["input.h100.synthetic"].value
names = ["Python loop", *(name for name in timed if name in ahead)]
turns = np.array([[rate(name, compute_s=0) for name in names] for _ in range(rounds)])
for name, median in zip(names, np.median(turns, axis=0), strict=True):
    used = 1 if name == "Python loop" else cores
    print(f"{name}: {median / used:,.0f} images/s per core;", end=" ")
    print(f"one H100 (recorded) needs {used * h100 / median:.1f} cores")
print("You predicted", guess)
if TF:
    over = workshop.ratio(turns[:, -1] / turns[:, 1])
    print(f"pipeline over PyTorch workers: {over}")
    if not over.clear:
        print("No clear difference: use the input of your framework.")
    elif over.median < 1:
        print("On the same cores, the workers are faster: in PyTorch, stay with them.")
    else:
        print("On the same cores, tf.data is faster.")
session.expect({f"input.h100.{way}": None for way in ("synthetic", "dali", "tfrecord")})

# %% [markdown]
# If the workers make fewer images per core than the loop, that is plausible: busy cores slow each other down, and workers also copy batches. If the loop's speed here differs much from the first output, one of the two was disturbed, or the first read files that were not in memory. In a server, eight GPUs share roughly 100 to 200 cores. DALI (notebook 05) can decode on the GPU instead: that frees CPU cores, but costs the recorded H100 a tenth of its speed (4,424 of 4,875).
#
# ## How good is a shuffle buffer?
#
# A shuffle buffer can move an image forward by at most the buffer's length. In the next cell's rows *sorted*, the file is sorted by class. **Predict:** how many of the 12 classes does a batch of 32 contain if the buffer holds half a class? And two classes? Then set `buffer` to a length that gives eight.

# %%
if TF:
    guess = "?", "?"  # your numbers
    buffer = None  # your length of a buffer
    labels = np.sort([classes.index(path.parent.name) for path in paths])
    per_class = len(labels) // len(classes)
    own = [parse_example(data)[LABEL][0] for shard in shards for data in read(shard)]
    for name, order, size in (
        ("sorted", labels, per_class // 2),
        ("sorted", labels, 2 * per_class),
        *([("sorted, you", labels, buffer)] if buffer else []),
        ("sorted", labels, len(labels)),
        ("your shards", own, per_class // 2),
    ):
        stream = tf.data.Dataset.from_tensor_slices(order).shuffle(size, seed).batch(32, True)
        mixed = np.mean([len(set(batch)) for batch in stream.as_numpy_iterator()])
        print(f"{name:12} buffer {size:5,}: {mixed:4.1f} of {len(classes)} classes in a batch")
    print("You predicted", *guess)

# %% [markdown]
# More than you expected? Images can stay in the buffer for a long time, so it also holds earlier classes. Notebook 02 showed what sorted batches do to batch norm. A large buffer costs memory on every rank. So shuffle **once, when you write the shards**, as you did; a small buffer is then enough.
#
# ## Random numbers in a graph
#
# The next cell draws angles in a tf.data `map`, with NumPy and with TensorFlow ([the same trap in PyTorch](../docs/troubleshooting.md#dataloader-workers-repeat-the-same-random-numbers)). **Predict** what each row shows.

# %%
if TF:
    six = tf.data.Dataset.range(6)
    guess = "?"  # such as "NumPy: six times 0°"
    rows = {
        "NumPy": six.map(lambda _: tf.constant(np.random.uniform(-10, 10))),
        "TensorFlow": six.map(lambda _: tf.random.uniform([], -10, 10)),
    }
    for name, drawn in rows.items():
        print(f"{name:10}", *(f"{float(angle):+6.1f}°" for angle in drawn))
    print("You predicted", guess)

# %% [markdown]
# NumPy draws once, when the graph is built, and nothing warns you: the talk's recipe 2 rotates every image by the same angle. **Draw random numbers in the graph.**
#
# ## Train from your shards on a slow device
#
# The next cell trains for a few steps with the course's library: TensorFlow on the CPU, images of 64 pixels from your shards, and the library's own tf.data stages. **Predict** its speed in images/s (the following cell prints it). Would your `pipeline` keep up?

# %% language="bash" magic_args="-e"
# [ "$TF" ] || { echo "TensorFlow is missing: make setup WITH=tensorflow"; exit 0; }
# export CUDA_VISIBLE_DEVICES=
# rn50 run --backend tensorflow --data-root $SHARDS --no-val -n 1 -e 1 $TRAIN \
#   --report tensorflow.json > tensorflow.txt 2>&1 || (cat tensorflow.txt; exit 1)

# %%
if TF:
    guess = "?"  # such as "500; no"
    trained = json.loads(Path("tensorflow.json").read_text())["metrics"]["train.total_ips"][0]
    print(f"After the first step: {trained:.0f} images/s; you predicted {guess}.")
    print(f"Your pipeline, alone on these cores, delivers {np.median(turns[:, -1]):.0f} at 224 px.")

# %% [markdown]
# A slow device hides a slow input: tune the input for the device you will train on.
#
# ## Key takeaways
#
# - TFRecord replaces many small files with a few large ones. Its checksums detect damaged records, but not features that a program misreads. For PyTorch, shards can also be tar files ([WebDataset](https://github.com/webdataset/webdataset)) or MDS ([MosaicML Streaming](https://github.com/mosaicml/streaming)).
# - Assign every shard to exactly one worker of one rank before you shuffle its records. Shuffle across the classes when you write the shards.
#
# **Try it:** predict which stages keep a V100 busy in FP32 (400.2 images/s, from the table linked at the top), then call `rate(name, batch_size / 400.2)` in a new cell. Or set `antialias=False` in `decode_crop`, and rerun the cells from there on: does the ranking of tf.data and PyTorch's workers change? With a GPU, replace the sleep in `rate` with a training step on a fixed batch, followed by `torch.cuda.synchronize()`: does the ranking hold?
