"""Checks of ex01: RecordIO, TFRecord, and a split that leaks.

Bytes are compared with ones built by a few lines that do not use the library.
"""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

from google_crc32c import value as crc32c

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
    compare.examine(answer, cases, framed, FRAME_MISTAKES, one_case=True)
    return f"{len(PAYLOADS)} payloads, some with the magic number inside."


def framed(payload: bytes, texts: list[bytes] | None = None) -> bytes:
    """Return the record of a payload, cut into `texts` or, by default, as it should be."""
    texts = texts or pieces(payload)
    flags = [0] if len(texts) == 1 else [1] + [2] * (len(texts) - 2) + [3]
    return b"".join(part(text, flag) for text, flag in zip(texts, flags, strict=True))


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
    (lambda p: part(p, more=-len(p) % 4), "the length counts the padding.",
     "Write the length of the payload alone; the reader computes the padding."),
    (lambda p: part(p, pad=0), "the padding after the payload is missing.",
     "Pad with zeros to a multiple of 4: bytes(-len(payload) % 4)."),
    (lambda p: part(p, pad=4 - len(p) % 4),
     "a payload that needs no padding is followed by four zeros.",
     "Write -n % 4: 4 - n % 4 is 4 if n % 4 is 0."),
)  # fmt: skip


# --- ex01.crc -------------------------------------------------------------------------------------

DATA = (b"123456789", b"", bytes(32), b"\xff" * 33, bytes(range(256)) * 3)


def crc(answer: Callable[[bytes], bytes]) -> str:
    cases = [(data,) for data in DATA]
    compare.examine(answer, cases, record_of, CRC_MISTAKES, one_case=True)
    return f"{len(DATA)} records, with checksums of the length and of the data."


def masked(data: bytes, added: int = 0xA282EAD8) -> int:
    """Return the checksum that TFRecord stores: rotated right by 15 bits, and a constant added."""
    crc = crc32c(data)
    return (crc >> 15 | crc << 17 & 0xFFFFFFFF) + added


def record_of(
    data: bytes,
    checksum: Callable[[bytes], int] = masked,
    first: bytes | None = None,
    length: str = "<Q",
) -> bytes:
    """Return a TFRecord; `first` is what its first checksum covers, by default the length."""
    size = struct.pack(length, len(data))
    covered = (size if first is None else first, data)
    sums = [struct.pack("<I", checksum(part) % 2**32) for part in covered]
    return size + sums[0] + data + sums[1]


CRC_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda data: record_of(data, crc32c), "the checksums are not masked.",
     "Mask them: rotate right by 15 bits, then add 0xa282ead8."),
    (lambda data: record_of(data, lambda covered: masked(covered, added=0)),
     "the checksums are rotated, but the constant is not added.", "Add 0xa282ead8."),
    (lambda data: record_of(data, first=data),
     "the first checksum is not that of the length's 8 bytes.",
     "Compute it from the packed length: it keeps a reader from jumping to a wrong offset."),
    (lambda data: record_of(data, length="<I"), "the length takes 4 bytes.",
     'Write a uint64, which takes 8: struct.pack("<Q", …).'),
)  # fmt: skip


# --- ex01.index -----------------------------------------------------------------------------------

LENGTHS: tuple[list[int], ...] = ([5], [0, 3, 0], [300, 1, 70_000, 16], [])


def index(answer: Callable[[bytes], Sequence[tuple[int, int]]]) -> str:
    """Check the index of shards whose records have LENGTHS; their checksums are zeros."""
    shards = [(b"".join(struct.pack("<Q", n) + bytes(n + 8) for n in of),) for of in LENGTHS]
    compare.examine(answer, shards, entries, INDEX_MISTAKES)
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
    """Return the images split at random."""
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


def leak(answer: Callable[[Split], Any]) -> str:
    """Check that a test accepts the right splits and refuses the LEAK_MISTAKES."""
    for good in (by_object, functools.partial(by_object, share=0.4, order=-1)):
        try:
            answer(good)
        except AssertionError as error:
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
        wrong(f"your test accepts a split in which {what}.", remedy)
    return f"it accepts 2 correct splits and rejects {len(LEAK_MISTAKES)} wrong ones."
