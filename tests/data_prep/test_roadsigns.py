"""The built-in data set as a user meets it: the command, the files on disk, what a kill leaves."""

from __future__ import annotations

import collections
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from data_prep import roadsigns, verify
from data_prep.signs.classes import IDS
from rn50lib.errors import UserError

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
    """A set of 24 + 12 pictures, drawn by one process."""
    out = tmp_path_factory.mktemp("roadsigns") / "set"
    result = run(out, *SMALL, "--jobs", 1)
    assert result.returncode == 0, result.stderr
    return out


def images(root: Path, split: str) -> dict[str, Image.Image]:
    paths = sorted((root / split).glob("*/*.jpg"))
    return {f"{split}/{p.name}": Image.open(io.BytesIO(p.read_bytes())) for p in paths}


# --- what is on disk ----------------------------------------------------------------------------


def test_the_layout_is_imagenets(small: Path) -> None:
    assert sorted(p.name for p in small.iterdir()) == [".complete", "classes.txt", "train", "val"]
    for split in ("train", "val"):
        assert tuple(sorted(p.name for p in (small / split).iterdir())) == IDS
    assert os.listdir(small.parent) == ["set"], "the work folder is gone"


def test_the_class_list_is_in_label_order(small: Path) -> None:
    rows = [line.split("\t") for line in (small / "classes.txt").read_text().splitlines()]
    assert [int(index) for index, _, _ in rows] == list(range(12))
    ids = [id_ for _, id_, _ in rows]
    assert ids == sorted(p.name for p in (small / "train").iterdir())
    assert all(words for _, _, words in rows)


def test_classes_are_balanced(small: Path) -> None:
    for split, each in (("train", 2), ("val", 1)):
        counts = collections.Counter(p.parent.name for p in (small / split).glob("*/*.jpg"))
        assert counts == dict.fromkeys(IDS, each)


def test_the_pictures_are_jpegs_of_imagenets_sizes(small: Path) -> None:
    found = images(small, "train") | images(small, "val")
    assert len(found) == 36
    for name, image in found.items():
        image.load()
        assert image.format == "JPEG", name
        assert 333 <= min(image.size) <= 400 and 480 <= max(image.size) <= 512, name
    shapes = collections.Counter(i.height > i.width for i in found.values())
    assert 5 <= shapes[True] <= 9, "about every fifth is portrait"
    modes = collections.Counter(i.mode for i in found.values())
    assert set(modes) == {"RGB", "L"} and modes["L"] <= 3, "a few are grey"


def test_a_file_has_the_size_of_an_imagenet_file(small: Path) -> None:
    sizes = [p.stat().st_size for p in small.glob("*/*/*.jpg")]
    assert 80_000 < sum(sizes) / len(sizes) < 115_000
    assert sum(sizes) / len(sizes) < roadsigns.FILE_BYTES * 1.1, "the estimate of disk room holds"


def test_no_two_pictures_are_alike(small: Path) -> None:
    files = [data for name, data in contents(small).items() if name.endswith(".jpg")]
    assert len(set(files)) == 36


