"""The rule on skips, as pytest hooks that tests/conftest.py takes in.

A test is skipped only through `@pytest.mark.needs("mpi")` (or the fixture `need` inside it), with
the capabilities of tests/capabilities.toml, and the run fails on any other skip. The summary counts
skips by capability.
"""

from __future__ import annotations

import collections
import os
import re
from collections.abc import Callable, Generator

import pytest

from tests import capabilities

REQUIRED = "RN50_REQUIRE_CAPABILITIES"
NAMED = r"Skipped: needs (\w+):"

_skips: collections.Counter[str] = collections.Counter()


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
    """Check every `needs` before the first test runs, to find a misspelt one early."""
    for item in items:
        for marker in item.iter_markers("needs"):
            for name in marker.args:
                _capability(name)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Apply `@pytest.mark.needs(...)`."""
    for marker in item.iter_markers("needs"):
        require(*marker.args)


def _judge_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure unless it names a capability that is absent."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    named = re.match(NAMED, reason)
    if named is None:
        problem = 'names no capability; use @pytest.mark.needs("...") of tests/capabilities.toml'
    elif _capability(named[1]).present:
        problem = f"names {named[1]}, which this machine has"
    else:
        return
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: this skip {problem} ({reason})"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge skips of single tests."""
    report = yield
    _judge_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Judge skips of whole files."""
    report = yield
    _judge_skip(report)
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count skips by capability, and seconds by part.

    The main process receives the reports of all tests, also from xdist workers (`-n 2`).
    """
    if (
        report.skipped
        and not hasattr(report, "wasxfail")
        and (named := re.match(NAMED, str(report.longrepr[2])))
    ):
        _skips[named[1]] += 1


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Count skips of whole files."""
    if (
        report.skipped
        and not hasattr(report, "wasxfail")
        and (named := re.match(NAMED, str(report.longrepr[2])))
    ):
        _skips[named[1]] += 1


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int | pytest.ExitCode
) -> None:
    """Print skips by capability, the parts with their seconds, and what an empty run means."""
    say = terminalreporter.write_line
    if _skips:
        terminalreporter.section("skipped because a capability is missing")
        for name, count in _skips.most_common():
            row = capabilities.table()[name]
            say(f"{name}: {count} skipped, no {row.what}; to run them: {row.get}")
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        say("No test ran: nothing matched what was asked for. That counts as a failure.", red=True)


@pytest.fixture
def need() -> Callable[..., None]:
    """`need("mpi")` inside a test: skip here unless this machine has it."""
    return require
