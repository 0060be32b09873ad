"""Wrong answers, by exercise, each with a part of the diagnosis that a learner should read.

They are the mistakes that people make; every one is a whole answer, as it would stand in a cell.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
from google_crc32c import value as crc32c

from rn50lib.recipe import learning_rate

MAGIC = struct.pack("<I", 0xCED7230A)


# --- ex01 -----------------------------------------------------------------------------------------


def whole(payload: bytes, pad=None, length=None, order="<", flag=0) -> bytes:
    n = len(payload)
    pad = -n % 4 if pad is None else pad
    head = struct.pack(f"{order}II", 0xCED7230A, flag << 29 | (n if length is None else length))
    return head + payload + bytes(pad)


def no_escape(payload):
    return whole(payload)


def big_endian(payload):
    return whole(payload, order=">")


def no_padding(payload):
    return whole(payload, pad=0)


def four_zeros(payload):
    return whole(payload, pad=4 - len(payload) % 4)


def padded_length(payload):
    return whole(payload, length=len(payload) + -len(payload) % 4)


def escape_anywhere(payload):
    parts = payload.split(MAGIC)
    flags = [0] if len(parts) == 1 else [1] + [2] * (len(parts) - 2) + [3]
    return b"".join(whole(part, flag=flag) for part, flag in zip(parts, flags, strict=True))


def flags_from_zero(payload):
    if len(payload) % 4 == 0 or payload.find(MAGIC) % 4 == 0:
        parts = payload.split(MAGIC)
        return b"".join(whole(part, flag=min(i, 3)) for i, part in enumerate(parts))
    return whole(payload)


def magic_kept(payload):
    at = payload.find(MAGIC)
    if at < 0 or at % 4:
        return whole(payload)
    return whole(payload[:at], flag=1) + whole(payload[at:], flag=3)


def masked(crc):
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def framed(data, first, last):
    size = struct.pack("<Q", len(data))
    return size + struct.pack("<I", first(size)) + data + struct.pack("<I", last(data))


def plain_crc(data):
    return framed(data, crc32c, crc32c)


def zip_crc(data):
    return framed(data, lambda size: masked(zlib.crc32(size)), lambda d: masked(zlib.crc32(d)))


def crc_of_data_twice(data):
    return framed(data, lambda size: masked(crc32c(data)), lambda d: masked(crc32c(d)))


def short_length(data):
    size = struct.pack("<I", len(data))
    last = struct.pack("<I", masked(crc32c(data)))
    return size + struct.pack("<I", masked(crc32c(size))) + data + last


def crc_with_length(data):
    size = struct.pack("<Q", len(data))
    return framed(data, lambda s: masked(crc32c(s)), lambda d: masked(crc32c(size + d)))


def walk(shard):
    at = 0
    while at < len(shard):
        (length,) = struct.unpack_from("<Q", shard, at)
        yield at, length
        at += length + 16


def sizes_of_data(shard):
    return [(at, length) for at, length in walk(shard)]


def offsets_of_data(shard):
    return [(at + 12, length + 16) for at, length in walk(shard)]


def offsets_without_framing(shard):
    lengths = [length for _, length in walk(shard)]
    return [(sum(lengths[:i]), length + 16) for i, length in enumerate(lengths)]


def exchanged(shard):
    return [(length + 16, at) for at, length in walk(shard)]


def first_only(shard):
    return [(at, length + 16) for at, length in walk(shard)][:1]


NAMES = [f"{number:03d}_{letter}.jpg" for number in range(30) for letter in "abc"]


def accepts_all(split):
    split(NAMES)


def pictures_only(split):
    train, val = split(NAMES)
    assert not set(train) & set(val)


def nothing_lost_unseen(split):
    train, val = split(NAMES)
    assert not {name[:3] for name in train} & {name[:3] for name in val}


def empty_unseen(split):
    train, val = split(NAMES)
    assert not {name[:3] for name in train} & {name[:3] for name in val}
    assert sorted(train + val) == NAMES


def asks_for_order(split):
    train, val = split(NAMES)
    assert train == sorted(train)
    empty_unseen(split)
    assert val


# --- ex02 -----------------------------------------------------------------------------------------


def stride_v1(stage, index):
    stride = 2 if stage and not index else 1
    return stride, 1, 1, None if index else stride


def stride_twice(stage, index):
    stride = 2 if stage and not index else 1
    return stride, stride, 1, None if index else stride


def stride_everywhere(stage, index):
    stride = 2 if stage else 1
    return 1, stride, 1, None if index else stride


def stride_first_stage(stage, index):
    return (1, 1, 1, None) if index else (1, 2, 1, 2)


def shortcut_forgotten(stage, index):
    return 1, 2 if stage and not index else 1, 1, None if index else 1


def no_first_projection(stage, index):
    down = stage > 0 and index == 0
    return 1, 2 if down else 1, 1, 2 if down else None


def three_strides(stage, index):
    return 1, 2 if stage and not index else 1, 1


def no_warmup(progress, global_batch, recipe):
    return learning_rate(max(progress, recipe.warmup_epochs), global_batch, recipe)


def no_scaling(progress, global_batch, recipe):
    return learning_rate(progress, recipe.lr_batch, recipe)


def times_batch(progress, global_batch, recipe):
    return learning_rate(progress, global_batch * recipe.lr_batch, recipe)


def stairs(progress, global_batch, recipe):
    if progress < recipe.warmup_epochs:
        progress = int(progress)
    return learning_rate(progress, global_batch, recipe)


def decay_once(progress, global_batch, recipe):
    rate = learning_rate(progress, global_batch, recipe)
    low = learning_rate(recipe.lr_step_epochs[0], global_batch, recipe)
    return rate if progress < recipe.lr_step_epochs[0] else low


def decay_late(progress, global_batch, recipe):
    at_step = progress in recipe.lr_step_epochs
    return learning_rate(progress - 1e-9 if at_step else progress, global_batch, recipe)


def divides_by_warmup(progress, global_batch, recipe):
    risen = min(1.0, progress / recipe.warmup_epochs)
    return risen * no_warmup(progress, global_batch, recipe)


def by_the_string_bn(names):
    plain = [n for n in names if n.split(".")[-2].startswith(("bn", "norm")) or "bias" in n]
    return [n for n in names if n not in plain], plain


def bias_decayed(names):
    plain = [n for n in names if n.endswith((".gamma", ".beta"))]
    return [n for n in names if n not in plain], plain


def groups_exchanged(names):
    decayed = [n for n in names if n.endswith(".weight")]
    return [n for n in names if n not in decayed], decayed


def all_decayed(names):
    return list(names), []


def bias_lost(names):
    return [n for n in names if n.endswith("weight")], [n for n in names if n.endswith("a")]


def names_sorted(names):
    names = sorted(names)
    return [n for n in names if n.endswith("weight")], [n for n in names if "weight" not in n]


def shortcut_not_decayed(names):
    plain = [n for n in names if "downsample" in n or not n.endswith("weight")]
    return [n for n in names if n not in plain], plain


# --- ex03 -----------------------------------------------------------------------------------------


def no_rank(order, rank, size, batch):
    steps = len(order) // (size * batch)
    return order[: steps * batch].reshape(steps, batch)


def in_turn(order, rank, size, batch):
    steps = len(order) // (size * batch)
    return order[: steps * size * batch][rank::size].reshape(steps, batch)


def blocks(order, rank, size, batch):
    steps = len(order) // (size * batch)
    return order[: steps * size * batch].reshape(size, steps, batch)[rank]


def all_the_steps(order, rank, size, batch):
    steps = len(order) // batch
    return order[: steps * batch].reshape(steps, batch)


def overlapping(order, rank, size, batch):
    steps = len(order) // (size * batch)
    return np.array([order[(s + rank) * batch : (s + rank + 1) * batch] for s in range(steps)])


def unequal(order, rank, size, batch):
    mine = order[rank::size]
    return mine[: len(mine) // batch * batch].reshape(-1, batch)


def flat_shard(order, rank, size, batch):
    steps = len(order) // (size * batch)
    return order[: steps * size * batch].reshape(steps, size, batch)[:, rank].ravel()


def batch_divided(order, rank, size, batch):
    steps = len(order) // batch
    return order[: steps * batch].reshape(steps, batch)[:, rank::size]


def ring(formula):
    return {n: formula(n) for n in (2, 8, 64)}


# --- ex04, the parts that need no framework -------------------------------------------------------

RIGHT_LINES = {19, 23, 25, 27, 34, 52, 56, 61}
ORDER = ["list files", "shard", "interleave", "shuffle", "map", "batch", "prefetch"]


def swapped(first, second):
    order = list(ORDER)
    i, j = order.index(first), order.index(second)
    order[i], order[j] = order[j], order[i]
    return order


WRONG = [
    ("ex01.frame", no_escape, "a reader that looks for the next record"),
    ("ex01.frame", big_endian, "highest byte first"),
    ("ex01.frame", no_padding, "no padding follows"),
    ("ex01.frame", four_zeros, "needs no padding is followed by four zeros"),
    ("ex01.frame", padded_length, "the length counts the padding"),
    ("ex01.frame", escape_anywhere, "at offset 2 of the payload was cut out"),
    ("ex01.frame", flags_from_zero, "have the cflags [0, 1]"),
    ("ex01.frame", magic_kept, "inside a part as well as between them"),
    ("ex01.frame", [b""], "should be a function"),
    ("ex01.crc", plain_crc, "the checksums are plain ones"),
    ("ex01.crc", zip_crc, "CRC-32 of zip and Ethernet"),
    ("ex01.crc", crc_of_data_twice, "not that of the length's 8 bytes"),
    ("ex01.crc", short_length, "give a record of 21 bytes"),
    ("ex01.crc", crc_with_length, "covers the length too"),
    ("ex01.index", sizes_of_data, "the sizes are those of the data"),
    ("ex01.index", offsets_of_data, "the offsets are those of the data"),
    ("ex01.index", offsets_without_framing, "forgets the framing"),
    ("ex01.index", exchanged, "are exchanged"),
    ("ex01.index", first_only, "of 3 records gives 1 entries"),
    ("ex01.leak", accepts_all, "one picture stands in both halves"),
    ("ex01.leak", pictures_only, "pictures of one object stand in both"),
    ("ex01.leak", nothing_lost_unseen, "a picture is in neither half"),
    ("ex01.leak", empty_unseen, "the validation half is empty"),
    ("ex01.leak", asks_for_order, "fails a split that is right"),
    ("ex02.stride", stride_v1, "this is v1"),
    ("ex02.stride", stride_twice, "halved twice"),
    ("ex02.stride", stride_everywhere, "every block of a stage halves"),
    ("ex02.stride", stride_first_stage, "the first stage halves"),
    ("ex02.stride", shortcut_forgotten, "cannot be added"),
    ("ex02.stride", no_first_projection, "the very first block has no projection"),
    ("ex02.stride", three_strides, "block (0, 0) gives (1, 1, 1)"),
    ("ex02.work", 0, "the work does not"),
    ("ex02.work", 1.06, "is the factor"),
    ("ex02.work", 0.06, "is the share as a fraction"),
    ("ex02.work", 8, "counts all the work"),
    ("ex02.work", 2, "is a third of it"),
    ("ex02.work", 300, "is more than it is"),
    ("ex02.schedule", no_warmup, "there is no warm-up"),
    ("ex02.schedule", no_scaling, "does not depend on the global batch"),
    ("ex02.schedule", times_batch, "multiplied by the whole batch"),
    ("ex02.schedule", stairs, "climbs once an epoch"),
    ("ex02.schedule", decay_once, "falls only once"),
    ("ex02.schedule", decay_late, "at progress 30 exactly"),
    ("ex02.schedule", divides_by_warmup, "divide by zero"),
    ("ex02.decay", by_the_string_bn, "layer1.0.downsample_bn.gamma is decayed"),
    ("ex02.decay", bias_decayed, "fc.bias is decayed"),
    ("ex02.decay", groups_exchanged, "are exchanged"),
    ("ex02.decay", all_decayed, "bn1.gamma is decayed"),
    ("ex02.decay", bias_lost, "is in neither list"),
    ("ex02.decay", names_sorted, "the order of the names has changed"),
    ("ex02.decay", shortcut_not_decayed, "downsample.weight is not decayed"),
    ("ex02.tune", (0.1, 0.9), "the steep direction blows up"),
    ("ex02.tune", (0.02, 0.9), "overshoot"),
    ("ex02.tune", (0.019, 0.0), "along the shallow direction"),
    ("ex02.tune", (0.0338, 0.7), "along the steep direction the distance"),
    ("ex02.tune", (0.01, 1.0), "forgets nothing"),
    ("ex03.shard", no_rank, "every rank reads the same images"),
    ("ex03.shard", in_turn, "the ranks take the images in turn"),
    ("ex03.shard", blocks, "is no run of the order"),
    ("ex03.shard", all_the_steps, "as many as one rank alone"),
    ("ex03.shard", overlapping, "are read twice"),
    ("ex03.shard", unequal, "do not take the same number of steps"),
    ("ex03.shard", flat_shard, "the shape is (3,)"),
    ("ex03.shard", batch_divided, "a step has 2 images for each rank"),
    ("ex03.ring", ring(lambda n: (n - 1) / n), "this is half of it"),
    ("ex03.ring", ring(lambda n: n - 1), "to every other worker"),
    ("ex03.ring", ring(lambda n: n), "n times as much"),
    ("ex03.ring", ring(lambda n: 2 / n), "this is two messages"),
    ("ex03.ring", {2: 1, 8: 1.75}, "no prediction for 64"),
    ("ex03.ring", {2: 1, 8: 1.75, 64: 3}, "with 64 workers each sends 1.97"),
    ("ex04.hunt", {19, 23}, "2 of 8 mistakes are found"),
    ("ex04.hunt", RIGHT_LINES | {49}, "line 49 is right: all ranks call it"),
    ("ex04.hunt", RIGHT_LINES | {99}, "there is no line 99"),
    ("ex04.hunt", set(range(1, 62)), "61 lines are named"),
    ("ex04.order", swapped("shard", "shuffle"), "opens all files"),
    ("ex04.order", swapped("shuffle", "map"), "holds decoded pictures"),
    ("ex04.order", swapped("map", "batch"), "cannot be put into one array"),
    ("ex04.order", swapped("batch", "prefetch"), "single pictures are read ahead"),
    ("ex04.order", swapped("interleave", "shuffle"), "only the names of the files are shuffled"),
    ("ex04.order", ORDER[:-1], "'prefetch' is missing"),
    ("ex04.order", [*ORDER, "repeat"], "'repeat' is no stage"),
]


# --- ex04.feed, which needs TensorFlow ------------------------------------------------------------


def pipeline(images, labels, rank, size, batch, seed, **changes):
    """The right pipeline with one thing changed."""
    import tensorflow as tf

    how = {"shard": True, "shuffle": True, "scale": 255, "drop": True, "take": True, "ahead": True}
    how |= {"shape": (4, 6, 3), "kind": tf.float32, "buffer": len(labels)} | changes
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    if how["shard"]:
        data = data.shard(size, rank)
    if how["shuffle"]:
        fresh = how["shuffle"] != "same"
        data = data.shuffle(how["buffer"], seed=seed, reshuffle_each_iteration=fresh)
    if how["scale"]:
        data = data.map(
            lambda image, label: (
                tf.reshape(tf.cast(image, how["kind"]) / how["scale"], how["shape"]),
                label,
            )
        )
    data = data.batch(batch, drop_remainder=how["drop"])
    if how["take"]:
        data = data.take(len(labels) // (size * batch))
    return data.prefetch(2) if how["ahead"] else data


def forever(*args):
    return pipeline(*args).repeat()


def shuffled_apart(images, labels, rank, size, batch, seed):
    import tensorflow as tf

    pictures = pipeline(images, labels, rank, size, batch, seed).map(lambda image, label: image)
    other = pipeline(images, labels, rank, size, batch, seed + 1).map(lambda image, label: label)
    return tf.data.Dataset.zip((pictures, other)).prefetch(1)


def arrays(images, labels, rank, size, batch, seed):
    return images, labels


def changed(**changes):
    return lambda *args: pipeline(*args, **changes)


def batches_shuffled(images, labels, rank, size, batch, seed):
    data = pipeline(images, labels, rank, size, batch, seed, shuffle=False)
    return data.shuffle(len(labels), seed=seed).prefetch(1)


def pictures_ahead(images, labels, rank, size, batch, seed):
    data = pipeline(images, labels, rank, size, 1, seed).unbatch().prefetch(8)
    return data.batch(batch, drop_remainder=True).take(len(labels) // (size * batch))


def nothing_returned_feed(*args):
    pipeline(*args)


def without_a_number(*args):
    import tensorflow as tf

    data = pipeline(*args)
    return data.map(lambda image, label: (image * tf.constant(float("nan")), label)).prefetch(1)


def empty_feed(*args):
    return pipeline(*args).take(0).prefetch(1)


def scales_the_callers(images, labels, *others):
    images //= 2
    return pipeline(images, labels, *others)


def shuffled_before_shared(images, labels, rank, size, batch, seed):
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((images, labels))
    data = data.shuffle(1000, seed=seed).shard(size, rank).batch(batch, drop_remainder=True)
    data = data.map(lambda image, label: (tf.cast(image, tf.float32) / 255, label))
    return data.prefetch(2).take(len(labels) // (size * batch)).with_options(tf.data.Options())


def runs_of_the_files(images, labels, rank, size, batch, seed):
    import tensorflow as tf

    own = len(labels) // (size * batch) * batch
    mine = slice(rank * own, (rank + 1) * own)
    data = tf.data.Dataset.from_tensor_slices((images[mine] / np.float32(255), labels[mine]))
    return data.shuffle(own, seed=seed + rank).batch(batch).prefetch(1)


OTHER_FEEDS = [
    ("ex04.feed", shuffled_before_shared),
    ("ex04.feed", runs_of_the_files),
    ("ex04.feed", changed(buffer=10_000)),
]
WRONG_FEEDS = [
    ("ex04.feed", arrays, "returns a tuple"),
    ("ex04.feed", changed(shard=False), "a picture is read twice"),
    ("ex04.feed", changed(shuffle=False), "in the order of the files"),
    ("ex04.feed", changed(shuffle="same"), "both epochs have the same order"),
    ("ex04.feed", changed(scale=False), "the pictures are uint8"),
    ("ex04.feed", changed(drop=False, take=False), "a batch of pictures is (2, 4, 6, 3)"),
    ("ex04.feed", changed(take=False), "the ranks take 2, 1 steps"),
    ("ex04.feed", changed(ahead=False), "nothing is read ahead"),
    ("ex04.feed", forever, "never ends"),
    ("ex04.feed", shuffled_apart, "out of step"),
    ("ex04.feed", batches_shuffled, "whole batches are shuffled"),
    ("ex04.feed", changed(buffer=2), "shuffle chooses among 2 of 120"),
    ("ex04.feed", pictures_ahead, "nothing is read ahead"),
    ("ex04.feed", nothing_returned_feed, "is a `return` missing?"),
    ("ex04.feed", without_a_number, "numbers are nan"),
    ("ex04.feed", empty_feed, "the dataset is empty"),
    ("ex04.feed", scales_the_callers, "`images` is changed"),
    ("ex04.feed", changed(scale=256), "not their bytes divided by 255"),
    ("ex04.feed", changed(shape=(3, 4, 6)), "a batch of pictures is (4, 3, 4, 6)"),
]
