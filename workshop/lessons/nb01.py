"""Notebook 01: a RecordIO writer and reader, and a small copy of ImageNet's archives."""

from __future__ import annotations

import base64
import io
import struct
import tarfile
import threading
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from workshop.checks.compare import NO_RETURN, RETURN, Mistake, examine, refuse, wrong
from workshop.lessons.choice import Function, choose

KIT = "ILSVRC2012_devkit_t12"
# the road signs of three classes, by WordNet id, in the kit's order, which is not sorted
CLASSES = {"n06874185": "yield", "n02835271": "bicycle", "n06794110": "stop"}
TRAIN, VAL = 4, 2  # images of each class
# the kit's list of these classes: a MATLAB 5 file with an array of structs, compressed
META = zlib.decompress(base64.b85decode(
    "c-qBM!A^rf6kN2eZA=WGutyKY0G5I$sd^zP9<)(!NMWIyz+%{Kn*NQS=qI>KsS;Wx5u-1eklEqQG85d%Y&yAu#+eG;"
    "$xMlGg5X~bkR0~}03de(=<#Qt;{a@?Tk=B=sl*WnT@#8JE%XitEZ-OUD~B_^f4IBWRZaJt8?ZZ%w|kF2W|ie3{YEFt"
    ")C(3k33Eig(pm0f;^EYf(T<hKYk|+ay;@$W0x^T~d^2yCV&AUpclPWLD*JNDi8{8-k!Bf{?|5qPIj#8!&a*`k4q$@g"
    "1slRGr8p*jGK7?6FNM@DXWO1+yXF1%&wJLbb3-?^N{;6SAEo9a_#6l8AVJD}i4&$oS+1~E#{2e3h*DUpTi&{_|L(ir"
    "qVKVJG14@(lB3DzxaK1`WjR8u_>X^~kM@1O0|nS#{r"
))  # fmt: skip


def pack(number: int, label: float, jpeg: bytes) -> bytes:
    """Return a RecordIO record of one part, with MXNet's image header."""
    content = struct.pack("<IfQQ", 0, label, number, 0) + jpeg
    word = len(content)  # kind 0, a whole record, in the upper 3 bits
    return struct.pack("<II", 0xCED7230A, word) + content + bytes(-len(content) % 4)


HEADER = 24  # bytes of the image header
JPEGS = (b"\xff\xd8\xff\xd9", b"\xff\xd8\0\xff\xd9", b"\xff\xd8\0\0\0\xff\xd9")


def variant(
    number: int, label: float, jpeg: bytes, less: int = 0, zeros: int | None = None,
    form: str = "<IIIfQQ",
) -> bytes:  # fmt: skip
    """Return a record as `pack` does, but with a shorter length, other zeros or another format."""
    parts = (0xCED7230A, HEADER + len(jpeg) - less, 0, label, number, 0)
    fields = struct.pack(form, *(int(part) if "f" not in form else part for part in parts))
    return fields + jpeg + bytes(-len(jpeg) % 4 if zeros is None else zeros)


PACK_MISTAKES: tuple[Mistake, ...] = (
    (lambda n, label, jpeg: variant(n, label, jpeg, less=HEADER),
     "The length is that of the JPEG alone.", "The content begins with the header: add 24."),
    (lambda n, label, jpeg: variant(n, label, jpeg, less=-(-len(jpeg) % 4)),
     "The length counts the zeros.", "They follow the content."),
    (lambda n, label, jpeg: variant(n, label, jpeg, less=-8),
     "The length counts the magic number and itself.", "It is that of the content."),
    (lambda n, label, jpeg: variant(n, label, jpeg, zeros=0),
     "The zeros at the end are missing.", "bytes(-n % 4) pads n bytes."),
    (lambda n, label, jpeg: variant(n, label, jpeg, zeros=4 - len(jpeg) % 4),
     "A record that needs no padding is followed by four zeros.", "Pad with bytes(-n % 4)."),
    (lambda n, label, jpeg: variant(n, label, jpeg, zeros=len(jpeg) % 4),
     "There are n % 4 zeros after n bytes.", "bytes(-n % 4) fills up to a multiple of 4."),
    (lambda n, label, jpeg: variant(n, label, jpeg, form=">IIIfQQ"),
     "The numbers are big-endian.", "Begin the formats with `<`."),
    (lambda n, label, jpeg: variant(n, label, jpeg, form="<IIIIQQ"),
     "The label is a whole number.", "It is a float32: format `f`."),
    (lambda n, label, jpeg: variant(0, label, jpeg), "The image's number is missing.",
     "The third value of the header is `number`."),
    (lambda n, label, jpeg: variant(n, n, jpeg), "The number is in place of the label.",
     "The header is flag, label, number, 0."),
    (lambda n, label, jpeg: pack(n, label, jpeg)[:8] + b"\1" + pack(n, label, jpeg)[9:],
     "The flag is 1.", "For one label it is 0."),
    (lambda n, label, jpeg: variant(int(label), n, jpeg), "Label and number are exchanged.",
     "The header is flag, label, number, 0."),
)  # fmt: skip


