"""Wrong answers of ex07 and ex08, as those in wrong_answers.py; and scripts of the capstone, each
the solution with one mistake put in."""

from __future__ import annotations

import math
import statistics

import numpy as np

from tests.workshop.checks.wrong_answers_torch import on_layers, on_tensors

# --- ex07 -----------------------------------------------------------------------------------------


def not_sorted(seconds, per_cent):
    return seconds[max(0, math.ceil(len(seconds) * per_cent / 100) - 1)]


def mean_time(seconds, per_cent):
    return sum(seconds) / len(seconds)


def one_too_far(seconds, per_cent):
    return sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * per_cent / 100))]


def counts_from_one(seconds, per_cent):
    return sorted(seconds)[math.ceil(len(seconds) * per_cent / 100)]


def rounds_down(seconds, per_cent):
    return sorted(seconds)[max(0, int(len(seconds) * per_cent / 100) - 1)]


def interpolated(seconds, per_cent):
    return float(np.percentile(seconds, per_cent))


def from_the_slow_end(seconds, per_cent):
    return sorted(seconds, reverse=True)[max(0, math.ceil(len(seconds) * per_cent / 100) - 1)]


def folded(factor=None, bias=None, axis=0):
    """The right folding with one thing changed."""

    def fold(weight, norm, eps):
        gamma, beta, mean, var = norm.values()
        right = gamma / np.sqrt(var + eps)
        scale = right if factor is None else factor(gamma, var, eps)
        shape = [1, 1, 1, 1]
        shape[axis] = -1
        own = beta - right * mean if bias is None else bias(beta, right, mean)
        return weight * scale.reshape(shape), own

    return fold


def probabilities(logits, axis=1):
    power = np.exp(logits - logits.max(axis=axis, keepdims=True))
    return power / power.sum(axis=axis, keepdims=True)


def picked(values, k, by=None):
    classes = np.argsort(values if by is None else by, axis=1)[:, ::-1][:, :k]
    return classes, np.take_along_axis(values, classes, axis=1)


def over_the_batch(logits, k):
    return picked(probabilities(logits, axis=0), k, by=logits)


def over_the_batch_whole(logits, k):
    return picked(probabilities(logits, axis=0), k)


def likeliest_last(logits, k):
    classes = np.argsort(logits, axis=1)[:, -k:]
    return classes, np.take_along_axis(probabilities(logits), classes, axis=1)


def least_likely(logits, k):
    classes = np.argsort(logits, axis=1)[:, :k]
    return classes, np.take_along_axis(probabilities(logits), classes, axis=1)


def overflows(logits, k):
    power = np.exp(logits)
    return picked(power / power.sum(axis=1, keepdims=True), k, by=logits)


def logits_returned(logits, k):
    return picked(logits, k)


def sums_to_one_over_k(logits, k):
    classes, sure = picked(probabilities(logits), k)
    return classes, sure / sure.sum(axis=1, keepdims=True)


# --- ex08 -----------------------------------------------------------------------------------------


def mean_of_rates(images, seconds, warmup):
    rates = [n / s for n, s in zip(images[warmup:], seconds[warmup:], strict=True)]
    return sum(rates) / len(rates) if rates else None


def harmonic_rate(images, seconds, warmup):
    rates = [n / s for n, s in zip(images[warmup:], seconds[warmup:], strict=True)]
    return statistics.harmonic_mean(rates) if rates else None


def median_rate(images, seconds, warmup):
    rates = [n / s for n, s in zip(images[warmup:], seconds[warmup:], strict=True)]
    return statistics.median(rates) if rates else None


def warmup_counted(images, seconds, warmup):
    return sum(images) / sum(seconds) if images[warmup:] else None


def warmup_images_counted(images, seconds, warmup):
    return sum(images) / sum(seconds[warmup:]) if images[warmup:] else None


def warmup_at_the_end(images, seconds, warmup):
    end = len(images) - warmup
    return sum(images[:end]) / sum(seconds[:end]) if images[warmup:] else None


def divides_by_nothing(images, seconds, warmup):
    return sum(images[warmup:]) / sum(seconds[warmup:])


def zero_images(images, seconds, warmup):
    return sum(images[warmup:]) / (sum(seconds[warmup:]) or 1)


def seconds_per_image(images, seconds, warmup):
    return sum(seconds[warmup:]) / sum(images[warmup:]) if images[warmup:] else None


