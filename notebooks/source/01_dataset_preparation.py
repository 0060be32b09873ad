# %% [markdown]
# # 01 · Dataset preparation
#
# How does a model read a million JPEGs? You pack a folder into record files, read them with a class that you write, measure whether packing pays off, and detect damage before you train.
#
# **Time:** 60 minutes · **Needs:** nothing beyond the set-up, no GPU · **On a CPU:** about a minute to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
rounds: int | None = None  # rounds of the read benchmark
seed: int = 0  # random seed

# %%
import os
import shutil

import workshop
from workshop.lessons import nb01

session = workshop.start("01", profile)
rounds = rounds or session.rounds
work = session.folder / "work"  # everything below is written here
shutil.rmtree(work, ignore_errors=True)
work.mkdir()
os.chdir(work)
os.environ |= {
    "DATA": str(session.data_root),
    "CORES": str(session.machine.cores),
    "FEW": str(session.transcoded),
}

# %% [markdown]
# ## What is in the data set
#
# The layout is ImageNet's: one folder per split, each with one folder per class.

# %%
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

data = Path(session.data_root)
train, val = (sorted((data / split).glob("*/*")) for split in ("train", "val"))
per_class = Counter(file.parent.name for file in train)
kilobytes = np.array([file.stat().st_size for file in train]) / 1000
shapes, modes = [], Counter()
for file in train:
    with Image.open(file) as image:  # reads only the header
        shapes.append(image.size)
        modes[image.mode] += 1
width, height = np.array(shapes).T

IMAGENET, ARCHIVE = 1_281_167, 147_897_477_120  # training images, bytes of their archive
sizes = per_class.values()
rows = [
    ["training images", len(train), f"{IMAGENET:,}"],
    ["validation images", len(val), "50,000"],
    ["classes", len(per_class), "1,000"],
    ["images per class", " to ".join(map(str, sorted({min(sizes), max(sizes)}))), "732 to 1,300"],
    ["training images, GB", kilobytes.sum() / 1e6, f"{ARCHIVE / 1e9:.1f}"],
    [
        "mean size of an image, KB",
        kilobytes.mean(),
        f"{ARCHIVE / IMAGENET / 1000:.1f} (with tar headers)",
    ],
    ["in portrait orientation", f"{np.mean(height > width):.0%}", "not counted"],
    ["grey", f"{modes['L'] / len(train):.0%}", "not counted"],
]
workshop.table(rows, ["", "here", "ImageNet (ILSVRC 2012)"])
print("classes:", ", ".join(sorted(per_class)))

# %% [markdown]
# These images are generated. Crops must also work on portrait images, and grey images must be converted to RGB.
#
# ## From folder to label
#
# A network knows its classes only by number, so each number must mean the same class in training and validation; [otherwise, validation accuracy collapses](../docs/troubleshooting.md#validation-accuracy-is-01-labels-differ-from-training). The rule: **the label is the index of the folder's name in sorted order**, counted from 0. **Your turn:** write it.
#
# The rule has a weakness. Suppose a copy was interrupted, and val has no `deer` folder. **Predict:** what accuracy would a perfect model score on val? In the cell after your function, and in later ones, replace `"?"` with your prediction.


# %%
def labels(folders):
    """Return a dictionary with the label of each name in the list `folders`."""
    return None  # your code


# %%
labels = nb01.check("labels", labels)
left_out, guess = "deer", "?"  # a class, and your prediction in percent
in_train = labels(list(per_class))
in_val = labels([name for name in per_class if name != left_out])
scored = [file.parent.name for file in val if file.parent.name != left_out]
perfect = 100 * np.mean([in_train[name] == in_val[name] for name in scored])
print("labels in train:", in_train)
print("labels in val:  ", in_val)
print(f"A perfect model would score {perfect:.1f}% top-1; you expected {guess}%.")

