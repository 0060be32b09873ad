# %% [markdown]
# # 01 · Dataset preparation
#
# After this notebook you can bring a folder of pictures into the record files that training reads, check by hand what is in them, and say what ImageNet costs in disk and hours.
#
# **Time:** 30 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about half a minute to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
subject: str = "roundabout"  # the class whose first picture is looked at closely
left_out: str = "deer"  # the class that is missing from val in the experiment on labels
seed: int = 0  # start of the random order and of the random crops

# %%
import workshop

session = workshop.start("01", profile)

# %% [markdown]
# ## Look at the data
#
# A model learns what is in the files, which is not always what one believes to be there. Ten minutes of looking are the cheapest part of a training run, so the notebook begins with that.
#
# The layout is ImageNet's: a folder for each split, in it a folder for each class, and in that the pictures. Nothing more is needed to feed a network. Here is a whole data set for PyTorch, without any help: a length, and a way to get picture number `i` with its label. The cell is yours to change.

# %%
import numpy as np
import torch
from PIL import Image, ImageOps


class Folder(torch.utils.data.Dataset):
    """The pictures of ROOT/CLASS/*, each cut to a square, and the number of its class."""

    def __init__(self, root, size=64):
        self.classes = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
        self.files = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((root / name).iterdir())
        ]
        self.size = size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        path, label = self.files[i]
        image = ImageOps.fit(Image.open(path).convert("RGB"), (self.size, self.size))
        return torch.from_numpy(np.array(image)), label


# %% [markdown]
# A `DataLoader` draws the numbers in random order, calls the data set in several processes at once and stacks what comes back into a batch. These eight pictures are the first batch of an epoch, as a network would get them:

# %%
signs = Folder(session.data_root / "train")
torch.manual_seed(seed)
loader = torch.utils.data.DataLoader(signs, batch_size=8, shuffle=True, num_workers=2)
images, labels = next(iter(loader))
print(f"{len(signs):,} pictures; a batch: {tuple(images.shape)} {images.dtype}, labels", labels)
workshop.images(
    list(images.numpy()),
    labels=[signs.classes[label] for label in labels],
    columns=8,
    alt="Eight small square pictures, the first batch of an epoch",
)

# %% [markdown]
# Networks want numbers around 0, so the mean colour is subtracted from every pixel and the result divided by the spread. The published recipe does that with ImageNet's numbers. Are they right for these pictures?

# %%
from rn50lib import recipe

pixels = images.float().flatten(0, 2)  # one row for each pixel
print("mean of red, green and blue, here: ", [round(x) for x in pixels.mean(0).tolist()])
print("standard deviation, here:          ", [round(x) for x in pixels.std(0).tolist()])
print("ImageNet's, in the recipe:", *([round(x) for x in of] for of in (recipe.MEAN, recipe.STD)))

# %% [markdown]
# Eight pictures are few, and still the numbers are near enough: the first layers of a network learn whatever factor remains.
#
# The library opens the same folders with `open_source`, which also checks that both splits fit together, and reads record files through the same few methods. Here are the first two pictures of every class.

# %%
from rn50lib.data.source import open_source

train = open_source(session.data_root, "train", "files")
val = open_source(session.data_root, "val", "files")
classes = train.classes
first_of = {name: int((train.labels < label).sum()) for label, name in enumerate(classes)}

shown = [first + k for first in first_of.values() for k in (0, 1)]
workshop.images(
    [train.name(i) for i in shown],
    labels=[classes[train.labels[i]] for i in shown],
    alt=f"Two pictures of each of the {len(classes)} classes: {', '.join(classes)}",
)
print(f"{len(train):,} training and {len(val):,} validation pictures, for example")
print(train.name(first_of[subject]))

# %% [markdown]
# A program drew these pictures, but they have the nuisances of photographs: signs are small, tilted, dirty, half hidden or blurred, and some pictures are dark, grey or upright.
#
# ### Shapes and sizes
#
# Shapes and sizes decide how much there is to read and to decode. `survey` reads the header of every training picture. ImageNet's mean comes from the published size of its training archive; tar's own blocks are less than 1 % of that.

# %%
from workshop.lessons.data import figures
from workshop.lessons.data.survey import survey

IMAGENET_TRAIN, IMAGENET_VAL = 1_281_167, 50_000  # pictures of ILSVRC 2012
IMAGENET_TAR = 147_897_477_120  # bytes of ILSVRC2012_img_train.tar

found = survey(train)
kilobytes, imagenet_kilobytes = found.size.mean() / 1000, IMAGENET_TAR / IMAGENET_TRAIN / 1000
workshop.figure(
    figures.shapes_and_sizes(found, imagenet_kilobytes, "in ImageNet"),
    alt="Left: width and height of the pictures, most of them landscape, some portrait. Right: "
    f"a histogram of the file sizes; the mean is {kilobytes:.0f} KB, ImageNet's "
    f"{imagenet_kilobytes:.0f} KB.",
)
print(f"A picture takes {kilobytes:.0f} KB here and {imagenet_kilobytes:.0f} KB in ImageNet;")
upright, grey = 100 * found.portrait.mean(), 100 * found.grey.mean()
print(f"{upright:.0f} % of the pictures here stand upright, {grey:.1f} % are grey.")

