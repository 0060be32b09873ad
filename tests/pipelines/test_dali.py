"""DALI's pixels and crops, graphs built ahead, and errors; test_loaders.py has what all promise.

Truth is plain Pillow, and the recipe's way to draw crops.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50lib import checkpoint, recipe
from rn50lib.data import Batch, open_pipeline
from rn50lib.data.sampler import BatchSampler
from rn50lib.data.source import Source, open_source
from rn50lib.errors import UserError
from tests.pipelines import test_loaders
from tests.pipelines.conftest import by_pillow
from tests.pipelines.test_loaders import labels, pixels
from tests.support import TINY, Photos, full
from tests.training.test_kills import FILES, FLAGS, signalled

pytestmark = [pytest.mark.slow, pytest.mark.needs("dali")]

FORMATS = ("files", "recordio", "tfrecord")
ODD = "caf\udce9"  # one byte beyond ASCII


def read(source: Source, split: str = "train", **fields: Any) -> list[Batch]:
    return test_loaders.read("dali", source, split, **fields)


# --- images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [False, True])
def test_validation_images_match_pillow(textured: Path, engine: bool) -> None:
    """Test the decoder that decodes only what is needed, and the one for a GPU's JPEG engine."""
    from rn50lib.data.dali import Dali

    for size, resize in ((32, 37), (40, 50), (64, 150)):
        source = open_source(textured, "val", "files")
        config = full(loader="dali", image_shape=size, val_resize=resize, batch_size=5)
        pipeline = Dali(config, source, BatchSampler(config, source, "val"))
        plain = pixels(list(pipeline.epoch(0)))
        pipeline.engine = engine
        made = pixels(list(pipeline.epoch(0)))
        assert np.array_equal(made, plain)
        wanted = np.stack([by_pillow(source.read(i), size, resize) for i in range(len(source))])
        assert np.abs(made.astype(float) - wanted).mean(axis=(1, 2, 3)).max() < 1


@pytest.mark.parametrize("pixels, resize", [(224, 256), (32, 37)])
def test_the_centre_crop_is_as_large_as_python_rounds(pixels: int, resize: int) -> None:
    """A half, as 12 x 224 / 256 = 10.5, goes to the even number."""
    from nvidia.dali import fn, pipeline_def

    from rn50lib.data.dali import center_side

    sides = np.arange(1, 700, dtype=np.int32)

    @pipeline_def(batch_size=len(sides), num_threads=1, device_id=None)
    def pipeline():
        return center_side(fn.external_source(lambda: list(sides)), pixels, resize)

    graph = pipeline()
    graph.build()
    (made,) = graph.run()
    wanted = [max(1, round(side * pixels / resize)) for side in sides.tolist()]
    assert [int(made.at(i)) for i in range(len(sides))] == wanted


def crops(images: np.ndarray) -> np.ndarray:
    """Return (left, top, right, bottom) of each crop as fractions of its image.

    The colours of the `textured` images encode the position: red rises from left to right, green
    downwards. Mirrored crops have left > right.
    """
    ends = []
    for values in (images.mean(axis=1)[..., 0] / 255, images.mean(axis=2)[..., 1] / 255):
        slope = (values[:, -2] - values[:, 1]) / (values.shape[1] - 3)
        ends.append((values[:, 1] - 1.5 * slope, values[:, -2] + 1.5 * slope))
    (left, right), (top, bottom) = ends
    return np.stack([left, top, right, bottom], axis=1)


@pytest.mark.parametrize("engine", [False, True])
def test_crops_follow_the_recipe(textured: Path, engine: bool) -> None:
    """DALI's default smallest crop is 8% of the area; the recipe's is 5%."""
    from rn50lib.data.dali import Dali

    source = open_source(textured, "train", "recordio")
    config = full(loader="dali")
    pipeline = Dali(config, source, BatchSampler(config, source, "train"))
    pipeline.engine = engine
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