# %% [markdown]
# The missing folder shifts every label after it; only images of the classes before it are still scored as correct. **Try it:** set `left_out` to `bicycle`, then to `yield`, and predict both.
#
# With a plain loader, such as `torchvision.datasets.ImageFolder`, nothing crashes and the training loss looks healthy. (`rn50` refuses to start if the folders differ.) So keep the list of classes next to the data, and look at some validation images with their labels. ImageNet's validation images come without folders: [docs/imagenet.md](../docs/imagenet.md) shows how to sort them.
#
# ## Pack with `im2rec`
#
# Training from the folder works, so why pack it? One file is easier to copy, check and delete than a million, and opening a million takes time. Below, you measure how long.
#
# Notebook 00 trained from RecordIO, MXNet's format. MXNet was retired in 2023, but DALI [still reads it](https://docs.nvidia.com/deeplearning/dali/user-guide/docs/operations/nvidia.dali.fn.readers.mxnet.html). RecordIO is simple, so you read it byte by byte here; TFRecord, in notebooks 04 and 05, is similar. Today you will more often meet MosaicML's MDS, Parquet, or WebDataset (tar files, below): all put many samples into one file.
#
# The first command lists the images, the second packs them. With `--pass-through`, the bytes of each JPEG are copied unchanged.

# %% language="bash" magic_args="-e"
# python -m data_prep.im2rec --list --recursive records/val "$DATA/val"
# python -m data_prep.im2rec --pass-through --num-thread $CORES records/val "$DATA/val" 2>&1
# ls -l records
# head -n 3 records/val.lst records/val.idx
# od -A d -t x1 -N 64 records/val.rec

# %% [markdown]
# The **list** (`.lst`) has one line per image: number, label, path. The images are numbered, then shuffled with a fixed seed.
#
# The **index** (`.idx`) has one line per record: its number, and the byte at which it starts. `od` shows the start of the **records** (`.rec`). All numbers are little-endian, and a record consists of
#
# 1. a **magic** number, `0xced7230a`, stored as `0a 23 d7 ce`;
# 2. a 32-bit word: the kind of record in the upper 3 bits, the **length** of the content in the lower 29;
# 3. the content: 24 bytes of **header** (flag, label, two 8-byte numbers), then the JPEG, which starts with `ff d8`;
# 4. zeros that pad it to a multiple of 4 bytes.
#
# Find these parts above.
#
# ## Read a record
#
# The index lets you read any record with one seek, so a class with `__len__` and `__getitem__` is all a `DataLoader` needs. `pread` reads at an offset without moving the shared file position, so forked workers can share one open file.
#
# **Your turn.** Write `__getitem__`, which returns image `i` (its JPEG without the padding) and its label. `self.read(i)` returns the bytes of the whole record. Here, the kind is always 0, so the second word equals the length. `struct.unpack_from("<I", record, 4)` returns a tuple with the 32-bit number at byte 4 of a record; with `"<f"`, it reads a float32. `io.BytesIO` turns bytes into a file that `Image.open` accepts.

# %%
import io
import struct

from torch.utils.data import DataLoader


class Records:
    """The images of a record file, found by its index."""

    def __init__(self, prefix):
        lines = Path(f"{prefix}.idx").read_text().splitlines()
        self.offsets = sorted(int(line.split("\t")[1]) for line in lines)
        self.ends = [*self.offsets[1:], os.path.getsize(f"{prefix}.rec")]
        self.file = open(f"{prefix}.rec", "rb", buffering=0)

    def __len__(self):
        return len(self.offsets)

    def read(self, i):
        return os.pread(self.file.fileno(), self.ends[i] - self.offsets[i], self.offsets[i])

    def __getitem__(self, i):
        """Return the image, as Pillow opens it, and its label, an int."""
        return None  # your code


# %%
records = Records("records/val")
Records.__getitem__ = nb01.check("__getitem__", records, "records/val.lst", data / "val")
samples = next(iter(DataLoader(records, 8, shuffle=True, collate_fn=list)))  # sizes differ
print("a batch:", *(f"{image.size} of class {label}" for image, label in samples), sep="\n")

# %% [markdown]
# ## What you gain by packing
#
# A single file now holds the folder's images and labels. Is it faster to read? To compare formats, the next cell writes a **WebDataset**: plain tar files, the *shards*. Files with the same name but different extensions form one sample.

# %%
import tarfile

