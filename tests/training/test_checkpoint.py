"""Checkpoints survive: a round trip, damage that is seen and named, a full disk, the wrong run."""

from __future__ import annotations

import functools
import json
import math
import resource
import struct
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rn50lib import checkpoint
from rn50lib.checkpoint import Checkpoint, CheckpointManager, TrainProgress
from rn50lib.distributed import Comm
from rn50lib.errors import UserError
from rn50lib.report import Report
from rn50lib.resnet import Network, tiny
from tests.support import full

IDENTITY = {"model": "resnet-tiny v1.5", "num_classes": 5, "seed": 0, "data": "48 images"}


def made(epoch: int = 1, net: Network | None = None) -> Checkpoint:
    return Checkpoint(
        epoch=epoch,
        arrays=(net or tiny(5)).initial_arrays(seed=epoch),
        fingerprint=IDENTITY,
        config={"num_epochs": 3, "lr": 0.1},
        metrics={"train.loss": [1.5, None][:epoch], "val.top1": [20.0] * epoch},
    )


def small(epoch: int = 1) -> Checkpoint:
    """A checkpoint of a few bytes, most of them header."""
    arrays = {"fc.bias": np.arange(4, dtype=np.float32), "fc.weight": np.ones((4, 3), np.float32)}
    return Checkpoint(epoch, arrays, IDENTITY, {"lr": 0.1}, {"val.top1": [20.0]})


def same(a: Checkpoint, b: Checkpoint) -> bool:
    return (
        (a.epoch, a.fingerprint, a.config, a.metrics)
        == (b.epoch, b.fingerprint, b.config, b.metrics)
        and a.arrays.keys() == b.arrays.keys()
        and all(np.array_equal(a.arrays[n], b.arrays[n]) for n in a.arrays)
    )  # fmt: skip


def test_other_programs_read_the_arrays(tmp_path: Path) -> None:
    """Parse the file by its specification: a length, a JSON header, the bytes."""
    import json

    data = checkpoint.save(tmp_path / "m", small()).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    begin, end = header["fc.bias"]["data_offsets"]
    raw = data[8 + length + begin : 8 + length + end]
    assert header["fc.bias"]["dtype"] == "F32"
    assert np.frombuffer(raw, "<f4").tolist() == [0, 1, 2, 3]


def test_epochs_under_a_prefix(tmp_path: Path) -> None:
    for epoch in (2, 10, 1):
        checkpoint.save(tmp_path / "m", small(epoch))
    for other in ("m-0003.safetensors.tmp", "mm-0004.safetensors", "m-x.safetensors"):
        (tmp_path / other).touch()
    assert checkpoint.epochs(tmp_path / "m") == [1, 2, 10]
    assert checkpoint.epochs(tmp_path / "nowhere" / "m") == []


# --- damage ---------------------------------------------------------------------------------------


def test_truncated_file_is_skipped_and_named(tmp_path: Path) -> None:
    prefix = tmp_path / "m"
    for epoch in (1, 2, 3):
        checkpoint.save(prefix, made(epoch))
    for epoch, length in ((3, 1000), (2, -1)):
        file = checkpoint.path(prefix, epoch)
        file.write_bytes(file.read_bytes()[:length])
    found, passed_over = checkpoint.newest(prefix)
    assert found is not None and same(found, made(1))
    assert [str(checkpoint.path(prefix, epoch)) in line for epoch, line in
            zip((3, 2), passed_over, strict=True)] == [True, True]  # fmt: skip
    assert all(line.startswith("passed over: ") and "damaged" in line for line in passed_over)


@functools.cache
def pristine() -> bytes:
    """The bytes of a small checkpoint, written once: every save waits for the disk."""
    with tempfile.TemporaryDirectory() as folder:
        return checkpoint.save(Path(folder) / "m", small()).read_bytes()


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_flipped_bit_is_detected(tmp_path: Path, data: st.DataObject) -> None:
    """A flipped bit in the header, the metadata or the arrays is detected."""
    file = checkpoint.path(tmp_path / "m", 1)
    content = bytearray(pristine())
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)
    try:
        found = checkpoint.load(tmp_path / "m", 1)
    except UserError as error:
        assert str(file) in str(error)
    else:  # a flip that changes nothing, such as one in the header's padding
        assert same(found, small())


