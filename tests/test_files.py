"""Output files are whole, links followed, devices written to; one run per prefix; full disks."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_prep import im2rec, roadsigns, tfrecord
from rn50lib import files
from rn50lib.errors import UserError
from rn50lib.files import write_file
from tests.conftest import clean_environment
from tests.support import TINY, Photos

Run = Callable[..., Any]
TRAIN = ("train", *TINY, "--benchmark-iters", "2", "--no-val", "--loader", "synthetic",
         "--num-classes", "6")  # fmt: skip
PNG = b"\x89PNG"


def output(*argv: object) -> bytes:
    """Return what `rn50` writes to standard output."""
    command = [sys.executable, "-m", "rn50", *map(str, argv)]
    return subprocess.run(
        command, stdout=subprocess.PIPE, env=clean_environment(), check=True
    ).stdout


@pytest.mark.needs("torch")
@pytest.mark.slow
def test_a_device_is_written_to(rn50: Run, trained: Path, photos: Photos) -> None:
    Path("null").symlink_to("/dev/null")
    assert rn50(*TRAIN, "-e", "1", "--report", "null").status == 0
    assert Path("null").is_symlink() and stat.S_ISCHR(os.stat("null").st_mode)
    Path("out.npz").symlink_to("/dev/stdout")
    image = photos.files("val")[0]
    made = output("predict", trained / "m", "2", image, "-o", "out.npz")
    assert b"PK" in made and not made.endswith(b"out.npz\n")
    flags = ("--data-root", photos.root, *TINY)
    scored = output("score", trained / "m", "2", *flags, "--report", "/dev/stdout").decode()
    report, end = json.JSONDecoder().raw_decode(scored)
    assert report["metrics"]["val.top1"] and "val.top1" in scored[end:]


@pytest.mark.needs("torch")
def test_links_are_followed_and_permissions_kept(rn50: Run, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    assert rn50("plot", trained / "report.json", "-o", "place/kept.png").status == 0
    target = tmp_path / "place" / "kept.png"
    target.chmod(0o640)
    Path("link.png").symlink_to("place/kept.png")
    Path("new.png").symlink_to("place/made")  # what it leads to is not there yet
    for name, file in (("link.png", target), ("new.png", tmp_path / "place" / "made")):
        assert rn50("plot", trained / "report.json", "-o", name).status == 0
        assert Path(name).is_symlink() and not file.is_symlink()
        assert file.read_bytes().startswith(PNG)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "place" / "made").stat().st_mode) == 0o666 & ~umask
    assert sorted(os.listdir("place")) == ["kept.png", "made"]


def test_drafts_follow_no_link_and_are_not_shared(tmp_path: Path) -> None:
    """In a shared folder others plant links, and processes of other containers have equal pids."""
    file, mine, used = tmp_path / "report.json", tmp_path / "mine", list[Path]()
    mine.write_text("precious")

    def outer(draft: Path) -> None:
        with open(draft, "w") as opened:
            opened.write("one ")
            write_file(file, inner)
            assert file.read_text() == "the other"
            opened.write("text")

    def inner(draft: Path) -> None:
        used.append(draft)
        draft.write_text("the other")

    write_file(file, outer)
    assert file.read_text() == "one text"
    used[0].symlink_to(mine)
    write_file(file, inner)
    assert mine.read_text() == "precious" and not file.is_symlink()


# --- an output replaces only an earlier one of its kind -------------------------------------------


def test_a_copy_of_your_own_next_to_a_folder_is_kept(photos: Photos, tmp_path: Path) -> None:
    mine = tmp_path / "shards.old" / "thesis"
    mine.parent.mkdir()
    mine.write_text("mine")
    for _ in range(2):
        tfrecord.convert(photos.root, tmp_path / "shards", jobs=0, quiet=True)
    assert mine.read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["shards", "shards.old"]


@pytest.mark.parametrize("folder", ["shards.part", "home"])
def test_a_part_that_others_made_is_not_emptied(
    photos: Photos, tmp_path: Path, folder: str
) -> None:
    mine, part = tmp_path / folder / "docs" / "thesis", tmp_path / "shards.part"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    if folder == "home":  # as others may link it in a shared folder
        part.symlink_to(folder)
    with pytest.raises(UserError, match="shards.part: this was not made by this program"):
        tfrecord.convert(photos.root, tmp_path / "shards", jobs=0, quiet=True)
    assert mine.read_text() == "mine" and not (tmp_path / "shards").exists()
    mine.rename(tmp_path / "moved away")
    mine.parent.rmdir()
    tfrecord.convert(photos.root, tmp_path / "shards", jobs=0, quiet=True)


def test_a_file_is_on_the_disk_before_it_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut may leave its name with no content, and nothing under the old one."""
    file, synced = tmp_path / "report.json", list[tuple[os.stat_result, bool]]()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append((os.fstat(fd), file.exists())))
    write_file(file, "text")
    (draft, too_early), (folder, in_place) = synced
    assert os.path.samestat(draft, file.stat()) and draft.st_size == 4 and not too_early
    assert os.path.samestat(folder, tmp_path.stat()) and in_place


