"""Checks of ex04: a hurried script, the order of the stages, a tf.data pipeline, recipe 2."""

from __future__ import annotations

import ast
import inspect
import itertools
import tempfile
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from workshop import paths
from workshop.checks import compare, recipes
from workshop.checks.compare import refuse, wrong

# --- ex04.hunt ------------------------------------------------------------------------------------

MISTAKES = {  # a text in one line of the script only: what is wrong with this line
    "gpus[hvd.rank()]": "on a second machine rank 8 has no GPU 8: take hvd.local_rank()",
    "Softmax()": "the model's softmax and the loss's (from_logits=True) are one too many",
    "LR * hvd.size()": "the full rate from the first step on: the warm-up is missing",
    "from_seed(SEED)": "the same seed on every rank: all draw the same flips",
    "np.random.uniform": "drawn once, when the graph is built: one angle for all images",
    "// BATCH": "every rank takes all the steps of one process: divide by hvd.size() too",
    "chosen = order[": "no shard: every rank reads the same images",
    "checkpoint.save": "all ranks write the same file at once: only rank 0 should",
}
OTHER_HALF = {"from_logits=True": "Softmax()"}  # one mistake in two lines: either is accepted
RIGHT = {  # lines that look suspicious and are right
    "default_rng([SEED, epoch])": "all ranks need the same order, to take different parts of it",
    "hvd.broadcast": "all ranks call it, and all get rank 0's weights",
    "hvd.allreduce": "the average over all ranks is the gradient of the larger batch",
    "if hvd.rank() == 0": "it is enough if one rank prints",
    "set_memory_growth": "it keeps TensorFlow from taking all GPU memory at once",
    "optimizer.build": "it makes the optimizer's variables, so that they can be broadcast",
}


def script() -> list[str]:
    path = paths.need_checkout() / "exercises" / "hunt" / "train_parallel.py"
    return path.read_text(encoding="utf-8").splitlines()


def listing() -> str:
    return "\n".join(f"{number:3}  {line}".rstrip() for number, line in enumerate(script(), 1))


def line_of(text: str) -> int:
    """Return the number of the only line of the script that has `text`."""
    (found,) = [number for number, line in enumerate(script(), 1) if text in line]
    return found


