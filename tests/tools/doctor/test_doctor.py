"""`rn50 doctor` as a whole: on this machine, and on ones where something is broken."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rn50 import doctor
from rn50.doctor.check import NOTE, OK, PROBLEM, Check

GROUPS = [
    "machine", "memory and disk", "GPU", "frameworks", "communication",
]  # fmt: skip


def by_name(checks: list[dict]) -> dict[str, dict]:
    return {check["name"]: check for check in checks}


def test_quick_on_this_machine(run_cli) -> None:
    done = run_cli("doctor", "--quick", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["can_train"] is True
    found = by_name(document["checks"])
    assert list(dict.fromkeys(c["group"] for c in document["checks"])) == GROUPS
    usable = int(found["cores"]["what"].split()[0])
    assert 1 <= usable <= len(os.sched_getaffinity(0))
    assert {c["status"] for c in document["checks"]} <= {OK, NOTE}
    assert found["torch"]["what"].startswith("PyTorch 2")
    assert found["localhost"]["group"] == "communication"


@pytest.mark.needs("torch", "tensorflow", "dali")
@pytest.mark.slow
def test_everything_on_this_machine(run_cli) -> None:
    done = run_cli("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines[:-1] if not line.startswith(" ")] == GROUPS
    assert lines[-1].startswith("Training can run here")
    for start, tried in {
        "  ok:      PyTorch 2": ("imports and computes", "computes on"),
        "  ok:      TensorFlow 2": ("imports and computes",),
        "  ok:      nvidia-dali-": ("a pipeline runs",),
    }.items():
        (line,) = [line for line in lines if line.startswith(start)]
        assert any(words in line for words in tried), line
    for line in lines:
        if line.startswith("  "):
            assert line.split()[0] in ("ok:", "note:", "problem:"), line
    assert "Traceback" not in done.stderr


def test_help_and_a_wrong_flag(run_cli) -> None:
    assert "--quick" in run_cli("doctor", "--help").stdout
    wrong = run_cli("doctor", "--quik")
    assert wrong.returncode == 2
    assert wrong.stderr == "error: unknown flag or argument --quik: did you mean --quick?\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
            "crashed with signal 11 (SIGSEGV)",
        ),
        ("raise ImportError('libcudart.so.13: cannot open shared object file')", "libcudart.so.13"),
    ],
)
def test_a_pytorch_that_does_not_import(run_cli, stub, tmp_path, code: str, said: str) -> None:
    # tensorflow and DALI are stubbed too, so that they cost no time
    env = stub(tmp_path / "site", "torch", code)
    stub(tmp_path / "site", "tensorflow", "raise ImportError('left out')")
    done = run_cli("doctor", "--json", env=env)
    assert done.returncode == 1
    found = by_name(json.loads(done.stdout)["checks"])
    assert found["torch"]["status"] == PROBLEM
    assert said in found["torch"]["what"]
    assert "make setup" in found["torch"]["remedy"]
    assert found["tensorflow"]["status"] == NOTE
    assert "left out" in found["tensorflow"]["what"]


@pytest.mark.parametrize("place_name", ["runs", "data"])
def test_a_place_that_cannot_be_written(run_cli, tmp_path: Path, place_name: str) -> None:
    (tmp_path / "file").touch()
    variable = f"RN50_{place_name.upper()}"
    done = run_cli("doctor", "--quick", env={variable: str(tmp_path / "file" / "inside")})
    assert done.returncode == 1
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("  problem:")]
    assert variable in line and str(tmp_path / "file") in line
    assert done.stdout.splitlines()[-1].startswith("Training cannot run here until")


def test_the_verdict_names_what_is_broken() -> None:
    checks = [Check("a", OK, "x"), Check("b", NOTE, "x"), Check("torch", PROBLEM, "x", "y")]
    assert doctor.verdict(checks) == (
        "Training cannot run here until this is put right: torch (1 note)."
    )
    assert doctor.verdict(checks[:2]) == "Training can run here (1 note)."
