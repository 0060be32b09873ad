"""Checks of ex01: RecordIO, TFRecord, and a split that leaks.

Bytes are compared with ones written down here, and read by a reader of a few lines that has nothing
in common with the library's.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

from workshop.checks import compare
from workshop.checks.compare import wrong

MAGIC = bytes.fromhex("0a23d7ce")


# --- ex01.frame -----------------------------------------------------------------------------------

WRITTEN_DOWN = (  # payload, record: as MXNet writes them
    (b"", "0a23d7ce00000000"),
    (b"\x01\x02\x03\x04", "0a23d7ce0400000001020304"),
    (b"abcde", "0a23d7ce050000006162636465000000"),
)


def frame(answer: Callable[[bytes], bytes]) -> str:
    for payload, expected in WRITTEN_DOWN:
        _plain(compare.call(answer, payload), payload, bytes.fromhex(expected))
    long = bytes(range(256)) * 300  # its length does not fit into 16 bits
    head = MAGIC + struct.pack("<I", len(long))
    _plain(compare.call(answer, long), long, head + long)
    cases = {
        "at the start": MAGIC + b"tail",
        "in the middle": b"abcd" + MAGIC + b"efg",
        "at the end": b"abcd" + MAGIC,
        "twice in a row": b"abcd" + MAGIC + MAGIC + b"x",
        "and nothing else": MAGIC,
        "three times": MAGIC + b"12345678" + MAGIC + b"12" * 6 + MAGIC + b"z",
    }
    for where, payload in cases.items():
        _escaped(compare.call(answer, payload), payload, where)
    odd = b"ab" + MAGIC + b"cd"
    if compare.call(answer, odd) != MAGIC + struct.pack("<I", 8) + odd:
        wrong(
            "a magic at offset 2 of the payload was cut out, where no reader looks for one.",
            "Look for the magic at offsets 0, 4, 8 … only.",
        )
    both = odd + MAGIC + b"ef"
    got = compare.call(answer, both)
    if [text for _, text in _parts(_bytes(got))] != [odd, b"ef"]:
        wrong(
            "the payload has the magic at offset 2, which stays, and at offset 8, where it should"
            " be cut out; that goes wrong.",
            "Look at every offset 0, 4, 8 …, whatever stands between them.",
        )
    return f"{len(cases) + len(WRITTEN_DOWN) + 3} payloads, also with the magic inside."


def _bytes(got: Any) -> bytes:
    if not isinstance(got, bytes | bytearray):
        wrong(f"the answer is of type {type(got).__name__}, not bytes.", "Return bytes.")
    return bytes(got)


def _plain(got: Any, payload: bytes, expected: bytes) -> None:
    if got == expected:
        return
    got, size = _bytes(got), len(payload)
    if got[:4] == MAGIC[::-1]:
        wrong(
            "the magic stands there with its highest byte first.",
            'RecordIO is little-endian: struct.pack("<I", …).',
        )
    if got[:4] != MAGIC:
        wrong("the record does not start with the magic.", "It starts with 0a 23 d7 ce.")
    length = int.from_bytes(got[4:8], "little")
    if size and length == size + -size % 4 != size:
        wrong(
            "the length counts the padding.",
            "The length is that of the payload alone; the reader works out the padding.",
        )
    if length == size + 8:
        wrong("the length counts the 8 bytes in front.", "It is the length of the payload alone.")
    if length != size and int.from_bytes(got[4:8], "big") == size:
        wrong("the length stands there with its highest byte first.", 'Use "<" in struct.pack.')
    if length != size:
        wrong(f"a payload of {size} bytes is announced as {length}.", "Write its length there.")
    if len(got) == 8 + size and size % 4:
        wrong(
            f"after {size} bytes of payload no padding follows.",
            "Zeros fill it up to a multiple of 4: bytes(-len(payload) % 4).",
        )
    if len(got) == 12 + size and size % 4 == 0:
        wrong(
            "a payload that needs no padding is followed by four zeros.",
            "4 - n % 4 is 4 where n % 4 is 0; -n % 4 is right for every n.",
        )
    wrong(
        f"a payload of {size} bytes gives {len(got)} bytes, and not the right ones.",
        f"Right is: {bytes(expected[:16]).hex(' ')}{' …' if len(expected) > 16 else ''}.",
    )


def _parts(record: bytes) -> list[tuple[int, bytes]]:
    """(cflag, bytes) of each part: a reader of its own."""
    found, at = [], 0
    while at + 8 <= len(record) and record[at : at + 4] == MAGIC:
        word = int.from_bytes(record[at + 4 : at + 8], "little")
        flag, length = word >> 29, word & 0x1FFFFFFF
        found.append((flag, record[at + 8 : at + 8 + length]))
        at += 8 + length + -length % 4
    return found if at == len(record) else []


def _escaped(got: Any, payload: bytes, where: str) -> None:
    if got == MAGIC + struct.pack("<I", len(payload)) + payload + bytes(-len(payload) % 4):
        wrong(
            f"a payload with the magic {where} is written as it is: a reader that looks for the"
            " next record would find one inside it.",
            "Cut the payload there, and leave those 4 bytes out.",
        )
    parts = _parts(_bytes(got))
    if not parts:
        wrong(
            f"with the magic {where} of the payload, the bytes are no chain of parts.",
            "Each part has its own magic, its own length and its own padding.",
        )
    flags = [flag for flag, _ in parts]
    count = payload.count(MAGIC) + 1
    texts = [text for _, text in parts]
    if b"".join(texts) == payload:
        wrong(
            f"with the magic {where}, it stands inside a part as well as between them.",
            "Leave those 4 bytes out: the reader puts them back between two parts.",
        )
    if MAGIC.join(texts) != payload:
        wrong(
            f"with the magic {where}, a reader gets {len(MAGIC.join(texts))} other bytes back.",
            f"There should be {count} parts; joined with the magic they are the payload.",
        )
    right = [1] + [2] * (count - 2) + [3]
    if flags != right:
        wrong(
            f"with the magic {where}, the parts have the cflags {flags}.",
            f"They should be {right}: 1 first, 2 between, 3 last; 0 is a record in one part.",
        )


# --- ex01.crc -------------------------------------------------------------------------------------


def crc32c(data: bytes) -> int:
    """CRC-32C bit by bit, from its definition (polynomial 0x82f63b78, reflected)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


