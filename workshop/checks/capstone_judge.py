"""The rules of the capstone's table, checked against the recording of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from workshop.checks import capstone
from workshop.checks.capstone import BATCH, EPOCHS, SIZE, Case, Seen

LEAST = 15.0  # per cent of the validation images; guessing gives 8.3
PARAMETERS = 61_468  # of the network as the script has it

Problem = tuple[str, str]  # what is wrong, and what to do about it
Row = tuple[Any, str, str]  # a problem, if the first item is true


def problems(seen: Seen, case: Case) -> list[Problem]:
    """Return all that is wrong with a run, the most basic first."""
    for rows in (_network, _pixels, _training, _learns):  # each relies on the ones before it
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
    for high, wide in {*map(tuple, seen.size.tolist())} - {(SIZE, SIZE)}:
        what = f"images of {high} × {wide} pixels go into the network."
        yield True, what, f"Resize them to {SIZE} × {SIZE}: smaller ones are a different task."


def _pixels(seen: Seen, case: Case) -> Iterator[Row]:
    """Check that every row is one of the images, with the right pixels."""
    strange = seen.number < 0
    yield (
        strange.any(),
        f"{strange.sum():,} of {len(strange):,} images fed to the network do not match the files.",
        f"Feed (x − MEAN) / STD of RGB, 0 to 255: the whole image, resized to {SIZE} × {SIZE}.",
    )


def _training(seen: Seen, case: Case) -> Iterator[Row]:
    leaked = len(np.unique(seen.number[seen.trained & (seen.number >= case.train)]))
    what = f"{leaked} of {case.val} validation images were trained on."
    yield leaked, what, "List only the files in DATA/train."
    yield from _epochs(seen, case)
    yield from _rate(seen)
    remedy = "Call net.eval() before each validation and net.train() after it."
    what = "the network is trained in evaluation mode, so batch norm's statistics stay fixed."
    yield seen.evaluating[seen.trained].any(), what, remedy
    what = (
        "the network validates in training mode, so batch norm uses the statistics of the batch"
        " and updates its running statistics from validation images."
    )
    yield not seen.evaluating[_validating(seen, case)].all(), what, remedy
    if not leaked:  # otherwise it is unclear which passes are the validation
        yield from _report(seen, case)


def _validating(seen: Seen, case: Case) -> np.ndarray:
    """Return for every row whether it is of a validation."""
    found: np.ndarray = ~seen.trained & (seen.number >= case.train)
    return found


def _epochs(seen: Seen, case: Case) -> Iterator[Row]:
    """Check that each epoch has every training image once, in a new order, in steps of BATCH."""
    order = seen.number[seen.trained & (seen.number < case.train)]
    epochs = np.array_split(order, EPOCHS)
    full = len(order) == EPOCHS * case.train
    left = case.train - len(np.unique(order))
    never = f"; {left} were never used" if left else ""
    yield (
        not full,
        f"training used {len(order):,} images in all, not {EPOCHS} times {case.train}{never}.",
        "Use each once per epoch, including those of a smaller last step.",
    )
    twice = max(len(epoch) - len(np.unique(epoch)) for epoch in epochs)
    what = f"in one epoch, {twice} of {case.train} images are repeated and others are missing."
    yield full and twice, what, "Shuffle once per epoch, then take the images in order."
    largest = np.bincount(seen.step[seen.trained]).max()
    remedy = f"Use {BATCH}: a larger batch is a different task."
    yield largest > BATCH, f"a step trains on {largest} images.", remedy
    alike = all(np.array_equal(epochs[0], epoch) for epoch in epochs[1:])
    remedy = "Shuffle the training images again for each epoch."
    yield alike, "every epoch has the same order.", remedy


def _rate(seen: Seen) -> Iterator[Row]:
    """Check the learning rate of each step, for the progress at its begin or its end."""
    rates, per_epoch = seen.rates, len(seen.rates) / EPOCHS
    asked = [[rate((i + end) / per_epoch) for end in (0, 1)] for i in range(len(rates))]
    off = (rates < np.min(asked, 1) - 1e-4) | (rates > np.max(asked, 1) + 1e-4)
    i = int(off.argmax())
    what = f"the learning rate of step {i} is {rates[i]:.3g} instead of {asked[i][0]:.3g}."
    if np.ptp(rates[: max(1, int(per_epoch))]) == 0:
        what = f"the learning rate is {rates[0]:.3g} in the whole first epoch."
    remedy = "Pass learning_rate the epoch plus the fraction of it that is done."
    yield off.any(), what, remedy


def rate(progress: float) -> float:
    """Return the learning rate after `progress` epochs."""
    return capstone.PEAK * min(progress, max(0.0, EPOCHS - progress) / (EPOCHS - 1))


def _report(seen: Seen, case: Case) -> Iterator[Row]:
    """Check each validation, and the numbers of report.json against those of the logits."""
    validations = _validations(seen, case)
    used = [(len(np.unique(seen.number[rows])), len(rows)) for rows in validations]
    if off := [numbers for numbers in used if numbers != (case.val, case.val)]:
        what = f"a validation used {off[0][0]} of the {case.val} images, in {off[0][1]} rows."
        yield True, what, "Use each image once, including those of a smaller last batch."
        return
    try:
        reported = np.array([seen.report[key] for key in ("val_loss", "val_top1")], float)
    except (TypeError, KeyError, ValueError):
        reported = np.zeros(0)
    if reported.shape != (2, EPOCHS):
        what = f"report.json has no lists val_loss and val_top1 of {EPOCHS} numbers."
        yield True, what, "Write it as the slow script does."
        return
    losses, hits = _losses_and_hits(seen, case)
    for epoch, (rows, loss, top1) in enumerate(zip(validations, *reported, strict=True), 1):
        batches = np.split(rows, np.flatnonzero(np.diff(seen.of[rows])) + 1)
        means = 100 * np.mean([hits[batch].mean() for batch in batches])
        right, right_loss = 100 * hits[rows].mean(), losses[rows].mean()
        why = f"but the network's logits give {right:.2f}%."
        remedy = "Compute it from the logits of the validation images and their labels."
        if abs(top1 - means) < 0.05:
            why = f"the mean over batches, but {right:.2f}% of the images are right."
            remedy = "Sum over all images, and divide once: the last batch is smaller."
        what = f"top-1 of epoch {epoch} is reported as {top1:.2f}%, {why}"
        yield not abs(top1 - right) < 0.05, what, remedy
        yield (
            not np.isclose(loss, right_loss, rtol=2e-3),
            f"the validation loss of epoch {epoch} is reported as {loss:.4g}, but the network's"
            f" logits give {right_loss:.4g}.",
            "Take the mean over all images of the cross-entropy, in nats.",
        )


def _validations(seen: Seen, case: Case) -> list[np.ndarray]:
    """Return the rows of each validation, in the order of the epochs."""
    rows = np.flatnonzero(_validating(seen, case))
    after = np.rint(seen.step[rows] * EPOCHS / len(seen.rates))
    return [rows[after == epoch + 1] for epoch in range(EPOCHS)]


def _losses_and_hits(seen: Seen, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return the cross-entropy of every row, and whether its class was the first guess."""
    labels, rows = case.labels[seen.number], np.arange(len(seen.logits))
    shifted = seen.logits - seen.logits.max(1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(1)) - shifted[rows, labels]
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
