"""im2rec through its command line: lists, record files, transforms, and bad input."""

import io
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import google_crc32c
import pytest
from PIL import Image

from data_prep import common, im2rec, recordwriter, verify
from data_prep.lists import read_list
from data_prep.recordwriter import pack_header
from rn50lib.data.recordio import Reader
from rn50lib.errors import UserError
from tests.conftest import clean_environment
from tests.support import png

MAGIC = bytes.fromhex("0a23d7ce")


def run(*arguments, code=0):
    """Run the program as a user would."""
    done = subprocess.run(
        [sys.executable, "-m", "data_prep.im2rec", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=900,  # generous: a busy machine must not fail the test
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def tree(tmp_path):
    """A nested tree with blanks, letters beyond ASCII, odd extensions and the magic in files."""
    rng = random.Random(5)
    root = tmp_path / "images"
    for folder in ("", "b b", "b b/deeper", "ä", "zz"):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for i, name in enumerate(["x.jpg", "y.JPEG", "1 ß.png", "no.txt", "z.Jpg"]):
            data = rng.randbytes(40 * i + 4) + MAGIC * i + rng.randbytes(i)
            (root / folder / name).write_bytes(data)
    return root


def test_list_is_numbered_walking_and_shuffled_with_seed_100(tree, tmp_path):
    run("--list", "--recursive", tmp_path / "a", tree)
    # The walk, spelt out: files of a folder sorted by code point, then its subfolders, sorted.
    # MXNet's walk would begin with those of the root, as a class of their own.
    expected = []
    for label, folder in enumerate(["b b/", "b b/deeper/", "zz/", "ä/"]):
        for name in ["1 ß.png", "x.jpg", "y.JPEG", "z.Jpg"]:
            expected.append(f"{len(expected)}\t{label}.000000\t{folder}{name}\n")
    random.seed(100)
    random.shuffle(expected)
    assert (tmp_path / "a.lst").read_text().splitlines(keepends=True) == expected


@pytest.mark.parametrize("threads", ["1", "3"])
def test_records_index_and_checksums_match_the_files(tree, tmp_path, threads, monkeypatch):
    monkeypatch.setattr(recordwriter, "RUN_BYTES", 500)  # so that the threads take turns
    prefix = tmp_path / "out" / "a"
    im2rec.main(["--list", "--recursive", str(prefix), str(tree)])
    im2rec.main(["--pass-through", "--num-thread", threads, str(prefix), str(tree)])
    reader = Reader(f"{prefix}.rec")
    lines = (tmp_path / "out/a.lst").read_text().splitlines()
    assert len(reader) == len(lines) == 16
    for position, line in enumerate(lines):
        key, label, name = line.split("\t")
        assert reader.keys[position] == int(key)
        assert reader[position] == (int(float(label)), (tree / name).read_bytes())
    assert sorted(os.listdir(tmp_path / "out")) == [
        "a.crc",
        "a.idx",
        "a.lst",
        "a.rec",
        "classes.txt",
    ]
    assert Path(f"{prefix}.crc").read_text() == checksums(prefix)
    for flag, ending in (("--checksums", "crc"), ("--index", "idx")):
        before = Path(f"{prefix}.{ending}").read_bytes()
        Path(f"{prefix}.{ending}").unlink()
        im2rec.main([flag, str(prefix)])
        assert Path(f"{prefix}.{ending}").read_bytes() == before


def test_index_of_records_with_repeated_ids_numbers_them(tmp_path):
    for name in ("b", "c"):
        with recordwriter.Writer(tmp_path / name) as writer:
            writer.write(7, pack_header(1, 7, name.encode()))
    both = b"".join((tmp_path / f"{name}.rec").read_bytes() for name in ("b", "c"))
    (tmp_path / "a.rec").write_bytes(both)
    im2rec.main(["--index", str(tmp_path / "a")])
    assert (tmp_path / "a.idx").read_text() == f"0\t0\n1\t{len(both) // 2}\n"


def test_of_several_labels_the_first_is_packed(tmp_path):
    transformed(tmp_path, image_bytes((30, 20)), "--resize", "10")
    assert (tmp_path / "a.crc").read_text() == checksums(tmp_path / "a")
    (tmp_path / "a.lst").write_text("7\t1.500000\t2.000000\t3.000000\timages/x.jpg\n")
    image = (tmp_path / "images/x.jpg").read_bytes()
    im2rec.main(["--pass-through", str(tmp_path / "a"), str(tmp_path)])
    assert Reader(tmp_path / "a.rec")[0] == (1.5, image)


def checksums(prefix):
    """Compute the expected PREFIX.crc with the CRC-32C package and a walk through PREFIX.rec."""
    lines = []
    data = Path(f"{prefix}.rec").read_bytes()
    offset = 0
    while offset < len(data):
        start, payload = offset, b""
        while True:
            magic, length = struct.unpack_from("<II", data, offset)
            flag, length = length >> 29, length & (2**29 - 1)
            payload += data[offset + 8 : offset + 8 + length]
            offset += 8 + length + -length % 4
            if flag in (0, 3):
                break
            payload += struct.pack("<I", magic)
        lines.append(f"{start}\t{google_crc32c.value(payload)}\n")
    return "".join(lines)


# -- transforms ----------------------------------------------------------------------------------


def image_bytes(size, mode="RGB", form="JPEG", **settings):
    """Return an image with a red left half and a blue right half."""
    image = Image.new("RGB", size, (200, 10, 10))
    image.paste((10, 10, 200), (size[0] // 2, 0, *size))
    out = io.BytesIO()
    image.convert(mode).save(out, form, **settings)
    return out.getvalue()


def transformed(tmp_path, data, *flags):
    """Return the image that im2rec packs for these bytes."""
    (tmp_path / "images").mkdir(exist_ok=True)
    (tmp_path / "images" / "x.jpg").write_bytes(data)
    prefix, root = str(tmp_path / "a"), str(tmp_path / "images")
    im2rec.main(["--list", prefix, root])
    im2rec.main([*flags, prefix, root])
    image = Image.open(io.BytesIO(Reader(f"{prefix}.rec")[0][1]))
    image.load()
    return image


@pytest.mark.parametrize(
    ("size", "flags", "expected"),
    [
        ((90, 60), [], (90, 60)),
        ((90, 61), ["--resize", "20"], (29, 20)),
        ((60, 91), ["--resize", "20"], (20, 30)),
    ],
)
def test_resize(tmp_path, size, flags, expected):
    image = transformed(tmp_path, image_bytes(size), *flags)
    assert (image.format, image.mode, image.size) == ("JPEG", "RGB", expected)
    left, right = image.getpixel((2, 2)), image.getpixel((image.width - 3, 2))
    assert left[0] > 150 > left[2]
    assert right[2] > 150 > right[0]


@pytest.mark.parametrize(("flags", "quality"), [([], 95), (["--quality", "40"], 40)])
def test_quality(tmp_path, flags, quality):
    packed, wanted = transformed(tmp_path, image_bytes((90, 60)), *flags), io.BytesIO()
    packed.save(wanted, "JPEG", quality=quality)
    assert packed.quantization == Image.open(wanted).quantization


def test_threads_keep_the_order():
    assert list(recordwriter.in_order(str, range(100), 2)) == [str(number) for number in range(100)]


@pytest.mark.parametrize(
    ("mode", "form"), [("CMYK", "JPEG"), ("L", "JPEG"), ("RGBA", "PNG"), ("P", "PNG")]
)
def test_every_image_becomes_a_colour_jpeg(tmp_path, mode, form):
    image = transformed(tmp_path, image_bytes((30, 20), mode, form))
    assert (image.format, image.mode) == ("JPEG", "RGB")


def test_upper_8_of_16_bits_are_used(tmp_path):
    """OpenCV, which MXNet's im2rec uses, does the same."""
    image = transformed(tmp_path, png(16, 0, (0x4000,)))
    assert image.getpixel((10, 10)) == (64, 64, 64)


def test_exif_rotation_is_applied_and_a_corrupt_block_ignored(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90° clockwise
    assert transformed(tmp_path, image_bytes((90, 60), exif=exif)).size == (60, 90)
    corrupt = b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12"
    assert transformed(tmp_path, image_bytes((90, 60), exif=corrupt)).size == (90, 60)


# -- bad input -----------------------------------------------------------------------------------


def make_set(tmp_path, **files):
    """Write images by name, and their list; return PREFIX and ROOT."""
    (tmp_path / "images").mkdir()
    for name, data in files.items():
        (tmp_path / "images" / f"{name}.jpg").write_bytes(data)
    prefix, root = str(tmp_path / "a"), str(tmp_path / "images")
    im2rec.main(["--list", prefix, root])
    return prefix, root


BAD = {
    "empty": b"",
    "folder": b"x",
    "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n",
    "good": b"some image",
    "gone": b"x",
    "huge": b"x",
}


def test_bad_files_are_named_or_left_out(tmp_path):
    prefix, root = make_set(tmp_path, **BAD)
    for name in ("gone", "folder"):
        (tmp_path / "images" / f"{name}.jpg").unlink()
    (tmp_path / "images" / "folder.jpg").mkdir()
    text = Path(f"{prefix}.lst").read_text()  # a list may name images elsewhere, as MXNet's
    Path(f"{prefix}.lst").write_text(text.replace("good.jpg", f"{root}/good.jpg"))
    os.truncate(tmp_path / "images" / "huge.jpg", 2**29)  # of which the disk holds nothing
    (tmp_path / "a.rec").write_bytes(b"\n#\xd7\xce, the old one")
    done = run("--pass-through", prefix, root, code=2)
    assert done.stderr.startswith(f"error: {prefix}.lst: 5 images cannot be packed, so nothing was")
    assert f"{root}/empty.jpg: the file is empty\n" in done.stderr
    assert f"{root}/pointer.jpg: a git-LFS or git-annex pointer" in done.stderr
    assert f"{root}/gone.jpg: No such file or directory\n" in done.stderr
    assert f"{root}/huge.jpg: 536,870,912 bytes are more than a record holds\n" in done.stderr
    assert f"{root}/folder.jpg: not a regular file\n" in done.stderr
    assert "--skip-bad" in done.stderr
    assert (tmp_path / "a.rec").read_bytes() == b"\n#\xd7\xce, the old one"
    done = run("--pass-through", "--skip-bad", prefix, root)
    assert "note: 5 images will be left out" in done.stderr
    assert [image for _, image in Reader(f"{prefix}.rec")] == [b"some image"]
    (entry,) = read_list(f"{prefix}.lst")
    assert entry.path == f"{root}/good.jpg"


def test_images_left_out_are_taken_off_the_list(tmp_path, capsys):
    """The list then says what the records hold, and `verify` finds no error."""
    for name, data in {
        "cat/a": image_bytes((40, 30)),
        "cat/é": b"x",
        "dog/b": image_bytes((30, 40)),
    }.items():
        path = tmp_path / "images" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    prefix, root = str(tmp_path / "a"), str(tmp_path / "images")
    im2rec.main(["--list", "--recursive", prefix, root])
    before = Path(f"{prefix}.lst").read_bytes().splitlines()
    im2rec.main(["--skip-bad", prefix, root])
    assert "a.lst.all keeps the full list" in capsys.readouterr().err
    assert Path(f"{prefix}.lst.all").read_bytes().splitlines() == before
    after = Path(f"{prefix}.lst").read_bytes().splitlines()
    assert after == [line for line in before if "é".encode() not in line]
    assert verify.main([f"{prefix}.rec"]) == 0
    (tmp_path / "images" / "dog" / "b.jpg").write_bytes(b"")
    im2rec.main(["--skip-bad", prefix, root])  # the first list is kept, not the second one
    assert Path(f"{prefix}.lst.all").read_bytes().splitlines() == before
    (tmp_path / "images" / "dog" / "new.jpg").write_bytes(image_bytes((30, 40)))
    im2rec.main(["--list", "--recursive", prefix, root])  # a new list, and so a new full one
    im2rec.main(["--skip-bad", prefix, root])
    assert len(Path(f"{prefix}.lst.all").read_bytes().splitlines()) == len(before) + 1


def test_images_next_to_the_class_folders_are_left_out(tmp_path, capsys):
    for name in ("a_loose.jpg", "cat/a.jpg", "dog/b.jpg"):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(b"x")
    im2rec.main(["--list", "--recursive", str(tmp_path / "a"), str(tmp_path / "images")])
    assert "1 image outside the class folders (a_loose.jpg)" in capsys.readouterr().out
    labels = {entry.path: entry.labels for entry in read_list(tmp_path / "a.lst")}
    assert labels == {"cat/a.jpg": (0.0,), "dog/b.jpg": (1.0,)}
    assert (tmp_path / "classes.txt").read_text() == "0\tcat\t\n1\tdog\t\n"


def test_a_file_that_is_still_written_is_not_packed(tmp_path, monkeypatch):
    """It grows when the free space is checked, after its size was taken."""
    prefix, root = make_set(tmp_path, x=b"half of it")

    def grow(_):
        (tmp_path / "images" / "x.jpg").write_bytes(b"half of it, and the rest")
        return SimpleNamespace(free=10**9)

    monkeypatch.setattr(common.shutil, "disk_usage", grow)
    with pytest.raises(UserError, match=r"x\.jpg: the file was changed while it was being packed"):
        im2rec.main(["--pass-through", prefix, root])
    assert not (tmp_path / "a.rec").exists()


@pytest.mark.parametrize("skip", [False, True])
def test_images_that_do_not_decode(tmp_path, skip, capsys):
    whole = image_bytes((300, 200))
    prefix, root = make_set(tmp_path, a=whole, b=b"text", c=whole[:2000], d=whole)
    if skip:
        im2rec.main(["--skip-bad", "--resize", "30", prefix, root])
        assert len(Reader(f"{prefix}.rec")) == 2
        message = capsys.readouterr().err
    else:
        with pytest.raises(UserError, match="2 images cannot be packed") as caught:
            im2rec.main(["--resize", "30", prefix, root])
        message = str(caught.value)
        assert not (tmp_path / "a.rec").exists()
    assert f"{root}/b.jpg: it is not an image" in message
    assert f"{root}/c.jpg: it is damaged and does not decode" in message
    assert not list(tmp_path.glob(".*"))


def test_free_space_is_checked_first(tmp_path, monkeypatch):
    prefix, root = make_set(tmp_path, x=b"y" * 3_000_000)
    small = SimpleNamespace(free=1_000_000)
    monkeypatch.setattr(common.shutil, "disk_usage", lambda _: small)
    with pytest.raises(UserError, match=r"a\.rec needs 3\.00MB, but .*B are free"):
        im2rec.main(["--pass-through", prefix, root])


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("0\t1\n", "line 1 is '0\\t1', not `index <tab> label <tab> path`"),
        ("0\t1\tx.jpg\none\t1\ty.jpg\n", "line 2 is"),
        ("0\ta\tx.jpg\n", "line 1 is"),
        ("-1\t0\tx.jpg\n", "line 1 is"),
        ("5\t0\tx.jpg\n5\t0\ty.jpg\n", "line 2 has the index 5 of an earlier line"),
    ],
)
def test_broken_list(tmp_path, lines, reason):
    (tmp_path / "a.lst").write_text(lines)
    with pytest.raises(UserError) as caught:
        im2rec.main(["--pass-through", str(tmp_path / "a"), str(tmp_path)])
    assert reason in str(caught.value)
    assert str(tmp_path / "a.lst") in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--list", "{t}/a", "{t}/nowhere"], "{t}/nowhere: there is no such folder of images"),
        (["--list", "{t}/a", "{t}"], "{t}: no images with the extensions .jpeg .jpg .png"),
        (["{t}/a", "{t}"], "{t}/a.lst: there is no such list; make it first with"),
        (["{t}/a"], "ROOT, the folder that holds the images, is missing"),
        (["--qualty", "9", "{t}/a", "{t}"], "unknown flag or argument --qualty: did you mean"),
        (["--index", "{t}/a"], "{t}/a.rec: the record file cannot be opened"),
        (["--index", "--checksums", "{t}/a"], "--list, --index and --checksums exclude each other"),
        (["--pass-through", "--resize", "9", "{t}/a", "{t}"], "--pass-through keeps the files'"),
        (["--resize", "70000", "{t}/a", "{t}"], "argument --resize:"),
    ],
)
def test_bad_commands_get_one_line(tmp_path, arguments, message, error_of):
    error = error_of(im2rec.main, *(argument.format(t=tmp_path) for argument in arguments))
    assert error.startswith(message.format(t=tmp_path))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("touch a.lst", "{t}/images: there is no such folder of images"),
        ("mkdir a.lst", "{t}/a.lst is not a regular file (a folder,"),
        ("ln -s gone a.lst", "{t}/a.lst: this link leads to gone, which is missing"),
    ],
)
def test_packing_without_a_list_or_its_images(tmp_path, script, message, error_of):
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True)
    before = os.listdir(tmp_path)
    error = error_of(im2rec.main, f"{tmp_path}/a", f"{tmp_path}/images")
    assert message.format(t=tmp_path) in error
    assert os.listdir(tmp_path) == before


