"""Every solution passes, every stub is "not attempted", every mistake gets its diagnosis."""

from __future__ import annotations

import json
import linecache
import sys
from collections import Counter
from pathlib import Path

import pytest

from data_prep import encoding, tfrecordwriter
from rn50lib import optim
from rn50lib import resnet as network
from rn50lib.data import sampler
from rn50lib.recipe import learning_rate
from tests.conftest import ROOT
from tests.workshop.checks.close_answers import CLOSE, OTHER_WAYS
from tests.workshop.checks.wrong_answers import OTHER_FEEDS, RIGHT_LINES, WRONG, WRONG_FEEDS
from tests.workshop.checks.wrong_answers_ex05 import OTHER_GRAPHS, WRONG_05, WRONG_GRAPHS
from tests.workshop.checks.wrong_answers_ex06 import OTHER_STEPS, WRONG_06, WRONG_STEPS
from tests.workshop.checks.wrong_answers_ex07_08 import CAPSTONES, WRONG_07_08
from tests.workshop.checks.wrong_answers_torch import (
    OTHER_LAYERS,
    OTHER_STARTS,
    OTHER_SUMS,
    WRONG_LAYERS,
    WRONG_STARTS,
    WRONG_SUMS,
)
from workshop.checks import (
    ask,
    compare,
    engine,
    ex02,
    ex03,
    ex04,
    ex05,
    ex05_graph,
    records,
    table,
)
from workshop.course import build, solutions

EVERY = [*WRONG, *WRONG_05, *WRONG_06, *WRONG_07_08, *CLOSE]
needs_horovod = pytest.mark.needs("torch", "horovod")
NAMES = [item.name for item in table.EXERCISES]
QUICK = [item.name for item in table.EXERCISES if not item.needs]


def cell_of(name: str, tag: str) -> str:
    (master,) = (ROOT / "exercises" / "source").glob(f"{name[:4]}_*.py")
    (cell,) = [c for c in build.read_master(master) if {tag, name} <= set(c["tags"])]
    return cell["source"]


