"""Checks of ex05: a DALI graph, what limits the training, a validation that is exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workshop.checks import compare, ex05_graph
from workshop.checks.compare import refuse, wrong

# --- ex05.graph -----------------------------------------------------------------------------------

RANKS, BATCH, EPOCHS = 2, 8, 10
SMALLEST, DALI_SMALLEST = 0.05, 0.08  # the recipe's and DALI's own smallest crop


def graph(answer: ex05_graph.Graph) -> str:
    with ex05_graph.files_of_images() as files:
        labels = [7 * number % 11 for number in range(len(files))]
        steps = len(files) // (RANKS * BATCH)
        read = []
        for rank in range(RANKS):
            arguments = (list(files), list(labels), rank, RANKS)
            pixels, given = ex05_graph.run(answer, arguments, BATCH, steps, 11 + rank)
            ex05_graph.check_form(pixels, ex05_graph.SIDE)
            _right_pixels(pixels)
            read.append(ex05_graph.numbers(pixels).tolist())
            if given.tolist() != [labels[number] for number in read[-1]]:
                wrong("an image came with the label of a different one.",
                      "Return the label that the reader returns with the image.")  # fmt: skip
        ex05_graph.check_shares(read)
        many, _ = ex05_graph.run(answer, (files, labels, 0, 1), len(files), EPOCHS, 11)
        _mirrored_and_cropped(many)
    return f"{len(files)} images on 1 and 2 ranks: sharded, shuffled, and cropped as in the recipe."


def _right_pixels(pixels: np.ndarray) -> None:
    """Undo the normalisation, correctly and in the usual wrong ways."""
    mean, std, possible = ex05_graph.MEAN, ex05_graph.STD, ex05_graph.possible
    mistakes = (  # the levels if this is what was done
        *((s * pixels * std + m * mean, f"{what} on the scale from 0 to 1, but the pixels range"
           " from 0 to 255.", "Multiply mean and std by 255.")
          for m, s, what in ((1, 1, "mean and std are"), (1, 255, "the mean is"),
                             (255, 1, "std is"))),
        (pixels + 255 * mean, "the images are not divided by std.", "Pass std, times 255."),
        (255 * pixels * std, "the mean is not subtracted.", "Pass mean, times 255."),
        *((255 * (pixels * s + m), f"{what} in the order blue, green, red.",
           "Order mean and std as the pixels: red, green, blue.")
          for m, s, what in ((mean[::-1], std[::-1], "mean and std are"),
                             (mean[::-1], std, "the mean is"), (mean, std[::-1], "std is"))),
        (255 * (pixels * std + mean)[:, ::-1], "the images are blue, green, red.",
         "Leave the decoder's output_type as it is: red, green, blue."),
        (pixels, "the images range from 0 to 255: nothing is normalised.",
         "Pass mean and std, both times 255."),
    )  # fmt: skip
    if not possible(ex05_graph.original(pixels)):
        refuse(*((possible(levels), what, remedy) for levels, what, remedy in mistakes))
        wrong(
            "the images are not normalised as asked: their numbers range from"
            f" {pixels.min():.3g} to {pixels.max():.3g}.",
            "For each colour they should be (pixel − 255 · mean) / (255 · std).",
        )


def _mirrored_and_cropped(pixels: np.ndarray) -> None:
    widths, heights = ex05_graph.crops(pixels)
    share, width, height = (widths < 0).mean(), np.abs(widths), np.abs(heights)
    area, aspect = width * height / (ex05_graph.WIDTH * ex05_graph.HEIGHT), width / height
    smallest, largest = area.min(), area.max()
    refuse(
        (abs(share - 0.5) > 0.1, f"{100 * share:.0f}% of the images are mirrored.",
         "Pass fn.random.coin_flip(), which draws once per image; a Python number is drawn only"
         " once."),
        (smallest > 0.97,
         "every image is whole: nothing is cropped, or random_area is in percent.",
         "Use image_random_crop; random_area=[0.05, 1.0] are fractions."),
        (abs(smallest - DALI_SMALLEST) < 0.006, f"none of {len(area)} crops has less than 8% of"
         " its image: that is DALI's default.", "The recipe's is random_area=[0.05, 1.0]."),
        (abs(smallest - SMALLEST - 0.005) > 0.015 or largest < 0.9,
         f"the crops cover {100 * smallest:.0f} to {100 * largest:.0f}% of their images.",
         "It should be 5 to 100%: random_area=[0.05, 1.0]."),
        (aspect.min() < 0.75 * 0.95 or aspect.max() > 1.05 / 0.75 or aspect.std() < 0.02,
         f"width over height of a crop is {aspect.min():.2f} to {aspect.max():.2f}.",
         "Pass random_aspect_ratio=[3 / 4, 4 / 3]."),
    )  # fmt: skip


# --- ex05.headroom --------------------------------------------------------------------------------

BATCH_IMAGES, TIMED_STEPS = 32, 10
FIRST_S, START_S = 0.7, 1e-5  # more for the first step, and to start one


class Machine:
    """A simulated loader and an asynchronous device, with their own clock."""

    def __init__(self, load_s: float, train_s: float) -> None:
        self.load_s, self.train_s = load_s, train_s
        self.now, self.done = 0.0, 0.0  # the time, and when the device will have done all
        self.loads = self.readings = 0
        self.trained: set[int] = set()  # batches

    def load(self) -> int:
        """Return a batch; the first takes longer."""
        self.now += self.load_s + FIRST_S * (self.loads == 0)
        self.loads += 1
        return self.loads

    def train(self, batch: int) -> None:
        """Start a step, which begins when the last one is done; the first takes longer."""
        if not isinstance(batch, int):
            wrong("train is called without a batch.", "Pass what load() returns.")
        self.now += START_S
        self.done = max(self.done, self.now) + self.train_s + FIRST_S * (not self.trained)
        self.trained.add(batch)

    def wait(self) -> None:
        self.now = max(self.now, self.done)

    def clock(self) -> float:
        self.readings += 1
        return self.now


MACHINES = ((0.020, 0.030), (0.050, 0.010), (0.025, 0.025))  # seconds of load and of train
Answer = Callable[..., dict[str, float]]


def arguments(new: Machine) -> tuple[Any, ...]:
    """Return the arguments of an answer, of a new machine."""
    return new.load, new.train, new.wait, new.clock, BATCH_IMAGES, TIMED_STEPS


def headroom(answer: Answer) -> str:
    for seconds in MACHINES:
        machine = Machine(*seconds)
        got = compare.call(answer, *arguments(machine))
        right = right_rates(*seconds)
        rows = [(m(*arguments(Machine(*seconds))), *text) for m, *text in HEADROOM_MISTAKES]
        rows += [  # the same, if only one of the rates has it
            ({name: value}, f"{name}: {said}", remedy)
            for found, said, remedy in rows
            for name, value in found.items()
            if not compare.same(value, right[name], 1e-3)
        ]
        load_ms, train_ms = (1000 * one for one in seconds)
        remedy = (
            f"Here, load takes {load_ms:g} ms and train {train_ms:g} ms; {TIMED_STEPS} batches of"
            f" {BATCH_IMAGES} images are timed."
        )
        if not machine.readings:
            wrong("the time is not taken from `clock`.", "Call clock() before and after the steps.")
        compare.predicted(got, right, rows, remedy, rel_tol=1e-3)
        if len(machine.trained) < TIMED_STEPS:
            wrong("the rates are right, but for `both` an old batch is trained on.",
                  "Train on what load() has just returned.")  # fmt: skip
    return f"{len(MACHINES)} machines: limited by the device, by the loader, and by neither."


def right_rates(load_s: float, train_s: float) -> dict[str, float]:
    """Return the right rates. In turn, only the first load or the last step is not hidden."""
    slower, faster = max(load_s, train_s), min(load_s, train_s)
    images = BATCH_IMAGES * TIMED_STEPS
    return {
        "loader": BATCH_IMAGES / load_s,
        "device": BATCH_IMAGES / train_s,
        "both": images / (slower * TIMED_STEPS + faster),
    }


def timed(
    load: Any, train: Any, wait: Any, clock: Any, images: int, steps: int, *,
    warm_up: bool = True, settle: bool = True, at_end: bool = True, each: bool = False,
    after_loading: bool = True,
) -> dict[str, float]:  # fmt: skip
    """Measure, as a base for mistakes; the check computes what is right."""
    batch = load()
    if warm_up:
        train(batch)
        if settle:
            wait()
    found = {}
    works = {"loader": load, "device": lambda: train(batch), "both": lambda: train(load())}
    for name, work in works.items():
        begin = clock()
        for _ in range(steps):
            work()
            if each:
                wait()
        if at_end and (after_loading or name != "loader"):
            wait()
        found[name] = images * steps / max(clock() - begin, 1e-9)
    return found


def scaled_rates(factor: float) -> Answer:
    """Return an answer whose rates are all wrong by a factor."""
    return lambda *given: {name: factor * rate for name, rate in timed(*given).items()}


def smaller(*given: Any) -> dict[str, float]:
    """Return the rates with `both` computed from the other two."""
    found = timed(*given)
    return found | {"both": min(found["loader"], found["device"])}


def in_turn(*given: Any) -> dict[str, float]:
    """Return the rates with `device` measured as `both` is."""
    found = timed(*given)
    return found | {"device": found["both"]}


HEADROOM_MISTAKES: tuple[compare.Mistake, ...] = (
    (smaller, "`both` is the smaller of the other two rates: loading is not timed, or a batch is"
     " trained on before the next is loaded.",
     "In each of the `steps`, first load, then train on what load() has returned."),
    (in_turn, "the device's time includes loading.",
     "For `device`, train on the batch of the warm-up again and again."),
    (scaled_rates(1 / BATCH_IMAGES), "these are batches per second.", "Multiply by `images`."),
    (lambda *given: {name: given[4] * given[5] / rate for name, rate in timed(*given).items()},
     "these are seconds.", "Divide images * steps by them."),
    (lambda *given: {name: given[4] / rate for name, rate in timed(*given).items()},
     "these are seconds per batch.", "Divide images by them."),
    (scaled_rates(1 / TIMED_STEPS), "only one batch is counted.",
     "All of the `steps` batches take this time: divide images * steps by the seconds."),
    (lambda *given: timed(*given, warm_up=False),
     "the first training step is timed: the device was not warmed up.",
     "Load a batch, train on it and wait, before you look at the clock."),
    (lambda *given: timed(*given, settle=False),
     "the loader's time includes the rest of the warm-up, which was still running.",
     "Call wait() after the warm-up, before you look at the clock."),
    (lambda *given: timed(*given, settle=False, after_loading=False),
     "the device's time includes the rest of the warm-up, which was still running.",
     "Call wait() after the warm-up, before you look at the clock."),
    (lambda *given: timed(*given, each=True),
     "the device waits for the loader and the loader for the device.",
     "Call wait() once, after all steps; if you wait after each, nothing overlaps."),
    (lambda *given: timed(*given, at_end=False),
     "the clock is read before the device is done: only *starting* the steps is timed.",
     "Call wait() before you read the clock at the end."),
)  # fmt: skip


# --- ex05.exact -----------------------------------------------------------------------------------

VALIDATIONS = (  # images, ranks, batch
    (27, 2, 8), (20, 1, 8), (32, 2, 8), (33, 4, 4), (17, 2, 8), (9, 4, 2), (7, 3, 3),
)  # fmt: skip


def exact(answer: Callable[[int, int, int, int], Sequence[int]]) -> str:
    cases = [(n, rank, size, batch) for n, size, batch in VALIDATIONS for rank in range(size)]
    compare.examine(answer, cases, valid_rows, EXACT_MISTAKES, one_case=True)
    return f"{len(VALIDATIONS)} validations, sharded as DALI does: every image once."


def own(images: int, rank: int, size: int) -> int:
    """Return how many images a rank has: DALI's reader begins at rank · images // size."""
    return len(range(images * rank // size, images * (rank + 1) // size))


def most(images: int, size: int) -> int:
    """Return how many images the rank with the most has."""
    return max(own(images, rank, size) for rank in range(size))


def valid_rows(
    images: int, rank: int, size: int, batch: int, mine: int | None = None, steps: int | None = None
) -> list[int]:
    """Return how many rows of each of a rank's batches count.

    A mistake has a different number of the rank's images, `mine`, or of its batches, `steps`.
    """
    mine = own(images, rank, size) if mine is None else mine
    steps = math.ceil(most(images, size) / batch) if steps is None else steps
    counts: np.ndarray = (np.arange(steps * batch) < mine).reshape(steps, batch).sum(1)
    return [int(count) for count in counts]


SHARE = "A rank has those from rank · images // size to (rank + 1) · images // size: count them."
EXACT_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda n, rank, size, batch: valid_rows(n, rank, size, batch, mine=n * batch),
     "every row counts.",
     "Leave out the padding: its images have already been counted."),
    (lambda n, rank, size, batch: valid_rows(n, rank, size, batch, steps=most(n, size) // batch),
     "the images at the end are left out.",
     "Round up: an incomplete batch is padded, and its real rows count."),
    (lambda n, rank, size, batch: valid_rows(
        n, rank, size, batch, steps=math.ceil(own(n, rank, size) / batch)),
     "the ranks make different numbers of batches.",
     "All ranks make as many as the one with the most images; a batch of padding counts 0."),
    (lambda n, rank, size, batch: valid_rows(n, rank, size, batch, steps=math.ceil(n / batch)),
     "a rank makes as many batches as one that has all images.",
     "Divide the images among the ranks first."),
    (lambda n, rank, size, batch: valid_rows(n, rank, size, batch, mine=n // size),
     "images are left out.", SHARE),
    (lambda n, rank, size, batch: valid_rows(n, rank, size, batch, mine=-(-n // size)),
     "images are counted twice.", SHARE),
    (lambda n, rank, size, batch: valid_rows(
        n, rank, size, batch, mine=n // size + (rank < n % size)),
     "the first ranks get the remaining images, but DALI spreads them over all ranks.", SHARE),
)  # fmt: skip