def test_a_folder_in_place_of_the_other_list_is_not_read(tree, tmp_path):
    (tmp_path / "val.lst").mkdir()
    im2rec.main(["--list", "--recursive", str(tmp_path / "train"), str(tree)])
    im2rec.main(["--pass-through", str(tmp_path / "train"), str(tree)])
    assert (tmp_path / "train.rec").exists()


def test_odd_folders_are_refused_or_noted(tree, tmp_path, capsys, error_of):
    command = ["--list", "--recursive", str(tmp_path / "a"), str(tree)]
    (tree / "zz" / "up").symlink_to(tree)
    assert "zz/up: this link leads back" in error_of(im2rec.main, *command)
    (tree / "zz" / "up").unlink()
    (tree / "zz" / "a\tb.jpg").write_bytes(b"x")
    assert "rename the file" in error_of(im2rec.main, *command)
    (tree / "zz" / "a\tb.jpg").unlink()
    (tree / "zz" / "c").mkdir()
    shutil.copytree(tree / "zz", tree / "zz" / ".ipynb_checkpoints")
    im2rec.main(command)
    shown = capsys.readouterr()
    assert "note: zz/c holds no images and gets no label" in shown.err
    assert "1 hidden file (zz/.ipynb_checkpoints)" in shown.out


# -- the whole set, several processes, kills -----------------------------------------------------