def ring_ms(formula):
    return {n: 1000 * formula(n, 100e6 / 12.5e9, 20e-6) for n in (2, 8, 512)}


def nothing_hides(compute, ready, takes):
    return compute / (compute + sum(takes))


def all_hides_from_the_start(compute, ready, takes):
    return compute / max(compute, sum(takes))


def many_wires(compute, ready, takes):
    return compute / max([compute, *(a + b for a, b in zip(ready, takes, strict=True))])


def waits_for_the_first_only(compute, ready, takes):
    return compute / max(compute, (ready[0] if ready else 0) + sum(takes))


def step_end(compute, ready, takes):
    free = 0.0
    for at, seconds in zip(ready, takes, strict=True):
        free = max(free, at) + seconds
    return max(compute, free)


def step_returned(compute, ready, takes):
    return step_end(compute, ready, takes)


def slowdown(compute, ready, takes):
    return step_end(compute, ready, takes) / compute


def in_per_cent(compute, ready, takes):
    return 100 * compute / step_end(compute, ready, takes)


WRONG_07_08 = [
    ("ex07.percentile", not_sorted, "the values are not sorted"),
    ("ex07.percentile", mean_time, "this is the mean"),
    ("ex07.percentile", one_too_far, "it is one place too far"),
    ("ex07.percentile", counts_from_one, "it counts places from 1"),
    ("ex07.percentile", rounds_down, "too few of them"),
    ("ex07.percentile", interpolated, "was never measured"),
    ("ex07.percentile", from_the_slow_end, "counts from the slowest"),
    ("ex07.fold", on_layers(folded(axis=1)), "the factor is put on the channels in"),
    ("ex07.fold", on_layers(folded(lambda g, v, e: g / np.sqrt(v))), "eps is forgotten"),
    (
        "ex07.fold",
        on_layers(folded(lambda g, v, e: g / (np.sqrt(v) + e))),
        "eps is added to the root",
    ),
    ("ex07.fold", on_layers(folded(lambda g, v, e: g / (v + e))), "divides by the variance"),
    ("ex07.fold", on_layers(folded(lambda g, v, e: 1 / np.sqrt(v + e))), "gamma is forgotten"),
    ("ex07.fold", on_layers(folded(lambda g, v, e: np.ones_like(g))), "the weight is as it was"),
    ("ex07.fold", on_layers(folded(bias=lambda b, s, m: b)), "the mean is forgotten"),
    ("ex07.fold", on_layers(folded(bias=lambda b, s, m: b - m)), "without its factor"),
    ("ex07.fold", on_layers(folded(bias=lambda b, s, m: b + s * m)), "the mean is added"),
    ("ex07.fold", on_layers(folded(bias=lambda b, s, m: s * (b - m))), "beta is multiplied too"),
    ("ex07.likeliest", on_tensors(over_the_batch), "depends on the other pictures"),
    ("ex07.likeliest", on_tensors(over_the_batch_whole), "one gets the classes"),
    ("ex07.likeliest", on_tensors(likeliest_last), "the likeliest class comes last"),
    ("ex07.likeliest", on_tensors(least_likely), "the least likely classes"),
    ("ex07.likeliest", on_tensors(overflows), "a probability is no number"),
    ("ex07.likeliest", on_tensors(logits_returned), "these are logits"),
    ("ex07.likeliest", on_tensors(sums_to_one_over_k), "the k probabilities add up to 1"),
    ("ex08.rate", mean_of_rates, "the arithmetic mean of the rates"),
    ("ex08.rate", harmonic_rate, "the harmonic mean counts an iteration of 8 images as much"),
    ("ex08.rate", median_rate, "this is the median"),
    ("ex08.rate", warmup_counted, "the warm-up is counted"),
    ("ex08.rate", warmup_images_counted, "the warm-up's images are counted"),
    ("ex08.rate", warmup_at_the_end, "the last 1 are left out"),
    ("ex08.rate", divides_by_nothing, "make it fail"),
    ("ex08.rate", zero_images, "with nothing left after the warm-up it says 0"),
    ("ex08.rate", seconds_per_image, "seconds per image"),
    ("ex08.ring", ring_ms(lambda n, t, lat: 2 * (n - 1) / n * t), "the latency is forgotten"),
    ("ex08.ring", ring_ms(lambda n, t, lat: 2 * (n - 1) / n * t + lat), "latency is counted once"),
    ("ex08.ring", ring_ms(lambda n, t, lat: (n - 1) * (t / n + lat)), "this is half of it"),
    ("ex08.ring", ring_ms(lambda n, t, lat: 2 * (n - 1) * (t + lat)), "carries all gradients"),
    ("ex08.ring", ring_ms(lambda n, t, lat: 2 * (n - 1) * (8 * t / n + lat)), "divided by bits"),
    ("ex08.ring", ring_ms(lambda n, t, lat: (n - 1) * (t / n + lat) / 500), "these are seconds"),
    ("ex08.overlap", nothing_hides, "nothing is hidden"),
    ("ex08.overlap", all_hides_from_the_start, "the exchange begins with the step"),
    ("ex08.overlap", many_wires, "sent at the same time"),
    ("ex08.overlap", waits_for_the_first_only, "only the first bucket waits"),
    ("ex08.overlap", step_returned, "these are the seconds of the step"),
    ("ex08.overlap", slowdown, "this is step over compute"),
    ("ex08.overlap", in_per_cent, "this is per cent"),
]