@pytest.mark.needs("torch")
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_figure_of_your_own_is_kept(rn50: Run, trained: Path, suffix: str) -> None:
    from matplotlib.figure import Figure

    Figure().savefig(f"mine.{suffix}")
    before = Path(f"mine.{suffix}").read_bytes()
    report = trained / "report.json"
    line = rn50("plot", report, "-o", f"mine.{suffix}").error
    assert f"mine.{suffix} exists and is not a figure of rn50" in line
    assert Path(f"mine.{suffix}").read_bytes() == before
    for _ in range(2):
        assert rn50("plot", report, "-o", f"ours.{suffix}").status == 0
    begins = {"png": PNG, "svg": b"<?xml", "pdf": b"%PDF"}
    assert Path(f"ours.{suffix}").read_bytes().startswith(begins[suffix])


@pytest.mark.needs("torch")
def test_a_figure_goes_through_a_fifo(rn50: Run, trained: Path) -> None:
    os.mkfifo("pipe.png")
    with subprocess.Popen(["cat", "pipe.png"], stdout=subprocess.PIPE) as reader:
        assert rn50("plot", trained / "report.json", "-o", "pipe.png").status == 0
        assert reader.communicate()[0].startswith(PNG)
    assert stat.S_ISFIFO(os.stat("pipe.png").st_mode)


@pytest.mark.parametrize(
    ("flags", "file", "content"),
    [
        (["--run-dir", "r"], "r/report.json", '{"mine": 1}'),
        (["--run-dir", "r"], "r/experiment.json", "my notes"),
        (["--model-prefix", "m"], "m-symbol.json", '{"nodes": [], "heads": []}'),  # MXNet's
        (["--model-prefix", "m"], "m-0000.safetensors", "an imported checkpoint"),
        (["--report", "r.json"], "r.json", "[1]"),
    ],
)
def test_a_run_replaces_no_file_of_another_program(
    rn50: Run, flags: list[str], file: str, content: str
) -> None:
    Path(file).parent.mkdir(exist_ok=True)
    Path(file).write_text(content)
    for verb in ("train", "run"):
        assert file in rn50(verb, *TRAIN[1:], "-e", "1", *flags).error
    shown = rn50("run", *TRAIN[1:], "-e", "1", *flags, "--dry-run")
    assert shown.status == 2 and file in shown.err
    assert Path(file).read_text() == content and not Path("runs").exists()


@pytest.mark.parametrize(("suffix", "flag"), [("lst", "--list"), ("rec", "--pass-through"),
                                              ("idx", "--pass-through")])  # fmt: skip
def test_im2rec_replaces_only_lists_and_records(
    rn50: Run, photos: Photos, tmp_path: Path, suffix: str, flag: str
) -> None:
    root, prefix = str(photos.root / "train"), str(tmp_path / "a")
    if flag != "--list":
        im2rec.main(["--list", "--recursive", prefix, root])
    file = tmp_path / f"a.{suffix}"
    file.write_text("my notes")
    with pytest.raises(UserError, match=f"a.{suffix} exists and is not a"):
        im2rec.main([flag, "--recursive", prefix, root])
    assert file.read_text() == "my notes"
    file.unlink()
    for _ in range(2):
        im2rec.main([flag, "--recursive", prefix, root])


@pytest.mark.parametrize(
    ("argv", "file"),
    [
        ("grade in -o class.html", "class.html"),
        ("grade in -o class.html", "class.csv"),
        ("run 00 --profile ci --out .", "00_start_here.ipynb"),
        ("run 00 --profile ci --out .", "index.html"),
    ],
)
def test_the_workshop_replaces_only_its_own_files(rn50: Run, argv: str, file: str) -> None:
    Path("in").mkdir()
    Path(file).write_text('{"mine": 1}')
    line = rn50("workshop", *argv.split()).error
    assert f"{file} exists" in line
    assert Path(file).read_text() == '{"mine": 1}'


