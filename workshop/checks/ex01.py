"""Checks of ex01: RecordIO, the cost of random order, an index, and a split that leaks.

Bytes are compared with ones built by a few lines that do not use the library.
"""

from __future__ import annotations

import functools
import math
import random
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workshop.checks import compare
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
    try:
        compare.examine(answer, cases, framed, FRAME_MISTAKES, one_case=True)
    except compare.Wrong:
        _flags(answer)
        raise
    return f"{len(PAYLOADS)} payloads, some with the magic number inside."


def framed(payload: bytes, texts: list[bytes] | None = None) -> bytes:
    """Return the record of a payload, cut into `texts` or, by default, as it should be."""
    texts = texts or pieces(payload)
    flags = [0] if len(texts) == 1 else [1] + [2] * (len(texts) - 2) + [3]
    return b"".join(part(text, flag) for text, flag in zip(texts, flags, strict=True))


def _flags(answer: Callable[[bytes], bytes]) -> None:
    """Raise Wrong if the first wrong record is wrong only in the `cflag` of a part."""
    for payload in PAYLOADS:
        got = compare.like(compare.call(answer, payload), b"", "the result")
        right, texts = framed(payload), pieces(payload)
        if got == right:
            continue
        ends = np.cumsum([len(part(text)) for text in texts])
        places = [0, *ends[:-1]] + np.array(7)  # of the bytes that have a cflag in their top bits
        if len(got) != len(right):
            return
        flags = [(got[at] >> 5, right[at] >> 5) for at in places]
        number = next((i for i, (flag, asked) in enumerate(flags) if flag != asked), None)
        same = np.frombuffer(got, np.uint8) == np.frombuffer(right, np.uint8)
        if number is None or not np.delete(same, places).all():
            return
        flag, asked = flags[number]
        wrong(
            f"part {number + 1} of {len(texts)} has cflag {flag}, not {asked}.",
            "A single part has 0. Of several, the first has 1, the last 3, and the others 2.",
        )


def part(text: bytes, flag: int = 0, more: int = 0, pad: int = -1) -> bytes:
    """Return one part; `more` is added to its length, and `pad` zeros replace its padding."""
    head = struct.pack("<I", flag << 29 | (len(text) + more))
    return MAGIC + head + text + bytes(pad if pad >= 0 else -len(text) % 4)


def pieces(payload: bytes) -> list[bytes]:
    """Return the texts between the magics at offsets 0, 4, 8 and so on."""
    cuts = [at for at in range(0, len(payload) - 3, 4) if payload[at : at + 4] == MAGIC]
    starts = [0, *(at + 4 for at in cuts)]
    return [payload[a:b] for a, b in zip(starts, [*cuts, len(payload)], strict=True)]


FRAME_MISTAKES: tuple[compare.Mistake, ...] = (
    (part, "a payload with the magic number inside is written unchanged: a reader that looks for"
     " the next record finds one inside it.", "Cut the payload there, and omit those 4 bytes."),
    (lambda p: framed(p, p.split(MAGIC)),
     "a magic number at offset 2 of the payload was cut out, but readers do not look there.",
     "Look for it at offsets 0, 4, 8 … only."),
    (lambda p: MAGIC + struct.pack(">I", len(p)) + part(p)[8:], "the length is big-endian.",
     "All numbers are little-endian: use `<I`."),
    (lambda p: part(p, more=-len(p) % 4), "the length counts the padding.",
     "Write the length of the payload alone; the reader computes the padding."),
    (lambda p: part(p, pad=0), "the padding after the payload is missing.",
     "Pad with zeros to a multiple of 4: bytes(-len(payload) % 4)."),
    (lambda p: part(p, pad=4 - len(p) % 4),
     "a payload that needs no padding is followed by four zeros.",
     "Write -n % 4: 4 - n % 4 is 4 if n % 4 is 0."),
)  # fmt: skip


# --- ex01.order -----------------------------------------------------------------------------------

RECORDS, TURNS = 200, 5
NEXT, COLD = 0.001, 0.01  # seconds to read the next record, and any record for the first time


