"""`rn50 run --trace`: three steps of a run, in the format that `workshop.trace` reads."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rn50.autoconfig import cap_for_ci
from rn50lib import checkpoint, run_setup
from rn50lib.errors import UserError
from tests.backends.test_precision import equal
from tests.support import Photos, full
from tests.workshop.test_trace import check_trace

Run = Callable[..., Any]


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_a_run_of_the_library_writes_a_trace_and_goes_on(
    rn50: Run, photos: Photos, tmp_path: Path
) -> None:
    flags = ("--data-root", photos.root, "--network", "tiny", "-b", "4", "-e", "2")
    flags += ("--image-shape", "32", "--no-val", "--set", "keep=1", "--data-nthreads", "0")
    flags += ("--threads", "1")
    ended = rn50("run", *flags, "--trace", "t.json.gz", "--model-prefix", "traced")
    assert ended.status == 0, ended.err
    assert rn50("train", *flags, "--model-prefix", "plain").status == 0
    check_trace(tmp_path / "t.json.gz")
    traced, plain = (checkpoint.load(name, 2).arrays for name in ("traced", "plain"))
    assert equal(traced, plain)
    # profile ci makes room for it, and it may be replaced
    again = rn50("run", *flags, "--trace", "t.json.gz", "--profile", "ci", "--dry-run")
    assert again.status == 0 and "--benchmark-iters 8" in again.out, again


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--backend tensorflow", "--trace is for PyTorch: leave it out, or use --backend torch"),
        ("--only-inference", "--only-inference contradict"),
        ("--test-io", "--test-io contradict"),
        ("--set step=100", "--set step contradict"),
    ],
)
def test_a_run_without_pytorch_s_steps_has_no_trace(
    rn50: Run, photos: Photos, flags: str, problem: str
) -> None:
    words = ("run", "--data-root", photos.root, "--network", "tiny", "--dry-run")
    line = rn50(*words, "--trace", "t.json", *flags.split()).error
    assert "--trace" in line and problem in line


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_an_epoch_that_is_too_short_is_refused(rn50: Run, photos: Photos) -> None:
    flags = ("train", "--data-root", photos.root, "--network", "tiny", "-b", "16")
    ended = rn50(*flags, "--image-shape", "32", "--no-val", "--trace", "t.json")
    assert ended.status == 2
    assert "--trace t.json: an epoch has 3 steps, and a trace needs 8" in ended.err


@pytest.mark.needs("torch")
def test_a_trace_begins_after_the_capture_of_a_graph(tmp_path: Path) -> None:
    """Three steps warm up, the graph is captured in the fourth, then the profiler starts."""
    from rn50lib.torch.gpu import Tracer
    from rn50lib.torch.graphs import GRAPH_WARM_UP

    file = str(tmp_path / "t.json")
    assert Tracer(file).skipped == GRAPH_WARM_UP  # after the first, which starts the profiler
    config = full(cuda_graph=True, trace=file)
    assert cap_for_ci(config, True)[0].benchmark_iters == 8
    run_setup.check_traced(config, 8)
    with pytest.raises(UserError, match="an epoch has 7 steps, and a trace needs 8"):
        run_setup.check_traced(config, 7)


@pytest.mark.parametrize(
    "content", [b"mine", b"\x1f\x8b\x08\0broken file", gzip.compress(b"mine", mtime=0)[:-9]]
)
def test_another_file_is_not_replaced(rn50: Run, photos: Photos, content: bytes) -> None:
    Path("notes").write_bytes(content)
    ended = rn50("train", "--data-root", photos.root, "--trace", "notes")
    assert "--trace notes exists and is not a trace" in ended.error
    assert Path("notes").read_bytes() == content
