"""Answers that are nearly right, each with a part of its diagnosis; and right ones in other styles.

They were thought of by reading the checks as somebody who wants to get a wrong answer past them.
"""

from __future__ import annotations

import bisect
import itertools
import math
import struct
from fractions import Fraction

import numpy as np
from google_crc32c import value as crc32c

from rn50lib.optim import loss_scale_update
from rn50lib.recipe import learning_rate
from tests.workshop.checks.wrong_answers import MAGIC, NAMES, framed, masked, walk, whole
from tests.workshop.checks.wrong_answers_ex05 import own, rates
from tests.workshop.checks.wrong_answers_ex06 import megabytes, placed
from tests.workshop.checks.wrong_answers_ex07_08 import folded, picked, probabilities, step_end
from tests.workshop.checks.wrong_answers_torch import on_layers, on_tensors

# --- ex01 -----------------------------------------------------------------------------------------


def parts_of(payload, cuts):
    edges = [0, *itertools.chain(*((at, at + 4) for at in cuts)), len(payload)]
    parts = [payload[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
    last = len(parts) - 1
    flags = [0 if not last else 1 if i == 0 else 3 if i == last else 2 for i in range(last + 1)]
    return b"".join(whole(part, flag=flag) for part, flag in zip(parts, flags, strict=True))


def aligned(payload):
    return [at for at in range(0, len(payload) - 3, 4) if payload[at : at + 4] == MAGIC]


def gives_up_at_an_odd_magic(payload):
    cuts, at = [], payload.find(MAGIC)
    while at >= 0 and at % 4 == 0:
        cuts.append(at)
        at = payload.find(MAGIC, at + 4)
    return parts_of(payload, cuts)


def text_of_bytes(payload):
    return parts_of(payload, aligned(payload)).decode("latin-1")


def frame_by_append(payload):
    return bytearray(parts_of(payload, aligned(payload)))


def only_turned(data):
    def turn(raw):
        return (crc32c(raw) >> 15 | crc32c(raw) << 17) % 2**32

    return framed(data, turn, turn)


def only_added(data):
    return framed(data, *[lambda raw: (crc32c(raw) + 0xA282EAD8) % 2**32] * 2)


def turned_left(data):
    def turn(raw):
        return ((crc32c(raw) << 15 | crc32c(raw) >> 17) + 0xA282EAD8) % 2**32

    return framed(data, turn, turn)


def joined(data):
    size = struct.pack("<Q", len(data))
    parts = (size, struct.pack("<I", masked(crc32c(size))), data)
    return bytearray().join([*parts, struct.pack("<I", masked(crc32c(data)))])


def stops_at_an_empty_record(shard):
    return list(itertools.takewhile(lambda pair: pair[1] > 16, right_index(shard)))


def right_index(shard):
    return [(at, length + 16) for at, length in walk(shard)]


def skips_too_little(shard):
    found, at = [], 0
    while at < len(shard):
        (length,) = struct.unpack_from("<Q", shard, at)
        found.append((at, length + 16))
        at += length + 8
    return found


def only_offsets(shard):
    return [at for at, _ in walk(shard)]


def generated_index(shard):
    for at, length in walk(shard):
        yield [at, np.int64(length + 16)]


def object_sets(split, names=NAMES):
    train, val = split(list(names))
    return {n[:3] for n in train}, {n[:3] for n in val}, train, val


def one_half_only(split):
    first, second, train, val = object_sets(split)
    assert val and not first & second and sorted(train + val) == NAMES


def counts_only(split):
    first, second, train, val = object_sets(split)
    assert train and val and not first & second and len(train + val) == len(NAMES)


def says_whether(split):
    first, second, train, val = object_sets(split)
    return bool(train and val) and not first & second and sorted(train + val) == NAMES


def raises_itself(split):
    first, second, train, val = object_sets(split)
    if not train or not val or first & second or set(train) | set(val) != set(NAMES):
        raise AssertionError
    return True


# --- ex02 -----------------------------------------------------------------------------------------


def zero_for_none(stage, index):
    stride = 2 if stage and not index else 1
    return 1, stride, 1, 0 if index else stride


def first_stage_shortcut_halved(stage, index):
    stride = 2 if stage and not index else 1
    return 1, stride, 1, None if index else 2


def stride_list(stage, index):
    stride = np.int64(1 + (stage > 0 and index == 0))
    return [1, stride, 1, stride if index == 0 else None]


def warm_up_unscaled(progress, global_batch, recipe):
    rate = learning_rate(progress, global_batch, recipe)
    return rate if progress >= recipe.warmup_epochs else rate * recipe.lr_batch / global_batch


def decays_after_warm_up(progress, global_batch, recipe):
    late = recipe.warmup_epochs if progress >= recipe.lr_step_epochs[0] else 0
    return learning_rate(progress - late, global_batch, recipe)


def by_bisection(progress, global_batch, recipe):
    peak = np.float32(recipe.lr * global_batch / recipe.lr_batch)
    warm = min(1.0, progress / recipe.warmup_epochs) if recipe.warmup_epochs else 1.0
    return peak * warm * recipe.lr_factor ** bisect.bisect(recipe.lr_step_epochs, progress)


def weight_anywhere(names):
    decayed = [n for n in names if "weight" in n]
    return decayed, [n for n in names if n not in decayed]


def kinds_anywhere(names):
    plain = [n for n in names if "gamma" in n or "beta" in n or "bias" in n]
    return [n for n in names if n not in plain], plain


def by_part(names):
    yes, no = [], []
    for name in tuple(names):
        (yes if name.split(".")[-1] == "weight" else no).append(name)
    return [yes, tuple(no)]


# --- ex03 -----------------------------------------------------------------------------------------


def right_shard(order, rank, size, batch):
    steps = len(order) // (size * batch)
    return order[: steps * size * batch].reshape(steps, size, batch)[:, rank]


def stacked(order, rank, size, batch):
    group, steps = size * batch, len(order) // (size * batch)
    return np.array([order[s * group :][rank * batch : (rank + 1) * batch] for s in range(steps)])


def rows_as_lists(order, rank, size, batch):
    return right_shard(order, rank, size, batch).tolist()


def filled_with_floats(order, rank, size, batch):
    found = np.zeros((len(order) // (size * batch), batch))
    found[:] = right_shard(order, rank, size, batch)
    return found


def rank_from_one(order, rank, size, batch):
    return right_shard(order, (rank + 1) % size, size, batch)


def shard_by_index(order, rank, size, batch):
    steps, group = len(order) // (size * batch), size * batch
    rows = np.arange(steps)[:, None] * group + rank * batch + np.arange(batch)
    return np.asarray(order)[rows].astype(np.int32)


# --- ex05, ex06 -----------------------------------------------------------------------------------


def right_rows(images, rank, size, batch):
    mine, steps = own(images, rank, size), math.ceil(math.ceil(images / size) / batch)
    return [min(batch, mine - step * batch) for step in range(steps)]


def divided_with_a_slash(images, rank, size, batch):
    mine = (rank + 1) * images / size - rank * images / size
    steps = math.ceil(math.ceil(images / size) / batch)
    return [min(batch, mine - step * batch) for step in range(steps)]


def rows_in_all(images, rank, size, batch):
    return sum(right_rows(images, rank, size, batch))


def rows_as_array(images, rank, size, batch):
    first = np.arange(math.ceil(-(-images // size) / batch)) * batch
    return np.clip(own(images, rank, size) - first, 0, batch)


def counts_on_at_the_top(scale, good_steps, finite, growth_steps):
    if finite and scale >= 2**24:
        return scale, good_steps + 1
    return loss_scale_update(scale, good_steps, finite, growth_steps)


def scale_by_shifting(scale, good_steps, finite, growth_steps):
    scale, good_steps = (scale, good_steps + 1) if finite else (scale / 2, 0)
    if good_steps >= growth_steps:
        scale, good_steps = scale * 2, 0
    return [np.clip(scale, 1, 2**24), np.int64(good_steps)]


def pads_nhwc_only(shape, order, multiple):
    return placed(shape, order, multiple if order == "NHWC" else 1)


def three_of_four(shape, order, multiple):
    return placed(shape, order, multiple)[1:]


def strides_by_numpy(shape, order, multiple):
    n, c, h, w = shape
    size = {"N": n, "C": math.ceil(c / multiple) * multiple, "H": h, "W": w}
    steps = np.cumprod([1, *(size[axis] for axis in order[:0:-1])])[::-1]
    return np.array([steps[order.index(axis)] for axis in "NCHW"], float)


# --- ex07, ex08 -----------------------------------------------------------------------------------


def share_first(seconds, per_cent):
    return sorted(seconds)[max(0, math.ceil(per_cent / 100 * len(seconds)) - 1)]


def numpys_inverted_cdf(seconds, per_cent):
    return np.percentile(seconds, per_cent, method="inverted_cdf")


def to_the_next_rank(seconds, per_cent):
    return sorted(seconds)[min(len(seconds), max(1, round(len(seconds) * per_cent / 100))) - 1]


def percentile_by_counting(seconds, per_cent):
    for value in sorted(seconds):
        if sum(one <= value for one in seconds) * 100 >= per_cent * len(seconds):
            return value
    return max(seconds)


def right_fold(weight, norm, eps):
    scale = norm["gamma"] / np.sqrt(norm["running_var"] + eps)
    return weight * scale.reshape(-1, 1, 1, 1), norm["beta"] - norm["running_mean"] * scale


def folds_in_place(weight, norm, eps):
    scale = norm["gamma"] / np.sqrt(norm["running_var"] + eps)
    weight *= scale[:, None, None, None]
    return weight, norm["beta"] - norm["running_mean"] * scale


def nan_bias(weight, norm, eps):
    weight, bias = right_fold(weight, norm, eps)
    return weight, np.where(np.arange(len(bias)) == 0, np.nan, bias)


def no_bias(weight, norm, eps):
    return right_fold(weight, norm, eps)[0], None


def half_fold(weight, norm, eps):
    return [part.astype(np.float16) for part in right_fold(weight, norm, eps)]


def fold_of_float32(weight, norm, eps):
    norm = {name: values.astype(np.float32) for name, values in norm.items()}
    return list(right_fold(weight.astype(np.float32), norm, np.float32(eps)))


def one_maximum(logits, k):
    with np.errstate(all="ignore"):
        power = np.exp(logits - logits.max())
        return picked(power / power.sum(axis=1, keepdims=True), k, by=logits)


def in_half(logits, k):
    return picked(probabilities(logits.astype(np.float16)), k, by=logits)


def shifts_the_logits(logits, k):
    logits -= logits.max(axis=1, keepdims=True)
    return picked(probabilities(logits), k, by=logits)


def classes_as_floats(logits, k):
    classes, sure = picked(probabilities(logits), k)
    return classes.astype(float), sure


def one_array(logits, k):
    return np.stack(picked(probabilities(logits), k))


def unsorted(logits, k):
    classes = np.sort(picked(logits, k)[0], axis=1)
    return classes, np.take_along_axis(probabilities(logits), classes, axis=1)


def likeliest_by_row(logits, k):
    classes, sure = [], []
    for row in logits.tolist():
        best = sorted(range(len(row)), key=row.__getitem__, reverse=True)[:k]
        power = [math.exp(x - max(row)) for x in row]
        classes.append(best)
        sure.append([power[i] / sum(power) for i in best])
    return classes, sure


def right_rate(images, seconds, warmup):
    took = math.fsum(seconds[warmup:])
    return sum(images[warmup:]) / took if took else None


def mean_over_iterations(images, seconds, warmup):
    return sum(images[warmup:]) / len(images[warmup:]) if images[warmup:] else None


def nan_rate(images, seconds, warmup):
    with np.errstate(all="ignore"):
        return np.float64(sum(images[warmup:])) / np.float64(sum(seconds[warmup:]))


def last_bucket_only(compute, ready, takes):
    return compute / max(compute, ready[-1] + takes[-1] if ready else 0)


def exposed_over_compute(compute, ready, takes):
    return 1 - (step_end(compute, ready, takes) - compute) / compute


def overlap_from_the_end(compute, ready, takes):
    ends = [at + sum(takes[i:]) for i, at in enumerate(ready)]
    return np.float32(compute / max([compute, *ends]))


LINES = {19, 23, 25, 27, 34, 52, 56, 61}
STAGES = ["list files", "shard", "interleave", "shuffle", "map", "batch", "prefetch"]
RING = {n: 2 * (n - 1) / n for n in (2, 8, 64)}
RING_MS = {n: 2 * (n - 1) * (0.02 + 8 / n) for n in (2, 8, 512)}

CLOSE = [
    ("ex01.frame", gives_up_at_an_odd_magic, "at offset 2, where it stays, and at offset 8"),
    ("ex01.frame", text_of_bytes, "of type str, not bytes"),
    ("ex01.crc", only_turned, "no constant is added"),
    ("ex01.crc", only_added, "nothing is rotated"),
    ("ex01.crc", turned_left, "of 9 bytes of data is wrong from byte 8 on"),
    ("ex01.index", stops_at_an_empty_record, "3 records gives 0 entries"),
    ("ex01.index", only_offsets, "no list of pairs"),
    ("ex01.index", skips_too_little, "is looked for 8 bytes too early"),
    ("ex01.leak", one_half_only, "the training half is empty"),
    ("ex01.leak", counts_only, "one picture is missing and another one is there twice"),
    ("ex01.leak", says_whether, "your test returns False"),
    ("ex02.stride", zero_for_none, "has a projection"),
    ("ex02.stride", first_stage_shortcut_halved, "block (0, 0) gives (1, 1, 1, 2)"),
    ("ex02.schedule", warm_up_unscaled, "after 1 epochs, with a batch of 1664"),
    ("ex02.schedule", decays_after_warm_up, "counted from the end of the warm-up"),
    ("ex02.decay", weight_anywhere, "weighting.bn.gamma is decayed"),
    ("ex02.decay", kinds_anywhere, "gamma.weight is not decayed"),
    ("ex02.tune", (0.72, 0.03), "are the two exchanged"),
    ("ex02.tune", (0.03, -0.5), "turns back at every step"),
    ("ex02.tune", {"lr": 0.03, "momentum": 0.72}, "no pair of numbers"),
    ("ex03.shard", filled_with_floats, "are float64, which selects nothing"),
    ("ex03.shard", rank_from_one, "rank 0 takes what is rank 1's"),
    ("ex03.ring", {n: 2 * n for n in RING}, "with 2 workers each sends 1"),
    ("ex04.order", set(STAGES), "of type set, which has no order"),
    ("ex05.bottleneck", rates(cores=7), "cores: 7 is more"),
    ("ex05.exact", divided_with_a_slash, "5.5, and should be a whole number"),
    ("ex05.exact", rows_in_all, "of type int"),
    ("ex06.memory", megabytes(14, 2, images=(96, 1)), "the batches are exchanged"),
    ("ex06.scaler", counts_on_at_the_top, "at 2^24 the good steps do not begin at 0 again"),
    ("ex06.layout", pads_nhwc_only, "in NCHW the channels are not padded"),
    ("ex06.layout", three_of_four, "what comes back is (20, 5, 1)"),
    ("ex07.percentile", to_the_next_rank, "too few of them"),
    ("ex07.fold", on_layers(folds_in_place), "`conv` is changed"),
    ("ex07.fold", on_layers(nan_bias), "the bias: 1 of 4 numbers are nan"),
    ("ex07.fold", on_layers(no_bias), "the new convolution has no bias"),
    ("ex07.fold", on_layers(half_fold), "are right, but rounded to float16"),
    (
        "ex07.fold",
        on_layers(folded(lambda g, v, e: np.abs(g) / np.sqrt(v + e))),
        "the sign of gamma",
    ),
    (
        "ex07.fold",
        on_layers(folded(bias=lambda b, s, m: b - s * m * 0.99)),
        "outputs differ by up to 0.02",
    ),
    ("ex07.likeliest", on_tensors(one_maximum), "the largest logit of the whole batch"),
    ("ex07.likeliest", on_tensors(in_half), "they are float16"),
    ("ex07.likeliest", on_tensors(shifts_the_logits), "`logits` is changed"),
    ("ex07.likeliest", on_tensors(classes_as_floats), "the classes are float64"),
    ("ex07.likeliest", on_tensors(one_array), "no pair"),
    ("ex07.likeliest", on_tensors(unsorted), "their order is not"),
    ("ex08.rate", mean_over_iterations, "images per iteration"),
    ("ex08.rate", nan_rate, "says np.float64(nan)"),
    ("ex08.ring", {n: t * n for n, t in RING_MS.items()}, "with 2 workers it takes 8.04 ms"),
    ("ex08.overlap", last_bucket_only, "only the last bucket counts"),
    ("ex08.overlap", exposed_over_compute, "it says 0.7 (compute 0.1"),
]

OTHER_WAYS = [
    ("ex01.frame", frame_by_append),
    ("ex01.crc", joined),
    ("ex01.index", generated_index),
    ("ex01.leak", raises_itself),
    ("ex02.stride", stride_list),
    ("ex02.work", Fraction(6)),
    ("ex02.schedule", by_bisection),
    ("ex02.decay", by_part),
    ("ex03.shard", shard_by_index),
    ("ex03.shard", stacked),
    ("ex03.shard", rows_as_lists),
    ("ex04.hunt", sorted(LINES)),
    ("ex04.order", tuple(STAGES)),
    ("ex05.exact", right_rows),
    ("ex05.exact", rows_as_array),
    ("ex06.scaler", scale_by_shifting),
    ("ex06.layout", strides_by_numpy),
    ("ex07.percentile", percentile_by_counting),
    ("ex07.percentile", share_first),
    ("ex07.percentile", numpys_inverted_cdf),
    ("ex07.fold", on_layers(fold_of_float32)),
    ("ex07.likeliest", on_tensors(likeliest_by_row)),
    ("ex08.rate", right_rate),
    ("ex08.overlap", overlap_from_the_end),
]
