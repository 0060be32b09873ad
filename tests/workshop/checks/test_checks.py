"""Every solution passes, every stub is "not attempted", every mistake gets its diagnosis."""

from __future__ import annotations

import functools
import importlib
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from data_prep import recordwriter
from rn50lib import resnet as network
from rn50lib.data import sampler
from rn50lib.recipe import learning_rate
from tests.conftest import ROOT
from tests.workshop.checks.answers import (
    LINES,
    RIGHT,
    RIGHT_VALUES,
    WRONG,
    WRONG_VALUES,
    answered,
    cell_of,
    changed,
)
from workshop import catalogue, masters
from workshop.checks import compare, engine, ex02, ex04, process_ranks
from workshop.course import build

NAMES = [item.name for item in catalogue.EXERCISES]
PLAIN = [item.name for item in catalogue.EXERCISES if not item.needs]
FRAMEWORKS = [
    pytest.param(item.name, marks=pytest.mark.needs(*re.findall(r"(\w+)(?: |$)", item.needs)))
    for item in catalogue.EXERCISES
    if item.needs
]
# The number of wrong answers in `make test`, of exercises that start processes; tests/notebooks has
# solutions, and `make acceptance` the rest.
QUICK = {"ex03.sums": 1, "ex03.recipe": 0}
# Of those whose check takes a second, every third in `make test`, and the solution.
THIRD = ("ex04.recipe",)


def assert_passes(name: str, answer: Any) -> None:
    result = engine.judge(name, answer)
    assert result.passed, result.lines


def assert_wrong(name: str, answer: Any, diagnosis: str) -> None:
    result = engine.judge(name, answer)
    assert result.outcome == engine.WRONG, (diagnosis, result.lines)
    assert diagnosis in result.said, (diagnosis, result.lines)
    assert ") gives " not in result.said or result.then.startswith("It should be "), result.lines
    assert result.then.endswith("helps."), result.lines


# --- the tables of the checks: each row has a wrong answer ----------------------------------------


def accepting(split):
    """Return a test like the solution's that accepts one split in any case."""
    right = changed("ex01.leak")
    return lambda other: None if other is split else right(other)


@functools.cache
def table_rows() -> list[tuple[str, Any, str]]:
    """Exercise, wrong answer and diagnosis of every row."""
    as_answer = {  # if a row is not the answer itself
        "ex01.leak": accepting,
        "ex05.headroom": lambda rates: lambda load, *_: rates(load.__self__),
    }
    found = []
    for name in NAMES:
        module = importlib.import_module(f"workshop.checks.{name[:4]}")
        convert = as_answer.get(name, lambda wrong: wrong)
        for wrong, said, _ in getattr(module, f"{name[5:].upper()}_MISTAKES", ()):
            if isinstance(wrong, dict):  # a part of a prediction
                wrong = changed(name) | wrong
            found.append((name, convert(wrong), said))
    return found


def rows_of(name: str) -> list[tuple[Any, str]]:
    """Every wrong answer to an exercise, with its diagnosis."""
    found = [(answer, said) for of, answer, said in [*table_rows(), *WRONG_VALUES] if of == name]
    return found + [(changed(name, *texts), said) for *texts, said in WRONG.get(name, [])]


CASES = [(name, answer, said) for name in PLAIN for answer, said in rows_of(name)]


@pytest.mark.parametrize(
    ("name", "answer", "diagnosis"), CASES, ids=[f"{name}-{said[:40]}" for name, _, said in CASES]
)
def test_wrong_answer_gets_its_diagnosis(name, answer, diagnosis):
    assert_wrong(name, answer, diagnosis)


@pytest.mark.parametrize("name", PLAIN)
def test_solutions_and_other_correct_answers_pass(name):
    values = [answer for of, answer in RIGHT_VALUES if of == name]
    for answer in [changed(name), *values, *[changed(name, *row) for row in RIGHT.get(name, [])]]:
        assert_passes(name, answer)


@pytest.mark.slow
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_exercises_that_need_a_framework(name, monkeypatch):
    """One test for all loads the framework only once."""
    monkeypatch.setattr(compare, "LIMIT_S", 300)  # the machine may be busy
    if name == "ex08.capstone":
        return  # test_capstone.py
    quick, third = QUICK.get(name), name in THIRD
    for answer, diagnosis in rows_of(name)[: quick : 3 if third else 1]:
        assert_wrong(name, answer, diagnosis)
    if quick is None:
        for texts in [(), *(() if third else RIGHT.get(name, []))]:
            assert_passes(name, changed(name, *texts))


@pytest.mark.needs("torch")
def test_rank_that_is_done_at_once_does_not_break_the_start_of_others():
    answer = changed("ex03.sums", "dist.all_reduce(total)", "pass")  # no collective call
    case = {"size": 3, "sums": [[1.0, 1, 1, 1]] * 3}
    found = process_ranks.together(answer, "metrics", [case] * 20)
    assert all("top1" in rank for ranks in found for rank in ranks), found