def answered(name: str, source: str):
    """What the cell defines, with its source to be found as in a notebook."""
    file = f"<cell {name} {hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space: dict = {"__name__": "cell"}
    exec(compile(source, file, "exec"), space)
    return space[table.find(name).answer]


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty folder of answers."""
    monkeypatch.setenv("RN50_RUNS", str(tmp_path))
    monkeypatch.delenv("RN50_CHECK", raising=False)
    return tmp_path / "answers"


# --- the exercises --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUICK)
def test_solution_passes(name):
    result = engine.judge(name, answered(name, solutions.solved(cell_of(name, "answer"))))
    assert result.passed, result.lines


@pytest.mark.parametrize("name", NAMES)
def test_untouched_is_not_attempted(name, need):
    if table.find(name).lacks:
        need(table.find(name).needs.rpartition(".")[2])
    result = engine.judge(name, answered(name, solutions.stub(cell_of(name, "answer"))))
    assert result.outcome == engine.NOT_ATTEMPTED
    assert "still holds `...`" in result.lines[0]
    assert f'workshop.hint("{name}")' in result.lines[1]


def named(value) -> str:
    if isinstance(value, set | frozenset):  # in an order that is the same in every process
        value = sorted(value)
    return getattr(value, "__name__", None) or str(value)[:40]


@pytest.mark.parametrize(
    ("name", "answer", "diagnosis"),
    [case for case in EVERY if not table.find(case[0]).needs],
    ids=named,
)
def test_wrong_answer_gets_its_diagnosis(name, answer, diagnosis):
    result = engine.judge(name, answer)
    assert result.outcome == engine.WRONG, result.lines
    assert diagnosis in result.said, result.lines
    assert result.then.endswith("helps."), result.lines


@pytest.mark.parametrize(
    ("name", "answer"), [case for case in OTHER_WAYS if not table.find(case[0]).needs], ids=named
)
def test_right_answer_in_another_style_passes(name, answer):
    result = engine.judge(name, answer)
    assert result.passed, result.lines


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_tf_data_exercise():
    judged("ex04.feed", WRONG_FEEDS, OTHER_FEEDS)


@pytest.mark.slow
@pytest.mark.needs("dali")
def test_dali_exercise():
    judged("ex05.graph", WRONG_GRAPHS, OTHER_GRAPHS)
    for case in ex05.VALIDATIONS:  # the rule of ex05.exact is what DALI's reader does
        counts = ex05.valid_rows(*case)
        rows = ex05_graph.shares(*case)
        assert [len(batches) for batches in rows] == [len(batches) for batches in counts]
        pairs = [
            (row, count)
            for batches, of_rank in zip(rows, counts, strict=True)
            for row, count in zip(batches, of_rank, strict=True)
        ]
        assert sorted(n for row, count in pairs for n in row[:count]) == list(range(case[0]))


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", ["ex06.step", "ex07.fold", "ex07.likeliest"])
def test_torch_exercise(name):
    wrong_answers = [case for case in [*EVERY, *WRONG_STEPS, *WRONG_LAYERS] if case[0] == name]
    right = [case for case in [*OTHER_WAYS, *OTHER_STEPS, *OTHER_LAYERS] if case[0] == name]
    judged(name, wrong_answers, right)


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("name", "cases"), [("ex03.start", WRONG_STARTS), ("ex03.sums", WRONG_SUMS)]
)
def test_exercise_of_a_group(name, cases):
    """Each answer starts processes, so most of them are for acceptance."""
    judged(name, cases[:3], [])


@pytest.mark.acceptance
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("name", "cases", "right"),
    [("ex03.start", WRONG_STARTS, OTHER_STARTS), ("ex03.sums", WRONG_SUMS, OTHER_SUMS)],
)
def test_exercise_of_a_group_in_full(name, cases, right):
    judged(name, cases[3:], right)


RECIPE = {  # what is missing: the line of the solution, what stands in its place, the diagnosis
    "1": ("    hvd.init()  # change 1\n", "", "Horovod has not been initialized"),
    "2": ("order[hvd.rank() :: hvd.size()]", "order", "the same 96 samples in the same order"),
    "2, own order": ("manual_seed(0)", "manual_seed(hvd.rank())", "of them on another too"),
    "3": ("0.02 * hvd.size()", "0.02", "not scaled, while each update took 2 times as many"),
    "4": ("hvd.DistributedOptimizer(optimizer, net.named_parameters())", "optimizer",
          "each rank updated with its own gradients"),
    "4, summed": ("net.named_parameters())", "net.named_parameters(), op=hvd.Sum)", "summed"),
    "5": ("    hvd.broadcast_parameters(net.state_dict(), root_rank=0)", "    #",
          "the weights differed at the first update"),
    "6": ("    if hvd.rank() == 0:  # change 6", "    if True:", "several ranks wrote out/net.pt"),
}  # fmt: skip
QUICK_RECIPE = ("2", "4, summed")


@pytest.mark.slow
@needs_horovod
def test_recipe_one_passes():
    result = engine.judge("ex03.recipe", recipe_one())
    assert result.passed, result.lines
    for evidence in ("48 samples on each rank, none of them on another", "Averaged", "2 times"):
        assert evidence in result.said


@pytest.mark.slow
@needs_horovod
def test_recipe_one_passes_with_a_broadcast_into_each_tensor():
    by_hand = "for t in net.state_dict().values():\n        t.copy_(hvd.broadcast(t, root_rank=0))"
    right = "hvd.broadcast_parameters(net.state_dict(), root_rank=0)"
    result = engine.judge("ex03.recipe", recipe_one((right, by_hand)))
    assert result.passed, result.lines


@pytest.mark.parametrize(
    "without",
    [
        pytest.param(
            name, marks=pytest.mark.slow if name in QUICK_RECIPE else pytest.mark.acceptance
        )
        for name in RECIPE
    ],
)
@needs_horovod
def test_recipe_one_without(without):
    right, instead, diagnosis = RECIPE[without]
    result = engine.judge("ex03.recipe", recipe_one((right, instead)))
    assert result.outcome == engine.WRONG and diagnosis in result.said, result.lines


def recipe_one(*changes: tuple[str, str]):
    return changed("ex03.recipe", *changes)


def changed(name: str, *changes: tuple[str, str]):
    """The solution with some texts changed; each stands in it."""
    source = solutions.solved(cell_of(name, "answer"))
    for right, instead in changes:
        assert right in source
        source = source.replace(right, instead)
    return answered(name, source)


RECIPE_TWO = [  # a part of the solution, what stands in its place, and the diagnosis
    (".shard(size, rank)", "", "a picture is read twice in an epoch"),
    ("from_tensor_slices(shards)", "from_tensor_slices(shards[:2])", "a rank gives 10 batches"),
    (".batch(batch, drop_remainder=True)", ".batch(batch, True).take(5)", "a rank gives 5 batches"),
    (".shuffle(1000, seed=seed)", "", "order"),  # of the files, or in both epochs: by the cores
    ("seed=seed)", "seed=seed, reshuffle_each_iteration=False)", "have the same order"),
    ("shuffle(1000", "shuffle(8", "shuffle chooses among"),
    ('["label"], tf.int32)', '["label"], tf.int32) - 1', "the labels are off by one"),
    ("/ 255", "/ 256", "not their bytes divided by 255"),
    ("tf.cast(image, tf.float32) / 255", "image", "the pictures are uint8"),
    (", drop_remainder=True", "", "a batch of pictures is (2, 4, 6, 3)"),
    (
        'example["height"], example["width"]',
        'example["width"], example["height"]',
        "height and width are exchanged",
    ),
    (".prefetch(tf.data.AUTOTUNE)", "", "nothing is read ahead"),
    (".batch(", ".repeat().batch(", "the dataset never ends"),
]


@pytest.mark.slow
@pytest.mark.needs("tensorflow", "horovod")
def test_recipe_two():
    """What is wrong is found before anything is started; the solution runs on two ranks."""
    for right, instead, diagnosis in RECIPE_TWO:
        result = engine.judge("ex04.recipe", changed("ex04.recipe", (right, instead)))
        assert result.outcome == engine.WRONG and diagnosis in result.said, (diagnosis, result)
    result = engine.judge("ex04.recipe", changed("ex04.recipe", *RECORDS_SHARED))
    assert result.outcome == engine.WRONG and "every rank opens every file" in result.said, result
    result = engine.judge("ex04.recipe", changed("ex04.recipe"))
    assert result.passed, result.lines
    assert "48 samples on each rank, none of them on another" in result.said


RECORDS_SHARED = (  # of whole files: each rank opens all, and keeps some records of each
    (".shard(size, rank)", ""),
    ("images = records.shuffle", "images = records.shard(size, rank).shuffle"),
)


def judged(name: str, wrong_answers, right_answers) -> None:
    """The solution and those in another style pass, and each wrong answer gets its diagnosis: in
    one test, which loads the framework once."""
    result = engine.judge(name, answered(name, solutions.solved(cell_of(name, "answer"))))
    assert result.passed, result.lines
    for of, answer in right_answers:
        assert of == name
        assert engine.judge(name, answer).passed, engine.judge(name, answer)
    for of, answer, diagnosis in wrong_answers:
        assert of == name
        result = engine.judge(name, answer)
        assert result.outcome == engine.WRONG and diagnosis in result.said, (diagnosis, result)


def test_missing_package_stops_nobody(home, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # Python then refuses to import it
    ask.check("ex04.feed", lambda: None)
    said = capsys.readouterr().out
    assert "○ ex04.feed is not attempted yet: it needs TensorFlow, which is not installed" in said
    assert records.load("ex04")["ex04.feed"]["outcome"] == engine.NOT_ATTEMPTED


def test_every_check_has_its_wrong_answers():
    framework = [*WRONG_FEEDS, *WRONG_GRAPHS, *WRONG_STEPS, *WRONG_STARTS, *WRONG_SUMS]
    count = Counter(name for name, _, _ in [*EVERY, *framework, *WRONG_LAYERS])
    count["ex03.recipe"], count["ex04.recipe"] = len(RECIPE), len(RECIPE_TWO)
    count["ex08.capstone"] = len(CAPSTONES)  # test_capstone.py runs them
    assert set(count) == set(NAMES)
    assert min(count.values()) >= 4, count


def test_table_and_masters_agree():
    assert {item.kind for item in table.EXERCISES} == set(table.KINDS)
    masters = [m for m in build.masters(ROOT) if build.is_exercise(m)]
    assert [m.stem[:4] for m in masters] == table.notebooks()
    for master in masters:
        cells = build.read_master(master)
        names = [item.name for item in table.of_notebook(master.stem[:4])]
        assert len(names) >= 2
        for tag in ("answer", "check"):
            tagged = [c["tags"][1] for c in cells if c["tags"][:1] == [tag]]
            assert tagged == names
        for item in table.of_notebook(master.stem[:4]):
            about = f"*{item.kind} · {item.difficulty} · {item.minutes} minutes*"
            (text,) = [c["source"] for c in cells if f"## {item.name} · " in c["source"]]
            assert about in text
            check = cell_of(item.name, "check")
            assert check == f'workshop.check("{item.name}", {item.answer})'
            assert len(item.hints) == 3 and all(
                hint.endswith((".", ")", "?")) for hint in item.hints
            )
            assert item.difficulty in table.DIFFICULTIES


def test_built_exercises_hold_no_solution():
    for master in (m for m in build.masters(ROOT) if build.is_exercise(m)):
        text = (ROOT / "exercises" / f"{master.stem}.ipynb").read_text(encoding="utf-8")
        cells = [c["source"] for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
        lines = {line.strip() for cell in cells for line in cell}
        pieces = [
            piece
            for cell in build.read_master(master)
            if cell["cell_type"] == "code"
            for piece in solutions.regions(cell["source"], "")
        ]
        given = {line.strip() for _, part, secret in pieces if not secret for line in part}
        for _, solution, secret in pieces:
            if secret:  # a script that the learner is given to change has lines of its solution
                told = {line.strip() for line in solution if len(line.strip()) > 14} - given
                assert not told & lines, told & lines


# --- the checks' ground truth against the library, which they do not use --------------------------


def test_library_passes_its_own_exercises():
    functions = {
        "ex01.frame": encoding.frame,
        "ex01.crc": tfrecordwriter.frame_record,
        "ex03.shard": sampler.shard,
        "ex02.schedule": learning_rate,
        "ex06.scaler": optim.loss_scale_update,
    }
    for name, function in functions.items():
        assert engine.judge(name, function).passed, engine.judge(name, function)
    # the reference decays everything, which this exercise does not
    assert engine.judge("ex02.decay", optim.decay_groups).outcome == engine.WRONG


def test_counts_of_the_checks_are_the_library_s():
    v1, v15 = (network.resnet(50, version=name).macs(224) for name in ("v1", "v1.5"))
    assert ex02.V1_MACS == v1
    assert ex02.extra_percent() == pytest.approx(100 * (v15 - v1) / v1)
    assert [ex03.counted(n) for n in (2, 8, 64)] == [1.0, 1.75, 1.96875]
    blocks = list(network.resnet(50).blocks())
    places = [(s, i) for s, count in enumerate((3, 4, 6, 3)) for i in range(count)]
    for block, place in zip(blocks, places, strict=True):
        strides = tuple(conv.stride for conv in block.convs)
        shortcut = block.downsample.stride if block.downsample else None
        assert ex02.v15(*place) == (*strides, shortcut)


def test_usual_momentum_cannot_reach_the_target():
    ends = [ex02.valley(lr / 1000, 0.9)[-1].max() for lr in range(1, 39)]
    assert min(ends) > ex02.TARGET


def test_hurried_script_has_the_lines_that_the_check_means():
    compile(ex04.script().read_text(encoding="utf-8"), "script", "exec")
    assert {ex04.line_of(text) for text in ex04.MISTAKES} == RIGHT_LINES
    assert RIGHT_LINES.isdisjoint(ex04.line_of(text) for text in ex04.RIGHT)


# --- the four outcomes ----------------------------------------------------------------------------


def test_error_shows_the_learner_s_own_line_only():
    source = (
        "def shard(order, rank, size, batch):\n    steps = len(order)\n    return order[nowhere]\n"
    )
    result = engine.judge("ex03.shard", answered("ex03.shard", source))
    assert result.outcome == engine.ERROR
    first, then = result.lines
    assert first == "✗ ex03.shard stopped with NameError: name 'nowhere' is not defined"
    assert then.startswith("  In shard, line 3: `return order[nowhere]`.")


def test_division_by_something_else_than_the_warm_up_is_shown_with_its_line():
    source = "def schedule(progress, batch, recipe):\n    return recipe.lr / (256 // batch)\n"
    result = engine.judge("ex02.schedule", answered("ex02.schedule", source))
    assert result.outcome == engine.ERROR and "In schedule, line 2" in result.then, result.lines


@pytest.mark.parametrize("line", ["pass", "try: batch += 1\n        except Exception: pass"])
def test_endless_loop_stops_with_its_line(line, monkeypatch):
    monkeypatch.setattr(compare, "LIMIT_S", 0.3)
    source = f"def schedule(progress, batch, recipe):\n    while True:\n        {line}\n"
    result = engine.judge("ex02.schedule", answered("ex02.schedule", source))
    assert result.outcome == engine.ERROR and "0.3 s" in result.said, result.lines
    assert result.then.startswith("In schedule, line "), result.lines
    assert engine.judge("ex02.schedule", learning_rate).passed


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_endless_loop_of_ranks_stops_with_its_line():
    source = "def metric_sums(sums):\n    while True:\n        pass\n"
    result = engine.judge("ex03.sums", answered("ex03.sums", source))
    assert result.outcome == engine.ERROR and "still running" in result.said, result.lines
    assert result.then.startswith("In metric_sums: "), result.lines


def test_answer_that_cannot_be_used_is_wrong_and_no_traceback():
    result = engine.judge("ex03.shard", lambda order: order)
    assert result.outcome == engine.WRONG and "can do nothing with this answer" in result.said
    assert engine.judge("ex02.work", "much").outcome == engine.WRONG
    assert engine.judge("ex02.tune", 0.1).outcome == engine.WRONG


def test_leaving_python_is_an_error_like_any_other():
    source = "def shard(order, rank, size, batch):\n    raise SystemExit(3)\n"
    result = engine.judge("ex03.shard", answered("ex03.shard", source))
    assert result.outcome == engine.ERROR and "SystemExit: 3" in result.said


def test_dots_left_in_a_stub_do_not_fail_a_right_answer():
    source = (
        "def percentile(seconds, p):\n    spare = ...\n"
        "    return sorted(seconds)[max(0, -(-len(seconds) * p // 100) - 1)]\n"
    )
    assert engine.judge("ex07.percentile", answered("ex07.percentile", source)).passed
    half = "def percentile(seconds, p):\n    place = ...\n    return sorted(seconds)[place]\n"
    result = engine.judge("ex07.percentile", answered("ex07.percentile", half))
    assert result.outcome == engine.NOT_ATTEMPTED and "in line 2" in result.said
    empty = "def percentile(seconds, p):\n    pass\n"
    said = engine.judge("ex07.percentile", answered("ex07.percentile", empty)).said
    assert "is still empty" in said


# --- what a learner calls -------------------------------------------------------------------------


def test_check_says_two_lines_and_writes_a_record(home, capsys):
    with pytest.raises(ask.CheckFailed) as failed:
        ask.check("ex02.work", 8)
    assert failed.value._render_traceback_() == list(failed.value.result.lines)
    assert len(str(failed.value).splitlines()) == 2
    ask.check("ex02.work", 6)
    assert capsys.readouterr().out.startswith("✓ ex02.work passed: you said 6 %")
    record = json.loads((home / "ex02.json").read_text())["ex02.work"]
    assert record["outcome"] == "passed" and record["tries"] == 2 and record["passed_at"]
    with pytest.raises(ask.CheckFailed):
        ask.check("ex02.work", 0)
    again = records.load("ex02")["ex02.work"]
    assert again["outcome"] == "wrong" and again["passed_at"] == record["passed_at"]


def test_recording_goes_on(home, capsys, monkeypatch):
    monkeypatch.setenv("RN50_CHECK", "record")
    ask.check("ex02.work", ...)
    assert "○ ex02.work is not attempted yet" in capsys.readouterr().out
    assert records.load("ex02")["ex02.work"]["tries"] == 0


def test_hints_come_one_by_one_and_the_solution_last(home, capsys):
    said = []
    for _ in range(4):
        ask.hint("ex03.start")
        said.append(capsys.readouterr().out)
    hints = table.find("ex03.start").hints
    assert all(hint in text for hint, text in zip(hints, said, strict=False))
    assert said[3] == said[2] and 'workshop.solution("ex03.start")' in said[2]
    ask.solution("ex03.start")
    assert "dist.broadcast(tensor, src=0)" in capsys.readouterr().out
    ask.solution("ex03.shard")
    refused = capsys.readouterr().out
    assert "0 of 3 hints" in refused and "reshape" not in refused
    ask.solution("ex03.shard", now=True)
    assert "reshape" in capsys.readouterr().out
    assert records.load("ex03")["ex03.shard"]["solution"] is True


def test_unknown_exercise_is_told_with_the_nearest(home):
    with pytest.raises(ask.UserError, match="did you mean ex03.start"):
        ask.hint("ex03.shart")
    with pytest.raises(ask.UserError, match="levels are 1, 2 and 3"):
        ask.hint("ex03.shard", 4)


def test_damaged_record_file_is_no_obstacle(home):
    home.mkdir()
    (home / "ex02.json").write_text("{")
    with pytest.raises(ask.CheckFailed):
        ask.check("ex02.work", 0)
    assert records.load("ex02")["ex02.work"]["tries"] == 1


def test_folder_that_cannot_be_written_costs_no_result(home, capsys):
    home.write_text("a file, where the folder should be")
    ask.check("ex02.work", 6)
    ask.hint("ex02.work")
    ask.hint("ex02.work")
    printed = capsys.readouterr().out
    assert "✓ ex02.work passed" in printed and "Hint 2 of 3" in printed
    assert printed.count("Your progress is not kept") == 1
    home.unlink()
    ask.check("ex02.work", 6)
    assert records.load("ex02")["ex02.work"]["hints"] == 2 and (home / "ex02.json").exists()


def test_status_counts_what_was_passed(rn50, home, tmp_path):
    def status(*flags: str) -> str:
        return rn50(tmp_path, "workshop", "status", *flags)[1]

    assert f"0 of {len(NAMES)} exercises passed" in status()
    ask.check("ex01.frame", encoding.frame)
    ask.hint("ex03.ring")
    found = json.loads(status("--json"))
    assert found["passed"] == 1
    entries = {entry["exercise"]: entry for entry in found["exercises"]}
    assert entries["ex01.frame"]["passed"] and entries["ex01.frame"]["tries"] == 1
    assert not entries["ex03.ring"]["passed"] and entries["ex03.ring"]["hints"] == 1
    shown = status()
    assert f"1 of {len(NAMES)} exercises passed" in shown and "Next: ex01.crc" in shown


# --- the notebook itself --------------------------------------------------------------------------


@pytest.mark.slow
def test_untouched_notebook_stops_kindly(home, tmp_path):
    """Executed as it is committed, with papermill alone."""
    import papermill

    with pytest.raises(papermill.PapermillExecutionError):
        papermill.execute_notebook(
            ROOT / "exercises" / "ex01_records.ipynb", tmp_path / "stopped.ipynb",
            {"profile": "ci"}, kernel_name="python3", cwd=tmp_path, progress_bar=False,
        )  # fmt: skip
    cells = json.loads((tmp_path / "stopped.ipynb").read_text())["cells"]
    errors = [out for c in cells for out in c.get("outputs", []) if out["output_type"] == "error"]
    (trace,) = [out["traceback"] for out in errors]
    assert len(trace) == 2, trace
    assert trace[0].startswith("○ ex01.frame is not attempted yet: `frame` still holds `...`")
    assert list(records.load("ex01")) == ["ex01.frame"]
