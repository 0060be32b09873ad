"""DALI: what it decodes, in which order, with which crops, and what it says about bad input.

That ranks see different images, and validation each once, stands in test_sharding.py. Truth comes
from plain Pillow, from the recipe's own way to draw crops, and from flat colours that say which
picture is which.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rn50lib import hooks as overrides
from rn50lib import recipe
from rn50lib.data import Batch, open_pipeline, sampler
from rn50lib.data.sampler import Plan
from rn50lib.data.source import Source, open_source
from rn50lib.errors import UserError
from tests.pipelines.conftest import ODD, by_pillow
from tests.support import TINY, Photos, full, numbers, write_photo
from workshop.lessons.tfrecord.feeding import Feeding

pytestmark = [pytest.mark.slow, pytest.mark.needs("dali")]

FORMATS = ("files", "recordio", "tfrecord")


def read(
    source: Source, split: str = "train", epoch: int = 0, start_step: int = 0, **fields: Any
) -> list[Batch]:
    pipeline = open_pipeline(full(loader="dali", test_io=True, **fields), source, split, 0, 1)
    try:
        batches = list(pipeline.epoch(epoch, start_step))
        assert len(batches) == len(pipeline) - start_step
        return batches
    finally:
        pipeline.close()


def pixels(batches: list[Batch]) -> np.ndarray:
    return np.concatenate([batch.images[: batch.valid] for batch in batches])


def labels(batches: list[Batch]) -> list[int]:
    return [int(k) for batch in batches for k in batch.labels[: batch.valid]]


# --- pictures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [False, True])
def test_validation_images_are_plain_pillow_s(textured: Path, engine: bool) -> None:
    """With the decoder that decodes what is needed, and with the one for a GPU's JPEG engine."""
    from rn50lib.data.dali import Dali

    for size, resize in ((32, 37), (40, 50), (64, 150)):
        source = open_source(textured, "val", "files")
        experiment = full(loader="dali", image_shape=size, val_resize=resize, batch_size=5)
        pipeline = Dali(experiment, source, Plan(experiment, source, "val"), engine)
        made = pixels(list(pipeline.epoch(0)))
        wanted = np.stack([by_pillow(source.read(i), size, resize) for i in range(len(source))])
        assert np.abs(made.astype(float) - wanted).mean(axis=(1, 2, 3)).max() < 1


@pytest.mark.parametrize("engine", [False, True])
def test_the_validation_window_is_never_larger_than_the_image(textured: Path, engine: bool) -> None:
    """`recipe.center_crop_box` limits it in the other loaders."""
    from rn50lib.data.dali import Dali

    source = open_source(textured, "val", "files")
    experiment = replace(full(loader="dali", batch_size=5), image_shape=64, val_resize=40)
    made = pixels(list(Dali(experiment, source, Plan(experiment, source, "val"), engine).epoch(0)))
    wanted = np.stack([by_pillow(source.read(i), 64, 64) for i in range(len(source))])
    assert np.abs(made.astype(float) - wanted).mean(axis=(1, 2, 3)).max() < 1


def test_fast_resampling_lets_fine_patterns_through(tmp_path: Path) -> None:
    """Stripes of one pixel are grey from afar. Without antialiasing some of them stay stripes."""
    stripes = np.zeros((60, 60, 3), np.uint8)
    stripes[:, ::2] = 255
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        for i in range(4):
            Image.fromarray(stripes).save(tmp_path / split / "a" / f"{i}.jpg", quality=100)
    source = open_source(tmp_path, "val", "files")
    contrast = {
        how: pixels(read(source, "val", num_classes=1, resample=how)).std()
        for how in ("antialias", "fast")
    }
    assert contrast["antialias"] < 15 < 40 < contrast["fast"]


def crops(images: np.ndarray) -> np.ndarray:
    """(left, top, right, bottom) of each crop as shares of its picture, by the `textured` pictures'
    own colours: red rises from left to right, green downwards. Mirrored: left > right."""
    ends = []
    for values in (images.mean(axis=1)[..., 0] / 255, images.mean(axis=2)[..., 1] / 255):
        slope = (values[:, -2] - values[:, 1]) / (values.shape[1] - 3)
        ends.append((values[:, 1] - 1.5 * slope, values[:, -2] + 1.5 * slope))
    (left, right), (top, bottom) = ends
    return np.stack([left, top, right, bottom], axis=1)


