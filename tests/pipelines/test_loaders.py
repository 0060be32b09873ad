"""The promises of every loader, on every source: order, sharding, odd and damaged files.

The photos are flat colours, so a batch itself tells which images it holds.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data_prep.recordwriter import Writer, pack_header
from data_prep.tfrecordwriter import format_index, serialize_example, write_records
from rn50lib import hooks
from rn50lib.data import Batch, open_pipeline, sampler
from rn50lib.data.source import Source, open_source
from rn50lib.data.tfrecord import index_path
from rn50lib.errors import UserError
from tests.pipelines.conftest import ODD, pack
from tests.support import Photos, full, numbers, write_photo

FORMATS = ("files", "recordio", "tfrecord")
LOADERS: dict[str, dict[str, Any]] = {
    "torch": {"loader": "native", "backend": "torch"},
    "tensorflow": {"loader": "native", "backend": "tensorflow", "data_nthreads": 2},
    "dali": {"loader": "dali", "backend": "torch"},
}
READS = {"torch": FORMATS, "tensorflow": ("files", "tfrecord"), "dali": FORMATS}
ORDERED = {"torch": FORMATS, "tensorflow": ("files",), "dali": ()}
BY_NUMBER = ORDERED | {"dali": ("files",)}  # a learner's `shard` chooses what is read
MARKS = {  # a capability of tests/capabilities.toml, if the loader needs a package
    "torch": [pytest.mark.needs("torch")],
    "tensorflow": [pytest.mark.needs("tensorflow"), pytest.mark.slow],
    "dali": [pytest.mark.needs("dali"), pytest.mark.slow],
}
LARGE = pytest.mark.acceptance
every_loader = pytest.mark.parametrize(
    "loader", [pytest.param(name, marks=MARKS[name]) for name in LOADERS]
)
# TensorFlow's and DALI's in `make test` on one source only
on_each = pytest.mark.parametrize(
    ("loader", "data_format"),
    [
        pytest.param(name, form, marks=[*MARKS[name], *([LARGE] if large else [])])
        for name in LOADERS
        for form in READS[name]
        for large in [name != "torch" and form != "tfrecord"]
    ],
)
every_pair = pytest.mark.parametrize(
    ("loader", "data_format"),
    [pytest.param(name, f, marks=MARKS[name]) for name in LOADERS for f in READS[name]],
)
every_ordered = pytest.mark.parametrize(
    ("loader", "data_format"),
    [pytest.param(name, f, marks=MARKS[name]) for name in LOADERS for f in ORDERED[name]],
)
TRAIN, VAL = 48, 19  # images; the batch sizes and numbers of ranks below divide neither


def read(
    loader: str, source: Source, split: str = "train", epoch: int = 0, rank: int = 0,
    size: int = 1, skip: int = 0, **fields: Any,
) -> list[Batch]:  # fmt: skip
    asked = LOADERS[loader] | {"test_io": True} | fields
    pipeline = open_pipeline(full(**asked), source, split, rank, size)
    try:
        batches = list(pipeline.epoch(epoch, skip))
        assert skip or len(batches) == len(pipeline)
        assert pipeline.ordered == (source.format in ORDERED[loader])
        return batches
    finally:
        pipeline.close()


def pixels(batches: list[Batch]) -> np.ndarray:
    return np.concatenate([np.asarray(batch.images)[: batch.valid] for batch in batches])


def labels(batches: list[Batch]) -> list[int]:
    return [int(k) for batch in batches for k in np.asarray(batch.labels)[: batch.valid]]


@pytest.fixture(scope="module")
def packed(photos: Photos, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos with their records, and 3 shards for training and 2 for validation."""
    return pack(Path(shutil.copytree(photos.root, tmp_path_factory.mktemp("loaders") / "set")))


