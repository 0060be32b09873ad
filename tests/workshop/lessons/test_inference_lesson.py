"""What notebook 07 computes: a queue played through, traffic, percentiles; and the pictures that it
draws."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from rn50lib import resnet as network
from rn50lib.errors import UserError
from tests.support import Photos
from workshop import programs
from workshop.errors import RunFailed
from workshop.lessons import figures as shared
from workshop.lessons.inference import figures, forms, fresh, queueing, serving, traffic
from workshop.lessons.inference.queueing import Service

# --- the queue ------------------------------------------------------------------------------------


def test_a_queue_by_hand() -> None:
    """Two seconds for one, three for two. The second request meets a busy server; so do the third
    and fourth, which are answered together where that is allowed."""
    service = Service((1, 2), (2.0, 3.0))
    arrived = np.array([0.0, 1.0, 3.0, 3.5, 20.0])
    alone = queueing.play(arrived, service, limit=1)
    assert alone.answered.tolist() == [2, 4, 6, 8, 22]
    assert alone.latencies.tolist() == [2, 3, 3, 4.5, 2]
    assert alone.batches == (1, 1, 1, 1, 1)
    assert alone.utilisation == pytest.approx(10 / 22)
    two = queueing.play(arrived, service, limit=2)
    assert two.answered.tolist() == [2, 4, 7, 7, 22]
    assert two.batches == (1, 1, 2, 1) and two.mean_batch == 5 / 4
    assert two.busy == 2 + 2 + 3 + 2


def test_an_unfull_batch_is_held_back_until_it_is_full_or_its_time_is_up() -> None:
    service = Service((1, 2), (2.0, 3.0))
    arrived = np.array([0.0, 1.0, 10.0])
    held = queueing.play(arrived, service, limit=2, wait=1.5)
    assert held.answered.tolist() == [4, 4, 13.5]  # full at 1; the last one waits 1.5 for nobody
    assert held.batches == (2, 1)
    in_vain = queueing.play(arrived, service, limit=2, wait=0.5)
    assert in_vain.answered.tolist() == [2.5, 4.5, 12.5]  # at 2.5 the second has waited long enough


def test_random_arrivals_wait_as_the_textbook_says() -> None:
    """One server, constant service, Poisson arrivals (M/D/1): a mean wait of s u / (2 (1 - u))."""
    for load in (0.5, 0.8):
        arrived = queueing.poisson(load / 0.01, 60_000, seed=1)
        served = queueing.play(arrived, Service((1,), (0.01,)))
        waited = served.latencies.mean() - 0.01
        assert waited == pytest.approx(0.01 * load / (2 * (1 - load)), rel=0.06)
        assert served.utilisation == pytest.approx(load, rel=0.02)


def test_capacity_is_that_of_the_best_batch() -> None:
    service = Service((1, 4), (0.1, 0.2))
    assert service.capacity(1) == pytest.approx(10) and service.capacity(4) == pytest.approx(20)
    assert service(2) == pytest.approx(0.1 + 0.1 / 3)
    falling = Service((1, 2), (0.1, 0.4))  # a server that larger batches make slower
    assert falling.capacity(2) == pytest.approx(10)


def test_latencies_in_words() -> None:
    seconds = np.array([0.010] * 97 + [0.343] * 3)
    _, told = figures.latencies(seconds)
    assert told == (
        "The mean is 20.0 ms; 50 % within 10.0 ms, 90 % within 10.0 ms, 95 % within 10.0 ms,"
        " 99 % within 343.0 ms, 100 % within 343.0 ms."
    )


# --- sums -----------------------------------------------------------------------------------------


def test_folding_saves_traffic_and_no_multiplication() -> None:
    net = network.resnet(50)
    apart, fused = (traffic.total(net, 224, 32, "float32", f) for f in (False, True))
    assert apart.flops == fused.flops == 2 * 32 * net.macs(224)
    relus = sum(x.activations for x in net.layers(224) if x.kind == "relu")
    norms = sum(x.activations for x in net.layers(224) if x.kind == "batchnorm")
    adds = sum(x.activations for x in net.layers(224) if x.kind == "add")
    assert apart.bytes - fused.bytes == 4 * 32 * (2 * relus + 2 * norms + 2 * adds)
    one, many = (traffic.total(net, 224, b, "float32") for b in (1, 208))
    weights = 4 * sum(math.prod(s) for n, s in net.arrays().items() if n.endswith("weight"))
    assert one.bytes - many.bytes / 208 == pytest.approx(weights * (1 - 1 / 208), rel=1e-3)


def test_answers_are_grouped_by_their_probability() -> None:
    probabilities = np.array([[0.95, 0.05], [0.92, 0.08], [0.4, 0.6], [0.55, 0.45]])
    rows = figures.groups(probabilities, np.array([0, 1, 1, 0]))
    assert [row[:2] for row in rows] == [("50 to 70 %", 2), ("90 to 100 %", 2)]
    assert rows[0][2:] == pytest.approx((57.5, 100)) and rows[1][2:] == pytest.approx((93.5, 50))
    _, told = figures.trust(probabilities, np.array([0, 1, 1, 0]))
    assert told.startswith("Of the 2 answers with a probability of 90 to 100 %, 50 % are right")


def test_what_forms_say_is_compared() -> None:
    a = np.array([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]], np.float32)
    b = a + np.array([[0, 0.25], [2, 0], [0, 0]], np.float32)
    said = forms.Answers(np.zeros((3, 1, 1, 3), np.uint8), np.array([0, 1, 1]), {"a": a, "b": b})
    assert said.max_difference("a", "b") == 2.0
    assert said.same("a", "b") == pytest.approx(200 / 3)
    assert (said.top1("a"), said.top1("b")) == pytest.approx((200 / 3, 100 / 3))
    np.testing.assert_allclose(said.probabilities("a").sum(axis=1), 1, rtol=1e-6)


# --- pictures, programs, processes ----------------------------------------------------------------


def test_new_pictures_are_no_pictures_of_the_data(tmp_path: Path) -> None:
    from data_prep.signs.assets import make_assets
    from data_prep.signs.classes import IDS
    from data_prep.signs.compose import draw_jpeg

    files = fresh.draw(tmp_path / "new", tuple(IDS), count=2)
    assert [file.stem for file in files] == [IDS[0], IDS[6], "road", "noise"]
    assert {Image.open(file).format for file in files} == {"JPEG"}
    in_data = draw_jpeg(make_assets(0), 0, "val", 0)
    assert hashlib.md5(in_data).digest() != hashlib.md5(files[0].read_bytes()).digest()
    probabilities = np.full((4, 12), 0.01)
    probabilities[:, 0] = 0.89
    opened = [np.asarray(Image.open(file)) for file in files]
    _, told = shared.answers(opened, [file.stem for file in files], probabilities, IDS)
    assert told.startswith(f"{IDS[0]}: {IDS[0]} with 89 %; {IDS[6]}: {IDS[0]} with 89 %")


def test_a_program_of_one_s_own_is_run_and_its_failure_told(tmp_path: Path) -> None:
    (tmp_path / "works.py").write_text("open('out', 'w').write('done')")
    programs.run(["-I", "works.py"], "python -I works.py", tmp_path)
    assert (tmp_path / "out").read_text() == "done"
    with pytest.raises(RunFailed, match="^python ended with exit status 1 where 0") as failed:
        programs.run(["-c", "raise SystemExit('no such thing')"], "python -c …", tmp_path)
    assert "no such thing" in failed.value.log


def test_a_program_that_says_nothing_is_seen_to_work(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(0.5); print('awake')")
    monkeypatch.setattr(programs, "QUIET_S", 0.1)
    shown: list[str] = []
    slot = SimpleNamespace(html=lambda html, text: shown.append(text))
    monkeypatch.setattr(programs.output, "Slot", lambda: slot)
    programs.program("slow", folder=tmp_path)
    assert any(text.endswith(" s)") for text in shown)
    assert shown[-1] == "$ python -m slow\nawake"


SAYS = """
import sys
for line in '''%s'''.splitlines():
    print(line, file=sys.stderr)