class Disk:
    """A simulated disk with its own clock, and what was read from it.

    A record that does not follow the last one takes `jump` seconds instead of NEXT. The reading
    with a number in `slow` takes so many seconds more, and from the reading `throttled` on,
    everything takes three times as long.
    """

    def __init__(
        self, jump: float, slow: dict[int, float] | None = None, throttled: int = sys.maxsize
    ) -> None:
        self.jump, self.slow, self.throttled = jump, slow or {}, throttled
        self.now, self.reads, self.asked = 0.0, [-1], 0

    def read(self, i: int) -> bytes:
        """Return the record, and let the clock advance."""
        number = compare.whole(i, "a record's number")
        if not 0 <= number < RECORDS:
            wrong(f"you read record {number}, and there are records 0 to {RECORDS - 1}.",
                  "Read range(records).")  # fmt: skip
        took = NEXT if number == self.reads[-1] + 1 else self.jump
        took += COLD * (number not in self.reads) + self.slow.get(len(self.reads), 0.0)
        self.now += took * (3 if len(self.reads) >= self.throttled else 1)
        self.reads.append(number)
        return bytes(8)

    def arguments(self) -> tuple[Callable[[int], bytes], int, Callable[[], float]]:
        """Return those of an answer: a reader, the number of records, and a clock."""
        return self.read, RECORDS, self.clock

    def clock(self) -> float:
        self.asked += 1
        return self.now


DISKS: tuple[tuple[dict[str, Any], float, str], ...] = (  # its arguments, the right ratio, its name
    ({"jump": 0.004}, 3.9, "a disk"),
    ({"jump": 0.001}, 1.0, "a disk on which a jump costs nothing"),
    ({"jump": 0.004, "slow": {2 * RECORDS + 20: 5.0}}, 3.9,  # once, in the second turn
     "a disk with one reading that takes 5 seconds"),
    ({"jump": 0.004, "throttled": 5 * RECORDS}, 3.9,
     "a disk that becomes three times as slow half-way through"),
)  # fmt: skip
Slowdown = Callable[[Callable[[int], Any], int, Callable[[], float]], float]


def order(answer: Slowdown) -> str:
    """Check the ratios of DISKS, and that each turn reads every record once in each order."""
    for given, right, name in DISKS:
        disk = Disk(**given)
        got = compare.number(compare.call(answer, *disk.arguments()), "the result")
        _in_turns(disk.reads[1:])
        compare.refuse((not disk.asked, "the time is not taken from `clock`.",
                        "Call clock() before and after each order."))  # fmt: skip
        if math.isclose(got, right, rel_tol=0.03):
            continue
        rows = [(wrongly(*Disk(**given).arguments()), *text) for wrongly, *text in ORDER_MISTAKES]
        compare.known(got, rows, lambda x, y: math.isclose(x, y, rel_tol=0.03))
        wrong(f"on {name} the ratio is {got:.3g}.", f"There, it should be about {right:g}.")
    return f"{len(DISKS)} simulated disks, one with a slow reading and one that becomes slower."


def _in_turns(reads: list[int]) -> None:
    """Raise Wrong unless the readings are passes over all records, and some of them in order."""
    passes = [reads[at : at + RECORDS] for at in range(0, len(reads), RECORDS)]
    ordered = [one for one in passes if one == sorted(one)]
    mixed = [tuple(one) for one in passes if one != sorted(one)]
    compare.refuse(
        (not reads, "nothing is read.", "Call read(i) for every record."),
        (any(sorted(one) != list(range(RECORDS)) for one in passes),
         "some records are read more often than others.",
         "Read each record once in each order: range(records), and a random.sample of it."),
        (not mixed, "all records are always read in order.", "Shuffle the second order."),
        (not ordered, "the records are never read in order.", "First read range(records)."),
        (len(mixed) > 1 and len(set(mixed)) == 1, "the random order is the same in every turn.",
         "Draw a new one in each turn."),
        (1 < len(mixed) < TURNS, f"you take {len(mixed)} turns.",
         f"Take {TURNS}: the median of {TURNS} ratios ignores two slow ones."),
    )  # fmt: skip


