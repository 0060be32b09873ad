"""Predictions from a checkpoint: the same images and the same answers as in validation."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rn50 import predict
from rn50.reports import load
from rn50lib import hardware
from rn50lib.errors import UserError
from tests.support import Photos, full
from tests.training.test_experiment import gpus

pytestmark = pytest.mark.needs("torch")


def test_a_split_gives_the_accuracy_of_the_report(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.npz"
    assert predict.main([str(trained / "m"), "2", "--split", "val", "-o", str(file)]) == 0
    with np.load(file) as out:  # plain arrays: no pickle is needed to read them
        probabilities, labels = out["probabilities"], out["labels"]
        assert len(out["names"]) == len(labels) and len(out["classes"]) == probabilities.shape[1]
    assert probabilities.dtype == np.float32
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5) and (probabilities >= 0).all()
    right = 100 * (probabilities.argmax(axis=1) == labels).sum() / len(labels)
    loss = -np.log(probabilities[np.arange(len(labels)), labels]).mean()
    metrics = load(trained / "report.json")["metrics"]
    assert right == metrics["val.top1"][-1]
    assert loss == pytest.approx(metrics["val.loss"][-1], rel=1e-4)


def test_one_process_predicts_on_a_machine_with_many_gpus(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "machine", lambda: gpus((9, 0), (9, 0)))
    config = predict.trained_as(trained / "m", 2)
    assert (config.n, config.comm, config.data_nthreads) == (1, "local", 40)


def test_files_are_predicted_in_order_and_like_the_data_set(
    trained: Path, photos: Photos, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted((photos.root / "val").rglob("*.jpg"))[:3]
    assert predict.main([str(trained / "m"), "2", *map(str, files[::-1]), "-b", "1"]) == 0
    out, err = capsys.readouterr()
    assert [line.split(": ")[0] for line in out.splitlines()] == list(map(str, files[::-1]))
    assert err.count(" of 3 images") == 1  # at most a line every ten seconds
    three, _ = predict.predict(trained / "m", 2, predict.Files(tuple(files)))
    two_at_once, _ = predict.predict(trained / "m", 2, predict.Files(tuple(files)), batch_size=2)
    np.testing.assert_allclose(two_at_once, three, rtol=1e-5)


def test_one_image_is_not_computed_as_a_whole_batch(
    trained: Path, photos: Photos, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rn50lib.torch.train_step import TorchStep

    sizes, compute = [], TorchStep.predict

    def count(step: TorchStep, images: np.ndarray) -> np.ndarray:
        sizes.append(len(images))
        return compute(step, images)

    monkeypatch.setattr(TorchStep, "predict", count)
    files = predict.Files(tuple(photos.files("val")[:3]))
    predict.predict(trained / "m", 2, predict.Files(files.paths[:1]))
    predict.predict(trained / "m", 2, files, batch_size=2)
    assert sizes == [1, 2, 2]


def test_the_next_batch_is_decoded_while_one_is_computed(photos: Photos) -> None:
    """One that cannot be read is an error in its place, and at most one batch is ahead."""
    started = [threading.Event() for _ in range(6)]

    class Watched(predict.Files):
        def read(self, i: int) -> bytes:
            started[i].set()
            return super().read(i)

    files = Watched((*photos.files("val")[:5], Path("gone.jpg")))
    batches = predict.prepare(files, full(image_shape=32, val_resize=32), 2)
    next(batches)
    assert all(event.wait(60) for event in started[2:4])
    assert not any(event.is_set() for event in started[4:])
    assert [type(image) for image in [*batches][-1]] == [np.ndarray, UserError]


def test_a_turned_photo_is_predicted_upright(trained: Path, tmp_path: Path) -> None:
    """Orientation 6 turns by 90 degrees clockwise; a PNG loses nothing when it is turned."""
    across, down = np.meshgrid(np.arange(48), np.arange(32))
    upright = Image.fromarray(np.stack([5 * across, 7 * down, across + down], -1).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    upright.save(tmp_path / "upright.png")
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    files, out = [str(tmp_path / f"{name}.png") for name in ("upright", "turned")], "out.npz"
    assert predict.main([str(trained / "m"), "2", *files, "-o", str(tmp_path / out)]) == 0
    with np.load(tmp_path / out) as made:
        np.testing.assert_array_equal(*made["probabilities"])


def test_a_checkpoint_with_damaged_metadata_is_one_line(
    trained: Path, photos: Photos, rn50, tmp_path: Path
) -> None:
    for name in ("m-symbol.json", "m-0002.safetensors"):
        shutil.copy(trained / name, tmp_path)
    file = tmp_path / "m-0002.safetensors"
    data = file.read_bytes()
    assert data.count(b'\\"data_root\\":') == 1
    file.write_bytes(data.replace(b'\\"data_root\\":', b'\\"data_root\\"x'))
    error = rn50("predict", tmp_path / "m", "2", photos.files("val")[0]).error
    assert f"checkpoint {file} is damaged" in error


@pytest.mark.needs("engines")
def test_openvino_gives_the_same_probabilities(trained: Path, tmp_path: Path) -> None:
    found = {}
    for name in ("torch", "openvino"):
        file = tmp_path / f"{name}.npz"
        argv = [str(trained / "m"), "2", "--split", "val", "-o", str(file), "--engine", name]
        assert predict.main(argv) == 0
        found[name] = np.load(file)["probabilities"]
    assert np.abs(found["torch"] - found["openvino"]).max() < 1e-4


@pytest.mark.needs("engines")
def test_openvino_scores_but_does_not_train(
    trained: Path, photos: Photos, rn50, tmp_path: Path
) -> None:
    prefix, root = str(trained / "m"), ("--data-root", photos.root)
    scored = rn50("score", prefix, *root, "--engine", "openvino", "--report", "s.json")
    assert scored.status == 0, scored.err
    before = load(trained / "report.json")["metrics"]["val.top1"][-1]
    assert load(tmp_path / "s.json")["metrics"]["val.top1"] == [before]
    trains = ("run", "--network", "tiny", *root, "--engine", "openvino")
    assert "needs --only-inference" in rn50(*trains).error
    image = photos.files("val")[0]
    other = ("--dtype", "float16", "--engine", "openvino")
    error = rn50("predict", prefix, "2", image, *other).error
    assert "computes in float32 or bfloat16, not float16: use --engine torch, or --dtype" in error


@pytest.mark.parametrize("split", ["train", "val"])
def test_one_split_names_the_classes(
    trained: Path, photos: Photos, tmp_path: Path, split: str
) -> None:
    shutil.copytree(photos.root / split, tmp_path / split)
    argv = [str(trained / "m"), "2", str(photos.files("val")[0]), "--data-root", str(tmp_path)]
    assert predict.main(argv) == 0
    max((tmp_path / split).iterdir()).rename(tmp_path / split / "zzz")
    with pytest.raises(UserError, match="only in .*'zzz'"):
        predict.main(argv)


@pytest.mark.parametrize(
    ("name", "words", "shown"),
    [
        ("m", [], "epoch 2, the last"),
        ("m", ["-b", "4"], "epoch 2, the last"),
        ("m", ["-b", "4", "1"], ""),
        ("m", ["1", "-b", "4"], ""),
        ("m-0001.safetensors", [], ""),
        ("m-0001.safetensors", ["1"], ""),
    ],
)
def test_a_checkpoint_is_named_by_prefix_and_epoch_or_by_its_file(
    trained: Path, photos: Photos, capsys, name: str, words: list[str], shown: str
) -> None:
    image = str(photos.files("val")[0])
    expected, _ = predict.predict(trained / "m", 2 if shown else 1, predict.Files((Path(image),)))
    capsys.readouterr()
    assert predict.main([str(trained / name), *words, image]) == 0
    out, err = capsys.readouterr()
    assert f"{100 * expected.max():.1f}%" in out
    assert shown in err and ("the last" in err) == bool(shown)


def test_bad_input_is_named(trained: Path, tmp_path: Path) -> None:
    prefix = str(trained / "m")
    with pytest.raises(UserError, match="this prefix has epochs: 1, 2"):
        predict.main([prefix, "7", "a.jpg"])
    with pytest.raises(UserError, match=r"no checkpoint .*none-0001"):
        predict.main([str(tmp_path / "none"), "1", "a.jpg"])
    (tmp_path / "none-0001-00000008.safetensors").touch()  # from within an epoch
    with pytest.raises(UserError, match="there is no checkpoint of a whole epoch"):
        predict.main([str(tmp_path / "none"), "a.jpg"])
    with pytest.raises(UserError, match=r"o\.csv: .*\.npz"):
        predict.main([prefix, "2", "a.jpg", "-o", str(tmp_path / "o.csv")])
    with pytest.raises(SystemExit):
        predict.main([prefix, "2"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.webp").write_bytes(b"x")
    with pytest.raises(UserError, match=r"no image is in this folder; left out: 1 .webp image"):
        predict.main([prefix, "2", str(tmp_path / "empty")])


def test_folders_and_a_dtype(
    trained: Path, photos: Photos, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder stands for the images in it and below it."""
    shutil.copy(photos.files("val")[0], tmp_path / "b.PNG")
    (tmp_path / "a" / ".cache").mkdir(parents=True)
    for place in ("a/c.jpeg", "a/.cache/thumb.jpg"):
        shutil.copy(photos.files("val")[1], tmp_path / place)
    (tmp_path / "notes.txt").write_text("x")
    argv = [str(trained / "m"), "2", str(tmp_path), "--dtype"]
    assert predict.main([*argv, "float32"]) == 0
    out, err = capsys.readouterr()
    assert [line.split(": ")[0] for line in out.splitlines()] == [
        str(tmp_path / name) for name in ("b.PNG", "a/c.jpeg")
    ]
    assert "2 images; left out: 1 non-image file (notes.txt)" in err
    assert predict.main([*argv, "bfloat16"]) == 0
    assert capsys.readouterr().out != out


