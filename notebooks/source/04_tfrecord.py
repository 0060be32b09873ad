# %% [markdown]
# # 04 · TFRecord
#
# After this notebook you can measure whether the input limits a training run, store images as TFRecord shards, and build a tf.data pipeline stage by stage, for one rank or for many.
#
# **Time:** 65 minutes · **Needs:** notebook 03, TensorFlow, and Horovod for the last parts · **On a CPU:** about 4 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
device: float = 1442.6  # images/s of the simulated accelerator: one V100 in FP16
rounds: int | None = None  # rounds in which the stages take turns
seed: int = 0  # seed of all random numbers

# %%
import os
import random
import shutil
import statistics
import struct
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import workshop
from workshop.paths import need_checkout

session = workshop.start("04", profile)
rounds = rounds or session.rounds
os.chdir(session.folder)  # everything below is written here
os.environ |= {
    "DATA": str(session.data_root),
    "SHARDS": f"shards-{session.data_root.name}",
    "RECIPES": str(need_checkout() / "exercises" / "recipes"),
    "STEPS": str(session.steps),
}
TF = workshop.has("tensorflow")
os.environ["READY"] = "yes" if TF and workshop.has("horovod") else ""
if TF:
    with workshop.quiet_stderr():  # TensorFlow logs notes while it is imported
        import tensorflow as tf
    tf.config.set_visible_devices([], "GPU")  # the input pipeline runs on the CPU
plt.style.use("tableau-colorblind10")
random.seed(seed)

# %% [markdown]
# ## Where is the time going?
#
# The talk behind this course, *AV Datasets & Multi-GPU Training* (2018), ends its first recipe with a warning: *"Your new bottleneck is likely the data pipeline now!"* Eight GPUs need more than seven times as many images per second as one, from the same CPU and the same disk.
#
# That recipe feeds the network by hand: Python prepares the images, and `feed_dict` passes each batch to TensorFlow. (The talk's script loads its two small classes once; a data set larger than memory must be loaded during training.) Here is such a loop:

# %%
paths = sorted((session.data_root / "train").rglob("*.jpg"))


class PythonLoop:
    """Batches of 32 randomly cropped images, made by one thread."""

    def __iter__(self):
        while True:
            yield np.stack([self.load(path) for path in random.choices(paths, k=32)])

    def load(self, path):
        image = Image.open(path).convert("RGB")
        share = random.uniform(0.2, 0.9)  # of each side
        width, height = share * image.width, share * image.height
        left = random.uniform(0, image.width - width)
        top = random.uniform(0, image.height - height)
        box = (left, top, left + width, top + height)
        return np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR, box))


# %% [markdown]
# **Predict:** how many such loops have to run in parallel to keep one V100 busy? And eight V100s? The published training speeds are *Total IPS* (data and computation together) from [NVIDIA's ResNet-50 v1.5 for MXNet, container 18.12](https://github.com/NVIDIA/DeepLearningExamples/tree/a8e1d1cd/MxNet/Classification/RN50v1.5).

# %%
loop = iter(PythonLoop())
next(loop)  # warm up
begin = time.perf_counter()
for _ in range(session.batches):
    next(loop)
loop_s = (time.perf_counter() - begin) / (32 * session.batches)
print(f"The loop takes {1000 * loop_s:.2f} ms per image: {1 / loop_s:.0f} images/s on one core")
published = {"1 V100, FP32": "1gpu.fp32", "1 V100, FP16": "1gpu.fp16", "8 V100, FP16": "8gpu.fp16"}
speeds = {name: session.results[f"published.v100.{k}.ips"].value for name, k in published.items()}
for name, speed in speeds.items():
    print(f"{name}: {speed:8,.1f} images/s need {speed * loop_s:5.1f} loops")

# %% [markdown]
# ## Many small files
#
# ImageNet is 1.3 million files. Each one has to be found, opened, read and closed. **Predict:** what share of the loop's time does that take?

