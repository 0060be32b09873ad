"""What notebook 03 draws and explains: the ring, data parallelism, timelines, NCCL's log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workshop.lessons.test_timeline import training_step, written
from workshop.lessons.horovod import nccl_log, ring, trace
from workshop.lessons.horovod import timeline as figures


def drawn(figure: Any) -> set[str]:
    """The figure is drawn, and its texts returned."""
    figure.savefig(os.devnull, format="png")
    return {text.get_text() for axes in figure.axes for text in axes.texts}


# --- the ring -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", range(2, 9))
def test_the_ring_adds_up(workers: int) -> None:
    rng = np.random.default_rng(workers)
    gradients = rng.integers(-99, 99, (workers, 12 * workers)).astype(np.float64)
    states = ring.all_reduce(gradients)
    assert len(states) == 2 * (workers - 1) + 1
    assert np.array_equal(states[0], gradients)
    assert np.array_equal(states[-1], np.tile(gradients.sum(axis=0), (workers, 1)))
    whole = (states[workers - 1] == gradients.sum(axis=0)).reshape(workers, workers, 12)
    assert (whole.all(axis=2).sum(axis=1) >= 1).all()  # a complete chunk each, half-way


def test_chunks_need_not_be_equal() -> None:
    gradients = np.arange(30, dtype=np.int64).reshape(3, 10) ** 2
    assert (ring.all_reduce(gradients)[-1] == gradients.sum(axis=0)).all()


def test_whose_parts_a_chunk_holds() -> None:
    held = ring.contributions(4)
    assert held.shape == (7, 4, 4, 4)
    assert [int(state.sum()) for state in held] == [16, 20, 28, 40, 52, 60, 64]
    assert (held[0] == np.eye(4, dtype=bool)[:, None, :]).all() and held[-1].all()


@pytest.mark.parametrize(("workers", "step"), [(2, 0), (2, 1), (4, 2), (4, 3), (4, 5), (8, 14)])
def test_the_ring_is_drawn(workers: int, step: int) -> None:
    figure, words = ring.after_step(workers, step)
    texts = drawn(figure)
    assert ("sum" in texts) == (step >= workers - 1)
    assert f"{2 * (workers - 1)} steps" in words
    assert (f"{step} of" in words) == (step > 0)


def test_beyond_the_last_step_is_the_end() -> None:
    assert ring.after_step(3, 99)[1] == ring.after_step(3, 4)[1]
    _, words = ring.after_step(4, 6)
    assert "= 1.5 times the gradients" in words and "153 MB" in words


# --- the timeline ---------------------------------------------------------------------------------


def test_steps_are_drawn_with_their_groups(tmp_path: Path) -> None:
    found = trace.load(written(tmp_path, *(training_step(100 * k) for k in range(5))))
    figure, words = figures.step(found[0])
    assert "  1 tensors, 200 B  " in drawn(figure)
    assert words.startswith("This step took 100 ms: 70 ms of computation and 30 ms")
    assert "2 tensors went in 2 group(s); 45 % of the exchange is hidden" in words  # 25 of 55
    assert figure.axes[0].get_xlim()[1] == pytest.approx(100)


def test_the_parts_are_in_the_table(tmp_path: Path) -> None:
    found = trace.load(written(tmp_path, *(training_step(100 * k) for k in range(5))))
    rows, columns = figures.table(found)
    assert [round(row[1]) for row in rows] == [70, 5, 10, 15, 100]
    assert [row[3] and round(row[3]) for row in rows] == [None, 5, 7, 13, 25]
    assert len(columns) == 4


# --- NCCL's log -----------------------------------------------------------------------------------

# Lines of github.com/NVIDIA/nccl issues 952, 1027 and nccl-tests issue 252, 166, by their numbers.
OTHERS = """\
[1,0]<stdout>:kolyoz2:25146:25827 [0] NCCL INFO ncclCommInitRank comm 0x559d5aa8ca00 rank 4 nranks 8 cudaDev 0 nvmlDev 0 busId 42000 commId 0x996ee6f117cb8e1e - Init COMPLETE
host:926:1151 [7] NCCL INFO Channel 03/0 : 15[7] -> 6[6] [send] via NET/Socket/3
host:921:1146 [2] NCCL INFO Channel 00/0 : 10[2] -> 9[1] via P2P/IPC/read
ubuntu:9621:9687 [2] NCCL INFO Channel 19 : 10[2] -> 11[3] via SHM/direct/direct
gpu7:4105:4372 [0] NCCL INFO Ring 00 : 1 -> 4 [receive] via NET/IB/1
host:1:1 [0] NCCL INFO NET/IB : No device found.
host:1:1 [0] NCCL INFO Using network Socket
gpu7:4105:4372 [0] include/socket.h:318 NCCL WARN Net : Socket creation failed
step 3: loss 2.1
"""  # noqa: E501


def test_the_recorded_log_is_explained_line_by_line() -> None:
    found = nccl_log.explain(nccl_log.RECORDED)
    version, network, ring, near, far, _ = (meaning for _, meaning in found)
    assert "NCCL 2.10.3, built for CUDA 11.0" in version
    assert "mlx5_6:1/RoCE" in network and "OOB" not in network
    assert "Ring 0 of 2" in ring and ": 0 7 6 5 12 11 10 9 8 15 14 13 4 3 2 1." in ring
    assert "rank 8 sends to rank 15 directly" in near
    assert "rank 13 sends to rank 4 over InfiniBand" in far and "GPUDirect RDMA" in far


def test_logs_of_other_versions() -> None:
    meanings = [meaning for _, meaning in nccl_log.explain(OTHERS)]
    assert len(meanings) == 8  # the training's own line is none of NCCL's
    words = ("Rank 4 of 8", "over TCP", "directly", "memory of the host", "by way of the host",
             "No InfiniBand", "goes over Socket", "A warning")  # fmt: skip
    for meaning, expected in zip(meanings, words, strict=True):
        assert expected in meaning
    many = "\n".join(OTHERS.splitlines()[2].replace("00/0", f"{i:02}/0") for i in range(24))
    assert len(nccl_log.explain(many)) == 1


def test_a_recorded_log_is_marked(monkeypatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(nccl_log.output, "show", lambda html, text: shown.append(text))
    for text in (None, OTHERS):
        nccl_log.table(text)
    recorded, given = shown
    assert "recorded on two machines" in recorded and "issues/133" in recorded
    assert "recorded" not in given and "Rank 4 of 8" in given
