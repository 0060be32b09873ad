# %% [markdown]
# # 01 · Dataset preparation
#
# How does a model read a million JPEGs? You pack a folder into record files, read them with a class that you write, measure whether packing pays, and detect damage before you train.
#
# **Time:** 30 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about a minute to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
left_out: str = "deer"  # class to leave out of val in the label experiment
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
# The layout is the usual one for ImageNet: one folder per split, each with one folder per class. Start by counting. Pillow reads only the header of a file until you ask for pixels, so this is quick.

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
    with Image.open(file) as image:
        shapes.append(image.size)
        modes[image.mode] += 1
width, height = np.array(shapes).T

IMAGENET, ARCHIVE = 1_281_167, 147_897_477_120  # training images, bytes of their archive
sizes = per_class.values()
for what, here, imagenet in (
    ("", "here", "ImageNet (ILSVRC 2012)"),
    ("training images", f"{len(train):,}", f"{IMAGENET:,}"),
    ("validation images", f"{len(val):,}", "50,000"),
    ("classes", f"{len(per_class)}", "1,000"),
    ("images of a class", f"{min(sizes)} to {max(sizes)}", "732 to 1,300"),
    ("training images, GB", f"{kilobytes.sum() / 1e6:.2f}", f"{ARCHIVE / 1e9:.1f}"),
    ("mean image, KB", f"{kilobytes.mean():.1f}", f"{ARCHIVE / IMAGENET / 1000:.1f}"),
    ("in portrait orientation", f"{np.mean(height > width):.0%}", ""),
    ("grey", f"{modes['L'] / len(train):.0%}", ""),
):
    print(f"{what:24}{here:>12}   {imagenet}")

# %% [markdown]
# These images are generated; notebook 00 shows eight. Signs are small, tilted, dirty or half hidden, and some images are dark. Crops must fit portrait images, too, and grey ones must become RGB.
#
# ## From folder to label
#
# A network knows its classes only by number, so each number must mean the same class in training and validation; [otherwise, validation accuracy collapses](../docs/troubleshooting.md#validation-accuracy-is-01-labels-differ-from-training). The rule: **the label is the index of the folder's name in sorted order**, counted from 0.
#
# The rule has a weakness. Suppose a copy was interrupted, and val has no `deer` folder. **Predict:** what accuracy would be reported for a perfect model?

# %%
in_train = {name: label for label, name in enumerate(sorted(per_class))}
in_val = {name: label for label, name in enumerate(sorted(per_class.keys() - {left_out}))}
scored = [file.parent.name for file in val if file.parent.name != left_out]
perfect = 100 * np.mean([in_train[name] == in_val[name] for name in scored])
print("labels in train:", in_train)
print(f"labels in val:   {in_val}\na perfect model would score {perfect:.1f}% top-1")

# %% [markdown]
# The missing folder shifts every label after it; only the classes before it still count as right. With a plain folder loader, nothing crashes and the training loss looks healthy. (`rn50` compares the two sets of folders and refuses to start if they differ.) So keep the list of classes next to the data, and look at some validation images with their labels.
#
# ImageNet arrives without class folders for its validation images; its development kit numbers their classes in its own order. In that kit, number 1 is a fox, `n02119789`, whose label, counted from 0 in sorted order, is 278. So if you subtract 1 from the kit's numbers, your labels are wrong. `data_prep.imagenet` unpacks the archives, and looks each number up ([docs/imagenet.md](../docs/imagenet.md)).
#
# ## Pack with `im2rec`
#
# Training from the folder works: why pack it? Opening a million files takes time, and one file is easier to copy, check and delete. You measure below whether that pays.
#
# Notebook 00 trained from RecordIO, MXNet's format. MXNet was retired in 2023, but DALI [still reads it](https://docs.nvidia.com/deeplearning/dali/user-guide/docs/operations/nvidia.dali.fn.readers.mxnet.html). It is simple, and the published runs used it. Today you will more often meet MosaicML's MDS, Parquet, or WebDataset (tar files, below): the idea is the same.
#
# Packing takes two commands: the first lists the images, the second packs them. With `--pass-through`, the bytes of each JPEG are copied unchanged. These flags match MXNet's `im2rec.py`.