shutil.rmtree("shards", ignore_errors=True)
Path("shards").mkdir()
lines = Path("records/val.lst").read_text().splitlines()  # shuffled already
for first in range(0, len(lines), 300):  # images per shard
    with tarfile.open(f"shards/val-{first // 300:06}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, label, path in (line.split("\t") for line in lines[first : first + 300]):
            tar.add(data / "val" / path, f"{number:>07}.jpg")
            Path("label").write_text(f"{float(label):.0f}")
            tar.add("label", f"{number:>07}.cls")
shards = sorted(Path("shards").iterdir())
with tarfile.open(shards[0]) as tar:
    print(tar.getnames()[:4], f"in the first of {len(shards)} shard(s)")

# %% [markdown]
# A tar file has no index: you read it from front to back, and shuffle whole shards, then samples within a buffer.
#
# The next cell reads all validation images, without decoding them, in four ways: files and records in random order, as training shuffles them, then records and tar shards from front to back. They take turns, first **warm** (the data is in memory), then **cold** (on Linux, after the operating system is asked to drop the data; caches in the disk, host or server remain). The dashed line is eight V100s' published training speed.
#
# **Predict** three factors, each warm and cold: how much do you gain from packing alone and from order alone, and is tar as fast as records?

# %%
import random
import time

factors = {  # your predictions, warm and cold: how many times as fast is the first?
    ("records at random", "files at random"): ("?", "?"),  # packing alone
    ("records in order", "records at random"): ("?", "?"),  # order alone
    ("tar in order", "records in order"): ("?", "?"),  # the format alone
}
rng = random.Random(seed)
shuffled = rng.sample(val, len(val))
numbers = rng.sample(range(len(records)), len(records))


def read_file(file):
    with open(file, "rb", buffering=0) as opened:
        return opened.read()


def read_tar(shard):
    with tarfile.open(shard) as tar:
        for entry in tar:
            tar.extractfile(entry).read()


def seconds(read, items):
    begin = time.perf_counter()
    for item in items:
        read(item)
    return time.perf_counter() - begin


def forget():
    if not hasattr(os, "posix_fadvise"):  # macOS lacks it: there, "cold" is warm, too
        return
    for file in (*val, Path("records/val.rec"), *shards):
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


ways = {
    "files at random": (read_file, shuffled),
    "records at random": (records.read, numbers),
    "records in order": (records.read, range(len(records))),
    "tar in order": (read_tar, shards),
}
rates = {cache: {name: [] for name in ways} for cache in ("warm", "cold")}  # images/s
for file in (Path("records/val.rec"), *shards):
    with open(file, "rb+") as opened:
        os.fsync(opened.fileno())  # only what has reached the disk can be forgotten
for turn in range(rounds + 1):  # the first one warms up
    for cache, speeds in rates.items():
        for name, way in ways.items():
            if cache == "cold":
                forget()
            else:
                seconds(*way)  # not kept: now all bytes are in memory
            speed = len(val) / seconds(*way)
            if turn:
                speeds[name].append(speed)

# %%
import matplotlib.pyplot as plt

needed = session.results["published.v100.8gpu.fp16.ips"].value
fig, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharex=True, sharey=True, layout="constrained")
for ax, (cache, speeds) in zip(axes, rates.items(), strict=True):
    workshop.ranges(ax, speeds, "input")
    ax.axvline(needed, color="black", ls="--")
    ax.text(needed, -0.65, " wanted by 8 V100s")
    ax.set(title=cache.title(), xlabel="images read per second, not decoded")
    ax.locator_params("x", nbins=5)
medians = {f"{name}, {cache}": np.median(rates[cache][name]) for cache in rates for name in ways}
slow = sum(max(turns) < needed for speeds in rates.values() for turns in speeds.values())
fig.suptitle(f"In {slow} of {len(medians)} cases, one thread never keeps up with 8 V100s")
alt = "; ".join(f"{name}: {rate:,.0f}" for name, rate in medians.items())
workshop.figure(fig, alt=f"Reading speed in images/s, medians: {alt}")
for (better, base), expected in factors.items():
    for (cache, speeds), factor in zip(rates.items(), expected, strict=True):
        gain = workshop.ratio(np.divide(speeds[better], speeds[base]))
        print(f"{cache}: {better} over {base}: {gain}; you expected {factor}")
file, record = (1e6 / medians[f"{name} at random, warm"] for name in ("files", "records"))
more = f"{file - record:.0f}"
print(f"warm: a file takes {more} µs more than a record, or {more} s for a million files")
contents = [shard.read_bytes() for shard in shards]  # no disk: Python's work alone
headers = [
    seconds(lambda content: tarfile.open(fileobj=io.BytesIO(content)).getmembers(), contents)
    for _ in range(rounds)
]
whole, parsing = 1e6 / max(rates["warm"]["tar in order"]), 1e6 * min(headers) / len(val)
print(f"warm, at best: of tar's {whole:.0f} µs per image, Python spends {parsing:.0f} on headers")