# --- names and encodings --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize("encoding", ["ascii", pytest.param("utf-8", marks=pytest.mark.acceptance)])
def test_names_that_cannot_be_printed_are_escaped(
    trained: Path, photos: Photos, tmp_path: Path, encoding: str
) -> None:
    """Linux allows names that are not UTF-8, and a terminal may be limited to ASCII."""
    folder = os.fsencode(tmp_path) + b"/bl\xfce \xe2\x82\xac"
    os.mkdir(folder)
    for split in ("train", "val"):
        os.makedirs(folder + f"/set/{split}/c".encode() + b"\xff")
        os.makedirs(folder + f"/set/{split}/d".encode())
        for name in (b"/c\xff/0.jpg", b"/d/1.jpg"):
            os.link(photos.files("val")[0], folder + f"/set/{split}".encode() + name)
    for module, *argv in (
        ("data_prep.verify", b"set", b"--quiet"),
        ("data_prep.im2rec", b"--list", b"--recursive", b"r\xfc", b"set/train"),
        ("data_prep.im2rec", b"--pass-through", b"r\xfc", b"set/train"),
        ("data_prep.tfrecord", b"set", b"--jobs", b"1"),
        ("rn50", b"predict", os.fsencode(trained / "m"), b"2", b"set/val/c\xff/0.jpg"),
        ("rn50", b"workshop", b"status"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", module, *argv], cwd=folder, capture_output=True,
            env=clean_environment(PYTHONIOENCODING=encoding),
        )  # fmt: skip
        done.stdout.decode(encoding)  # all of it is valid in the encoding
        assert done.returncode == 0 or module == "data_prep.verify", done.stderr
        assert b"Traceback" not in done.stderr
    assert b"c\xff\t" in open(folder + b"/set/tfrecord/classes.txt", "rb").read()


# --- one prefix, one run --------------------------------------------------------------------------


@pytest.mark.needs("torch")
def test_a_second_run_does_not_overwrite_the_checkpoints_of_the_first(rn50: Run) -> None:
    flags = (*TRAIN, "--model-prefix", "m", "-e")
    assert rn50(*flags, "2").status == 0
    first = Path("m-0001.safetensors").read_bytes()
    for verb in ("train", "run"):
        line = rn50(verb, *flags[1:], "1").error
        assert "up to m-0002.safetensors" in line
        assert "--model-prefix m --resume" in line and "remove m-[0-9]*.safetensors" in line
    assert "checkpoints after epoch 1" in rn50(*flags, "2", "--load-epoch", "1").error
    assert Path("m-0001.safetensors").read_bytes() == first
    assert rn50(*flags, "3", "--resume").status == 0
    assert rn50(*flags, "4", "--load-epoch", "3").status == 0
    assert rn50(*TRAIN, "-e", "1", "--model-prefix", "other").status == 0


@pytest.mark.needs("torch")
@pytest.mark.slow
def test_prefix_and_run_folder_are_locked_during_a_run(
    rn50: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-m", "rn50", *TRAIN, "-e", "100000", "--set", "keep=2"]
    running = subprocess.Popen(
        [*command, "--model-prefix", "m", "--run-dir", "r"], cwd=tmp_path, env=clean_environment(),
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not list(tmp_path.glob("m-*.safetensors")):
            assert running.poll() is None
            time.sleep(0.1)
        running.send_signal(signal.SIGSTOP)  # its locks stay, the processor is free
        monkeypatch.setattr(files, "LOCK_S", 0.2)
        for verb in ("train", "run"):
            line = rn50(verb, *TRAIN[1:], "-e", "1", "--model-prefix", "m", "--resume").error
            assert "--model-prefix m: another run is writing there" in line
            line = rn50(verb, *TRAIN[1:], "--model-prefix", "n", "--run-dir", "r").error
            assert "--run-dir r: another run is writing there" in line
            assert not list(tmp_path.glob("n-*"))
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    done = max(int(path.stem[2:6]) for path in tmp_path.glob("m-*.safetensors"))
    flags = ("--model-prefix", "m", "--run-dir", "r", "--resume")
    again = rn50(*TRAIN, "-e", str(done + 1), *flags)
    assert again.status == 0, again.err


def test_a_lock_is_waited_for_while_a_run_ends(tmp_path: Path) -> None:
    taken = threading.Event()

    def hold() -> None:
        with files.lock(tmp_path / ".lock", "--run-dir r"):
            taken.set()
            time.sleep(0.3)

    first = threading.Thread(target=hold)
    first.start()
    assert taken.wait(60)
    with files.lock(tmp_path / ".lock", "--run-dir r"):
        first.join()


# --- no room --------------------------------------------------------------------------------------


def limited(size: int, *argv: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a module with a limit of `size` bytes for any file, as on a full disk."""
    return subprocess.run(
        [sys.executable, "-m", *map(str, argv)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
        env=clean_environment(**environment), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_full_disk_for_shards_is_reported(photos: Photos, tmp_path: Path) -> None:
    out = tmp_path / "shards"
    flags = ("data_prep.tfrecord", photos.root, out, "--jobs", "1", "--val-shards", "1")
    ended = limited(5000, *flags, "--train-shards", "1")
    assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 1
    assert "-00000-of-00001: File too large; make room" in ended.stderr
    assert not out.exists()


@pytest.mark.parametrize("make", [
    lambda photos, out: tfrecord.convert(photos, out, quiet=True),
    lambda photos, out: roadsigns.ensure(out, train=12, val=12, quiet=True),
], ids=["tfrecord", "roadsigns"])  # fmt: skip
def test_free_space_is_checked_before_the_work(
    make: Callable[[Path, Path], object], photos: Photos, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10_000))
    with pytest.raises(UserError, match="needs .*, but 10.0kB are free"):
        make(photos.root, tmp_path / "out")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["rn50 --help", "rn50 run --help", "data_prep.im2rec --help"])
def test_help_to_a_full_device_is_a_one_line_error(command: str, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", *command.split()], stdout=full, stderr=subprocess.PIPE,
            env=clean_environment(PYTHONUNBUFFERED=unbuffered), text=True,
        )  # fmt: skip
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: standard output") and "No space left" in line