# %%
counts = torch.tensor([label for _, label in signs.files]).bincount()
workshop.table(
    [
        ["training pictures", len(train), IMAGENET_TRAIN],
        ["validation pictures", len(val), IMAGENET_VAL],
        ["classes", len(classes), 1000],
        ["training pictures of the smallest class", int(counts.min()), 732],
        ["training pictures of the largest class", int(counts.max()), 1300],
        ["size of the training pictures, GB", float(found.size.sum() / 1e9), IMAGENET_TAR / 1e9],
    ],
    columns=["", "here", "ImageNet (ILSVRC 2012)"],
)

# %% [markdown]
# ## From folder to label
#
# The network has one output per class and knows them by number only. The number must therefore mean the same class in training, in validation and a year later. The rule of the field is simple: **the label is the rank of the folder's name in sorted order**, counted from 0. ImageNet's folders are named by WordNet ids, so `n01440764`, the first of them in sorted order, has label 0.

# %%
for label, name in enumerate(sorted(classes)):
    print(f"{label:2} {name:14}", end="\n" if label % 4 == 3 else "")

print("\nanother example:", sorted(["speed-30", "speed-100", "apple", "Zebra"]))

# %% [markdown]
# The last line shows what sorting means here: names are compared character by character, as the computer numbers characters. Capitals come before small letters, and `speed-100` before `speed-30`. A file manager may well show another order.
#
# ### When train and val disagree
#
# The rule has a weakness. Suppose that one folder is missing from val, because it held no pictures or the copy was interrupted. Before you run the next cell, guess: a model that never errs is scored on such a validation set. What accuracy is reported?
#
# The cell makes that data set out of links to the pictures, in a folder among the runs, and opens both splits with your own `Folder`.

# %%
import shutil
from pathlib import Path

scratch = session.folder / "scratch"  # made anew each time
shutil.rmtree(scratch, ignore_errors=True)  # of the links to the data, only the links
gap = scratch / f"without-{left_out}"
label_of = {}
for split in ("train", "val"):
    (gap / split).mkdir(parents=True)
    for name in classes:
        if (split, name) != ("val", left_out):
            (gap / split / name).symlink_to(session.data_root / split / name)
    opened = Folder(gap / split)
    label_of[split] = {name: label for label, name in enumerate(opened.classes)}

# %%
scored = [classes[label] for label in val.labels if classes[label] != left_out]
right = torch.tensor([label_of["train"][name] == label_of["val"][name] for name in scored])
perfect = 100 * right.float().mean().item()
workshop.table(
    [[name, label, label_of["val"].get(name)] for name, label in label_of["train"].items()],
    columns=["class", "label in train", "label in val"],
)
print(f"A model that never errs would be reported with a top-1 accuracy of {perfect:.1f} %.")

# %% [markdown]
# One missing folder moves every label behind it. Nothing crashes, the loss of training looks healthy, and only the validation accuracy is poor: such an error can cost a week. Three habits avoid it: list both splits from folders with the same names, keep the list of classes (`classes.txt` here) beside the data, and look at a few validation pictures with their labels.
#
# The library compares both splits and refuses this data set:

# %%
from rn50lib.errors import UserError

try:
    open_source(gap, "train", "files")
except UserError as error:
    print(f"error: {error}")

# %% [markdown]
# For ImageNet there is one more trap. Its validation archive is flat, and the file with the true classes counts them in the order of the development kit, which is not the sorted order of the WordNet ids. The numbers have to be translated into ids, and the pictures sorted into folders by id, before the rule above holds.
#
# ## Odd files
#
# In a million files there are always some that are not what their name says. ImageNet's are well known, and folders that were copied by hand add a few kinds of their own. The next cell makes a twin of each from one picture.
#
# Before you read on: which of them do you expect to decode?

# %%
from workshop.lessons.data import odd_files

picture = train.read(first_of[subject])
twins = odd_files.make(picture)
workshop.table(
    [[twin.name, twin.what, twin.met, len(twin.data)] for twin in twins],
    columns=["file", "what is odd about it", "where one meets it", "bytes"],
)

# %% [markdown]
# Now each of them goes through the decoder of the training input, with the validation crop at 224 × 224 pixels. These are its two functions:

# %%
from rn50lib.data import decode as decoder

workshop.show(decoder.open_image)
workshop.show(decoder.crop)

# %%
outcomes = {twin.name: odd_files.decode(twin.data, twin.name) for twin in twins}
decoded = {name: o.pixels for name, o in outcomes.items() if o.pixels is not None}
original = decoded["ordinary.JPEG"].astype(int)
difference = {name: float(abs(pixels - original).mean()) for name, pixels in decoded.items()}
workshop.images(list(decoded.values()), labels=list(decoded), alt="The twins that decode")
workshop.table(
    [[name, o.opens_as, difference.get(name), o.said or "decoded"] for name, o in outcomes.items()],
    columns=["file", "opened as", "mean difference, of 255", "what the decoder says"],
)
print(f"{len(decoded)} of {len(twins)} files decode; the others are refused with a line each.")

# %% [markdown]
# The decoder looks at the first bytes of a file and never at its name, so the PNG is no problem. It brings CMYK and grey pictures to three channels, which the network needs. The corrupt EXIF block brings a warning and leaves the pixels as they are.
#
# Other decoders decide otherwise. Here are the same bytes in TensorFlow's and in DALI's, each called as in a pipeline:

# %%
decoders = {}
if workshop.has("tensorflow"):
    import tensorflow as tf

    decoders["TensorFlow"] = lambda data: tf.io.decode_image(
        data, channels=3, expand_animations=False
    ).numpy()
if workshop.has("nvidia.dali"):
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def decode_one(data):
        encoded = fn.external_source(source=lambda: [np.frombuffer(data, np.uint8)])
        return fn.decoders.image(encoded, device="cpu")

    def by_dali(data):
        pipe = decode_one(data)
        pipe.build()
        return pipe.run()[0].at(0)

    decoders["DALI"] = by_dali


# %%
def decoded_by(decode, data):
    try:
        pixels = decode(data)
    except Exception as error:  # each library has errors of its own
        return f"refused ({type(error).__name__})"
    return f"{pixels.shape[1]} × {pixels.shape[0]}, mean {pixels.mean():.0f}"


rows = [[twin.name, *(decoded_by(f, twin.data) for f in decoders.values())] for twin in twins]
workshop.table(rows, columns=["file", *decoders])

# %% [markdown]
# Two rows deserve a thought. `cut.JPEG` ends in the middle: a strict decoder refuses it, a lenient one fills the rest with grey and goes on. And `turned.JPEG` says that it should be turned by 90 degrees. Decoders differ here: Pillow, and so ours, leaves the pixels as they are stored; OpenCV turns them; and if one in the table above does, width and height have changed places. Pictures of a telephone may thus lie on their side with one loader and stand upright with another. Where that matters, turn them while packing: `im2rec` without `--pass-through` does.

# %% [markdown]
# ### What packing does with them
#
# `im2rec --pass-through` copies the bytes of a file into the record and decodes nothing, which makes it fast. It looks at each file's size, and refuses what can be no picture at all:

# %%
from data_prep.lists import read_list
from workshop.programs import program

(scratch / "odd" / "any").mkdir(parents=True)
(scratch / "lists").mkdir()
for twin in twins:
    (scratch / "odd" / "any" / twin.name).write_bytes(twin.data)

program("data_prep.im2rec", "--list", "--recursive", "lists/odd", "odd", folder=scratch)
program("data_prep.im2rec", "--pass-through", "lists/odd", "odd", folder=scratch, status=2)
program("data_prep.im2rec", "--pass-through", "--skip-bad", "lists/odd", "odd", folder=scratch)

from rn50lib.data.recordio import Reader

names = {entry.key: entry.path for entry in read_list(scratch / "lists" / "odd.lst")}
packed = Reader(scratch / "lists" / "odd.rec")
print()
for position, key in enumerate(packed.keys):
    name = names[int(key)]
    if odd_files.decode(packed[position][1], name).pixels is None:
        print(f"{name} was packed and does not decode")

# %% [markdown]
# So two files that do not decode are in the record file now. (A program that finds them comes further down.) Training would stop at them with an error that names the record. It stops rather than passing over them, because a run that leaves out pictures in silence has another data set than its report says.
#
# ## Why pack at all
#
# The folder works: training can read it as it is. What does a record file bring? First, measure what seems to be the obvious reason, the speed of reading. Both columns read all training pictures in the same random order and decode nothing. Everything was read before, so the bytes come from memory: what you measure is system calls, copying and Python, and no disk.

# %%
import statistics

from rn50lib.data.sampler import epoch_order
from workshop.lessons.data.survey import in_turn, open_time, read_rate

records = open_source(session.data_root, "train", "recordio")
order = epoch_order(len(train), seed, 0).tolist()
from_files, from_records = in_turn(
    [lambda: read_rate(train, order), lambda: read_rate(records, order)], rounds=5
)
ratios = sorted(b / a for a, b in zip(from_files, from_records, strict=True))
workshop.table(
    [["one file per picture", statistics.median(from_files)],
     ["one record file", statistics.median(from_records)]],
    columns=["reading at random, warm", "pictures per second"],
)  # fmt: skip
print(f"Records are {statistics.median(ratios):.2f} times as fast as files (median of 5 pairs,")
print(f"which lie between {ratios[0]:.2f} and {ratios[-1]:.2f}).")

# %% [markdown]
# Either is far faster than decoding, which you will measure below. On a local disk with enough memory, then, speed alone is hardly a reason. The reasons lie elsewhere:
#
# - **Each opening costs a round trip on shared storage.** A cluster's file system answers every opening of a file over the network. A record file is opened once.
# - **Order.** The records were shuffled once when they were packed, so even a reader that goes from front to back sees mixed classes.
# - **Handling.** One file is copied, checked and deleted in one piece; a million small ones strain every tool.
#
# ### What opening a million files costs
#
# The first reason is arithmetic. Your own machine's time for an opening is measured; the two others are assumptions about typical storage, to be replaced by your own.

# %%
opening = open_time([train.name(i) for i in order])
speed = {n: session.results[f"published.v100.{n}gpu.fp16.ips"].value for n in (1, 8)}
epoch_seconds = {n: IMAGENET_TRAIN / rate for n, rate in speed.items()}
rows = []
for name, each in (
    ("here, measured", opening),
    ("network, assumed", 1e-3),
    ("disk, assumed", 1e-2),
):
    minutes = IMAGENET_TRAIN * each / 60
    rows.append([name, 1000 * each, minutes, minutes / 40])
