"""Checks of ex01: RecordIO, TFRecord, and a split that leaks.

Bytes are compared with ones written down here, or put together by a few lines that have nothing in
common with the library's.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from workshop.checks import compare
from workshop.checks.compare import wrong

# --- ex01.frame -----------------------------------------------------------------------------------

MAGIC = bytes.fromhex("0a23d7ce")
WRITTEN_DOWN = (  # payload, record: as MXNet writes them
    (b"", "0a23d7ce00000000"),
    (b"\x01\x02\x03\x04", "0a23d7ce0400000001020304"),
    (b"abcde", "0a23d7ce050000006162636465000000"),
)
LONG = bytes(range(256)) * 300  # its length does not fit into 16 bits
WITH_MAGIC = {
    "at the start": MAGIC + b"tail",
    "in the middle": b"abcd" + MAGIC + b"efg",
    "at the end": b"abcd" + MAGIC,
    "twice in a row": b"abcd" + MAGIC + MAGIC + b"x",
    "and nothing else": MAGIC,
    "three times": MAGIC + b"12345678" + MAGIC + b"12" * 6 + MAGIC + b"z",
    "at offset 2, where it stays": b"ab" + MAGIC + b"cd",
    "at offset 2, where it stays, and at offset 8": b"ab" + MAGIC + b"cd" + MAGIC + b"ef",
}


def frame(answer: Callable[[bytes], bytes]) -> str:
    plain = [(payload, bytes.fromhex(record)) for payload, record in WRITTEN_DOWN]
    for payload, right in [*plain, (LONG, part(LONG))]:
        got = _bytes(compare.call(answer, payload))
        if got != right:
            compare.known(got, frame_mistakes(payload))
            _not_these(f"a payload of {len(payload)} bytes", got, right)
    for where, payload in WITH_MAGIC.items():
        got, texts = _bytes(compare.call(answer, payload)), pieces(payload)
        if got != (right := parts(texts, flags(texts))):
            compare.known(got, escape_mistakes(payload, where))
            _not_these(f"a payload with the magic {where}", got, right)
    return f"{len(plain) + 1 + len(WITH_MAGIC)} payloads, also with the magic inside."


def part(text: bytes, flag: int = 0) -> bytes:
    return parts([text], [flag])


def parts(texts: Sequence[bytes], cflags: Iterable[int]) -> bytes:
    """Each text with its magic, cflag and length in front and its padding behind."""
    return b"".join(
        MAGIC + struct.pack("<I", flag << 29 | len(text)) + text + bytes(-len(text) % 4)
        for text, flag in zip(texts, cflags, strict=True)
    )


def flags(texts: Sequence[bytes]) -> list[int]:
    return [0] if len(texts) == 1 else [1] + [2] * (len(texts) - 2) + [3]


def pieces(payload: bytes) -> list[bytes]:
    """What stands between the magics at offsets 0, 4, 8 …"""
    cuts = [at for at in range(0, len(payload) - 3, 4) if payload[at : at + 4] == MAGIC]
    starts = [0, *(at + 4 for at in cuts)]
    return [payload[a:b] for a, b in zip(starts, [*cuts, len(payload)], strict=True)]


def frame_mistakes(payload: bytes) -> list[tuple[bytes, str, str]]:
    size, zeros = len(payload), bytes(-len(payload) % 4)

    def record(length: int = size, padding: bytes = zeros, order: str = "<") -> bytes:
        return struct.pack(f"{order}II", 0xCED7230A, length) + payload + padding

    return [
        (record(order=">"), "magic and length stand there with their highest byte first.",
         'RecordIO is little-endian: struct.pack("<I", …).'),
        (record(size + len(zeros)), "the length counts the padding.",
         "The length is that of the payload alone; the reader works out the padding."),
        (record(size + 8), "the length counts the 8 bytes in front.",
         "It is the length of the payload alone."),
        (record(padding=b""), f"after {size} bytes of payload no padding follows.",
         "Zeros fill it up to a multiple of 4: bytes(-len(payload) % 4)."),
        (record(padding=zeros or bytes(4)),
         "a payload that needs no padding is followed by four zeros.",
         "4 - n % 4 is 4 where n % 4 is 0; -n % 4 is right for every n."),
    ]  # fmt: skip


def escape_mistakes(payload: bytes, where: str) -> list[tuple[bytes, str, str]]:
    texts, everywhere = pieces(payload), payload.split(MAGIC)
    kept = [texts[0], *(MAGIC + text for text in texts[1:])]
    return [
        (part(payload), f"a payload with the magic {where} is written as it is: a reader that looks"
         " for the next record would find one inside it.",
         "Cut the payload there, and leave those 4 bytes out."),
        (parts(everywhere, flags(everywhere)), "a magic at offset 2 of the payload was cut out, "
         "where no reader looks for one.", "Look for the magic at offsets 0, 4, 8 … only."),
        (parts(kept, flags(texts)), f"with the magic {where}, it stands inside a part as well as"
         " between them.",
         "Leave those 4 bytes out: the reader puts them back between two parts."),
        (parts(texts, range(len(texts))),
         f"with the magic {where}, the parts have the cflags {[*range(len(texts))]}.",
         f"They should be {flags(texts)}: 1 first, 2 between, 3 last; 0 is a record in one part."),
    ]  # fmt: skip


def _not_these(case: str, got: bytes, right: bytes) -> None:
    more = " …" if len(right) > 32 else ""
    wrong(f"{case} gives {len(got)} bytes, and not the right ones.",
          f"Right is: {right[:32].hex(' ')}{more}.")  # fmt: skip


def _bytes(got: Any) -> bytes:
    if not isinstance(got, bytes | bytearray):
        wrong(f"the answer is of type {type(got).__name__}, not bytes.", "Return bytes.")
    return bytes(got)


# --- ex01.crc -------------------------------------------------------------------------------------

ADDED = 0xA282EAD8
DATA = (b"123456789", b"", bytes(32), b"\xff" * 33, bytes(range(256)) * 3)


def crc(answer: Callable[[bytes], bytes]) -> str:
    for data in DATA:
        got, right = _bytes(compare.call(answer, data)), record_of(data)
        if got == right:
            continue
        if len(got) != len(right):
            wrong(
                f"{len(data)} bytes of data give a record of {len(got)} bytes.",
                f"It should have {len(right)}: 8 + 4 + {len(data)} + 4, without padding.",
            )
        compare.known(got, crc_mistakes(data))
        off = next(i for i, byte in enumerate(got) if byte != right[i])
        wrong(f"the record of {len(data)} bytes of data is wrong from byte {off} on.",
              "Bytes 0 to 7 are the length, 8 to 11 its checksum; the data follow.")  # fmt: skip
    return f"{len(DATA)} records, checked against CRC-32C computed bit by bit."


def crc32c(data: bytes) -> int:
    """CRC-32C bit by bit, from its definition (polynomial 0x82f63b78, reflected)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """A checksum as TFRecord stores it."""
    return turned(crc) + ADDED


