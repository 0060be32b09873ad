"""The check of the ring that a learner writes in notebook 03: on real ranks, by Gloo."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from tests.workshop.checks.answers import defined
from workshop.checks import alone
from workshop.checks.compare import Wrong
from workshop.lessons import nb03

RING = inspect.getsource(nb03.all_reduce)
RING = RING.replace("(gradients: Any) -> None", "(gradients)")  # as a learner writes it
EDITS = [
    ("next_one += received", "next_one = next_one + received", "in place"),
    ("next_one += received", "chunks[(rank - step - 1) % size] += received", "A tuple of chunks"),
    ("range(2 * (size - 1))", "range(size - 1)", "n - 1 more steps"),
    ("(rank - 1) % size", "(rank + 1) % size", "wait for each other"),
    ("chunks = gradients.tensor_split(size)",
     "chunks = gradients[: len(gradients) // size * size].chunk(size)", "equal chunks"),
    ("(rank + 1) % size", "rank + 1", "one that does not exist"),
    ("chunks[(rank - step - 1) % size]", "chunks[(rank - step) % size]", "(rank - s - 1) % size"),
    ("        sending.wait()\n", "", "you do not wait for `isend`"),
    ("        sending.wait()\n        receiving.wait()\n", "", "before it has arrived"),
    ("    rank, size", "    raise ValueError('mine')\n    rank, size", "ValueError: mine"),
]  # fmt: skip
SHORT = ("in place", "ValueError: mine")  # in `make test`; test_wrong_sums_get... has the others


def test_cell_of_the_notebook_imports_what_a_ring_needs(repository: Path) -> None:
    notebook = json.loads((repository / "notebooks/03_horovod.ipynb").read_text())
    sources = ["".join(cell["source"]) for cell in notebook["cells"]]
    (cell,) = [source for source in sources if "def all_reduce(gradients)" in source]
    body = RING[RING.index("    rank, size") :]  # without imports of its own
    assert "torch." in body
    assert not alone.undefined(cell[: cell.index("    ...  # your code")] + body)


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_finished_ring_passes_and_is_written(tmp_path: Path, capsys) -> None:
    nb03.check("all_reduce", defined(RING, "all_reduce"), str(tmp_path / "ring.py"))
    assert capsys.readouterr().out.startswith("✓ On 2 and 3 ranks")
    assert "isend" in (tmp_path / "ring.py").read_text()


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_ring_may_start_both_as_a_batch(tmp_path: Path, capsys) -> None:
    first, after = RING.index("        sending = "), RING.index("        if step < size")
    batch = """        out = dist.P2POp(dist.isend, mine, (rank + 1) % size)
        back = dist.P2POp(dist.irecv, received, (rank - 1) % size)
        for work in dist.batch_isend_irecv([out, back]):
            work.wait()
