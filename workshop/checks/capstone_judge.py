"""The rules of the capstone's table, checked against the recording of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_softmax

from workshop.checks import capstone
from workshop.checks.capstone import BATCH, EPOCHS, RANKS, SIZE, Case, Seen
from workshop.observe import verdict

LEAST = 15.0  # per cent of the validation images; guessing gives 8.3
SPREAD = 0.01  # of a colour; another decoder or filter changes it by 0.004
# of an image's cells: Pillow's BOX and BILINEAR change them by up to 0.009, a draft of 64 pixels by
# up to 0.0253, PyTorch's bilinear filter without antialias by 0.030 and NEAREST by 0.037
ALIASED = 0.028
PARAMETERS = 61_468  # of the network as the script has it
# what a trace of a good script stays far below
INPUT, WAITS, EXCHANGES, MESSAGES = 0.25, 0.5, 1.5, 7

Problem = tuple[str, str]  # what is wrong, and what to do about it
Row = tuple[Any, str, str]  # a problem, if the first item is true


def problems(seen: Seen, case: Case) -> list[Problem]:
    """Return all that is wrong with a run, the most basic first."""
    # each relies on the ones before it
    for rows in (_network, _pixels, _training, _learns, _traced):
        if found := [(what, remedy) for true, what, remedy in rows(seen, case) if true]:
            return found
    return []


def _network(seen: Seen, case: Case) -> Iterator[Row]:
    remedy = "Do everything in `train(data, out)`, with `net(x)` and `loss.backward()`."
    yield not (seen.trained.any() and len(seen.rates)), "no image was trained on.", remedy
    remedy = "Look at the loss, and at the learning rate."
    finite = np.isfinite(seen.logits).all()
    yield not finite, "the logits are not finite: the training has diverged.", remedy
    for count in {*seen.parameters.tolist()} - {PARAMETERS}:
        what = f"the network has {count:,} parameters instead of {PARAMETERS:,}."
        yield True, what, "Don't change Net: a different network is a different task."
    remedy = "Call dist.init_process_group() or hvd.init() at the start of train."
    joined, _ = verdict.start(seen.ranks, RANKS)
    yield joined == verdict.MISSING, "the ranks have not joined a group: each trains alone.", remedy
    for high, wide in {*map(tuple, seen.size.tolist())} - {(SIZE, SIZE)}:
        what = f"images of {high} × {wide} pixels go into the network."
        yield True, what, f"Resize them to {SIZE} × {SIZE}: smaller ones are a different task."


def _pixels(seen: Seen, case: Case) -> Iterator[Row]:
    """Check that every row is one of the images, with the right pixels."""
    known, strange = capstone.prints(case.pixels), seen.number < 0
    remedy = (
        "Feed (x − MEAN) / STD, with x from 0 to 255: red, green and blue in this order, of the"
        " whole image, not flipped or cropped,"
        f" resized to {SIZE} × {SIZE}, in the shape (N, 3, height, width)."
    )
    if strange.any():
        ranges = [f"{a.min():.3g} to {a.max():.3g}" for a in (seen.prints[strange], known)]
        what = (
            f"{strange.sum():,} of {len(strange):,} images fed to the network do not match the"
            f" files: averaged over {SIZE // capstone.CELLS} × {SIZE // capstone.CELLS} pixels,"
            f" they range from {ranges[0]}; right: {ranges[1]}."
        )
        turned = seen.prints.reshape(-1, 3, capstone.CELLS, capstone.CELLS).swapaxes(2, 3)
        if capstone.recognised(turned.reshape(len(turned), -1), known).min() >= 0:
            what = "rows and columns of the images are exchanged."
        yield True, what, remedy
        return
    fed, files = (a.reshape(len(a), 3, -1) for a in (seen.prints, known[seen.number]))
    times = (fed * files).sum((0, 2)) / (files**2).sum((0, 2))  # STD over what was used
    text = ", ".join(f"{one:.3f}" for one in times)
    what = f"look at MEAN and STD: red, green and blue are {text} times the right ones."
    yield (np.abs(times - 1) > SPREAD).any(), what, remedy
    apart = fed - files
    apart -= apart.mean((0, 2), keepdims=True)  # a wrong MEAN
    yield (
        np.median(np.sqrt((apart**2).mean((1, 2)))) > ALIASED,
        "the images are aliased: the resizing skips most pixels of a file.",
        "Use a filter that averages: Pillow's BOX or BILINEAR, or antialias=True in PyTorch.",
    )


def _training(seen: Seen, case: Case) -> Iterator[Row]:
    leaked = len(np.unique(seen.number[seen.trained & (seen.number >= case.train)]))
    what = f"{leaked} of {case.val} validation images were trained on."
    yield leaked, what, "List only the files in DATA/train."
    yield from _together(seen)
    yield from _epochs(seen, case)
    yield from _rate(seen)
    remedy = "Call net.eval() before each validation and net.train() after it."
    what = "the network is trained in evaluation mode, so batch norm's statistics stay fixed."
    yield seen.evaluating[seen.trained].any(), what, remedy
    what = (
        "validation runs in training mode, so batch norm uses the statistics of the batch"
        " and updates its running statistics from validation images."
    )
    yield not seen.evaluating[_validating(seen, case)].all(), what, remedy
    if not leaked:  # otherwise it is unclear which passes are the validation
        yield from _report(seen, case)


def _validating(seen: Seen, case: Case) -> np.ndarray:
    return np.asarray(~seen.trained & (seen.number >= case.train))


def _together(seen: Seen) -> Iterator[Row]:
    """Check that the ranks begin alike, stay alike, and use the mean of their gradients."""
    equal = verdict.equal(seen.ranks)  # before each update
    first = equal.index(False) if False in equal else len(equal)
    kinds = [verdict.exchange(seen.ranks, i) for i in range(len(equal))]
    summed, others = "summed" in kinds, kinds.count("divided") + kinds.count("one")
    what = "the ranks begin with different weights."
    remedy = "Send rank 0's to all: DistributedDataParallel does, or hvd.broadcast_parameters."
    yield first == 0, what, remedy
    yield (
        0 < first < len(equal) and not summed,
        f"the ranks' weights differ after update {first}: each uses its own gradients.",
        "Average the gradients over the ranks, once per step.",
    )
    remedy = "Divide by the number of ranks: the learning rate is that of the mean."
    yield summed, "the gradients are summed over the ranks instead of averaged.", remedy
    what = "the ranks update with equal gradients that are not the mean of their own."
    remedy = "Average them once: DistributedDataParallel and Horovod divide already."
    yield 2 * others > len(kinds), what, remedy
    what = "the gradients of a step include those of the step before."
    yield _added_up(seen.ranks), what, "Call optimizer.zero_grad() before each backward pass."


def _added_up(ranks: list[verdict.Rank]) -> bool:
    """Return True if the second update used the sum of the first two gradients."""
    steps = (0, "given"), (1, "given"), (1, "local")
    rows = [[r.updates[i][key] for r in ranks] for i, key in steps if i < len(ranks[0].updates)]
    if len(rows) < 3 or any(None in values for row in rows for values in row):
        return False
    first, both, second = (np.mean([np.hstack(values) for values in row], 0) for row in rows)
    return bool(np.linalg.norm(both - first - second) < verdict.CLOSE * np.linalg.norm(first))


def _epochs(seen: Seen, case: Case) -> Iterator[Row]:
    """Check that each epoch takes full steps of new images, in a new order."""
    rows = np.flatnonzero(seen.trained & (seen.number < case.train))
    number, step, rank = seen.number[rows], seen.step[rows], seen.rank[rows]
    per_epoch, steps = case.train // BATCH, len(seen.rates)
    both = [np.intersect1d(number[(step == s) & (rank == 0)], number[(step == s) & (rank == 1)])
            for s in range(steps)]  # fmt: skip
    alike = np.mean([len(common) > BATCH / RANKS / 2 for common in both]) > 0.5
    remedy = "Give each rank a different part of every step."
    yield alike, "the ranks train on the same images.", remedy
    full = steps == EPOCHS * per_epoch and len(rows) == BATCH * steps
    yield (
        not full and not alike,
        f"training takes {steps} steps with {len(rows):,} images in all, not {EPOCHS} times"
        f" {per_epoch} steps of {BATCH}.",
        f"Take as many full steps of {BATCH} images, on all ranks together, as there are; drop the"
        " images that do not fill one.",
    )
    epochs = np.array_split(number, EPOCHS)
    twice = max(len(epoch) - len(np.unique(epoch)) for epoch in epochs)
    what = f"in one epoch, {twice} of {case.train} images are repeated."
    remedy = (
        "Shuffle once per epoch, equally on all ranks (with the same seed), and take them in order."
    )
    yield full and twice and not alike, what, remedy
    same = all(np.array_equal(epochs[0], epoch) for epoch in epochs[1:])
    remedy = "Shuffle the training images again for each epoch, equally on all ranks."
    yield same, "every epoch has the same order.", remedy


def _rate(seen: Seen) -> Iterator[Row]:
    """Check the optimizer, and the rate of each step, for the progress at its begin or its end."""
    updates = [update for rank in seen.ranks for update in rank.updates]
    kinds = {(u["optimizer"], *map(float, of)) for u in updates for of in u["groups"]}
    for kind in kinds - {("SGD", 0.9, 0.0)}:
        what = "the optimizer is {} with momentum {:g} and weight decay {:g}.".format(*kind)
        yield True, what, "Make it as the slow script does: SGD with momentum 0.9."
    rates, per_epoch = seen.rates, len(seen.rates) / EPOCHS
    asked = [[rate((i + end) / per_epoch) for end in (0, 1)] for i in range(len(rates))]
    off = (rates < np.min(asked, 1) - 1e-4) | (rates > np.max(asked, 1) + 1e-4)
    i = int(off.argmax())
    what = f"the learning rate of step {i} is {rates[i]:.3g} instead of {asked[i][0]:.3g}."
    remedy = "Pass learning_rate the epoch plus the fraction of it that is done."
    if rates.max() > 1.5 * capstone.PEAK:
        remedy = f"Don't scale the rates: PEAK already belongs to the {BATCH} images of a step."
    yield off.any(), what, remedy


def rate(progress: float) -> float:
    """Return the learning rate after `progress` epochs."""
    return capstone.PEAK * min(progress, max(0.0, EPOCHS - progress) / (EPOCHS - 1))


def _report(seen: Seen, case: Case) -> Iterator[Row]:
    """Check each validation, and the numbers of report.json against those of the logits."""
    validations = _validations(seen, case)
    used = [(len(np.unique(seen.number[rows])), len(rows)) for rows in validations]
    if off := [numbers for numbers in used if numbers != (case.val, case.val)]:
        what = (
            f"a validation used {off[0][0]} of the {case.val} images, in {off[0][1]} rows on all"
            " ranks."
        )
        yield True, what, "Use each image once, on one of the ranks."
        return
    losses, hits = _losses_and_hits(seen, case)
    right = [[losses[rows].mean(), 100 * hits[rows].mean()] for rows in validations]
    try:
        reported = np.array([seen.report[key] for key in ("val_loss", "val_top1")], float).T
    except (TypeError, KeyError, ValueError):
        reported = np.zeros(0)
    if reported.shape != (EPOCHS, 2):
        what = f"report.json has no lists val_loss and val_top1 of {EPOCHS} numbers."
        yield True, what, "Write it as the slow script does."
        return
    for epoch, (found, wanted) in enumerate(zip(reported, np.array(right), strict=True), 1):
        remedy = (
            "Sum losses, hits and images over all batches, which differ in size, and over all"
            " ranks; then divide once. Or compare the labels with the folders."
        )
        if 0 < found[1] <= 1 and np.isclose(100 * found[1], wanted[1], atol=0.05):
            remedy = "Top-1 is in percent: multiply it by 100."
        yield (
            not (np.abs(found - wanted) < (2e-3 * wanted[0], 0.05)).all(),
            f"loss and top-1 of epoch {epoch} are reported as {found[0]:.4g} and {found[1]:.2f}%,"
            f" but the network's logits for all images of all ranks give {wanted[0]:.4g} and"
            f" {wanted[1]:.2f}%.",
            remedy,
        )


def _validations(seen: Seen, case: Case) -> list[np.ndarray]:
    """Return the rows of each validation, in the order of the epochs."""
    rows = np.flatnonzero(_validating(seen, case))
    after = np.rint(seen.step[rows] * EPOCHS / len(seen.rates))
    return [rows[after == epoch + 1] for epoch in range(EPOCHS)]


def _losses_and_hits(seen: Seen, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return the cross-entropy of every row, and whether its class was the first guess."""
    labels, rows = case.labels[seen.number], np.arange(len(seen.logits))
    losses = -log_softmax(seen.logits, axis=1)[rows, labels]
    return losses, seen.logits.argmax(1) == labels