# %%
some = random.sample(paths, min(96, len(paths)))
begin = time.perf_counter()
contents = [path.read_bytes() for path in some]
read_s = (time.perf_counter() - begin) / len(some)
print(
    f"open, read, close: {1e6 * read_s:.0f} µs per file, {read_s / loop_s:.1%} of the loop's time"
)
for storage, delay in {
    "an SSD, 0.1 ms": 1e-4,
    "a network, 1 ms": 1e-3,
    "a hard disk, 10 ms": 1e-2,
}.items():
    print(f"On {storage} per file: at most {1 / (read_s + delay):6,.0f} files/s, one at a time")

# %% [markdown]
# If your files are cached in memory, reading them is nearly free, and the loop spends its time on decoding and resizing. On slow storage it is the other way round. (The listed delays are typical values, not measurements.) Eight V100s need 10,263 images/s; a hard disk that seeks for each file delivers about a hundred.
#
# **Store** the images so that a few large reads suffice, which is what TFRecord is for. Then **decode** on all cores while the device computes, which is what tf.data is for. The talk calls the pair recipe 2, "optimize fuel flow".
#
# ## Write shards
#
# A data set is split into several TFRecord files, called *shards*. This command shuffles the JPEGs across classes and copies them, unchanged, into eight shards.

# %% language="bash" magic_args="-e"
# python -m data_prep.tfrecord "$DATA" $SHARDS --train-shards 8 --val-shards 1 2>&1
# ls -l $SHARDS | tail -n +2
# head -3 $SHARDS/index/train-00000-of-00008.idx

# %% [markdown]
# The last three lines are from the index of the first shard: the offset and size of each record. TensorFlow reads a shard from front to back and needs no index; DALI needs one, and so does random access.
#
# ## What a record is
#
# | bytes | content |
# |---|---|
# | 8 | length of the data |
# | 4 | checksum of the length |
# | *length* | the data: a `tf.train.Example`, a message of named features |
# | 4 | checksum of the data |
#
# That is the whole format. The next cell reads the first record by hand. The checksum is CRC-32C, "masked": rotated, plus a constant.

# %%
shards = sorted(str(path) for path in Path(os.environ["SHARDS"]).glob("train-*"))


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


with open(shards[0], "rb") as file:
    head = file.read(12)
    length, length_crc = struct.unpack("<QI", head)
    data = file.read(length)
    (data_crc,) = struct.unpack("<I", file.read(4))
print(f"{head.hex(' ')}: {length:,} bytes of data follow")
print(f"length: stored {length_crc:08x}, computed {masked_crc(head[:8]):08x}")
print(f"data:   stored {data_crc:08x}, computed {masked_crc(data):08x}")
print(f"data begins with {data[:48]}")

# %% [markdown]
# You can see some feature names. Let TensorFlow parse the message, then flip one bit of the file and let TensorFlow read it again. **Predict:** does it notice?

