"""How GPUs are joined: matrices as different drivers print them, and what is made of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rn50lib.errors import UserError
from tests.launch import fake_gpus
from workshop.lessons.horovod import topology

# As printed by drivers of 2018, 2023 and 2024 (for a terminal, underlined).
K80S = """\
        GPU0    GPU1    GPU2    GPU3    mlx4_0  CPU Affinity
GPU0     X      PIX     PHB     PHB     PHB     0-11
GPU1    PIX      X      PHB     PHB     PHB     0-11
GPU2    PHB     PHB      X      PIX     PHB     0-11
GPU3    PHB     PHB     PIX      X      PHB     0-11
mlx4_0  PHB     PHB     PHB     PHB      X

Legend:

  X   = Self
  SOC = Path traverses a socket-level link (e.g. QPI)
"""
FOUR_A100S = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV4\tNV4\tNV4\tPXB\tSYS\t0-31\t0\t\tN/A\n"
    "GPU1\tNV4\t X \tNV4\tNV4\tPXB\tSYS\t0-31\t0\t\tN/A\n"
    "GPU2\tNV4\tNV4\t X \tNV4\tSYS\tPXB\t32-63\t1\t\tN/A\n"
    "GPU3\tNV4\tNV4\tNV4\t X \tSYS\tPXB\t32-63\t1\t\tN/A\n"
    "NIC0\tPXB\tPXB\tSYS\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tSYS\tPXB\tPXB\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
    "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n"
)
ONE = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-15\t0\t\tN/A\n"
TWO_SOCKETS = """\
        GPU0    GPU1    CPU Affinity
GPU0     X      SOC     0-9
GPU1    SOC      X      10-19
"""


def test_the_recorded_cube_mesh() -> None:
    found = topology.recorded()
    assert len(found.gpus) == 8 and len(found.devices) == 12
    for a in found.gpus:
        assert sum(found.nvlinks(a, b) for b in found.gpus) == 6  # a V100 has six of them
        for b in found.devices:
            assert found.links[a, b] == found.links[b, a]
    around = topology.ring(found)
    assert around is not None and sorted(around) == list(found.gpus)
    assert all(found.nvlinks(a, b) for a, b in zip(around, around[1:] + around[:1], strict=True))
    assert topology.sentence(found).startswith("16 of 28 pairs")


def test_matrices_of_several_drivers() -> None:
    old = topology.parse(K80S, "x")
    assert old.gpus == ("GPU0", "GPU1", "GPU2", "GPU3") and old.devices[4:] == ("mlx4_0",)
    assert old.links["GPU0", "GPU1"] == "PIX" and old.links["mlx4_0", "GPU3"] == "PHB"
    assert "No two of the 4 GPUs are joined by NVLink" in topology.sentence(old)
    new = topology.parse(FOUR_A100S, "x")
    assert new.gpus == old.gpus and new.devices[4:] == ("NIC0", "NIC1")
    assert new.nvlinks("GPU1", "GPU3") == 4 and new.links["NIC1", "GPU2"] == "PXB"
    far = topology.parse(TWO_SOCKETS, "x")
    assert far.links["GPU0", "GPU1"] == "SYS" and "between their sockets" in topology.sentence(far)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no matrix"),
        ("Legend:\n  X = Self\n", "no matrix"),
        ("\n".join(FOUR_A100S.splitlines()[:3]), "row of GPU2 is missing"),
        (K80S.replace("GPU2    PHB     PHB      X ", "GPU2    PHB "), "row of GPU2 is missing"),
    ],
)
def test_what_is_no_matrix(text: str, words: str) -> None:
    with pytest.raises(UserError, match=f"a file: .*{words}"):
        topology.parse(text, "a file")


def test_this_machine_s_own_matrix(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", fake_gpus.nvidia_smi(tmp_path / "bin", topo=FOUR_A100S))
    found, remark = topology.find()
    assert not remark and found.source == "this machine, by nvidia-smi topo -m"
    assert [found.links["GPU0", other] for other in found.devices[1:]] == (
        ["NV4"] * 3 + ["PXB", "SYS"]
    )
    assert "6 of 6 pairs" in topology.sentence(found)


@pytest.mark.parametrize(
    ("topo", "fails", "why"),
    [
        (ONE, "", "has one GPU"),
        ("", "", "no matrix"),
        ("", "Driver/library version mismatch", "Driver/library version mismatch"),
        (None, "", "no NVIDIA driver"),
    ],
)
def test_a_recorded_matrix_is_labelled(tmp_path, monkeypatch, topo, fails, why) -> None:
    if topo is None:
        monkeypatch.setenv("PATH", os.fspath(tmp_path))
    else:
        path = fake_gpus.nvidia_smi(tmp_path / "bin", fails=fails, topo=topo)
        monkeypatch.setenv("PATH", path)
    found, remark = topology.find()
    assert why in remark
    assert "recorded on a DGX-1" in found.source and "not this machine" in found.source


@pytest.mark.parametrize("text", [K80S, FOUR_A100S, ONE, TWO_SOCKETS, topology.RECORDED])
def test_every_machine_can_be_drawn(text: str) -> None:
    found = topology.parse(text, "a machine")
    drawing, sentence = topology.figure(found)
    (axes,) = drawing.axes
    cells = sorted(item.get_text() for item in axes.texts)
    assert cells == sorted(kind for kind in found.links.values() if kind != "X")
    assert sentence == topology.sentence(found) and axes.get_xlabel() == "a machine"
    drawing.savefig(os.devnull, format="png")