def small_set(root, images=3):
    for split in ("train", "val"):
        for name in ("a", "b"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(images):
                (folder / f"{i}.jpg").write_bytes(f"{split} {name} {i}".encode() * 5000)


def test_ensure_records_works_once(tmp_path):
    small_set(tmp_path)
    folder = im2rec.ensure_records(tmp_path)
    assert folder == tmp_path / "records"
    endings = ("crc", "idx", "lst", "rec")
    expected = [
        ".complete",
        "classes.txt",
        *(f"{s}.{e}" for s in ("train", "val") for e in endings),
    ]
    assert sorted(os.listdir(folder)) == expected
    before = (folder / "train.rec").stat().st_ino
    im2rec.ensure_records(tmp_path)
    assert (folder / "train.rec").stat().st_ino == before
    for name in (".complete", "val.rec"):  # then you have packed train.rec
        (folder / name).unlink()
    im2rec.ensure_records(tmp_path)
    assert (folder / "train.rec").stat().st_ino == before
    assert sorted(os.listdir(folder)) == expected
    (folder / ".complete").rename(folder / ".lock")  # or a killed run has
    im2rec.ensure_records(tmp_path)
    assert (folder / "train.rec").stat().st_ino != before
    assert sorted(os.listdir(folder)) == expected


def test_a_lock_of_others_empties_no_file(tmp_path):
    small_set(tmp_path)
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / ".lock").symlink_to(tmp_path / "mine")
    im2rec.ensure_records(tmp_path)
    assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.slow
