"""Work and traffic of each layer in a training step, and the checks of what a learner writes.

A layer can be no faster than its arithmetic at the machine's peak rate, and no faster than its
reading and writing at the memory's bandwidth (Williams et al. 2009, the roofline).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from rn50lib.resnet import Network
from workshop.checks.compare import Mistake, refuse, returned
from workshop.lessons.choice import Function, lesson_check

BYTES = {"float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}  # of an activation
KIND = {
    "conv": "convolution", "batchnorm": "batch norm", "relu": "ReLU", "add": "addition",
    "maxpool": "pooling", "avgpool": "pooling", "linear": "last layer",
}  # fmt: skip
# FLOP per element of the output, forward and backward; convolutions and the last layer are counted.
# Batch norm: two sums, then scale and shift; backward two sums and a combination.
FLOPS = {"batchnorm": 14, "relu": 2, "add": 2, "maxpool": 10, "avgpool": 2}
POOLING = {"avgpool": 0, "maxpool": 4}  # how often an element of the output is read or written


@dataclass(frozen=True)
class Work:
    """FLOP, and bytes read and written, of one layer in a training step."""

    flops: float
    bytes: float


def accesses(layer: str) -> int:
    """Return how often both passes read or write an array of the size of the layer's output."""
    forward = {"batch norm": 2 + 1, "ReLU": 1 + 1, "addition": 2 + 1}  # reads + writes
    backward = {"batch norm": 2 * 2 + 1, "ReLU": 2 + 1, "addition": 2 + 1}
    return forward[layer] + backward[layer]


def count(
    net: Network, image_size: int, batch: int, dtype: str, passes: Function = accesses
) -> list[tuple[str, Work]]:
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
            pool = POOLING.get(layer.kind)
            traffic = each * out * (passes(KIND[layer.kind]) if pool is None else pool)
            if pool is not None:  # its input is read, and its input's gradient written
                traffic += 2 * each * batch * before
        found.append((KIND[layer.kind], Work(flops, traffic)))
        before = layer.activations
    return found


def least_ms(
    net: Network, image_size: int, batch: int, dtype: str, peak: float, bandwidth: float,
    passes: Function = accesses,
) -> dict[str, float]:  # fmt: skip
    """Return the least milliseconds per training step of each kind of layer, layer by layer.

    `peak` is in FLOP/s, `bandwidth` in bytes/s.
    """
    found: dict[str, float] = defaultdict(float)
    for kind, work in count(net, image_size, batch, dtype, passes):
        found[kind] += 1000 * max(work.flops / peak, work.bytes / bandwidth)
    return found


# --- what the learner writes ----------------------------------------------------------------------


def next_scale(scale: float, good: int, finite: bool, wait: int = 2000) -> tuple[float, int]:
    """Return the loss scale of the next step, and the number of good steps in a row."""
    if not finite:
        return scale / 2, 0
    if good + 1 == wait:
        return scale * 2, 0
    return scale, good + 1


def convolution(images: int, size: int) -> tuple[int, int]:
    """Return operations and bytes of a 3 × 3 convolution from 64 to 64 channels, 56 × 56 pixels."""
    outputs, weights = images * 64 * 56 * 56, 64 * 64 * 3 * 3
    return 2 * 64 * 3 * 3 * outputs, size * (2 * outputs + weights)


def batch_norm(images: int, size: int) -> tuple[int, int]:
    """Return operations and bytes of a batch norm of 64 channels, 56 × 56 pixels."""
    outputs = images * 64 * 56 * 56
    return 5 * outputs, size * 3 * outputs


def block_end(fused: bool) -> tuple[int, int]:
    """Return how often arrays are read, and written, by a batch norm, an addition and a ReLU."""
    if fused:
        return 3, 1  # x for the sums; then x and the shortcut, and the result is written
    return 2 + 2 + 1, 1 + 1 + 1