# %% language="bash" magic_args="-e"
# python -m data_prep.im2rec --list --recursive records/val "$DATA/val"
# python -m data_prep.im2rec --pass-through --num-thread $CORES records/val "$DATA/val" 2>&1
# ls -l records
# head -n 3 records/val.lst records/val.idx
# od -A d -t x1z -N 64 records/val.rec

# %% [markdown]
# The **list** (`.lst`) has one line per image: number, label, path. The images are numbered first and then shuffled with a fixed seed, so every run gives the same file. `classes.txt` names the classes; `val.crc` has checksums, which you use below.
#
# The **index** (`.idx`) has one line per record: its number, and the byte at which it starts. `od` shows the start of the **records** (`.rec`). All numbers are little-endian, and a record consists of
#
# 1. a **magic** number, `0xced7230a`, stored as `0a 23 d7 ce`;
# 2. a 32-bit word: the kind of record in the upper 3 bits, the **length** of the content in the lower 29;
# 3. the content: 24 bytes of **header** (flag, label, two numbers), then the JPEG, which starts with `ff d8`;
# 4. zeros that pad it to a multiple of 4 bytes.
#
# Find these parts above. In Python, `struct.unpack_from("<I", record, 4)` returns a tuple with the 32-bit number at byte 4 of a record; with `"<f"`, it reads a float32.
#
# One rule is missing. A reader that has lost its place searches for the magic number, so it must not occur elsewhere at a 4-byte boundary. If the content has it there, the writer drops it and splits the record there into parts; the reader puts it back. In exercise `ex01.frame`, you write records, with this rule.
#
# ## The index
#
# The index lets you read any record with one seek, so a class like the one below is all that a `DataLoader` needs. `pread` reads at an offset without moving a shared file position, so several workers can use one open file.
#
# **Your turn.** Write `__getitem__`, which returns image `i` and its label. `self.read(i)` returns the bytes of the whole record. Assume that it has one part, so that its second word is the length. `io.BytesIO` turns bytes into a file that `Image.open` accepts. The next cells compare your answers with the original files, and make a batch.

# %%
import io
import struct  # noqa: F401

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
Records.__getitem__ = nb01.check_item(records, "records/val.lst", data / "val")
samples = next(iter(DataLoader(records, 8, shuffle=True, collate_fn=list)))
print("a batch:", *(f"{image.size} of class {label}" for image, label in samples), sep="\n")

# %% [markdown]
# ## What you gain by packing
#
# A single file now holds the folder's images and labels, and any of them is one seek away. Is it faster? Does the format matter? To compare, the next cell writes a **WebDataset**: plain tar files, the *shards*. Files that differ only in their extension form a sample, such as `0000039.jpg` and `0000039.cls`. Python's `tarfile` writes them:

# %%
import tarfile

