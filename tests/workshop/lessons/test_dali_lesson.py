"""What notebook 05 computes and draws, and what it asks the loaders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rn50lib.config import Experiment
from rn50lib.data.source import open_source
from rn50lib.errors import UserError
from rn50lib.recipe import MEAN, STD, Augmentation
from tests.conftest import ROOT
from tests.support import Photos, full
from workshop import expected, session
from workshop.errors import RunFailed
from workshop.lessons.dali import figures, lesson, loaders, pictures


def measured() -> loaders.LoaderRates:
    alone = {"PyTorch": [100.0, 200.0, 300.0], "DALI": [200.0, 300.0, 750.0]}
    paced = {"PyTorch": [90.0, 190.0, 290.0], "DALI": [190.0, 280.0, 500.0]}
    return loaders.LoaderRates(alone, paced, [10.0, 20.0, 30.0], full())


def test_loaders_are_compared_round_by_round() -> None:
    found = measured()
    assert found.rounds == 3
    assert found.ratios("DALI", "PyTorch") == [2.0, 1.5, 2.5]
    _, text = loaders.figure(found, 1000.0)
    assert "DALI is the fastest here, with 300 images per second alone" in text
    assert "works 28 % of the time behind it" in text
    assert "takes 20.0 images per second, 15.0 times fewer" in text


# --- times of the graph ---------------------------------------------------------------------------


def test_an_operator_s_time_is_what_it_adds_to_those_before() -> None:
    until = {"read": [1.0, 2.0, 1.0], "decode": [4.0, 5.0, 9.0], "resize": [3.9, 6.0, 10.0]}
    own = figures.own_times(until, ["read", "decode", "resize"])
    assert own == {"read": 1.0, "decode": 3.0, "resize": 1.0}
    _, text, found = figures.step_times(until, {"this": list(until)})
    assert found == {"this": own}
    assert text == "this: 5.00 ms an image on one core, 60 % of it for 'decode'."


# --- pictures -------------------------------------------------------------------------------------


def test_differences_are_those_of_bytes_and_do_not_wrap() -> None:
    truth = np.zeros((2, 4, 4, 3), np.uint8)
    other = truth.copy()
    other[1] = 250  # as bytes, 0 - 250 would be 6
    found = pictures.differences({"Pillow": truth, "fast": other})
    assert found == {"fast": (125.0, 250.0, 250)}


def textured(path: Path, width: int = 160, height: int = 120) -> Path:
    """A picture whose crops differ from one another."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    pixels = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], -1)
    Image.fromarray(pixels.astype(np.uint8)).save(path, quality=95)
    return path


def check_outputs(path: Path, mirrored: bool) -> None:
    """Each operator's output follows from the one before."""
    whole = Augmentation(area=(1.0, 1.0), aspect=(4 / 3, 4 / 3), flip=float(mirrored))
    done = full(image_shape=40)
    found = lesson.outputs(replace_augmentation(done, whole), path, seed=1)
    encoded, part, small, planes = found.values()
    assert encoded.tobytes() == path.read_bytes()
    decoded = np.asarray(Image.open(path))
    assert part.shape == decoded.shape and np.abs(part.astype(int) - decoded).max() <= 1
    wanted = np.asarray(Image.open(path).resize((40, 40), Image.Resampling.BILINEAR)).astype(int)
    wanted = wanted[:, ::-1] if mirrored else wanted
    assert np.abs(small.astype(int) - wanted).mean() < 1
    normal = (small.transpose(2, 0, 1) - np.array(MEAN)[:, None, None]) / np.array(STD)[
        :, None, None
    ]
    assert planes.dtype == np.float32 and np.abs(planes - normal).max() < 0.01


def replace_augmentation(done, augmentation: Augmentation):
    """An experiment whose recipe has other crops."""

    class Other(type(done)):  # type: ignore[misc]
        def to_recipe(self):
            return replace(super().to_recipe(), augmentation=augmentation)

    return Other(**{name: getattr(done, name) for name in done.given()})


@pytest.mark.parametrize("mirrored", [False, True])
def test_the_operators_outputs_without_dali(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirrored: bool
) -> None:
    monkeypatch.setattr(lesson, "HERE", False)
    check_outputs(textured(tmp_path / "a.jpg"), mirrored)


@pytest.mark.needs("dali")
@pytest.mark.parametrize("mirrored", [False, True])
def test_the_operators_outputs_with_dali(tmp_path: Path, mirrored: bool) -> None:
    check_outputs(textured(tmp_path / "a.jpg"), mirrored)


