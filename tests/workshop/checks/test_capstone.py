"""The capstone: scripts run and watched, each mistake found, and the solution faster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workshop.checks.capstone_answers import CAPSTONES
from tests.workshop.checks.test_checks import answered, cell_of
from workshop import masters
from workshop.checks import capstone, capstone_judge, compare, engine

SMALL = {"train": 5, "val": 2}  # 60 and 24 images: both have a smaller last batch
HARDLY = "the network hardly learns"  # 60 images are too few for it
SLOW_MISTAKES = (
    "validation images were trained on",
    "every epoch has the same order",
    "the learning rate is 0 in the whole first epoch",
    "validates in training mode",
)

MENDED = {  # the slow script made right, and not faster
    'glob("*/*/*.jpg")': 'glob("train/*/*.jpg")',
    "range(0, len(files) - BATCH, BATCH)": "range(0, len(files), BATCH)",
    "learning_rate(epoch)": "learning_rate(epoch + step / -(-len(files) // BATCH))",
    "        for step, (x": "        net.train()\n"
    "        files = [files[i] for i in torch.randperm(len(files))]\n"
    "        for step, (x",
    "        loss, top1 = validate": "        net.eval()\n        loss, top1 = validate",
    "losses.append(F.cross_entropy(logits, labels).item())":
    "losses += F.cross_entropy(logits, labels, reduction='none').tolist()",
    "hits.append((logits.argmax(1) == labels).double().mean().item())":
    "hits += (logits.argmax(1) == labels).tolist()",
}  # fmt: skip


def solution() -> str:
    return masters.solved(cell_of("ex08.capstone", "answer"))


def scripts(folder: Path) -> list[Path]:
    """The solution, and the solution with each of the mistakes."""
    right, paths = solution(), []
    for i, (line, instead, _) in enumerate([("", "", ""), *CAPSTONES]):
        assert line in right, line
        paths.append(folder / f"script_{i}.py")
        paths[-1].write_text(right.replace(line, instead, 1) if line else right)
    return paths


def found(path: Path, case: capstone.Case) -> list[str]:
    """What the judge says of a script that runs in this process: PyTorch is loaded once."""
    from workshop.checks import watch

    out = path.with_suffix("")
    out.mkdir()
    watch.run(str(case.folder), path, out)
    try:
        seen = capstone.recorded(case, out, path)
    except compare.Wrong as problem:
        return [problem.diagnosis]
    return [said for said, _ in capstone_judge.problems(seen, case)]


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.acceptance)])
def test_every_mistake_is_found_from_the_network_input(tmp_path, every):
    """Each script has one known mistake; the correct one gets no complaint."""
    first, *others = scripts(tmp_path)
    slow = tmp_path / "slow.py"
    slow.write_text(capstone.baseline().read_text())
    with capstone.images(SMALL) as case:
        assert [said for said in found(first, case) if HARDLY not in said] == []
        for path, (line, instead, diagnosis) in list(zip(others, CAPSTONES, strict=True))[::every]:
            if diagnosis != HARDLY:
                said = found(path, case)
                assert diagnosis in said[0], (line, instead, said)
        told = found(slow, case)
    assert len(told) == len(SLOW_MISTAKES), told
    for said, mistake in zip(told, SLOW_MISTAKES, strict=True):
        assert mistake in said


@pytest.mark.acceptance
@pytest.mark.needs("torch")
def test_mistakes_that_need_more_images_are_found(tmp_path):
    first, *others = scripts(tmp_path)
    with capstone.images() as case:  # enough images to learn from
        assert case.train % capstone.BATCH  # a script that drops the last batch is found
        seen = capstone.observe(case, first)
        assert capstone_judge.problems(seen, case) == []
        assert seen.seconds > 0 and seen.ips == pytest.approx(3 * case.train / seen.seconds)
        for path, (_, _, diagnosis) in zip(others, CAPSTONES, strict=True):
            if diagnosis == HARDLY:
                assert HARDLY in found(path, case)[0]


@pytest.mark.acceptance
@pytest.mark.needs("torch")
def test_capstone_solution_reaches_the_target_and_a_slow_one_does_not():
    result = engine.judge("ex08.capstone", answered("ex08.capstone", solution()))
    assert result.passed, result.lines
    print(result.said)
    slow = capstone.baseline().read_text()
    for line, instead in MENDED.items():
        assert slow.count(line) == 1, line
        slow = slow.replace(line, instead)
    result = engine.judge("ex08.capstone", answered("ex08.capstone", slow))
    assert result.outcome == engine.WRONG, result.lines
    assert "all correct, but" in result.said and "the target is 3 times" in result.said
