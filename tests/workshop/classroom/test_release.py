"""The learners' copy: no line of a solution in any file of it, and the course still works there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from workshop.course import build, solutions

TELLING = 24  # characters; shorter lines such as `return x` say nothing


def secrets() -> set[str]:
    """Every telling line of every solution: of the masters, and of the scripts in `solutions/`,
    unless the exercise itself gives that line to the learner, as it does the heads of functions."""
    found, given = set(), set()
    for master in build.masters(ROOT):
        for cell in build.read_master(master):
            if cell["cell_type"] == "code":
                for _, lines, secret in solutions.regions(cell["source"], str(master)):
                    (found if secret else given).update(map(str.strip, lines))
                stub = solutions.stub(cell["source"], str(master))
                given.update(map(str.strip, stub.splitlines()))
            else:
                given.update(map(str.strip, cell["source"].splitlines()))
    for script in (ROOT / "exercises").rglob("*.py"):
        lines = set(map(str.strip, script.read_text(encoding="utf-8").splitlines()))
        if "solutions" in script.parts:
            found |= lines
        elif "source" not in script.parts:
            given |= lines
    return {line for line in found - given if len(line) >= TELLING and not line.startswith('"""')}


def library() -> str:
    """The library, the lessons, the checks and the pages, which every learner may read."""
    folders = (
        "rn50lib",
        "data_prep",
        "workshop",
        "notebooks/source",
        "benchmarks",
        "docs",
        "scripts",
    )
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    paths += [
        ROOT / "workshop/checks/hints.md",
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *ROOT.glob("exercises/*/*.md"),
    ]
    paths += [path for path in ROOT.glob("exercises/*/*.py") if path.parent.name != "source"]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    from workshop.classroom import release

    target = tmp_path_factory.mktemp("release") / "course"
    release.release(ROOT, target)
    return target


@pytest.mark.slow
def test_no_line_of_a_solution_is_in_the_copy(copy):
    known = library()
    hidden = {line for line in secrets() if line not in known}
    assert len(hidden) > 60  # there is something to look for
    found = []
    for path in copy.rglob("*"):
        if path.is_file() and path.suffix in (".py", ".ipynb", ".md", ".json", ".txt", ".toml"):
            text = path.read_text(encoding="utf-8")
            plain = text.replace('\\"', '"') if path.suffix == ".ipynb" else text
            found += [(str(path.relative_to(copy)), line) for line in hidden if line in plain]
    assert not found
    assert not [path for path in copy.rglob("*") if path.name in ("solutions", "instructor.md")]
    names = {path.name for path in copy.iterdir()}
    assert names.isdisjoint({"tests", "answers", "runs", "data", ".git"})
    masters = "".join(p.read_text() for p in (copy / "exercises" / "source").glob("*.py"))
    assert solutions.BEGIN not in masters and "= ..." in masters


@pytest.mark.slow
def test_what_the_copy_tells_of_solutions_is_said(rn50, tmp_path):
    """Lines of solutions that hints hold stay in the copy, and whoever makes it is told."""
    hints = (ROOT / "workshop" / "checks" / "hints.md").read_text(encoding="utf-8")
    assert any(line in hints for line in secrets())
    status, out, _ = rn50(ROOT, "workshop", "release", tmp_path / "copy", "--no-solutions")
    assert status == 0 and "a third hint is nearly the answer" in out


@pytest.mark.slow
def test_a_copy_with_a_solution_in_it_would_be_noticed():
    """The search finds what it looks for: in this checkout every line of it stands."""
    masters = "".join(p.read_text() for p in (ROOT / "exercises").rglob("*.py"))
    assert all(line in masters for line in secrets())


@pytest.mark.slow
def test_copy_is_as_its_own_masters_give_it_and_resets(copy, rn50):
    assert build.drift(copy) == []
    assert {p.name for p in (copy / "exercises").glob("*.ipynb")} == {
        p.name for p in (ROOT / "exercises").glob("*.ipynb")
    }
    (notebook,) = (copy / "exercises").glob("ex03_*.ipynb")
    before = notebook.read_text()
    notebook.write_text(before.replace("still", "never") + " ")
    status, out, err = rn50(copy, "workshop", "reset", "ex03")
    assert status == 0, err
    assert notebook.read_text() == before


@pytest.mark.slow
def test_every_link_of_its_pages_leads_somewhere(copy):
    for page in copy.glob("*.md"):
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            if "://" not in link and not link.startswith("../../actions/"):  # GitHub's own pages
                assert (copy / link).exists(), (page.name, link)
    assert "make lab" in (copy / "CONTRIBUTING.md").read_text()
    assert (copy / "Makefile").read_text() == (ROOT / "Makefile").read_text()


@pytest.mark.slow
def test_solution_says_who_holds_it(copy):
    """In a process of its own, which runs the copy and not this checkout."""
    program = (
        "import workshop as w, rn50lib; print(rn50lib.__file__)\n"
        "try: w.solution('ex03.shard', now=True)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=copy, env={"PYTHONPATH": str(copy), "PATH": "/bin"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    where, said = done.stdout.splitlines()
    assert Path(where).is_relative_to(copy), done
    assert said.startswith("UserError") and "your instructor holds it" in said


def test_folder_that_holds_something_is_refused(rn50, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    status, _, err = rn50(ROOT, "workshop", "release", tmp_path / "mine", "--no-solutions")
    assert status == 2 and "is not empty" in err
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    status, _, err = rn50(ROOT, "workshop", "release", ROOT / "notebooks/x", "--no-solutions")
    assert status == 2 and "inside the course itself" in err
    status, _, err = rn50(ROOT, "workshop", "release", tmp_path / "new")
    assert status == 2 and "--no-solutions" in err
    assert not (tmp_path / "new").exists()
