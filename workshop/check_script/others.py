"""Mistakes of any framework: loss, optimizer, weight decay, network, and Keras 3 under Horovod."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from workshop.check_script.context import Context
from workshop.check_script.finding import Finding, mistake
from workshop.check_script.script import Function, argument, constant, dotted

LOSS, OPTIMIZER, DECAY, NETWORK, KERAS_3 = "loss", "optimizer", "weight decay", "network", "Keras"
FROM_LOGITS = ("softmax_cross_entropy_with_logits", "softmax_cross_entropy_with_logits_v2",
               "sparse_softmax_cross_entropy_with_logits", "cross_entropy",
               "categorical_crossentropy", "sparse_categorical_crossentropy")  # fmt: skip
CALLBACKS = ("BroadcastGlobalVariablesCallback", "MetricAverageCallback",
             "LearningRateWarmupCallback")  # fmt: skip
CONVOLUTIONS = ("Conv2d", "Conv2D", "conv2d", "Convolution2D")


def check(context: Context) -> Iterator[Finding]:
    yield from double_softmax(context)
    yield from double_step(context)
    yield from decay_by_name(context)
    yield from strides(context)
    yield from keras_3(context)


# --- loss -----------------------------------------------------------------------------------------


def double_softmax(context: Context) -> Iterator[Finding]:
    script, flow = context.script, context.flow
    advice = "Give the loss the network's last sums (logits), and take softmax only to show them."
    for call in script.find(*FROM_LOGITS):
        name = script.name(call.func)
        keras = name.endswith("categorical_crossentropy")
        if keras and constant(argument(call, 2, "from_logits")) is not True:
            continue
        torch = name.startswith("torch.")
        logits = argument(call, None, "logits", "input", "y_pred")
        if logits is None and (torch or keras):
            logits = argument(call, 1 if keras else 0)
        if logits is not None and softmaxes(context, logits):
            yield mistake(LOSS, call.lineno, f"`{dotted(call)}` gets what softmax has been over",
                          advice)  # fmt: skip
            return
    losses = script.find("CrossEntropyLoss", under="torch")
    losses += [
        c
        for c in script.find("SparseCategoricalCrossentropy", "CategoricalCrossentropy")
        if constant(argument(c, 0, "from_logits")) is True
    ]
    if not losses:
        return
    last = last_softmax(context)
    if last is None:
        # criterion(softmax(...), labels)
        for node in script.nodes:
            if not (
                isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute))
            ):
                continue
            given = argument(node, 1 if script.mentions("tensorflow") else 0, "input", "y_pred")
            if given is not None and softmaxes(context, given):
                if node.func in losses or flow.reach(node.func) & set(losses):
                    last = node.lineno
    if last is not None:
        yield mistake(LOSS, last, f"softmax here, and again in the loss of line {losses[0].lineno}",
                      advice)  # fmt: skip


def softmaxes(context: Context, node: ast.AST, depth: int = 0) -> bool:
    """Whether an expression, or what its name was given, is a softmax."""
    if isinstance(node, ast.Call):
        return dotted(node).rpartition(".")[2] == "softmax"
    key = context.flow.key(node)
    values = context.flow.values.get(key, []) if key and isinstance(node, ast.Name) else []
    return depth < 5 and any(softmaxes(context, value, depth + 1) for value in values)


def last_softmax(context: Context) -> int | None:
    """The line of a softmax at the end of a network."""
    script = context.script
    for call in script.find("Dense", "Activation"):
        kind = argument(call, 0 if dotted(call).endswith("Activation") else None, "activation")
        if constant(kind) == "softmax" or (kind is not None and dotted(kind).endswith(".softmax")):
            return call.lineno
    for call in script.find("Softmax"):
        outer = script.parents.get(call)
        if isinstance(outer, ast.Call) and dotted(outer).endswith(("Sequential", "Model")):
            if outer.args and outer.args[-1] is call:
                return call.lineno
        if isinstance(outer, ast.List) and outer.elts[-1] is call:
            return call.lineno
    for forward in script.methods.get("forward", []) + script.methods.get("call", []):
        for node in ast.walk(forward):
            if isinstance(node, ast.Return) and node.value is not None:
                if script.function_of(node) is forward and softmaxes(context, node.value):
                    return node.lineno
    return None


# --- optimizer and decay --------------------------------------------------------------------------


def double_step(context: Context) -> Iterator[Finding]:
    """`scaler.step(optimizer)` and, in the same place, `optimizer.step()`."""
    script = context.script
    steps = [c for c in script.find("step") if isinstance(c.func, ast.Attribute)]
    scaled = [c for c in steps if len(c.args) == 1 and "scaler" in dotted(c).lower()]
    for call in scaled:
        mine = dotted(call.args[0])
        for other in steps:
            same = not other.args and dotted(other) == f"{mine}.step"
            place = script.function_of(other) is script.function_of(call)
            if same and place and together(context, call, other):
                yield mistake(
                    OPTIMIZER, other.lineno, f"`{mine}` steps twice: line {call.lineno} did it",
                    "Leave this one out: `scaler.step` skips it where gradients are not finite.",
                )  # fmt: skip
                return


def together(context: Context, first: ast.Call, second: ast.Call) -> bool:
    """Whether two calls can both run: they are not the two branches of one `if`."""
    outer = set(context.script.above(first))
    common = next((n for n in context.script.above(second) if n in outer), None)
    if not isinstance(common, ast.If):
        return True
    branches = [
        {n for statement in body for n in ast.walk(statement)}
        for body in (common.body, common.orelse)
    ]
    return any(first in branch and second in branch for branch in branches)


def decay_by_name(context: Context) -> Iterator[Finding]:
    script = context.script
    if not script.mentions("torch", "tensorflow", "keras"):
        return
    for node in script.nodes:
        if not (isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn))):
            continue
        if constant(node.left) not in ("bn", ".bn", "bn."):
            continue
        around = next(
            (n for n in script.above(node) if isinstance(n, (ast.stmt, ast.comprehension))), node
        )
        shapes = {n.attr for n in ast.walk(around) if isinstance(n, ast.Attribute)}
        if shapes & {"ndim", "dim", "shape", "ndimension"}:
            continue
        yield mistake(
            DECAY, node.lineno, "batch norm is found by 'bn' in the name, which misses that of the "
            "down-sampling branch", "Leave out what has one dimension: `p.ndim <= 1`.",
        )  # fmt: skip
        return


# --- network --------------------------------------------------------------------------------------


def strides(context: Context) -> Iterator[Finding]:
    script = context.script
    for call in script.find("ResNet50", "ResNet101", "ResNet152", under="tensorflow.keras"):
        yield mistake(
            NETWORK, call.lineno, f"`{dotted(call)}` is version 1, with its stride in the 1 x 1 "
            "convolutions: published figures are of v1.5", "Take torchvision's, or move the stride "
            "to the 3 x 3 convolution.",
        )  # fmt: skip
        return
    in_function: dict[Function | None, list[ast.Call]] = {}
    for call in script.find(*CONVOLUTIONS):
        in_function.setdefault(script.function_of(call), []).append(call)
    for calls in in_function.values():
        for first, second in zip(calls, calls[1:], strict=False):
            if shape(context, first) == (1, True) and shape(context, second) == (3, False):
                yield mistake(
                    NETWORK, first.lineno, "the stride stands in the 1 x 1 convolution: this is "
                    "ResNet v1, and published figures are of v1.5",
                    f"Move it to the 3 x 3 convolution of line {second.lineno}.",
                )  # fmt: skip
                return


def shape(context: Context, call: ast.Call) -> tuple[int | None, bool]:
    """(kernel, whether it has a stride) of a convolution."""
    torch = dotted(call).endswith("Conv2d")
    kernel = argument(call, 2 if torch else 1, "kernel_size")
    stride = argument(call, 3 if torch else 2, "stride", "strides")
    if isinstance(kernel, ast.Tuple) and kernel.elts:
        kernel = kernel.elts[0]
    if isinstance(stride, ast.Tuple) and stride.elts:
        stride = stride.elts[0]
    size = constant(kernel)
    return (size if isinstance(size, int) else None), stride is not None and constant(stride) != 1


# --- Keras 3 --------------------------------------------------------------------------------------


def keras_3(context: Context) -> Iterator[Finding]:
    script = context.script
    if context.tf1 or not script.mentions("tensorflow", "keras", "tf_keras"):
        return
    under = "horovod.keras horovod.tensorflow horovod.tensorflow.keras"
    used = script.find("DistributedOptimizer", under=under)
    used += script.find(*CALLBACKS, under=under)
    if not used or script.mentions("tf_keras"):
        return
    at = min(c.lineno for c in used)
    settings = [
        n.lineno
        for n in script.nodes
        if isinstance(n, ast.Constant) and n.value == "TF_USE_LEGACY_KERAS"
    ]
    first = min(
        line for name, line in script.imports.items()
        if name.split(".")[0] in ("tensorflow", "keras", "horovod")
    )  # fmt: skip
    if not settings:
        yield mistake(
            KERAS_3, at, f"under Keras 3 Horovod's `{dotted(used[0])}` does not average the "
            "gradients and does not say so; nothing here asks for Keras 2",
            'Before TensorFlow is imported: `os.environ["TF_USE_LEGACY_KERAS"] = "1"`.',
        )  # fmt: skip
    elif min(settings) > first:
        yield mistake(
            KERAS_3, min(settings), f"TF_USE_LEGACY_KERAS comes after the import of line {first}, "
            "which has read it already", "Set it before TensorFlow is imported.",
        )  # fmt: skip