Path("shards").mkdir(exist_ok=True)
lines = [line.split("\t") for line in Path("records/val.lst").read_text().splitlines()]
for first in range(0, len(lines), 300):  # images per shard; the list is shuffled already
    with tarfile.open(f"shards/val-{first // 300:06}.tar", "w") as tar:
        for number, true, path in lines[first : first + 300]:
            image = (data / "val" / path).read_bytes()
            for ending, content in (("jpg", image), ("cls", f"{float(true):.0f}".encode())):
                entry = tarfile.TarInfo(f"{number:>07}.{ending}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
shards = sorted(Path("shards").iterdir())
with tarfile.open(shards[0]) as tar:
    print([entry.name for entry in tar.getmembers()[:4]], f"in the first of {len(shards)} shard(s)")

# %% [markdown]
# A tar file has no index: you read it from front to back, and shuffle whole shards, then samples within a buffer.
#
# The next cell reads all validation images, without decoding them, in four ways: one file per image in random order, records in random order, records from front to back, and tar shards from front to back. The four take turns, **warm** (data in memory) and **cold** (after the operating system is asked to drop it; macOS cannot).
#
# **Predict:** by what factor are records in order faster than files at random, warm and cold? Is tar as fast as records?

# %%
import random
import time

rng = random.Random(seed)


def files_at_random():
    for file in rng.sample(val, len(val)):
        with open(file, "rb", buffering=0) as opened:
            opened.read()


def records_at_random():
    for i in rng.sample(range(len(records)), len(records)):
        records.read(i)


def records_in_order():
    for i in range(len(records)):
        records.read(i)


def tar_in_order():
    for shard in shards:
        with tarfile.open(shard) as tar:
            for entry in tar:
                tar.extractfile(entry).read()


def forget():
    if not hasattr(os, "posix_fadvise"):  # macOS lacks it: there, "cold" is warm, too
        return
    for file in (*val, Path("records/val.rec"), *shards):
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


ways = {"files at random": files_at_random, "records at random": records_at_random,
        "records in order": records_in_order, "tar in order": tar_in_order}  # fmt: skip
rates = {f"{name}, {cache}": [] for cache in ("warm", "cold") for name in ways}  # images/s
os.sync()  # only what has reached the disk can be forgotten
for turn in range(rounds + 1):  # the first one warms up
    for cache in ("warm", "cold"):
        for name, way in ways.items():
            if cache == "cold":
                forget()
            else:
                way()  # not timed: now all bytes are in memory
            begin = time.perf_counter()
            way()
            if turn:
                rates[f"{name}, {cache}"].append(len(val) / (time.perf_counter() - begin))

# %%
import matplotlib.pyplot as plt

training = nb01.training_speed()  # images/s: trains ResNet-50 at 224 px for a few steps
needed = session.results["published.v100.8gpu.fp16.ips"].value
fast = session.results["published.h100.8gpu.ips"].value  # NVIDIA, MLPerf Training v4.0
fig, ax = plt.subplots(figsize=(9, 4.8))
workshop.ranges(ax, rates, "input")
ax.axvline(needed, color="0.4", ls="--", lw=1, zorder=0)
ax.text(needed, -0.65, f" 8 V100s train {needed:,.0f}", va="center")
ax.set_xlabel(f"images/s without decoding, {rounds} rounds")
medians = {name: np.median(values) for name, values in rates.items()}
slowest = min(medians.values()) / training
digits = 0 if slowest > 10 else 1
ax.set_title(f"The slowest way reads {slowest:,.{digits}f} × as fast as this machine trains")
alt = "; ".join(f"{name}: {rate:,.0f}" for name, rate in medians.items())
workshop.figure(fig, alt=f"Reading speed in images/s, medians: {alt}")
for name, values in rates.items():
    cache = name.rpartition(", ")[2]
    gain = workshop.ratio(np.divide(rates[f"records in order, {cache}"], values))
    if "records in order" not in name:
        print(f"records in order over {name}: {gain}")

# %% [markdown]
# A ratio is the median of the turns, with its range: the difference is clear if all are on one side of 1. *Records at random* opens one file instead of one per image. What *records in order* gains over it comes from the order alone, such as reading ahead from a cold cache. The warm bar of tar may show a reader, not the format: `tarfile` parses two entries per image in Python.
#
# ## Would you pack?
#
# Packing costs a second copy, which you pack again whenever the data changes. For speed, one comparison decides: can readers open files as fast as training uses images? Here, even "cold" files are cheap to open, as `forget` has just opened them. On shared storage, opening a file takes a round trip over the network; `open_slowly` assumes 1 ms.
#
# **Your turn:** measure how well readers scale. Call `open_file(file)` for each file in a `ThreadPoolExecutor` with `readers` threads, and return files per second. **Predict** the rate of 8 and 32 readers.


# %%
from concurrent.futures import ThreadPoolExecutor  # noqa: F401


def open_slowly(file):
    time.sleep(0.001)  # the assumed round trip
    return Path(file).read_bytes()


def reading_rate(open_file, files, readers):
    """Return the files/s at which `readers` threads together open and read `files`."""
    return None  # your code


# %%
reading_rate = nb01.check_rate(reading_rate)
users = {"this machine": training, "8 V100s": needed}
print("images/s wanted:", ", ".join(f"{name} ({wanted:,.0f})" for name, wanted in users.items()))
for where, open_file, readers in (
    ("in memory", Path.read_bytes, 1),
    ("1 ms per file", open_slowly, 1),
    ("1 ms per file", open_slowly, 8),
    ("1 ms per file", open_slowly, 32),
):
    rate = np.median([reading_rate(open_file, val, readers) for _ in range(3)])
    print(f"{where:13} {readers:2} reader(s): {rate:6,.0f} files/s;", end=" ")
    verdicts = {name: "too slow" if rate < wanted else "enough" for name, wanted in users.items()}
    print(*(f"{name}: {verdict}" for name, verdict in verdicts.items()), sep=", ")

# %% [markdown]
# *In memory* waits for nothing, so its rate is the limit of one Python process with this pool. Readers near it need more processes, not packing. Packing gains no speed if readers are faster than training: measure your own storage. Nor does it help a slow decoder, as the next section shows.
#
# ## Resize or re-encode?
#
# Without `--pass-through`, `im2rec` decodes each image and encodes it again, optionally resizing it first. Smaller files are read and decoded faster, but lost detail cannot be recovered. **Predict:** how does re-encoding at quality 95, MXNet's default, change the file size?

# %% language="bash" magic_args="-e"
# for choice in "--pass-through" "--quality 95" "--quality 75" "--resize 256 --quality 95"; do
#   mkdir -p "choices/$choice"
#   head -n $FEW records/val.lst > "choices/$choice/few.lst"
#   python -m data_prep.im2rec $choice --num-thread $CORES "choices/$choice/few" "$DATA/val" 2>&1
# done

# %%
choices = ["--pass-through", "--quality 95", "--quality 75", "--resize 256 --quality 95"]


def ms(call, few):
    """Return the ms per record of `call(few, i)`."""
    begin = time.perf_counter()
    for i in range(len(few)):
        call(few, i)
    return 1000 * (time.perf_counter() - begin) / len(few)


def decode(few, i):
    few[i][0].load()


opened = [Records(f"choices/{choice}/few") for choice in choices]
turns = [[(ms(Records.read, few), ms(decode, few)) for few in opened] for _ in range(rounds)]
exact = [np.asarray(image.convert("RGB"), float) for image, _ in opened[0]]
print(f"{'per image':27}   KB  read, ms  decode, ms   share  error of 255")
for choice, few, (read, whole) in zip(choices, opened, np.median(turns, axis=0), strict=True):
    images = [image.convert("RGB") for image, _ in few]
    errors = [abs(np.asarray(image.resize(true.shape[1::-1])) - true).mean()
              for image, true in zip(images, exact, strict=True)]  # fmt: skip
    size = np.subtract(few.ends, few.offsets).mean() / 1000
    print(f"{choice:27}{size:5.1f}{read:10.3f}{whole - read:12.2f}", end="")
    print(f"{1 - read / whole:8.1%}{np.mean(errors):14.2f}")
one = 1000 / np.median(turns, axis=0)[0, 1]  # images/s of --pass-through, on one core
h100 = session.results["h100.float16.ips"].value
speeds = users | {"one H100 (recorded)": h100, "8 H100s (MLPerf)": fast}
session.note("one_core", float(one), "img/s", "read and decoded on one core, without a crop")
print("Such cores needed by", end=" ")
print(*(f"{name}: {np.ceil(speed / one):.0f}" for name, speed in speeds.items()), sep=", ")
print(f"This machine has {session.machine.cores}.")

# %% [markdown]
# `share` is decoding's share of the time (warm cache). Near 100%, no file format helps. Training also crops and scales, so it needs more cores (notebook 05). If a machine lacks them, let the GPU decode (05), or store smaller images.
#
# Smaller images have a price. `error` is the mean change of a colour value, after scaling back. Quality 95 hardly changes the mean size, but only by chance: files with reduced colour resolution grow; the others lose theirs, and shrink. Resizing removes detail: ImageNet's recipe enlarges crops of as little as 5% of the area to 224 × 224. From a 500 × 375 image, such a crop has about 97 × 97 real pixels, but only 66 × 66 after resizing to 256.
#
# ## Which damage is noticed?
#
# Whatever the format, some of a million files are not what their names suggest. ImageNet's training set has 22 CMYK images and a PNG named `.JPEG`. Interrupted copies leave truncated and empty files, cloning without git LFS leaves pointer files, and disks and transfers sometimes flip a bit. **Predict:** which of the six files below will Pillow decode? And what share of copies of one image, each with a single flipped bit?

# %%
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

for file in sorted(odd.iterdir()):
    try:
        with Image.open(file) as opened:
            opened.load()
            print(f"{file.name:12} {opened.format}, {opened.mode}, {opened.size}")
    except OSError as error:
        print(f"{file.name:12} refused: {str(error).split(' <')[0].split(' /')[0]}")

# %%
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
print(f"{len(decoded)} of {session.flips} flipped bits raise no error;", end=" ")
print(f"{visible} change pixels by more than 1 of 255 on average")
error, worst = max(decoded, key=lambda pair: pair[0])
fig, ax = plt.subplots(figsize=(4, 3))
ax.imshow(worst)
ax.set_title(f"The worst flipped bit: a mean error of {error:.0f} of 255")
ax.axis("off")
workshop.figure(fig, alt="A copy of an image, damaged by a flipped bit")

# %% [markdown]
# A decoder looks at the bytes, not the name, and it misses most flipped bits. Many flips hardly change the image; others discolour the rest, as JPEG stores each block's mean as a difference. RecordIO has no checksums. That is why this project's `im2rec` also writes a file `PREFIX.crc`, with a checksum per record; MXNet and DALI ignore it.
#
# The next two cells flip one bit in a copy of the records, run `verify` on it, then pack the odd files. **Predict:** which odd files does packing refuse, and which does `verify` report?

# %%
shutil.copytree("records", "damaged", dirs_exist_ok=True)
damaged = np.memmap("damaged/val.rec", dtype=np.uint8, mode="r+")  # writes go to the file
at = len(damaged) // 2
print(f"byte {at:,} was {damaged[at]:#04x}", end=" ")
damaged[at] ^= 1
damaged.flush()
print(f"and is now {damaged[at]:#04x}")

# %% language="bash" magic_args="-e"
# python -m data_prep.verify damaged/val.rec > first.txt 2>&1 && status=0 || status=$?
# grep -A 1 "^error" first.txt
# echo "exit status $status"
# rm damaged/val.crc
# python -m data_prep.verify damaged/val.rec 2>&1 | grep "images read"
# echo "--- the odd files"
# python -m data_prep.im2rec --list --recursive odd-records/odd odd
# python -m data_prep.im2rec --pass-through --skip-bad odd-records/odd odd 2>&1
# python -m data_prep.verify odd-records/odd.rec > odd.txt 2>&1 && status=0 || status=$?
# grep -A 1 "^error" odd.txt
# echo "exit status $status"

# %% [markdown]
# Without `val.crc`, `verify` only decodes, which misses most flipped bits (above). For record files from elsewhere, add checksums with `python -m data_prep.im2rec --checksums PREFIX` once you trust the files.
#
# `im2rec` refuses files that cannot be images; with `--skip-bad` it names them, leaves them out and removes them from the list. The truncated file was packed, because `--pass-through` decodes nothing; `verify` names its record. The PNG passes: a record has no file name to contradict it.
#
# ## Key takeaways
#
# - Look at the data first: count the images, their sizes and modes, and view a few, as in 00.
# - A label is the index of the folder's name in sorted order. Train and val need the same folders.
# - ImageNet's kit numbers the classes in its own order: look them up.
# - A record is magic, length, header, JPEG, padding. The index gives the position of each record.
# - For speed, pack only if readers open files more slowly than you train.
# - Pack with `--pass-through` unless disk space or decoding speed forces you to resize.
# - Run `verify` before you train, and keep checksums.
#
# **Try it:** also pack with `--quality 30` (add it to the loop and to `choices`), and compare size and error.
#
# A folder needs no second copy, so notebook 02 reads it. 04 writes TFRecord shards, which have checksums; 05 reads them.