def hunt(answer: Iterable[int]) -> str:
    """Check line numbers; each mistake that is found counts, and each wrong line costs one."""
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        wrong(f"the answer is {compare.kind_of(answer, 'a set')}.", "Write a set: {3, 14, 15}.")
    named = {compare.whole(number, "one of the line numbers") for number in answer}
    last = len(script())
    refuse(*((not 1 <= number <= last, f"there is no line {number}.",
              f"The script has the lines 1 to {last}.") for number in sorted(named)))  # fmt: skip
    for half, mistake in OTHER_HALF.items():
        named = {line_of(mistake) if number == line_of(half) else number for number in named}
    bugs = {line_of(text): what for text, what in MISTAKES.items()}
    fine = {line_of(text): f": {why}" for text, why in RIGHT.items()}
    found, mistaken = named & set(bugs), named - set(bugs)
    share = max(0, len(found) - len(mistaken)) / len(bugs)  # so that guessing earns nothing
    for number in sorted(mistaken):
        wrong(f"line {number} is right{fine.get(number, '')}.",
              f"Leave it out: {len(found)} of your {len(named)} lines are mistakes.", share
              )  # fmt: skip
    if left := sorted(set(bugs) - named):
        third = ("first", "middle", "last")[min(2, 3 * left[0] // len(script()))]
        wrong(f"{len(found)} of {len(bugs)} mistakes are found, and you listed no correct line.",
              f"Look for a missing one in the {third} third of the script.", share)  # fmt: skip
    return " ".join(f"Line {n}: {what}." for n, what in sorted(bugs.items()))


# --- ex04.order -----------------------------------------------------------------------------------

STAGES = ("list files", "shard", "interleave", "shuffle", "map", "batch", "prefetch")
PAIRS = (  # the first must come before the second; what happens if it does not, and the remedy
    ("list files", "shard", "there is nothing to shard before the files are listed.",
     "List them first, in the same order on every rank."),
    ("list files", "interleave", "files are opened before they are listed.", "List them first."),
    ("shard", "interleave", "every rank opens every file and throws away the other ranks' records.",
     "Shard the file names before any file is opened."),
    ("shard", "shuffle", "each rank shuffles differently before sharding: some images are read"
     " twice, others never.", "Shard before you shuffle."),
    ("interleave", "shuffle", "only the file names are shuffled: the records of each file stay in"
     " their order.", "Shuffle the records, after interleave."),
    ("interleave", "map", "map would decode file names.", "Open the files first."),
    ("shuffle", "batch", "whole batches are shuffled: the images in each stay together, and the"
     " buffer holds 1,000 batches.", "Shuffle the records, before they are decoded."),
    ("shuffle", "map", "the shuffle buffer holds decoded images: 1,000 of them at 224 pixels take "
     "150 MB, as float32 600 MB; JPEGs 100 MB.", "Shuffle the records before they are decoded."),
    ("map", "batch", "map decodes one JPEG, and would get a batch of records.",
     "Decode and crop each image first."),
    ("batch", "prefetch", "single images are prefetched, and the batch is assembled while the step"
     " waits for it.", "Prefetch what the step takes: batches."),
)  # fmt: skip


def order(answer: Iterable[str]) -> str:
    if not isinstance(answer, list | tuple | np.ndarray):
        wrong(f"the answer is {compare.kind_of(answer, 'a list')}: it has no order.",
              "Write a list of seven names.")  # fmt: skip
    names = [str(stage) for stage in answer]
    missing = [stage for stage in STAGES if stage not in names]
    more = [stage for stage in names if stage not in STAGES or names.count(stage) > 1]
    refuse(
        (missing, f"{(*missing, '')[0]!r} is missing.", "Use each of the seven stages once."),
        (more, f"{(*more, '')[0]!r} is there twice, or not a stage.",
         "Use each of the seven stages once, with its name from the list."),
    )  # fmt: skip
    refuse(*((names.index(a) > names.index(b), why, remedy) for a, b, why, remedy in PAIRS))
    return "sharded before any file is opened, decoded late, prefetched in whole batches."


# --- ex04.feed ------------------------------------------------------------------------------------

SHAPE = HEIGHT, WIDTH, _ = 4, 6, 3  # of an image


def images_of(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images uint8 (count, *SHAPE) whose pixels are their number, and labels int32."""
    numbers = np.arange(count)
    images = np.broadcast_to(numbers[:, None, None, None], (count, *SHAPE)).astype(np.uint8)
    return images.copy(), (numbers * 7 % 5).astype(np.int32)


def feed(answer: Callable[..., Any]) -> str:
    """Check two epochs of the dataset on 1 and 2 ranks."""
    for count, size, batch in ((240, 2, 4), (11, 2, 3), (9, 1, 2)):
        images, labels = images_of(count)
        made = [compare.call(answer, images, labels, rank, size, batch, 5) for rank in range(size)]
        epochs = [[_read(dataset, labels, batch) for dataset in made] for _ in range(2)]
        case = f"{count} images, {size} ranks, batch {batch}"
        for epoch in epochs:
            _right_steps(epoch, count // (size * batch), case, "Shard the images, take count //"
                         " (size · batch) batches on every rank, and drop the rest.")  # fmt: skip
            _none_twice(epoch, case)
        if count == 240:
            _shuffled(epochs, count)
    return (
        "two epochs on 1 and 2 ranks: equal steps, no image twice, labels with images."
        + what_is_slow(answer, made[0])
    )


def what_is_slow(answer: Callable[..., Any], dataset: Any) -> str:
    """Return what makes a right pipeline, and the `dataset` it returned, slow or large.

    These are sentences for the end of a text; an answer whose source is unknown gets none.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(answer)))
    except (OSError, TypeError, SyntaxError):
        return ""
    places: dict[str, list[tuple[int, int]]] = {
        name: [] for name in ("shard", "map", "shuffle", "batch", "prefetch")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in places:
            places[node.attr].append((node.end_lineno or 0, node.end_col_offset or 0))
    found = ""
    fetches, batches = places["prefetch"], places["batch"]
    if "Prefetch" not in type(dataset).__name__ and (
        not fetches or max(fetches) < min(batches, default=(0, 0))
    ):
        found += " Slow: without `prefetch` after `batch`, each step waits for its batch."
    shards, maps, shuffles = places["shard"], places["map"], places["shuffle"]
    if len(maps) == len(shards) == 1 and maps < shards:
        found += " Slow: `map` comes before `shard`, so each rank also maps the images"
        found += " of all other ranks."
    if len(maps) == 1 and maps[0] < max(shuffles, default=(0, 0)):
        found += " Large: `map` comes before `shuffle`, so the buffer holds what `map` makes."
    return found


def _read(dataset: Any, labels: np.ndarray, batch: int) -> np.ndarray:
    """Return the numbers of the images (steps, batch) in one pass over a rank's dataset.

    Raises Wrong unless all batches have the right form, pixels and labels.
    """
    if not hasattr(dataset, "as_numpy_iterator"):
        wrong(f"the answer returns a {type(dataset).__name__}.", "Return a tf.data.Dataset.")
    batches = list(itertools.islice(dataset.as_numpy_iterator(), len(labels) + 1))
    pairs = all(isinstance(batch, tuple) and len(batch) == 2 for batch in batches[:1])
    refuse(
        (len(batches) > len(labels), "the dataset never ends.",
         "Remove repeat(): one pass is one epoch."),
        (not pairs, "an element is not a pair.", "Make each element (images, labels)."),
    )  # fmt: skip
    for pixels, given in batches:
        _right_form(pixels, given, batch)
        _right_pixels(pixels, len(labels))
    numbers = np.array([np.rint(255 * pixels[:, 0, 0, 0]) for pixels, _ in batches], int)
    numbers = numbers.reshape(-1, batch)
    off = np.array([given for _, given in batches], int).reshape(-1, batch) - labels[numbers]
    refuse(
        (off.any() and np.ptp(off) == 0, "the labels are off by one.",
         "Pass them on as they are: the records count classes from 0, and so does the loss."),
        (off.any(), "images and labels are out of step.", "Shuffle them as pairs."),
    )  # fmt: skip
    return numbers


def _right_form(pixels: np.ndarray, labels: Any, batch: int) -> None:
    labels = np.asarray(labels)
    refuse(
        (pixels.shape == (batch, WIDTH, HEIGHT, 3), f"images of {HEIGHT} rows and {WIDTH} columns"
         f" come as {pixels.shape[1:]}: height and width are swapped.",
         "Reshape to (height, width, 3): the pixels of a row follow each other."),
        (pixels.shape != (batch, *SHAPE), f"a batch of images is {pixels.shape}.",
         f"It should be {(batch, *SHAPE)}: batch(batch, drop_remainder=True)."),
        (labels.shape != (batch,) or labels.dtype.kind not in "iu",
         f"the labels of a batch are {labels.dtype}, {labels.shape}.",
         f"They should be whole numbers, ({batch},): tf.cast(label, tf.int32)."),
    )  # fmt: skip


def _right_pixels(pixels: np.ndarray, count: int) -> None:
    remedy = "The network takes float32 from 0 to 1: map with tf.cast(image, tf.float32) / 255."
    if pixels.dtype != np.float32 or pixels.max() > 1:
        wrong(f"the images are {pixels.dtype}, up to {pixels.max():g}.", remedy)
    levels = 255 * compare.numbers(pixels, "the images")
    off = np.abs(levels - np.rint(levels)).max() > 0.01
    if off or levels.min() < 0 or levels.max() >= count:
        wrong("the images are not their bytes divided by 255.", remedy)


def _right_steps(epoch: list[np.ndarray], steps: int, case: str, remedy: str) -> None:
    taken = [len(part) for part in epoch]
    refuse(
        (len({*taken}) > 1, f"the ranks return {', '.join(map(str, taken))} batches ({case}): the"
         " rank with more waits for the others' gradients forever.", remedy),
        (taken[0] != steps, f"a rank returns {taken[0]} batches instead of {steps} ({case}).",
         remedy),
    )  # fmt: skip


def _none_twice(
    epoch: list[np.ndarray], case: str, remedy: str = "Use shard(size, rank) before you shuffle."
) -> None:
    numbers = np.concatenate(epoch)
    if len(np.unique(numbers)) < numbers.size:
        wrong(f"an image is read twice in an epoch ({case}).", remedy)


BUFFER = "Make the buffer as large as memory allows: files are sorted by class."


def _ahead(order: list[int]) -> int:
    """Return how many places an image moves forward at most; with a buffer of k images, k - 1."""
    place = {number: i for i, number in enumerate(sorted(order))}
    return max(place[number] - i for i, number in enumerate(order))


def _shuffled(epochs: list[list[np.ndarray]], length: int) -> None:
    """Raise Wrong unless images come in a new order in each epoch, and from all over their files.

    Each file has `length` images.
    """
    for parts in zip(*epochs, strict=True):  # of one rank
        again = set.intersection(*({(*sorted(batch),) for batch in part} for part in parts))
        order, second = (part.ravel().tolist() for part in parts)
        buffer = 1 + _ahead(order)
        files = {number // length for number in order}
        within = max(_ahead([n for n in order if n // length == file]) for file in files)
        refuse(
            (order == sorted(order), "the images come in the order of the files.",
             "Shuffle them, with the seed."),
            (not within, "the images of each file stay in their order.",
             "Shuffle the records too, after interleave."),
            (order == second, "both epochs have the same order.",
             "Shuffle the images: shuffle() draws a new order each time, unless"
             " reshuffle_each_iteration is False."),
            (2 * len(again) > len(parts[0]), "whole batches are shuffled: the same images are"
             " together in each epoch.", "Shuffle before `batch`."),
            (len(files) > 1 and within < length / 2, f"no image moves forward by more than {within}"
             f" among the {length} of its file: the shuffle buffer is small.", BUFFER),
            (buffer < len(order) / 2, f"no image moves forward by more than"
             f" {buffer - 1}: shuffle chooses among {buffer} of {len(order)}.", BUFFER),
        )  # fmt: skip


# --- ex04.recipe ----------------------------------------------------------------------------------

SHARD_FILES = (
    "Use shard(size, rank) before you shuffle, on files in the same order on all ranks:"
    " list_files shuffles them unless you pass shuffle=False."
)
CASES = (  # images, shards, ranks, batch, steps: in the second, rank 0 has 19 full batches
    (240, 6, 2, 4, 30), (96, 5, 2, 3, 12), (22, 3, 1, 4, 4),
)  # fmt: skip


def recipe(answer: Callable[..., Any]) -> str:
    """Check two epochs of records that are read on several ranks."""
    for count, shards, size, batch, steps in CASES:
        images, labels = images_of(count)
        planes = images.transpose(0, 3, 1, 2)
        with tempfile.TemporaryDirectory(prefix="records-") as folder:
            files = recipes.write(Path(folder) / "records", planes, labels, shards)
            made = [
                compare.call(answer, list(files), rank, size, batch, steps, 5)
                for rank in range(size)
            ]
            epochs = [[_read(dataset, labels, batch) for dataset in made] for _ in range(2)]
        split = [len(part) for part in np.array_split(np.arange(count), shards)]
        for epoch in epochs:
            case = f"{count} images in {shards} shards, {size} ranks, batch {batch}"
            _none_twice(epoch, case, SHARD_FILES)
            read = [{*np.searchsorted(np.cumsum(split), part.ravel(), "right")} for part in epoch]
            refuse(
                (any(a & b for a, b in itertools.combinations(read, 2)),
                 "every rank opens every file and throws away the records of the others.",
                 "Shard the file names before any file is opened: shard(size, rank)."),
            )  # fmt: skip
            _right_steps(epoch, steps, case, "Read every shard of the rank to its end (interleave"
                         " opens them all), and then take(steps), after batch.")  # fmt: skip
        if count == CASES[0][0]:
            _shuffled(epochs, split[0])
    size, _, steps = CASES[0][2:]
    said = f"{steps} batches on each of {size} ranks, none of whose images is read twice."
    return said + what_is_slow(answer, made[0])