@pytest.mark.acceptance
@pytest.mark.needs("torch", "tensorflow", "horovod", "dali")
@pytest.mark.parametrize("name", [*QUICK, *THIRD])
def test_exercises_that_take_long_in_full(name):
    result = engine.judge(name, changed(name))
    assert result.passed, result.lines
    if name == "ex03.recipe":
        for evidence in ("48 samples on each rank, none of", "gradients: averaged", "2 times"):
            assert evidence in result.said
    for answer, diagnosis in rows_of(name)[QUICK.get(name, 0) :]:
        assert_wrong(name, answer, diagnosis)
    for texts in RIGHT.get(name, []):
        result = engine.judge(name, changed(name, *texts))
        assert result.passed and "no shard" not in result.said, result.lines


@pytest.mark.parametrize("name", NAMES)
def test_untouched_stub_is_not_attempted(name, need):
    if catalogue.find(name).lacks:
        for package in catalogue.find(name).needs.split():
            need(package.rpartition(".")[2])
    source = masters.stub(cell_of(name, "answer"))
    result = engine.judge(name, answered(name, source))
    assert result.outcome == engine.NOT_ATTEMPTED
    for number in re.findall(r"line (\d+)", result.said):
        assert "..." in source.splitlines()[int(number) - 1]
    assert "still holds `...`" in result.lines[0]
    assert f'workshop.hint("{name}")' in result.lines[1]


def test_every_check_has_its_wrong_answers():
    rows = [row[0] for row in [*table_rows(), *WRONG_VALUES]]
    count = Counter([*rows, *(name for name, changes in WRONG.items() for _ in changes)])
    assert set(count) == set(NAMES) - {"ex08.capstone"}  # test_capstone.py
    assert min(count.values()) >= 4, count


# --- the exercises and their notebooks ------------------------------------------------------------


def test_table_and_masters_agree():
    exercises = [m for m in build.masters(ROOT) if build.is_exercise(m)]
    notebooks = dict.fromkeys(item.notebook for item in catalogue.EXERCISES)
    assert [m.stem[:4] for m in exercises] == list(notebooks)
    for master in exercises:
        cells = masters.read_master(master)
        names = [item.name for item in catalogue.of_notebook(master.stem[:4])]
        assert len(names) >= 2
        for tag in ("answer", "check"):
            tagged = [c["tags"][1] for c in cells if c["tags"][:1] == [tag]]
            assert tagged == names
        for item in catalogue.of_notebook(master.stem[:4]):
            about = f"*{item.kind} · {item.difficulty} · {item.minutes} minutes*"
            (text,) = [c["source"] for c in cells if f"## {item.name} · " in c["source"]]
            assert about in text
            check = cell_of(item.name, "check")
            assert check == f'workshop.check("{item.name}", {item.answer})'
            assert item.difficulty in ("easy", "medium", "hard")
            assert len(item.hints) == 3 and all(h.endswith((".", ")", "?")) for h in item.hints)


# --- the checks' ground truth against the library, which they do not use --------------------------


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("ex01.frame", recordwriter.frame), ("ex03.shard", sampler.shard),
        ("ex02.schedule", learning_rate),
    ],
)  # fmt: skip
def test_library_passes_its_own_exercises(name, function):
    assert_passes(name, function)


def test_checks_count_like_the_library():
    v1, v15 = (network.resnet(50, version=name).macs(224) for name in ("v1", "v1.5"))
    assert ex02.V1_MACS == v1
    assert ex02.EXTRA == pytest.approx(100 * (v15 - v1) / v1)
    for block, place in zip(network.resnet(50).blocks(), ex02.BLOCKS, strict=True):
        strides = tuple(conv.stride for conv in block.convs)
        shortcut = block.downsample.stride if block.downsample else None
        assert ex02.v15(*place) == (*strides, shortcut)


def test_hunt_script_matches_the_checks_line_numbers():
    compile("\n".join(ex04.script()), "script", "exec")
    assert {ex04.line_of(text) for text in ex04.MISTAKES} == LINES
    assert LINES.isdisjoint(ex04.line_of(text) for text in ex04.RIGHT)


# --- the four outcomes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said", "place"),
    [
        ("return order[nowhere]", "NameError: name 'nowhere' is not defined", "line 4"),
        ("raise SystemExit(3)", "SystemExit: 3", "line 4"),
        ("return 1 // 0", "ZeroDivisionError", "line 4"),
    ],
)
def test_error_shows_the_learner_s_own_line_only(line, said, place):
    source = f"import math\n\ndef shard(order, rank, size, batch):\n    {line}\n"
    result = engine.judge("ex03.shard", answered("ex03.shard", source))
    assert result.outcome == engine.ERROR and said in result.said, result.lines
    assert result.then.startswith(f"In shard, {place}: `{line}`."), result.lines