ADDED = 0xA282EAD8


def turned(crc: int) -> int:
    """32 bits rotated right by 15."""
    return crc >> 15 | crc << 17 & 0xFFFFFFFF


def masked(crc: int) -> int:
    return (turned(crc) + ADDED) & 0xFFFFFFFF


def record_of(data: bytes) -> bytes:
    """A TFRecord by the definition."""
    size = struct.pack("<Q", len(data))
    return (
        size
        + struct.pack("<I", masked(crc32c(size)))
        + data
        + struct.pack("<I", masked(crc32c(data)))
    )


def crc(answer: Callable[[bytes], bytes]) -> str:
    import zlib

    cases = [b"123456789", b"", bytes(32), b"\xff" * 33, bytes(range(256)) * 3]
    for data in cases:
        got, right = compare.call(answer, data), record_of(data)
        if got == right:
            continue
        got = _bytes(got)
        if len(got) != len(right):
            wrong(
                f"{len(data)} bytes of data give a record of {len(got)} bytes.",
                f"It should have {len(right)}: 8 + 4 + {len(data)} + 4, without padding.",
            )
        size = right[:8]
        if got[:8] == size[::-1] and got[:8] != size:
            wrong("the length stands there with its highest byte first.", 'Use "<Q".')
        if got[:8] != size:
            wrong("the first 8 bytes are not the length of the data.", 'Use struct.pack("<Q", …).')
        if got[12:-4] != data:
            wrong("the data do not stand where they should.", "They follow the first checksum.")
        first, last = struct.unpack("<I", got[8:12])[0], struct.unpack("<I", got[-4:])[0]
        if (first, last) == (crc32c(size), crc32c(data)):
            wrong(
                "the checksums are plain ones.",
                "TFRecord stores them masked: rotate right by 15 bits, then add 0xa282ead8.",
            )
        if (first, last) == (turned(crc32c(size)), turned(crc32c(data))):
            wrong("the checksums are rotated, and no constant is added.", "Add 0xa282ead8.")
        if (first, last) == tuple((c + ADDED) % 2**32 for c in (crc32c(size), crc32c(data))):
            wrong(
                "the constant is added, and nothing is rotated.", "Rotate right by 15 bits first."
            )
        if last in (zlib.crc32(data), masked(zlib.crc32(data))):
            wrong(
                "this is the CRC-32 of zip and Ethernet; TFRecord uses CRC-32C.",
                "Use the function crc32c that the notebook gives you.",
            )
        if last == masked(crc32c(data)) and first in (last, masked(crc32c(b"%d" % len(data)))):
            wrong(
                "the first checksum is not that of the length's 8 bytes.",
                "It protects the length: without it a reader could jump anywhere.",
            )
        if last == masked(crc32c(size + data)):
            wrong("the second checksum covers the length too.", "It is that of the data alone.")
        if (got[8:12][::-1], got[-4:][::-1]) == (right[8:12], right[-4:]):
            wrong("the checksums stand there with their highest byte first.", 'Use "<I".')
        which = "first" if first != masked(crc32c(size)) else "second"
        wrong(
            f"the {which} checksum of {len(data)} bytes of data is wrong.", "Compare the formula."
        )
    return f"{len(cases)} records, checked against CRC-32C computed bit by bit."


# --- ex01.index -----------------------------------------------------------------------------------


