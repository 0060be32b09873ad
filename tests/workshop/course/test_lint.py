"""Each rule for masters is found when it is broken, and the good master has no finding."""

from __future__ import annotations

import pytest

from rn50lib.errors import UserError
from tests.workshop.conftest import MASTER
from workshop import expected, masters
from workshop.course import lint
from workshop.course.lint import content


def findings(rn50, checkout, text: str) -> tuple[int, list[str]]:
    """Return the status and the lines of `rn50 workshop lint`."""
    master = checkout / "notebooks" / "source" / "00_start_here.py"
    master.write_text(text, encoding="utf-8")
    status, _, err = rn50(checkout, "workshop", "lint")
    return status, err.splitlines()


def test_good_master_has_no_finding(rn50, checkout):
    good = (
        MASTER + "\n# %% [markdown]\n# [a](00_start_here.ipynb) `[b](c.ipynb)` ![a plot](b.png)\n"
    )
    (checkout / "notebooks" / "b.png").touch()
    assert findings(rn50, checkout, good) == (0, [])


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ('tags=["parameters"]', "", "0 cells are tagged parameters"),
        ("# ## The same again", "# ![](a.png)", "cell 4: an image without alt text"),
        ("# ## The same again", '# <img src="a.png">', "an image without alt text"),
        ("# ## The same again", "# [a](01_nothing.ipynb)", "01_nothing.ipynb leads nowhere"),
        ("# ## The same again", "# [a](../exercises/none/README.md)", "leads nowhere"),
        ("print(number)", "!ls", "cell 3: a shell line"),
        ("print(number)", "%%bash\nls", "a shell line"),
        ("print(number)", "%pip install x", "a shell line"),
        ("print(number)", "get_ipython().system('ls')", "a shell line"),
        ("print(number)", "%%bash -e\nxargs -P $(nproc) ls", "cell 3: a command that macOS lacks"),
        ("print(number)", "plt.show()", "a figure without alt text"),
        ("print(number)", "workshop.figure(fig, alt='')", "a figure without alt text"),
        ("# %%\nprint(number)", '# %% tags=["raises-exception"]\n1/0', "hides a failure"),
        ("# %%\nprint(number)", '# %% tags=["skip-execution"]\n1/0', "hides a failure"),
    ],
)
def test_broken_rule_is_found(rn50, checkout, old, new, finding):
    assert old in MASTER
    status, lines = findings(rn50, checkout, MASTER.replace(old, new, 1))
    assert status == 1 and any(finding in line for line in lines), lines
    assert lines[0].startswith("notebooks/source/00_start_here.py: ")


@pytest.mark.parametrize(
    ("what", "more", "count"),
    [
        ("cells", "\n# %%\n1\n", 50),
        ("words", "\n# %% [markdown]\n# word " + "word " * 99 + "\n", 20),
        ("figures", "\n# %%\nimport workshop\n\nworkshop.figure(fig, alt='a')\n", 6),
        ("helpers", "\n# %%\nfrom workshop import f{0}\n\nf{0}()\n", 13),
    ],
)
def test_notebook_with_too_much_is_found(rn50, checkout, what, more, count):
    text = MASTER + "".join(more.format(number) for number in range(count))
    status, lines = findings(rn50, checkout, text)
    assert status == 1 and len(lines) == 1 and f" {what}, at most {lint.CEILINGS[what]}" in lines[0]


def test_only_cells_that_call_a_framework_start_a_script_or_are_yours_count_as_plain(tmp_path):
    cells = {
        "import numpy as np\nimport workshop\n\nrow = np.ones(3)": 1,
        "guess = None  # a prediction": None,
        "workshop.table(row.sum())": 0,
        "print(len(row))": 0,
        "def f(row):\n    ...  # your code": 1,
        "%%writefile a.py\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    pass": 1,
        "%%bash -e\nRANKS=2 torchrun a.py": 1,
        "%%bash -e\nrn50 run": 0,
    }
    found = content([{"cell_type": "code", "source": cell, "tags": []} for cell in cells])
    counted = [kind for kind in cells.values() if kind is not None]
    assert found["plain"] == sum(counted) / len(counted) and found["helpers"] == 1


@pytest.mark.parametrize("tag", ["answer", "check"])
def test_exercise_without_its_cells_is_found(repository, tmp_path, tag):
    text = (repository / "exercises/source/ex03_horovod.py").read_text(encoding="utf-8")
    master = tmp_path / "ex03_horovod.py"
    master.write_text(text, encoding="utf-8")
    assert lint.check_tags(masters.read_master(master), master) == []
    master.write_text(text.replace(f'"{tag}", "ex03.exposed"', f'"{tag}"'), encoding="utf-8")
    lines = lint.check_tags(masters.read_master(master), master)
    assert lines == [f'no cell has the tags "{tag}" and "ex03.exposed"']


TWO_RUNS = (
    '{"results": {"a": {"what": "x", "value": 2, "kind": "published", "source": "s", "runs": %d,'
    ' "each": %s}}}'
)


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("{", "JSONDecodeError"),
        ('{"results": {"a": {"what": "x", "value": 1, "kind": "measured"}}}', "needs hardware"),
        ('{"results": {"a": {"what": "x", "value": 1, "kind": "published"}}}', "needs source"),
        ('{"results": {"a": {"value": 1}}}', "what"),
        (TWO_RUNS % (2, "[1, 4]"), "2 values with the mean 2.5"),
        (TWO_RUNS % (3, "[1, 3]"), "2 values with the mean 2"),
        ('{"results": {"a": {"what": "x", "value": 1, "kind": "guessed"}}}', "'guessed'"),
    ],
)
def test_recorded_result_without_provenance_is_found(tmp_path, text, finding):
    (tmp_path / "00.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="00.json") as found:
        expected.load(tmp_path)
    assert finding in str(found.value)


def test_result_keys_are_unique_over_files(tmp_path):
    text = '{"results": {"a": {"what": "x", "value": 1, "kind": "published", "source": "s"}}}'
    for name in ("00.json", "01.json"):
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="keys must be unique"):
        expected.load(tmp_path)


def test_nbgrader_export_refuses_an_exercise_without_tags(rn50, checkout, repository, tmp_path):
    text = (repository / "exercises/source/ex03_horovod.py").read_text(encoding="utf-8")
    master = checkout / "exercises" / "source" / "ex03_horovod.py"
    master.parent.mkdir(parents=True)
    master.write_text(text.replace('"check", "ex03.exposed"', ""), encoding="utf-8")
    status, _, err = rn50(checkout, "workshop", "build", "--nbgrader", tmp_path / "out")
    assert status == 2 and "ex03_horovod.py" in err and '"ex03.exposed"' in err
