"""The talk's two recipes (exercises/recipes), original and current.

They run as separate processes on a small set of the built-in road signs; the tests look at what
they print and write.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from rn50lib.data.tfrecord import TFRecordReader
from tests.conftest import ROOT, SmallDataset, clean_environment

FOLDER = ROOT / "exercises" / "recipes"
SINGLE = FOLDER / "train_single.py"
HOROVOD = FOLDER / "train_horovod.py"
TFRECORD = FOLDER / "train_tfrecord.py"
QUICK = {  # one thread each: the sums then come in one order, and two runs agree to the last bit
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "plm", "isolated"]

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
def test_the_slides_recipe_two_writes_and_trains(
    roadsigns_small: SmallDataset, tmp_path: Path
) -> None:
    signs = roadsigns_small.folder / "train"
    write = [sys.executable, FOLDER / "slides_write_tfrecord.py", "--data", signs]
    run([*write, "--image_size", 64], tmp_path)
    records = [data for _, data in TFRecordReader(tmp_path / "signs.tfrecords").records()]
    assert len(records) == sum(len(list((signs / n).iterdir())) for n in ("stop", "yield"))

    script = [sys.executable, FOLDER / "slides_tfrecord.py", "--image_size", 64]
    flags = ["--last_step", 60, "--num_epochs", 200]
    first, second = logged(run([*HOROVODRUN, *script, *flags], tmp_path).stderr)
    assert [step for step, _ in first] == [step for step, _ in second] == [1, 11, 21]
    assert first != second, "each rank's queue mixes the file in its own way"
    assert float(first[-1][1]) < float(first[0][1])
    assert (tmp_path / "checkpoints" / "model.ckpt-30.index").exists()


@pytest.mark.acceptance
@pytest.mark.needs("tensorflow")
def test_one_process_learns_the_images(roadsigns_small: SmallDataset, tmp_path: Path) -> None:
    """It uses the slides' image size."""
    flags = ["--data", roadsigns_small.folder, "--batch-size", 8, "--epochs", 12, "--log-every", 1]
    done = run([sys.executable, SINGLE, *flags, "--seen", tmp_path / "seen"], tmp_path)
    fall = losses(done.stdout)
    assert len(fall) == 12
    assert max(fall[-3:]) < 0.5 * fall[0], fall
    # its only batch holds each of the eight images once, in every epoch
    seen = Counter((tmp_path / "seen").read_text().splitlines())
    assert len(seen) == 12 * 8 and set(seen.values()) == {1}
    assert "12 steps, " in done.stdout and re.search(r"^weights \w{12}$", done.stdout, re.M)


@pytest.mark.acceptance
@needs_horovod
@pytest.mark.needs("mpi", "horovod_mpi")
def test_two_ranks_share_the_work_and_resume(two_classes: Path, tmp_path: Path) -> None:
    """Each rank runs in its own folder, so its outputs can be told apart."""
    folders = [tmp_path / "rank0", tmp_path / "rank1"]
    for folder in folders:
        folder.mkdir()
    flags = ["--data", two_classes, "--classes", "blue", "red", "--size", 64, "--batch-size", 4]
    flags += ["--epochs", 4, "--log-every", 1, "--checkpoints", "saved", "--seen", "seen"]
    rank = ["-np", 1, "-wdir"]
    script = [sys.executable, HOROVOD, *flags]
    command = [*MPIRUN, *rank, folders[0], *script, ":", *rank, folders[1], *script]

    whole = run(command, tmp_path)
    first = checksums(whole.stdout)
    assert set(first) == {"0", "1"} and first["0"] == first["1"]
    fall = losses(whole.stdout)
    assert len(fall) == 12, "rank 0 alone logs each of the 3 x 4 steps, once"
    assert sum(fall[-3:]) < 0.7 * sum(fall[:3]), fall
    assert {path.name for path in folders[1].iterdir()} == {"seen.1"}
    assert {path.name for path in folders[0].iterdir()} == {"seen.0", "saved"}

    # per epoch, the two together read each of the 24 images once
    seen = [(f / f"seen.{r}").read_text().splitlines() for r, f in enumerate(folders)]
    assert [len(lines) for lines in seen] == [48, 48]
    assert set(Counter(seen[0] + seen[1]).values()) == {1}

    # as if the run had been killed before the last epoch was saved: the same command continues
    # from the third, and ends as the uninterrupted run did
    saved = folders[0] / "saved"
    assert {path.stem for path in saved.glob("ckpt-*")} == {"ckpt-2", "ckpt-3", "ckpt-4"}
    for path in saved.glob("ckpt-4.*"):
        path.unlink()
    (saved / "checkpoint").write_text(
        'model_checkpoint_path: "ckpt-3"\nall_model_checkpoint_paths: "ckpt-3"\n'
    )
    again = run(command, tmp_path)
    assert "resuming from saved/ckpt-3, after epoch 3" in again.stdout
    assert losses(again.stdout) == fall[9:]
    assert checksums(again.stdout) == first


@pytest.mark.acceptance
@needs_horovod
def test_recipe_two_trains_and_resumes(shards: Path, tmp_path: Path) -> None:
    train = [sys.executable, TFRECORD, "--data", shards, "--batch-size", 4, "--log-every", 1]
    train += ["--checkpoints", tmp_path / "saved", "--epochs"]
    done = run([*HOROVODRUN, *train, 4], tmp_path)
    sums = checksums(done.stdout)
    assert set(sums) == {"0", "1"} and sums["0"] == sums["1"]
    assert "[1]<stdout>:step" not in done.stdout
    fall = losses(done.stdout)
    assert len(fall) == 12, "rank 0 alone logs each of the 3 x 4 steps"
    assert sum(fall[-3:]) < 0.8 * sum(fall[:3]), fall

    again = run([*train, 5], tmp_path)  # one process continues the run of two
    assert "ckpt-4, after epoch 4" in again.stdout
    assert len(losses(again.stdout)) == 6
    assert set(checksums(again.stdout)) == {"0"}


