"""Checks of ex06: memory in two precisions, conversions, a broken step, strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from workshop import output, session
from workshop.checks import compare
from workshop.checks.compare import refuse, wrong

# --- ex06.memory ----------------------------------------------------------------------------------

PARAMETERS, ACTIVATIONS, BATCHES = 25.6, 21.5, (1, 96)  # millions of numbers, the latter per image


def megabytes(
    half: tuple[int, int] = (14, 2), unit: float = 1.0, single: tuple[int, int] = (12, 4)
) -> dict[str, tuple[float, ...]]:
    """Return MB for each batch; `half` is bytes a parameter and an activation in float16."""
    return {
        name: tuple(unit * (each * PARAMETERS + activation * ACTIVATIONS * n) for n in BATCHES)
        for name, (each, activation) in {"float32": single, "float16": half}.items()
    }


MEMORY_MISTAKES: tuple[compare.Mistake, ...] = (
    (dict(zip(megabytes(), reversed(megabytes().values()), strict=True)),
     "the two formats are swapped.", "The copy of the weights belongs to float16 only."),
    (megabytes((6, 2)), "everything is halved in float16.",
     "Halve only the activations: master weights, gradients and momentum stay in float32."),
    (megabytes((12, 2)), "the float16 copy of the weights is missing.",
     "Add 2 bytes for each parameter: the step computes with a copy."),
    ({name: (one, 96 * one) for name, (one, _) in megabytes().items()},
     "96 images take 96 times as much.",
     "Count weights, gradients and momentum once, whatever the batch."),
    (megabytes((10, 2)), "in float16, the copy replaces the weights.",
     "Count both: the weights stay in float32, and each step makes a copy."),
    (megabytes(unit=1e6 / 2**20), "these are MiB, of 2^20 bytes.", "Divide by a million."),
    (megabytes(unit=1e6), "these are bytes.", "Divide by a million."),
    (megabytes(unit=1e-3), "these are GB.", "Divide by a million, not by 10^9."),
    (megabytes((14, 4)), "in float16, the activations take 4 bytes.", "They take 2."),
    (megabytes((16, 2)), "the float16 copy of the weights takes 4 bytes.", "It takes 2."),
    (megabytes(single=(14, 4)), "in float32, there is no copy of the weights.",
     "Count 3 arrays of 4 bytes for each parameter."),
    (megabytes((10, 2), single=(8, 4)), "one of weights, gradients and momentum is missing.",
     "Count 4 bytes for each of the three."),
    (megabytes((0, 2), single=(0, 4)), "these are the activations alone.",
     "Add the weights, gradients and momentum, and in float16 the copy."),
)  # fmt: skip


def memory(answer: Any) -> str:
    compare.predicted(
        answer, megabytes(), MEMORY_MISTAKES,
        "Add up weights, gradients and momentum first: they do not depend on the batch.",
    )  # fmt: skip
    return "one image takes a little more in float16 than in float32, and 96 take about half."


# --- ex06.casts -----------------------------------------------------------------------------------

Casts = Callable[[Callable[[], Any]], int]


def works() -> dict[str, tuple[Callable[[], Any], int]]:
    """Return pieces of work by name, each with its number of conversions, counted by hand."""
    import torch

    x, layer = torch.ones(4, 4), torch.nn.Linear(4, 4)

    def autocast(times: int = 1, passes: int = 1) -> None:
        for _ in range(times):
            with torch.autocast("cpu", torch.bfloat16):
                y = x
                for _ in range(passes):
                    y = layer(y)

    return {
        "three calls of x.half()": (lambda: [x.half() for _ in range(3)], 3),
        "x.float() of a float32 tensor, then x.bfloat16()": (lambda: (x.float(), x.bfloat16()), 1),
        "x.clone() and y.copy_(x)": (lambda: (x.clone(), torch.empty(4, 4).copy_(x)), 0),
        # weight, bias and the first input; the second input has 16 bits
        "two layers with the same weights in one autocast": (lambda: autocast(passes=2), 3),
        "the same layer in two autocasts": (lambda: autocast(times=2), 6),
    }


def casts(answer: Casts) -> str:
    cases = works()
    for name, (work, right) in cases.items():
        calls: list[int] = []

        def called(work: Callable[[], Any] = work, calls: list[int] = calls) -> None:
            calls.append(1)
            work()

        try:
            found = compare.call(answer, called, may_be_none=True)
        except Exception as error:
            error.__notes__ = [f"The work was {name}."]  # Python 3.10 has no add_note
            raise
        refuse(
            (
                found is None and right == 0,
                f"{name}: it returns None.",
                "If no entry has this key, return 0.",
            ),
            (found is None, compare.NO_RETURN, "End it with `return` and the result."),
        )
        got = compare.whole(found, "the result")
        refuse(
            (not calls, "`work` is never called.", "Call work() inside the `with` block."),
            (len(calls) > 1, f"`work` is called {len(calls)} times.", "Call it once."),
        )
        if got != right:
            rows = [(mistake(work), *text) for mistake, *text in CASTS_MISTAKES]
            compare.known(got, rows, lambda value, other: value == other)
            wrong(f"{name}: you count {got}.", f"There are {right} conversions.")
    return f"{len(cases)} pieces of work, with copies that convert nothing, and with autocast."


def counted(*keys: str, rows: bool = False) -> Casts:
    """Return an answer that counts these operators, or with `rows` the kinds of operators."""

    def answer(work: Callable[[], Any]) -> int:
        import torch

        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            work()
        found = [row for row in profile.key_averages() if not keys or row.key in keys]
        return len(found) if rows else sum(row.count for row in found)

    return answer


CASTS_MISTAKES: tuple[compare.Mistake, ...] = (
    (counted("aten::to"), "calls that convert nothing count as well.",
     "Count `aten::_to_copy`: `aten::to` returns the same tensor if it has that type."),
    (counted("aten::copy_"), "copies that convert nothing count as well.",
     "Count `aten::_to_copy`: `aten::copy_` also runs for clone() and contiguous()."),
    (counted("aten::to", "aten::_to_copy"), "a conversion counts twice.",
     "Count only `aten::_to_copy`, which runs inside `aten::to`."),
    (counted("aten::to", "aten::_to_copy", "aten::copy_"), "a conversion counts three times.",
     "Count only `aten::_to_copy`: it runs inside `aten::to` and calls `aten::copy_`."),
    (counted("aten::_to_copy", rows=True), "this is the number of entries.",
     "key_averages() has one entry per kind of operator: add up their `count`."),
    (lambda work: 0 * bool(work()), "you count nothing.",
     'Read key_averages() after the `with` block has ended. The key is "aten::_to_copy".'),
    (counted(), "all operators count.", 'Take only the entries whose key is "aten::_to_copy".'),
)  # fmt: skip


# --- ex06.step ------------------------------------------------------------------------------------

Step = Callable[[Any, Any, Any, Any, Any], Any]
LR, SCALE, CLIP = 0.125, 1024.0, 1.0
START = np.array((0.5, -0.25))  # the two weights of the model


class Case(NamedTuple):
    """One batch, (n, 2) and (n,), and how often it is trained on."""

    images: tuple[tuple[float, float], ...]
    targets: tuple[float, ...]
    times: int = 1
    scale: float = SCALE


# the scaled gradients are infinite; the loss is not, so it does not tell
OVERFLOW = Case(((1.5e18, 1.5e18), (1.0, 1.0)), (0.0, 0.0))
CASES = {
    # three images, so that a sum over the batch differs from a step taken twice
    "small gradient": Case(((0.5, 0.25), (-0.25, 0.5), (0.25, -0.25)), (0.5, -0.5, 0.25)),
    "overflow": OVERFLOW,
    "large gradient": Case(((4.0, 2.0), (3.0, -1.0)), (-2.0, 1.0)),
    "two steps": Case(((0.5, 0.25), (-0.25, 0.5)), (0.5, -0.5), 2, scale=2.0),
}


def step(answer: Step) -> str:
    for name, case in CASES.items():
        (weights, scale), right = moves(answer, case), expected(case)
        if name == "overflow" and not np.isfinite(weights).all():
            remedy = "scaler.step(optimizer) skips such a step; nothing else may take one."
            wrong("the gradients were infinite, and so are the weights now.", remedy)
        if not alike(weights, right):
            compare.known(weights, step_mistakes(case), alike)
            wrong(f"{name}: the weights are {text(weights)}.", f"They should be {text(right)}.")
        refuse(
            (name == "overflow" and scale == case.scale,
             "after an overflow the scale has not changed.", "Call scaler.update() at the end."),
            (case.times == 2 and scale != 2 * case.scale, "after two good steps, which are enough"
             f" to double it, the scale {case.scale:g} is {scale:g}.",
             "Call scaler.update() once per step, and change the scale nowhere else."),
        )  # fmt: skip
    return "small and large gradients, an overflow, and two steps: every step is taken once."


def moves(answer: Step, case: Case) -> tuple[list[float], float]:
    """Return the two weights and the scale after the learner's steps.

    The loss scaler is PyTorch's own; the scale doubles after two good steps.
    """
    import torch

    model = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(START))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    scaler = torch.amp.GradScaler("cpu", init_scale=case.scale, growth_interval=2)
    images, targets = torch.tensor(case.images), torch.tensor(case.targets)[:, None]
    for _ in range(case.times):
        try:
            compare.call(answer, model, images, targets, optimizer, scaler, may_be_none=True)
        except AssertionError as error:
            if "No inf checks" in str(error):
                wrong("there are no gradients when scaler.step is called.",
                      "Clear them before the backward pass, or at the very end.")  # fmt: skip
            raise
    return model.weight.detach().double().ravel().tolist(), float(scaler.get_scale())


def gradient(weights: np.ndarray, case: Case) -> np.ndarray:
    """Return the gradient of the mean over the batch of (images · weights − targets)²."""
    images, targets = np.array(case.images), np.array(case.targets)
    return np.asarray(2 * (images @ weights - targets) @ images / len(targets))


def clipped(g: np.ndarray) -> np.ndarray:
    """Return a gradient with a norm of at most CLIP."""
    return np.asarray(g * min(1.0, CLIP / np.linalg.norm(g)))


def expected(case: Case) -> np.ndarray:
    """Return the right weights; if gradients overflow they do not move."""
    weights = START
    for _ in range(0 if case is OVERFLOW else case.times):
        weights = weights - LR * clipped(gradient(weights, case))
    return weights


def alike(weights: Any, others: Any) -> bool:
    """Return True if the weights have moved by the same amount, up to rounding in float32."""
    return np.allclose(weights - START, others - START, rtol=0.01, atol=1e-6)


def step_mistakes(case: Case) -> list[compare.Mistake]:
    """Return the usual mistakes with the weights that they lead to."""
    if case is OVERFLOW:
        return []
    g = gradient(START, case)
    if case.times == 2:
        after = START - LR * clipped(g)
        left = clipped(g) / case.scale  # the first gradients, unscaled once more
        return [
            (after - LR * clipped(left + gradient(after, case)),
             "the second step uses the gradients of the first one too: they add up.",
             "Call optimizer.zero_grad() once in every step."),
        ]  # fmt: skip
    far = "First scaler.unscale_(optimizer), then clip"
    ways = (  # how far the weights go
        (2 * clipped(g), "a step moves the weights twice as far as it should: it is taken twice.",
         "Remove optimizer.step(): scaler.step(optimizer) calls it if all gradients are finite."),
        (clipped(SCALE * g) / SCALE,
         f"the weights hardly move: what is clipped is still {SCALE:g} times too large.",
         f"{far}."),
        (2 * clipped(SCALE * g) / SCALE, "the weights hardly move, and twice: gradients are clipped"
         " while they are still scaled, and two steps are taken.",
         f"{far}; and remove optimizer.step()."),
        (SCALE * g, f"a step is {SCALE:g} times too long: the scale is never undone.",
         "Call scaler.unscale_(optimizer), which divides the gradients by it."),
        (clipped(g / SCALE),
         f"a step is {SCALE:g} times too short: the gradients are divided by the scale once too"
         " often.",
         "Call scaler.scale(loss).backward(), and scaler.update() only after scaler.step: after"
         " update, step unscales again."),
        (g, "large gradients are not clipped.",
         "Call clip_grad_norm_(model.parameters(), 1.0) between unscale_ and step."),
        (0 * g, "the weights do not move.", "Clear the gradients before the backward pass or at the"
         " very end, and call scaler.step."),
    )  # fmt: skip
    return [(START - LR * way, diagnosis, remedy) for way, diagnosis, remedy in ways]


def text(weights: Any) -> str:
    return ", ".join(f"{value:.5g}" for value in weights)


def show_steps(answer: Step) -> None:
    """Show a table of the two weights after a step, and of what they should be."""
    if not session.has("torch"):
        return
    rows = []
    for name, case in CASES.items():
        weights, scale = moves(answer, case)
        rows.append([name, text(weights), text(expected(case)), f"{case.scale:g}", f"{scale:g}"])
    columns = ["batch", "weights are", "should be", "loss scale before", "and after"]
    output.table(rows, columns, f"The weights before: {text(START)}")


# --- ex06.layout ----------------------------------------------------------------------------------

Shape = tuple[int, int, int, int]
SHAPES: tuple[tuple[Shape, str, int], ...] = (
    # (n, c, h, w), the order in memory, what the channels are padded to a multiple of
    ((2, 3, 4, 5), "NCHW", 1),
    ((2, 3, 4, 5), "NHWC", 1),
    ((8, 256, 14, 14), "NHWC", 8),
    ((8, 256, 14, 28), "NCHW", 8),
    ((4, 3, 224, 224), "NHWC", 4),
    ((4, 3, 32, 64), "NCHW", 8),
    ((1, 43, 7, 5), "NHWC", 8),
)


def placed(shape: Shape, order: str, multiple: int) -> tuple[int, ...]:
    """Return the strides along n, c, h and w, from NumPy's own array."""
    channels = next(c for c in range(shape[1], shape[1] + multiple) if c % multiple == 0)
    size = dict(zip("NCHW", (shape[0], channels, *shape[2:]), strict=True))
    array = np.empty([size[axis] for axis in order], np.uint8)
    return array.transpose([order.index(axis) for axis in "NCHW"]).strides


