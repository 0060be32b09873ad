"""A small record file as MXNet 1.9.1's MXIndexedRecordIO wrote it, word by word, and what is in it.

It holds one label, several labels, the magic aligned and not aligned, at the start, at the end and
twice in a row, and a key that is the magic itself, so that the header is cut.
"""

import struct

from rn50lib.data.recordio import HEADER

MAGIC = bytes.fromhex("0a23d7ce")

RECORDS = [  # key, label, image
    (3, 4.0, b"abc"),
    (7, (1.0, 2.5), b"hello"),
    (9, 0.0, MAGIC + b"xxxx" + MAGIC + MAGIC + b"xy" + MAGIC + b"z"),
    (0xCED7230A, 1.0, b""),
    (11, 2.0, b"1234" + MAGIC),
]

FRAMED = [
    "0a23d7ce 1b000000 00000000 00008040 03000000 00000000 00000000 00000000 61626300",
    "0a23d7ce 25000000 02000000 00000000 07000000 00000000 00000000 00000000 0000803f 00002040"
    "68656c6c 6f000000",
    "0a23d7ce 18000020 00000000 00000000 09000000 00000000 00000000 00000000 0a23d7ce 04000040"
    "78787878 0a23d7ce 00000040 0a23d7ce 07000060 78790a23 d7ce7a00",
    "0a23d7ce 08000020 00000000 0000803f 0a23d7ce 0c000060 00000000 00000000 00000000",
    "0a23d7ce 1c000020 00000000 00000040 0b000000 00000000 00000000 00000000 31323334 0a23d7ce"
    "00000060",
]

REC = b"".join(bytes.fromhex(words) for words in FRAMED)
IDX = b"3\t0\n7\t36\n9\t84\n3470205706\t152\n11\t188\n"


def pack(label: float | tuple[float, ...], key: int, image: bytes) -> bytes:
    """Return a record with one label, or with several, which ours never writes."""
    several = label if isinstance(label, tuple) else ()
    first = 0.0 if isinstance(label, tuple) else label
    labels = struct.pack(f"<{len(several)}f", *several)
    return HEADER.pack(len(several), first, key, 0) + labels + image
