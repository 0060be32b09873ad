"""The learning rate: where it is set, and whether it grows with the number of ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from workshop.check_script.context import Context
from workshop.check_script.finding import Finding, cannot_tell, mistake, present
from workshop.check_script.flow import SIZE
from workshop.check_script.remedies import RATE, lost, remedy
from workshop.check_script.script import argument, constant, dotted


def rates(context: Context) -> list[tuple[int, ast.AST]]:
    """(line, expression) of each place that sets a learning rate."""
    script, found = context.script, []
    for entries in script.calls.values():
        for name, call in entries:
            last = name.rpartition(".")[2]
            if name.startswith("torch.optim.lr_scheduler.") or "schedules." in name:
                found += [
                    (call.lineno, a) for a in [*call.args[1:], *(k.value for k in call.keywords)]
                ]
            elif name.startswith("torch.optim.") or (
                name.startswith("tensorflow.")
                and (".optimizers." in name or last.endswith("Optimizer"))
            ):
                place = 1 if name.startswith("torch") else 0
                value = argument(call, place, "lr", "learning_rate")
                found += [(call.lineno, value)] if value is not None else []
            elif last == "LearningRateWarmupCallback":
                value = argument(call, 0, "initial_lr")
                found += [(call.lineno, value)] if value is not None else []
            elif last in ("assign", "set_value") and call.args and "rate" in ast.dump(call):
                found.append((call.lineno, call.args[-1]))
    for node in script.nodes:
        if isinstance(node, (ast.Assign, ast.AugAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                attribute = isinstance(target, ast.Attribute) and target.attr in (
                    "lr",
                    "learning_rate",
                )
                entry = isinstance(target, ast.Subscript) and constant(target.slice) == "lr"
                own = isinstance(target, ast.Attribute) and dotted(target).split(".")[0] in (
                    "args", "flags", "FLAGS", "opt", "self", "cfg", "config")  # fmt: skip
                if entry or (attribute and not own):
                    found.append((node.lineno, node.value))
    return sorted(found, key=lambda item: item[0])


def scaled(context: Context) -> int | None:
    """The line where the rate is multiplied by the number of ranks."""
    return next((at for at, value in rates(context) if context.flow.depends(value, SIZE)), None)


def divided_batch(context: Context) -> int | None:
    """The line where the batch of one rank is made the smaller, the more ranks there are."""
    for node in context.script.nodes:
        parts = division(node)
        if parts and "batch" in dotted(parts[0]) and context.flow.depends(parts[1], SIZE):
            return getattr(node, "lineno", None)
    return None


def division(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """What is divided, and by what: `a / b`, `a // b`, `a //= b`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv)):
        return node.left, node.right
    if isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Div, ast.FloorDiv)):
        return node.target, node.value
    return None


def check(context: Context) -> Iterator[Finding]:
    found = rates(context)
    for _, value in found:
        for node in context.flow.reach(value):
            if (
                isinstance(node, ast.BinOp)
                and isinstance(node.op, ast.Div)
                and context.flow.depends(node.right, SIZE)
                and not context.flow.depends(node.left, SIZE)
                and any(w in dotted(node.left) for w in ("lr", "rate"))
            ):
                yield mistake(
                    RATE, node.lineno, "the learning rate is divided by the number of ranks",
                    "Multiply: a step of all ranks has size times the pictures.",
                )  # fmt: skip
                return
    grows = scaled(context)
    if grows:
        yield present(RATE, grows, "the learning rate grows with the number of ranks")
        return
    smaller = divided_batch(context)
    if smaller:
        yield present(
            RATE, smaller, "the batch is divided among the ranks, so the rate may stay as it is"
        )
        return
    for at, value in found:
        for node in context.flow.reach(value):
            name = context.script.foreign(node.func) if isinstance(node, ast.Call) else None
            if name:
                yield cannot_tell(
                    RATE, at, f"the rate comes from `{name}`, defined elsewhere",
                    f"Look there for it. {remedy(RATE, context.framework)}",
                )  # fmt: skip
                return
    yield lost(
        context, RATE, found[0][0] if found else None,
        "the rate is that of one process, while a step of all has size times the pictures",
        "optim|learning_rate|sched|\\blr",
    )  # fmt: skip