@pytest.mark.parametrize("key", ["epoch", "identity", "position", "seconds", "classes"])
def test_senseless_metadata_is_passed_over(tmp_path: Path, key: str) -> None:
    """Its checksum is right: another version may have written it."""
    for epoch in (1, 2):
        file = checkpoint.save(tmp_path / "m", small(epoch))
    metadata, arrays = checkpoint.read(file, with_arrays=True)
    metadata[key] = "{"
    metadata["crc32"] = checkpoint.checksum(arrays, metadata)
    file.write_bytes(safetensors.numpy.save(arrays, metadata))
    found, (line,) = checkpoint.newest(tmp_path / "m")
    assert found is not None and same(found, small(1))
    assert line.startswith(f"passed over: checkpoint {file} is from a different version")


def test_weights_that_are_not_finite_are_passed_over(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "m", small(1))
    ruined = small(2)
    ruined.arrays["fc.bias"][1] = np.nan
    file = checkpoint.save(tmp_path / "m", ruined)
    found, (line,) = checkpoint.newest(tmp_path / "m")
    assert found is not None and same(found, small(1))
    assert line.startswith(f"passed over: checkpoint {file}: its weights are not finite; use an")


class Six(Comm):
    """One of six ranks with equal arrays."""

    size = 6

    def sum_array(self, array: np.ndarray) -> np.ndarray:
        return np.broadcast_to(array.max(axis=0), array.shape)


def test_averaging_running_statistics_twice_changes_nothing() -> None:
    """A run that SIGTERM ends in a validation averages them once more when it goes on."""
    averaged = {"bn1.running_var": np.random.default_rng(0).random(4096, np.float32)}
    checkpoints = CheckpointManager(full(), tiny(5), Six(), {}, None)
    again = checkpoints.with_bn_stats_of_ranks(averaged)
    assert np.array_equal(again["bn1.running_var"], averaged["bn1.running_var"])


class Second(Comm):
    """Rank 1 of 2. All values of rank 0 are larger by 2."""

    rank, size = 1, 2

    def stack(self, vector: np.ndarray) -> np.ndarray:
        return np.stack([vector + 2, vector])


def test_ranks_validate_with_the_mean_of_their_statistics_and_resume_with_their_own() -> None:
    arrays = {"bn1.running_mean": np.float32([1, 3]), "bn1.running_var": np.float32([5])}
    checkpoints = CheckpointManager(full(), tiny(5), Second(), {}, None)
    both = checkpoints.with_bn_stats_of_ranks(arrays)
    assert (both["bn1.running_mean"].tolist(), both["bn1.running_var"].tolist()) == ([2, 4], [6])
    own = checkpoints.with_own_bn_stats(both)
    assert all(np.array_equal(own[name], array) for name, array in arrays.items())


def test_ranks_go_on_only_when_the_checkpoint_is_written(tmp_path: Path) -> None:
    """One that ended earlier could make the launcher end rank 0 before."""
    there: list[list[int]] = []

    class First(Comm):
        def barrier(self) -> None:
            there.append(checkpoint.epochs(tmp_path / "m"))

    checkpoints = CheckpointManager(
        full(model_prefix=str(tmp_path / "m")), tiny(5), First(), {}, None
    )
    step: Any = SimpleNamespace(state=lambda: small().arrays, loss_scale_state=dict)
    checkpoints.save(1, TrainProgress(), step, Report("tiny", 1, []))
    assert there == [[1]]


def test_missing_epoch_lists_the_existing_ones(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "m", small(1))
    checkpoint.save(tmp_path / "m", small(4))
    with pytest.raises(UserError, match=r"m-0003.safetensors; .*1, 4"):
        checkpoint.load(tmp_path / "m", 3)
    with pytest.raises(UserError, match="none"):
        checkpoint.load(tmp_path / "other", 3)


@pytest.mark.parametrize(
    "content",
    [None, "", "[]", '{"nodes": []}', '{"format": "rn50-symbol-1"}',
     *(json.dumps(json.loads(tiny(3).to_json()) | odd) for odd in (
         {"model": 5}, {"model": "resnetfoo"}, {"width": math.inf}, {"width": -16}, {"stages": []},
         {"num_classes": 0}, {"version": "v3"}, {"block": "dense"}))],
)  # fmt: skip
def test_a_symbol_file_that_is_missing_or_odd_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "m-symbol.json").write_text(content)
    with pytest.raises(UserError, match="m-symbol.json"):
        checkpoint.read_network(tmp_path / "m")


# --- no room, and kills ---------------------------------------------------------------------------


@pytest.fixture
def small_files_only():
    """Limit files to 100 kB, so that writing fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_without_room_the_file_of_the_same_name_survives(
    tmp_path: Path, small_files_only: None
) -> None:
    checkpoint.save(tmp_path / "m", small(1))
    with pytest.raises(UserError):
        checkpoint.save(tmp_path / "m", made(1))
    assert same(checkpoint.load(tmp_path / "m", 1), small(1))
