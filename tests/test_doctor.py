"""`rn50 doctor`: on this machine, and on machines laid out for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections import namedtuple
from pathlib import Path

import pytest

from rn50lib import doctor, nvidia
from rn50lib.doctor import frameworks, gpu, parts, place, probe
from rn50lib.doctor.check import NOTE, OK, PROBLEM, Check, size
from rn50lib.doctor.probe import Answer
from tests import fake_nvidia_smi as fake

GROUPS = [
    "machine", "memory and disk", "GPU", "frameworks", "input", "communication", "notebooks",
]  # fmt: skip
GIB = 2**30


def by_name(checks: list[dict] | list[Check]) -> dict:
    return {(c["name"] if isinstance(c, dict) else c.name): c for c in checks}


# --- the whole of it, here ------------------------------------------------------------------------


def test_quick_on_this_machine(run_cli) -> None:
    done = run_cli("doctor", "--quick", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["can_train"] is True
    found = by_name(document["checks"])
    assert list(dict.fromkeys(c["group"] for c in document["checks"])) == GROUPS
    nproc = subprocess.run(["nproc"], capture_output=True, text=True)
    if nproc.returncode == 0 and found["cores"]["facts"]["quota"] is None:
        assert found["cores"]["facts"]["affinity"] == int(nproc.stdout)
    free = shutil.disk_usage(Path(found["runs"]["facts"]["home"]).parent).free
    assert abs(found["runs"]["facts"]["free"] - free) < GIB
    assert found["libraries"]["status"] == OK


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


# --- what keeps training from running -------------------------------------------------------------


def stub(folder: Path, package: str, code: str) -> dict[str, str]:
    """An environment in which `package` is this code."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text(textwrap.dedent(code))
    return {"PYTHONPATH": str(folder)}


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
def test_a_pytorch_that_does_not_import(run_cli, tmp_path: Path, code: str, said: str) -> None:
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


def test_a_complete_data_set_may_be_read_only(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("RN50_DATA", str(tmp_path))
    (tmp_path / "roadsigns").mkdir()
    (tmp_path / "roadsigns" / ".complete").touch()
    monkeypatch.setattr(place, "room", lambda folder: (0, "Read-only file system"))
    assert place.data_folder().status == OK


Usage = namedtuple("Usage", "total used free")


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RN50_DATA", str(tmp_path))
    monkeypatch.setenv("RN50_RUNS", str(tmp_path))
    monkeypatch.setattr(place.shutil, "disk_usage", lambda path: Usage(GIB, GIB, 2**20))
    assert place.data_folder().status == PROBLEM
    assert "RN50_DATA" in place.data_folder().remedy
    assert place.runs_folder().status == NOTE
    assert not list(tmp_path.iterdir())  # the trial file is gone


# --- machine and memory ---------------------------------------------------------------------------


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_quota_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(place.hardware, "affinity", lambda: 8)
    root = lay_out(
        tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000"}
    )
    check = place.cores(root)
    assert check.status == NOTE
    for part in ("2 of the machine's 64", "affinity mask leaves 8", "quota is 2.5"):
        assert part in check.what


@pytest.mark.parametrize(
    ("limit", "available", "status", "part"),
    [
        (1 * GIB, 1 * GIB, PROBLEM, "--memory"),
        (3 * GIB, 3 * GIB, NOTE, "-b"),
        (16 * GIB, 1 * GIB, NOTE, "1 GiB of it free"),
        (16 * GIB, 12 * GIB, OK, "12 GiB free now"),
    ],
)
def test_memory(tmp_path: Path, monkeypatch, limit, available, status, part) -> None:
    monkeypatch.setattr(place.hardware, "total_memory", lambda: 64 * GIB)
    root = lay_out(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": str(limit),
            "proc/meminfo": f"MemTotal: 1 kB\nMemAvailable:   {available // 1024} kB\n",
        },
    )
    check = place.memory(root)
    assert check.status == status, check
    assert part in str(check)


def test_small_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place.shutil, "disk_usage", lambda path: Usage(2**26, 0, 2**26))
    check = place.shared(tmp_path)
    assert check.status == NOTE
    assert "64 MiB" in check.what and "--ipc=host" in check.remedy