def test_other_augmentation_follows_the_recipe(textured: Path) -> None:
    source = open_source(textured, "train", "recordio")
    left, top, right, bottom = crops(pixels(read(source, recipe="roadsigns"))).T
    assert (np.abs(right - left) * (bottom - top)).min() > 0.3  # not 5%, but 35


def test_ranks_draw_their_own_crops(textured: Path) -> None:
    """All images have one size, so that equal draws are equal crops."""
    source = open_source(textured, "train", "recordio")
    first, second = (crops(pixels(read(source, rank=rank, size=2))) for rank in (0, 1))
    assert np.abs(first - second).max() > 0.2


# --- order ----------------------------------------------------------------------------------------


def test_the_pipelines_of_past_epochs_are_gone(textured: Path) -> None:
    """Each has threads and buffers, those of a GPU too; Python's collector may come much later."""
    from nvidia.dali import Pipeline

    config = full(loader="dali", batch_size=4, num_epochs=6)
    loader = open_pipeline(config, open_source(textured, "train", "files"), "train", 0, 1)
    others = sum(isinstance(thing, Pipeline) for thing in gc.get_objects())
    gc.disable()
    try:
        for epoch in range(6):
            assert len(list(loader.epoch(epoch))) == len(loader)
            here = sum(isinstance(thing, Pipeline) for thing in gc.get_objects()) - others
            assert here <= 2  # this epoch's and the next one's
    finally:
        gc.enable()
        loader.close()


@pytest.mark.parametrize("split", ["train", pytest.param("val", marks=pytest.mark.acceptance)])
@pytest.mark.parametrize("data_format", FORMATS)
def test_consecutive_epochs_match_single_epochs(
    textured: Path, data_format: str, split: str
) -> None:
    """A run builds pipelines ahead; a run that resumes at an epoch does not."""
    source = open_source(textured, split, data_format)
    config = full(loader="dali", batch_size=4, num_epochs=3, data_nthreads=2)
    for rank, size in ((0, 1), (1, 2)):
        running = open_pipeline(config, source, split, rank, size)
        for epoch in range(3):
            resumed = open_pipeline(config, source, split, rank, size)
            found, wanted = list(running.epoch(epoch)), list(resumed.epoch(epoch))
            assert labels(found) == labels(wanted) and len(found) == len(running)
            np.testing.assert_array_equal(pixels(found), pixels(wanted))
            resumed.close()
        running.close()