SWAPPED = "The two numbers are swapped.", "Return (operations, bytes)."
READ_TWICE = "Mean and variance need the whole input, which is then read again to normalise it."
MISTAKES: dict[Function, list[Mistake]] = {
    next_scale: [
        (lambda scale, good, finite, wait: next_scale(scale, good, finite, wait + 1),
         "It does not double after `wait` good steps.",
         "This step counts, too: it is step good + 1."),
        (lambda scale, good, finite, wait: (next_scale(scale, good, finite, wait)[0],
                                            good + finite),
         "The count does not restart.", "Return 0 for it whenever the scale changes."),
        (lambda scale, good, finite, wait:
             next_scale(scale, good, finite or good + 1 == wait, wait),
         "It doubles the scale although this step overflowed.", "Test `finite` first."),
        *((lambda scale, good, finite, wait, fixed=fixed: next_scale(scale, good, finite, fixed),
           "It does not use `wait`.", "Double the scale after `wait` good steps, whatever it is.")
          for fixed in (5, 2000)),
    ],
    convolution: [
        (lambda images, size: (convolution(images, size)[0] // 2, convolution(images, size)[1]),
         "Half of the operations are missing.",
         "A multiplication and an addition are 2 operations."),
        (lambda images, size: (convolution(images, size)[0] - images * 64 * 56**2,
                               convolution(images, size)[1]),
         "The first product is counted without an addition.",
         "Count both operations for every weight: it is added to a sum that starts at 0."),
        (lambda images, size: (convolution(images, size)[0] // 64, convolution(images, size)[1]),
         "There are too few operations.", "Each output needs all 64 input channels."),
        (lambda images, size: (2 * 9 * images * 64 * 56**2,
                               size * (2 * images * 64 * 56**2 + 64 * 9)),
         "There are too few operations and weights.", "Each output needs all 64 input channels."),
        (lambda images, size: convolution(images, size)[::-1], *SWAPPED),
        (lambda images, size: (convolution(images, size)[0], 2 * size * images * 64 * 56 * 56),
         "There are too few bytes.", "The weights are read, too."),
        (lambda images, size: convolution(images, 1),
         "These are numbers, not bytes.", "Multiply them by `size`."),
        (lambda images, size: (convolution(images, size)[0], images * convolution(1, size)[1]),
         "The weights are counted once for each image.", "A batch reads them once."),
        (lambda images, size: (2 * 64 * 9 * images * 64 * 54**2,
                               size * (images * 64 * (56**2 + 54**2) + 64 * 64 * 9)),
         "The output is counted as 54 × 54 pixels.", "Padding keeps it at 56 × 56."),
        (lambda images, size: (convolution(images, size)[0],
                               size * (images * 64 * (56**2 + 58**2) + 64 * 64 * 9)),
         "The padding is counted as bytes.", "It is not read: the input has 56 × 56 pixels."),
    ],
    batch_norm: [
        (lambda images, size: (batch_norm(images, size)[0], batch_norm(images, size)[1] * 2 // 3),
         "There are too few bytes.", f"{READ_TWICE} Its output is written once."),
        (lambda images, size: (batch_norm(images, size)[0], batch_norm(images, size)[1] * 4 // 3),
         "PyTorch's CPU kernel does read its input three times, but two reads are enough.",
         "One pass yields mean and variance: add up x and x² together."),
        *((lambda images, size, few=few: (batch_norm(images, size)[0],
                                          batch_norm(images, size)[1] + size * few * 64),
           "The bytes of the parameters are counted.", "Leave them out.") for few in (2, 4, 6)),
        (lambda images, size: batch_norm(images, size)[::-1], *SWAPPED),
        (lambda images, size: batch_norm(images, 1),
         "These are numbers, not bytes.", "Multiply them by `size`."),
    ],
    accesses: [
        (lambda layer: {"batch norm": 3, "ReLU": 2, "addition": 3}[layer],
         "This is the forward pass alone.", "Add the reads and writes of the backward pass."),
        (lambda layer: {"batch norm": 5, "ReLU": 3}.get(layer, accesses(layer)),
         "This is the backward pass alone.", "Add the reads and writes of the forward pass."),
        *((lambda layer, few=few: {"batch norm": few}.get(layer, accesses(layer)),
           "The batch norm lacks accesses.",
           "Forward, it reads one array twice and writes one; backward, it reads two arrays twice"
           " and writes one.")
          for few in (3, 5, 6, 7)),
        (lambda layer: {"batch norm": 9}.get(layer, accesses(layer)),
         "There is one read too many.",
         "One pass yields mean and variance: add up x and x² together."),
        *((lambda layer, few=few: {"ReLU": few}.get(layer, accesses(layer)),
           "The ReLU lacks accesses.",
           "Forward, it reads and writes, also in place; backward, it reads its output and the"
           " gradient, and writes one.")
          for few in (2, 3, 4)),
        *((lambda layer, few=few: {"addition": few}.get(layer, accesses(layer)),
           "The addition lacks accesses.",
           "Each of the two sums reads two arrays and writes one.") for few in (3, 4, 5)),
    ],
    block_end: [
        (lambda fused: (2, 1) if fused else (4, 3), "One read is missing.",
         f"{READ_TWICE} The addition reads two arrays."),
        (lambda fused: (3, 1) if fused else (5, 1), "Two writes are missing.",
         "In place saves memory, not traffic: each of the three layers writes its result."),
        (lambda fused: (3, 1) if fused else (5, 2), "One write is missing.",
         "In place saves memory, not traffic: each of the three layers writes its result."),
        (lambda fused: (5, 3) if fused else (3, 1), "They are the other way round.",
         "`fused` is True for as few passes as possible."),
        (lambda fused: (3, 2) if fused else (5, 3), "Fused, one array is written.",
         "The normalised numbers are added to the shortcut at once, before anything is written."),
        (lambda fused: (3, 1) if fused else (6, 3), "There is one read too many.",
         "The batch norm reads twice, the addition two arrays, the ReLU one."),
    ],
}  # fmt: skip
CASES: dict[Function, list[tuple[Any, ...]]] = {
    next_scale: [(1.0, 3, False, 5), (1024.0, 3, True, 5), (1024.0, 4, True, 5),
                 (1.0, 0, True, 1), (2.0, 1999, True, 2000), (2.0, 0, False, 5),
                 (1024.0, 4, False, 5), (8.0, 2, True, 3)],
    convolution: [(1, 2), (3, 4)],
    batch_norm: [(1, 2), (3, 4)],
    accesses: [("batch norm",), ("ReLU",), ("addition",)],
    block_end: [(False,), (True,)],
}  # fmt: skip
# --- a step with a loss scale ---------------------------------------------------------------------

OVERFLOWS = (False, False, True, False, False, False, True, False)  # of the steps in the check
SCALE = 1024.0  # of the first one
ERRORS = (  # part of an error of GradScaler, and what it means
    ("_scale is None", "The loss is not scaled.", "Call scaler.scale(loss).backward()."),
    ("prior to update", "scaler.update() comes before scaler.step, or without it.",
     "Call scaler.step(optimizer), then scaler.update()."),
    ("for this optimizer", "There are no gradients when scaler.step is called.",
     "Clear them before the backward pass."),
    ("already been called", "scaler.update() is missing.", "Call it at the end of each step."),
)  # fmt: skip


def scaled_step(model: Any, optimizer: Any, scaler: Any, x: Any, y: Any) -> Any:
    """Train one step in float16, with a loss scale; return the loss."""
    import torch

    with torch.autocast(x.device.type, torch.float16):
        loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss


def judge_step(own: Function, rule: Function, device: Any) -> str:
    """Compare each step with one of `scaled_step`, and the scale with that of a rule."""
    import torch

    kind = torch.device(device).type
    y, dtypes, sides = torch.tensor([1], device=device), [], []
    for step in (scaled_step, own):
        net = torch.nn.Linear(2, 2, bias=False).to(device)
        torch.nn.init.eye_(net.weight)
        scaler = torch.amp.GradScaler(kind, init_scale=SCALE, growth_interval=3)
        sides.append((step, net, torch.optim.SGD(net.parameters(), lr=0.1), scaler))
    net.register_forward_hook(lambda net, given, output: dtypes.append(output.dtype))
    scale, good = SCALE, 0
    for i, overflow in enumerate(OVERFLOWS):
        x = torch.tensor([[3e4 if overflow else 1.0, 0.5]], device=device)
        losses, moved = [], []
        for step, net, sgd, scaler in sides:
            before = net.weight.detach().clone()
            try:
                losses.append(returned(step(net, sgd, scaler, x, y)))
            except (AssertionError, RuntimeError) as error:
                refuse(*((part in str(error), said, remedy) for part, said, remedy in ERRORS))
                raise
            moved.append((net.weight.detach() - before).norm().item())
        scale, good = rule(scale, good, not overflow, 3)
        times = 1.0 if overflow else moved[1] / moved[0]
        right, loss = (torch.as_tensor(each).item() for each in losses)
        in_half = [torch.tensor(each).half().item() == each for each in (right, loss)]
        now = scaler.get_scale()
        refuse(
            (dtypes[-1:] != [torch.float16], "The model's output is not in float16.",
             "Call it in a block `with torch.autocast(x.device.type, torch.float16):`."),
            (in_half == [False, True], "The loss is computed in float16.",
             "Call cross_entropy in the `with` block, too: there it computes in float32."),
            (overflow and moved[1] != 0, "The weights change although a gradient overflows.",
             "Leave optimizer.step() to scaler.step(optimizer), which skips it then."),
            (abs(SCALE * times - 1) < 0.1, "These are gradients of the loss without the scale.",
             "Call backward() on the result of scaler.scale(loss)."),
            (i and abs(times - 1) > 0.01, "Gradients of earlier steps are added.",
             "Call optimizer.zero_grad() in each step, before the backward pass."),
            (abs(times - 1) > 0.01, f"The update is {times:.3g} times as large as it should be.",
             "Call only scaler.step(optimizer): it divides by the scale, and updates once."),
            (abs(loss - right) > 0.01 * right, f"The loss is {loss:.3g} instead of {right:.3g}.",
             "Return the loss without the scale."),
            (now != scale, f"The scale is {now:g} after step {i + 1}, by your rule {scale:g}.",
             "Call scaler.update() once per step, without a number."),
        )  # fmt: skip
    return (f"`scaled_step`: in {len(OVERFLOWS)} steps, the scale follows your rule, and"
            f" {sum(OVERFLOWS)} overflows leave the weights as they were.")  # fmt: skip


check = lesson_check(
    *((finished, CASES[finished], MISTAKES[finished]) for finished in CASES),
    (scaled_step, judge_step),
)
