"""`workshop.use(record_framing=frame)`: real pictures, packed by im2rec with the learner's function
and read back by the library's reader and by DALI."""

from __future__ import annotations

import io
from pathlib import Path

from rn50lib import launch
from rn50lib.config import Experiment
from rn50lib.config.checks import has_dali
from rn50lib.config.defaults import resolve
from rn50lib.errors import UserError
from rn50lib.hardware import machine
from rn50lib.records.framing import MAGIC_BYTES
from rn50lib.records.source import Source, open_source
from workshop import output
from workshop.programs import program

SHOWN = 6  # pictures that are drawn; one of each class is packed
IM2REC = "data_prep.im2rec"


def pack(place: str, data_root: Path) -> Path:
    """Pack a picture of each class with the function at `place`, FILE:NAME; returns the data set.

    Raises RunFailed when im2rec fails with it, UserError when a reader finds other records than
    those that were packed.
    """
    root = launch.new_run("ex01-frame")
    copy(open_source(data_root, "train", "files"), root / "train")
    program(IM2REC, "--list", "--recursive", "records/train", "train", folder=root)
    seam = f"record_framing={place}"
    program(IM2REC, "--pass-through", "--override", seam, "records/train", "train", folder=root)
    count = compare(root)
    print(f"{count} records that you framed, read by the library's reader: every byte is the same.")
    if not has_dali():
        print("DALI is not installed here, so it has not read them.")
        return root
    seen = labels_by_dali(root)
    if seen != list(range(count)):
        raise UserError(f"DALI reads the labels {seen} from your records, not 0 to {count - 1}")
    print(f"DALI has read and decoded all {count} of them too.")
    return root


def copy(source: Source, to: Path) -> None:
    """The first picture of each class, in class folders; the last one gets the magic in a comment,
    as a JPEG may hold it by chance."""
    for label, name in enumerate(source.classes):
        picture = source.read(int((source.labels < label).sum()))
        if label == len(source.classes) - 1:
            # a comment begins behind the first 2 bytes with 4 of its own: 2 more, and the magic
            # stands at a multiple of 4 in the picture, and in the payload, whose header has 24
            comment = b"  " + 2 * MAGIC_BYTES
            segment = b"\xff\xfe" + (2 + len(comment)).to_bytes(2, "big") + comment
            picture = picture[:2] + segment + picture[2:]
        (to / name).mkdir(parents=True)
        (to / name / f"{name}.jpg").write_bytes(picture)


def compare(root: Path) -> int:
    """Compare every record with its file, and show some; returns their number."""
    from PIL import Image

    files, records = (open_source(root, "train", form) for form in ("files", "recordio"))
    packed = {int(label): records.read(i) for i, label in enumerate(records.labels)}
    wrong = [name for i, name in enumerate(files.classes) if packed.get(i) != files.read(i)]
    if wrong:
        raise UserError(
            f"{records.path}: what was packed for {', '.join(wrong)} is not what is read back:"
            ' pass workshop.check("ex01.frame", frame) first'
        )
    names = files.classes[:SHOWN]
    shown = [Image.open(io.BytesIO(packed[i])).convert("RGB") for i in range(len(names))]
    alt = f"Pictures read from your record file: {', '.join(names)}"
    output.images(shown, alt=alt, labels=list(names))
    return len(packed)


def labels_by_dali(root: Path) -> list[int]:
    """The labels, sorted, of the pictures that DALI reads and decodes in one epoch.

    Raises UserError where it cannot read the file.
    """
    from rn50lib.pipelines import open_pipeline

    source = open_source(root, "train", "recordio")
    asked = Experiment(
        data_root=str(root), data_format="recordio", loader="dali", n=1, batch_size=len(source),
        network="tiny", image_shape=32, dtype="float32", data_nthreads=1, recipe="reference",
        profile="cpu",
    )  # fmt: skip
    pipeline = open_pipeline(
        resolve(asked, machine(), len(source)).experiment, source, "train", 0, 1
    )
    try:
        batches = [(batch.labels, batch.valid) for batch in pipeline.epoch(0)]
    finally:
        pipeline.close()
    return sorted(int(label) for labels, valid in batches for label in labels[:valid])
