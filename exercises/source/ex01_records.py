# %% [markdown]
# # ex01 · Records
#
# In these exercises, you write a RecordIO record byte by byte, measure what random order costs, and write a test that detects a leaky split.
#
# **Time:** 36 minutes · **Needs:** notebook 01 · **On a CPU:** a few seconds to run
#
# **How it works.** Replace `...` in a cell, run the cell, then run the check below it. The check tells you what is wrong and what to do. Stuck? Run `workshop.hint("ex01.frame")` in a new cell for up to three hints, one per call; after that, `workshop.solution("ex01.frame")` shows a solution. Your progress is saved in the folder `answers/`.

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

# %%
import workshop

session = workshop.start("ex01", profile)

# %% [markdown]
# ## ex01.frame · A RecordIO record
#
# *fill in · medium · 12 minutes*
#
# Write `frame(payload)`, which returns the bytes of one record: one part, or several. All numbers are little-endian, and a part looks like this:
#
# | bytes | content |
# |---|---|
# | 4 | the magic number `0xced7230a`, stored as `0a 23 d7 ce` |
# | 4 | `cflag << 29 \| length`; `length` does not count the padding |
# | length | the part's bytes |
# | 0 to 3 | zeros, up to a multiple of 4 |
#
# Most records are one part, with `cflag` 0. But a reader that searches for the next record must not mistake bytes of the payload for its start. So if the payload contains the magic number at an offset that is a multiple of 4, **the part ends, those 4 bytes are omitted, and a new part starts** after them. The first part then has `cflag` 1, the last 3, and all parts in between 2. A part may be empty. The reader puts the omitted bytes back between the parts. (In the cell, `cuts` are the offsets of the omitted bytes, and `starts` those where parts begin.)

# %% tags=["answer", "ex01.frame"]
import struct

MAGIC = struct.pack("<I", 0xCED7230A)


def frame(payload: bytes) -> bytes:
    """Return one RecordIO record that contains the payload."""
    ### BEGIN SOLUTION
    cuts = []  # offsets of the magic numbers to omit
    for offset in range(0, len(payload) - 3, 4):
        if payload[offset : offset + 4] == MAGIC:
            cuts.append(offset)
    starts = [0] + [cut + 4 for cut in cuts]
    parts = [payload[a:b] for a, b in zip(starts, cuts + [len(payload)], strict=True)]
    record = b""
    for number, part in enumerate(parts):
        flag = 0 if not cuts else 1 if number == 0 else 3 if number == len(cuts) else 2
        record += MAGIC + struct.pack("<I", flag << 29 | len(part))
        record += part + bytes(-len(part) % 4)
    return record
    ### END SOLUTION


# %% tags=["check", "ex01.frame"]
workshop.check("ex01.frame", frame)

# %% [markdown]
# ## ex01.order · In order or at random
#
# *fill in · medium · 12 minutes*
#
# Training reads the images in random order. How much slower is that than reading the file from front to back? Write `slowdown(read, records, clock)`, which measures it:
#
# - `read(i)` reads record `i`, `records` is the number of records, and `clock()` returns the time in seconds, like `time.perf_counter`.
# - Take **5 turns**. In each, time all records in order, then all of them in a new random order. Other work on the machine then affects both orders.
# - Return the **median** over the turns of (seconds at random) / (seconds in order). One slow read hardly changes a median.
#
# The check replaces the disk with a simulated one, with its own clock and a known answer.

# %% tags=["answer", "ex01.order"]
import random
import statistics


def slowdown(read, records: int, clock) -> float:
    """Return the time of all records in random order divided by the time in order."""
    ### BEGIN SOLUTION
    ratios = []
    for _ in range(5):
        seconds = []
        for order in (list(range(records)), random.sample(range(records), records)):
            begin = clock()
            for i in order:
                read(i)
            seconds.append(clock() - begin)
        ratios.append(seconds[1] / seconds[0])
    return statistics.median(ratios)
    ### END SOLUTION


# %% tags=["check", "ex01.order"]
workshop.check("ex01.order", slowdown)

# %% [markdown]
# Now measure a real file, 90 records of the road signs' `train.rec`: *warm*, in memory, and *cold*, as in notebook 01: the system forgets the file before each pass. (macOS cannot do that.) **Predict** both ratios.

# %%
import itertools
import os
import time

from workshop.checks import engine
from workshop.session import ensure_data

guess = {"warm": "?", "cold": "?"}  # (seconds at random) / (seconds in order)
ensure_data(session.data_root, session.profile)
rec, count, reads = session.data_root / "records" / "train.rec", 90, itertools.count()
starts = [int(start) for start in rec.with_suffix(".idx").read_text().split()[1::2]]


def read(i):
    if cache == "cold" and next(reads) % count == 0:  # a pass begins
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return os.pread(file.fileno(), starts[i + 1] - starts[i], starts[i])


if engine.judge("ex01.order", slowdown).passed:
    with open(rec, "rb") as file:
        os.fsync(file.fileno())  # only what has reached the disk can be forgotten
        for cache in ["warm", "cold"][: 1 + hasattr(os, "posix_fadvise")]:
            ratio = workshop.ratio(slowdown(read, count, time.perf_counter) for _ in range(5))
            print(f"{cache}: at random over in order: {ratio}; you predicted {guess[cache]}")

# %% [markdown]
# In order, the system reads cold data ahead; at random, it waits for each jump: longest on a hard disk, often long on a network file system, shorter on an SSD. Shards that are read in order, with a shuffle buffer, avoid the jumps.
#
# ## ex01.leak · A split that leaks
#
# *write the test · medium · 12 minutes*
#
# A data set has several photos of each object. The file name starts with the object: `017_b.jpg` is the second photo of object `017`. A function `split(names)` divides a list of such names into two lists, `(train, val)`.
#
# If one photo of an object is used for training and another for validation, the network can recognise the object instead of the class. The validation accuracy is then too high, and you only notice when the model sees new objects.
#
# Write `test_split(split)`. It calls `split` with names that you make up, and **raises `AssertionError`** unless three conditions hold: no object is in both lists, neither list is empty, and every photo is in one of them. The check calls it with correct splits, which it must accept, and wrong ones, many of them random, which it must reject.


# %% tags=["answer", "ex01.leak"]
def object_of(name: str) -> str:
    """Return the object in a photo: "017" for "017_b.jpg"."""
    return name.split("_")[0]


def test_split(split) -> None:
    """Raise AssertionError unless split(names) returns two lists that do not leak."""
    ### BEGIN SOLUTION
    names = [f"{number:03d}_{letter}.jpg" for number in range(41) for letter in "abc"]
    train, val = split(names)
    assert train and val, "a list is empty"
    assert sorted(train + val) == sorted(names), "photos are missing or duplicated"
    shared = {object_of(name) for name in train} & {object_of(name) for name in val}
    assert not shared, f"in both lists: {shared}"
    ### END SOLUTION


# %% tags=["check", "ex01.leak"]
workshop.check("ex01.leak", test_split)
