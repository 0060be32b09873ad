"""Masters to notebooks: the same bytes every time, drift named, no learner's work lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nbformat
import pytest

from workshop import catalogue
from workshop.course import build


def built(checkout: Path) -> Path:
    return checkout / "notebooks" / "00_start_here.ipynb"


def test_committed_notebooks_match_their_masters(rn50, repository):
    status, out, err = rn50(repository, "workshop", "build", "--check")
    assert status == 0, err


@pytest.mark.slow
def test_same_master_gives_same_bytes_elsewhere(run_cli, rn50, checkout, tmp_path):
    assert rn50(checkout, "workshop", "build")[0] == 0
    first = built(checkout).read_bytes()
    other = tmp_path / "elsewhere" / "again"
    shutil.copytree(checkout, other)
    built(other).unlink()
    done = run_cli("workshop", "build", cwd=other, env={"PYTHONHASHSEED": "7", "LC_ALL": "C"})
    assert done.returncode == 0, done.stderr
    assert built(other).read_bytes() == first


def test_built_notebook_is_valid_and_bare(checkout):
    text = build.build(checkout, checkout / "notebooks/source/00_start_here.py")
    book = nbformat.reads(text, as_version=4)
    nbformat.validate(book)
    assert book.metadata.kernelspec == build.KERNELSPEC
    start = catalogue.COURSE[0]
    about = {"number": "00", "minutes": start.minutes, "ci_seconds": start.ci_seconds}
    assert book.metadata.rn50 == about
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.source.splitlines()[0] for cell in code][1:] == ["print(number)"] * 2
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert code[0].metadata.tags == ["parameters"]
    assert "jupytext" not in text
    assert "Course: **00 Start here**" in book.cells[0].source


def test_ids_are_unique_and_survive_an_insertion(checkout):
    master = checkout / "notebooks/source/00_start_here.py"
    before = [cell["id"] for cell in json.loads(build.build(checkout, master))["cells"]]
    assert len(set(before)) == len(before)  # two cells of this master are equal
    master.write_text(master.read_text() + "\n# %%\nprint(1)\n")
    after = [cell["id"] for cell in json.loads(build.build(checkout, master))["cells"]]
    assert [key for key in after if key in before] == before and len(after) == len(before) + 1


def test_links_between_notebooks_are_not_broken(checkout):
    source = checkout / "notebooks" / "source"
    master = (source / "00_start_here.py").read_text()
    for item in catalogue.COURSE[1:3]:
        text = master.replace("# 00 · Start here", f"# {item.number} · {item.short}")
        (source / f"{item.name}.py").write_text(text)
    book = json.loads(build.build(checkout, source / f"{catalogue.COURSE[1].name}.py"))
    last = "".join(book["cells"][-1]["source"])
    assert "[Map of the course](00_start_here.ipynb)" in last
    assert "[02 One GPU →](02_single_gpu.ipynb)" in last
    assert "03" not in last  # has no master here
    first = "".join(book["cells"][0]["source"])
    assert "[00 Start here](00_start_here.ipynb) › **01 Data** › [02 One GPU]" in first


def test_check_names_drift_and_remedy(rn50, checkout):
    rn50(checkout, "workshop", "build")
    path = built(checkout)
    path.write_text(path.read_text().replace("print(number)", "print(1 + number)", 1))
    before = path.read_bytes()
    status, out, err = rn50(checkout, "workshop", "build", "--check")
    assert status == 1
    assert "notebooks/00_start_here.ipynb differs: edit its master" in err
    assert path.read_bytes() == before  # --check writes nothing


def test_check_names_missing_and_orphan(rn50, checkout):
    (checkout / "notebooks" / "05_dali.ipynb").write_text("{}")
    (checkout / "notebooks" / "00_start_here.changed-20260101T000000Z.ipynb").write_text("{}")
    status, out, err = rn50(checkout, "workshop", "build", "--check")
    assert status == 1
    lines = err.splitlines()
    assert any("00_start_here.ipynb differs" in line for line in lines)
    assert any("05_dali.ipynb has no master" in line for line in lines)
    assert len(lines) == 2  # a copy that reset kept is left alone


def test_reset_restores_and_keeps_the_changed_one(rn50, checkout):
    rn50(checkout, "workshop", "build")
    path, original = built(checkout), built(checkout).read_text()
    path.write_text(original.replace("print(number)", "print('mine')"))
    status, out, err = rn50(checkout, "workshop", "reset", "00")
    assert status == 0, err
    assert path.read_text() == original
    kept = list(path.parent.glob("00_start_here.changed-*.ipynb"))
    assert len(kept) == 1 and "print('mine')" in kept[0].read_text()
    assert str(kept[0]) in out
    rn50(checkout, "workshop", "reset", "00")  # unchanged: nothing is kept
    assert list(path.parent.glob("00_start_here.changed-*.ipynb")) == kept


def test_lesson_and_its_exercises_lead_to_each_other(checkout):
    (checkout / "exercises" / "source").mkdir(parents=True)
    for name in ("ex00_start", "ex01_records"):
        master = checkout / "exercises" / "source" / f"{name}.py"
        master.write_text(f"# %% [markdown]\n# # {name[:4]} · Title\n", encoding="utf-8")
    lesson = build.build(checkout, checkout / "notebooks/source/00_start_here.py")
    assert "[Exercises ex00](../exercises/ex00_start.ipynb)" in lesson
    text = build.build(checkout, checkout / "exercises/source/ex00_start.py")
    assert "Exercises: **ex00** › [ex01](ex01_records.ipynb)" in text
    assert "[Map of the course](../notebooks/00_start_here.ipynb)" in text