@pytest.mark.parametrize("engine", [False, True])
def test_crops_are_drawn_by_the_recipe_s_numbers(textured: Path, engine: bool) -> None:
    """DALI's own default is 8 % of the area; the recipe says 5."""
    from rn50lib.data.dali import Dali

    source = open_source(textured, "train", "recordio")
    experiment = full(loader="dali")
    pipeline = Dali(experiment, source, Plan(experiment, source, "train"), engine)
    made = np.concatenate([crops(pixels(list(pipeline.epoch(epoch)))) for epoch in range(25)])
    width, height = np.abs(made[:, 2] - made[:, 0]), made[:, 3] - made[:, 1]
    area, aspect = width * height, width / height * 200 / 150
    rng = random.Random(0)
    boxes = [recipe.random_crop_box(rng, 200, 150) for _ in range(4000)]
    drawn = np.array([w * h / 30000 for _, _, w, h in boxes])
    assert abs(area.mean() - drawn.mean()) < 0.05
    assert abs(np.quantile(area, 0.2) - np.quantile(drawn, 0.2)) < 0.06
    assert 0.04 < area.min() < 0.075 and area.max() < 1.03
    assert 0.7 < np.quantile(aspect, 0.02) and np.quantile(aspect, 0.98) < 1.4
    mirrored = (made[:, 0] > made[:, 2]).mean()
    assert 0.4 < mirrored < 0.6
    assert (height > 0).all()  # none is upside down


def test_other_augmentation_comes_from_the_recipe_too(textured: Path) -> None:
    source = open_source(textured, "train", "recordio")
    left, top, right, bottom = crops(pixels(read(source, recipe="roadsigns"))).T
    assert (np.abs(right - left) * (bottom - top)).min() > 0.3  # not 5 %, but 35
    turned = [crops(pixels(read(source, epoch=e, flip_up_down=True))) for e in (0, 1)]
    upside_down = [(made[:, 1] > made[:, 3]).mean() for made in turned]
    assert 0 < upside_down[0] < 1 and 0 < upside_down[1] < 1
    black = (pixels(read(source, rotate=40.0))[:, 0, 0].max(axis=-1) < 3).mean()
    assert black > 0.3 > (pixels(read(source))[:, 0, 0].max(axis=-1) < 3).mean()


@pytest.mark.parametrize("data_format", FORMATS)
def test_odd_images_pass(odd: Path, data_format: str) -> None:
    for split in ("train", "val"):
        source = open_source(odd, split, data_format)
        made = read(source, split, num_classes=len(ODD), batch_size=len(ODD))
        assert sorted(labels(made)) == list(range(len(ODD)))
        for label, image in zip(labels(made), pixels(made), strict=True):
            mean = image.mean(axis=(0, 1))
            assert np.abs(mean - ODD[label].colour).max() < 6, (ODD[label].name, mean)


def test_images_are_not_turned_as_their_exif_block_says(tmp_path: Path) -> None:
    """Pillow does not, nor does tf.data: the same file must be the same picture everywhere."""
    pixels_HWC = np.zeros((40, 60, 3), np.uint8)
    pixels_HWC[:, :30] = 250
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        for i in range(4):
            path = tmp_path / split / "a" / f"{i}.jpg"
            Image.fromarray(pixels_HWC).save(path, quality=95, exif=exif)
    made = pixels(read(open_source(tmp_path, "val"), "val", num_classes=1))
    assert made[:, :, 0].min() > 200 and made[:, :, -1].max() < 50


# --- order ----------------------------------------------------------------------------------------


def test_files_come_in_the_promised_order(photos: Photos) -> None:
    source = open_source(photos.root, "train", "files")
    pipeline = open_pipeline(full(loader="dali", seed=5), source, "train", 1, 3)
    planned = sampler.shard(sampler.epoch_order(48, seed=5, epoch=2), rank=1, size=3, batch=4)
    assert [numbers(batch.images) for batch in pipeline.epoch(2)] == planned.tolist()