# --- ex08.capstone, which needs PyTorch -----------------------------------------------------------

GLOB, PERM = 'folder.glob("*/*.jpg")', "torch.randperm(len(labels))"
CAPSTONES = [  # a line of the solution, what stands in its place, and the diagnosis
    (GLOB, 'folder.parent.glob("*/*/*.jpg")', "validation images were trained on"),
    (f"{PERM}.split(BATCH)", f"{PERM}[BATCH:].split(BATCH)",
     "132 times a training image was trained on"),
    (f"{PERM}.split(BATCH)", "torch.arange(BATCH, len(labels)).split(BATCH)",
     "not 3 times 60, 16 of them never"),
    (PERM, "torch.randint(len(labels), (len(labels),))", "come a second time"),
    (f"{PERM}.split(BATCH)", f"{PERM}.split(2 * BATCH)", "a step trains on 32 images"),
    ("resize((SIZE, SIZE)", "resize((32, 32)", "images of 32 × 32 pixels"),
    ("    return np.asarray(image.convert",
     "    image = image.convert('RGB').resize((32, 32))\n    return np.asarray(image.convert",
     "the images are blurred"),
    (".float()", ".flip(1).float()", "red and blue are exchanged"),
    ("(images - mean) / std", "images / 255", "the pixels go from 0 to 1"),
    ("for channels in (16, 32, 64, 64)", "for channels in (8, 16, 32, 64)", "the network has"),
    ("learning_rate(epoch + step / steps)", "learning_rate(epoch)",
     "the learning rate is 0 in the whole first epoch"),
    ("    net.eval()\n", "", "validates in training mode"),
    ("    net.eval()\n", "    net.eval()\n    images, labels = images[:20], labels[:20]\n",
     "4 of 24 validation images were not looked at"),
    ("100 * hits / len(labels)", "97.0", "is reported as 97.00 %"),
    ("100 * hits / len(labels)", "hits / len(labels)", "val_top1 is a fraction"),
    ("images.split(4 * BATCH)])\n    net.train()\n    hits = (logits.argmax(1) == labels).sum()",
     "images.split(BATCH)])\n    net.train()\n    right = (logits.argmax(1) == labels).float()\n"
     "    means = torch.stack([part.mean() for part in right.split(BATCH)])\n"
     "    hits = (means.mean() * len(labels))", "the mean of the batches' means"),
    ('json.dumps(report)', '"{}"', "has no lists val_loss and val_top1"),
    ("net(images[chosen]), labels[chosen]", "net(images[chosen]), labels[chosen].roll(1)",
     "the network hardly learns"),
    ("    net.train()\n", "", "trained in evaluation mode"),
    ("100 * hits / len(labels)", 'float("nan")', "top-1 of epoch 1 is reported as nan"),
    ('report["val_top1"].append(top1)', "pass", "should have 3 numbers in each list"),
    ("F.cross_entropy(logits, labels).item()", "F.cross_entropy(logits, labels, reduction='sum')"
     ".item()", "the validation loss of epoch 1"),
    ("            optimizer.step()", "            for weight in net.parameters():\n"
     "                weight.grad.mul_(1e30)\n            optimizer.step()",
     "the logits are not finite"),
    ("    steps = -(-len(labels) // BATCH)", "    steps = len(nowhere)", "NameError"),
]  # fmt: skip