def index(answer: Callable[[bytes], Sequence[tuple[int, int]]]) -> str:
    cases = [[5], [0, 3, 0], [300, 1, 70_000, 16], []]
    for lengths in cases:
        shard = b"".join(record_of(bytes(n)) if n < 1000 else _long(n) for n in lengths)
        right, at = [], 0
        for n in lengths:
            right.append((at, n + 16))
            at += n + 16
        got = _entries(compare.call(answer, shard))
        if got == right:
            continue
        if not lengths:
            wrong("an empty shard has entries.", "A shard without records has an empty index.")
        if got == [(offset, size - 16) for offset, size in right]:
            wrong(
                "the sizes are those of the data.", "DALI's sizes include the 16 bytes of framing."
            )
        if got == [(offset + 12, size) for offset, size in right] or got == [
            (offset + 12, size - 16) for offset, size in right
        ]:
            wrong("the offsets are those of the data.", "A record starts with its length.")
        if [offset for offset, _ in got] == [sum(lengths[:i]) for i in range(len(lengths))] and len(
            lengths
        ) > 1:
            wrong(
                "each offset forgets the framing of the records before it.",
                "The next record starts 16 + length bytes after this one.",
            )
        if got == [(size, offset) for offset, size in right]:
            wrong("size and offset are exchanged.", "An entry is (offset, size).")
        if len(got) != len(lengths):
            wrong(
                f"a shard of {len(lengths)} records gives {len(got)} entries.",
                "Go on from one record to the next until the end of the shard.",
            )
        wrong(f"data of {lengths} bytes give {got}.", f"Right is {right}.")
    return f"{len(cases)} shards, an empty one and empty records among them."


def _entries(found: Any) -> list[tuple[int, int]]:
    try:
        pairs = [(offset, size) for offset, size in found]
    except (TypeError, ValueError):
        wrong("what comes back is no list of pairs.", "Return [(offset, size), …].")
    return [
        (compare.whole(offset, "an offset"), compare.whole(size, "a size"))
        for offset, size in pairs
    ]


def _long(n: int) -> bytes:
    """A record whose checksums nobody looks at."""
    return struct.pack("<Q", n) + bytes(n + 8)


# --- ex01.leak ------------------------------------------------------------------------------------

Split = Callable[[list[str]], tuple[list[str], list[str]]]


def by_object(names: list[str], share: float = 0.25, seed: int = 5) -> tuple[list[str], list[str]]:
    """A right split: whole objects go to one side."""
    objects = sorted({name.split("_")[0] for name in names})
    random.Random(seed).shuffle(objects)
    chosen = set(objects[: max(1, int(len(objects) * share))])
    return (
        [name for name in names if name.split("_")[0] not in chosen],
        [name for name in names if name.split("_")[0] in chosen],
    )


def by_object_sorted(names: list[str]) -> tuple[list[str], list[str]]:
    """Another right one, that returns the pictures in another order."""
    train, val = by_object(names, share=0.4, seed=1)
    return sorted(train, reverse=True), sorted(val, reverse=True)


def by_picture(names: list[str]) -> tuple[list[str], list[str]]:
    mixed = random.Random(3).sample(names, len(names))
    cut = len(mixed) * 3 // 4
    return mixed[:cut], mixed[cut:]


def shared(names: list[str]) -> tuple[list[str], list[str]]:
    train, val = by_object(names)
    return train + val[:1], val


def losing(names: list[str]) -> tuple[list[str], list[str]]:
    train, val = by_object(names)
    return train[:-1], val


def replacing(names: list[str]) -> tuple[list[str], list[str]]:
    """As many pictures as there were, but the last one is another one's double."""
    train, val = by_object(names)
    return train[:-1] + train[:1], val


def empty(names: list[str]) -> tuple[list[str], list[str]]:
    return list(names), []


def empty_train(names: list[str]) -> tuple[list[str], list[str]]:
    return [], list(names)


LEAKS: tuple[tuple[Split, str, str], ...] = (
    (shared, "one picture stands in both halves", "No picture may be in both."),
    (by_picture, "pictures of one object stand in both halves, as a split at random makes them",
     "Compare the objects of the two halves, and give your objects several pictures."),
    (losing, "a picture is in neither half", "Together the halves are all pictures."),
    (replacing, "one picture is missing and another one is there twice",
     "Counting is not enough: compare the names of both halves with all names."),
    (empty, "the validation half is empty", "Neither half may be empty."),
    (empty_train, "the training half is empty", "Neither half may be empty."),
)  # fmt: skip


def leak(answer: Callable[[Split], Any]) -> str:
    for good in (by_object, by_object_sorted):
        try:
            answer(good)
        except AssertionError as error:
            wrong(
                "your test fails a split that is right"
                + (f" ({str(error).splitlines()[0]})." if str(error) else "."),
                "Neither the order of the pictures nor the size of the halves is promised.",
            )
    for bad, what, remedy in LEAKS:
        try:
            said = answer(bad)
        except AssertionError:
            continue
        if isinstance(said, bool):
            wrong(
                f"your test returns {said} for a split in which {what}, and raises nothing.",
                "Write `assert condition, message`: it raises AssertionError.",
            )
        wrong(f"your test accepts a split in which {what}.", remedy)
    return f"it accepts 2 right splits and refuses {len(LEAKS)} wrong ones."