def test_a_stopped_run_repeats_its_epoch(
    rn50: Callable[..., Any], photos: Photos, tmp_path: Path
) -> None:
    """SIGTERM and --checkpoint-steps write nothing within an epoch, which is printed once."""
    flags = ("--loader", "dali", "--checkpoint-steps", "2")
    train = ("train", "--data-root", photos.root, *FLAGS, *flags)
    assert rn50(*train, "--model-prefix", "whole").status == 0
    stopped = signalled(photos, tmp_path, signal.SIGTERM, "train 1 4", *flags)
    assert stopped.returncode == 143, stopped.stderr
    assert stopped.stderr.count("cannot begin in the middle of an epoch") == 1
    assert checkpoint.positions(tmp_path / "m") == [(1, 0)]
    assert rn50(*train, *FILES, "--resume").status == 0
    wanted, made = (checkpoint.load(tmp_path / name, 4).arrays for name in ("whole", "m"))
    assert all(np.array_equal(wanted[name], made[name]) for name in wanted)


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inside", "problem"),
    [
        (None, "DALI is not installed here: `make setup` installs it"),
        (
            "raise ImportError('no libcudart')",
            "DALI does not import here (no libcudart): use --loader native",
        ),
    ],
)
def test_missing_dali_is_one_line(
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
    *before, line = done.stderr.splitlines()  # before it, what the run chose
    assert line.startswith(f"error: --loader dali: {problem}") and "--loader native" in line
    assert "Traceback" not in done.stderr and not any("error" in line for line in before)


def test_a_missing_index_is_named_with_the_command_that_writes_it(
    textured: Path, tmp_path: Path
) -> None:
    shutil.copytree(textured, tmp_path / "set")
    index = tmp_path / "set/tfrecord/index/validation-00001-of-00002.idx"
    index.unlink()
    source = open_source(tmp_path / "set", "val", "tfrecord")
    with pytest.raises(UserError) as caught:
        read(source, "val")
    command = f"python -m data_prep.tfrecord --index {tmp_path}/set/tfrecord"
    assert str(caught.value).startswith(f"{index}: this index is missing")
    assert f"`{command}` writes it" in str(caught.value)
    subprocess.run([sys.executable, *command.split()[1:]], check=True, capture_output=True)
    assert len(labels(read(source, "val"))) == 12
    index.write_text("".join(index.open().readlines()[:2]))  # as by an interrupted copy
    with pytest.raises(
        UserError, match=rf"index: the index files here list 8 records, and .*{command}"
    ):
        read(source, "val")
    subprocess.run([sys.executable, *command.split()[1:]], check=True, capture_output=True)
    assert len(labels(read(source, "val"))) == 12
    (tmp_path / "set/records/val.idx").unlink()
    with pytest.raises(UserError, match=r"val\.idx: this list .* `python -m data_prep.im2rec"):
        open_source(tmp_path / "set", "val", "recordio").labels.sum()


@pytest.mark.parametrize("data_format", FORMATS)
def test_a_fault_of_the_graph_is_one_line(
    textured: Path, monkeypatch: pytest.MonkeyPatch, data_format: str
) -> None:
    from nvidia.dali import fn

    from rn50lib.data.dali import Dali

    def cut_outside(self: Dali, images: Any, label: Any, encoded: Any) -> tuple[Any, ...]:
        return fn.slice(images, start=[900, 0], shape=[9, 9], axes=[0, 1]), label, encoded

    monkeypatch.setattr(Dali, "_delivered", cut_outside)
    with pytest.raises(UserError, match="DALI fails on .*lice.*; use --loader native") as it:
        read(open_source(textured, "train", data_format))
    assert "\n" not in str(it.value)


@pytest.mark.parametrize("data_format", ["files", "recordio"])
def test_names_that_are_not_utf8_are_refused(
    textured: Path, tmp_path: Path, data_format: str
) -> None:
    """One file, or the folder of the data, when a run opens it: before the first step."""
    root = Path(shutil.copytree(textured, tmp_path / ("set" if data_format == "files" else ODD)))
    odd = (root / "val/a/00.jpg").rename(root / f"val/a/{ODD}.jpg")
    named = odd if data_format == "files" else root / "records/val.rec"
    source = open_source(root, "val", data_format)
    with pytest.raises(UserError) as caught:
        open_pipeline(full(loader="dali"), source, "val", 0, 1)
    assert str(caught.value).startswith(f"{named}: --loader dali needs names in UTF-8")


# --- the other generation -------------------------------------------------------------------------


@pytest.mark.acceptance
@pytest.mark.needs("dali2")
def test_dali_tests_pass_with_the_current_dali(tmp_path: Path, repository: Path) -> None:
    """Run the same tests in a process that finds the other package first."""
    folder = Path(os.environ["RN50_DALI2"])
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia" / "__init__.py").write_text(f"__path__ = [{str(folder / 'nvidia')!r}]\n")
    paths = os.pathsep.join([str(tmp_path), str(folder), str(repository)])
    env = {**os.environ, "PYTHONPATH": paths}
    ask = "import nvidia.dali; print(nvidia.dali.__version__)"
    version = subprocess.run([sys.executable, "-c", ask], env=env, capture_output=True, text=True)
    assert version.stdout.startswith("2."), version.stderr
    names = ("test_dali", "test_loaders", "test_openers")
    files = [f"tests/pipelines/{name}.py" for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not acceptance",
         "-k", "dali and not current_dali", *files],
        env=env, capture_output=True, text=True, cwd=repository,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
