"""Rules and fixtures that every test shares.

The rules: a test is skipped only through `@pytest.mark.needs("mpi")` (or `need("mpi")` inside it),
with the capabilities of tests/capabilities.toml, and the run fails on any other skip. The summary
counts skips by capability and seconds by part.
"""

from __future__ import annotations

import collections
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

from tests import capabilities, support

ROOT = Path(__file__).resolve().parent.parent
REQUIRED = "RN50_REQUIRE_CAPABILITIES"
PARTS = "RN50_PARTS"  # seconds of what ran before pytest, handed over by scripts/check.py

_skips: collections.Counter[str] = collections.Counter()
_seconds: collections.Counter[str] = collections.Counter()


# No test may fail because the machine is busy.
hypothesis.settings.register_profile("rn50", deadline=None)
hypothesis.settings.load_profile("rn50")


# --- skips --------------------------------------------------------------------------------------


def _capability(name: str) -> capabilities.Capability:
    table = capabilities.table()
    if name not in table:
        raise pytest.UsageError(
            f"no capability {name!r} in tests/capabilities.toml; there are: {', '.join(table)}"
        )
    return table[name]


def require(*names: str) -> None:
    """Skip the running test unless this machine has all these capabilities."""
    for name in names:
        capability = _capability(name)
        if not capability.present:
            pytest.skip(f"needs {name}: this machine has no {capability.what}")


def pytest_configure(config: pytest.Config) -> None:
    """Fail before any test if a required capability is absent."""
    names = [name.strip() for name in os.environ.get(REQUIRED, "").split(",") if name.strip()]
    missing = [c for c in map(_capability, names) if not c.present]
    if missing:
        lines = [f"  {c.name}: no {c.what}; {c.get}" for c in missing]
        raise pytest.UsageError(f"{REQUIRED} names what this machine lacks:\n" + "\n".join(lines))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check every `needs` before the first test runs, so that a misspelt one is not met late."""
    for item in items:
        for marker in item.iter_markers("needs"):
            for name in marker.args:
                _capability(name)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Apply `@pytest.mark.needs(...)`."""
    for marker in item.iter_markers("needs"):
        require(*marker.args)


def _judge_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Count an honest skip; turn any other into a failure."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    named = re.match(r"Skipped: needs (\w+):", reason)
    if named is None:
        problem = 'names no capability; use @pytest.mark.needs("...") of tests/capabilities.toml'
    elif _capability(named[1]).present:
        problem = f"names {named[1]}, which this machine has"
    else:
        _skips[named[1]] += 1
        return
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: this skip {problem} ({reason})"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge skips of single tests, and add up the seconds of each part."""
    report = yield
    _judge_skip(report)
    folder = report.nodeid.split("/")
    _seconds["notebooks" if "notebooks" in folder[:-1] else "pytest"] += report.duration
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Judge skips of whole files."""
    report = yield
    _judge_skip(report)
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int | pytest.ExitCode
) -> None:
    """Print skips by capability, the parts with their seconds, and what an empty run means."""
    say = terminalreporter.write_line
    if _skips:
        terminalreporter.section("skipped for want of a capability")
        for name, count in _skips.most_common():
            row = capabilities.table()[name]
            say(f"{name}: {count} skipped, no {row.what}; to run them: {row.get}")
    if PARTS in os.environ:
        terminalreporter.section("parts")
        parts = {**json.loads(os.environ[PARTS]), "notebooks": 0.0, "pytest": 0.0, **_seconds}
        for part, seconds in parts.items():
            say(f"{part:10} {seconds:7.1f} s")
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        say("No test ran: nothing matched what was asked for. That counts as a failure.", red=True)


# --- fixtures -----------------------------------------------------------------------------------


@pytest.fixture
def need() -> Callable[..., None]:
    """`need("mpi")` inside a test: skip here unless this machine has it."""
    return require


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of this checkout."""
    return ROOT


def clean_environment(**changes: str) -> dict[str, str]:
    """This process's environment without the user's own RN50_* settings, plus `changes`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RN50_")}
    kept["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**kept, **changes}


@pytest.fixture
def run_cli(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `rn50 ARGS` as a user would, in a process of its own.

    `run_cli("train", "-e", "1", env={...}, cwd=..., timeout=60, module="rn50lib.cli")` returns the
    finished process with text output and never raises on its exit code. RN50_RUNS and RN50_DATA
    stand in the test's temporary folder unless `env` says otherwise.
    """

    def run(
        *args: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 120,
        module: str = "rn50lib.cli",
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


@pytest.fixture(scope="session")
def roadsigns_small(tmp_path_factory: pytest.TempPathFactory) -> SmallDataset:
    """The built-in dataset, small, with its RecordIO files; drawn once per run."""
    from data_prep import im2rec, roadsigns

    root = tmp_path_factory.mktemp("roadsigns-small")
    folder = root / "roadsigns"
    roadsigns.ensure(folder, train=48, val=24, seed=0)
    im2rec.ensure_records(folder)
    return SmallDataset(root, folder)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> support.Photos:
    """A data set that takes milliseconds to make; every picture's colour is its number."""
    return support.make_photos(tmp_path_factory.mktemp("photos") / "set")


@pytest.fixture
def rn50(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., support.Ended]:
    """`rn50("train", ...)` runs a verb in this process, in an empty folder, and tells how it ended.

    For what does not need a process of its own: it spares the seconds of importing a framework.
    """
    for name in [name for name in os.environ if name.startswith("RN50_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RN50_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("RN50_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return lambda *args: support.run_here(capsys, *args)