def timed_turns(
    read: Callable[[int], Any], records: int, clock: Callable[[], float], *,
    blocks: bool = False, turns: int = TURNS,
) -> np.ndarray:  # fmt: skip
    """Return the seconds of each turn in order and at random: (TURNS, 2)."""
    kinds = [0, 1] * turns if not blocks else [0] * turns + [1] * turns
    seconds: tuple[list[float], list[float]] = ([], [])
    for kind in kinds:
        numbers = list(range(records))
        begin = clock()
        for i in random.sample(numbers, records) if kind else numbers:
            read(i)
        seconds[kind].append(clock() - begin)
    return np.array(seconds).T


def ratio(seconds: np.ndarray) -> np.ndarray:
    return np.divide(seconds[:, 1], seconds[:, 0])


ORDER_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda *given: float(1 / np.median(ratio(timed_turns(*given)))),
     "this is the time in order over the time at random.", "Divide the other way round."),
    (lambda *given: float(ratio(timed_turns(*given, turns=1))[0]),
     "one turn decides: it also contains what only happens once, such as opening the file.",
     "Take 5 turns, and the median of their ratios."),
    (lambda *given: float(np.mean(ratio(timed_turns(*given)))), "this is the mean of the ratios.",
     "Take the median: a single slow reading changes a mean."),
    (lambda *given: float(np.divide(*timed_turns(*given).sum(0)[::-1])),
     "this is the ratio of the sums.",
     "Take the median of the turns' ratios: a single slow reading changes a sum."),
    (lambda *given: float(np.divide(*np.median(timed_turns(*given, blocks=True), axis=0)[::-1])),
     "the two orders are not timed in turns: the machine has changed in between.",
     "In each turn, read in order, then at random, and take the ratio of these two."),
    (lambda *given: float(np.median(timed_turns(*given)[:, 1])), "these are seconds.",
     "Divide by the seconds in order."),
)  # fmt: skip


# --- ex01.index -----------------------------------------------------------------------------------

LENGTHS: tuple[list[int], ...] = ([5], [0, 3, 0], [300, 1, 70_000, 16], [])


def index(answer: Callable[[bytes], Sequence[tuple[int, int]]]) -> str:
    """Check the index of shards whose records have LENGTHS; their checksums are zeros."""
    shards = [(b"".join(struct.pack("<Q", n) + bytes(n + 8) for n in of),) for of in LENGTHS]
    compare.examine(answer, shards, entries, INDEX_MISTAKES, one_case=True)
    return f"{len(LENGTHS)} shards, including an empty one and empty records."


def entries(shard: bytes, framing: int = 16) -> list[tuple[int, int]]:
    """Return (offset, size) of each record; with fewer bytes of framing, a usual mistake."""
    found, at = [], 0
    while at + 8 <= len(shard):
        (length,) = struct.unpack_from("<Q", shard, at)
        found.append((at, length + 16))
        at += length + framing
    return found


ADVANCE = "Advance by 16 + n: a record takes 8 + 4 + n + 4 bytes."
INDEX_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda shard: entries(shard, 8),
     "after a record, you look for the next one 8 bytes too early.", ADVANCE),
    (lambda shard: entries(shard, 12),
     "after a record, you look for the next one 4 bytes too early.", ADVANCE),
    (lambda shard: [(at, size - 16) for at, size in entries(shard)],
     "the sizes are those of the data.", "Add the 16 bytes of framing to each."),
    (lambda shard: [(at + 12, size) for at, size in entries(shard)],
     "the offsets are those of the data.", "Point to the length, with which a record starts."),
    (lambda shard: [(size, at) for at, size in entries(shard)], "size and offset are swapped.",
     "Return (offset, size)."),
    (lambda shard: [(at, at + size) for at, size in entries(shard)],
     "the second number is where the record ends.", "Return its size."),
    (lambda shard: [(at + size, size) for at, size in entries(shard)],
     "the offsets are those of the next records.", "Store the offset before you advance it."),
    (lambda shard: entries(shard)[:-1], "the last record is missing.",
     "Continue until the offset reaches len(shard): a record may have no data."),
    (lambda shard: [(0, int.from_bytes(shard[:8], "big"))],  # 16 more are lost in a float
     "the length is read as big-endian.", "TFRecord is little-endian: use `<Q`."),
)  # fmt: skip