# %%
if TF:
    features = tf.train.Example.FromString(data).features.feature
    for name in sorted(features):
        value = getattr(features[name], features[name].WhichOneof("kind")).value[0]
        print(f"{name:20} {value if len(str(value)) < 50 else f'{len(value):,} bytes'}")

    damaged = bytearray(Path(shards[0]).read_bytes())
    damaged[length // 2] ^= 1
    Path("damaged").write_bytes(damaged)
    try:
        next(iter(tf.data.TFRecordDataset("damaged")))
    except tf.errors.DataLossError as error:
        print("\nDataLossError:", error.message.split("}} ")[-1].split(" [Op:")[0])

# %% [markdown]
# The checksum catches any single flipped bit. It cannot catch a misunderstanding about the content: in this schema the labels **start at 1**; in the talk's they are floating-point numbers that start at 0. A program that expects the wrong first label is off by one for every image, often without an error.
#
# ## From a loop to a pipeline, one stage at a time
#
# tf.data takes a description of the work and runs it in its own threads, without Python. You will add one stage at a time. Before you run each cell, give `measure` your **prediction** of the speed-up over the previous stage, such as `measure("tf.data", 1.5)`.
#
# Any machine can simulate a fast device: `rate` sleeps before each batch for as long as a V100 would compute. The input pipeline is real. While the stages run, watch CPU utilisation with `htop` in a terminal.

# %%
stages, predicted = {"Python loop": PythonLoop()}, {}


def rate(batches):
    """Return images/s when feeding a device that takes 1 / `device` seconds per image."""
    batches = iter(batches)
    next(batches)
    begin = time.perf_counter()
    for _ in range(session.batches):
        time.sleep(32 / device)  # the device works on the batch before
        next(batches)
    return 32 * session.batches / (time.perf_counter() - begin)


def measure(name, guess=None):
    """Measure a stage and the one before, and print their ratio next to your guess."""
    before = list(stages)[list(stages).index(name) - 1]
    if guess:
        predicted[name] = guess
    old, new = rate(stages[before]), rate(stages[name])
    print(f"{before} {old:.0f}, {name} {new:.0f} images/s: {new / old:.2f} times;", end=" ")
    print(f"you predicted {guess:g}" if guess else "no prediction")


# %% [markdown]
# **Read, parse, decode, batch.** A record is a string until `parse_single_example` parses it. All of this happens in one thread, alternating with the device. (By default, tf.data fuses `map` and `batch` into a stage that works ahead, and prefetches; the options disable both, so that you can add the overlap yourself.) Is it faster than Python?

# %%
if TF:
    DESCRIPTION = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }

    def random_box(shape):
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape, tf.zeros([1, 0, 4]), area_range=(0.05, 1.0),
            min_object_covered=0.0, use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        return begin, size

    def decode(record):
        jpeg = tf.io.parse_single_example(record, DESCRIPTION)["image/encoded"]
        image = tf.io.decode_jpeg(jpeg, channels=3)
        begin, size = random_box(tf.shape(image))
        image = tf.image.resize(tf.slice(image, begin, size), (224, 224), antialias=True)
        return tf.cast(image, tf.uint8)

    by_hand = tf.data.Options()
    by_hand.experimental_optimization.map_and_batch_fusion = False
    by_hand.experimental_optimization.inject_prefetch = False
    records = tf.data.TFRecordDataset(shards).with_options(by_hand)
    stages["tf.data"] = records.map(decode).batch(32)
    measure("tf.data")  # your prediction as the second argument

# %% [markdown]
# **Interleave** reads several shards at the same time. On a network file system, it hides latency. What does it gain here?

# %%
if TF:
    files = tf.data.Dataset.from_tensor_slices(shards)
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=4)
    records = records.with_options(by_hand)
    stages["+ interleave"] = records.map(decode).batch(32)
    measure("+ interleave")  # your prediction as the second argument

# %% [markdown]
# **Shuffle** keeps a buffer of records and returns one of them at random. It comes before `map`, so that the buffer holds 100 KB JPEGs rather than decoded 150 KB images. What does it cost?

# %%
if TF:
    records = records.shuffle(200, seed=seed)
    stages["+ shuffle"] = records.map(decode).batch(32)
    measure("+ shuffle")  # your prediction as the second argument

# %% [markdown]
# **Parallel map** decodes several images at the same time. How many cores does this machine have?

# %%
if TF:
    cores = session.machine.cores
    stages["+ parallel map"] = records.map(decode, num_parallel_calls=cores).batch(32)
    measure("+ parallel map")  # your prediction as the second argument

# %% [markdown]
# **Decode only the crop.** The JPEG's header gives the image's size, enough to choose the random box. Pixels outside are skipped, but their Huffman codes must still be decoded. The average crop covers a third of the image.