@pytest.mark.needs("dali")
def test_one_word_moves_the_decoding_and_what_follows_it() -> None:
    from workshop.lessons.dali import steps

    found = steps.devices(lesson.look(full()))
    assert found == {
        steps.READ: ("cpu", "cpu"),
        steps.DECODE: ("cpu", "mixed"),
        steps.RESIZE: ("cpu", "gpu"),
        steps.NORMALISE: ("cpu", "gpu"),
    }


@pytest.mark.needs("dali")
def test_every_stump_of_the_graph_is_timed_in_every_round(tmp_path: Path) -> None:
    from workshop.lessons.dali import steps

    files = [textured(tmp_path / f"{i}.jpg") for i in range(3)]
    look = lesson.look(full())
    found = steps.step_times(files, look, rounds=2, batch=2)
    names = {"READ", "DECODE", "RESIZE", "NORMALISE", "WHOLE", "CROP"}
    assert set(found) == {getattr(steps, name) for name in names}
    assert all(len(values) == 2 and min(values) > 0 for values in found.values())
    assert steps.saved([2.0, 4.0], [1.0, 3.0]) == pytest.approx(1 - 0.625)


# --- where DALI is missing ------------------------------------------------------------------------


def test_every_recorded_result_of_the_lesson_is_there() -> None:
    """Without DALI the notebook shows what was recorded: each key that it names must exist."""
    import re

    master = (ROOT / "notebooks" / "source" / "05_dali.py").read_text(encoding="utf-8")
    named = set(re.findall(r'"(dali\.[a-z_.]+)"', master))
    recorded = expected.load(ROOT / "notebooks" / "expected")
    assert len(named) > 10
    assert named <= set(recorded)


# --- the loaders, in processes of their own -------------------------------------------------------


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_a_loader_takes_turns_alone_and_in_front_of_a_paced_device(photos: Photos) -> None:
    asked = Experiment(image_shape=32, batch_size=4, recipe="reference", data_nthreads=0,
                       threads=1, data_root=str(photos.root), data_format="files")  # fmt: skip
    chosen = {"PyTorch": {"backend": "torch", "loader": "native"}}
    found = loaders.compare(asked, chosen, 200.0, rounds=2, steps=3, warm_up=1)
    assert found.rounds == 2 and found.model == []
    assert found.rate("PyTorch") > 0
    assert max(found.paced["PyTorch"]) < 202  # no faster than the device


@pytest.mark.slow
@pytest.mark.needs("dali")
def test_with_gpus_dali_on_the_processor_is_a_loader_that_sees_none(
    photos: Photos, two_gpus: None
) -> None:
    asked = Experiment(image_shape=32, batch_size=4, recipe="reference", data_nthreads=1, n=1,
                       threads=1, data_root=str(photos.root), data_format="files")  # fmt: skip
    assert session.resolve(asked).dtype == "float16"  # what a GPU's run would compute in
    chosen = {loaders.ON_CPU: loaders.loaders()[loaders.ON_CPU]}
    found = loaders.compare(asked, chosen, 200.0, rounds=1, steps=3, warm_up=1)
    assert found.rate(loaders.ON_CPU) > 0


@pytest.mark.slow
@pytest.mark.needs("dali")
def test_dali_shows_pillow_s_pictures_and_reads_each_once(photos: Photos) -> None:
    asked = Experiment(image_shape=32, batch_size=8, recipe="reference", data_nthreads=1,
                       threads=1, data_root=str(photos.root))  # fmt: skip
    chosen = {"DALI": {"loader": "dali", "data_format": "files"}}
    shown = pictures.seen(asked, chosen, count=9, sizes=(32, 16))
    assert list(shown) == [32, 16]
    for size, found in shown.items():
        assert list(found) == ["Pillow", "DALI", "DALI, fast"]
        assert found["DALI"].shape == (9, size, size, 3)
        assert pictures.differences(found)["DALI"][0] < 1
    source = open_source(photos.root, "train", "recordio")
    done = full(data_root=str(photos.root), data_format="recordio", loader="dali", batch_size=4)
    read = pictures.reads(done, source, ranks=2)
    assert [len(rank) for rank in read.epochs[0]] == [24, 24]
    assert sorted(read.together) == list(range(48))
    assert read.again == read.epochs[0] != read.epochs[1]


@pytest.mark.slow
def test_a_diagnosis_that_fails_shows_why(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="exit status 2"):
        lesson.diagnose(tmp_path, "x", "--data-root", tmp_path / "nothing")


def test_a_measurement_that_cannot_be_made_says_why(photos: Photos) -> None:
    asked = Experiment(image_shape=32, batch_size=49, recipe="reference", data_nthreads=0,
                       threads=1, data_root=str(photos.root), data_format="files")  # fmt: skip
    with pytest.raises(UserError, match="one step takes 49 images"):
        loaders.compare(asked, {"PyTorch": {"loader": "native"}}, 200.0, rounds=1)
