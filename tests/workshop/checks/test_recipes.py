"""The talk's two recipes (exercises/recipes), original and current.

They run as separate processes on a small set of the built-in road signs; the tests look at what
they print and write.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, SmallDataset, clean_environment

FOLDER = ROOT / "exercises" / "recipes"
TFRECORD = FOLDER / "train_tfrecord.py"
QUICK = {  # one thread each: the sums then come in one order, and two runs agree to the last bit
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
needs_horovod = pytest.mark.needs("tensorflow", "horovod")


def run(
    command: Sequence[object], cwd: Path, status: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean_environment(**QUICK, **environment),
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def losses(log: str) -> list[float]:
    return [float(value) for value in re.findall(r"loss:? (\d+\.\d+)", log)]


def checksums(log: str) -> dict[str, str]:
    """Return the hash of the weights that each rank printed."""
    found = re.findall(r"rank (\d+): weights (\w{12})", log)
    assert len(found) == len(dict(found)), log
    return dict(found)


SIGNS = {"blue": ("bicycle", "roundabout"), "red": ("no-entry", "stop")}


@pytest.fixture(scope="module")
def two_classes(roadsigns_small: SmallDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with 12 images of blue signs and 12 of red ones, which are easy to learn."""
    root = tmp_path_factory.mktemp("two-classes")
    for colour, classes in SIGNS.items():
        (root / "train" / colour).mkdir(parents=True)
        for name in classes:
            for path in roadsigns_small.folder.glob(f"*/{name}/*.jpg"):
                split = path.parents[1].name
                (root / "train" / colour / f"{split}-{path.name}").symlink_to(path)
    assert len(list(root.glob("train/*/*.jpg"))) == 24
    return root


@pytest.fixture(scope="module")
def shards(two_classes: Path) -> Path:
    """The same images as TFRecord in the slides' schema, 64 px, six in each of four shards."""
    command = [sys.executable, "-m", "data_prep.tfrecord", two_classes, "--schema", "slides"]
    run([*command, "--size", 64, "--train-shards", 4, "--jobs", 1], ROOT)
    return two_classes / "tfrecord"


HOROVODRUN = [sys.executable, "-m", "horovod.runner.launch", "-np", 2, "--gloo"]


def logged(log: str) -> list[list[tuple[int, str]]]:
    """Step and loss of each line of LoggingTensorHook, rank by rank."""
    lines = re.findall(r"\[(\d)\]<stderr>:INFO:tensorflow:loss = (\S+), step = (\d+)", log)
    return [[(int(step), loss) for r, loss, step in lines if r == rank] for rank in "01"]


@pytest.mark.acceptance
@needs_horovod
def test_the_slides_recipe_one_runs_and_all_ranks_read_the_same(
    two_classes: Path, tmp_path: Path
) -> None:
    """It stops at 60 // 2 steps and rank 0 saves; its bug is visible: one loss on both ranks."""
    (tmp_path / "train").mkdir()
    for name, colour in (("stop", "red"), ("yield", "blue")):
        (tmp_path / "train" / name).symlink_to(two_classes / "train" / colour)
    script = [sys.executable, FOLDER / "slides_horovod.py", "--data", tmp_path / "train"]
    flags = ["--image_size", 64, "--batch_size", 4, "--last_step", 60]
    first, second = logged(run([*HOROVODRUN, *script, *flags], tmp_path).stderr)
    assert [step for step, _ in first] == [1, 11, 21]
    assert first == second
    assert float(first[-1][1]) < float(first[0][1])
    steps = {path.name.split(".")[1] for path in (tmp_path / "checkpoints").glob("model*.index")}
    assert steps == {"ckpt-0", "ckpt-30"}


@pytest.mark.acceptance
@needs_horovod
def test_the_slides_recipe_two_trains(two_classes: Path, tmp_path: Path) -> None:
    write = [sys.executable, "-m", "data_prep.tfrecord", two_classes, tmp_path / "signs"]
    run([*write, "--schema", "slides", "--size", 64, "--train-shards", 1, "--jobs", 1], ROOT)
    script = [sys.executable, FOLDER / "slides_tfrecord.py", "--image_size", 64]
    flags = ["--last_step", 60, "--num_epochs", 200]
    first, second = logged(run([*HOROVODRUN, *script, *flags], tmp_path).stderr)
    assert [step for step, _ in first] == [step for step, _ in second] == [1, 11, 21]
    assert first != second, "each rank's queue mixes the file in its own way"
    assert float(first[-1][1]) < float(first[0][1])
    assert (tmp_path / "checkpoints" / "model.ckpt-30.index").exists()


@pytest.mark.acceptance
@needs_horovod
def test_current_recipes_train_on_two_ranks(shards: Path, tmp_path: Path) -> None:
    train = [sys.executable, TFRECORD, "--data", shards, "--batch-size", 4, "--epochs", 12]
    done = run([*HOROVODRUN, *train, "--save", tmp_path / "all.weights.h5"], tmp_path)
    sums = checksums(done.stdout)
    assert set(sums) == {"0", "1"} and sums["0"] == sums["1"]
    assert "[1]<stdout>:epoch" not in done.stdout
    fall = losses(done.stdout)
    assert len(fall) == 12, "rank 0 alone logs each epoch"
    assert sum(fall[-3:]) < 0.8 * sum(fall[:3]), fall
    assert "36 steps on 2 rank(s), " in done.stdout
    assert (tmp_path / "all.weights.h5").exists()


PROBE = """
import sys
from pathlib import Path
folder, data, out = sys.argv[1:]
sys.path.insert(0, folder)

import numpy as np, tensorflow as tf
import train_tfrecord as recipe

recipe.augment = lambda image, training: image  # to know which images these are
shards = sorted(map(str, Path(data).glob("train-*-of-*")))
images = [recipe.prepare(record)[0] for record in tf.data.TFRecordDataset(shards)]
ranks = []
for rank in range(2):
    batches = recipe.read(shards, rank, 2, 4, 0)
    ranks.append([[b[0].numpy() for b in batches] for epoch in range(2)])
np.savez(out, images=np.stack(images), ranks=np.array(ranks))
"""


@pytest.mark.slow
@needs_horovod
def test_ranks_read_different_shards(shards: Path, tmp_path: Path) -> None:
    run([sys.executable, "-c", PROBE, FOLDER, shards, tmp_path / "found.npz"], tmp_path)
    probe = np.load(tmp_path / "found.npz")
    names = {image.tobytes(): n for n, image in enumerate(probe["images"])}
    ranks = [  # rank, epoch: which images, in order
        [[names[i.tobytes()] for batch in epoch for i in batch] for epoch in rank]
        for rank in probe["ranks"]
    ]
    for rank in ranks:
        for epoch in rank:
            assert len(epoch) == len(set(epoch)) == 12
        assert set(rank[0]) == set(rank[1]), "the same files in each epoch"
    assert set(ranks[0][0]) | set(ranks[1][0]) == set(range(24))
