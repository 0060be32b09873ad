"""Exercises: the stub assigns the solution's names, runs, and holds nothing of the solution."""

from __future__ import annotations

import builtins
import re
import symtable
from pathlib import Path

import pytest

from rn50lib.errors import UserError
from tests.conftest import ROOT
from workshop import masters
from workshop.checks import alone
from workshop.course import build

CELL = '''def shard(order, rank, size):
    """What rank reads."""
    ### BEGIN SOLUTION
    first = rank  # the offset
    part, _ = order[first::size], None
    return part
    ### END SOLUTION


### BEGIN SOLUTION
count: int = 8
def scale(lr, size):
    """The learning rate of all ranks."""
    # the secret: linear
    return lr * size
### END SOLUTION
print(count)'''

STUB = '''def shard(order, rank, size):
    """What rank reads."""
    first = ...
    part = ...
    _ = ...
    return ...


count = ...
def scale(lr, size):
    """The learning rate of all ranks."""
    ...
print(count)'''


def test_stub_has_the_names_and_nothing_of_the_solution():
    assert masters.stub(CELL) == STUB
    space: dict = {}
    exec(STUB.replace("print(count)", ""), space)
    assert space["count"] is ... and space["shard"]([1], 0, 1) is ...


def test_solved_has_the_solution_and_no_markers():
    text = masters.solved(CELL)
    assert "SOLUTION" not in text
    space: dict = {}
    exec(text.replace("print(count)", ""), space)
    assert space["shard"](list(range(6)), 1, 3) == [1, 4]
    assert space["scale"](0.1, 8) == pytest.approx(0.8)


@pytest.mark.parametrize(
    "master", sorted((ROOT / "exercises/source").glob("ex*.py")), ids=lambda path: path.stem
)
def test_each_exercise_runs_without_the_others(master: Path) -> None:
    """Each uses only names that its own cells, or those before the first exercise, define."""
    sections: dict[str, list[str]] = {"": []}
    for cell in masters.read_master(master):
        if heading := re.findall(r"^## (ex\w+\.\w+)", cell["source"], re.M):
            sections[heading[0]] = [*sections[""]]
        elif cell["cell_type"] == "code" and not cell["source"].startswith("%%"):
            sections[[*sections][-1]].append(masters.solved(cell["source"]))
    assert len(sections) > 1
    for name, cells in sections.items():
        source = "\n".join(cells)
        module = symtable.symtable(source, name, "exec").get_symbols()
        known = {s.get_name() for s in module if s.is_assigned() or s.is_imported()}
        used = {s.get_name() for s in module if s.is_referenced()}
        assert not used - known - {*dir(builtins)}, name
        assert not alone.undefined(source), name


def test_solution_without_names_leaves_dots():
    cell = "### BEGIN SOLUTION\nprint(1)\n### END SOLUTION"
    assert masters.stub(cell) == "..."
    assert masters.stub("### BEGIN SOLUTION\ndef f(x): return 1\n### END SOLUTION") == (
        "def f(x):\n    ..."
    )


@pytest.mark.parametrize(
    "cell",
    [
        "### BEGIN SOLUTION\nx = 1",
        "x = 1\n### END SOLUTION",
        "### BEGIN SOLUTION\nx = (\n### END SOLUTION",
    ],
)
def test_markers_that_do_not_pair_and_bad_python_are_named(cell):
    with pytest.raises(UserError, match="exercise: "):
        masters.stub(cell)


def test_build_writes_stubs(rn50, checkout):
    source = checkout / "exercises" / "source"
    source.mkdir(parents=True)
    cell = "### BEGIN SOLUTION\nanswer = 6 * 7\n### END SOLUTION"
    (source / "ex01_numbers.py").write_text(f"# %% [markdown]\n# # Numbers\n\n# %%\n{cell}\n")
    assert rn50(checkout, "workshop", "build")[0] == 0
    stub = (checkout / "exercises" / "ex01_numbers.ipynb").read_text()
    assert "answer = ..." in stub and "6 * 7" not in stub
    _, master = build.masters(checkout)
    assert "answer = 6 * 7" in build.build(checkout, master, solved=True)