# %%
if TF:

    def decode_crop(record):
        jpeg = tf.io.parse_single_example(record, DESCRIPTION)["image/encoded"]
        begin, size = random_box(tf.io.extract_jpeg_shape(jpeg))
        box = tf.stack([begin[0], begin[1], size[0], size[1]])
        image = tf.io.decode_and_crop_jpeg(jpeg, box, channels=3)
        return tf.cast(tf.image.resize(image, (224, 224), antialias=True), tf.uint8)

    crops = records.map(decode_crop, num_parallel_calls=cores)
    stages["+ decode the crop"] = crops.batch(32)
    measure("+ decode the crop")  # your prediction as the second argument

# %% [markdown]
# **Prefetch** prepares the next batches while the device works on the current one.

# %%
if TF:
    stages["+ prefetch"] = crops.batch(32).prefetch(2)
    measure("+ prefetch")  # your prediction as the second argument

# %% [markdown]
# A single measurement on a busy machine can mislead. The next cell lets all stages take turns, so that a slow spell affects them all, and plots the median and range over the rounds. Diamonds are your predictions.

# %%
timed = {name: [] for name in stages}
for _ in range(rounds):
    for name, batches in stages.items():
        timed[name].append(rate(batches))
speed = {name: statistics.median(values) for name, values in timed.items()}
names = list(speed)

fig, ax = plt.subplots(figsize=(10, 4), layout="constrained")
ax.barh(names, list(speed.values()), color="#0072b2")
for row, values in enumerate(timed.values()):
    ax.plot([min(values), max(values)], [row, row], color="black")
guesses = {name: predicted[name] * speed[before]
           for before, name in zip(names, names[1:], strict=False) if name in predicted}  # fmt: skip
if guesses:
    ax.plot(guesses.values(), guesses.keys(), "D", color="#d55e00", label="your prediction")
ax.axvline(device, color="black", ls="--", label="the device alone")
ax.invert_yaxis()
gain = speed[names[-1]] / speed["Python loop"]
ax.set(title=f"All stages: {gain:.2f} times the Python loop", xlabel="images/s, 224 px")
ax.legend()
found = ", ".join(f"{name} {value:.0f}" for name, value in speed.items())
workshop.figure(fig, alt=f"Images/s when feeding a device of {device:,.1f} images/s: {found}")
print(f"The device is busy {speed['Python loop'] / device:.0%} of the time with the Python loop")
print(f"and {speed[names[-1]] / device:.0%} with all stages.")
steps = {name: speed[name] / speed[before] for before, name in zip(names, names[1:], strict=False)}
if steps:
    best = max(steps, key=steps.get)
    print(f"The largest gain comes with {best!r}: {steps[best]:.2f} times.")

# %% [markdown]
# At each bar, ask: **is the input still the bottleneck?** Left of the dashed line, the device has to wait. A stage helps only if it speeds up the bottleneck. While one thread decodes everything, neither tf.data nor interleaving gains much. Decoding on *n* cores is at most *n* times as fast. Prefetching hides the shorter of two times: the input's or the device's.
#
# So the gain from the same pipeline depends on the device. The next cell computes how busy each device would be. One simulated V100 may have limited your rates, so for faster devices the second percentage is a lower bound. Without overlap, a batch takes the sum of both times; with overlap, the longer of the two.

# %%
for name, ips in {"a CPU": 20.0, **speeds}.items():
    by_loop = 1 / (1 / speed["Python loop"] - 1 / device + 1 / ips)
    overlapped = min(speed[names[-1]], ips)
    print(
        f"{name:12}: busy {by_loop / ips:4.0%} with the loop, {overlapped / ips:4.0%} with tf.data"
    )

# %% [markdown]
# A model that trains on a CPU at 20 images/s loses little by waiting for its input. If you measure only there, you will conclude that a Python loop is good enough, which is wrong for a GPU.
#
# ## Shard, then shuffle
#
# With several ranks (workers that train together), the pipeline needs one more stage, and its position decides whether the result is right. Each of eight ranks should train on a different eighth of the images. All four attempts below run without an error. **Predict** which are right.

