"""The built-in data set as a user meets it: the command, the files on disk, what a kill leaves."""

from __future__ import annotations

import collections
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from data_prep import roadsigns, verify
from data_prep.signs.classes import IDS
from rn50lib.errors import UserError
from tests.conftest import clean_environment
from tests.support import leaving_nothing, until

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--train", "24", "--val", "12", "--seed", "3")


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "data_prep.roadsigns", *map(str, args)]


def run(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*args), cwd=ROOT, capture_output=True, text=True, timeout=120)


def contents(root: Path) -> dict[str, bytes]:
    """Every file below `root`, hidden ones too, by its relative path."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 24 + 12 images, drawn by one process."""
    out = tmp_path_factory.mktemp("roadsigns") / "set"
    result = run(out, *SMALL, "--jobs", 1)
    assert result.returncode == 0, result.stderr
    return out


# --- what is on disk ----------------------------------------------------------------------------


def test_layout_and_images_are_like_imagenets(small: Path) -> None:
    assert sorted(p.name for p in small.iterdir()) == [".complete", "classes.txt", "train", "val"]
    assert os.listdir(small.parent) == ["set"], "the work folder is gone"
    rows = [line.split("\t") for line in (small / "classes.txt").read_text().splitlines()]
    assert [row[:2] for row in rows] == [[str(i), id_] for i, id_ in enumerate(IDS)]
    assert list(IDS) == sorted(IDS) and all(words for *_, words in rows)
    for split, each in (("train", 2), ("val", 1)):
        counts = collections.Counter(p.parent.name for p in (small / split).glob("*/*.jpg"))
        assert counts == dict.fromkeys(IDS, each)
    paths = [*small.glob("*/*/*.jpg")]
    assert len({path.read_bytes() for path in paths}) == 36
    found = [Image.open(path) for path in paths]
    for image in found:
        image.load()
        assert image.format == "JPEG" and image.mode in ("RGB", "L")
        assert 333 <= min(image.size) <= 400 and 480 <= max(image.size) <= 512
    assert 5 <= sum(i.height > i.width for i in found) <= 9, "about every fifth is portrait"
    mean = sum(path.stat().st_size for path in paths) / 36
    assert 80_000 < mean < min(115_000, roadsigns.FILE_BYTES * 1.1)


# --- the bytes follow from the numbers alone ----------------------------------------------------


@pytest.mark.slow
def test_larger_set_contains_the_smaller_one(small: Path, tmp_path: Path) -> None:
    smaller = roadsigns.ensure(tmp_path / "smaller", 12, 12, 3, jobs=1, quiet=True)
    images = {k: v for k, v in contents(smaller).items() if k.endswith(".jpg")}
    assert len(images) == 24 and images.items() <= contents(small).items()


@pytest.mark.slow
def test_one_command_draws_and_packs_once(small: Path, tmp_path: Path) -> None:
    """Several commands may run at once; omitted numbers are those of the existing set."""
    out = shutil.copytree(small, tmp_path / "set")
    asked = command(out, "--records", "--tfrecord")
    several = [subprocess.Popen(asked, cwd=ROOT, stdout=subprocess.PIPE) for _ in range(2)]
    for process in several:
        process.communicate(timeout=120)
        assert process.returncode == 0
    assert verify.main([str(out), "--quiet", "--jobs", "1"]) == 0
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert {path.parent.name for path in before if path.suffix == ".rec"} == {"records"}
    assert len(list((out / "tfrecord").glob("*-of-*"))) == 8
    done = run(out, "--records", "--tfrecord")
    assert (done.returncode, done.stderr) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


# --- a second run -------------------------------------------------------------------------------


def test_a_second_run_finds_the_set_complete(small: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in small.rglob("*")}
    result = run(small, *SMALL)
    assert result.returncode == 0
    assert "already complete" in result.stdout and "24" in result.stdout
    assert {p: p.stat().st_mtime_ns for p in small.rglob("*")} == before


def test_different_numbers_are_refused(small: Path) -> None:
    before = contents(small)
    result = run(small, "--train", 24, "--val", 12, "--seed", 4)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert "--overwrite" in result.stderr and "another folder" in result.stderr
    with pytest.raises(UserError, match="--overwrite"):
        roadsigns.ensure(small, train=36)
    assert contents(small) == before


