"""`workshop.use(record_framing=frame)`: real pictures, framed by the learner's function and read
back by the library's reader."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from rn50lib import launch
from rn50lib.records.index import format_index
from rn50lib.records.recordio import MAGIC_BYTES, Reader, pack_header
from rn50lib.records.source import open_source
from rn50lib.workshop import output

PICTURES = 6


def pack(frame: Callable[[bytes], bytes], data_root: Path) -> Path:
    """Write a picture of each of the first classes into a record file of its own, read them back
    and show them; returns the file.

    Raises RecordError when the reader finds no records there.
    """
    from PIL import Image

    source = open_source(data_root, "train", "files")
    firsts = [int((source.labels < label).sum()) for label in range(len(source.classes))]
    path = launch.new_run("ex01-frame") / "yours.rec"
    entries, record_file = [], bytearray()
    for number, i in enumerate(firsts[:PICTURES]):
        entries.append((number, len(record_file)))
        record_file += frame(pack_header(float(source.labels[i]), number, source.read(i)))
    # one payload that holds the magic at a multiple of 4, as a JPEG may by chance
    entries.append((len(entries), len(record_file)))
    awkward = MAGIC_BYTES * 2 + b"behind it"
    record_file += frame(pack_header(0.0, len(entries) - 1, awkward))
    path.write_bytes(record_file)
    path.with_suffix(".idx").write_text(format_index(entries))
    reader = Reader(path)
    found = [reader[i] for i in range(len(reader))]
    shown = [Image.open(io.BytesIO(data)).convert("RGB") for _, data in found[:-1]]
    names = [source.classes[int(label)] for label, _ in found[:-1]]  # type: ignore[call-overload]
    output.images(
        shown, alt=f"Pictures read from your record file: {', '.join(names)}", labels=names
    )
    same = all(source.read(i) == data for i, (_, data) in zip(firsts, found[:-1], strict=False))
    print(
        f"{len(found)} records that you framed, read by the library's reader:"
        f" {'every byte is the same' if same and found[-1][1] == awkward else 'bytes differ'}."
    )
    return path
