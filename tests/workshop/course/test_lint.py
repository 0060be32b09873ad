"""Each house rule for masters is found when it is broken, and the good master has no finding."""

from __future__ import annotations

import ast

import pytest

from tests.workshop.conftest import MASTER
from workshop import expected
from workshop.course import build, lint

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
        ("print(number)", "%%bash\nls", "a shell line"),
        ("print(number)", "%pip install x", "a shell line"),
        ("print(number)", "get_ipython().system('ls')", "a shell line"),
        ("print(number)", "\n".join(["x = 1"] * 26), "26 lines of code, at most 25"),
        (
            "print(number)",
            "\n".join(["# %%writefile a.py", *["x = 1"] * 60]),
            "61 lines of code, at most 60",
        ),
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


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (" ".join(["word"] * 101), "a paragraph of 101 words (word word word word word …)"),
        ("\n#\n# ".join([" ".join(["word"] * 76)] * 4), "words without code between them"),
        ("## One\n#\n# ## One", "two headings are called 'One'"),
        ("[a](01_nothing.ipynb)", "cell 4: the link to 01_nothing.ipynb leads nowhere"),
        ("[a](../exercises/none/README.md)", "the link to ../exercises/none/README.md leads now"),
        ("[a](#The-other)", "the link to #The-other leads nowhere"),
        ("See `rn50lib/nothing.py`.", "rn50lib/nothing.py is named and does not exist"),
    ],
)
def test_what_cannot_be_read_or_followed_is_found(rn50, checkout, text, finding):
    write_master(checkout, MASTER.replace("# ## The same again", f"# {text}"))
    status, _, err = rn50(checkout, "workshop", "lint")
    assert status == 1 and finding in err and len(err.splitlines()) == 1


def test_links_that_lead_somewhere_and_short_paragraphs_are_fine(rn50, checkout):
    half = " ".join(["word"] * 60)
    text = f"{half}\n#\n# - {half}\n# - {half}\n#\n# | {half} |\n# |---|"
    text += "\n#\n# ```\n# [a](b.ipynb)\n# ```"
    text += "\n#\n# [a](#The-same-again) [b](00_start_here.ipynb) `[c](none.ipynb)`"
    text += " [d](https://example.org/none.ipynb) `rn50lib/there.py`"
    (checkout / "rn50lib" / "there.py").touch()
    write_master(
        checkout, MASTER.replace("# ## The same again", f"# ## The same again\n#\n# {text}")
    )
    status, out, err = rn50(checkout, "workshop", "lint")
    assert (status, out + err) == (0, "")


def write_master(checkout, text: str) -> None:
    (checkout / "notebooks" / "source" / "00_start_here.py").write_text(text, encoding="utf-8")


def test_alt_text_has_to_say_something(checkout):
    for alt, count in (('"a plot"', 1), ('f"{x}"', 0), ('"Loss over epochs: it falls"', 0)):
        lines = found(checkout, MASTER.replace("print(number)", f"workshop.figure(f, alt={alt})"))
        assert len([line for line in lines if "does not say what is seen" in line]) == 2 * count


EXERCISE = "## ex03.sums · A wrong accuracy\n#\n# *find the bug · medium · 10 minutes*"


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        (EXERCISE, EXERCISE.replace("10 min", "9 min"), "*find the bug · medium · 10 minutes*"),
        (EXERCISE, EXERCISE.replace("medium", "easy"), "the line below its heading must be"),
        (
            "# ## ex03.sums · A wrong accuracy",
            "# ## A wrong accuracy",
            "ex03.sums needs one headin",
        ),
        ('"answer", "ex03.sums"', '"answer"', 'no cell has the tags "answer" and "ex03.sums"'),
        ('"check", "ex03.ring"', '"ex03.ring"', 'no cell has the tags "check" and "ex03.ring"'),
        ('check("ex03.ring"', 'check("ex03.rnig"', "there is no exercise ex03.rnig"),
        ("workshop.hint(", "workshop.hnit(", "nothing tells the learner of workshop.hint"),
        ("**Time:** 54", "**Time:** 30", "says 30 minutes, the course table 54"),
    ],
)
def test_exercise_that_breaks_its_form_is_found(repository, tmp_path, old, new, finding):
    text = (repository / "exercises/source/ex03_horovod.py").read_text(encoding="utf-8")
    good, bad = tmp_path / "ex03_horovod.py", tmp_path / "ex03_bad.py"
    good.write_text(text, encoding="utf-8")
    assert lint.lint_cells(build.read_master(good), True, good.stem) == []
    assert old in text
    bad.write_text(text.replace(old, new, 1), encoding="utf-8")
    lines = lint.lint_cells(build.read_master(bad), True, good.stem)
    assert any(finding in line for line in lines), lines


def test_every_figure_of_the_library_is_drawn_in_the_projects_style(repository):
    """Colours, markers and fonts are the same everywhere, because `plot.style()` sets them."""
    bare = []
    for path in sorted([*repository.glob("rn50lib/**/*.py"), *repository.glob("workshop/**/*.py")]):
        text = path.read_text(encoding="utf-8")
        if "subplots(" not in text and "plt.figure(" not in text:
            continue
        tree = ast.parse(text)
        styled = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.With)
            and any("style()" in ast.unparse(item.context_expr) for item in node.items)
            for inner in ast.walk(node)
        }
        bare += [
            f"{path.relative_to(repository)}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith((".subplots", "plt.figure"))
            and id(node) not in styled
        ]
    name = "workshop/output.py"  # images(): pictures without axes
    assert [place for place in bare if not place.startswith(name)] == []
    assert len(bare) == 1