def rounded_down(shape: Shape, order: str, multiple: int) -> tuple[int, ...]:
    """Return the strides with too few channels; NumPy has none for an array without any."""
    _, c, h, w = shape
    c = c // multiple * multiple
    return (c * h * w, h * w, w, 1) if order == "NCHW" else (h * w * c, 1, w * c, c)


LAYOUT_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda shape, order, m: tuple(placed(shape, order, m)["NCHW".index(a)] for a in order),
     "the strides are in memory order.",
     "Return them for n, c, h, w in both orders, as PyTorch does."),
    (lambda shape, order, m: placed(shape, {"NCHW": "NHWC", "NHWC": "NCHW"}[order], m),
     "the two layouts are swapped.",
     "The last letter has stride 1: its elements are adjacent."),
    (lambda shape, order, m: placed(shape, order, 1), "the channels are not padded.",
     "Round c up first: a stride over all channels includes the padded ones."),
    (lambda *case: tuple(4 * stride for stride in placed(*case)), "these are byte strides.",
     "Count elements, as PyTorch does; NumPy counts bytes."),
    (lambda shape, order, m: placed((shape[0], shape[1] + m - shape[1] % m, *shape[2:]), order, 1),
     "channels that need no padding are padded.", "Round up with -(-c // multiple) * multiple."),
    (rounded_down,
     "the channels are rounded down.", "Round up with -(-c // multiple) * multiple."),
    (lambda shape, order, m: (shape[0] * placed(shape, order, m)[0], *placed(shape, order, m)[1:]),
     "the first stride is the size of the whole batch.", "It is the size of one image."),
    (lambda shape, order, m: placed((*shape[:2], shape[3], shape[2]), order, m),
     "height and width are mixed up.", "A row has w pixels."),
    (lambda shape, order, m: placed(shape, "NCHW", m), "the order is ignored.",
     'In "NHWC", the channels of a pixel are adjacent: c has stride 1.'),
    (lambda *case: placed(*case)[::-1], "the strides are in reverse order.",
     "Return them for n, c, h, w."),
)  # fmt: skip


def layout(answer: Callable[[Shape, str, int], Sequence[int]]) -> str:
    compare.examine(answer, SHAPES, placed, LAYOUT_MISTAKES, one_case=True)
    return f"{len(SHAPES)} arrays have NumPy's strides."