# --- ex01.leak ------------------------------------------------------------------------------------

Halves = tuple[list[str], list[str]]
Split = Callable[[list[str]], Halves]


def by_object(names: list[str], share: float = 0.25, order: int = 1) -> Halves:
    """Return a right split: whole objects go to one side, in the same or in reverse order."""
    objects = sorted({name.split("_")[0] for name in names})
    random.Random(5).shuffle(objects)
    chosen = set(objects[: max(1, int(len(objects) * share))])
    halves: Halves = ([], [])
    for name in names[::order]:
        halves[name.split("_")[0] in chosen].append(name)
    return halves


def by_image(names: list[str]) -> Halves:
    mixed = random.Random(3).sample(names, len(names))
    cut = len(mixed) * 3 // 4
    return mixed[:cut], mixed[cut:]


def damaged(change: Callable[[list[str], list[str]], Halves]) -> Split:
    """Return a right split whose halves are then changed."""
    return lambda names: change(*by_object(names))


LEAK_MISTAKES: tuple[compare.Mistake, ...] = (  # what a test accepts that misses this split
    (by_image, "images of one object are in both lists, as after a random split",
     "Compare the objects of the two lists, and give your objects several images."),
    (damaged(lambda train, val: (train[:-1], val)), "an image is in neither list",
     "Assert that the lists together contain every image."),
    (damaged(lambda train, val: (train[:-1] + train[:1], val)),
     "one image is missing and another one appears twice",
     "Compare the names in both lists with all names: counting is not enough."),
    (lambda names: (list(names), []), "the validation list is empty",
     "Assert that each list has images."),
)  # fmt: skip


def is_right(names: list[str], train: list[str], val: list[str]) -> bool:
    """Return True if two lists of these names are a right split."""
    seen = [{name.split("_")[0] for name in half} for half in (train, val)]
    return all(seen) and seen[0].isdisjoint(seen[1]) and sorted(train + val) == sorted(names)


def leak(answer: Callable[[Split], Any]) -> str:
    """Check that a test accepts the right splits and refuses the LEAK_MISTAKES."""
    asked: list[list[str]] = []  # the names that the test makes up

    def noted(split: Split, names: list[str]) -> Halves:
        asked.append(list(names))
        return split(names)

    for good in (by_object, functools.partial(by_object, share=0.4, order=-1)):
        try:
            answer(functools.partial(noted, good))
        except AssertionError as error:
            if len({name.split("_")[0] for names in asked for name in names}) == 1:
                wrong("your names are photos of a single object, which only one list can have.",
                      "Make up several objects.")  # fmt: skip
            reason = f" ({str(error).splitlines()[0]})" if str(error) else ""
            wrong(f"your test rejects a correct split{reason}.",
                  "Assert nothing about order or sizes: a split promises neither.")  # fmt: skip
    for bad, what, remedy in LEAK_MISTAKES:
        try:
            result = answer(bad)
        except AssertionError:
            continue
        if isinstance(result, bool):
            wrong(f"your test returns {result} for a split in which {what}, and raises nothing.",
                  "Write `assert condition, message`: it raises AssertionError.")  # fmt: skip
        if asked and all(is_right(names, *bad(names)) for names in asked):
            wrong(f"your names cannot reveal a split in which {what}.",
                  "Make up more objects, with several images each.")  # fmt: skip
        wrong(f"your test accepts a split in which {what}.", remedy)
    return f"it accepts 2 correct splits and rejects {len(LEAK_MISTAKES)} wrong ones."