# -- order -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loader", "data_format"),
    [
        pytest.param(name, form, marks=[*MARKS[name], *([LARGE] if large else [])])
        for name in LOADERS
        for form in READS[name]
        for large in [name == "tensorflow" and form == "files"]  # its order is tested below
    ],
)
def test_ranks_share_the_images(packed: Path, loader: str, data_format: str) -> None:
    """Training sees no image twice, validation each once; all ranks take equally many steps."""
    for split, (size, batch) in itertools.product(("train", "val"), ((2, 5), (3, 5))):
        source = open_source(packed, split, data_format)
        ranks = [
            read(loader, source, split, 3, rank, size, batch_size=batch) for rank in range(size)
        ]
        steps = TRAIN // (size * batch) if split == "train" else -(-VAL // (size * batch))
        assert [len(made) for made in ranks] == [steps] * size
        batches = list(itertools.chain(*ranks))
        for made in batches:
            assert np.asarray(made.images).shape == (batch, 32, 32, 3)
            assert np.asarray(made.images).dtype == np.uint8
            assert np.asarray(made.labels).dtype == np.int32
        seen = [int(n) for n in numbers(pixels(batches))]
        if split == "train":  # 8 images in each class
            assert labels(batches) == [n // 8 for n in seen]
            assert len(seen) == len(set(seen)) == steps * size * batch
        else:  # 4 in the first class, 3 in the others
            assert labels(batches) == [max(n - 1, 0) // 3 for n in seen]
            assert sorted(seen) == list(range(VAL))


@every_ordered
def test_order_follows_seed_and_epoch(packed: Path, loader: str, data_format: str) -> None:
    """Step s takes order[s x G : (s + 1) x G], and rank r its rows from r x B on."""
    source = open_source(packed, "train", data_format)
    images = [Image.open(io.BytesIO(source.read(i))).resize((4, 4)) for i in range(TRAIN)]
    shown = numbers(np.stack([np.asarray(image) for image in images]))
    planned = [shown[i] for i in sampler.epoch_order(TRAIN, seed=5, epoch=2)]
    for rank, skip in itertools.product((0, 2), (0, 7)):
        made = read(loader, source, epoch=2, rank=rank, size=3, seed=5, skip=skip)
        assert len(made) == (TRAIN - skip) // 12
        for step, batch in enumerate(made):
            first = skip + step * 12 + rank * 4
            assert numbers(batch.images) == planned[first : first + 4]


@every_ordered
def test_an_epoch_continues_from_any_step(textured: Path, loader: str, data_format: str) -> None:
    source = open_source(textured, "train", data_format)
    whole, rest = (read(loader, source, epoch=1, skip=skip) for skip in (0, 8))
    assert np.array_equal(pixels(whole)[8:], pixels(rest)) and labels(whole)[8:] == labels(rest)
    assert not np.array_equal(pixels(whole), pixels(read(loader, source, epoch=2)))


@on_each
def test_num_examples_shortens_the_epoch(packed: Path, loader: str, data_format: str) -> None:
    source = open_source(packed, "train", data_format)
    parts = [read(loader, source, epoch=e, num_examples=24) for e in (0, 1)]
    shown = [numbers(pixels(part)) for part in parts]
    assert len(set(shown[0])) == 24 and shown[0] != shown[1]
    if loader != "dali" or data_format == "files":  # DALI's readers take other images each epoch
        assert sorted(shown[0]) == sorted(shown[1])
    assert labels(parts[0]) == [number // 8 for number in shown[0]]
    if data_format in BY_NUMBER[loader]:  # drawn across all classes, not the first ones
        assert len(set(labels(parts[0]))) > 24 // 8
    for split in ("train", "val"):
        source = open_source(packed, split, data_format)
        assert len(read(loader, source, split, benchmark_iters=2)) == 2


ANOTHER_PROCESS = """
import sys
from tests.pipelines.test_loaders import hashes, opened
root, *loaders = sys.argv[1:]
for loader, data_format in (pair.split("-") for pair in loaders):
    pipeline = opened(loader, data_format, root, threads=3)
    if loader == "tensorflow":  # the backend still has to choose its device
        from tensorflow.python.eager import context
        assert context.context()._context_handle is None
    print(*hashes(pipeline))
"""


def opened(loader: str, data_format: str, root: str | Path, threads: int) -> Any:
    config = full(**LOADERS[loader] | {"data_nthreads": threads, "seed": 7, "batch_size": 5})
    return open_pipeline(config, open_source(root, "train", data_format), "train", 0, 2)


def hashes(pipeline: Any) -> list[str]:
    """Return a hash of all batches of each of two epochs."""
    found = []
    for epoch in (0, 3):
        digest = hashlib.sha256()
        for batch in pipeline.epoch(epoch):
            digest.update(np.asarray(batch.images).tobytes() + np.asarray(batch.labels).tobytes())
        found.append(digest.hexdigest())
    pipeline.close()
    return found


@pytest.mark.slow
@pytest.mark.needs("torch", "tensorflow", "dali")
@pytest.mark.parametrize(
    "data_format", [pytest.param(f, marks=() if f == "tfrecord" else LARGE) for f in FORMATS]
)
def test_seed_and_epoch_give_the_same_batches_in_any_process(
    textured: Path, repository: Path, data_format: str
) -> None:
    """The number of threads or workers does not matter. One process for all loaders."""
    code = f"if __name__ == '__main__':\n{ANOTHER_PROCESS}".replace("\n", "\n    ")
    loaders = [name for name in LOADERS if data_format in READS[name]]
    done = subprocess.run(
        [sys.executable, "-c", code, str(textured), *(f"{n}-{data_format}" for n in loaders)],
        capture_output=True, text=True, cwd=repository,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name, line in zip(loaders, done.stdout.splitlines(), strict=True):
        assert line.split() == hashes(opened(name, data_format, textured, threads=0)), name


# -- odd and damaged files -------------------------------------------------------------------------


@on_each
def test_odd_images_pass(odd: Path, loader: str, data_format: str) -> None:
    for split in ("train", "val"):
        source = open_source(odd, split, data_format)
        made = read(loader, source, split, num_classes=len(ODD), batch_size=len(ODD))
        assert sorted(labels(made)) == list(range(len(ODD)))
        for label, image in zip(labels(made), pixels(made), strict=True):
            mean = image.mean(axis=(0, 1))
            assert np.abs(mean - ODD[label].colour).max() < 6, (ODD[label].name, mean)


def store(root: Path, data_format: str, images: list[bytes]) -> list[str]:
    """Write images as the val split; return the start of their names in messages."""
    if data_format == "files":
        paths = [root / split / "a" / f"{i}.jpg" for split in ("train", "val") for i in range(4)]
        for path, image in zip(paths, images * 2, strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image)
        return [f"{path} " for path in paths[4:]]
    if data_format == "recordio":
        with Writer(root / "val") as writer:
            for key, image in enumerate(images):
                writer.write(key, pack_header(0, key, image))
        return [f"{root}/val.rec: record with key {key} at offset " for key in range(4)]
    path = root / "validation-00000-of-00001"
    examples = [{"image/encoded": image, "image/class/label": 1} for image in images]
    with open(path, "wb") as file:
        entries = write_records(file, map(serialize_example, examples))
    index_path(path).parent.mkdir()
    index_path(path).write_bytes(format_index(entries))
    return [f"{path}: record {i} at offset {offset:,} " for i, (offset, _) in enumerate(entries)]


@on_each
@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("cut", "is damaged and does not decode"),
        ("text", "is not an image"),
        ("empty", "is empty"),
        ("pointer", "is a pointer of git-LFS"),
    ],  # fmt: skip
)
def test_a_bad_image_is_named(
    tmp_path: Path, loader: str, data_format: str, bad: str, problem: str
) -> None:
    """Which image of a stream does not decode is not known in C++; the remedy finds it."""
    images = []
    for i in range(4):
        write_photo(tmp_path / f"{i}.jpg", i, 300, 300)
        images.append((tmp_path / f"{i}.jpg").read_bytes())
    images[2] = {
        "cut": images[2][:-700], "text": b"This is not a photo. " * 60, "empty": b"",
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n",
    }[bad]  # fmt: skip
    place = store(tmp_path, data_format, images)[2]
    source = open_source(tmp_path, "val", data_format)
    with pytest.raises(UserError) as caught:
        read(loader, source, "val", num_classes=1, batch_size=3)
    message = str(caught.value)
    assert "\n" not in message
    unknown = loader == "dali" or (loader == "tensorflow" and bad == "cut")
    if unknown and data_format != "files":
        assert f"`python -m data_prep.verify {tmp_path}`" in message
    else:
        assert message.startswith(place.rstrip()) and problem in message


@pytest.mark.parametrize(
    ("loader", "data_format"),
    [
        pytest.param(name, form, marks=MARKS[name])
        for name in LOADERS
        for form in READS[name]
        if name != "dali" and form != "files"
    ],
)
def test_a_changed_byte_stops_training(
    packed: Path, tmp_path: Path, loader: str, data_format: str
) -> None:
    root = Path(shutil.copytree(packed, tmp_path / "set"))
    assert len(labels(read(loader, open_source(root, "train", data_format)))) == TRAIN
    name = "records/train.rec" if data_format == "recordio" else "tfrecord/train-00001-of-00003"
    data = bytearray((root / name).read_bytes())
    data[data.index(b"\xff\xda", len(data) // 2) + 20] ^= 4
    (root / name).write_bytes(data)
    said = f"{name}: damaged at offset .* checksum" if loader == "torch" else "corrupted record at"
    with pytest.raises(UserError, match=said):
        read(loader, open_source(root, "train", data_format))


@every_loader
def test_a_removed_file_is_named(tmp_path: Path, loader: str) -> None:
    for split, i in itertools.product(("train", "val"), range(4)):
        write_photo(tmp_path / split / "a" / f"{i}.jpg", i)
    source = open_source(tmp_path, "train")
    (tmp_path / "train" / "a" / "3.jpg").unlink()
    with pytest.raises(UserError, match=r"train/a/3\.jpg: this image cannot be read"):
        read(loader, source, num_classes=1)


# -- a learner's functions -------------------------------------------------------------------------

MINE = """
def augment(seed, width, height, augmentation):
    return (0, 0, width // 2, height), False

def outside(seed, width, height, augmentation):
    return (5, 0, width, height), False

def shard(order, rank, size, batch):
    return order[:batch].reshape(1, batch)
"""


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "mine.py").write_text(MINE)
    yield lambda seam, name: hooks.install((f"{seam}={tmp_path / 'mine.py'}:{name}",))
    hooks.install(())


@every_pair
def test_a_learners_function_is_used_or_refused(
    textured: Path, loader: str, data_format: str, learner: Any
) -> None:
    source = open_source(textured, "train", data_format)
    learner("shard", "shard")
    if data_format in BY_NUMBER[loader]:
        assert len(read(loader, source)) == 1
    else:
        with pytest.raises(UserError, match="--override shard: .* use --data-format files"):
            read(loader, source)
    learner("augment", "augment")
    if loader == "dali":
        with pytest.raises(UserError, match="--override augment: .* use --loader native"):
            read(loader, source)
        return
    assert 110 < pixels(read(loader, source))[..., 0].max() < 140  # red rises from left to right
    learner("augment", "outside")
    with pytest.raises(UserError, match=r"--override augment: the crop \(left 5, top 0"):
        read(loader, source)
