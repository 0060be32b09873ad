"""Checks of ex01: RecordIO, the cost of random order, and a split that leaks.

Bytes are compared with ones built by a few lines that do not use the library.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import random
import struct
from collections.abc import Callable
from typing import Any

from workshop.checks import compare, engine
from workshop.checks.compare import wrong

# --- ex01.frame -----------------------------------------------------------------------------------

MAGIC = bytes.fromhex("0a23d7ce")
PAYLOADS = (
    b"",
    b"\x01\x02\x03\x04",
    b"abcde",
    bytes(range(256)) * 300,  # its length does not fit into 16 bits
    MAGIC + b"tail",
    b"abcd" + MAGIC + b"efg",
    b"abcd" + MAGIC,
    b"abcd" + MAGIC + MAGIC + b"x",
    MAGIC,
    MAGIC + b"12345678" + MAGIC + b"12" * 6 + MAGIC + b"z",
    b"ab" + MAGIC + b"cd",  # at offset 2 it stays
    b"ab" + MAGIC + b"cd" + MAGIC + b"ef",  # the first magic stays, the second does not
)


def frame(answer: Callable[[bytes], bytes]) -> str:
    cases = [(payload,) for payload in PAYLOADS]
    compare.examine(answer, cases, framed, FRAME_MISTAKES, one_case=True, why=parts_of)
    return f"{len(PAYLOADS)} payloads, some with the magic number inside."


def framed(payload: bytes, texts: list[bytes] | None = None) -> bytes:
    """Return the record of a payload, cut into `texts` or, by default, as it should be."""
    texts = texts or pieces(payload)
    return b"".join(map(part, texts, flags(len(texts))))


def part(text: bytes, flag: int = 0) -> bytes:
    return MAGIC + struct.pack("<I", flag << 29 | len(text)) + text + bytes(-len(text) % 4)


def flags(count: int) -> list[int]:
    return [0] if count == 1 else [1] + [2] * (count - 2) + [3]


def pieces(payload: bytes, end: int = 3) -> list[bytes]:
    """Return the texts between the magics at offsets 0, 4, 8 and so on."""
    cuts = [at for at in range(0, len(payload) - end, 4) if payload[at : at + 4] == MAGIC]
    starts = [0, *(at + 4 for at in cuts)]
    return [payload[a:b] for a, b in zip(starts, [*cuts, len(payload)], strict=True)]


def parts_of(payload: bytes) -> str:
    """Return in words of what the record of a payload consists."""
    lengths = [len(text) for text in pieces(payload)]
    said = [f"length {n}, cflag {flag}, {-n % 4} zeros"
            for n, flag in zip(lengths, flags(len(lengths)), strict=True)]  # fmt: skip
    return f"Its parts, with little-endian numbers: {'; '.join(said)}."


FRAME_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda p: framed(p, pieces(p, 4)),
     "a magic number in the last 4 bytes of the payload is not found.",
     "Include the offset len(payload) - 4: range(0, len(payload) - 3, 4)."),
    (part, "a payload with the magic number inside is written unchanged: a reader that looks for"
     " the next record finds one inside it.", "Cut the payload there, and omit those 4 bytes."),
    (lambda p: framed(p, p.split(MAGIC)),
     "a magic number at offset 2 of the payload was cut out, but readers do not look there.",
     "Look for it at offsets 0, 4, 8 … only."),
)  # fmt: skip


# --- ex01.order -----------------------------------------------------------------------------------

RECORDS, TURNS, RIGHT = 200, 5, 3.9
NEXT, JUMP, COLD = 0.001, 0.004, 0.01  # seconds for the next record, another, the first time
SLOW = {20: 5.0, 9 * RECORDS + 20: 5.0}  # readings in order, at random: more seconds
Slowdown = Callable[[Callable[[int], Any], int, Callable[[], float]], float]


class Disk(compare.Clock):
    """A simulated disk with its own clock, and what was read from it.

    Each turn after `warm_up` passes over the records is slower than the one before.
    """

    def __init__(self, warm_up: int = 0) -> None:
        self.reads, self.warm_up = [-1], warm_up * RECORDS

    def __repr__(self) -> str:
        return "a disk that gets slower from turn to turn, with two readings that take 5 seconds"

    def read(self, i: int) -> bytes:
        """Return the record, and let the clock advance."""
        number = compare.whole(i, "a record's number")
        if not 0 <= number < RECORDS:
            wrong(f"you read record {number}, and there are records 0 to {RECORDS - 1}.",
                  "Read range(records).")  # fmt: skip
        done = max(len(self.reads) - 1 - self.warm_up, 0)
        self.now += (NEXT if number == self.reads[-1] + 1 else JUMP) * (1 + done // (2 * RECORDS))
        self.now += COLD * (number not in self.reads) + SLOW.get(done, 0.0)
        self.reads.append(number)
        return bytes(8)


def order(answer: Slowdown) -> str:
    """Check the ratio of a disk, and that each turn reads every record once in each order."""

    @functools.wraps(answer)
    def measured(disk: Disk) -> Any:
        return disk.measure(answer, disk.read, RECORDS, disk.clock)

    why = (
        "Divide the seconds at random by the seconds in order of each turn, and take the median of"
        " these ratios: a mean and a sum contain the slow readings, and two medians may come from"
        " different turns."
    )
    first = Disk()
    compare.call(answer, first.read, RECORDS, first.clock)
    warm_up = _in_turns(first.reads[1:])
    inverse = (lambda disk: 1 / RIGHT, "this is the time in order divided by the time at random.",
               "Divide the other way round.")  # fmt: skip
    disks = [(Disk(warm_up),)]
    compare.examine(
        measured, disks, lambda disk: RIGHT, [inverse], why=lambda disk: why, rel_tol=0.03
    )
    return "a simulated disk with two slow readings."


def _in_turns(reads: list[int]) -> int:
    """Return the number of passes before the turns, which are a warm-up.

    Raise Wrong unless the others are turns: all records in order, and at random.
    """
    passes = [reads[at : at + RECORDS] for at in range(0, len(reads), RECORDS)]
    mixed = [tuple(one) for one in passes if one != sorted(one)]
    at_random = [one != sorted(one) for one in passes][-2 * len(mixed) :]
    cut_off = any(sorted(one) != list(range(RECORDS)) for one in passes)
    compare.refuse(
        (not reads, "nothing is read.", "Call read(i) for every record."),
        (cut_off and len({reads.count(number) for number in range(RECORDS)}) == 1,
         "the two orders are mixed, or a record is read twice in a row.",
         "In each turn, read all records in order, then all at random: a jump takes time."),
        (cut_off, "some records are read more often than others.",
         "Read each record once in each order: range(records), and a random.sample of it."),
        (any(map(operator.eq, at_random[::2], at_random[1::2])),
         f"{len(mixed)} of {len(passes)} passes over the records are in a random order, and they do"
         " not take turns with the others.", "In each turn, read in order, then at random."),
        (len(set(mixed)) < min(len(mixed), 2), "the random order is the same in every turn.",
         "Draw a new one in each turn."),
        (len(mixed) < TURNS, f"you take {len(mixed)} turn{'s' * (len(mixed) > 1)}.",
         f"Take {TURNS}: the median of {TURNS} ratios ignores two slow ones."),
    )  # fmt: skip
    return len(passes) - 2 * len(mixed)


# --- ex01.leak ------------------------------------------------------------------------------------

SEEDS, MOST_LUCKY = 100, 5  # random splits of the photos, and how many a test may accept
Halves = tuple[list[str], list[str]]
Split = Callable[[list[str]], Halves]


def shown(name: str) -> str:
    """Return the object on a photo."""
    return name.split("_")[0]


def by_object(names: list[str], share: float = 0.25) -> Halves:
    """Return a right split: whole objects go to one side."""
    objects = sorted({*map(shown, names)})
    random.Random(5).shuffle(objects)
    chosen = objects[: max(1, int(len(objects) * share))]
    halves: Halves = ([], [])
    for name in names:
        halves[shown(name) in chosen].append(name)
    return halves


def by_image(names: list[str], seed: int = 3) -> Halves:
    mixed = random.Random(seed).sample(names, len(names))
    cut = len(mixed) * (2 + seed % 2) // 4  # a half or three quarters
    return mixed[:cut], mixed[cut:]


def by_order(names: list[str]) -> Halves:
    """Cut the sorted photos at 80%, or a little before, where the cut divides an object."""
    names = sorted(names)
    cut = len(names) * 4 // 5
    divides = (at for at in range(cut, 0, -1) if shown(names[at - 1]) == shown(names[at]))
    cut = next(divides, cut)
    return names[:cut], names[cut:]


def damaged(change: Callable[[list[str], list[str]], Halves]) -> Split:
    """Return a right split whose halves are then changed."""
    return lambda names: change(*by_object(names))


LEAK_MISTAKES: tuple[compare.Mistake, ...] = (  # what a test accepts that misses this split
    (by_image, "photos of one object are in both lists, as after a random split",
     "Compare the objects of the two lists, with names of many objects with several photos each."),
    (by_order, "the sorted photos are cut at 80%, as if that never divided an object",
     "Compare the objects of the two lists, with names of many objects with several photos each."),
    (damaged(lambda train, val: (train[:-1], val)), "a photo is in neither list",
     "Assert that the lists together contain every photo."),
    (damaged(lambda train, val: (train[:-1] + train[:1], val)),
     "one photo is missing and another one appears twice",
     "Compare the names in both lists with all names: counting is not enough."),
    (lambda names: (list(names), []), "the validation list is empty",
     "Assert that each list has photos."),
    (lambda names: ([], list(names)), "the training list is empty",
     "Assert that each list has photos."),
)  # fmt: skip


def leak(answer: Callable[[Split], Any]) -> str:
    """Check that a test accepts the right splits and refuses the LEAK_MISTAKES."""
    for good in (by_object, lambda names: by_object(names[::-1], 0.4)):  # order, sizes are free
        try:
            answer(good)
        except AssertionError as error:
            why = str(error).partition("\n")[0] or engine.own_frame(error, answer).rstrip(".")
            wrong(f"your test rejects a correct split{f' ({why})' if why else ''}.",
                  "Make up many objects, and assert nothing about order or sizes.")  # fmt: skip
    lucky = 0
    for seed in range(SEEDS):
        with contextlib.suppress(Exception):
            answer(functools.partial(by_image, seed=seed))
            lucky += 1
    if MOST_LUCKY < lucky < SEEDS:
        wrong(f"your test accepts {lucky} of {SEEDS} random splits of the photos: the photos of"
              " each object were on one side by chance.",
              "Make up more objects, with several photos each.")  # fmt: skip
    for bad, what, remedy in LEAK_MISTAKES:
        raised = "no AssertionError"
        try:
            answer(bad)
        except AssertionError:
            continue
        except Exception as error:
            raised = f"{type(error).__name__}, not AssertionError,"
            remedy = f"{engine.own_frame(error, answer)} {remedy}".strip()
        wrong(f"your test raises {raised} for a split in which {what}.", remedy)
    return f"it accepts 2 correct splits and rejects {len(LEAK_MISTAKES)} wrong ones."