@pytest.mark.parametrize("data_format", FORMATS)
def test_an_epoch_goes_on_from_any_step(textured: Path, data_format: str) -> None:
    source = open_source(textured, "train", data_format)
    whole, rest = read(source, epoch=1), read(source, epoch=1, start_step=2)
    assert np.array_equal(pixels(whole)[8:], pixels(rest)) and labels(whole)[8:] == labels(rest)


def test_an_epoch_of_files_begins_behind_any_image(photos: Photos, textured: Path) -> None:
    """Behind whole batches with the crops that it had; behind others with the rest of its order."""
    for root, done, start_step in ((textured, 8, 2), (photos.root, 6, 0)):
        source = open_source(root, "train", "files")
        pipeline = open_pipeline(full(6, loader="dali", data_root=str(root)), source, "train", 0, 1)
        try:
            rest = list(pipeline.epoch(1, skip=done))
            whole = list(pipeline.epoch(1, start_step))
        finally:
            pipeline.close()
        if start_step:
            np.testing.assert_array_equal(pixels(rest), pixels(whole))
        else:
            shown = [n for batch in rest for n in numbers(batch.images)]
            wanted = sampler.epoch_order(len(source), 0, 1)[done:]
            assert pipeline.ordered and shown == wanted[: len(shown)].tolist()
            assert len(shown) == (len(source) - done) // 4 * 4


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("data_format", FORMATS)
def test_epochs_in_turn_are_those_that_stand_alone(
    textured: Path, data_format: str, split: str
) -> None:
    """A run has graphs built ahead; one that resumes at an epoch does not."""
    source = open_source(textured, split, data_format)
    experiment = full(loader="dali", batch_size=4, num_epochs=3, data_nthreads=2)
    for rank, size in ((0, 1), (1, 2)):
        running = open_pipeline(experiment, source, split, rank, size)
        for epoch in range(3):
            resumed = open_pipeline(experiment, source, split, rank, size)
            found, wanted = list(running.epoch(epoch)), list(resumed.epoch(epoch))
            assert labels(found) == labels(wanted) and len(found) == len(running)
            np.testing.assert_array_equal(pixels(found), pixels(wanted))
            resumed.close()
        running.close()