def test_error_of_a_case_shows_the_call():
    source = (
        "def efficiency(compute, ready, nbytes, cap, latency, bandwidth):\n"
        "    return 0.1 / 0.132 if ready[3] else None\n"
    )
    result = engine.judge("ex08.overlap", answered("ex08.overlap", source))
    assert result.outcome == engine.ERROR and "IndexError" in result.said, result.lines
    assert "line 2" in result.then and "efficiency(0.2, [0.05, 0.1, " in result.then, result.lines


def test_error_of_a_case_shows_the_right_result():
    answer = changed("ex02.schedule", "progress < recipe", "progress <= recipe")
    result = engine.judge("ex02.schedule", answer)
    assert (
        result.outcome == engine.ERROR and "without warm-up'), which should give 0.2" in result.then
    )
    name, either = "ex08.rate", "return sum(images[warmup:]) / took if took else None"
    result = engine.judge(name, changed(name, either, "return sum(images[warmup:]) / took"))
    assert result.outcome == engine.ERROR and "[1, 1], 2), which should give None." in result.then


def test_trace_of_the_check_has_decimals_like_a_real_one():
    result = engine.judge("ex03.exposed", changed("ex03.exposed", "edges = []", "edges = []\n"
                          "    range(events[0]['ts'])"))  # fmt: skip
    assert result.outcome == engine.ERROR and "'float' object" in result.said, result.lines
    assert "'ts': 300005000.5" in result.then, result.lines


LOOPS = [
    ("pass", "still running after"),
    ("try: batch += 1\n        except Exception: pass", "still running after"),
    ("rows.append(b'1' * 10**6)", "more than 0.5 GiB of memory"),
]


@pytest.mark.parametrize(("line", "limit"), LOOPS)
def test_endless_loop_stops_with_its_line(line, limit, monkeypatch):
    monkeypatch.setattr(compare, "LIMIT_S", 30 if "GiB" in limit else 0.3)
    monkeypatch.setattr(compare, "LIMIT_BYTES", 2**29)
    monkeypatch.setattr(compare, "LOOK_S", 0.1)
    top = "def schedule(progress, batch, recipe):\n    rows = []\n"
    source = f"{top}    while True:\n        {line}\n"
    result = engine.judge("ex02.schedule", answered("ex02.schedule", source))
    assert result.outcome == engine.ERROR and limit in result.said, result.lines
    assert result.then.startswith("In schedule, line "), result.lines
    assert_passes("ex02.schedule", learning_rate)


@pytest.mark.acceptance
@pytest.mark.needs("torch")
def test_endless_loop_of_ranks_stops_with_its_line():
    source = "def metric_sums(sums):\n    while True:\n        pass\n"
    result = engine.judge("ex03.sums", answered("ex03.sums", source))
    assert result.outcome == engine.ERROR and "still running" in result.said, result.lines
    assert result.then.startswith("In metric_sums, line "), result.lines


@pytest.mark.needs("torch")
def test_remedies_name_what_is_to_be_done():
    row = importlib.import_module("torch").ones(2)
    for value, copy in ([1.0, 2.0], "Create a new one"), (row, "x.clone()"):
        with pytest.raises(compare.Wrong) as wrong:
            compare.call(lambda x: x.__setitem__(0, 5.0), value)
        assert copy in wrong.value.remedy
    for taken, remedy in ((3, 2), "take(steps)"), ((1, 2), "Read each file"):
        parts = [np.arange(n * 2).reshape(n, 2) + 10 * i for i, n in enumerate(taken)]
        with pytest.raises(compare.Wrong) as wrong:
            ex04.judge_epochs([parts, parts], [10, 20], 2)
        assert remedy in wrong.value.remedy


def test_hunt_lists_the_bugs_in_lines():
    said = engine.judge("ex04.hunt", LINES).said.splitlines()
    assert len(said) == 1 + len(LINES) and said[2].startswith("  Line 23 or 24: ")


@pytest.mark.parametrize("value", [0.5, 2, None, "True", [True], np.array([1, 0])])
def test_remedy_for_true_or_false_is_not_one_for_numbers(value):
    with pytest.raises(compare.Wrong) as wrong:
        compare.like(value, True)
    assert wrong.value.remedy == "Return True or False."
    assert [compare.like(right, True) for right in (1, 0.0, np.True_)] == [True, False, True]


@pytest.mark.parametrize(
    ("momentum", "remedy"), [(0.88, "Use less momentum"), (0.5, "a larger rate or more momentum")]
)
def test_remedy_for_too_much_momentum_is_not_more_of_it(momentum, remedy):
    assert remedy in engine.judge("ex02.tune", (0.0283, momentum)).then


def test_answer_that_cannot_be_used_is_wrong_without_a_traceback():
    assert_wrong("ex03.shard", lambda order: order, "the check cannot use this answer")
    assert_wrong("ex02.work", "much", "of type str, not a number")
    assert_wrong("ex02.work", None, "`extra_percent` is None")
    assert_wrong("ex03.shard", None, "`shard` is None")
    assert_wrong("ex02.tune", 0.1, "of type float, not a pair")