def test_pictures_look_like_scenes_with_a_sign(small: Path) -> None:
    """A stop sign is red, and it stands near the middle."""
    for path in small.glob("train/stop/*.jpg"):
        image = Image.open(path).convert("RGB")
        w, h = image.size
        centre = image.crop((w // 6, h // 6, w - w // 6, h - h // 6)).resize((64, 64))
        data = centre.tobytes()
        pixels = zip(data[::3], data[1::3], data[2::3], strict=True)
        red = sum(r > 1.6 * g and r > 1.6 * b for r, g, b in pixels)
        assert red > 64, f"{path.name}: a stop sign shows red"


# --- the bytes follow from the numbers alone ----------------------------------------------------


@pytest.mark.slow
def test_any_number_of_processes_draws_the_same_bytes(small: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "set", *SMALL, "--jobs", 3).returncode == 0
    assert contents(tmp_path / "set") == contents(small)


@pytest.mark.slow
def test_a_larger_set_contains_the_smaller_and_another_seed_does_not(
    small: Path, tmp_path: Path
) -> None:
    larger = roadsigns.ensure(tmp_path / "larger", 36, 12, 3, jobs=1, quiet=True)
    pictures = {k: v for k, v in contents(small).items() if k.endswith(".jpg")}
    assert pictures.items() <= contents(larger).items()
    other = roadsigns.ensure(tmp_path / "other", 12, 12, 4, jobs=1, quiet=True)
    assert not set(pictures.values()) & set(contents(other).values())


@pytest.mark.slow
def test_one_command_draws_and_packs_once(small: Path, tmp_path: Path) -> None:
    """Also where several ask at once; numbers that are left out are those of the set."""
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


def test_ensure_takes_the_set_that_is_there(small: Path) -> None:
    before = contents(small)
    assert roadsigns.ensure(small) == small
    assert roadsigns.ensure(str(small), train=24, seed=3) == small
    assert contents(small) == before


def test_other_numbers_are_refused_and_the_remedy_named(small: Path) -> None:
    before = contents(small)
    result = run(small, "--train", 24, "--val", 12, "--seed", 4)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert "--overwrite" in result.stderr and "another folder" in result.stderr
    with pytest.raises(UserError, match="--overwrite"):
        roadsigns.ensure(small, train=36)
    assert contents(small) == before


@pytest.mark.slow
def test_overwrite_replaces_the_set_and_what_was_made_from_it(tmp_path: Path) -> None:
    out = roadsigns.ensure(tmp_path / "set", 12, 12, 0, jobs=1, quiet=True)
    (out / "records").mkdir()
    (out / "records" / "train.rec").write_text("made from the old pictures")
    roadsigns.ensure(out, 12, 12, 1, jobs=1, overwrite=True, quiet=True)
    fresh = roadsigns.ensure(tmp_path / "fresh", 12, 12, 1, jobs=1, quiet=True)
    assert contents(out) == contents(fresh)
    assert sorted(os.listdir(tmp_path)) == ["fresh", "set"]


def test_a_complete_set_that_lost_a_part_is_reported(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    mark = {"train": 24, "val": 12, "seed": 0, "version": roadsigns.VERSION}
    (tmp_path / ".complete").write_text(json.dumps(mark))
    result = run(tmp_path, "--train", 24, "--val", 12)
    assert result.returncode == 2
    assert "val and classes.txt is gone" in result.stderr and "--overwrite" in result.stderr


# --- killed, crowded, refused -------------------------------------------------------------------


def wait_for(condition, what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(small: Path, tmp_path: Path) -> None:
    out, work = tmp_path / "set", tmp_path / "set.part"
    process = subprocess.Popen(command(out, *SMALL, "--jobs", 2), cwd=ROOT, stderr=subprocess.PIPE)
    wait_for(lambda: len(list(work.glob("*/*/*.jpg"))) >= 5, "the first pictures")
    process.kill()
    process.wait()
    assert not out.exists(), "half a set is never seen under its name"
    kept = {p.relative_to(work): p.stat().st_mtime_ns for p in work.glob("*/*/*.jpg")}
    assert 5 <= len(kept) < 36

    result = run(out, *SMALL, "--jobs", 1)
    assert result.returncode == 0 and "interrupted run" in result.stderr
    assert contents(out) == contents(small)
    times = {path: (out / path).stat().st_mtime_ns for path in kept}
    assert times == kept, "what was drawn before is not drawn again"
    assert os.listdir(tmp_path) == ["set"]


@pytest.mark.slow
def test_a_second_process_waits_and_finds_the_set(tmp_path: Path) -> None:
    out = tmp_path / "set"
    first = subprocess.Popen(command(out, *SMALL, "--jobs", 1), cwd=ROOT, stderr=subprocess.PIPE)
    wait_for((tmp_path / "set.part" / "train").exists, "the first process to hold the lock")
    second = run(out, *SMALL, "--jobs", 1)
    assert first.wait(60) == 0 and second.returncode == 0
    assert "another process is writing this folder; waiting" in second.stderr
    assert "drawing road signs" not in second.stderr and "needs about" not in second.stderr
    assert len(list(out.glob("*/*/*.jpg"))) == 36


@pytest.mark.slow
def test_a_killed_worker_is_named_and_the_next_run_goes_on(tmp_path: Path) -> None:
    out, work = tmp_path / "set", tmp_path / "set.part"
    process = subprocess.Popen(
        command(out, *SMALL, "--jobs", 1), cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: any(work.glob("*/*/*.jpg")), "the first picture")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (worker,) = children
    os.kill(int(worker), signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "killed by signal 9" in stderr and "run the same command again" in stderr
    assert run(out, *SMALL, "--jobs", 1).returncode == 0
    assert len(list(out.glob("*/*/*.jpg"))) == 36


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--train", 5], "--train 5: at least 12"),
        (["--val", 11], "--val 11: at least 12"),
        (["--jobs", 0], "--jobs 0: at least 1"),
        (["--seed", -1], "--seed -1"),
        (["--train", "many"], "--train"),
        (["--tarin", 24], "--tarin"),
    ],
)
def test_bad_flags_are_one_line(args: list[object], says: str, tmp_path: Path) -> None:
    result = run(tmp_path / "set", *args)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert says in result.stderr
    assert not (tmp_path / "set").exists()


def test_nothing_to_do_is_said() -> None:
    result = run()
    assert result.returncode == 2 and "OUT" in result.stderr and result.stderr.count("\n") == 1


def test_a_folder_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    for name in ("train", "tfrecord"):
        (tmp_path / name).mkdir()
        for extra in ([], ["--overwrite"]):
            result = run(tmp_path, *SMALL, *extra)
            assert result.returncode == 2 and "not drawn by this program" in result.stderr
        assert os.listdir(tmp_path) == [name]
        (tmp_path / name).rmdir()


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "set").write_text("a file")
    result = run(tmp_path / "set", *SMALL)
    assert result.returncode == 2 and "is a file" in result.stderr
    below = run(tmp_path / "set" / "below", *SMALL)
    assert below.returncode == 2 and below.stderr.count("\n") == 1 and "error: " in below.stderr


def test_too_little_room_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roadsigns, "FILE_BYTES", 10**15)
    with pytest.raises(UserError, match="drawing 24 pictures needs .* free"):
        roadsigns.ensure(tmp_path / "set", 12, 12, 0, jobs=1)
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_help_needs_no_pillow_and_no_numpy() -> None:
    code = (
        "import sys, contextlib, data_prep.roadsigns as r\n"
        "with contextlib.suppress(SystemExit): r.main(['--help'])\n"
        "sys.exit(any(m in sys.modules for m in ('numpy', 'PIL', 'tqdm')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--tfrecord" in done.stdout