workshop.table(
    rows,
    columns=["storage", "ms to open a file", "minutes for ImageNet", "with 40 readers at once"],
)
minutes = {n: seconds / 60 for n, seconds in epoch_seconds.items()}
print(f"At 1 ms, opening takes one reader {IMAGENET_TRAIN / 60_000:.0f} minutes of every epoch;")
print(f"8 V100 train an epoch in {minutes[8]:.1f} minutes (published: {speed[8]:,.0f} img/s).")

# %% [markdown]
# NVIDIA's training command uses 40 reader threads, which divide that time while the storage can serve them all. This is the last column.
#
# ### The order in the file
#
# The second reason can be counted.

# %%
seen = [torch.tensor(source.labels[:32]).unique().numel() for source in (train, records)]
print(f"Of the {len(classes)} classes, the first 32 files show {seen[0]},")
print(f"the first 32 records {seen[1]}.")

# %% [markdown]
# ## RecordIO, byte by byte
#
# A record file is simple enough to be read by hand, and whoever has done that once is never helpless before one that does not work. All numbers are little-endian. A record is
#
# 1. a **magic** number, the same for every record,
# 2. a 32-bit word with a kind in its upper 3 bits and a **length** in the other 29,
# 3. the content: a **header** of 24 bytes with the label, then the JPEG file as it was,
# 4. zeros up to a multiple of four bytes.
#
# Ten lines of `struct` read it:

# %%
import struct


def parse(raw: bytes) -> dict:
    """The record at the beginning of `raw`, taken apart."""
    magic, word = struct.unpack_from("<II", raw)
    kind, length = word >> 29, word & ((1 << 29) - 1)
    flag, label, key, key2 = struct.unpack_from("<IfQQ", raw, 8)
    image = raw[8 + 24 : 8 + length]
    end = 8 + length + -length % 4  # with the padding
    return {"magic": f"0x{magic:08x}", "kind": kind, "length": length, "flag": flag, "label": label,
            "key": key, "key2": key2, "image": image, "end": end}  # fmt: skip


reader = Reader(session.data_root / "records" / "train.rec")
position = next(i for i in range(len(reader)) if len(reader.read(i)) % 4)  # one with padding
start = int(reader.offsets[position])
with open(reader.path_rec, "rb") as file:
    file.seek(start)
    raw = file.read(1 << 22)
record = parse(raw)
print({name: value for name, value in record.items() if name not in ("image", "end")})

# %%
from workshop.lessons.data.hexdump import hexdump

length, label = record["length"], int(record["label"])
hexdump(
    raw[: record["end"]],
    [
        ("magic", 4, f"{record['magic']}, the same in every record"),
        ("kind and length", 4, f"kind {record['kind']} (a whole record), {length:,} bytes follow"),
        ("flag", 4, f"{record['flag']}: there is one label, and it is in the next field"),
        ("label", 4, f"{record['label']} as a 32-bit float: {classes[label]}"),
        ("id", 8, f"{record['key']}, the picture's number in the list"),
        ("id2", 8, f"{record['key2']}, not used"),
        ("picture", length - 24, "the JPEG file, from its ff d8 to its ff d9"),
        ("padding", record["end"] - length - 8, "zeros up to a multiple of four"),
    ],
    caption=f"A record of train.rec, which starts at byte {start:,}",
    offset=start,
)

# %% [markdown]
# ### When a picture contains the magic
#
# The magic has a purpose: a reader that has lost its place, or that starts in the middle of a file, looks for it at every fourth byte and goes on from there. That works only if the magic stands nowhere else. So where the content contains it at such a place, the writer ends the part there, leaves those four bytes out, and begins a new part; the reader puts them back. This is what the kinds are for: 0 is a whole record, 1, 2 and 3 are the first, a middle and the last part of one.
#
# The content below has the magic twice: once at offset 8, once at an offset that is no multiple of four and therefore does no harm.

# %%
from data_prep.encoding import frame
from rn50lib.data.recordio import join, locate

magic = struct.pack("<I", 0xCED7230A)
content = b"8 bytes." + magic + b"and here: " + magic + b" is harmless"
framed = frame(content)
rest = len(content) - 12
hexdump(
    framed,
    [
        ("magic", 4, "of the first part"),
        ("kind and length", 4, "kind 1 (the first part), 8 bytes"),
        ("content", 8, "up to the magic, whose four bytes are left out"),
        ("magic", 4, "of the second part, in the place of those four bytes"),
        ("kind and length", 4, f"kind 3 (the last part), {rest} bytes"),
        ("content", rest, "the rest; the magic in it is not at a multiple of four"),
        ("padding", -rest % 4, "zeros"),
    ],
    caption="One record in two parts",
)
back = join(framed, locate(framed, 0, len(framed)))
print("the reader gives back the same content:", back == content)

# %% [markdown]
# How often does that happen? Count it in your own file: the number of places that look like a start, and the number of records.

# %%
words = np.memmap(reader.path_rec, dtype="<u4", mode="r")
starts = int((words == 0xCED7230A).sum())
expected = IMAGENET_TAR / 4 / 2**32
print(f"{starts:,} aligned magics, {len(reader):,} records: {starts - len(reader)} escapes.")
print(f"If a JPEG's bytes were even chance, ImageNet would have about {expected:.0f} of them.")

