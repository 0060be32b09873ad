"""kill -9 at random moments: the old set or the new one is there, and the next run completes it."""

import io
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from PIL import Image

from data_prep.output import finish_swap
from tests.conftest import clean_environment
from tests.data_prep.test_imagenet import contents


def make_images(root, each):
    out = io.BytesIO()
    Image.new("RGB", (32, 32)).save(out, "JPEG")
    for name in ("a", "b"):
        for split in ("train", "val"):
            (root / split / name).mkdir(parents=True)
            for i in range(each if split == "train" else 20):
                image = out.getvalue() + f"{name} {i}".encode() * 1000
                (root / split / name / f"{i}.jpg").write_bytes(image)


def im2rec(folder):
    make_images(folder / "set", 1500)
    (folder / "out").mkdir()
    root = [str(folder / "out" / "a"), str(folder / "set" / "train")]
    program = [sys.executable, "-m", "data_prep.im2rec"]
    subprocess.run([*program, "--list", "--recursive", *root], check=True)
    return [*program, "--pass-through", "--num-thread", "2", *root]


@pytest.mark.acceptance
def test_killed_at_20_random_moments(tmp_path):
    command, out = im2rec(tmp_path), tmp_path / "out"
    settings = {"env": clean_environment(), "stdout": subprocess.DEVNULL}
    start = time.monotonic()
    subprocess.run(command, check=True, **settings)
    whole = time.monotonic() - start
    good = contents(out)
    rng, killed = random.Random(0), 0
    for attempt in range(20):
        if attempt % 2:  # every second time without an old set
            for ending in ("rec", "idx", "crc"):
                (out / f"a.{ending}").unlink()
        child = subprocess.Popen(command, **settings)
        time.sleep(rng.uniform(0, whole))
        child.kill()
        killed += child.wait(timeout=30) == -signal.SIGKILL
        finish_swap(out)
        if out.exists():
            for name, data in contents(out).items():
                assert name.startswith(".") or data == good[name]
        subprocess.run(command, check=True, **settings)
        assert contents(out) == good
        assert sorted(os.listdir(tmp_path)) == ["out", "set"]
    assert killed  # how many depends on the load of the machine