def turned(crc: int) -> int:
    """32 bits rotated right by 15."""
    return crc >> 15 | crc << 17 & 0xFFFFFFFF


def record_of(
    data: bytes,
    checksum: Callable[[bytes], int] = lambda covered: masked(crc32c(covered)),
    first: bytes | None = None,
    last: bytes | None = None,
) -> bytes:
    """A TFRecord by the definition; `first` and `last` are what the two checksums cover."""
    size = struct.pack("<Q", len(data))
    sums = [
        struct.pack("<I", checksum(covered) % 2**32)
        for covered in (size if first is None else first, data if last is None else last)
    ]
    return size + sums[0] + data + sums[1]


def crc_mistakes(data: bytes) -> list[tuple[bytes, str, str]]:
    return [
        (record_of(data, crc32c), "the checksums are plain ones.",
         "TFRecord stores them masked: rotate right by 15 bits, then add 0xa282ead8."),
        (record_of(data, lambda covered: turned(crc32c(covered))),
         "the checksums are rotated, and no constant is added.", "Add 0xa282ead8."),
        (record_of(data, lambda covered: crc32c(covered) + ADDED),
         "the constant is added, and nothing is rotated.", "Rotate right by 15 bits first."),
        (record_of(data, lambda covered: masked(zlib.crc32(covered))),
         "this is the CRC-32 of zip and Ethernet; TFRecord uses CRC-32C.",
         "Use the function crc32c that the notebook gives you."),
        (record_of(data, first=data), "the first checksum is not that of the length's 8 bytes.",
         "It protects the length: without it a reader could jump anywhere."),
        (record_of(data, last=struct.pack("<Q", len(data)) + data),
         "the second checksum covers the length too.", "It is that of the data alone."),
    ]  # fmt: skip


# --- ex01.index -----------------------------------------------------------------------------------

LENGTHS: tuple[list[int], ...] = ([5], [0, 3, 0], [300, 1, 70_000, 16], [])


