"""The rule on skips: only an absent, named capability skips; everything else fails the run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests import capabilities

TABLE = """
[there]
what = "thing that is there"
get = "nothing to do"
[absent]
what = "thing that is absent"
get = "wait for it"
"""


def run_suite(
    repository: Path, folder: Path, body: str, *args: str, required: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run one test file under the rule, with a table of two capabilities."""
    tests = folder / "tests"
    tests.mkdir()
    (folder / "pyproject.toml").write_text((repository / "pyproject.toml").read_text())
    for name in ("__init__.py", "skips.py"):
        shutil.copy(repository / "tests" / name, tests / name)
    (tests / "conftest.py").write_text("from tests.skips import *\n")
    source = (repository / "tests" / "capabilities.py").read_text()
    source = source[: source.index("DETECTORS = {")]
    source += 'DETECTORS = {"there": lambda: True, "absent": lambda: False}\n'
    (tests / "capabilities.py").write_text(source)
    (tests / "capabilities.toml").write_text(TABLE)
    (tests / "test_it.py").write_text("import pytest\n" + body)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "RN50_REQUIRE_CAPABILITIES": required},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_absent_capability_skips_and_is_counted(repository: Path, tmp_path: Path) -> None:
    body = '@pytest.mark.needs("there", "absent")\ndef test_a():\n    assert False\n'
    body += '@pytest.mark.needs("there")\ndef test_b():\n    pass\n'
    body += 'def test_c(need):\n    need("absent")\n    assert False\n'
    ran = run_suite(repository, tmp_path, body)
    assert ran.returncode == 0, ran.stdout
    assert "absent: 2 skipped, no thing that is absent; to run them: wait for it" in ran.stdout
    assert re.search(r"1 passed, 2 skipped", ran.stdout)


def test_other_skips_fail(repository: Path, tmp_path: Path) -> None:
    body = 'def test_a():\n    pytest.skip("not today")\n'
    body += '@pytest.mark.skip(reason="later")\ndef test_b():\n    pass\n'
    body += '@pytest.mark.skipif(True, reason="needs there: no")\ndef test_c():\n    pass\n'
    ran = run_suite(repository, tmp_path, body)
    assert ran.returncode == 1 and "1 failed, 2 errors" in ran.stdout, ran.stdout
    no_name = "names no capability"
    for test, said in (("a", no_name), ("b", no_name), ("c", "which this machine has")):
        assert re.search(f"::test_{test}: this skip .*{said}", ran.stdout), ran.stdout


def test_skip_of_a_whole_file_fails(repository: Path, tmp_path: Path) -> None:
    body = 'pytest.importorskip("no_such_module")\ndef test_a():\n    pass\n'
    ran = run_suite(repository, tmp_path, body)
    assert ran.returncode in (1, 2), ran.stdout
    assert "names no capability" in ran.stdout


def test_required_capability_must_be_there(repository: Path, tmp_path: Path) -> None:
    body = "def test_a():\n    pass\n"
    ran = run_suite(repository, tmp_path, body, required="there, absent")
    assert ran.returncode == 4
    assert "absent: no thing that is absent; wait for it" in ran.stderr
    assert "there: no" not in ran.stderr


def test_misspelt_capability_is_an_error(repository: Path, tmp_path: Path) -> None:
    body = '@pytest.mark.needs("absnt")\ndef test_a():\n    pass\n'
    ran = run_suite(repository, tmp_path, body)
    assert ran.returncode == 4
    assert "no capability 'absnt'" in ran.stderr


def test_empty_run_fails_and_says_so(repository: Path, tmp_path: Path) -> None:
    ran = run_suite(repository, tmp_path, "def test_a():\n    pass\n", "-k", "nothing_like_it")
    assert ran.returncode == 5
    assert "No test ran" in ran.stdout


def test_every_row_has_a_detector_and_a_remedy() -> None:
    table = capabilities.table()
    assert set(table) == set(capabilities.DETECTORS)
    for row in table.values():
        assert row.what and row.get
        if row.name != "package_index":  # asking that one takes a network
            assert row.present in (True, False)