"""
TENSORFLOW = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795561488.658418   25703 port.cc:153] oneDNN custom operations are on.
2026-11-24 22:00:00.1: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.
WARNING:tensorflow:From /a/v2_compat.py:98: disable_resource_variables (from x) is deprecated.
Instructions for updating:
non-resource variables are not supported in the long term
INFO:tensorflow:loss = 1.356328, step = 1
W0000 00:00:1795561488.658418   25703 gpu_device.cc:1] Cannot dlopen some GPU libraries.
E0000 00:00:1795561488.658418   25703 a.cc:2] a real error
WARNING:tensorflow:Your input ran out of data
done"""


def test_tensorflow_s_start_up_lines_are_left_out_and_its_warnings_kept(tmp_path: Path) -> None:
    (tmp_path / "says.py").write_text(SAYS % TENSORFLOW)
    assert programs.run_script(tmp_path / "says.py") == TENSORFLOW.splitlines()[6:]


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_forms_answer_alike_and_requests_are_answered(
    trained: Path, photos: Photos, tmp_path: Path
) -> None:
    said = forms.answers(trained / "m", 2, tmp_path / "answers.npz", "bfloat16")
    assert len(said.labels) == len(list((photos.root / "val").rglob("*.jpg")))
    reported = json.loads((trained / "report.json").read_text())["metrics"]["val.top1"][-1]
    assert said.top1(forms.FOLDED) == pytest.approx(reported)
    largest = np.abs(said.logits[forms.FOLDED]).max()
    assert said.max_difference(forms.TRAINING, forms.FOLDED) < 1e-4 * largest
    found = serving.measure(trained / "m", 2, 20, ((0.5, 1), (0.5, 4)), seconds=0.2)
    assert len(found.requests) == 20 and (found.decode > 0).all() and (found.answer > 0).all()
    for load in found.loads:
        assert (load.served.latencies > 0).all() and sum(load.served.batches) >= 8
        assert max(load.served.batches) <= load.limit
        assert 0 < load.served.utilisation <= 1
    rows = serving.load_rows(found.loads, found.service)
    assert [row[1] for row in rows] == [1, 4]


def test_a_checkpoint_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="model-symbol.json"):
        serving.measure(tmp_path / "model", 1, 10, ((0.5, 1),), 0.1)