def test_sigterm_removes_drafts(tmp_path):
    image = image_bytes((1000, 700))
    prefix, root = make_set(tmp_path, **{f"x{i}": image for i in range(100)})
    command = [sys.executable, "-m", "data_prep.im2rec", "--resize", "690", prefix, root]
    child = subprocess.Popen(
        command, env=clean_environment(), stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.nice(19),  # on a busy machine too, the signal comes before its end
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(".a.*.tmp.rec")) and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=30) == 143
    assert sorted(os.listdir(tmp_path)) == ["a.lst", "images"]


LATE_THREAD = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
typedef void *(*Routine)(void *);
static Routine routine;
static void *wait_for_the_end(void *argument) {
    mkdir("starting", 0700);
    for (int i = 0; access("torn down", F_OK) && i < 30000; i++) usleep(1000);
    return routine(argument);
}
int pthread_create(pthread_t *thread, const pthread_attr_t *how, Routine start, void *argument) {
    routine = start;
    return ((int (*)(pthread_t *, const pthread_attr_t *, Routine, void *))
        dlsym(RTLD_NEXT, "pthread_create"))(thread, how, wait_for_the_end, argument);
}
"""
AT_THE_END = """
import os, runpy, sys, time
class Held:
    def __del__(self, mkdir=os.mkdir, sleep=time.sleep):
        mkdir("torn down")
        sleep(1)
