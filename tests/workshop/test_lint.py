"""Each house rule for masters is found when it is broken, and the good master has no finding."""

from __future__ import annotations

import pytest

from rn50lib.workshop import build, expected, lint
from tests.workshop.conftest import MASTER

TIME = "**Time:** 5 minutes"
MANY = "\n".join(f"p{i}: int = {i}  # number {i}" for i in range(7))


def found(checkout, text: str) -> list[str]:
    master = checkout / "notebooks" / "source" / "00_start_here.py"
    master.write_text(text, encoding="utf-8")
    cells = build.read_master(master)
    return lint.lint_cells(cells, exercise=False, name="00_start_here")


def test_good_master_has_no_finding(checkout):
    assert found(checkout, MASTER) == []


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("# # 00 · Start here", "# # Start here", "the first line must be"),
        ("built.", "built", "one sentence"),
        ("built.", "built. It is short.", "one sentence"),
        (TIME, "**Time:** 6 minutes", "says 6 minutes, the course table 5"),
        (" · **On a CPU:** a second", "", "the first cell must end with"),
        ('tags=["parameters"]', "", "no cell is tagged parameters"),
        ('profile: str = "auto"', 'profile: str = "ci"', "the first line must be `profile"),
        ("  # what is printed", "", "number has no comment"),
        ("number: int = 7", "number = 7", "is not of the form"),
        ("number: int = 7", "number: list = [7]", "the type must be one of"),
        ("  # what is printed", "  # set a=1", "only one = a line"),
        ("number: int = 7  # what is printed", MANY, "8 of them, at most 7"),
        ("# ## The same again", "# ### The same again", "skips a level"),
        ("# ## The same again", "# # The same again", "2 headings of the first level"),
        ("# ## The same again", "# ![](a.png)", "image without alt text"),
        ("# ## The same again", '# <img src="a.png">', "<img> without alt text"),
        ("# ## The same again", "# It costs $x^2$ here", "a formula in $"),
        ("print(number)", "!ls", "a shell line"),
        ("print(number)", "%pip install x", "a shell line"),
        ("print(number)", "get_ipython().system('ls')", "a shell line"),
        ("print(number)", "\n".join(["x = 1"] * 26), "26 lines of code, at most 25"),
        ("print(number)", "fig, ax = plt.subplots()", "must be shown with workshop.figure"),
        ("print(number)", "workshop.figure(fig)", "workshop.figure without alt text"),
        ("print(number)", "workshop.figure(fig, alt='')", "workshop.figure without alt text"),
        ("print(number)", "workshop.images(a, labels=b)", "workshop.images without alt text"),
        ("# %%\nprint(number)", '# %% tags=["raises-exception"]\n1/0', "hides a failure"),
        ("# %%\nprint(number)", '# %% tags=["skip-execution"]\n1/0', "leaves the cell out"),
    ],
)
def test_broken_rule_is_found(checkout, old, new, finding):
    assert old in MASTER
    lines = found(checkout, MASTER.replace(old, new, 1))
    assert any(finding in line for line in lines), lines


def test_prices_and_code_are_no_formulas(checkout):
    text = MASTER.replace("# ## The same again", "# ## Costs\n#\n# A run of $5 in `$HOME`, not $6.")
    assert not [line for line in found(checkout, text) if "formula" in line]


def test_lint_prints_file_and_finding(rn50, checkout):
    master = checkout / "notebooks" / "source" / "00_start_here.py"
    master.write_text(MASTER.replace("print(number)", "!ls"), encoding="utf-8")
    status, out, err = rn50(checkout, "workshop", "lint")
    assert status == 1
    assert "notebooks/source/00_start_here.py: cell 3: a shell line" in err


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("{", "is not JSON of the form"),
        ('{"results": {"a": {"what": "x", "value": 1, "kind": "measured"}}}', "needs hardware"),
        ('{"results": {"a": {"what": "x", "value": 1, "kind": "published"}}}', "needs its source"),
        (
            '{"results": {"a": {"what": "x", "value": "1", "kind": "published"}}}',
            "must be a number",
        ),
        ('{"results": {"a": {"value": 1}}}', "what"),
        ('{"results": {"a": {"what": "x", "value": 1, "kind": "guessed"}}}', "kind is 'guessed'"),
    ],
)
def test_recorded_result_without_provenance_is_found(tmp_path, text, finding):
    (tmp_path / "00.json").write_text(text, encoding="utf-8")
    lines = expected.problems(tmp_path)
    assert len(lines) == 1 and finding in lines[0] and "00.json" in lines[0]


def test_result_keys_are_unique_over_files(tmp_path):
    text = '{"results": {"a": {"what": "x", "value": 1, "kind": "published", "source": "s"}}}'
    (tmp_path / "00.json").write_text(text, encoding="utf-8")
    assert expected.problems(tmp_path) == []
    (tmp_path / "01.json").write_text(text, encoding="utf-8")
    assert "keys must be unique" in expected.problems(tmp_path)[0]
