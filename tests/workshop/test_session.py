"""`start` and the session: profile, recorded results, the learner's numbers next to them."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path
from unittest import mock

import pytest

from rn50lib import hardware
from rn50lib.errors import UserError
from rn50lib.hardware import Gpu
from tests.conftest import clean_environment
from tests.launch import fake_gpus
from tests.support import bound_by_permissions
from workshop import expected, opening, output, paths, session
from workshop.course import build

GPU = Gpu(0, "A GPU", 16 * 2**30, (7, 0), "535.1", "GPU-1")
BARE = hardware.Machine("A processor", 2, 8 * 2**30, "", ())
WITH_GPU = hardware.Machine("A processor", 2, 8 * 2**30, "", (GPU,))
MEASURED = expected.Expected(
    "top1", "top-1", 84.25, "measured", "%", 0.6, 3, "two cores", {"torch": "2.13"}, "2026-11-21"
)


@pytest.fixture
def shown(monkeypatch) -> list[dict]:
    """The display bundles of the test."""
    import IPython.display

    bundles: list[dict] = []
    monkeypatch.setattr("IPython.get_ipython", mock.Mock())  # as in a notebook
    for name in ("display", "update_display"):
        monkeypatch.setattr(
            IPython.display, name, lambda data, **options: bundles.append({**data, **options})
        )
    return bundles


def a_session(profile: str = "cpu") -> session.Session:
    results = {"top1": MEASURED}
    return session.Session("02", profile, BARE, Path("d"), Path("r"), results)


@pytest.mark.parametrize(
    ("asked", "machine", "profile"),
    [
        ("auto", BARE, "cpu"),
        ("auto", WITH_GPU, "gpu"),
        ("ci", WITH_GPU, "ci"),
        ("cpu", WITH_GPU, "cpu"),
        ("gpu", WITH_GPU, "gpu"),
    ],
)
def test_profile_is_chosen_with_a_reason(asked, machine, profile):
    chosen, reason = opening.choose_profile(asked, machine)
    assert chosen == profile and reason


@pytest.mark.parametrize(
    ("asked", "message"), [("gpu", "there is no GPU here"), ("fast", "use one of auto, ci")]
)
def test_impossible_profile_is_refused(asked, message):
    with pytest.raises(UserError, match=message):
        opening.choose_profile(asked, BARE)


def test_sizes_come_from_the_profiles_file(tmp_path):
    (tmp_path / "notebooks").mkdir()
    file = tmp_path / "notebooks" / "profiles.yaml"
    file.write_text('"02":\n  batch: {ci: 4, cpu: 32}\n  rounds: {cpu: 7}\n')
    assert opening.profile_sizes(tmp_path, "02", "ci") == {"batch": 4, "rounds": 7}
    assert opening.profile_sizes(tmp_path, "02", "gpu") == {"batch": 32, "rounds": 7}
    assert opening.profile_sizes(tmp_path, "03", "gpu") == {}
    file.write_text('"02":\n  halved: [batch]\n  batch: {cpu: 32, gpu: 64}\n  rounds: {cpu: 7}\n')
    for gib, batch in [(80, 64), (24, 32), (16, 32), (15, 16), (8, 16), (6, 8), (2, 8)]:
        sizes = opening.profile_sizes(tmp_path, "02", "gpu", gib * 2**30)
        assert sizes == {"batch": batch, "rounds": 7}, gib
    with pytest.raises(AttributeError, match="'steps' for notebook"):
        _ = a_session("cpu").steps
    file.write_text('"02":\n  batch: 4\n')
    with pytest.raises(UserError, match="batch needs a value for cpu"):
        opening.profile_sizes(tmp_path, "02", "ci")


def test_a_slice_of_a_gpu_is_named_and_takes_smaller_batches(tmp_path):
    code = "import os, workshop as w; s = w.start('ex05', 'gpu')\n"
    code += "print(os.environ['CUDA_VISIBLE_DEVICES'], s.batch)"
    sliced = fake_gpus.A100 | fake_gpus.slices(("1g.10gb", 10, "MIG-7c3e"))
    folders = {"RN50_DATA": str(tmp_path / "data"), "RN50_RUNS": str(tmp_path / "runs")}
    env = clean_environment(**folders, **fake_gpus.environment([sliced]))
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["MIG-7c3e 8"], done.stderr


def test_sizes_that_a_notebook_reads_are_those_of_the_profiles_file(repository):
    for master in build.masters(repository):
        text = master.read_text("utf-8")
        read = set(re.findall(r'(?<!")\bsession\.([a-z_]+)', text))
        if "sizes" in read:  # all of them are exported: %%bash cells read $NAME
            yours = re.findall(r"\b([A-Z_]+)=\?", text)  # predictions
            read |= {x.lower() for x in re.findall(r"\$([A-Z_]+)", text) if x not in yours}
        sizes = opening.profile_sizes(repository, master.name.partition("_")[0], "cpu")
        own = {*dir(session.Session), *vars(a_session()), "ranks", "cores", "seed", "data"}
        assert read - own == set(sizes), master.name


def test_note_carries_a_record_and_a_readable_line(shown):
    a_session().note("speed", 1234.56, "img/s", "the speed")
    assert shown[0]["text/plain"] == "the speed: 1,235 img/s"
    record = shown[0][output.RESULT_MIME]
    assert (record["kind"], record["value"], record["notebook"]) == ("note", 1234.56, "02")


def test_expect_shows_both_numbers(shown):
    a_session().expect({"top1": 83.0})
    assert "recorded on two cores, torch 2.13, 2026-11-21, 3 runs" in shown[0]["text/plain"]
    assert "83.0%" in shown[0]["text/html"] and "84.2 ± 0.6%" in shown[0]["text/html"]
    assert "not comparable" not in shown[0]["text/html"]
    a_session("ci").expect({"top1": None})
    a_session("ci").expect({"top1": 83.0})
    assert "yours" not in shown[1]["text/html"] and "not comparable" in shown[2]["text/html"]
    each = dataclasses.replace(MEASURED, each=[83.75, 84.5, 84.5])
    dataclasses.replace(a_session(), results={"top1": each}).expect({"top1": None})
    text = shown[3]["text/plain"]
    assert "84.2% (83.75 to 84.5)" in text and "half their range" not in text


def test_paths_are_the_same_from_any_folder(tmp_path, monkeypatch, repository):
    for name in ("RN50_DATA", "RN50_RUNS"):
        monkeypatch.setenv(name, "")
    monkeypatch.chdir(tmp_path)
    assert paths.checkout() == repository
    assert (paths.data_home(), paths.runs_home()) == (repository / "data", repository / "runs")
    monkeypatch.setenv("RN50_RUNS", "here")
    assert (paths.data_home(), paths.runs_home()) == (repository / "data", tmp_path / "here")


@pytest.mark.slow
@pytest.mark.needs("linux_x86_64")
def test_data_made_once_is_used_by_all_without_writing(tmp_path):
    """A class's data on a folder that a learner may only read: a run and a notebook use it."""
    root = tmp_path / "data" / "roadsigns-ci"
    places = {"RN50_DATA": str(root.parent), "RN50_RUNS": str(tmp_path / "runs")}

    def run(*words, permissions=()):
        done = subprocess.run(
            [*permissions, sys.executable, *words],
            env=clean_environment(**places), capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    prepare = (
        "import sys\nfrom pathlib import Path\nfrom data_prep import tfrecord\n"
        "from workshop import session\n"
        "root = Path(sys.argv[1])\nsession.CI_IMAGES = 24, 12\n"
    )
    make = "session.ensure_data(root, 'ci')\ntfrecord.ensure_tfrecord(root)"
    lesson = (  # what notebook 04 does with the data
        "session.ensure_data(root, 'ci')\ntfrecord.convert(root, Path(sys.argv[2]) / 'shards')"
    )
    run("-c", prepare + make, root)
    everything = [*root.parent.rglob("*")]
    files = [path for path in everything if path.is_file()]
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in files}
    for path in [root.parent, *everything]:
        path.chmod(path.stat().st_mode & 0o555)
    small = ["-e", "1", "-b", "4", "--data-nthreads", "0", "--image-shape", "32"]
    learner = bound_by_permissions()
    run("-c", prepare + lesson, root, tmp_path / "runs", permissions=learner)
    command = ["-m", "rn50", "run", "--data-root", root, "--test-io", *small]
    run(*command, permissions=learner)
    for path in [root.parent, *everything]:
        path.chmod(path.stat().st_mode | 0o200)
    after = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in files}
    assert after == before and len(after) > 36
    assert [*root.parent.rglob("*")] == everything