PROBE = """
import runpy, sys
from pathlib import Path
folder, data, out, *flags = sys.argv[1:]
sys.path.insert(0, folder)
sys.argv[1:] = flags
runpy.run_path(f"{folder}/train_horovod.py", run_name="__main__")

import numpy as np, tensorflow as tf
import train_tfrecord as recipe
from model import densenet

dot = np.zeros((65, 65, 3), np.float32)
dot[30:35, 58:63] = 1  # to the right of the middle
turned = [recipe.augment(dot, training=True).numpy()[..., 0] for _ in range(200)]

recipe.augment = lambda image, training: image  # to know which images these are
shards = sorted(map(str, Path(data).glob("train-*-of-*")))
parsed = [recipe.prepare(record) for record in tf.data.TFRecordDataset(shards)]
ranks = []
for rank in range(2):
    batches = recipe.read(shards, rank, 2, 4, 0)
    ranks.append([[b[0].numpy() for b in batches] for epoch in range(2)])
np.savez(
    out,
    images=np.stack([image for image, _ in parsed]),
    labels=np.array([int(label) for _, label in parsed]),
    turned=turned,
    ranks=np.array(ranks),
    parameters=densenet().count_params(),
)
"""


@pytest.fixture(scope="module")
def one_process(
    two_classes: Path, shards: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A folder with a run of recipe one and the results of recipe two's functions; what it printed.

    One process for both: TensorFlow is slow to import.
    """
    folder = tmp_path_factory.mktemp("probe")
    flags = ["--data", two_classes, "--classes", "blue", "red", "--size", 64, "--batch-size", 8]
    flags += ["--epochs", 5, "--log-every", 1, "--checkpoints", "saved", "--seen", "seen"]
    command = [sys.executable, "-c", PROBE, FOLDER, shards, folder / "found.npz", *flags]
    return folder, run(command, folder).stdout


@pytest.fixture(scope="module")
def probe(one_process: tuple[Path, str]) -> dict[str, np.ndarray]:
    """The results of recipe two's functions."""
    with np.load(one_process[0] / "found.npz") as found:
        return dict(found)


@pytest.mark.slow
@needs_horovod
def test_recipe_one_learns_all_images_and_saves(one_process: tuple[Path, str]) -> None:
    """Started without a launcher, it is one rank of one."""
    folder, printed = one_process
    fall = losses(printed)
    assert len(fall) == 15 and set(checksums(printed)) == {"0"}
    assert sum(fall[-3:]) < 0.7 * sum(fall[:3]), fall
    seen = Counter((folder / "seen.0").read_text().splitlines())
    assert len(seen) == 5 * 24 and set(seen.values()) == {1}
    assert (folder / "saved" / "ckpt-5.index").exists()


@pytest.mark.slow
@needs_horovod
def test_tensorflow_and_pillow_read_the_same_pixels(
    two_classes: Path, probe: dict[str, np.ndarray]
) -> None:
    expected = []
    for label, name in enumerate(SIGNS):
        for path in sorted((two_classes / "train" / name).glob("*.jpg")):
            image = ImageOps.fit(Image.open(path), (64, 64), Image.Resampling.BILINEAR)
            pixels = np.asarray(image, np.float32) / np.float32(255)
            expected.append((label, pixels.tobytes()))
    read = [(int(n), i.tobytes()) for n, i in zip(probe["labels"], probe["images"], strict=True)]
    assert sorted(read) == sorted(expected)


@pytest.mark.slow
@needs_horovod
def test_ranks_read_different_shards(probe: dict[str, np.ndarray]) -> None:
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


@pytest.mark.slow
@needs_horovod
def test_each_image_is_flipped_and_rotated_on_its_own(probe: dict[str, np.ndarray]) -> None:
    y, x = np.mgrid[:65, :65] - 32
    weights = probe["turned"] / probe["turned"].sum((1, 2), keepdims=True)
    down, right = (weights * y).sum((1, 2)), (weights * x).sum((1, 2))
    assert 50 < (right > 0).sum() < 150  # mirrored or not
    angles = np.degrees(np.arctan2(down, np.abs(right)))
    assert len(np.unique(angles)) > 190 and np.abs(angles).max() < 10.5
    assert angles.min() < -8 and angles.max() > 8 and abs(angles.mean()) < 2


@pytest.mark.slow
@needs_horovod
def test_parameter_count_matches_the_paper(probe: dict[str, np.ndarray]) -> None:
    """Counted by hand: convolutions without bias, 4 numbers per channel that is normalised."""
    growth, channels = 12, 24
    total = 7 * 7 * 3 * channels + 4 * channels  # stem
    for _ in range(2):  # dense blocks
        for _ in range(4):  # layers: 1x1 to 48 channels, 3x3 to 12, each behind its normalisation
            total += 4 * channels + channels * 4 * growth
            total += 4 * 4 * growth + 9 * 4 * growth * growth
            channels += growth
        total += 4 * channels + channels * (channels // 2)  # transition
        channels //= 2
    total += 4 * channels + 2 * channels + 2  # normalisation, classifier
    assert probe["parameters"] == total
