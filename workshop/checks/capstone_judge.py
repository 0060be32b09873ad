"""What is wrong with a run of the capstone: each rule of its table, held against what was seen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from workshop.checks import capstone
from workshop.checks.capstone import BATCH, EPOCHS, SIZE, Case, Seen

LEAST = 15.0  # per cent of the validation pictures; guessing gives 8.3
BLURRED = 0.75  # a picture with less than this share of the detail was decoded too small
PARAMETERS = 61_468  # of the network as the script has it

Problem = tuple[str, str]  # what is wrong, and what to do about it


def problems(seen: Seen, case: Case) -> list[Problem]:
    """All that is wrong with a run, the most basic first; none where it keeps every rule."""
    if found := list(_network(seen)) or list(_pixels(seen, case)):
        return found
    leaks = list(_leak(seen, case))
    found = leaks + list(_epochs(seen, case)) + list(_rate(seen, case))
    found += _mode(seen, case)
    if not leaks:  # else no one can say which passes were the validation
        found += list(_validation(seen, case)) or list(_report(seen, case))
    return found or list(_learns(seen, case))


def _network(seen: Seen) -> Iterator[Problem]:
    if not seen.passes or not seen.trained.any():
        yield (
            "no picture was trained on.",
            "`train(data, out)` should do the whole training, with `net(x)` and `loss.backward()`.",
        )
        return
    if not np.isfinite(seen.logits).all():
        yield (
            "what comes out of the network is no number any more: the training has blown up.",
            "Look at the loss, and at the learning rate.",
        )
    counts = {entry["parameters"] for entry in seen.passes}
    if counts != {PARAMETERS}:
        odd = max(counts, key=lambda n: abs(n - PARAMETERS))
        yield (
            f"the network has {odd:,} parameters, that of the script {PARAMETERS:,}.",
            "Leave Net as it is: a smaller network is another training.",
        )
    sizes = {tuple(entry["size"]) for entry in seen.passes}
    if sizes != {(SIZE, SIZE)}:
        high, wide = next(size for size in sizes if size != (SIZE, SIZE))
        yield (
            f"pictures of {high} × {wide} pixels go into the network.",
            f"The table says {SIZE} × {SIZE}: smaller ones are faster, and another training.",
        )


def _pixels(seen: Seen, case: Case) -> Iterator[Problem]:
    """Every row must be one of the pictures, with the right pixels."""
    strange = seen.number < 0
    if strange.any():
        rows = seen.prints[strange]
        mean, std = (
            np.array(three, np.float32)[:, None, None] for three in (capstone.MEAN, capstone.STD)
        )
        raw = case.pixels * std + mean
        mistakes = {
            "red and blue are exchanged.": (raw[:, ::-1] - mean) / std,
            "the pixels are not normalised.": raw,
            "the pixels go from 0 to 1.": raw / 255,
            "MEAN and STD are for 0 to 255, and the pixels go to 1.": (raw / 255 - mean) / std,
        }  # fmt: skip
        for said, pixels in mistakes.items():
            if (capstone.recognised(rows, capstone.prints(pixels)) >= 0).mean() > 0.8:
                yield said, "What goes into the network is (x − MEAN) / STD of RGB, 0 to 255."
                return
        yield (
            f"{strange.sum():,} of {len(strange):,} pictures that went into the network are none of"
            " the files'.",
            f"The whole picture, resized to {SIZE} × {SIZE}, RGB, (x − MEAN) / STD.",
        )
        return
    detail = np.abs(np.diff(case.pixels, axis=3)).mean((1, 2, 3))
    if np.median(seen.details / detail[seen.number]) < BLURRED:
        yield (
            f"the pictures are blurred: they were smaller than {SIZE} × {SIZE} when decoded.",
            f"Decode no smaller than {SIZE} × {SIZE} and resize to it.",
        )


def _leak(seen: Seen, case: Case) -> Iterator[Problem]:
    leaked = np.unique(seen.number[seen.trained & (seen.number >= case.train)])
    if len(leaked):
        yield (
            f"{len(leaked)} of {case.val} validation pictures were trained on.",
            "Look at the list of files: only those of DATA/train may be in it.",
        )


def _epochs(seen: Seen, case: Case) -> Iterator[Problem]:
    """Every training picture once in each epoch, in a new order, in steps of BATCH."""
    rows = seen.trained & (seen.number < case.train)
    order = seen.number[rows]
    often = Counter(order.tolist())
    left = case.train - len(often)
    if len(order) != EPOCHS * case.train:
        never = f", {left} of them never" if left else ""
        yield (
            f"{len(order):,} times a training picture was trained on, not {EPOCHS} times"
            f" {case.train}{never}.",
            "Each once in every epoch, also those of a last, smaller step.",
        )
    epochs = np.array_split(order, EPOCHS)
    if len(order) == EPOCHS * case.train:
        twice = max(len(epoch) - len(set(epoch.tolist())) for epoch in epochs)
        if twice:
            yield (
                f"in one epoch {twice} of {case.train} pictures come a second time, and others not"
                " at all.",
                "Shuffle, and then go through: do not draw anew for every batch.",
            )
    per_step = Counter(seen.column("step")[seen.trained].tolist())
    if max(per_step.values()) > BATCH:
        yield (
            f"a step trains on {max(per_step.values())} pictures.",
            f"The table says {BATCH}: a larger batch is faster, and another training.",
        )
    one_class = np.mean([len(set(part)) == 1 for part in _steps_of(case.labels[order])])
    if one_class > 0.3 or all(np.array_equal(epochs[0], epoch) for epoch in epochs[1:]):
        yield (
            "every epoch has the same order"
            + (", one class after the other." if one_class > 0.3 else "."),
            "Shuffle the training pictures anew for each epoch.",
        )


def _steps_of(labels: np.ndarray) -> list[list[int]]:
    return [labels[i : i + BATCH].tolist() for i in range(0, len(labels), BATCH)]


def _rate(seen: Seen, case: Case) -> Iterator[Problem]:
    """The learning rate of every step; either end of the step will do."""
    rates, per_epoch = np.array(seen.rates), len(seen.rates) / EPOCHS
    asked = [[rate((i + end) / per_epoch) for end in (0, 1)] for i in range(len(rates))]
    low, high = np.min(asked, 1) - 1e-4, np.max(asked, 1) + 1e-4
    off = np.flatnonzero((rates < low) | (rates > high))
    if not len(off):
        return
    first = rates[: int(per_epoch)]
    if len(first) > 1 and np.ptp(first) == 0:
        yield (
            f"the learning rate is {first[0]:.3g} in the whole first epoch.",
            "It changes with every step: progress counts steps as parts of an epoch.",
        )
    else:
        i = int(off[0])
        yield (
            f"the learning rate of step {i} is {rates[i]:.3g}, and should be {asked[i][0]:.3g}.",
            "learning_rate(progress) of the script is right: look at what it is given.",
        )


def rate(progress: float) -> float:
    """The rate after `progress` epochs."""
    return capstone.PEAK * min(progress, max(0.0, EPOCHS - progress) / (EPOCHS - 1))


def _mode(seen: Seen, case: Case) -> Iterator[Problem]:
    evaluating = seen.column("evaluating").astype(bool)
    if evaluating[seen.trained].any():
        yield (
            "the network is trained in evaluation mode: batch norm does not learn then.",
            "net.train() after each validation, net.eval() before it.",
        )
    elif not evaluating[~seen.trained & (seen.number >= case.train)].all():
        yield (
            "the network validates in training mode: batch norm takes the mean of the batch, and"
            " learns from validation pictures.",
            "net.eval() before the validation, net.train() after it.",
        )


def _answers(seen: Seen, case: Case) -> list[np.ndarray]:
    """The rows of each validation: pictures of DATA/val, in the order of the epochs."""
    rows = np.flatnonzero(~seen.trained & (seen.number >= case.train))
    after = np.rint(seen.column("step")[rows] * EPOCHS / max(1, len(seen.rates)))
    return [rows[after == epoch + 1] for epoch in range(EPOCHS)]


def _validation(seen: Seen, case: Case) -> Iterator[Problem]:
    for epoch, rows in enumerate(_answers(seen, case)):
        numbers = seen.number[rows].tolist()
        if left := case.val - len(set(numbers)):
            yield (
                f"after epoch {epoch + 1}, {left} of {case.val} validation pictures were not"
                " looked at.",
                "All of them count, those of a last, smaller batch too.",
            )
            return
        if len(numbers) > case.val:
            yield (
                f"after epoch {epoch + 1} the {case.val} validation pictures were looked at"
                f" {len(numbers):,} times.",
                "Each of them once.",
            )
            return


def _report(seen: Seen, case: Case) -> Iterator[Problem]:
    """The numbers of report.json against those of the logits."""
    try:
        said = {key: [float(x) for x in seen.report[key]] for key in ("val_loss", "val_top1")}
    except (TypeError, KeyError, ValueError):
        yield "report.json has no lists val_loss and val_top1.", "Write it as the slow script does."
        return
    if {len(values) for values in said.values()} != {EPOCHS}:
        yield f"report.json should have {EPOCHS} numbers in each list.", "One for each epoch."
        return
    losses, hits = _nats_and_hits(seen, case)
    for epoch, rows in enumerate(_answers(seen, case)):
        loss, top1 = losses[rows].mean(), 100 * hits[rows].mean()
        got_loss, got_top1 = said["val_loss"][epoch], said["val_top1"][epoch]
        if math.isclose(got_loss, loss, rel_tol=2e-3) and abs(got_top1 - top1) < 0.05:
            continue
        parts = np.split(rows, np.flatnonzero(np.diff(seen.of[rows])) + 1)
        means = 100 * np.mean([hits[part].mean() for part in parts])
        if abs(got_top1 - means) < 0.05 and len(parts) > 1:
            yield (
                f"top-1 of epoch {epoch + 1} is said to be {got_top1:.2f} %, the mean of the"
                f" batches' means; {top1:.2f} % of the pictures are right.",
                "Add up over all pictures, and divide once: the last batch is smaller.",
            )
        elif abs(100 * got_top1 - top1) < 0.05 and got_top1:
            yield "val_top1 is a fraction.", "The report has per cent, from 0 to 100."
        elif abs(got_top1 - top1) < 0.05:
            yield (
                f"the validation loss of epoch {epoch + 1} is said to be {got_loss:.4g}, and is"
                f" {loss:.4g} by what the network answered.",
                "It is the mean over all pictures of the cross-entropy, in nats.",
            )
        else:
            yield (
                f"top-1 of epoch {epoch + 1} is said to be {got_top1:.2f} %, and is {top1:.2f} % by"
                " what the network answered.",
                "Compute it from the logits of the validation pictures and their labels.",
            )
        return


def _nats_and_hits(seen: Seen, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Cross-entropy of every row, and whether its class was the first guess."""
    labels, rows = case.labels[seen.number], np.arange(len(seen.logits))
    shifted = seen.logits - seen.logits.max(1, keepdims=True)
    nats = np.log(np.exp(shifted).sum(1)) - shifted[rows, labels]
    return nats, seen.logits.argmax(1) == labels


def _learns(seen: Seen, case: Case) -> Iterator[Problem]:
    losses, hits = _nats_and_hits(seen, case)
    first, last = (losses[part].mean() for part in
                   np.array_split(np.flatnonzero(seen.trained), EPOCHS)[:: EPOCHS - 1])  # fmt: skip
    top1 = 100 * hits[_answers(seen, case)[-1]].mean()
    if not last < first or top1 < LEAST:
        yield (
            f"the network hardly learns: the loss goes from {first:.3g} to {last:.3g}, top-1 is"
            f" {top1:.1f} %.",
            "Compare the steps of training with those of the slow script, and labels with files.",
        )
