"""Work and traffic of each layer in a training step, and the check of a learner's count.

A layer can be no faster than its arithmetic at the machine's peak rate, and no faster than its
reading and writing at the memory's bandwidth (Williams et al. 2009, the roofline).
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from rn50lib.resnet import Network
from workshop.checks.compare import Mistake, examine, wrong
from workshop.lessons.choice import choose

BYTES = {"float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}  # of an activation
KIND = {
    "conv": "convolution", "batchnorm": "batch norm", "relu": "ReLU", "add": "addition",
    "maxpool": "pooling", "avgpool": "pooling", "linear": "last layer",
}  # fmt: skip
# FLOP per element of the output, forward and backward; convolutions and the last layer are counted.
# Batch norm: two sums, then scale and shift; backward two sums and a combination.
FLOPS = {"batchnorm": 14, "relu": 2, "add": 2, "maxpool": 10, "avgpool": 2}
# How often an element of the output is read or written if every pass goes to memory. A batch norm
# reads for its sums, reads again to normalise and writes; backward it reads two arrays twice and
# writes one. A ReLU in place reads and writes; backward it reads two and writes one. An addition
# reads two and writes one; backward, the two gradients that meet at the fork are added.
PASSES = {"batchnorm": 8, "relu": 5, "add": 6, "avgpool": 0, "maxpool": 4}


@dataclass(frozen=True)
class Work:
    """FLOP, and bytes read and written, of one layer in a training step."""

    flops: float
    bytes: float


def count(net: Network, image_size: int, batch: int, dtype: str) -> list[tuple[str, Work]]:
    """Return kind, and work and traffic in a training step, of each layer, with none fused.

    A convolution reads its input and writes its output. Backward it reads the gradient of its
    output twice, reads its input, and writes the gradient of its input. The weights are read twice
    and their gradient is written.
    """
    found, each = [], BYTES[dtype]
    convs = {conv.name: conv for conv in net.convolutions()}
    before = 3 * image_size**2  # elements of the layer's input, for pooling
    for layer in net.layers(image_size):
        out = batch * layer.activations
        flops = 6 * batch * layer.macs + FLOPS.get(layer.kind, 0) * out
        if layer.kind == "conv":
            conv = convs[layer.name]
            inputs = conv.in_channels * (conv.stride * layer.size) ** 2  # of even sizes
            traffic = 3 * each * (batch * inputs + out + layer.parameters)
        elif layer.kind == "linear":  # in float32
            traffic = 3 * 4 * (batch * net.features + out + layer.parameters)
        else:
            traffic = each * PASSES[layer.kind] * out
            if "pool" in layer.kind:  # its input is read, and its input's gradient written
                traffic += 2 * each * batch * before
        found.append((KIND[layer.kind], Work(flops, traffic)))
        before = layer.activations
    return found


def least_ms(
    net: Network, image_size: int, batch: int, dtype: str, peak: float, bandwidth: float
) -> dict[str, float]:
    """Return the least milliseconds per training step of each kind of layer, layer by layer.

    `peak` is in FLOP/s, `bandwidth` in bytes/s.
    """
    found: dict[str, float] = defaultdict(float)
    for kind, work in count(net, image_size, batch, dtype):
        found[kind] += 1000 * max(work.flops / peak, work.bytes / bandwidth)
    return found


Passes = list[tuple[str, str]]  # the names of the arrays that each reads, and of those it writes
NAMES = str | tuple | list | set | frozenset


def block_end(fused: bool) -> Passes:
    """Return the passes of a batch norm, an addition and a ReLU, in place after the first."""
    if fused:
        return [("x", ""), ("sx", "y")]
    return [("x", ""), ("x", "y"), ("sy", "y"), ("y", "y")]


ONE_PASS = ("The batch norm takes one pass.", "Mean and variance are known only after all of x was"
            " read: the next pass reads it again.")  # fmt: skip
MISTAKES = [  # fused or not, the wrong passes, what is wrong, what to do
    (False, [("x", "y"), ("sy", "y"), ("y", "y")], *ONE_PASS),
    (True, [("sx", "y")], *ONE_PASS),
    (False, [("x", ""), ("x", ""), ("x", "y"), ("sy", "y"), ("y", "y")],
     "Mean and variance take two passes.", "One is enough: add up x and x² together."),
    (False, [("x", ""), ("x", "y"), ("s", "y"), ("y", "y")], "The addition reads one array.",
     "It reads the batch norm's result from memory, too."),
    (False, [("x", ""), ("x", "y"), ("sy", "y"), ("y", "")], "The ReLU writes nothing.",
     "In place saves memory, not traffic: it reads y and writes it."),
    (True, [("x", ""), ("x", "y"), ("sy", "y")], "Fused, the normalised numbers go to memory.",
     "They are added to s at once, before anything is written."),
    (True, [("x", ""), ("x", "y")], "Fused, the shortcut is missing.", "The second pass reads it."),
    (False, block_end(True), "These are the fused passes.", "One by one, each layer has its own."),
    (True, block_end(False), "These are the passes one by one.",
     "Fused, only the mean and variance need a pass before the last."),
    (False, [("x", ""), ("x", "y"), ("sx", "y"), ("y", "y")], "The addition reads x.",
     "It reads y, the batch norm's result."),
    (False, [("x", ""), ("x", "y"), ("sy", "y")], "The ReLU is missing.",
     "In place, it reads y and writes it."),
]  # fmt: skip


def check_block_end(own: Callable[[bool], Passes]) -> Callable[[bool], Passes]:
    """Return a learner's `block_end` if it is right, else the finished one."""

    @functools.wraps(own)
    def in_order(fused: bool) -> Passes:
        passes = own(fused)
        return passes and [("".join(sorted(r)), "".join(sorted(w))) for r, w in passes]

    def judge() -> str:
        if own(False) is None:
            raise NotImplementedError
        for one in own(False), own(True):
            for each in one or ():
                pair = isinstance(each, tuple | list) and len(each) == 2
                if not pair or not all(isinstance(names, NAMES) for names in each):
                    wrong(f"{each!r} is not a pair of names.", 'Write ("xs", "y"), or ("x", "").')
        mistakes: list[Mistake] = [
            (lambda case, of=of, found=found: found if case is of else [], diagnosis, remedy)
            for of, found, diagnosis, remedy in MISTAKES
        ]
        examine(in_order, [(False,), (True,)], block_end, mistakes, one_case=True)
        return "`block_end` is right."

    return choose("block_end", own, block_end, judge, show=True)