def _learns(seen: Seen, case: Case) -> Iterator[Row]:
    losses, hits = _losses_and_hits(seen, case)
    epochs = np.array_split(losses[seen.trained], EPOCHS)
    first, last = epochs[0].mean(), epochs[-1].mean()
    top1 = 100 * hits[_validations(seen, case)[-1]].mean()
    yield (
        not last < first or top1 < LEAST,
        f"the network hardly learns: the loss goes from {first:.3g} to {last:.3g}, and top-1"
        f" is {top1:.1f}%.",
        "Compare your training step with the slow script's, and the labels with the files.",
    )


def _traced(seen: Seen, case: Case) -> Iterator[Row]:
    """Check what the trace shows: waiting for input and for results, and the exchange."""
    if seen.trace is None or not seen.trace.exists():
        return
    found = read_trace(seen.trace)
    yield (
        found.input > INPUT,
        f"the trace shows that {100 * found.input:.0f}% of a step waits for input"
        f" ({found.input_ms:.1f} ms before the forward pass).",
        "Decode each image once, before the first step, or prepare the next batch meanwhile.",
    )
    yield (
        found.waits > WAITS,
        f"the trace shows {found.waits:.3g} `.item()` per step: on a GPU, each waits for all work.",
        "float(x), int(x), printing a tensor, and files[i] with a tensor i count, too. Read losses"
        " once per epoch, and convert indices with .tolist() once per epoch.",
    )
    yield (
        found.numbers > EXCHANGES * PARAMETERS,
        f"the trace shows that each step exchanges {found.numbers / PARAMETERS:.1f} times all"
        " gradients.",
        "Exchange them once per step, after the last backward pass of the step.",
    )
    yield (
        found.messages > MESSAGES,
        f"the trace shows {found.messages:.3g} messages per step: each one costs its latency.",
        "Send the gradients in buckets: DistributedDataParallel and Horovod do that.",
    )