# %% [markdown]
# Each ratio is the median over the turns, with the range. A difference is clear if there are at least five turns, all on the same side of 1, so a single slow turn can hide it. If a bar's dots form two groups, the disk or the virtual machine probably changed speed.
#
# - **Packing:** *records at random* reads from a file that is already open; *files at random* opens one per image.
# - **Order:** in order, the system reads cold data ahead; a warm difference cannot come from storage. That leaves the processor, whose caches also work best on neighbouring data (not tested here). **Try it** on Linux: `os.posix_fadvise(records.file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)` switches read-ahead off; call it and run the last two cells again (`os.POSIX_FADV_NORMAL` switches it on).
# - **Format:** if tar is slower when warm, that is mostly because Python parses two headers per image (last line).
#
# ## Would you pack?
#
# Packing creates a second copy, which you must rebuild whenever the data changes. For speed, one question decides: can your readers open and read files as fast as training uses images? Here, even "cold" files are cheap to open, as `forget` has just opened them. On shared storage, opening a file takes a round trip over the network. `open_slowly` simulates a round trip of 1 ms to a server that never gets busy; a real server is shared by all ranks and all users. The training speeds below are for ResNet-50 at 224 px, except that of your fastest run of notebook 00, if there is one: the recorded H100 ran PyTorch in eager mode, and the published GPUs ran NVIDIA's tuned MXNet.
#
# **Your turn:** measure how well readers scale. Call `open_file(file)` for each file in a `ThreadPoolExecutor` with `readers` threads, and return files per second. **Predict** the rates.


# %%
import json
from concurrent.futures import ThreadPoolExecutor
from statistics import harmonic_mean


def open_slowly(file):
    time.sleep(0.001)  # the assumed round trip
    return Path(file).read_bytes()


def reading_rate(open_file, files, readers):
    """Return the files/s at which `readers` threads together open and read `files`."""
    return None  # your code


# %%
reading_rate = nb01.check("reading_rate", reading_rate)
guess = {1: "?", 8: "?", 32: "?"}  # files/s with so many readers
reports = [json.loads(file.read_text())["metrics"]
           for file in (session.runs / "lesson-00").glob("run-*.json")]  # fmt: skip
epochs = [report.get("train.total_ips", [None]) for report in reports]  # images/s of each
own = [harmonic_mean(speeds) for speeds in epochs if None not in speeds]
users = {"notebook 00's network (64 px)": max(own)} if own else {}
users |= {
    "one H100 (recorded)": session.results["h100.float16.ips"].value,
    "8 V100s (published)": needed,
    "8 H100s (published)": session.results["published.h100.8gpu.ips"].value,
}
print("images/s wanted:", ", ".join(f"{name}: {wanted:,.0f}" for name, wanted in users.items()))
hungry = {*users}
for readers, expected in guess.items():
    begin, cpu = time.perf_counter(), time.process_time()
    speeds = [reading_rate(open_slowly, val, readers) for _ in range(rounds)]
    busy = (time.process_time() - cpu) / (time.perf_counter() - begin)
    fed = [name for name, wanted in users.items() if min(speeds) >= wanted]
    hungry -= {*fed}
    print(f"{readers:2} reader(s): {np.median(speeds):,.0f} files/s", end=" ")
    print(f"({min(speeds):,.0f} to {max(speeds):,.0f}); you expected {expected};", end=" ")
    print(f"{busy:.1f} of {session.machine.cores} cores busy;", end=" ")
    print("always enough for", ", ".join(fed) or "none")
without = ", ".join(name for name in users if name in hungry) or "none"
print("No number of readers always kept up with:", without)

# %% [markdown]
# The readers' waits overlap, so eight are several times as fast as one. If 32 are no faster, the limit is not the simulated storage, which has none. If cores are free, it is probably Python's lock (the GIL): try more processes. Packing gains no speed if readers are faster than training: for which training speeds would you pack?
#
# <details><summary>Answer</summary>For speed, at most for those in the last line: no number of readers always kept up with them. If a median is high enough and only the slowest turn is not, run the cell again before you decide. Even then, try processes first.</details>
#
# **Try it** on shared storage: call `reading_rate(Path.read_bytes, files, 8)` with 1,000 files that have not been read recently.
#
# ## Resize or re-encode?
#
# Without `--pass-through`, `im2rec` decodes each image and encodes it again, optionally resizing it first. **Predict:** how does re-encoding at quality 95, MXNet's default, change the file size? How many cores feed 8 H100s?