@pytest.mark.slow
def test_overwrite_replaces_the_set_and_what_was_made_from_it(small: Path, tmp_path: Path) -> None:
    """All images follow from the seed: another one gives other images."""
    out = shutil.copytree(small, tmp_path / "set")
    (out / "records").mkdir()
    (out / "records" / "train.rec").write_text("made from the old images")
    (out / "my work").mkdir()
    with pytest.raises(UserError, match="my work: the output folder is replaced as a whole"):
        roadsigns.ensure(out, 12, 12, 4, jobs=1, overwrite=True, quiet=True)
    (out / "my work").rmdir()
    roadsigns.ensure(out, 12, 12, 4, jobs=1, overwrite=True, quiet=True)
    old, new = contents(small), contents(out)
    names = {name for name in new if name.endswith(".jpg")}
    assert len(names) == 24 and names < old.keys() and new.keys() < old.keys()
    assert not {new[name] for name in names} & set(old.values())
    assert json.loads(new[".complete"])["seed"] == 4 and os.listdir(tmp_path) == ["set"]


# --- killed, crowded, refused -------------------------------------------------------------------


@pytest.mark.slow
def test_killed_run_continues_to_the_same_bytes(small: Path, tmp_path: Path) -> None:
    """Two processes draw, and then three; one has drawn `small`."""
    out, work = tmp_path / "set", tmp_path / "set.part"
    process = subprocess.Popen(
        command(out, *SMALL, "--jobs", 2), cwd=ROOT, stderr=subprocess.PIPE,
        preexec_fn=lambda: os.nice(19),  # on a busy machine too, it is killed before its end
    )  # fmt: skip
    until(lambda: len(list(work.glob("*/*/*.jpg"))) >= 5)
    process.kill()
    process.wait()
    assert not out.exists(), "half a set is never seen under its name"
    kept = {p.relative_to(work): p.stat().st_mtime_ns for p in work.glob("*/*/*.jpg")}
    assert 5 <= len(kept) < 36

    result = run(out, *SMALL, "--jobs", 3)
    assert result.returncode == 0 and "interrupted run" in result.stderr
    assert contents(out) == contents(small)
    times = {path: (out / path).stat().st_mtime_ns for path in kept}
    assert times == kept, "what was drawn before is not drawn again"
    assert os.listdir(tmp_path) == ["set"]


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("number", "status"),
    [
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.acceptance),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.acceptance),
        (signal.SIGKILL, -9),
    ],
)
def test_a_run_that_draws_the_data_ends_with_its_workers(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    words = ["-m", "rn50", "run", "--network", "tiny", "--image-shape", "32", "--test-io"]
    environment = clean_environment(RN50_DATA=str(tmp_path))
    with leaving_nothing():
        process = subprocess.Popen(
            [sys.executable, *words], cwd=tmp_path, env=environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        until(lambda: list(tmp_path.glob("roadsigns.part/*/*/*.jpg")))
        process.send_signal(number)
        assert process.wait(30) == status
    assert os.listdir(tmp_path) == ["roadsigns.part"], "half a set is never seen under its name"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "OUT"),
        (["{t}/set", "--seed", -1], "argument --seed: '-1' must be"),
        (["{t}/set", "--train", "many"], "--train"),
        (["{t}/set", "--tarin", 24], "--tarin"),
        (["{t}/file"], "{t}/file: this is a file; name a folder"),
        (["{t}/file/below"], "{t}/file/below cannot be written"),
        (["{t}/other", *SMALL], "{t}/other/train: the output folder is replaced as a whole"),
        (["{t}/other", *SMALL, "--overwrite"], "{t}/other/train: the output folder is replaced"),
        (["{t}/lost"], "{t}/lost: marked complete, but val and classes.txt is gone"),
    ],
)
def test_bad_commands_get_one_line(args, message, tmp_path, error_of) -> None:
    (tmp_path / "file").write_text("a file")
    for name in ("other", "lost"):
        (tmp_path / name / "train").mkdir(parents=True)
    mark = {"train": 24, "val": 12, "seed": 0, "version": roadsigns.VERSION}
    (tmp_path / "lost" / ".complete").write_text(json.dumps(mark))
    words = [str(word).format(t=tmp_path) for word in args]
    assert message.format(t=tmp_path) in error_of(lambda: roadsigns.main(words))
    assert sorted(os.listdir(tmp_path)) == ["file", "lost", "other"]