# %% [markdown]
# Rare enough that a reader without the escape passes every small test, and frequent enough that it fails on ImageNet.
#
# ## Pack the real data
#
# Two commands make the record files, and they are the ones that one types in a terminal: first a list, then the packing. Here they pack the validation pictures into a folder of this lesson's own; for the training pictures only the name differs. `--pass-through` keeps the bytes of each JPEG, so nothing is lost by compressing it a second time.

# %%
images = session.data_root / "val"
program("data_prep.im2rec", "--list", "--recursive", "records/val", images, folder=scratch)
program("data_prep.im2rec", "--pass-through", "--num-thread", session.machine.cores,
        "records/val", images, folder=scratch)  # fmt: skip
packed = scratch / "records"
for name in ("val.lst", "val.idx"):
    with open(packed / name) as file:
        print(f"{name}:", *[next(file).expandtabs(12).rstrip() for _ in range(4)], "", sep="\n")

# %% [markdown]
# ### The list and the index
#
# Look at three of the files that have appeared. The **list** (`.lst`) has a line per picture: its number, its label, its path. The numbers were given before the shuffle, in the order of the folders, and the shuffle always starts from the same seed, so that everybody gets the same file. You may edit a list by hand before packing, to leave out pictures for example.
#
# The **records** (`.rec`) you know. The **index** (`.idx`) has a line per record: the number from the list, and the byte at which the record starts. With it, a loader jumps to any picture at once; without it, it would have to walk through the file.

# %% [markdown]
# That is all one needs to train from a record file. This data set takes the offsets from the index and reads each record with your `parse`:

# %%
import io


class Records(torch.utils.data.Dataset):
    """The pictures of PREFIX.rec, found by PREFIX.idx, each cut to a square, and its label."""

    def __init__(self, prefix, size=64):
        lines = prefix.with_suffix(".idx").read_text().splitlines()
        self.offsets = sorted(int(line.split()[1]) for line in lines)
        self.bytes = np.memmap(prefix.with_suffix(".rec"), np.uint8, "r")
        self.size = size

    def __len__(self):
        return len(self.offsets)

    def __getitem__(self, i):
        end = self.offsets[i + 1] if i + 1 < len(self) else len(self.bytes)
        record = parse(self.bytes[self.offsets[i] : end].tobytes())
        image = Image.open(io.BytesIO(record["image"])).convert("RGB")
        image = ImageOps.fit(image, (self.size, self.size))
        return torch.from_numpy(np.array(image)), int(record["label"])


# %% [markdown]
# Do other readers agree? DALI's `mxnet` reader, which has nothing to do with this course, takes the same two files, so its labels must come in the same order. Your `Folder` has the pictures in the order of the folders; there the number of each class must be equal.


# %%
records_val = Records(packed / "val")
print("the first labels, yours:", [records_val[i][1] for i in range(16)])
if workshop.has("nvidia.dali"):

    @pipeline_def(batch_size=16, num_threads=2, device_id=None)
    def dali_records(prefix):
        jpegs, labels = fn.readers.mxnet(path=f"{prefix}.rec", index_path=f"{prefix}.idx")
        return fn.decoders.image(jpegs), labels

    pipe = dali_records(str(packed / "val"))
    pipe.build()
    labels = np.concatenate([label.ravel() for label in pipe.run()[1].as_array()])
    print("the first labels, DALI: ", labels.astype(int).tolist())

by_folder = Folder(session.data_root / "val")
there = np.bincount([label for _, label in by_folder.files]).tolist()
batches = torch.utils.data.DataLoader(records_val, batch_size=64)
here = torch.cat([labels for _, labels in batches]).bincount().tolist()
print("pictures of each class, from folders and from records, are equal:", there == here)

# %% [markdown]
# ## TFRecord, the other packing
#
# TensorFlow has a format of its own, which DALI reads as well. A record is a message of named features, a `tf.train.Example`, and it carries **checksums**, so that damage is noticed. In TensorFlow a few lines write a file of three pictures, and the loop behind them reads it again. The description says which features there are and of which type; what is not named in it is passed over.

# %%
if workshop.has("tensorflow"):
    three = str(scratch / "three.tfrecord")
    with tf.io.TFRecordWriter(three) as writer:
        for i in (0, 1, 2):
            feature = {
                "image/encoded": tf.train.Feature(bytes_list={"value": [train.read(i)]}),
                "image/class/label": tf.train.Feature(int64_list={"value": [train.labels[i] + 1]}),
            }
            example = tf.train.Example(features={"feature": feature})
            writer.write(example.SerializeToString())

    description = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    for message in tf.data.TFRecordDataset(three):
        features = tf.io.parse_single_example(message, description)
        pixels = tf.io.decode_jpeg(features["image/encoded"], channels=3)
        print("label", int(features["image/class/label"]), "picture", tuple(pixels.shape))

# %% [markdown]
# `data_prep.tfrecord` packs a whole data set with the feature names that most of the field uses. It cuts it into several files, the **shards**, so that several readers can work side by side. The next cell takes a few pictures of each class, again as links, and packs them.

# %%
small = scratch / "small"
each = session.pick(ci=4, cpu=20)
for split, source in (("train", train), ("val", val)):
    for label, name in enumerate(classes):
        (small / split / name).mkdir(parents=True)
        for i in np.flatnonzero(source.labels == label)[:each]:
            path = Path(source.name(int(i)))
            (small / split / name / path.name).symlink_to(path)