class Trace(NamedTuple):
    """Medians and means of the steps in a trace."""

    input: float  # share of a step before its forward pass
    input_ms: float
    waits: float  # .item() per step
    numbers: float  # that are all-reduced per step
    messages: float  # all-reduces of Gloo per step; Horovod fuses its own


def read_trace(file: Path) -> Trace:
    """Return what a Chrome trace of `workshop.checks.watch` shows about its steps."""
    events = [e for e in json.loads(file.read_text())["traceEvents"] if e.get("ph") == "X"]
    steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
    inputs = [e for e in events if e["name"] == "input" and e.get("cat") == "user_annotation"]
    pairs = []
    for step in steps:
        end = step["ts"] + step["dur"]
        waited = sum(e["dur"] for e in inputs if step["ts"] - 100 <= e["ts"] < end)
        pairs.append((waited / step["dur"], waited / 1000))
    share, ms = np.median(pairs, axis=0)
    main = [e for e in events if (e["pid"], e["tid"]) == (steps[0]["pid"], steps[0]["tid"])]
    waits = sum(e["name"] == "aten::_local_scalar_dense" for e in main)
    gloo = [e for e in events if e["name"] == "gloo:all_reduce"]
    sizes = [math.prod(dims) for e in gloo for dims in e["args"].get("Input Dims", [])]
    fused = [int(e["name"].split()[1]) for e in events if e["name"].startswith("horovod:all_red")]
    count = len(steps)
    numbers = (sum(sizes) + sum(fused)) / count
    return Trace(float(share), float(ms), waits / count, numbers, len(gloo) / count)