# %%
if TF:
    from collections import Counter

    total = 1200
    images = tf.data.Dataset.range(total)  # numbers instead of records
    programs = {
        "no shard": lambda r: images.shuffle(total, seed + r),
        "shuffle, shard": lambda r: images.shuffle(total, seed + r).shard(8, r),
        "shuffle with one seed, shard": lambda r: images.shuffle(total, seed).shard(8, r),
        "shard, shuffle": lambda r: images.shard(8, r).shuffle(total, seed + r),
    }
    for name, program in programs.items():
        seen = Counter(int(n) for r in range(8) for n in program(r).as_numpy_iterator())
        twice = sum(count > 1 for count in seen.values())
        print(
            f"{name:29} {len(seen):5} images, {twice:5} more than once, {total - len(seen)} never"
        )

# %% [markdown]
# - **No shard** is the talk's recipe 2: each rank reads the whole file. Its ten passes over the data become up to eighty on eight ranks.
# - **Shuffle, shard** looks right. But each rank shuffles with a different seed, so the eighths overlap and miss a third of the images.
# - **One seed** fixes that, but each rank reads everything and drops seven of eight records. Keras's `image_dataset_from_directory` followed by `shard` is worse: every rank *decodes* everything.
# - **Shard, shuffle** is right and cheap. Shard the *file names*, at least one file per rank, before anything is read.
#
# The order to remember: **files → shard → interleave → shuffle → map → batch → prefetch.**
#
# ### How good is a shuffle buffer?
#
# No image appears more than a buffer length early. That is enough if the file is already shuffled. In the next cell, it is sorted by class, as if you had packed one class folder after another. **Predict:** how many of the 12 classes does a batch of 32 contain if the buffer holds half a class? Two classes?