program("data_prep.tfrecord", "small", "--train-shards", 4, "--val-shards", 2, folder=scratch)

# %%
first = small / "tfrecord" / "train-00000-of-00004"
raw = first.read_bytes()
(length,) = struct.unpack_from("<Q", raw)
hexdump(
    raw[: 16 + length],
    [
        ("length", 8, f"{length:,} bytes of data follow, as a 64-bit number"),
        ("checksum", 4, "of the length"),
        ("data", length, "a message of named features, tf.train.Example"),
        ("checksum", 4, "of the data"),
    ],
    caption="The first record of a shard, in four parts",
)

# %%
if workshop.has("tensorflow"):
    message = next(iter(tf.data.TFRecordDataset(str(first)))).numpy()
    for name, feature in sorted(tf.train.Example.FromString(message).features.feature.items()):
        kind = feature.WhichOneof("kind")
        value = getattr(feature, kind).value[0]
        text = f"{len(value):,} bytes" if isinstance(value, bytes) and len(value) > 99 else value
        print(f"{name:24} {kind:12} {text}")

# %% [markdown]
# Look at `image/class/label`: **in TFRecord the labels count from 1**, and 0 is not used. Mix the labels of one format with the pictures of the other, and every label is wrong by one.
#
# DALI reads the same shards. It wants an index beside each of them, which `data_prep.tfrecord` has written, because it jumps to where a worker's part begins:

# %%
if workshop.has("nvidia.dali"):
    import nvidia.dali.tfrecord as tfrec

    @pipeline_def(batch_size=8, num_threads=2, device_id=None)
    def dali_tfrecord(shard, index):
        features = {
            "image/encoded": tfrec.FixedLenFeature((), tfrec.string, ""),
            "image/class/label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
        }
        found = fn.readers.tfrecord(path=str(shard), index_path=str(index), features=features)
        return fn.decoders.image(found["image/encoded"]), found["image/class/label"]

    pipe = dali_tfrecord(first, small / "tfrecord" / "index" / f"{first.name}.idx")
    pipe.build()
    print("the first labels of the shard:", pipe.run()[1].as_array().ravel().tolist())

# %% [markdown]
# ### One wrong bit
#
# What are the checksums worth? Turn over a single bit in the middle of a picture, in both formats, and read.