def test_user_error_shows_as_one_line_in_a_notebook(monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell

    from workshop import errors

    shell = InteractiveShell()
    lines: list[str] = []
    shell._showtraceback = lambda kind, value, stb: lines.extend(stb)
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    errors.show_user_errors_plainly()
    code = "from rn50lib.errors import UserError\nraise UserError('--dtype x: use y')"
    with redirect_stderr(io.StringIO()):
        result = shell.run_cell(code)
    assert lines == ["error: --dtype x: use y"]
    assert isinstance(result.error_in_exec, UserError)
    lines.clear()
    code = (
        "from workshop.errors import RunFailed\nraise RunFailed('it ended', 'a\\n[frame 0]: x\\nb')"
    )
    shell.run_cell(code)
    assert lines == ["RunFailed: it ended", "    a", "    b"]
    lines.clear()
    failed = shell.run_cell("%%bash -e\nexit 3  # and a long cell")
    assert lines == ["The command ended with status 3."]
    assert isinstance(failed.error_in_exec, subprocess.CalledProcessError)
    lines.clear()
    shell.run_cell("train")  # an answer's name, but not of this notebook
    assert any("NameError" in line for line in lines)


def test_quiet_stderr_discards_native_notes_and_restores_stderr(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with output.quiet_stderr():
        os.write(2, b"a note\n")
    with pytest.raises(ImportError), output.quiet_stderr():
        raise ImportError
    os.write(2, b"an error\n")
    assert capfd.readouterr().err == "an error\n"