def index(answer: Callable[[bytes], Sequence[tuple[int, int]]]) -> str:
    for lengths in LENGTHS:
        # the checksums are zeros: nobody needs to look at them
        shard = b"".join(struct.pack("<Q", n) + bytes(n + 8) for n in lengths)
        right = [(sum(lengths[:i]) + 16 * i, n + 16) for i, n in enumerate(lengths)]
        got = _entries(compare.call(answer, shard))
        if got == right:
            continue
        starts = [offset for offset, _ in got]
        compare.known(starts, (
            (_skipping(shard, step),
             f"after a record of n bytes of data the next one is looked for {16 - step} bytes too"
             " early.", "A record takes 8 + 4 + n + 4 bytes: go on by 16 + n.")
            for step in range(4, 16, 4) if starts != [offset for offset, _ in right]
        ))  # fmt: skip
        compare.known(got, (
            ([(offset, size - 16) for offset, size in right], "the sizes are those of the data.",
             "DALI's sizes include the 16 bytes of framing."),
            ([(offset + 12, size) for offset, size in right],
             "the offsets are those of the data.", "A record starts with its length."),
            ([(offset - 16 * i, size) for i, (offset, size) in enumerate(right)],
             "each offset forgets the framing of the records before it.",
             "The next record starts 16 + length bytes after this one."),
            ([(size, offset) for offset, size in right], "size and offset are exchanged.",
             "An entry is (offset, size)."),
        ))  # fmt: skip
        if len(got) != len(lengths):
            wrong(
                f"a shard of {len(lengths)} records gives {len(got)} entries.",
                "Go on from one record to the next until the end of the shard.",
            )
        wrong(f"data of {lengths} bytes give {got}.", f"Right is {right}.")
    return f"{len(LENGTHS)} shards, an empty one and empty records among them."


def _skipping(shard: bytes, step: int) -> list[int]:
    """The offsets that come of counting `step` bytes of framing for a record, and not 16."""
    offsets, at = [], 0
    while at + 8 <= len(shard):
        offsets.append(at)
        at += step + struct.unpack_from("<Q", shard, at)[0]
    return offsets


def _entries(found: Any) -> list[tuple[int, int]]:
    try:
        pairs = [(offset, size) for offset, size in found]
    except (TypeError, ValueError):
        wrong("what comes back is no list of pairs.", "Return [(offset, size), …].")
    return [
        (compare.whole(offset, "an offset"), compare.whole(size, "a size"))
        for offset, size in pairs
    ]


# --- ex01.leak ------------------------------------------------------------------------------------

Halves = tuple[list[str], list[str]]
Split = Callable[[list[str]], Halves]


def by_object(names: list[str], share: float = 0.25, seed: int = 5) -> Halves:
    """A right split: whole objects go to one side."""
    objects = sorted({name.split("_")[0] for name in names})
    random.Random(seed).shuffle(objects)
    chosen = set(objects[: max(1, int(len(objects) * share))])
    return (
        [name for name in names if name.split("_")[0] not in chosen],
        [name for name in names if name.split("_")[0] in chosen],
    )


def by_object_sorted(names: list[str]) -> Halves:
    """Another right one, that returns the pictures in another order."""
    train, val = by_object(names, share=0.4, seed=1)
    return sorted(train, reverse=True), sorted(val, reverse=True)


def by_picture(names: list[str]) -> Halves:
    mixed = random.Random(3).sample(names, len(names))
    cut = len(mixed) * 3 // 4
    return mixed[:cut], mixed[cut:]


def spoiled(change: Callable[[list[str], list[str]], Halves]) -> Split:
    """A right split with something done to its halves."""
    return lambda names: change(*by_object(names))


LEAKS: tuple[tuple[Split, str, str], ...] = (
    (spoiled(lambda train, val: (train + val[:1], val)), "one picture stands in both halves",
     "No picture may be in both."),
    (by_picture, "pictures of one object stand in both halves, as a split at random makes them",
     "Compare the objects of the two halves, and give your objects several pictures."),
    (spoiled(lambda train, val: (train[:-1], val)), "a picture is in neither half",
     "Together the halves are all pictures."),
    (spoiled(lambda train, val: (train[:-1] + train[:1], val)),
     "one picture is missing and another one is there twice",
     "Counting is not enough: compare the names of both halves with all names."),
    (lambda names: (list(names), []), "the validation half is empty", "Neither half may be empty."),
    (lambda names: ([], list(names)), "the training half is empty", "Neither half may be empty."),
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
