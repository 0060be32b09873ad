"""The roofline of a training step by kind of layer: work and traffic counted, time measured.

    measured = measure(experiment, ("float32", "bfloat16"))

A layer can be no faster than its arithmetic at the machine's peak rate, nor than its reading and
writing at the memory's bandwidth (Williams et al. 2009). Work and traffic follow from the network;
the times come from PyTorch's profiler, the two precisions taking turns in one process; peak and
bandwidth are measured there too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from rn50 import launch
from rn50lib import memory
from rn50lib.config import TrainConfig
from rn50lib.resnet import Network
from workshop import session
from workshop.lessons.figures import stacked
from workshop.worker import ask, pack

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("convolution", "batch norm", "ReLU", "addition", "pooling", "last layer")
REST = "casts, update, rest"  # of the step: what belongs to no layer
KIND = {
    "conv": "convolution", "batchnorm": "batch norm", "relu": "ReLU", "add": "addition",
    "maxpool": "pooling", "avgpool": "pooling", "linear": "last layer",
}  # fmt: skip
# FLOP per element of the output, forward and backward together; of a convolution and the last layer
# they are counted. Batch norm: two sums, then scale and shift; backward two sums and a combination.
FLOPS = {"batchnorm": 14, "relu": 2, "add": 2, "maxpool": 10, "avgpool": 2}
# times that an element of the output is read or written, where every pass goes to memory: a batch
# norm reads for its sums, reads again to normalise and writes; backward it reads two arrays twice
# and writes one. A rectifier in place reads and writes; backward it reads two and writes one. The
# two gradients that meet where a block's input forks are added: one addition forward, one backward.
PASSES = {"batchnorm": 8, "relu": 5, "add": 6, "avgpool": 0, "maxpool": 4}


@dataclass(frozen=True)
class Work:
    """Of one training step: FLOP, and bytes that are read and written."""

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes

    def floor(self, peak: float, bandwidth: float) -> float:
        """Seconds that it takes at least, with `peak` in FLOP/s and `bandwidth` in bytes/s."""
        return max(self.flops / peak, self.bytes / bandwidth)


def count(net: Network, image_size: int, batch: int, dtype: str) -> dict[str, Work]:
    """Work and traffic of a training step by kind of layer, each layer by itself.

    A convolution reads its input and writes its output; backward it reads the gradient of its
    output twice, for its input's gradient and its weights', reads its input and writes that
    gradient: three times both. The weights are read twice and their gradient is written.
    """
    each = memory.BYTES[dtype]
    flops, traffic = dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0.0)
    inputs = conv_inputs(net, image_size)
    before = 3 * image_size**2  # elements of the input of the layer, for pooling
    for layer in net.layers(image_size):
        kind, out = KIND[layer.kind], batch * layer.activations
        flops[kind] += 6 * batch * layer.macs + FLOPS.get(layer.kind, 0) * out
        if layer.kind == "conv":
            traffic[kind] += 3 * each * (batch * inputs[layer.name] + out + layer.parameters)
        elif layer.kind == "linear":  # in float32
            traffic[kind] += 3 * 4 * (batch * net.features + out + layer.parameters)
        else:
            traffic[kind] += each * PASSES[layer.kind] * out
            if "pool" in layer.kind:  # its input is read, and its input's gradient written
                traffic[kind] += 2 * each * batch * before
        before = layer.activations
    return {kind: Work(flops[kind], traffic[kind]) for kind in KINDS}


def conv_inputs(net: Network, image_size: int) -> dict[str, int]:
    """Elements per image that each convolution reads, by its name."""
    size = net.stem.out_size(image_size)
    found = {net.stem.name: net.stem.in_channels * image_size**2}
    size = (size + 2 - 3) // 2 + 1  # the pooling: 3 x 3 with a stride of 2
    for block in net.blocks():
        into = size
        for conv in block.convs:
            found[conv.name] = conv.in_channels * size**2
            size = conv.out_size(size)
        if block.downsample:
            found[block.downsample.name] = block.downsample.in_channels * into**2
    return found


@dataclass(frozen=True)
class LayerTimes:
    """A step by precision: seconds by kind of layer (a value per round), seconds of the whole step
    without the profiler, and what the machine can do."""

    parts: dict[str, dict[str, list[float]]]
    steps: dict[str, list[float]]
    peaks: dict[str, float]  # FLOP per second of a large product of matrices
    bandwidth: float  # bytes per second of a large copy, read and written
    experiment: TrainConfig

    @property
    def dtypes(self) -> list[str]:
        return list(self.steps)

    def seconds(self, dtype: str, kind: str) -> float:
        """Of a kind of layer, the median of the rounds."""
        return median(self.parts[dtype][kind])

    def work(self, dtype: str) -> dict[str, Work]:
        """What the step has to do, by kind of layer."""
        done = self.experiment
        return count(done.to_network(), done.image_shape, done.batch_size, dtype)

    def floor(self, dtype: str, kind: str) -> float:
        """Seconds that a kind of layer takes at least on this machine."""
        return self.work(dtype)[kind].floor(self.peaks[dtype], self.bandwidth)

    def only(self, kind: str) -> float:
        """The speed-up of the step if this kind alone took the second precision's time."""
        slow, fast = self.dtypes
        whole = sum(self.seconds(slow, name) for name in (*KINDS, REST))
        return whole / (whole - self.seconds(slow, kind) + self.seconds(fast, kind))