sys.held = Held()
runpy.run_module("data_prep.im2rec", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.needs("compiler")
def test_sigterm_while_a_thread_starts(tmp_path):
    """Python frees the state of a thread that begins only while the interpreter is torn down.

    A busy machine lets the progress bar's thread begin so late.
    """
    prefix, root = make_set(tmp_path, x=image_bytes((40, 30)))
    (tmp_path / "late.c").write_text(LATE_THREAD)
    (tmp_path / "own.py").write_text(AT_THE_END)
    compiler = ["g++", "-x", "c", "-shared", "-fPIC", "-o", "late.so", "late.c", "-ldl"]
    subprocess.run(compiler, cwd=tmp_path, check=True)
    command = [sys.executable, "own.py", prefix, root]
    late = {"LD_PRELOAD": str(tmp_path / "late.so"), "MALLOC_PERTURB_": "165"}  # in what is freed
    env = clean_environment(**late, OPENBLAS_NUM_THREADS="1")
    child = subprocess.Popen(command, cwd=tmp_path, env=env)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "starting").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (tmp_path / "starting").exists()
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=60) == 143
    finally:
        child.kill()
    assert not list(tmp_path.glob(".a.*"))


@pytest.mark.acceptance
def test_record_files_beyond_4_gib_are_written(tmp_path):
    """Nine sparse files of 500 MB and a small one: 4.5 GB are really written."""
    if shutil.disk_usage(tmp_path).free < 10e9:
        pytest.fail("this test needs 10 GB in the temporary folder")
    (tmp_path / "images").mkdir()
    for i in range(10):
        with open(tmp_path / "images" / f"{i}.jpg", "wb") as file:
            file.truncate(500_000_000 if i < 9 else 10)
    prefix, root = tmp_path / "a", tmp_path / "images"
    (tmp_path / "a.lst").write_text("".join(f"{i}\t0.0\t{i}.jpg\n" for i in range(10)))
    run("--pass-through", "--num-thread", "2", prefix, root)
    reader = Reader(f"{prefix}.rec")
    assert reader.offsets.tolist() == [i * 500_000_032 for i in range(10)]
    assert reader[9] == (0, bytes(10))
    os.unlink(f"{prefix}.rec")
