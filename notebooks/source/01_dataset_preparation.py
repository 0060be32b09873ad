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
rows = [
    ["training images", len(train), f"{IMAGENET:,}"],
    ["validation images", len(val), "50,000"],
    ["classes", len(per_class), "1,000"],
    ["images of a class", f"{min(sizes)} to {max(sizes)}", "732 to 1,300"],
    ["training images, GB", kilobytes.sum() / 1e6, f"{ARCHIVE / 1e9:.1f}"],
    ["mean image, KB", kilobytes.mean(), f"{ARCHIVE / IMAGENET / 1000:.1f}"],
    ["in portrait orientation", f"{np.mean(height > width):.0%}", None],
    ["grey", f"{modes['L'] / len(train):.0%}", None],
]
workshop.table(rows, ["", "here", "ImageNet (ILSVRC 2012)"])

# %% [markdown]
# These images are generated; you saw eight in notebook 00. Signs are small, tilted, dirty or half hidden, and some images are dark. Crops must fit portrait images, too, and grey ones must become RGB.
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
# ImageNet arrives without class folders for its validation images; its development kit numbers their classes in its own order. In that kit, the fox `n02119789` is number 1, but its label is 278, so subtracting 1 is wrong. `data_prep.imagenet` unpacks the archives, and looks each number up ([docs/imagenet.md](../docs/imagenet.md)).
#
# ## Pack with `im2rec`
#
# Training from the folder works: why pack it? One file is easier to copy, check and delete than a million, and opening a million takes time. You measure below how much.
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
# ## The index
#
# The index lets you read any record with one seek, so a class like the one below is all that a `DataLoader` needs. `pread` reads at an offset without moving a shared file position, so several workers can use one open file.
#
# **Your turn.** Write `__getitem__`, which returns image `i` and its label. `self.read(i)` returns the bytes of the whole record. Its second word is the length. (A record may have several parts: exercise `ex01.frame`.) `io.BytesIO` turns bytes into a file that `Image.open` accepts. The next cells compare your answers with the original files, and make a batch.

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
Records.__getitem__ = nb01.check_item(records, "records/val.lst", data / "val")
samples = next(iter(DataLoader(records, 8, shuffle=True, collate_fn=list)))
print("a batch:", *(f"{image.size} of class {label}" for image, label in samples), sep="\n")

# %% [markdown]
# ## What you gain by packing
#
# A single file now holds the folder's images and labels, and any of them is one seek away, as shuffling needs. Is it faster? To compare formats, the next cell also writes a **WebDataset**: plain tar files, the *shards*. Files that differ only in their extension form a sample, such as `0000039.jpg` and `0000039.cls`. Python's `tarfile` writes them:

# %%
import tarfile

Path("shards").mkdir()
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
# The next cell reads all validation images, without decoding them, in four ways: files and records in random order, as training shuffles them, then records and tar shards from front to back. The four take turns, **warm** (data in memory) and **cold** (after the operating system is asked to drop it; macOS cannot).
#
# **Predict:** by what factor are records in order faster than files at random, warm and cold? Is tar as fast as records? (Decoding comes on top; you measure it afterwards.)

# %%
import random
import time

rng = random.Random(seed)
shuffled = rng.sample(val, len(val))
numbers = rng.sample(range(len(records)), len(records))


def files_at_random():
    for file in shuffled:
        with open(file, "rb", buffering=0) as opened:
            opened.read()


def records_at_random():
    for i in numbers:
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

needed = session.results["published.v100.8gpu.fp16.ips"].value
fig, ax = plt.subplots(figsize=(9, 4.8))
workshop.ranges(ax, rates, "input")
ax.axvline(needed, color="0.4", ls="--", lw=1, zorder=0)
ax.set_xlabel(f"images/s without decoding, {rounds} rounds; dashed: 8 V100s train {needed:,.0f}")
medians = {name: np.median(values) for name, values in rates.items()}
slow = sum(max(values) < needed for values in rates.values())
ax.set_title(f"One reader, in every turn too slow for 8 V100s: {slow} of {len(rates)} ways")
alt = "; ".join(f"{name}: {rate:,.0f}" for name, rate in medians.items())
workshop.figure(fig, alt=f"Reading speed in images/s, medians: {alt}")
for cache in ("warm", "cold"):
    for name in ("files at random", "records at random", "tar in order"):
        gain = np.divide(rates[f"records in order, {cache}"], rates[f"{name}, {cache}"])
        print(f"{cache}: records in order over {name}: {workshop.ratio(gain)}")

# %% [markdown]
# A ratio is the median of the turns, with its range: a difference is clear if there are at least five, all on one side of 1. *Records at random* opens one file instead of one per image. What *records in order* gains over it comes from the order alone: cold, the system reads ahead; warm, the next bytes may be closer. The warm bar of tar may show a reader, not the format: `tarfile` parses two entries per image in Python.
#
# ## Would you pack?
#
# Packing costs a second copy, which you pack again whenever the data changes. For speed, one comparison decides: can readers open files as fast as training uses images? Here, even "cold" files are cheap to open, as `forget` has just opened them. On shared storage, opening a file takes a round trip over the network; `open_slowly` assumes 1 ms, however many read at once.
#
# **Your turn:** measure how well readers scale. How many feed one H100? Call `open_file(file)` for each file in a `ThreadPoolExecutor` with `readers` threads, and return files per second. **Predict** the rates of 8 and 32.