def check_pack(yours: Function) -> Function:
    """Return a learner's `pack` if it is right, else the finished one; print what is wrong."""
    cases = [(7 + i, float(i + 3), jpeg) for i, jpeg in enumerate(JPEGS)]

    def judge() -> str:
        if yours(*cases[0]) is None:
            raise NotImplementedError
        examine(yours, cases, pack, PACK_MISTAKES, one_case=True)
        return f"`pack` is right for {len(cases)} images."

    return choose("pack", yours, pack, judge, show=True)


def item(self: Any, i: int) -> tuple[Image.Image, int]:
    """Return image `i` and its label."""
    record = self.read(i)
    length, label = struct.unpack_from("<4xI4xf", record)  # 4x skips the magic number and the flag
    return Image.open(io.BytesIO(record[32 : 8 + length])), int(label)


def check_item(records: Any, listed: str, folder: Path) -> Function:
    """Return the `__getitem__` of `records` if it is right for the first records, else `item`.

    `listed` is the list of the records, and `folder` that of its images.
    """
    lines = [line.split("\t") for line in Path(listed).read_text().splitlines()[:12]]

    def judge() -> str:
        for i, (_, label, path) in enumerate(lines):
            try:
                judge_item(records, i, int(float(label)), folder / path)
            except OSError as error:
                wrong(f"Record {i}: Pillow reports {str(error).split(' <')[0]!r}.",
                      "The JPEG is bytes 32 to 8 + length.")  # fmt: skip
        return f"{len(lines)} of {len(lines)} records are right."

    return choose("__getitem__", type(records).__getitem__, item, judge, show=True)


def judge_item(records: Any, i: int, true: int, file: Path) -> None:
    """Raise Wrong unless record `i` has this label and the image of this file."""
    if (answer := records[i]) is None:
        raise NotImplementedError
    image, label = answer if isinstance(answer, tuple | list) and len(answer) == 2 else (answer, "")
    if not isinstance(image, Image.Image):
        wrong(f"The first value is of type {type(image).__name__}.",
              "Return the image that Pillow opened.")  # fmt: skip
    bits = struct.unpack("<I", struct.pack("<f", true))[0]
    pixels, exact = (np.asarray(one.convert("RGB")) for one in (image, Image.open(file)))
    refuse(
        (label == "", "The label is missing.", "Return two values, the image and its label."),
        (isinstance(label, tuple), f"Record {i}: the label is {label}.",
         "`struct` returns a tuple: take its first value."),
        (not np.array_equal(pixels, exact), f"Record {i}: the image is a different one.",
         "Open the bytes of self.read(i)."),
        (label == bits != true, f"Record {i}: the label is {label}: these are a float32's bits.",
         "Read it with the format `f`."),
        (label != true, f"Record {i}: the label is {label!r}, not {true}.",
         "It is in bytes 12 to 15, after the flag."),
        (not isinstance(label, int), f"The label is of type {type(label).__name__}.",
         "Convert it with int()."),
    )  # fmt: skip


def reading_rate(open_file: Function, files: Sequence[Any], readers: int) -> float:
    """Return the files/s at which `readers` threads together open and read `files`."""
    begin = time.perf_counter()
    with ThreadPoolExecutor(readers) as pool:
        list(pool.map(open_file, files))
    return len(files) / (time.perf_counter() - begin)


FILES, READERS, OPENING = 24, 4, 0.01  # of the check: files, threads, s to open a file


def check_rate(yours: Function) -> Function:
    """Return a learner's `reading_rate` if it is right, else the finished one."""
    return choose("reading_rate", yours, reading_rate, lambda: judge_rate(yours), show=True)


