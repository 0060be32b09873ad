"""What rank 0 does alone: checkpoints and logs; and the warm-up."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from workshop.check_script.context import FITS, Context
from workshop.check_script.finding import Finding, cannot_tell, missing, mistake, present
from workshop.check_script.flow import RANK
from workshop.check_script.learning_rate import divided_batch, rates, scaled
from workshop.check_script.remedies import CHECKPOINTS, LOGS, WARMUP, lost, remedy
from workshop.check_script.script import argument, constant, dotted

SAVES = ("save", "save_file", "save_model", "save_weights", "ModelCheckpoint", "save_checkpoint",
         "MonitoredTrainingSession", "CheckpointSaverHook", "BackupAndRestore")  # fmt: skip
SAVERS = re.compile(r"model|net|manager|saver|checkpoint|ckpt|state|torch|tf", re.I)
LOGGERS = ("LoggingTensorHook", "SummaryWriter", "TensorBoard", "SummarySaverHook",
           "create_file_writer", "CSVLogger")  # fmt: skip
SCHEDULES = ("LearningRateWarmupCallback", "LinearLR", "OneCycleLR")


def check(context: Context) -> Iterator[Finding]:
    yield from checkpoints(context)
    yield from logs(context)
    yield from warmup(context)


def checkpoints(context: Context) -> Iterator[Finding]:
    script, flow, advice = context.script, context.flow, remedy(CHECKPOINTS, context.framework)
    kept: list[int] = []
    for call in script.find(*SAVES):
        name, folder = dotted(call), argument(call, 1, "checkpoint_dir")
        if name.endswith("MonitoredTrainingSession"):
            if folder is None or constant(folder) is None and isinstance(folder, ast.Constant):
                continue  # it saves nothing
        elif name.endswith(".save") and not SAVERS.search(name.rpartition(".")[0]):
            continue  # a picture, an array
        elif script.foreign(call.func):
            yield cannot_tell(
                CHECKPOINTS, call.lineno, f"`{name}` is defined elsewhere",
                f"See there that rank 0 alone writes. {advice}",
            )  # fmt: skip
            return
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        of_rank_0 = call.args + [k.value for k in call.keywords]
        if folder is not None and name.endswith("MonitoredTrainingSession"):
            of_rank_0 = [folder]
        elif isinstance(receiver, (ast.Name, ast.Attribute)):
            of_rank_0.append(receiver)
        if not flow.guarded(call) and not any(flow.depends(a, RANK) for a in of_rank_0):
            yield missing(
                CHECKPOINTS, call.lineno, f"every rank runs `{name}`: they write over each other",
                advice,
            )  # fmt: skip
            return
        kept.append(call.lineno)
    if kept:
        yield present(CHECKPOINTS, kept[0], "rank 0 alone saves")
    elif context.elsewhere or context.other:
        yield lost(context, CHECKPOINTS, None, "", "save|checkpoint")
    elif hidden := script.foreign_calls("save|checkpoint|ckpt|snapshot"):
        yield cannot_tell(
            CHECKPOINTS, hidden[0][1], f"`{hidden[0][0]}`, defined elsewhere, may save",
            f"See there that rank 0 alone writes. {advice}",
        )  # fmt: skip
    else:
        yield present(CHECKPOINTS, None, "nothing is saved here, so there is nothing to keep apart")


def logs(context: Context) -> Iterator[Finding]:
    script, flow, advice = context.script, context.flow, remedy(LOGS, context.framework)
    loud: list[tuple[int, str]] = []
    quiet: list[int] = []
    for call in script.find("print", "tqdm", "trange", *LOGGERS):
        name = dotted(call)
        shown = [*call.args, *(k.value for k in call.keywords)]
        if name.rpartition(".")[2] not in LOGGERS and not context.in_training(call):
            continue
        if flow.guarded(call) or any(flow.depends(a, RANK) for a in shown):
            quiet.append(call.lineno)
        else:
            loud.append((call.lineno, f"`{name}`"))
    for call in context.updates:
        if isinstance(call.func, ast.Attribute) and call.func.attr in FITS and not context.torch:
            verbose = argument(call, None, "verbose")
            if flow.depends(verbose, RANK) or constant(verbose) == 0:
                quiet.append(call.lineno)
            elif not any(k.arg is None for k in call.keywords):
                loud.append((call.lineno, "`fit`"))
    if loud:
        at, name = min(loud)
        yield missing(LOGS, at, f"every rank prints or writes what {name} says", advice)
    elif quiet:
        yield present(LOGS, min(quiet), "rank 0 alone logs")
    elif context.elsewhere or context.other:
        yield lost(context, LOGS, None, "", "log|print|writer")
    else:
        yield present(LOGS, None, "nothing is logged in the training loop")


# --- warm-up --------------------------------------------------------------------------------------


def warmup(context: Context) -> Iterator[Finding]:
    script, advice = context.script, remedy(WARMUP, context.framework)
    found = warm(context)
    if found:
        yield present(WARMUP, found, "the learning rate rises at the start")
        return
    hidden = script.foreign_calls("warm|sched|\\blr|learning_rate")
    if hidden:
        yield cannot_tell(
            WARMUP, hidden[0][1], f"`{hidden[0][0]}`, defined elsewhere, may hold the schedule",
            f"Look there for it. {advice}",
        )  # fmt: skip
        return
    at = scaled(context)
    if at and context.parallel:
        yield mistake(
            WARMUP, at, "the rate is times size from the first step, where the weights are worst",
            advice,
        )  # fmt: skip
        return
    if context.parallel and divided_batch(context):
        yield present(WARMUP, divided_batch(context), "the rate is not scaled, so none is needed")
        return
    set_at = rates(context)
    yield lost(
        context, WARMUP, set_at[0][0] if set_at else None,
        "the learning rate is full from the first step", "warm|sched|learning_rate",
    )  # fmt: skip


def warm(context: Context) -> int | None:
    """The line that lets the rate rise; a name that is set and never used does not count."""
    script = context.script
    known = script.find(*SCHEDULES)
    if known:
        return known[0].lineno
    for at, value in rates(context):
        for node in context.flow.reach(value):
            if isinstance(node, (ast.Name, ast.Attribute)) and "warm" in dotted(node).lower():
                return at
            if isinstance(node, ast.Call):
                name = dotted(node).lower()
                if "warm" in name and not script.foreign(node.func):
                    return at
                ones = any(constant(a) in (1, 1.0) for a in node.args)
                divided = any(
                    isinstance(a, ast.BinOp) and isinstance(a.op, ast.Div) for a in node.args
                )
                if name.endswith(("min", "minimum")) and ones and divided:
                    return at
    for node in script.nodes:  # a schedule that something else applies
        if isinstance(node, ast.If) and rate_set_in(node):
            if any(
                isinstance(n, (ast.Name, ast.Attribute)) and "warm" in dotted(n).lower()
                for n in ast.walk(node.test)
            ):
                return node.lineno
        if isinstance(node, ast.Call) and not script.foreign(node.func):
            if "warm" in dotted(node).lower() or any(
                "warm" in (k.arg or "") for k in node.keywords
            ):
                return node.lineno
    return None


def rate_set_in(node: ast.If) -> bool:
    return any(
        isinstance(n, (ast.Name, ast.Attribute)) and re.search(r"\blr\b|rate", dotted(n))
        for body in node.body
        for n in ast.walk(body)
    )