# %%
from concurrent.futures import ThreadPoolExecutor


def open_slowly(file):
    time.sleep(0.001)  # the assumed round trip
    return Path(file).read_bytes()


def reading_rate(open_file, files, readers):
    """Return the files/s at which `readers` threads together open and read `files`."""
    return None  # your code


# %%
reading_rate = nb01.check_rate(reading_rate)
users = {
    "notebook 00's run": nb01.training_speed(session.runs, session.data_root),
    "one H100": session.results["h100.float16.ips"].value,
    "8 V100s": needed,
}
print("images/s wanted:", ", ".join(f"{name} ({wanted:,.0f})" for name, wanted in users.items()))
for readers in (1, 8, 32):
    rate = np.median([reading_rate(open_slowly, val, readers) for _ in range(3)])
    fed = [name for name, wanted in users.items() if rate >= wanted]
    print(f"{readers:2} reader(s): {rate:6,.0f} files/s, enough for {', '.join(fed) or 'none'}")

# %% [markdown]
# Readers wait at the same time, so eight are several times as fast as one. If 32 gain little more, the process is the limit, not storage: use more processes. Packing gains no speed if readers are faster than training. Nor does it help a slow decoder, as the next section shows.
#
# **Try it:** have you shared storage? Call `reading_rate(Path.read_bytes, files, 8)` with 1,000 files there that were not read lately.
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
def times(few):
    """Return the ms per image to read its record, and to read and decode it."""
    begin = time.perf_counter()
    for i in range(len(few)):
        few.read(i)
    between = time.perf_counter()
    for i in range(len(few)):
        image, label = few[i]
        image.load()
    end = time.perf_counter()
    return 1000 * (between - begin) / len(few), 1000 * (end - between) / len(few)


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
workshop.table(rows, ["per image", "KB", "read, ms", "decode, ms", "error of 255"])
one = 1000 / np.median(turns["--pass-through"], axis=0)[1]  # images/s of one core
fast = session.results["published.h100.8gpu.ips"].value  # NVIDIA, MLPerf Training v4.0
print("Cores needed, at this speed, for", end=" ")
for name, speed in (users | {"8 H100s (MLPerf)": fast}).items():
    print(f"{name}: {np.ceil(speed / one):.0f},", end=" ")
print(f"this machine has {session.machine.cores}.")
session.note("one_core", float(one), "img/s", "read and decoded on one core, without a crop")

# %% [markdown]
# If decoding takes nearly all of the time (here, the cache is warm), no file format helps. Training also crops and scales, so it needs more cores (notebook 05). If a machine lacks them, let the GPU decode (05), or store smaller images.
#
# Quality 95 hardly changes the size here, but changes the pixels: `error` is the mean change of a colour value, after scaling back. Resizing removes detail: ImageNet's recipe enlarges crops of as little as 5% of the area to 224 × 224. From a 500 × 375 image, such a crop has about 97 × 97 real pixels, but only 66 × 66 after resizing to 256.
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
        print(f"{file.name:12} refused: {error}")

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
ax.set_title(f"The worst flipped bit: mean error {error:.0f} of 255")
ax.axis("off")
workshop.figure(fig, alt="A copy of an image, damaged by a flipped bit")

# %% [markdown]
# A decoder looks at the bytes, not the name, and it misses most flipped bits. Many flips hardly change the image; others discolour the rest, as JPEG stores each block's mean as a difference. RecordIO has no checksums. That is why this project's `im2rec` also writes a file `PREFIX.crc`, with a checksum per record; MXNet and DALI ignore it.
#
# The next two cells flip one bit in a copy of the records, run `verify` on it, then pack the odd files. **Predict:** which odd files does packing refuse, and which does `verify` report?

# %%
shutil.copytree("records", "damaged", dirs_exist_ok=True)
damaged = np.memmap("damaged/val.rec", dtype=np.uint8, mode="r+")  # writes go to the file
damaged[len(damaged) // 2] ^= 1
damaged.flush()

# %% language="bash" magic_args="-e"
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
# Without `val.crc`, `verify` only decodes, which misses most flipped bits (above). For record files from elsewhere, add checksums with `python -m data_prep.im2rec --checksums PREFIX` once you trust the files.
#
# `im2rec` refuses files that cannot be images; with `--skip-bad` it names them, leaves them out and removes them from the list. The truncated file was packed, because `--pass-through` decodes nothing; `verify` names its record. The PNG passes: a record has no file name to contradict it.
#
# ## Key takeaways
#
# - A label is the index of the folder's name in sorted order. Train and val need the same folders.
# - A record is magic, length, header, JPEG, padding. The index gives the position of each record.
# - For speed, pack only if readers open files more slowly than you train.
# - Pack with `--pass-through` unless disk space or decoding speed forces you to resize.
# - Run `verify` before you train, and keep checksums.
#
# A folder needs no second copy, so notebook 02 reads it. 04 writes TFRecord shards, which have checksums; 05 reads them.
