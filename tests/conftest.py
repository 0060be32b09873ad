"""Fixtures that every test may use, and the rule on skips (tests/skips.py)."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

from tests import skips, support
from tests.skips import (  # noqa: F401 - pytest finds its hooks here
    need,
    pytest_collectreport,
    pytest_configure,
    pytest_make_collect_report,
    pytest_runtest_logreport,
    pytest_runtest_makereport,
    pytest_runtest_setup,
    pytest_terminal_summary,
)
from workshop.load_order import load_triton_first

ROOT = Path(__file__).resolve().parent.parent
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type] # as workshop.course does
load_triton_first()  # tests of both frameworks share a process

# Several tests compute at once: threads that spin while they wait would take the cores from each
# other's work (a step of 25 ms took 10 s so). The frameworks' OpenMP reads this when it loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# No test may fail because the machine is busy.
slow = [hypothesis.HealthCheck.too_slow]  # on a busy machine
hypothesis.settings.register_profile("rn50", deadline=None, suppress_health_check=slow)
hypothesis.settings.load_profile("rn50")


# The files that take longest: they start first, so that both processes of `make test` end together.
LONGEST = (
    "test_course", "test_workers", "test_exchange", "test_try", "test_race",
    "test_runner", "test_recipes", "test_loaders", "test_jupyterlab", "test_classroom",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check the names of capabilities, and order the files."""
    skips.pytest_collection_modifyitems(items)
    rank = {f"{name}.py": i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


def pytest_collection_finish() -> None:
    """Leave PyTorch and the collected tests out of garbage collection, which took 0.3 s a time."""
    gc.freeze()


@pytest.fixture(autouse=True)
def one_tensorflow_thread(request: pytest.FixtureRequest) -> None:
    """Start TensorFlow with the one thread of the test runs, before a test starts it with more."""
    needed = [name for marker in request.node.iter_markers("needs") for name in marker.args]
    if "tensorflow" in needed and "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # as the library does
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of this checkout."""
    return ROOT


def clean_environment(**changes: str) -> dict[str, str]:
    """Return this process's environment without the user's RN50_* settings, plus `changes`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RN50_")}
    kept["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**kept, **changes}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A temporary folder that every user of the machine may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="rn50-open-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def run_cli(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `rn50 ARGS` in a separate process, as a user would.

    `run_cli("train", "-e", "1", env={...}, cwd=..., timeout=60, module="rn50")` returns the
    finished process with text output and never raises on its exit code. RN50_RUNS and RN50_DATA are
    in the test's temporary folder unless `env` sets them.
    """

    def run(
        *args: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 120,
        module: str = "rn50",
    ) -> subprocess.CompletedProcess[str]:
        places = {"RN50_RUNS": str(tmp_path / "runs"), "RN50_DATA": str(tmp_path / "data")}
        return subprocess.run(
            [sys.executable, "-m", module, *map(os.fspath, args)],
            env=clean_environment(**{**places, **(env or {})}),
            cwd=cwd or tmp_path,
            text=True,
            capture_output=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )

    return run


@dataclass(frozen=True)
class SmallDataset:
    """A drawn dataset of 48 training and 24 validation images; treat its files as read-only."""

    root: Path  # the data root, as in RN50_DATA
    folder: Path  # root/roadsigns: train/, val/, records/, classes.txt

    @property
    def records(self) -> Path:
        """The folder with train.rec, train.idx, val.rec and val.idx."""
        return self.folder / "records"


def folder_of_all(factory: pytest.TempPathFactory) -> Path:
    """Return the temporary folder that the processes of a test run share."""
    folder = factory.getbasetemp()
    return folder.parent if folder.name.startswith("popen-") else folder


@pytest.fixture(scope="session")
def roadsigns_small(tmp_path_factory: pytest.TempPathFactory) -> SmallDataset:
    """The built-in dataset, small, with its RecordIO files; one process draws it for all."""
    from data_prep import im2rec, roadsigns

    root = folder_of_all(tmp_path_factory) / "roadsigns-small"
    folder = root / "roadsigns"
    roadsigns.ensure(folder, train=48, val=24, seed=0)
    im2rec.ensure_records(folder)
    return SmallDataset(root, folder)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> support.Photos:
    """A data set that is made in milliseconds; the colour of every image encodes its number."""
    return support.make_photos(tmp_path_factory.mktemp("photos") / "set")


@pytest.fixture(scope="session")
def trained(photos: support.Photos, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 2 epochs: checkpoints m, report.json."""
    from rn50 import cli

    folder = tmp_path_factory.mktemp("trained")
    argv = ["train", "--data-root", str(photos.root), *support.TINY, "-e", "2", "--lr", "0.4"]
    argv += ["--run-dir", str(folder), "--model-prefix", str(folder / "m")]
    with contextlib.redirect_stderr(io.StringIO()) as told:
        assert cli.main(argv) == 0, told.getvalue()
    return folder


@pytest.fixture
def rn50(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., support.Ended]:
    """`rn50("train", ...)` runs a verb here, in an empty folder, and returns its outcome.

    It saves the seconds of importing a framework in a separate process.
    """
    for name in [name for name in os.environ if name.startswith("RN50_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RN50_RUNS", str(tmp_path / "runs"))
    # a run that would draw the built-in data fails at once, instead of drawing for minutes
    (tmp_path / ".file").touch()
    monkeypatch.setenv("RN50_DATA", str(tmp_path / ".file" / "data"))
    monkeypatch.chdir(tmp_path)
    return lambda *args: support.run_here(capsys, *args)