@pytest.fixture(scope="module")
def packed(photos: Photos, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos with their records and shards."""
    from data_prep import tfrecord

    root = tmp_path_factory.mktemp("dali") / "set"
    shutil.copytree(photos.root, root)
    tfrecord.convert(root, shards={"train": 3, "val": 2}, jobs=0, data_format="files", quiet=True)
    return root


@pytest.mark.parametrize("data_format", FORMATS)
def test_a_part_of_the_data_stays_the_same_part(packed: Path, data_format: str) -> None:
    """The part that the other loaders take, and with the labels of its own images."""
    source = open_source(packed, "train", data_format)
    parts = [read(source, epoch=e, num_examples=24) for e in (0, 1)]
    shown = [numbers(pixels(part)) for part in parts]
    assert sorted(shown[0]) == sorted(shown[1]) and len(set(shown[0])) == 24
    assert shown[0] != shown[1]
    assert labels(parts[0]) == [number // 8 for number in shown[0]]
    experiment = full(num_examples=24)
    by_hand = list(Feeding(experiment, source, Plan(experiment, source, "train")).epoch(0))
    assert sorted(shown[0]) == sorted(numbers(pixels(by_hand)))
    assert len(read(source, benchmark_iters=2)) == 2
    assert len(read(open_source(packed, "val", data_format), "val", benchmark_iters=2)) == 2


ANOTHER_PROCESS = """
import sys
from tests.pipelines.test_dali import hashes
print(*hashes(sys.argv[1], threads=3))
"""


def hashes(root: str | Path, threads: int) -> list[str]:
    """A hash of all batches of two epochs from each kind of source."""
    found = []
    for data_format, epoch in itertools.product(FORMATS, (0, 3)):
        experiment = full(loader="dali", data_nthreads=threads, seed=7, batch_size=5)
        source = open_source(root, "train", data_format)
        digest = hashlib.sha256()
        for batch in open_pipeline(experiment, source, "train", 0, 2).epoch(epoch):
            digest.update(batch.images.tobytes() + batch.labels.tobytes())
        found.append(digest.hexdigest())
    return found


def test_seed_and_epoch_give_the_same_batches_in_any_process(
    textured: Path, repository: Path
) -> None:
    """With another number of threads, too."""
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_PROCESS, str(textured)],
        capture_output=True, text=True, cwd=repository, check=True,
    )  # fmt: skip
    here = hashes(textured, threads=0)
    assert done.stdout.split() == here and len(set(here)) == len(here)


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("torch", marks=pytest.mark.needs("torch")),
        pytest.param("tensorflow", marks=pytest.mark.needs("tensorflow")),
    ],
)
def test_a_run_trains_and_validates(
    packed: Path, run_cli: Callable[..., Any], backend: str
) -> None:
    done = run_cli("run", "--profile", "ci", "--loader", "dali", "--backend", backend,
                   "--data-root", packed, "--report", "r.json", timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--loader         dali  (given)" in done.stderr
    assert "epoch 2/2: loss" in done.stdout + done.stderr


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inside", "problem"),
    [
        (None, "DALI is not installed here: `make setup` installs it"),
        ("raise ImportError('no libcudart')", "DALI does not import here (no libcudart): `make"),
    ],
)
def test_where_dali_is_missing_one_line_says_so(
    photos: Photos, run_cli: Callable[..., Any], repository: Path, tmp_path: Path,
    inside: str | None, problem: str,
) -> None:  # fmt: skip
    package = tmp_path / "first" / "nvidia"  # stands before the real one
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    if inside:
        (package / "dali.py").write_text(inside)
    env = {"PYTHONPATH": f"{package.parent}{os.pathsep}{repository}"}
    done = run_cli("train", *TINY, "--loader", "dali", "--data-root", photos.root, env=env)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --loader dali: {problem}"), done.stderr
    assert "use --loader native" in done.stderr and done.stderr.count("\n") == 1


def test_a_missing_index_is_named_with_the_command_that_writes_it(
    packed: Path, tmp_path: Path
) -> None:
    shutil.copytree(packed, tmp_path / "set")
    index = tmp_path / "set/tfrecord/index/validation-00001-of-00002.idx"
    index.unlink()
    source = open_source(tmp_path / "set", "val", "tfrecord")
    with pytest.raises(UserError) as caught:
        read(source, "val")
    command = f"python -m data_prep.tfrecord --index {tmp_path}/set/tfrecord"
    assert str(caught.value).startswith(f"{index}: this index is missing")
    assert f"`{command}` writes it" in str(caught.value)
    subprocess.run([sys.executable, *command.split()[1:]], check=True, capture_output=True)
    assert len(labels(read(source, "val"))) == 19
    (tmp_path / "set/records/val.idx").unlink()
    with pytest.raises(UserError, match=r"val\.idx: the index .* `python -m data_prep.im2rec"):
        open_source(tmp_path / "set", "val", "recordio").labels.sum()


def test_raw_pixels_are_refused(photos: Photos, tmp_path: Path) -> None:
    from data_prep import tfrecord

    tfrecord.convert(photos.root, tmp_path / "raw", schema="slides", size=50, jobs=0, quiet=True)
    with pytest.raises(UserError, match="hold raw pixels, .* use --loader native"):
        read(open_source(tmp_path / "raw", "train"))


def test_a_batch_larger_than_the_data_is_refused(photos: Photos) -> None:
    with pytest.raises(UserError, match="--batch-size 64: one step takes 64 images"):
        read(open_source(photos.root, "train"), batch_size=64)


@pytest.mark.parametrize("data_format", FORMATS)
def test_what_is_no_image_is_named(packed: Path, tmp_path: Path, data_format: str) -> None:
    """DALI says that some image of a batch did not decode, and not which."""
    root = shutil.copytree(packed, tmp_path / "set")
    photo = (root / "train/anvil/anvil_04.jpg").read_bytes()
    for path in root.rglob("*"):
        if path.is_file() and photo in path.read_bytes():
            path.write_bytes(path.read_bytes().replace(photo, b"x" * len(photo)))
    with pytest.raises(UserError) as caught:
        # small batches: DALI 2.4 on a CPU ends the process where one of 47 does not decode
        read(open_source(root, "train", data_format), batch_size=8)
    place, problem = {
        "files": ("train/anvil/anvil_04.jpg", "is not an image that can be decoded"),
        "recordio": ("records/train.rec: damaged at offset ", "key 4 is not as it was packed"),
        "tfrecord": ("-of-00003: damaged at offset ", "checksum"),
    }[data_format]
    assert place in str(caught.value) and problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data_format", ["recordio", "tfrecord"])
def test_a_changed_byte_stops_training_before_it_begins(
    packed: Path, tmp_path: Path, data_format: str
) -> None:
    """DALI itself looks at no checksum, and trains on the other picture."""
    root = shutil.copytree(packed, tmp_path / "set")
    folder = root / ("records" if data_format == "recordio" else "tfrecord")
    rng = random.Random(0)
    assert len(labels(read(open_source(root, "train", data_format)))) == 48
    for _ in range(8):
        path = rng.choice(sorted([*folder.glob("train.rec"), *folder.glob("train-*")]))
        whole = path.read_bytes()
        data = bytearray(whole)
        data[data.index(b"\xff\xda", len(data) // rng.randrange(2, 9)) + 20] ^= 4
        path.write_bytes(data)
        with pytest.raises(UserError, match=f"{path}: .* checksum"):
            read(open_source(root, "train", data_format))
        path.write_bytes(whole)
    assert len(labels(read(open_source(root, "train", data_format)))) == 48


def test_a_file_removed_meanwhile_is_named(tmp_path: Path) -> None:
    for split, i in itertools.product(("train", "val"), range(4)):
        write_photo(tmp_path / split / "a" / f"{i}.jpg", i)
    source = open_source(tmp_path, "train")
    (tmp_path / "train" / "a" / "3.jpg").unlink()
    with pytest.raises(UserError, match=r"train/a/3\.jpg: this image cannot be read"):
        read(source, num_classes=1)


MINE = """
def augment(seed, width, height, augmentation):
    return (0, 0, width, height), False

def shard(order, rank, size, batch):
    return order[: 2 * batch].reshape(2, batch)
"""


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    (tmp_path / "mine.py").write_text(MINE)
    yield lambda seam: overrides.install((f"{seam}={tmp_path / 'mine.py'}:{seam}",))
    overrides.install(())


def test_functions_of_ones_own_are_refused_where_dali_does_not_call_them(
    packed: Path, learner: Callable[[str], None]
) -> None:
    learner("shard")
    assert len(read(open_source(packed, "train", "files"))) == 2
    for data_format in ("recordio", "tfrecord"):
        with pytest.raises(UserError, match="--override shard: .* use --data-format files"):
            read(open_source(packed, "train", data_format))
    learner("augment")
    with pytest.raises(UserError, match="--override augment: .* use --loader native"):
        read(open_source(packed, "train", "files"))


# --- the other generation -------------------------------------------------------------------------


@pytest.mark.acceptance
@pytest.mark.needs("dali2")
def test_all_of_this_with_the_current_dali(tmp_path: Path, repository: Path) -> None:
    """The same tests in a process that finds the other package first."""
    folder = Path(os.environ["RN50_DALI2"])
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia" / "__init__.py").write_text(f"__path__ = [{str(folder / 'nvidia')!r}]\n")
    paths = os.pathsep.join([str(tmp_path), str(folder), str(repository)])
    env = {**os.environ, "PYTHONPATH": paths}
    ask = "import nvidia.dali; print(nvidia.dali.__version__)"
    version = subprocess.run([sys.executable, "-c", ask], env=env, capture_output=True, text=True)
    assert version.stdout.startswith("2."), version.stderr
    files = ["tests/pipelines/test_dali.py", "tests/pipelines/test_sharding.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not acceptance", "-k", "dali", *files],
        env=env, capture_output=True, text=True, cwd=repository,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
