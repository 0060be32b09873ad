"""Parameters given on the command line: unknown ones and wrong types stop before anything runs."""

from __future__ import annotations

import pytest

from rn50lib.errors import UserError
from workshop.course import parameters

CELL = """profile: str = "auto"  # the profile
epochs: int = 3  # epochs
rate: float | None = None  # the rate
fast: bool = False  # skip the rest"""


def test_parse_gives_name_type_default_and_help():
    known = parameters.parse(CELL)
    assert [(p.name, p.kind, p.default) for p in known] == [
        ("profile", "str", "auto"),
        ("epochs", "int", 3),
        ("rate", "float | None", None),
        ("fast", "bool", False),
    ]
    assert known[0].help == "the profile"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("profile", "12", "12"),
        ("epochs", "12", 12),
        ("rate", "1e-3", 0.001),
        ("rate", "None", None),
        ("fast", "true", True),
        ("fast", "0", False),
    ],
)
def test_values_take_the_declared_type(name, text, value):
    done = parameters.check({name: text}, parameters.parse(CELL), "x.ipynb")
    assert done == {name: value} and type(done[name]) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("epoch", "1", r"x.ipynb has no parameter 'epoch' \(did you mean epochs\?\)"),
        ("quux", "1", "it has profile, epochs, rate, fast"),
        ("epochs", "many", "parameter epochs is int, and 'many' is not"),
        ("epochs", "None", "parameter epochs is int"),
        ("fast", "perhaps", "parameter fast is bool"),
    ],
)
def test_unknown_names_and_wrong_types_are_refused(name, text, message):
    with pytest.raises(UserError, match=message):
        parameters.check({name: text}, parameters.parse(CELL), "x.ipynb")


def test_cli_refuses_before_anything_runs(run_cli, notebook, tmp_path):
    first = notebook("one", "open('ran', 'w')", parameters=CELL)
    second = notebook("two", "1", parameters='profile: str = "auto"  # the profile')
    out = tmp_path / "out"
    done = run_cli("workshop", "run", first, second, "-p", "epochs", "1", "--out", out)
    assert done.returncode == 2
    assert done.stderr.strip() == "error: two.ipynb has no parameter 'epochs': it has profile"
    assert not out.exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run"], 'name the notebooks to run, such as "02", or give --all (not both)'),
        (["run", "99"], "there is no notebook 99: there are 00_start_here"),
        (["run", "00", "--profile", "ci", "-p", "profile", "cpu"], "contradict each other"),
        (["run", "00", "--resume"], "--resume needs --out"),
        (["run", "00", "-p", "profile", "fast"], "-p profile fast: there are auto, ci, cpu, gpu"),
        (["build", "--solutions", "pyproject.toml"], "pyproject.toml cannot be written"),
        (["run", "00", "--jobs", "0"], "whole number of 1 or more"),
        (["run", "00", "--time-limit", "-1"], "must be more than 0 seconds"),
        (["run", "00", "--out", "/dev/null/x"], "--out /dev/null/x cannot be made"),
        (["fly"], "invalid choice: 'fly'"),
    ],
)
def test_cli_refuses_in_one_line(repository, monkeypatch, capsys, args, message):
    from rn50 import cli

    monkeypatch.chdir(repository)
    try:
        status = cli.main(["workshop", *args])
    except SystemExit as stop:
        status = stop.code
    text = capsys.readouterr().err.strip()
    assert status == 2 and text.startswith("error: ") and message in text
    assert len(text.splitlines()) == 1


def test_resume_takes_an_earlier_pass_only_of_the_same_notebook(tmp_path):
    from dataclasses import replace

    from workshop.course import results, runner

    course = runner.Runner(tmp_path, print, print)
    job = runner.Job(tmp_path / "a.ipynb", "A", None, 10.0, {"profile": "ci"}, "sha")
    passed = course.outcome(job, results.PASSED, 1.0, None, [])
    assert not course.still_valid(job, passed)  # its executed file is gone
    (tmp_path / "a.ipynb").write_text("{}")
    assert course.still_valid(job, passed)
    assert not course.still_valid(job, replace(passed, status=results.FAILED))
    assert not course.still_valid(replace(job, sha256="other"), passed)
    assert not course.still_valid(replace(job, parameters={"profile": "cpu"}), passed)