def measure(given: Mapping[str, Any], dtypes: Sequence[str], rounds: int = 3) -> LayerTimes:
    """Measure both precisions on random images, in turns; the notebook's profile holds.

    Raises UserError when the process that measures fails.
    """
    config = session.resolve(given, loader="synthetic", no_metrics=True, dtype=dtypes[0], n=1)
    found = ask(
        "workshop.lessons.precision.worker:layers", launch.rank_environment(config),
        "training steps, layer by layer", config=pack(config), dtypes=list(dtypes), rounds=rounds,
    )  # fmt: skip
    return LayerTimes(**found, experiment=config)


def rows(found: LayerTimes, dtype: str) -> list[list[Any]]:
    """(kind, GFLOP, GB, FLOP per byte, ms at least, ms measured, per cent of the step)."""
    work = found.work(dtype)
    whole = sum(found.seconds(dtype, kind) for kind in (*KINDS, REST))
    table: list[list[Any]] = []
    for kind in (*KINDS, REST):
        seconds, item = found.seconds(dtype, kind), work.get(kind)
        counted: list[float | None] = [None] * 4
        if item:
            counted = [item.flops / 1e9, item.bytes / 1e9, item.intensity,
                       1000 * found.floor(dtype, kind)]  # fmt: skip
        table.append([kind, *counted, 1000 * seconds, 100 * seconds / whole])
    return table


def limits(found: LayerTimes) -> str:
    """What the machine can do, and which kinds of layers each limit holds up, in words."""
    slow, fast = found.dtypes
    knee = found.peaks[fast] / found.bandwidth
    work = found.work(fast)
    left = [kind for kind in KINDS if work[kind].intensity < knee]
    right = [kind for kind in KINDS if kind not in left]
    if left and right:
        bounded = (
            f"In {fast}, memory bounds what has fewer than {knee:.0f} FLOP per byte:"
            f" {', '.join(left)}.\nArithmetic bounds {', '.join(right)}."
        )
    else:
        bounded = f"In {fast}, {'memory' if left else 'arithmetic'} bounds every kind of layer."
    return (
        f"A large product of matrices reaches {found.peaks[slow] / 1e9:,.0f} GFLOP/s in {slow} and"
        f" {found.peaks[fast] / 1e9:,.0f} in {fast}, {found.peaks[fast] / found.peaks[slow]:.2g}"
        f" times as many.\nA copy moves {found.bandwidth / 1e9:.1f} GB/s in either.\n{bounded}"
    )


def comparison(found: LayerTimes) -> tuple[Figure, str]:
    """The step of both precisions as bars of its parts, and what has become faster in words."""
    slow, fast = found.dtypes
    milliseconds = {
        dtype: {kind: 1000 * found.seconds(dtype, kind) for kind in (*KINDS, REST)}
        for dtype in (slow, fast)
    }
    whole = {dtype: sum(parts.values()) for dtype, parts in milliseconds.items()}
    share = milliseconds[slow]["convolution"] / whole[slow]
    gained = milliseconds[slow]["convolution"] - milliseconds[fast]["convolution"]
    text = (
        f"Convolutions are {100 * share:.0f} % of the step in {slow}; in {fast} they take"
        f" {difference(gained)}, and the whole step {difference(whole[slow] - whole[fast])}."
    )
    if share < 1:
        text += f" Were they free, the step would be {1 / (1 - share):.1f} times as fast."
    return stacked(milliseconds, "milliseconds", "A training step, by kind of layer"), text


def difference(gained: float) -> str:
    """Milliseconds that were gained, in words."""
    return f"{abs(gained):,.0f} ms {'less' if gained >= 0 else 'more'}"


# --- a device that is not here --------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """What a maker says that a device can do: FLOP per second and bytes per second."""

    name: str
    peaks: dict[str, float]
    bandwidth: float


def bound(
    device: Device, net: Network, image_size: int, batch: int, dtype: str
) -> dict[str, float]:
    """Seconds per image, by kind of layer, that a device needs at least: the roofline's floor."""
    work = count(net, image_size, batch, dtype)
    peak = device.peaks[dtype]
    return {kind: item.floor(peak, device.bandwidth) / batch for kind, item in work.items()}


def bounds(device: Device, net: Network, size: int, batch: int) -> tuple[Figure, str]:
    """The least time per image of a device in its two precisions, by kind of layer."""
    slow, fast = device.peaks
    found = {dtype: bound(device, net, size, batch, dtype) for dtype in (slow, fast)}
    bars = {dtype: {k: 1000 * s for k, s in parts.items()} for dtype, parts in found.items()}
    title = f"{device.name}: the least time for {net.name} at {size} pixels"
    total = {dtype: sum(parts.values()) for dtype, parts in found.items()}
    return stacked(bars, "milliseconds an image, at least", title), (
        f"At least {1000 * total[slow]:.2f} ms an image in {slow}, which is {1 / total[slow]:,.0f}"
        f" images per second at most, and {1000 * total[fast]:.2f} ms in {fast},"
        f" {1 / total[fast]:,.0f} at most: {total[slow] / total[fast]:.1f} times as fast, where the"
        f" arithmetic alone would be {device.peaks[fast] / device.peaks[slow]:.1f} times."
    )


def channel_rows(net: Network) -> list[list[Any]]:
    """(what, channels in, channels out) of every layer of a network whose numbers are not all
    multiples of 8."""
    layers = [(conv.name, conv.in_channels, conv.out_channels) for conv in net.convolutions()]
    layers.append(("fc", net.features, net.num_classes))
    return [list(row) for row in layers if row[1] % 8 or row[2] % 8]