def judge_rate(yours: Function) -> str:
    """Raise Wrong unless `yours` opens each file once, in enough threads, and times all of it."""
    opened: list[int] = []
    open_now, most, lock = 0, 0, threading.Lock()

    def open_file(file: int) -> int:
        nonlocal open_now, most
        with lock:
            open_now += 1
            most = max(most, open_now)
        time.sleep(OPENING)
        with lock:
            open_now -= 1
            opened.append(file)
        return file

    begin = time.perf_counter()
    rate = yours(open_file, list(range(FILES)), READERS)
    seconds = time.perf_counter() - begin
    if rate is None and not opened:
        raise NotImplementedError
    here, at_once = FILES / seconds, FILES / (FILES * OPENING / READERS)
    refuse(
        (rate is None, NO_RETURN, RETURN),
        (not isinstance(rate, int | float), f"The result is of type {type(rate).__name__}.",
         "Return a number."),
    )  # fmt: skip
    refuse(
        (sorted(opened) != list(range(FILES)), f"{len(set(opened))} of {FILES} files were opened.",
         "Let pool.map call `open_file` for each of the `files`."),
        (most == 1, "Only one file is open at a time.",
         "Use `pool.map(open_file, files)`, not a loop that waits for each file."),
        (most != READERS, f"{most} threads open files at once, not {READERS}.",
         "Create the pool with ThreadPoolExecutor(readers)."),
        (rate < 1,
         "This is a time, not a rate.", "Divide the number of files by the seconds."),
        (rate > 1.05 * at_once, f"{rate:,.0f} files/s is more than {READERS} threads can reach.",
         "Stop the clock when all files are read: list(pool.map(...)), or after the `with`."),
        (rate < 0.7 * here, f"{rate:.3g} files/s; this call opened {here:.3g} per second.",
         "Divide the number of files by the seconds of all."),
    )  # fmt: skip
    return f"`reading_rate` opens {FILES} files in {READERS} threads, and times all of them."


def training_speed() -> float:
    """Return images/s of ResNet-50, forward and backward, at 224 px on this machine.

    On a GPU in float16, batch 64; without one in float32, batch 4.
    """
    import torch

    from rn50lib import resnet
    from rn50lib.torch.model import ResNet

    gpu = torch.cuda.is_available()
    device, batch = ("cuda", 64) if gpu else ("cpu", 4)
    network = ResNet(resnet.resnet(50)).to(device, memory_format=torch.channels_last)
    images = torch.rand(batch, 3, 224, 224, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    seconds = []
    for _ in range(12 if gpu else 6):  # the first warms up
        begin = time.perf_counter()
        with torch.autocast(device, torch.float16, enabled=gpu):
            loss = network(images).sum()
        loss.backward()
        if gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return batch / float(np.median(seconds[1:]))


def imagenet_archives(folder: Path, data_root: Path) -> None:
    """Write the three archives of ImageNet (ILSVRC 2012) with three classes of road signs.

    Args:
        folder: Where to write them; it is created.
        data_root: The road signs, with the folders train and val.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shown = {sign: sorted((data_root / "val" / sign).iterdir()) for sign in CLASSES.values()}
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as outer:
        for wnid, sign in CLASSES.items():
            out = io.BytesIO()
            with tarfile.open(fileobj=out, mode="w") as inner:
                files = sorted((data_root / "train" / sign).iterdir())[:TRAIN]
                for number, file in enumerate(files):
                    _add(inner, f"{wnid}_{number}.JPEG", file.read_bytes())
            _add(outer, f"{wnid}.tar", out.getvalue())
    truth = [1 + (2 * i) % len(CLASSES) for i in range(VAL * len(CLASSES))]  # mixed: 1, 3, 2, ...
    with tarfile.open(folder / "ILSVRC2012_img_val.tar", "w") as val:
        for number, label in enumerate(truth, start=1):
            file = shown[list(CLASSES.values())[label - 1]].pop(0)
            _add(val, f"ILSVRC2012_val_{number:08}.JPEG", file.read_bytes())
    with tarfile.open(folder / f"{KIT}.tar.gz", "w:gz") as kit:
        _add(kit, f"{KIT}/data/meta.mat", META)
        lines = "".join(f"{label}\n" for label in truth).encode()
        _add(kit, f"{KIT}/data/ILSVRC2012_validation_ground_truth.txt", lines)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))
