"""The rules of the capstone's table, checked against the recording of a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from workshop.checks import capstone
from workshop.checks.capstone import BATCH, EPOCHS, SIZE, Case, Seen

LEAST = 15.0  # per cent of the validation images; guessing gives 8.3
PARAMETERS = 61_468  # of the network as the script has it

Problem = tuple[str, str]  # what is wrong, and what to do about it


def problems(seen: Seen, case: Case) -> list[Problem]:
    """Return all that is wrong with a run, the most basic first."""
    if found := list(_network(seen)) or list(_pixels(seen, case)):
        return found
    leaks = list(_leak(seen, case))
    found = leaks + list(_epochs(seen, case)) + list(_rate(seen)) + list(_mode(seen, case))
    if not leaks:  # otherwise it is unclear which passes are the validation
        found += list(_validation(seen, case)) or list(_report(seen, case))
    return found or list(_learns(seen, case))


def _network(seen: Seen) -> Iterator[Problem]:
    if not seen.passes or not seen.trained.any():
        remedy = "`train(data, out)` should do everything, with `net(x)` and `loss.backward()`."
        yield "no image was trained on.", remedy
        return
    if not np.isfinite(seen.logits).all():
        remedy = "Look at the loss, and at the learning rate."
        yield "the logits are not finite: the training has diverged.", remedy
    for parameters in sorted({entry["parameters"] for entry in seen.passes} - {PARAMETERS})[:1]:
        yield (
            f"the network has {parameters:,} parameters instead of {PARAMETERS:,}.",
            "Don't change Net: a different network is a different task.",
        )
    for high, wide in sorted({tuple(entry["size"]) for entry in seen.passes} - {(SIZE, SIZE)})[:1]:
        yield (
            f"images of {high} × {wide} pixels go into the network.",
            f"The table requires {SIZE} × {SIZE}: smaller images are a different task.",
        )


def _pixels(seen: Seen, case: Case) -> Iterator[Problem]:
    """Check that every row is one of the images, with the right pixels."""
    strange = seen.number < 0
    if not strange.any():
        return
    mean, std = (
        np.array(three, np.float32)[:, None, None] for three in (capstone.MEAN, capstone.STD)
    )
    raw = case.pixels * std + mean
    mistakes = {
        "red and blue are swapped.": (raw[:, ::-1] - mean) / std,
        "the pixels are not normalised.": raw,
        "the pixels range from 0 to 1.": raw / 255,
        "MEAN and STD are for pixels from 0 to 255, but yours range from 0 to 1.": (
            raw / 255 - mean
        )
        / std,
    }
    rows, remedy = seen.prints[strange], "What goes into the network is (x − MEAN) / STD of RGB"
    for text, pixels in mistakes.items():
        if (capstone.recognised(rows, capstone.prints(pixels)) >= 0).mean() > 0.8:
            yield text, f"{remedy}, 0 to 255."
            return
    text = f"{strange.sum():,} of {len(strange):,} images in the network are not from the files."
    yield text, f"{remedy}, 0 to 255: the whole image, resized to {SIZE} × {SIZE}."


def _leak(seen: Seen, case: Case) -> Iterator[Problem]:
    leaked = np.unique(seen.number[seen.trained & (seen.number >= case.train)])
    if len(leaked):
        yield (
            f"{len(leaked)} of {case.val} validation images were trained on.",
            "Look at the list of files: it may contain only those in DATA/train.",
        )


def _epochs(seen: Seen, case: Case) -> Iterator[Problem]:
    """Check that each epoch has every training image once, in a new order, in steps of BATCH."""
    order = seen.number[seen.trained & (seen.number < case.train)]
    epochs = np.array_split(order, EPOCHS)
    if len(order) != EPOCHS * case.train:
        left = case.train - len(set(order.tolist()))
        never = f"; {left} were never used" if left else ""
        yield (
            f"training used {len(order):,} images in all, not {EPOCHS} times {case.train}{never}.",
            "Use each once per epoch, including those of a smaller last step.",
        )
    elif twice := max(len(epoch) - len(set(epoch.tolist())) for epoch in epochs):
        yield (
            f"in one epoch, {twice} of {case.train} images are repeated and others are missing.",
            "Shuffle once per epoch, then take the images in order.",
        )
    largest = max(Counter(seen.column("step")[seen.trained].tolist()).values())
    if largest > BATCH:
        yield (
            f"a step trains on {largest} images.",
            f"The table requires {BATCH}: a larger batch is a different task.",
        )
    if all(np.array_equal(epochs[0], epoch) for epoch in epochs[1:]):
        remedy = "Shuffle the training images again for each epoch."
        yield "every epoch has the same order.", remedy


def _rate(seen: Seen) -> Iterator[Problem]:
    """Check the learning rate of each step, for the progress at its begin or its end."""
    rates, per_epoch = np.array(seen.rates), len(seen.rates) / EPOCHS
    asked = [[rate((i + end) / per_epoch) for end in (0, 1)] for i in range(len(rates))]
    low, high = np.min(asked, 1) - 1e-4, np.max(asked, 1) + 1e-4
    off = np.flatnonzero((rates < low) | (rates > high))
    first = rates[: int(per_epoch)]
    if len(off) and len(first) > 1 and np.ptp(first) == 0:
        yield (
            f"the learning rate is {first[0]:.3g} in the whole first epoch.",
            "It must change with every step: progress includes the fraction of the epoch.",
        )
    elif len(off):
        i = int(off[0])
        yield (
            f"the learning rate of step {i} is {rates[i]:.3g} instead of {asked[i][0]:.3g}.",
            "The function learning_rate is correct: look at its argument.",
        )


def rate(progress: float) -> float:
    """Return the learning rate after `progress` epochs."""
    return capstone.PEAK * min(progress, max(0.0, EPOCHS - progress) / (EPOCHS - 1))


def _mode(seen: Seen, case: Case) -> Iterator[Problem]:
    evaluating = seen.column("evaluating").astype(bool)
    if evaluating[seen.trained].any():
        yield (
            "the network is trained in evaluation mode, so batch norm does not learn.",
            "Call net.eval() before each validation and net.train() after it.",
        )
    elif not evaluating[~seen.trained & (seen.number >= case.train)].all():
        yield (
            "the network validates in training mode, so batch norm uses the statistics of the"
            " batch and learns from validation images.",
            "Call net.eval() before the validation and net.train() after it.",
        )


def _answers(seen: Seen, case: Case) -> list[np.ndarray]:
    """Return the rows of each validation, in the order of the epochs."""
    rows = np.flatnonzero(~seen.trained & (seen.number >= case.train))
    after = np.rint(seen.column("step")[rows] * EPOCHS / max(1, len(seen.rates)))
    return [rows[after == epoch + 1] for epoch in range(EPOCHS)]


def _validation(seen: Seen, case: Case) -> Iterator[Problem]:
    for epoch, rows in enumerate(_answers(seen, case), 1):
        left = case.val - len(np.unique(seen.number[rows]))
        if left:
            text = f"{left} of {case.val} validation images were not used."
            yield f"after epoch {epoch}, {text}", "Include a smaller last batch."
            return
        if len(rows) > case.val:
            text = f"the {case.val} validation images were used {len(rows):,} times."
            yield f"after epoch {epoch}, {text}", "Use each of them once."
            return


def _report(seen: Seen, case: Case) -> Iterator[Problem]:
    """Check the numbers of report.json against those of the logits."""
    try:
        reported = [[float(x) for x in seen.report[key]] for key in ("val_loss", "val_top1")]
    except (TypeError, KeyError, ValueError):
        reported = []
    if {len(values) for values in reported} != {EPOCHS}:
        what = f"report.json has no lists val_loss and val_top1 of {EPOCHS} numbers."
        yield what, "Write it as the slow script does."
        return
    losses, hits = _losses_and_hits(seen, case)
    for epoch, rows in enumerate(_answers(seen, case)):
        loss, top1 = losses[rows].mean(), 100 * hits[rows].mean()
        got_loss, got_top1 = (values[epoch] for values in reported)
        if math.isclose(got_loss, loss, rel_tol=2e-3) and abs(got_top1 - top1) < 0.05:
            continue
        batches = np.split(rows, np.flatnonzero(np.diff(seen.of[rows])) + 1)
        means = 100 * np.mean([hits[batch].mean() for batch in batches])
        text = f"top-1 of epoch {epoch + 1} is reported as {got_top1:.2f} %"
        if abs(got_top1 - top1) < 0.05:
            yield (
                f"the validation loss of epoch {epoch + 1} is reported as {got_loss:.4g}, but the"
                f" network's logits give {loss:.4g}.",
                "It is the mean over all images of the cross-entropy, in nats.",
            )
        elif abs(got_top1 - means) < 0.05:
            yield (
                f"{text}, the mean over batches, but {top1:.2f} % of the images are right.",
                "Sum over all images, and divide once: the last batch is smaller.",
            )
        else:
            yield (
                f"{text}, but the network's logits give {top1:.2f} %.",
                "Compute it from the logits of the validation images and their labels.",
            )
        return


def _losses_and_hits(seen: Seen, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return the cross-entropy of every row, and whether its class was the first guess."""
    labels, rows = case.labels[seen.number], np.arange(len(seen.logits))
    shifted = seen.logits - seen.logits.max(1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(1)) - shifted[rows, labels]
    return losses, seen.logits.argmax(1) == labels


def _learns(seen: Seen, case: Case) -> Iterator[Problem]:
    losses, hits = _losses_and_hits(seen, case)
    epochs = np.array_split(losses[seen.trained], EPOCHS)
    first, last = epochs[0].mean(), epochs[-1].mean()
    top1 = 100 * hits[_answers(seen, case)[-1]].mean()
    if not last < first or top1 < LEAST:
        yield (
            f"the network hardly learns: the loss goes from {first:.3g} to {last:.3g}, and top-1"
            f" is {top1:.1f} %.",
            "Compare your training step with the slow script's, and the labels with the files.",
        )
