"""Our record files against those of MXNet 1.9.1's own im2rec, byte for byte, and read by MXNet."""

import json
import os
import random
import subprocess
import sys

import pytest

from tests.capabilities import mxnet_python

pytestmark = [pytest.mark.acceptance, pytest.mark.needs("mxnet")]

MAGIC = bytes.fromhex("0a23d7ce")

PEER = """
import os, runpy, sys, mxnet
tool = os.path.join(os.path.dirname(mxnet.__file__), "tools", "im2rec.py")
sys.argv[0] = tool
runpy.run_path(tool, run_name="__main__")
"""

READ = """
import json, sys, zlib, mxnet
prefix = sys.argv[1]
reader = mxnet.recordio.MXIndexedRecordIO(prefix + ".idx", prefix + ".rec", "r")
print(json.dumps([[key, zlib.crc32(reader.read_idx(key))] for key in reader.keys]))
"""


def imagenet_like(root, rng):
    """Class folders as ImageNet names them."""
    for _ in range(30):
        wnid = f"n{rng.randrange(10**8):08}"
        for i in range(20):
            path = root / wnid / f"{wnid}_{i}.JPEG"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(rng.randbytes(rng.randrange(100, 200_000)))


def odd_names(root, rng):
    """Blanks, letters beyond ASCII, capitals, nesting, images next to folders, other files."""
    for folder in ("", "b c", "B", "ü/ö/ä", "Ωμέγα", "a.b", "zz/empty"):
        (root / folder).mkdir(parents=True, exist_ok=True)
        if folder.endswith("empty"):
            continue
        for name in ("a b.jpg", "é.JPG", "z.jpeg", "10.png", "9.PNG", "x.gif", ".jpg", "no ending"):
            (root / folder / name).write_bytes(rng.randbytes(rng.randrange(1, 3000)))


def magic_inside(root, rng):
    """Images that hold the magic: aligned or not, at both ends, several times, in a row."""
    for i in range(200):
        data = bytearray()
        for _ in range(rng.randrange(1, 8)):
            data += rng.choice([MAGIC, MAGIC * 3, MAGIC[:2], rng.randbytes(rng.randrange(9))])
        path = root / f"class {i % 7}" / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)


def ours(*arguments):
    """Run our im2rec."""
    command = [sys.executable, "-m", "data_prep.im2rec", *map(str, arguments)]
    subprocess.run(command, check=True, timeout=600, stdout=subprocess.DEVNULL)


def theirs(code, *arguments):
    """Run code in MXNet's Python; return what it printed."""
    command = [mxnet_python(), "-c", code, *map(str, arguments)]
    done = subprocess.run(command, check=True, timeout=600, capture_output=True, text=True)
    return done.stdout


def assert_same(left, right):
    """Assert that both folders hold the same files with the same bytes.

    They contain record files; only ours have checksums, in separate files.
    """
    names = sorted(name for name in os.listdir(left) if not name.endswith(".crc"))
    assert names == sorted(name for name in os.listdir(right) if not name.endswith(".crc"))
    assert any(name.endswith(".rec") for name in names)
    for name in names:
        assert (left / name).read_bytes() == (right / name).read_bytes(), name


@pytest.mark.parametrize("make", [imagenet_like, odd_names, magic_inside])
@pytest.mark.parametrize(
    ("list_flags", "threads"),
    [
        ((), 1),
        (("--no-shuffle",), 2),
        (("--exts", ".jpg", ".gif"), 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_same_bytes(tmp_path, make, list_flags, threads):
    for folder in ("root", "ours", "theirs"):
        (tmp_path / folder).mkdir()
    make(tmp_path / "root", random.Random(make.__name__))
    if make is not odd_names and "--exts" in list_flags:
        list_flags = ("--exts", ".jpg", ".jpeg")
    make_list = ["--list", "--recursive", *list_flags]
    pack = ["--pass-through", "--num-thread", threads]
    for arguments in (make_list, pack):
        # `--exts` takes all that follows, so something else has to stand before the prefix.
        ours(*arguments, "--quality", "95", tmp_path / "ours" / "t", tmp_path / "root")
        theirs(PEER, *arguments, "--quality", "95", tmp_path / "theirs" / "t", tmp_path / "root")
    assert_same(tmp_path / "ours", tmp_path / "theirs")


def test_same_bytes_with_several_labels(tmp_path):
    for folder in ("root", "ours", "theirs"):
        (tmp_path / folder).mkdir()
    rng = random.Random(3)
    magic_inside(tmp_path / "root", rng)
    lines = []
    for key, path in enumerate(sorted((tmp_path / "root").glob("*/*"))):
        labels = "\t".join(f"{rng.uniform(-5, 5000):f}" for _ in range(rng.randrange(1, 7)))
        lines.append(f"{key * 3}\t{labels}\t{path.relative_to(tmp_path / 'root')}\n")
    for folder in ("ours", "theirs"):
        (tmp_path / folder / "t.lst").write_text("".join(lines))
    arguments = ["--pass-through", "--pack-label"]
    ours(*arguments, tmp_path / "ours" / "t", tmp_path / "root")
    theirs(PEER, *arguments, tmp_path / "theirs" / "t", tmp_path / "root")
    assert_same(tmp_path / "ours", tmp_path / "theirs")


def test_mxnet_reads_what_our_writer_writes_and_we_read_the_same(tmp_path):
    import zlib

    from data_prep.encoding import pack_header
    from data_prep.recordwriter import Writer
    from rn50lib.data.recordio import Reader

    rng = random.Random(4)
    with Writer(tmp_path / "a") as writer:
        for i in range(500):
            image = b"".join(
                rng.choice([MAGIC, b"", rng.randbytes(rng.randrange(20))]) for _ in range(9)
            )
            labels = [float(rng.randrange(9)) for _ in range(rng.randrange(2, 5))]
            writer.write(i * 7, pack_header(labels if i % 3 else labels[0], i * 7, image))
    reader = Reader(tmp_path / "a.rec")
    expected = [[int(k), zlib.crc32(reader.read(i))] for i, k in enumerate(reader.keys)]
    assert json.loads(theirs(READ, tmp_path / "a")) == expected
