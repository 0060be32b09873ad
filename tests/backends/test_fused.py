"""Fused batch norm, addition and ReLU: in Triton's interpreter, and compiled without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import clean_environment

pytestmark = [pytest.mark.slow, pytest.mark.needs("torch", "triton")]

# Each program is its own process: Triton reads TRITON_INTERPRET when it is imported. Differences
# are shares of the largest value.
OPERATION = """
import json
import torch
from torch import nn
from rn50lib.torch import fused
from rn50lib.torch.fused import norm_activation

fused.PROGRAMS = 4  # so that a program sums several tiles, as it does for large images

def off(a, b):
    return float((a.detach().float() - b.detach()).abs().max() / b.detach().abs().max())

torch.manual_seed(0)
CASES = [  # N, C, H, W; with a shortcut; with a ReLU; both outputs used
    (2, 16, 9, 7, True, True, True),  # 126 pixels: two tiles, the second one incomplete
    (3, 72, 5, 5, False, True, False),  # channels beyond one tile
    (2, 64, 8, 8, False, False, False),
    (4, 130, 3, 3, True, True, False),
    (1, 8, 40, 20, False, True, False),  # 13 tiles in 4 parts
]
found = []
for name in ("float32", "bfloat16", "float16"):
    for n, c, h, w, adds, relu, two in CASES if name != "bfloat16" else CASES[:2]:
        dtype, layout = getattr(torch, name), torch.channels_last
        x = (3 * torch.randn(n, c, h, w) + 20).to(dtype, memory_format=layout).requires_grad_()
        s = torch.randn(n, c, h, w).to(dtype, memory_format=layout).requires_grad_()
        ours, theirs = nn.BatchNorm2d(c), nn.BatchNorm2d(c)
        with torch.no_grad():
            ours.weight.uniform_(-1, 1)
            ours.bias.uniform_(-1, 1)
        theirs.load_state_dict(ours.state_dict())
        x_, s_ = (t.detach().float().requires_grad_() for t in (x, s))
        y, again = norm_activation(x, ours, s if adds else None, relu)
        y_ = theirs(x_) + s_ if adds else theirs(x_)
        y_ = y_.relu() if relu else y_
        gradients = [torch.randn_like(y), torch.randn_like(y)][: 1 + two]
        torch.autograd.backward([y, again][: 1 + two], gradients)
        y_.backward(sum(g.float() for g in gradients))
        differences = {
            "y": off(y, y_), "again": off(again, y_), "dx": off(x.grad, x_.grad),
            "weight": off(ours.weight.grad, theirs.weight.grad),
            "bias": off(ours.bias.grad, theirs.bias.grad),
            "mean": off(ours.running_mean, theirs.running_mean),
            "var": off(ours.running_var, theirs.running_var),
        }
        if adds:
            differences["shortcut"] = off(s.grad, s_.grad)
        found.append([name, f"{n}x{c}x{h}x{w}", differences])
print(json.dumps(found))
"""

NETWORK = """
import copy, json
import torch
from torch.nn import functional as F
from rn50lib import resnet
from rn50lib.torch import fused as kernels
from rn50lib.torch.fused import FusedResNet
from rn50lib.torch.model import ResNet, load_arrays

found = {}
kernels.ROWS = 2048  # the interpreter takes its time for each tile, whatever the size
small = {"num_classes": 5, "stages": (1, 1), "width": 8, "version": "v1.5"}
for block in ("basic", "bottleneck"):
    net = resnet.Network(name=block, block=block, **small)
    plain = ResNet(net)
    load_arrays(plain, net.initial_arrays(1))
    plain.to(memory_format=torch.channels_last)
    shared = copy.deepcopy(plain)
    fused = FusedResNet(shared)
    torch.manual_seed(0)
    images, labels = torch.randn(4, 3, 40, 40), torch.tensor([0, 3, 1, 4])
    for model in (plain, fused):
        model.train()
        for _ in range(2):  # the second sees the first one's statistics and gradients
            F.cross_entropy(model(images), labels).backward()
    pairs = zip(plain.parameters(), shared.parameters(), strict=True)
    worst = max(float((p.grad - q.grad).norm() / p.grad.norm()) for p, q in pairs)
    statistics = max(float((p - q).abs().max()) for p, q in zip(plain.buffers(), shared.buffers())
                     if p.is_floating_point())
    fused.eval(), plain.eval()
    with torch.no_grad():
        logits = float((fused(images) - plain(images)).abs().max())
    found[block] = [worst, statistics, logits]
