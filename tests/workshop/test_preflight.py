"""`rn50 workshop preflight`: what makes a machine unfit for a class, here and over ssh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rn50lib import hardware
from rn50lib.tools.doctor.check import ok, problem
from tests import fake_nvidia_smi as fake
from tests.conftest import ROOT, clean_environment
from tests.support import bound_by_permissions, open_to_all
from workshop import preflight, preflight_hosts
from workshop.preflight import Machine


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder that looks as if all sets were made, which every user may read."""
    open_to_all(tmp_path)
    home = tmp_path / "data"
    for name in preflight.SETS:
        for part in preflight.PARTS:
            (home / name / part).mkdir(parents=True, exist_ok=True)
            (home / name / part / ".complete").touch()
    monkeypatch.setenv("RN50_DATA", str(home))
    monkeypatch.setenv("RN50_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("RN50_LEASES", str(tmp_path / "leases"))
    return home


@pytest.fixture
def told(rn50, data) -> Any:
    """`told(flags)`: exit status, and the findings on this machine by name."""

    def look(*flags: str) -> tuple[int, dict[str, dict]]:
        hardware.machine.cache_clear()
        status, out, err = rn50(ROOT, "workshop", "preflight", "--quick", "--json", *flags)
        hardware.machine.cache_clear()
        (machine,) = json.loads(out)["machines"]
        assert machine["ready"] == json.loads(out)["ready"] == (status == 0), err
        return status, {check["name"]: check for check in machine["checks"]}

    return look


def test_a_machine_that_is_ready(told, rn50, data) -> None:
    status, found = told()
    assert status == 0
    assert {"memory", "shared-memory", "runs", "port", "gpus", "prepared", "readable"} <= set(found)
    assert "data" not in found  # the doctor would be content with data that can still be made
    text = rn50(ROOT, "workshop", "preflight", "--quick")[1]
    head, row = (line.split() for line in text.splitlines()[:2])
    assert head[:3] == ["machine", "ready", "GPU"] and row[1] == "yes"
    assert text.splitlines()[-1] == "1 of 1 machine ready for a class"


def test_data_that_is_not_made_or_not_whole(told, data) -> None:
    (data / "roadsigns-ci" / "tfrecord" / ".complete").unlink()
    status, found = told()
    assert status == 1 and found["prepared"]["facts"]["missing"] == ["roadsigns-ci/tfrecord"]
    assert "rn50 workshop preflight --prepare" in found["prepared"]["remedy"]


@pytest.mark.parametrize(
    ("what", "mode", "status"),
    [
        ("roadsigns/records/.complete", 0o600, "problem"),
        ("roadsigns/train", 0o711, "problem"),
        (".", 0o700, "problem"),
        ("roadsigns", 0o777, "note"),
        ("roadsigns/records/.complete", 0o444, "ok"),
    ],
)
def test_data_that_others_cannot_read_or_may_change(told, data, what, mode, status) -> None:
    (data / "roadsigns" / "train").mkdir()
    (data / what).chmod(mode)
    ended, found = told()
    assert found["readable"]["status"] == status
    assert ended == (1 if status == "problem" else 0)
    if status != "ok":
        assert str((data / what).resolve()) in found["readable"]["what"]
        assert "chmod" in found["readable"]["remedy"]


def test_gpus_and_their_leases(told, data, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", fake.install(tmp_path / "none"))
    assert told("--need-gpu")[0] == 1
    monkeypatch.setenv("PATH", fake.install(tmp_path / "bin", [fake.T4, fake.T4]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    status, found = told("--need-gpu")
    assert status == 0 and found["gpus"]["facts"]["names"] == "2 x Tesla T4"
    assert found["leases"]["status"] == "ok"
    assert (tmp_path / "leases" / "queue").stat().st_mode & 0o7777 == 0o1777
    (tmp_path / "leases").chmod(0o755)
    status, found = told()
    assert status == 1 and "collide" in found["leases"]["what"]


# --- hosts ----------------------------------------------------------------------------------------

SSH = """import subprocess, sys
host, command = sys.argv[1:]
if host == "down":
    sys.exit("ssh: connect to host down port 22: No route to host")
if host == "strange":
    sys.exit(print("Welcome!"))
sys.exit(subprocess.run(["sh", "-c", command]).returncode)
"""


@pytest.fixture
def cluster(tmp_path: Path, data: Path) -> list[str]:
    """Flags for hosts whose shells are on this machine; the course lies in a folder with blanks."""
    (tmp_path / "ssh.py").write_text(SSH)
    program = tmp_path / "the course's" / ".venv" / "bin" / "rn50"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m rn50lib.cli "$@"'
    )
    program.chmod(0o755)
    ssh = f"{sys.executable} {tmp_path / 'ssh.py'}"
    return ["--quick", "--ssh", ssh, "--dir", str(tmp_path / "the course's")]


def test_every_host_is_asked_and_one_that_is_down_is_told(cluster, rn50) -> None:
    status, out, err = rn50(ROOT, "workshop", "preflight", "a", "down", "b", "strange", *cluster)
    assert status == 1
    rows = {line.split()[0]: line.split() for line in out.splitlines()[1:5]}
    assert [rows[name][1] for name in ("a", "down", "b", "strange")] == ["yes", "no", "yes", "no"]
    assert rows["down"][2:] == ["-"] * 7
    assert "status 1: ssh: connect to host down port 22: No route to host" in out
    assert "status 0: Welcome!" in out
    assert out.splitlines()[-1] == "2 of 4 machines ready for a class"


def test_hosts_look_at_the_data_that_this_one_names(cluster, rn50, data) -> None:
    (data / "roadsigns" / ".complete").unlink()
    status, out, _ = rn50(ROOT, "workshop", "preflight", "a", "--json", *cluster)
    (host,) = json.loads(out)["machines"]
    assert status == 1 and host["machine"] == "a"
    (found,) = [check for check in host["checks"] if check["name"] == "prepared"]
    assert found["status"] == "problem" and str(data) in found["what"]


def test_an_ssh_that_does_not_start_is_one_line(rn50, data) -> None:
    status, _, err = rn50(ROOT, "workshop", "preflight", "a", "--ssh", "/nowhere/ssh")
    assert status == 2 and err.splitlines()[-1].startswith("error: --ssh /nowhere/ssh: it does not")
    status, _, err = rn50(ROOT, "workshop", "preflight", "a", "--prepare")
    assert status == 2 and "run it on the machine that holds the data" in err


def test_versions_that_differ_are_told() -> None:
    def machine(name: str, torch: str, *checks: Any) -> Machine:
        return Machine(name, checks, {"torch": torch, "numpy": "2.4"}, 1.0)

    seen = ok("notebook02", "took 31 s", seconds=31.4)
    failed = problem("notebook02", "failed", "look", seconds=3.0)
    told = [machine("a", "2.13", seen), machine("b", "2.12"), machine("c", "2.13", failed)]
    text = preflight_hosts.lines(told)
    assert "note:    torch differs: 2.13 on a, c; 2.12 on b" in text
    assert not any("numpy" in line for line in text)
    assert [line.split()[-1] for line in text[1:4]] == ["s", "-", "failed"]
    again = [Machine.from_dict(json.loads(json.dumps(item.to_dict()))) for item in told]
    assert [item.to_dict() for item in again] == [item.to_dict() for item in told]


# --- made once, read by all -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.needs("linux_x86_64")
def test_prepare_makes_data_that_another_process_uses_without_writing(
    tmp_path, run_cli, monkeypatch
) -> None:
    """A run on data that it may not write, with a umask that would have kept others out."""
    code = "from workshop import preflight, session\nsession.CI_IMAGES = 24, 12\n"
    code += "preflight.SETS = ('roadsigns-ci',)\npreflight.prepare(print)"
    places = {"RN50_DATA": str(tmp_path / "data"), "RN50_RUNS": str(tmp_path / "runs")}
    made = subprocess.run([sys.executable, "-c", code], env=clean_environment(**places),
                          umask=0o077, capture_output=True, text=True)  # fmt: skip
    assert made.returncode == 0, made.stderr
    everything = [*(tmp_path / "data").rglob("*")]
    files = [path for path in everything if path.is_file()]
    sets = [path for path in everything if path.parent != tmp_path / "data" or path.is_dir()]
    assert len(files) > 36 and all(p.stat().st_mode & 0o044 == 0o044 for p in sets)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in files}
    for path in [tmp_path / "data", *everything]:
        path.chmod(path.stat().st_mode & 0o555)
    root = tmp_path / "data" / "roadsigns-ci"
    lesson = "import sys\nfrom pathlib import Path\nfrom workshop import input_data, session\n"
    lesson += (
        "root = Path(sys.argv[1])\nsession.CI_IMAGES = 24, 12\nsession.ensure_data(root, 'ci')\n"
    )
    lesson += "assert input_data.make_shards(root, Path(sys.argv[2])) == root"
    small = ["-e", "1", "-b", "4", "--data-nthreads", "0", "--image-shape", "32"]
    for words in (
        ["-m", "rn50lib.cli", "run", "--data-root", root, "--test-io", *small],
        ["-c", lesson, root, tmp_path / "runs"],  # what notebook 04 does with the data
    ):
        done = subprocess.run(
            [*bound_by_permissions(), sys.executable, *words],
            env=clean_environment(**places), capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    for path in [tmp_path / "data", *everything]:
        path.chmod(path.stat().st_mode | 0o200)
    after = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in files}
    assert after == before and len([*(tmp_path / "data").rglob("*")]) == len(everything)


@pytest.mark.acceptance
@pytest.mark.needs("torch", "jupyterlab")
def test_notebook_02_is_really_run(run_cli, tmp_path) -> None:
    data = os.environ.get("RN50_DATA") or str(ROOT / "data")
    done = run_cli("workshop", "preflight", "--json", env={"RN50_DATA": data}, timeout=900)
    (machine,) = json.loads(done.stdout)["machines"]
    (trial,) = [check for check in machine["checks"] if check["name"] == "notebook02"]
    assert trial["status"] in ("ok", "note"), trial
    assert trial["facts"]["seconds"] > 1 and trial["facts"]["budget"] == 90