# %% language="bash" magic_args="-e"
# # your prediction: ?
# for choice in "--pass-through" "--quality 95" "--quality 75" "--resize 256 --quality 95"; do
#   mkdir -p "choices/$choice"
#   head -n $FEW records/val.lst > "choices/$choice/few.lst"
#   python -m data_prep.im2rec $choice --num-thread $CORES "choices/$choice/few" "$DATA/val" 2>&1
# done


# %%
def times(few):
    """Return the ms per image to read its record, and to read and decode it."""
    reads = few.read, lambda i: few[i][0].load()
    return [1000 * seconds(read, range(len(few))) / len(few) for read in reads]


guess = "?"  # cores that decode for 8 H100s
choices = ("--pass-through", "--quality 95", "--quality 75", "--resize 256 --quality 95")
opened = {choice: Records(f"choices/{choice}/few") for choice in choices}
turns = {choice: [] for choice in choices}
for _ in range(rounds):
    for choice, few in opened.items():
        turns[choice].append(times(few))
originals = [image.convert("RGB") for image, label in opened["--pass-through"]]
rows = []
for choice, few in opened.items():
    read, whole = np.median(turns[choice], axis=0)
    errors = []
    for i, original in enumerate(originals):
        restored = few[i][0].convert("RGB").resize(original.size)
        errors.append(np.abs(np.asarray(restored, float) - np.asarray(original)).mean())
    kilobytes = np.subtract(few.ends, few.offsets).mean() / 1000
    rows.append([choice, kilobytes, read, whole - read, np.mean(errors)])
workshop.table(rows, ["per image", "KB", "read, ms", "decode, ms", "mean error (0–255)"])
read, whole = np.median(turns["--pass-through"], axis=0)
one = 1000 / whole  # images/s of one core
print(f"Decoding takes {1 - read / whole:.1%} of the time. Cores needed at this speed:")
for name, speed in users.items():
    print(f"{np.ceil(speed / one):3.0f} for {name}")
print(f"This machine has {session.machine.cores}; you expected {guess} for 8 H100s.")
session.note("one_core", float(one), "img/s", "read and decoded on one core, without a crop")

# %% [markdown]
# Decoding takes nearly all of the time (the cache is warm), so a different record format would not help. Training also crops and scales; loaders that decode only the crop save some of that. If a machine lacks cores, let the GPU decode (notebook 05), or store smaller images.
#
# Quality 95 hardly changes the size here, but changes the pixels: the error is the mean change of a colour value, after scaling back. Resizing removes detail: NVIDIA's recipe enlarges crops of as little as 5% of the area (torchvision's default: 8%) to 224 × 224. From a 500 × 375 image, such a crop has about 97 × 97 real pixels, but only 66 × 66 after resizing to 256.
#
# ## Which damage is noticed?
#
# Some of a million files are not what their names suggest. ImageNet's training set has 22 CMYK images and a PNG named `.JPEG`. Interrupted copies leave truncated and empty files, cloning without git LFS leaves pointer files, and disks and transfers sometimes flip a bit. **Predict:** which of the six files below does Pillow refuse? And if you flip one random bit in each copy of an image, what share of the copies still decodes?