"""
    nb03.check(
        "all_reduce",
        defined(RING[:first] + batch + RING[after:], "all_reduce"),
        str(tmp_path / "r.py"),
    )
    assert capsys.readouterr().out.startswith("✓ On 2 and 3 ranks")


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [pytest.param(*e, marks=() if e[2] in SHORT else pytest.mark.acceptance) for e in EDITS],
)
def test_wrong_rings_get_their_diagnosis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    assert RING.count(old) == 1
    nb03.check(
        "all_reduce", defined(RING.replace(old, new), "all_reduce"), str(tmp_path / "ring.py")
    )
    text = capsys.readouterr().out
    assert said in text
    assert "a finished version is used" in text
    assert defined((tmp_path / "ring.py").read_text(), "all_reduce")


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_untouched_ring_is_not_attempted(tmp_path: Path, capsys) -> None:
    cell = "def all_reduce(gradients):\n    ...  # your code\n"
    nb03.check("all_reduce", defined(cell, "all_reduce"), str(tmp_path / "r.py"))
    assert capsys.readouterr().out.startswith("○ `all_reduce` is not written yet")
    assert "def all_reduce(" in (tmp_path / "r.py").read_text()


@pytest.mark.parametrize(
    ("sums", "sent", "said"),
    [  # of three ranks, which begin with 1, 16 and 256 in every element
        ([[1] * 3, [16] * 3, [256] * 3], 4, "`gradients` has not changed"),
        ([[91] * 3] * 3, 4, "The result is the mean"),
        ([[272, 256, 257], [17, 257, 1], [16, 272, 17]], 4, "110 instead of 111"),
        ([[1, 16, 256]] * 3, 4, "element 0 is 1 instead of 273.* 1 instead of 111"),
        ([[273, 274, 529], [546, 273, 273], [273, 289, 273]], 4, "112 instead of 111"),
        ([[273, 16, 257], [17, 273, 256], [1, 272, 273]], 4, "On rank 0, element 1 is 16"),
        ([[273, 273, 273, 17]] * 3, 6, "equal chunks do not cover"),
        ([[18, float("nan"), 257]] * 3, 4, "On rank 0, element 0 is 18 instead of 273"),
        ([[float("nan")] * 3] * 3, 4, "element 0 is nan"),
        ([[273] * 3] * 3, 6, "2 times its gradients"),
        ([[273] * 3] * 3, 0, "a rank sends 0 times"),  # dist.all_reduce
    ],
)
def test_wrong_sums_get_their_diagnosis(sums: list[list[float]], sent: int, said: str) -> None:
    elements = len(sums[0])
    right = [273.0] * elements
    ranks = [{"sums": rank, "right": right, "sent": sent, "pending": 0} for rank in sums]
    with pytest.raises(Wrong, match=said):
        nb03.judge_sums(ranks, 3, elements)


AVERAGES = [
    ("dist.all_reduce(gradient)\n    gradient /= dist.get_world_size()", "✓ On 2 and 3 ranks"),
    ("gradient.div_(dist.get_world_size())\n    dist.all_reduce(gradient)", "✓ On 2 and 3 ranks"),
    ("parts = [gradient.clone() for _ in range(dist.get_world_size())]\n"
     "    dist.all_gather(parts, gradient)\n    gradient.copy_(sum(parts) / len(parts))",
     "✓ On 2 and 3 ranks"),
    ("dist.all_reduce(gradient)", "the sum, not the mean"),
    ("dist.all_reduce(gradient)\n    gradient = gradient / 3", "the sum, not the mean"),
    ("dist.all_reduce(gradient)\n    gradient //= dist.get_world_size()", "round the mean down"),
    ("dist.all_reduce(gradient)\n    gradient /= 3", "You divide by 3"),
    ("dist.all_reduce(gradient)\n    gradient[:1] /= dist.get_world_size()", "273, 273, 273"),
    ("dist.reduce(gradient, 0)\n    gradient /= dist.get_world_size()", "instead of 91"),
    ("gradient.zero_()[...]", "0, 0, 0 instead of 91"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("body", "said"),
    [pytest.param(*a, marks=pytest.mark.acceptance if i else ()) for i, a in enumerate(AVERAGES)],
)
def test_averages_on_ranks(tmp_path: Path, capsys, body: str, said: str) -> None:
    code = f"from torch import distributed as dist\n\n\ndef average(gradient):\n    {body}\n"
    nb03.check("average", defined(code, "average"), str(tmp_path / "average.py"))
    assert said in capsys.readouterr().out
    assert defined((tmp_path / "average.py").read_text(), "average")


@pytest.mark.parametrize(("got", "diagnosis", "remedy"), nb03.AVERAGE_MISTAKES)
def test_wrong_averages_get_their_diagnosis(got: list[float], diagnosis: str, remedy: str) -> None:
    with pytest.raises(Wrong, match=diagnosis.replace("`", ".")) as found:
        nb03.judge_means([[value] * 4 for value in got])
    assert found.value.remedy == remedy