# %%
bad = bytearray(raw)
bad[12 + length // 2] ^= 1
(scratch / "bad-shard").write_bytes(bad)
from rn50lib.data.tfrecord import TFRecordReader

try:
    next(iter(TFRecordReader(scratch / "bad-shard")))
except UserError as error:
    print(f"TFRecord, our reader: {error}")
if workshop.has("tensorflow"):
    try:
        next(iter(tf.data.TFRecordDataset(str(scratch / "bad-shard"))))
    except tf.errors.DataLossError as error:
        print(f"TFRecord, TensorFlow: {error.message}")

from data_prep.encoding import pack_header
from data_prep.recordwriter import Writer

flipped = bytearray(picture)
flipped[len(picture) // 2] ^= 1
with Writer(scratch / "bad") as writer:
    writer.write(0, pack_header(0, 0, bytes(flipped)))
same = Reader(scratch / "bad.rec")[0][1] == bytes(flipped)
print(f"RecordIO: read without an error: {same}")

# %% [markdown]
# RecordIO itself has no checksums, so it says nothing. Does the decoder notice? Turn over one bit at many other places, one at a time, and count. The pictures show the three that came out most different, of those that decode.

# %%
import random

rng = random.Random(seed)
tries, survived = session.pick(ci=20, cpu=200), []
for _ in range(tries):
    flipped = bytearray(picture)
    flipped[rng.randrange(len(picture))] ^= 1 << rng.randrange(8)
    pixels = odd_files.decode(bytes(flipped), "flipped").pixels
    if pixels is not None:
        survived.append((float(abs(pixels - original).mean()), len(survived), pixels))
worst = sorted(survived, reverse=True)[:3]
workshop.images(
    [decoded["ordinary.JPEG"], *(pixels for _, _, pixels in worst)],
    labels=["as it was", *(f"one bit, difference {apart:.0f}" for apart, _, _ in worst)],
    columns=4,
    alt="A picture four times: whole, and with a bit turned over, which shifts or colours parts of it",
)
print(f"{len(survived)} of {tries} pictures with one bit turned over decode without an error.")

# %% [markdown]
# So with plain record files nobody may notice. That is why `im2rec` writes a fourth file here, `PREFIX.crc`, with a checksum of each record; MXNet and DALI pass it over, our reader compares. For record files from elsewhere, `python -m data_prep.im2rec --checksums PREFIX` writes it once they are known to be good.
#
# ## Let a program look at everything
#
# You have seen what can go wrong. `verify` looks for all of it: it decodes every picture, checks every checksum, index and list, compares the labels of train and val, and looks for pictures that stand in both. Its exit status is 0 only where it found nothing wrong, and it says of which files a changed byte could not be known. First the good data, folders and shards together:

# %%
program("data_prep.verify", "small", folder=scratch)

# %% [markdown]
# Now a data set as one might inherit it: the odd files stand in a class of train, one picture of val is in train as well, and the shard with the wrong bit lies beside.

# %%
broken = scratch / "broken"
for split in ("train", "val"):
    for name in classes:
        (broken / split / name).mkdir(parents=True, exist_ok=True)
        for path in (small / split / name).iterdir():
            link = broken / split / name / path.name
            if not link.exists():
                link.symlink_to(path)
for twin in twins:
    (broken / "train" / left_out / twin.name).write_bytes(twin.data)
(broken / "train" / subject / "again.jpg").write_bytes(val.read(0))
(scratch / "train-00000-of-00001").write_bytes(bad)
program("data_prep.verify", "broken", "train-00000-of-00001", folder=scratch, status=1)

# %% [markdown]
# Errors must be put right before training. Warnings deserve a decision. Notes are for your information: the loaders deal with all of them. With `--json` a program can read the same report, and `--fix OUT` writes a copy in which CMYK pictures and PNGs named as JPEG are ordinary JPEGs.
#
# ## What training does with a picture
#
# In the recipe, a model sees every ImageNet picture 90 times. Were it the same picture each time, the model would learn it by heart. So each time it sees another crop, in another shape, and half of the time mirrored. In the published recipe the crop holds **5 to 100 %** of the area, its width is **3/4 to 4/3** of its height, and it is resized to 224 × 224 pixels.
#
# Mirroring is a decision about the data. It is right here because no sign of these classes is the mirror image of another one's; with arrows to the left and to the right it would be wrong.
#
# Draw the box, cut, resize, perhaps turn round: in PyTorch each is a line or two. Run the cell with other numbers: what is left of the sign with an area of 5 to 10 %?

# %%
import math

whole = torch.tensor(np.array(Image.open(io.BytesIO(picture)).convert("RGB")))
whole = whole.permute(2, 0, 1).float()  # channels, height, width
height, width = whole.shape[1:]
torch.manual_seed(seed)
crops = []
for _ in range(6):
    area = width * height * torch.empty(1).uniform_(0.05, 1.0).item()
    shape = torch.empty(1).uniform_(math.log(3 / 4), math.log(4 / 3)).exp().item()
    across, down = (
        min(width, round((area * shape) ** 0.5)),
        min(height, round((area / shape) ** 0.5)),
    )
    left = torch.randint(width - across + 1, (1,)).item()
    top = torch.randint(height - down + 1, (1,)).item()
    part = whole[None, :, top : top + down, left : left + across]
    part = torch.nn.functional.interpolate(part, (224, 224), mode="bilinear", antialias=True)
    if torch.rand(1) < 0.5:
        part = part.flip(-1)
    crops.append(part[0].permute(1, 2, 0).round().byte().numpy())
workshop.images(crops, columns=6, alt="Six random crops of one picture, all of the same size")

# %% [markdown]
# The library draws the box itself, for all its loaders, and from the seed, the epoch and the picture's number alone: whoever resumes a run gets the crops that it would have had.

# %%
workshop.show(recipe.random_crop_box)

# %% [markdown]
# Turn the knobs. The numbered boxes are the crops of six epochs; beside them is what the model gets. How often is the sign gone with a smallest area of 5 %, how often with 35 %, and what is left to vary at 100 %?

# %%
from ipywidgets import Dropdown, FloatSlider, IntSlider


def draw(smallest_area, widest_shape, flip, seed, size):
    augmentation = recipe.Augmentation((smallest_area, 1.0), (1 / widest_shape, widest_shape), flip)
    fig, shares = figures.training_crops(picture, augmentation, seed, size)
    listed = ", ".join(f"{100 * share:.0f}" for share in shares)
    return fig, f"The six crops hold {listed} per cent of the picture's area."


wide = {"width": "480px"}
crop_knobs = workshop.explore(
    draw,
    alt="A picture with the boxes of six random crops, and the six crops at the model's size",
    smallest_area=FloatSlider(
        recipe.REFERENCE.augmentation.area[0], min=0.01, max=1, step=0.01, layout=wide
    ),
    widest_shape=FloatSlider(4 / 3, min=1, max=3, step=0.01, layout=wide),
    flip=FloatSlider(0.5, min=0, max=1, step=0.1, layout=wide),
    seed=IntSlider(seed, min=0, max=50, layout=wide),
    size=Dropdown(options=[32, 64, 128, 224], value=224),
)

# %% [markdown]
# The numbers belong to the data. With crops from 5 % on, a road sign is often cut off or gone, and the label is still its name. The recipe that trains on the road signs in the next notebook therefore begins with larger ones:

# %%
for each_recipe in (recipe.REFERENCE, recipe.ROADSIGNS):
    low, high = each_recipe.augmentation.area
    print(f"{each_recipe.name}: crops of {100 * low:.0f} to {100 * high:.0f} % of the area")

# %% [markdown]
# In this project every loader takes the numbers from `rn50lib.recipe`: two runs with different numbers here are two recipes.
#
# ## What validation does
#
# Validation must give the same answer every time, so there is no chance in it: the shorter side is resized to 256 pixels, and the 224 × 224 pixels in the centre are taken. The pipeline cuts first and resizes what is left, which shows the same part of the picture for less work. This is the box that it cuts:

# %%
size = recipe.REFERENCE.image_size
box = recipe.center_crop_box(width, height, size)
left, top, across, down = map(round, box)
part = whole[None, :, top : top + down, left : left + across]
part = torch.nn.functional.interpolate(part, (size, size), mode="bilinear", antialias=True)
workshop.images(
    [array.permute(1, 2, 0).round().byte().numpy() for array in (whole, part[0])],
    labels=["on the disk", f"the part that stays, {size} × {size}"],
    columns=2,
    alt="A picture, and its centre as validation sees it",
)
share = box[2] * box[3] / (width * height)
print(f"The box holds {100 * share:.0f} % of the picture's area.")

# %% [markdown]
# ## What ImageNet costs
#
# Before one starts a training run of days, one multiplies. The missing factor is the speed at which this machine can read, decode, crop and resize training pictures. First with your own data set and a worker process for each core; the first batch is not counted, because the processes have to start.

# %%
import time

big = Folder(session.data_root / "train", size=224)
batch = session.pick(ci=8, cpu=32)
loader = torch.utils.data.DataLoader(big, batch, shuffle=True, num_workers=session.machine.cores)
batches = iter(loader)
next(batches)
begin, count = time.perf_counter(), session.pick(ci=4, cpu=40)
for _ in range(count):
    images, labels = next(batches)
own_rate = count * batch / (time.perf_counter() - begin)
del batches  # ends the worker processes
print(f"Your data set delivers {own_rate:,.0f} pictures a second at 224 × 224.")

# %% [markdown]
# And the library's, which decodes no more than the crop needs. `--test-io` runs the real input pipeline with the published recipe's crops, and no model behind it.

# %%
from workshop.lessons.single_gpu.reading import input_speed

run = workshop.train(
    name="input", test_io=True, loader="native", recipe="reference", batch_size=32, num_epochs=1
)
input_rate = input_speed(run.wait())
print(f"This machine's {session.machine.cores} cores deliver {input_rate:,.0f} training pictures")
print(f"a second at {'32 × 32, as profile ci is' if session.profile == 'ci' else '224 × 224'}.")

# %% [markdown]
# Now change the number of pictures, their size and the epochs. The rates of the V100 are those published for ResNet-50 v1.5; yours is the input alone, since no model can train faster than its pictures arrive.

# %%
v100 = {"1 V100, FP32": "1gpu.fp32", "1 V100, FP16": "1gpu.fp16",
        "4 V100, FP16": "4gpu.fp16", "8 V100, FP16": "8gpu.fp16"}  # fmt: skip
rates = {name: session.results[f"published.v100.{key}.ips"].value for name, key in v100.items()}
rates = {"your input alone": input_rate, **rates}
sizes = [("these road signs", len(train)), ("ImageNet", IMAGENET_TRAIN),
         ("ten times ImageNet", 10 * IMAGENET_TRAIN)]  # fmt: skip


def cost(pictures, kilobytes_each, epochs):
    gigabytes = pictures * kilobytes_each / 1e6
    title = f"{epochs} epochs of {pictures:,} pictures"
    needed = rates["8 V100, FP16"] * kilobytes_each / 1e3
    return figures.hours(rates, pictures, epochs, title), (
        f"{gigabytes:,.1f} GB on disk; {gigabytes * epochs / 1e3:,.2f} TB read in all. "
        f"8 V100 in FP16 read {needed:,.0f} MB a second."
    )


cost_knobs = workshop.explore(
    cost,
    alt="Bars: the hours that the run takes at each rate",
    pictures=Dropdown(options=sizes, value=IMAGENET_TRAIN),
    kilobytes_each=IntSlider(round(imagenet_kilobytes), min=5, max=500, step=5, layout=wide),
    epochs=IntSlider(90, min=1, max=300, layout=wide),
)

# %%
cores = rates["8 V100, FP16"] / (input_rate / session.machine.cores)
hours = {n: 90 * IMAGENET_TRAIN / rate / 3600 for n, rate in speed.items()}
print(f"One V100 in FP16 needs {hours[1]:.1f} hours for 90 epochs, eight of them {hours[8]:.1f};")
print("the published runs took 22.9 and 3.3 hours in all.")
print(f"Cores like yours that it takes to feed eight of them: {cores:,.0f}.")

# %% [markdown]
# Remember the last line: the faster the GPUs, the more the work on the pictures decides how long a run takes.
#
# ## What you should see

# %%
session.expect(
    {
        "data.mean_kb": kilobytes,
        "data.perfect_top1": perfect,
    }
)

# %% [markdown]
# ## Your numbers
#
# What this notebook measured on your machine, in one place: to compare with a colleague's, or with those of another machine.

# %% tags=["results"]
session.note("mean_kb", kilobytes, "KB", "mean size of a training picture")
session.note("perfect_top1", perfect, "%", f"top-1 of a perfect model when val lacks {left_out}")
session.note("records_over_files", statistics.median(ratios), "", "records / files, read warm")
session.note("input_rate", input_rate, "img/s", "input pipeline alone")

# %% [markdown]
# ## What to keep
#
# - Look at the data first: a contact sheet and two histograms take a minute.
# - A label is the rank of the folder's name. Train and val must have the same folders.
# - Packing with `--pass-through` copies bytes and decodes nothing, so an undecodable file goes in unseen.
# - A record is magic, length, header, picture, padding. With the index, any picture is one jump away.
# - TFRecord has shards, checksums, named features, and labels that count from 1.
# - `verify` reads everything before training does, and its exit status says whether to start.
# - Training sees random crops, with numbers that fit the data; validation sees the centre, always the same.
#
# The pictures are ready. In the next notebook a model reads them: ResNet-50 v1.5, one process, from the first step to a report.