def test_no_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(place.shared_memory, "SharedMemory", refuse)
    check = place.shared(tmp_path)
    assert check.status == PROBLEM and "--data-nthreads 0" in check.remedy


def test_sizes() -> None:
    texts = [size(n) for n in (2**16, 2**26, 3.4 * GIB, 252 * GIB, 1.5 * 2**40)]
    assert texts == ["64 KiB", "64 MiB", "3.4 GiB", "252 GiB", "1.5 TiB"]


# --- GPUs -----------------------------------------------------------------------------------------


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`gpus([H100], driver, cuda)`: the checks on a machine that has these."""

    def look(cards=(), driver="535.104.05", cuda="12.2", visible=None, fails=""):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setenv("PATH", fake.install(tmp_path / "bin", cards, driver, cuda, fails))
        return gpu.look()

    return look


@pytest.mark.parametrize(
    ("card", "driver", "cuda", "driver_status", "float16", "bfloat16", "words"),
    [
        (fake.V100, "450.80.02", "11.0", NOTE, True, False, "CUDA 13 has dropped it"),
        (fake.V100, "525.60.13", "12.0", OK, True, False, "CUDA 13 has dropped it"),
        (fake.A100, "525.60.13", "12.0", OK, True, True, "bfloat16 and TF32"),
        (fake.H100, "580.65.06", "13.0", OK, True, True, "capability 9.0"),
        (fake.T4, "580.65.06", "13.0", OK, True, False, "neither bfloat16 nor TF32"),
        (fake.P100, "470.82.01", "11.4", NOTE, False, False, "no Tensor Cores"),
    ],
)
def test_gpus(gpus, card, driver, cuda, driver_status, float16, bfloat16, words) -> None:
    found = by_name(gpu.gpus(gpus([card], driver, cuda)))
    assert found["driver"].status == driver_status
    assert driver in found["driver"].what and cuda in found["driver"].what
    if driver_status == NOTE:
        assert "525" in found["driver"].remedy
    card_check = found["gpu0"]
    assert card["name"] in card_check.what and words in card_check.what
    facts = card_check.facts
    assert (facts["float16"], facts["bfloat16"], facts["tf32"]) == (float16, bfloat16, bfloat16)


def test_the_choice_of_gpus_is_told(gpus) -> None:
    some = gpu.gpus(gpus([fake.A100] * 4, visible="2,3"))
    assert [c.name for c in some] == ["driver", "gpu2", "gpu3", "hidden"]
    assert "hides 2 of 4" in some[-1].what
    none = gpu.gpus(gpus([fake.A100] * 4, visible=""))
    assert [c.name for c in none] == ["driver", "hidden"]
    assert "unset it" in none[-1].remedy


def test_memory_held_by_others(gpus) -> None:
    found = by_name(gpu.gpus(gpus([fake.A100 | {"memory.used": "40000"}])))
    assert found["gpu0"].status == NOTE
    assert "39 GiB of it are in use" in found["gpu0"].what


@pytest.mark.parametrize(
    ("fails", "remedy"),
    [
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            "reinstall",
        ),
        ("Failed to initialize NVML: Driver/library version mismatch", "restart the machine"),
        ("No devices were found", "--gpus all"),
    ],
)
def test_a_broken_driver(gpus, fails: str, remedy: str) -> None:
    (check,) = gpu.gpus(gpus(fails=fails))
    assert check.status == NOTE
    assert fails in check.what and remedy in check.remedy


def test_without_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("NVIDIA_BUILD_ID", raising=False)
    (plain,) = gpu.gpus(gpu.look(), root=tmp_path)
    assert plain.remedy == ""
    (tmp_path / ".dockerenv").touch()
    (inside,) = gpu.gpus(gpu.look(), root=tmp_path)
    assert "--gpus all" in inside.remedy


# What PyTorch's wheels for these CUDA versions are built for (its release notes say so).
CUDA_126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CUDA_130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


def test_code_for_a_gpu() -> None:
    assert gpu.built_for(CUDA_126, (7, 0)) and gpu.built_for(CUDA_126, (8, 9))
    assert not gpu.built_for(CUDA_130, (7, 0))
    assert not gpu.built_for(CUDA_126, (10, 0))
    assert gpu.built_for(CUDA_130, (12, 1))
    assert gpu.built_for(["sm_90a"], (9, 0)) and not gpu.built_for(["sm_86"], (8, 0))


@pytest.mark.parametrize(
    ("card", "driver", "cuda", "answer", "status", "said", "remedy"),
    [
        (fake.A100, "535.1", "12.2", {"cuda": None}, NOTE, "the GPU is not used", "make setup"),
        (fake.A100, "535.1", "12.2", {"cuda": "13.0"}, NOTE, "serves CUDA 12.2", "driver 580"),
        (
            fake.V100,
            "580.1",
            "13.0",
            {"cuda": "13.0", "architectures": CUDA_130},
            NOTE,
            "no code",
            "12.6",
        ),
        (
            fake.H100,
            "580.1",
            "13.0",
            {"cuda": "13.0", "architectures": CUDA_130, "gpu_problem": "CUDA error: out of memory"},
            NOTE,
            "out of memory",
            "nvidia-smi",
        ),
        (
            fake.H100,
            "580.1",
            "13.0",
            {"cuda": "13.0", "architectures": CUDA_130, "gpus": 0},
            NOTE,
            "sees 0 of 1",
            "CUDA_VISIBLE_DEVICES",
        ),
        (
            fake.V100,
            "525.1",
            "12.0",
            {"cuda": "12.6", "architectures": CUDA_126, "gpus": 1},
            OK,
            "computes on 1 GPU",
            "",
        ),
    ],
)
def test_pytorch_and_the_gpu(gpus, card, driver, cuda, answer, status, said, remedy) -> None:
    facts = {"version": "2.13.0"} | answer
    check = frameworks.torch(Answer(facts), gpus([card], driver, cuda))
    assert check.status == status, check
    assert said in check.what and remedy in check.remedy


# --- frameworks and parts -------------------------------------------------------------------------


def test_a_probe_that_hangs_is_ended() -> None:
    answer = probe.ask("import time; time.sleep(600)", limit_s=0.5)
    assert "no answer within 0.5 s" in answer.problem


def test_a_crash_leaves_what_was_found_before() -> None:
    code = 'import os; print(\'{"version": "1"}\', flush=True); os.kill(os.getpid(), 11)'
    answer = probe.ask(code)
    assert answer.facts == {"version": "1"}
    assert answer.problem == "it crashed with signal 11 (SIGSEGV)"


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(frameworks.LIBRARIES, "no-such-distribution", "no_such_module")
    check = frameworks.libraries(Answer())
    assert check.status == PROBLEM
    assert "no-such-distribution" in check.what and "make setup" in check.remedy


def test_the_dali_wheel_is_the_one_that_the_setup_takes(repository: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(repository / "scripts"))
    import facts
    import plan

    for generation in (None, 10, 11, 12, 13):
        machine = facts.Facts("3.11.0", "Linux", "x86_64", generation, None, True, False, None)
        wheel, _ = plan.choose_dali(machine)
        assert wheel is not None
        assert parts.wheel_for((generation, 0) if generation else None) == wheel.split("==")[0]


def test_a_dali_for_a_newer_driver(gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "has", lambda module: True)
    monkeypatch.setattr(parts, "version", lambda name: "2.4.0" if name == parts.DALI[2] else None)
    check = parts.dali(Answer({"version": "2.4.0"}), gpus([fake.A100], "525.60.13", "12.0"))
    assert check.status == NOTE and "nvidia-dali-cuda120" in check.remedy


def horovod(tmp_path: Path, monkeypatch, answers, found=None, installed=True) -> Check:
    monkeypatch.setattr(parts, "has", lambda module: installed or module != "horovod")
    monkeypatch.setattr(parts, "version", lambda name: "0.28.1")
    found = found or gpu.Gpus(nvidia.Driver(False), None, ())
    return parts.horovod(answers, found)


BUILT = {"version": "2", "horovod_gloo": True, "horovod_mpi": True, "horovod_nccl": False}
MISSING = "Extension horovod.torch has not been built: /x/mpi_lib_v2.so not found"


def test_horovod_in_plain_words(tmp_path: Path, monkeypatch, gpus) -> None:
    both = {"torch": Answer(BUILT), "tensorflow": Answer(BUILT)}
    check = horovod(tmp_path, monkeypatch, both)
    assert (check.status, check.what) == (
        OK,
        "Horovod 0.28.1: for PyTorch and TensorFlow, over Gloo and MPI",
    )
    one = {
        "torch": Answer({"version": "2", "horovod_problem": MISSING}),
        "tensorflow": Answer(BUILT),
    }
    check = horovod(tmp_path, monkeypatch, one)
    assert check.status == NOTE and "make horovod" in check.remedy
    assert "not for PyTorch: Extension horovod.torch has not been built" in check.what
    crashed = {"torch": Answer({"version": "2"}, "it crashed with signal 11 (SIGSEGV)")}
    check = horovod(tmp_path, monkeypatch, crashed)
    assert check.status == NOTE and "signal 11" in check.what
    check = horovod(tmp_path, monkeypatch, both, gpus([fake.A100]))
    assert check.status == NOTE and "HOROVOD_GPU_OPERATIONS=NCCL" in check.remedy
    check = horovod(tmp_path, monkeypatch, {}, installed=False)
    assert check.status == NOTE and "make horovod" in check.remedy


@pytest.mark.needs("torch")
@pytest.mark.slow
def test_horovods_own_message_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = stub(tmp_path, "horovod", "")
    stub(tmp_path / "horovod", "torch", f"raise ImportError({MISSING!r})")
    monkeypatch.setenv("PYTHONPATH", env["PYTHONPATH"])
    code = frameworks.TORCH_PROBE + frameworks.HOROVOD_PROBE.replace("FRAMEWORK", "torch")
    answer = probe.ask(code)
    assert not answer.problem
    assert answer.facts["horovod_problem"] == MISSING
    assert answer.facts["version"] and answer.facts["gloo"] is True


@pytest.mark.needs("horovod")
@pytest.mark.acceptance  # --check-build loads every framework several times
def test_horovod_agrees_with_check_build() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "horovod.runner.launch", "--check-build"],
        capture_output=True,
        text=True,
    ).stdout
    code = frameworks.TORCH_PROBE + frameworks.HOROVOD_PROBE.replace("FRAMEWORK", "torch")
    answer = probe.ask(code)
    assert ("[X] PyTorch" in said) == ("horovod_gloo" in answer.facts)
    controllers = said.split("Controllers:")[1].split("Tensor")[0]
    for name in ("Gloo", "MPI"):
        assert (f"[X] {name}" in controllers) == answer.facts[f"horovod_{name.lower()}"]
        assert (name in (parts.ways_in_file("torch") or [])) == (f"[X] {name}" in controllers)


def test_a_taken_port() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check = parts.lab_port(port)
    assert check.status == NOTE and f"PORT={port + 1}" in check.remedy
    assert parts.lab_port(port).status == OK


def test_a_nameless_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.socket, "gethostname", lambda: "no-such-host.invalid")
    check = parts.localhost()
    assert check.status == NOTE and "/etc/hosts" in check.remedy


def test_inside_an_nvidia_container(run_cli) -> None:
    env = {"NVIDIA_BUILD_ID": "123456", "NVIDIA_PRODUCT_NAME": "PyTorch"}
    done = run_cli("doctor", "--quick", env=env)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    at = lines.index("container")
    assert "PyTorch, build 123456" in lines[at + 1]
    assert lines[at + 2] == "  notebook                NGC PyTorch image"
    assert lines[at + 3] == "  00 start here           as it is"


def test_the_verdict_names_what_is_broken() -> None:
    checks = [Check("a", OK, "x"), Check("b", NOTE, "x"), Check("torch", PROBLEM, "x", "y")]
    assert doctor.verdict(checks) == (
        "Training cannot run here until this is put right: torch (1 note)."
    )
    assert doctor.verdict(checks[:2]) == "Training can run here (1 note)."