print(json.dumps(found))
"""


# Each launch compiles for an H100, with its types, sizes and constants, and nothing runs.
COMPILED = """
import json, re, subprocess, sys
from pathlib import Path
import torch
import triton.backends.nvidia
from torch import nn
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit
from rn50lib.torch.fused import norm_activation

class Hopper:
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))

kernels = {}

def compile_only(kernel, grid):
    def launch(*args, **how):
        made = kernel.run(*args, grid=grid, warmup=True, **how)
        kernels[made.hash] = made
    return launch

driver.set_active(Hopper())
jit.KernelInterface.__getitem__ = compile_only
for name in ("float16", "bfloat16", "float32"):
    for adds, relu, two in ((1, 1, 1), (1, 1, 0), (0, 1, 0), (0, 0, 0))[:: 1 + (name != "float16")]:
        for n, size in ((2, 4), (8, 56)):  # one part, several parts
            memory = torch.zeros(2, n, size, size, 64, dtype=getattr(torch, name))
            x, shortcut = memory.permute(0, 1, 4, 2, 3).requires_grad_()
            made = norm_activation(x, nn.BatchNorm2d(64), shortcut if adds else None, bool(relu))
            torch.autograd.backward(made[: 1 + two], [torch.zeros_like(x)] * (1 + two))
found = []
for kernel in kernels.values():
    file = Path(sys.argv[1])
    file.write_bytes(kernel.asm["cubin"])
    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    text = subprocess.check_output([tool, "--dump-resource-usage", file], text=True)
    used = re.search(r"REG:(\\d+) STACK:(\\d+) .*LOCAL:(\\d+)", text)
    found.append([kernel.metadata.name, *map(int, used.groups())])
print(json.dumps(found))
"""


def run(program: str, *arguments: str, **environment: str) -> list[Any]:
    """Run a program in its own process; return what it prints."""
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=600,
        env=clean_environment(**environment),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def interpreted() -> list[Any]:
    """What both programs print, from one process with Triton's interpreter."""
    return run(OPERATION + NETWORK, TRITON_INTERPRET="1")


def test_outputs_gradients_and_statistics_are_those_of_pytorch(interpreted: list[Any]) -> None:
    """In half precision every tensor is rounded once, to 2^-9 (bfloat16) or 2^-11 (float16)."""
    limits = {"float32": 1e-5, "bfloat16": 2**-6, "float16": 2**-8}
    found = interpreted[0]
    assert len(found) == 12
    for name, case, differences in found:
        for part, value in differences.items():
            limit = 1e-5 if part in ("mean", "var") else limits[name]
            assert value < limit, (name, case, part, value)


def test_a_fused_network_trains_like_the_plain_one(interpreted: list[Any]) -> None:
    for block, (gradients, statistics, logits) in interpreted[1].items():
        assert gradients < 1e-3 and statistics < 1e-5 and logits < 1e-4, block


def test_kernels_compile_for_an_h100_and_keep_their_tiles_in_registers(tmp_path: Path) -> None:
    (found,) = run(COMPILED, str(tmp_path / "kernel.cubin"), TRITON_CACHE_DIR=str(tmp_path))
    assert len({name for name, *_ in found}) == 6
    for name, registers, stack, local in found:
        assert registers <= 128 and stack == local == 0, (name, registers, stack, local)