def test_links_in_a_circle_show_each_image_once(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"to-{other}").symlink_to(tmp_path / other)
        (tmp_path / name / f"{name}.jpg").touch()
    found = predict.find_files([tmp_path / "a"])
    assert sorted(Path(found.name(i)).name for i in range(len(found))) == ["a.jpg", "b.jpg"]


def test_bad_images_do_not_affect_other_results(
    trained: Path, photos: Photos, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, gone, output = tmp_path / "broken.jpg", tmp_path / "gone.jpg", tmp_path / "o.npz"
    broken.write_bytes(b"not an image")
    good = list(map(str, photos.files("val")[:2]))
    argv = [str(trained / "m"), "2", good[0], str(broken), str(gone), good[1]]
    assert predict.main(argv) == 2
    out, err = capsys.readouterr()
    assert [line.split(": ")[0] for line in out.splitlines()] == good
    for problem in (
        f"{broken} is not an image that can be decoded; leave it out",
        f"{gone} cannot be read",
        "4 of 4 images, 2 not read",
    ):
        assert problem in err
    assert predict.main([*argv, "-o", str(output)]) == 2
    with np.load(output) as arrays:
        assert arrays["names"].tolist() == good and len(arrays["probabilities"]) == 2
    output.unlink()
    assert predict.main([str(trained / "m"), "2", str(broken), "-o", str(output)]) == 2
    assert not output.exists()
    found, bad = predict.predict(trained / "m", 2, predict.Files((broken, Path(good[0]))))
    assert bad == [0] and np.isnan(found[:, 0]).tolist() == [True, False]
