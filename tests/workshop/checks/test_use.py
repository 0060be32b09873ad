"""`workshop.use`: what is written for the ranks, what is refused, and a run with it."""

from __future__ import annotations

import json
import linecache

import pytest

from rn50lib.errors import UserError
from tests.support import LAPTOP
from tests.workshop.checks.answers import defined
from workshop import session
from workshop.checks import alone
from workshop.checks import use as using

CELL = """import math

HALF = 0.5
print("shown, not kept")


def helper(x):
    return math.floor(x) * HALF


def schedule(progress, global_batch, recipe):
    return 0.25 + 0 * helper(progress)


schedule(1, 2, None)
"""


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A session of ex02 without a notebook."""
    monkeypatch.setenv("RN50_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("RN50_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("RN50_CHECK", raising=False)
    here = session.Session("ex02", "ci", LAPTOP, tmp_path / "data", tmp_path / "runs")
    monkeypatch.setattr(session, "_current", here)
    return tmp_path / "runs" / "answers"


def test_file_runs_nothing_of_the_cell(tmp_path):
    """The ranks import the file, so each of them would run the cell again."""
    cell = CELL + (
        f"for i in range(2):\n    open({str(tmp_path / 'ran')!r}, 'a').write('x')\n"
        "found = schedule(1, 2, None)\nif True:\n    print(1)\nwith open('nowhere') as f: pass\n"
    )
    file = f"<cell {hash(cell)}>"
    linecache.cache[file] = (len(cell), None, cell.splitlines(keepends=True), file)
    space: dict = {}
    exec(compile(CELL, file, "exec"), space)
    kept = alone.cell_of(space["schedule"])
    assert [*filter(None, kept.splitlines())] == [
        line for line in CELL.splitlines() if line and not line.startswith(("print", "schedule"))
    ]
    assert kept.splitlines().index("HALF = 0.5") == cell.splitlines().index("HALF = 0.5")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def schedule(a, b, c):\n    return np.sqrt(a)\n", "the cell uses `np`, but"),
        ("def schedule(a):\n    return [g(x) for x in a]\n", "the cell uses `g`, but"),
    ],
)
def test_incomplete_cell_is_reported(started, source, said):
    with pytest.raises(UserError, match=f"{said}.*the same cell"):
        using.write("ex02", defined(source, "schedule"))


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    import numpy as np\nexcept ImportError:\n    print('no')\n"
        "def schedule(a, b, c):\n    return np.sqrt(a)\n",
        "def schedule(a, b, c):\n    global COUNT\n    COUNT = 1\n    return COUNT\n",
        "def schedule(a, b, c):\n    return len(__file__)\n",
        "import functools\ndef twice(f):\n    @functools.wraps(f)\n    def g(*a):\n"
        "        return f(*a)\n    return g\n@twice\ndef schedule(a, b, c):\n    return a\n",
    ],
)
def test_complete_cell_is_taken(source):
    assert alone.script_of(defined(source, "schedule")) == source


def test_stubs_are_refused_or_skipped(started, monkeypatch, capsys):
    stub = defined("def schedule(a, b, c):\n    return ...\n", "schedule")
    with pytest.raises(UserError, match="in line 2 of its cell. Pass its check first"):
        using.use(schedule=stub)
    monkeypatch.setenv("RN50_CHECK", "record")
    assert using.use(schedule=stub) is None
    assert capsys.readouterr().out.startswith("Not run:")


def test_unusable_answers_are_refused(started, monkeypatch):
    with pytest.raises(UserError, match="a function for one of schedule, shard"):
        using.use(num_epochs=3)
    with pytest.raises(UserError, match="needs the function itself"):
        using.use(schedule=0.1)
    with pytest.raises(UserError, match="cell that defines"):
        using.use(schedule=eval("lambda progress, batch, recipe: 0.1"))
    monkeypatch.setattr(session, "_current", None)
    with pytest.raises(UserError, match="workshop.start first"):
        using.use(schedule=defined(CELL, "schedule"))


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_real_loop_runs_with_the_learner_s_function(started, photos):
    folder = using.use(
        schedule=defined(CELL, "schedule"), data_root=str(photos.root), recipe="reference",
        batch_size=8, num_epochs=1, num_examples=16, disp_batches=1, no_val=True,
    )  # fmt: skip
    lines = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    rates = [line["lr"] for line in lines if line["phase"] == "train"]
    assert rates and set(rates) == {0.25}