# %%
if TF:
    classes = sorted({path.parent.name for path in paths})
    labels = np.sort([classes.index(path.parent.name) for path in paths])
    sizes = [1, len(labels) // 24, len(labels) // 6, len(labels)]
    fig, axes = plt.subplots(len(sizes), 1, figsize=(10, 4.4), layout="constrained")
    mixed = {}
    for ax, size in zip(axes, sizes, strict=True):
        stream = tf.data.Dataset.from_tensor_slices(labels).shuffle(size, seed).batch(32, True)
        batches = np.array(list(stream.as_numpy_iterator()))
        mixed[size] = np.mean([len(set(batch)) for batch in batches])
        ax.imshow(batches.reshape(1, -1), aspect="auto", cmap="cividis", interpolation="nearest")
        ax.set(xticks=[], yticks=[], title=f"buffer {size}: {mixed[size]:.1f} classes in a batch")
    axes[-1].set_xlabel("images of an epoch, in order; the shade is the class")
    counts = ", ".join(f"{size}: {count:.1f}" for size, count in mixed.items())
    workshop.figure(fig, alt=f"Mean number of classes in a batch by buffer size: {counts}")

# %% [markdown]
# A network that sees one class for many steps learns to predict it, and batch normalisation takes its statistics from it alone. A larger buffer costs more memory on every rank. It is better to shuffle **once, when the shards are written**, as `data_prep.tfrecord` does; then a small buffer suffices.
#
# ## The talk's recipe 2
#
# [exercises/recipes](../exercises/recipes/README.md) has the talk's recipe 2 for TensorFlow 1, which `tf.compat.v1` still runs: it trains from raw pixels with a queue of file names, a `TFRecordReader` and `shuffle_batch`. The slides omit the writer, so one was added. Mistakes that do not crash the script were left in.

# %% language="bash" magic_args="-e"
# [ "$READY" ] || { echo "TensorFlow or Horovod is missing: run rn50 doctor"; exit 0; }
# rm -rf slides && mkdir slides  # the script would resume from an earlier run
# export CUDA_VISIBLE_DEVICES=
# python $RECIPES/slides_write_tfrecord.py --data "$DATA/train" --image_size 64 \
#   --out slides/signs 2> log || { cat log; exit 1; }
# python -m horovod.runner.launch -np 2 --gloo python $RECIPES/slides_tfrecord.py \
#   --tfrec_fname slides/signs --image_size 64 --last_step $STEPS \
#   --checkpoint_dir slides > log 2>&1 || { tail -20 log; exit 1; }
# sed -n 's/^\[\([0-9]*\)\].*tensorflow:loss/rank \1: loss/p' log

# %% [markdown]
# It runs without an error, although every rank reads all the images. Two more silent mistakes deserve a closer look.
#
# **Drawn once.** The script draws the angle of its random rotation with NumPy, in the function that builds the graph. Such a function runs once, not once per image. The same happens in a tf.data `map`. **Predict** what each row of the figure will show.

# %%
if TF:
    six = tf.data.Dataset.range(6)
    rows = {
        "NumPy": six.map(lambda _: tf.constant(np.random.uniform(-10, 10))),
        "TensorFlow": six.map(lambda _: tf.random.uniform([], -10, 10)),
    }
    fig, axes = plt.subplots(2, 6, figsize=(10, 4), layout="constrained")
    distinct = {}
    for line, (name, drawn) in zip(axes, rows.items(), strict=True):
        angles = [float(angle) for angle in drawn]
        distinct[name] = len(set(angles))
        for ax, angle, path in zip(line, angles, paths[:: len(paths) // 6], strict=False):
            ax.imshow(Image.open(path).rotate(angle))
            ax.set(xticks=[], yticks=[], title=f"{angle:+.1f}°")
        line[0].set_ylabel(name)
    fig.suptitle("Rotation angles drawn by NumPy and by TensorFlow, in degrees")
    workshop.figure(fig, alt=f"Distinct angles for six images: {distinct}")
    print(f"Distinct angles for six images: {distinct}")

# %% [markdown]
# In the first row all images have the same angle, and they would keep it throughout training. **Draw random numbers in the graph.**
#
# **A flip that changes the label.** The script also flips images top to bottom. An augmentation must preserve the label. But a *yield* sign that is flipped this way has the outline of a warning sign, and the 5 on a 50 speed-limit sign looks like a 2. So omit this flip for signs; the finished script flips only left to right, which preserves its two labels. The [README](../exercises/recipes/README.md) lists the script's other mistakes.
#
# ## Your turn: from recipe 1 to recipe 2
#
# `train_horovod.py` is recipe 1 in current TensorFlow: the loop of `train_single.py` with Horovod's five changes. The next cell copies it to `runs/lesson-04/recipe2.py` and shows where Python loads and uses the images. Your `runs/train.py` stays as it is.

# %%
recipes = Path(os.environ["RECIPES"])
mine, before, after = (
    Path("recipe2.py"),
    recipes / "train_horovod.py",
    recipes / "train_tfrecord.py",
)
shutil.copy(recipes / "model.py", "model.py")
if not mine.exists():
    shutil.copy(before, mine)
text = before.read_text()
print(text[text.index("def find_images(") : text.index("def checksum(")])
print(text[text.index("    files = find_images") : text.index("    steps_per_epoch = ")])
print(text[text.index("    batches = ") : text.index("        risen = ")])

# %% [markdown]
# Edit `recipe2.py` so that TensorFlow reads the images. Write `read(shards, rank, size, batch_size, seed)`, which returns one epoch as a dataset of images and labels, with the seven stages in the order above. Of the `size` ranks, each gets every `size`-th shard, from number `rank`. The talk's schema has `height` and `width` (int64), `img_raw` (RGB, for `tf.io.decode_raw(…, tf.uint8)`: reshape to height × width × 3 and divide by 255) and `label` (float32, from 0: cast to int32). Then adapt `main`:
#
# 1. Replace `find_images`: the shards are `sorted(map(str, flags.data.glob("train-*-of-*")))`.
# 2. All ranks must take the same number of steps, so `share` is the smallest record count of any rank. `index/NAME.idx` has a line per record.
# 3. Call `read` once, before the loop; `.take(steps_per_epoch).repeat()` makes it endless.
# 4. Remove `names`, `--seen` and what is now unused: `load`, `--classes`, `--size`.
#
# The next cell writes shards of two signs; the one after it runs your script on two ranks and reports which of recipe 1's changes it observed. **Predict** which of them your pipeline could break. Until you edit `recipe2.py`, the finished script runs instead. Stuck? `diff train_horovod.py train_tfrecord.py` in `exercises/recipes` shows the solution, about 30 new lines; augmenting is optional.

# %% language="bash" magic_args="-e"
# mkdir -p two-signs/train
# ln -sfn "$DATA/train/stop" "$DATA/train/yield" two-signs/train
# python -m data_prep.tfrecord two-signs two-signs-$SHARDS --schema slides --size 64 \
#   --train-shards 4 2>&1

# %%
import runpy
import sys

script = after if mine.read_text() == before.read_text() else mine
print(f"Using {script}")
if os.environ["READY"]:
    tried = workshop.try_script(
        script, "--data", Path(f"two-signs-{os.environ['SHARDS']}").absolute(), "--epochs", 1,
        "--batch-size", 8, "--warmup-epochs", 0, steps=4, seconds=1, single=session.alone,
        env={"CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    print(tried)
    sys.path.append(".")  # for model.py
    read = runpy.run_path(str(script))["read"]
    signs = sorted(map(str, Path(f"two-signs-{os.environ['SHARDS']}").glob("train-*-of-*")))
    for rank in (0, 1):
        batches = read(signs, rank, 2, 8, 0).take(100)
        print(
            f"rank {rank} of 2 reads {sum(len(labels) for _, labels in batches)} images in a pass"
        )

# %% [markdown]
# Your pipeline decides only *share the samples*; *rank 0 writes* is not seen because no `--checkpoints` was set. The script averages the gradients itself, so it works with Keras 2 and 3; notebook 03 lists the shortcuts that fail.
#
# ## Where is the time going now?
#
# On eight V100s, how much does the input pipeline matter? Three runs of ResNet-50 in TensorFlow 1.15, with mixed precision and XLA, show it (published figures; the original page could not be found again). *Synthetic* images need no reading or decoding, so their speed is the ceiling.

# %% tags=["results"]
inputs = {"tf.data": "tfdata", "DALI": "dali", "synthetic": "synthetic"}
ips = {name: session.results[f"published.v100.8gpu.input.{k}.ips"].value
       for name, k in inputs.items()}  # fmt: skip
for name, value in ips.items():
    print(f"8 V100, {name:9} {value:8,.0f} images/s, {value / ips['synthetic']:.0%} of the ceiling")
share = speed[names[-1]] / device
print(f"here, one simulated V100 with {names[-1]!r}: {share:.0%} of its ceiling")
kilobytes = sum(Path(shard).stat().st_size for shard in shards) / len(paths) / 1000
session.expect({"input.jpeg_kb": kilobytes})
session.note("loop_ms", 1000 * loop_s, "ms", "a Python loop's time per image")
session.note("gain", gain, "times", "speed with all input stages over the Python loop")

# %% [markdown]
# ## Key takeaways
#
# - First find out whether the input is the bottleneck. The faster the device, the likelier that is.
# - TFRecord turns many small files into a few large reads. Its checksums detect damaged records, but not misread features.
# - Add one stage at a time, and let the stages take turns when you measure them.
# - Shard the file names, then shuffle. Shuffle across the classes when you write the shards.
# - Draw random numbers in the graph, and use only augmentations that preserve the label.
#
# **Try it:** set `device = 400.2`, a V100 in FP32, in the first code cell, and predict after which stage the input stops being the bottleneck.
#
# What remains is decoding, which can keep all cores busy while a GPU waits. The next notebook introduces DALI, which can decode on the GPU.