# %%
guess = None  # the files that Pillow refuses, such as {"cmyk.jpg"}
original = train[0].read_bytes()
image = Image.open(train[0]).convert("RGB")
odd = Path("odd/any")
odd.mkdir(parents=True, exist_ok=True)
image.convert("CMYK").save(odd / "cmyk.jpg")
image.convert("L").save(odd / "grey.jpg")
image.save(odd / "png.jpg", "PNG")
(odd / "cut.jpg").write_bytes(original[: len(original) * 2 // 3])
pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{0:064}\nsize {len(original)}\n"
(odd / "pointer.jpg").write_text(pointer)
(odd / "empty.jpg").touch()

refused = set()
for file in sorted(odd.iterdir()):
    try:
        with Image.open(file) as opened:
            opened.load()
            print(f"{file.name:12} {opened.format}, {opened.mode}, {opened.size}")
    except OSError as error:
        refused.add(file.name)
        print(f"{file.name:12} refused: {error}")
if guess is not None:
    print("You were wrong about:", ", ".join(sorted(guess ^ refused)) or "none")

# %%
guess = "?"  # percent of flipped copies that decode
exact = np.asarray(Image.open(io.BytesIO(original)).convert("RGB"), float)
decoded = []
for _ in range(session.flips):
    flipped = bytearray(original)
    flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    try:
        pixels = np.asarray(Image.open(io.BytesIO(flipped)).convert("RGB"))
    except (OSError, SyntaxError, ValueError):
        continue
    decoded.append((abs(pixels - exact).mean() if pixels.shape == exact.shape else 255, pixels))
visible = sum(error > 1 for error, _ in decoded)
print(f"{len(decoded) / session.flips:.0%} of the copies decode; you expected {guess}%.")
print(f"{visible} of {session.flips} differ by more than 1 of 255 on average.")
error, worst = max(decoded, key=lambda pair: pair[0])
fig, axes = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
for ax, pixels, title in zip(axes, (exact / 255, worst), ("Original", "Damaged"), strict=True):
    ax.imshow(pixels)
    ax.set_title(title)
    ax.axis("off")
fig.suptitle(f"The worst of {session.flips} flipped bits: a mean error of {error:.0f}")
workshop.figure(fig, alt="An image, and its copy, damaged by a flipped bit")

# %% [markdown]
# CMYK, grey and PNG files decode, but not always to three channels: convert all to RGB. The cut file fails only when its pixels are read, not in `Image.open`. Decoding misses most flipped bits. Many hardly change the image; others discolour everything after them, as JPEG stores each block's mean as the difference from the previous block's. RecordIO has no checksums, so this project's `im2rec` also writes `PREFIX.crc`, with the byte at which each record starts and a checksum of its content; MXNet and DALI ignore it.
#
# **Your turn:** write `changed`, which finds the damaged records. The checksum is a CRC-32C: `google_crc32c.value(content)`. TFRecord uses CRC-32C, too (notebook 04). The next cell flips one bit in a copy of the records.


# %%
import google_crc32c


def changed(records, sums):
    """Return each `i` for which the checksum of record `i`'s content differs from `sums`.

    `sums` is a dictionary from each of `records.offsets` to the record's checksum.
    """
    return None  # your code


# %%
changed = nb01.check("changed", changed)
shutil.copytree("records", "damaged", dirs_exist_ok=True)
damaged = np.memmap("damaged/val.rec", dtype=np.uint8, mode="r+")  # writes go to the file
damaged[len(damaged) // 2] ^= 1
damaged.flush()
sums = dict(np.loadtxt("damaged/val.crc", dtype=np.int64).tolist())
for i in changed(Records("damaged/val"), sums):
    print(f"damaged: record {i} of {len(records)}, at byte {records.offsets[i]:,}")

# %% [markdown]
# The next cell runs `verify` on this copy, with and without `val.crc`, then packs the odd files. (`verify` names a record by its key, the number in the index; compare the offset.) **Predict:** which odd files does packing refuse, and which does `verify` report?

# %% language="bash" magic_args="-e"
# # your prediction: ?
# cp records/val.crc damaged  # if this cell runs again
# python -m data_prep.verify damaged/val.rec > first.txt 2>&1 && status=0 || status=$?
# grep -A 1 "^error" first.txt
# echo "exit status $status"
# rm damaged/val.crc
# python -m data_prep.verify damaged/val.rec 2>&1 | grep -o ".*images read.* errors"
# echo "--- the odd files"
# python -m data_prep.im2rec --list --recursive odd-records/odd odd
# python -m data_prep.im2rec --pass-through --skip-bad odd-records/odd odd 2>&1
# python -m data_prep.verify odd-records/odd.rec > odd.txt 2>&1 && status=0 || status=$?
# grep -A 1 "^error" odd.txt
# echo "exit status $status"

# %% [markdown]
# Without `val.crc`, `verify` only decodes, which misses most flipped bits. For record files from elsewhere that you trust, compute checksums with `python -m data_prep.im2rec --checksums PREFIX`.
#
# `im2rec` refuses files that are clearly not images: with `--skip-bad`, it leaves them out; otherwise, it packs nothing. The truncated file was packed, because `--pass-through` decodes nothing; `verify` names its record. The PNG passes: a record has no file name to contradict it.
#
# ## Key takeaways
#
# - A label is the index of the folder's name in sorted order. Train and val need the same folders.
# - A record is magic, length, header, JPEG, padding. The index gives its position.
# - For speed, pack only if readers open and read files more slowly than you train. On a cluster, also pack to spare the metadata server and your file quota.
# - Pack with `--pass-through` unless disk space or decoding speed forces you to resize.
# - Run `verify` before you train, and keep checksums.
#
# Notebook 02 reads the folder, which needs no copy. Notebook 04 writes TFRecord shards, which contain checksums, and 05 reads them.
