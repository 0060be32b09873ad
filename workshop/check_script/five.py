"""The five changes of recipe 1: start, GPU, learning rate, gradients, broadcast."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from workshop.check_script import learning_rate
from workshop.check_script.context import DDP, Context
from workshop.check_script.finding import Finding, cannot_tell, missing, mistake, present
from workshop.check_script.flow import LOCAL, RANK
from workshop.check_script.remedies import BROADCAST, GRADIENTS, INIT, PIN, lost, remedy
from workshop.check_script.script import argument, constant, dotted

WRAPPERS = ("DistributedOptimizer", "DistributedGradientTape", "DistributedAdasumOptimizer")
REDUCERS = ("allreduce", "grouped_allreduce", "allreduce_", "grouped_allreduce_", "all_reduce",
            "allreduce_async_", "allreduce_async", "Allreduce")  # fmt: skip
WRAPPED_MODELS = ("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard")
BROADCASTS = (
    "BroadcastGlobalVariablesHook", "BroadcastGlobalVariablesCallback", "broadcast_parameters",
    "broadcast_variables", "broadcast_global_variables", "broadcast", "broadcast_object",
)  # fmt: skip


def check(context: Context) -> Iterator[Finding]:
    yield from start(context)
    yield from pin(context)
    yield from learning_rate.check(context)
    yield from gradients(context)
    yield from broadcast(context)


# --- 1. start -------------------------------------------------------------------------------------


def start(context: Context) -> Iterator[Finding]:
    script = context.script
    begun = script.find("init", under="horovod")
    if context.ddp:
        begun = script.find("init_process_group")
    if not begun:
        imported = [line for name, line in script.imports.items() if name.startswith("horovod")]
        words = "init|setup|set_up|distribut|launch|ddp|horovod|parallel"
        what = "the processes never learn of each other"
        hidden = script.foreign_calls(words)
        if hidden and context.parallel:
            name, at = hidden[0]
            yield cannot_tell(
                INIT, at, f"it is not in this file; `{name}`, defined elsewhere, may do it",
                f"Look there for it. {remedy(INIT, context.framework)}",
            )  # fmt: skip
            return
        if not context.parallel:
            what = "one process alone: neither Horovod nor torch.distributed is used"
        yield lost(context, INIT, imported[0] if imported else None, what, words)
        return
    first = begun[0]
    early = [c for c in script.find("rank", "size", "local_rank", under="horovod")
             if before(context, c, first)]  # fmt: skip
    if early:
        yield mistake(
            INIT, early[0].lineno, f"`{dotted(early[0])}()` runs before `{dotted(first)}()` of "
            f"line {first.lineno} and fails", f"Move `{dotted(first)}()` above it.",
        )  # fmt: skip
    else:
        yield present(INIT, first.lineno, f"`{dotted(first)}()`")


def before(context: Context, call: ast.Call, first: ast.Call) -> bool:
    """Whether a call surely runs before another one."""
    mine, its = context.script.function_of(call), context.script.function_of(first)
    return (mine is its and call.lineno < first.lineno) or (
        # the file's own level runs first, unless the function is called above
        mine is None
        and its is not None
        and not any(site.lineno < call.lineno for site in context.flow.call_sites.get(its, []))
    )


# --- 2. one GPU each ------------------------------------------------------------------------------


def pin(context: Context) -> Iterator[Finding]:
    places = list(devices(context))
    spawned = bool(context.script.find("spawn", "start_processes"))
    fixed: list[int] = []
    for node, value in places:
        if context.flow.depends(value, LOCAL):
            yield present(PIN, line(node), "each process takes the GPU of its local rank")
            return
    for node, value in places:
        if context.flow.depends(value.slice if isinstance(value, ast.Subscript) else value, RANK):
            if spawned:  # the index of a spawned process is its number on this machine
                yield present(PIN, line(node), "each process takes the GPU of its number")
            else:
                yield mistake(
                    PIN, line(node), "the GPU is chosen by `rank`, which on a second machine names "
                    "GPUs that it does not have", "Choose it by the local rank.",
                )  # fmt: skip
            return
        if literal(value):
            fixed.append(line(node))
    uses_gpu = not context.torch or any(
        (isinstance(n, ast.Attribute) and n.attr == "cuda")
        or (isinstance(n, ast.Constant) and isinstance(n.value, str) and "cuda" in n.value)
        for n in context.script.nodes
    )
    if fixed and context.parallel:
        yield mistake(
            PIN, fixed[0], "every process takes the same GPU", remedy(PIN, context.framework)
        )
    elif context.parallel and not uses_gpu and not context.elsewhere:
        yield present(PIN, None, "the script asks for no GPU, so there is none to share out")
    else:
        yield lost(
            context, PIN, fixed[0] if fixed else None,
            "every process would take the same GPU, or all memory of all of them",
            "device|gpu|pin|cuda|setup|set_up|distribut|init_dist",
        )  # fmt: skip


def devices(context: Context) -> Iterator[tuple[ast.AST, ast.AST]]:
    """(place, what says which GPU) of everything that chooses one."""
    script = context.script
    for call in script.find(
        "set_visible_devices", "set_device", "device", "DistributedDataParallel"
    ):
        name = script.name(call.func)
        if not name.startswith(("torch", "tensorflow")):
            continue
        if name.endswith(".DistributedDataParallel"):
            value = argument(call, 1, "device_ids")
        elif name.endswith("torch.device"):
            value = call.args[-1] if call.args else None
        else:
            value = argument(call, 0, "devices", "device")
        if value is not None:
            yield call, value
    for call in script.find("cuda", "to"):
        if call.args and isinstance(call.func, ast.Attribute):
            yield call, call.args[0]
    for node in script.nodes:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            chosen = isinstance(target, ast.Attribute) and target.attr == "visible_device_list"
            variable = (
                isinstance(target, ast.Subscript)
                and constant(target.slice) == "CUDA_VISIBLE_DEVICES"
            )
            if chosen or variable:
                yield node, node.value


def literal(value: ast.AST) -> bool:
    """A GPU written down: "cuda:0", 0, gpus[0], gpus[:1], [0]."""
    found = constant(value)
    if isinstance(found, str):
        return found.removeprefix("cuda:").isdigit()
    if isinstance(found, int) and not isinstance(found, bool):
        return True
    if isinstance(value, ast.List):
        return len(value.elts) == 1 and literal(value.elts[0])
    return isinstance(value, ast.Subscript) and (
        isinstance(constant(value.slice), int)
        or (isinstance(value.slice, ast.Slice) and constant(value.slice.upper) == 1)
    )


# --- 4. gradients ---------------------------------------------------------------------------------


def gradients(context: Context) -> Iterator[Finding]:
    script, library = context.script, context.framework
    wrappers = script.find(*WRAPPERS, under="horovod") + script.find(*WRAPPED_MODELS, under="torch")
    passed_by = [(w, use) for w in wrappers if (use := around(context, w))]
    if passed_by:
        wrapper, use = passed_by[0]
        yield mistake(
            GRADIENTS, use.lineno, f"`{dotted(use.func)}` uses what was there before "
            f"`{dotted(wrapper)}` of line {wrapper.lineno}: nothing is averaged",
            "Use what the wrapper returns.",
        )  # fmt: skip
        return
    if wrappers:
        yield present(GRADIENTS, wrappers[0].lineno, f"`{dotted(wrappers[0])}`")
        return
    for call in script.find(*REDUCERS):
        if any(is_gradient(node) for node in context.flow.reach(*call.args)):
            yield present(GRADIENTS, call.lineno, f"`{dotted(call)}` of the gradients")
            return
    parallel = script.find("DataParallel", under="torch")
    if parallel and not context.parallel:
        yield missing(
            GRADIENTS, parallel[0].lineno, "DataParallel is one process for all GPUs, and slower",
            remedy(GRADIENTS, library),
        )  # fmt: skip
        return
    updates = [c.lineno for c in context.updates]
    yield lost(
        context, GRADIENTS, updates[0] if updates else None,
        "each rank updates with its own gradients, so the models drift apart",
        "optim|distribut|ddp|wrap|reduce|average|sync|parallel|\\bprepare",
    )  # fmt: skip


def is_gradient(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in (
        "gradient",
        "grad",
        "compute_gradients",
    )


def around(context: Context, wrapper: ast.Call) -> ast.Call | None:
    """The training call that uses what a wrapper was given, in place of what it returned."""
    if not wrapper.args or not isinstance(wrapper.args[0], ast.Name):
        return None
    bound = context.script.parents.get(wrapper)
    if not isinstance(bound, ast.Assign) or not isinstance(bound.targets[0], ast.Name):
        return None
    bare, made = wrapper.args[0].id, bound.targets[0].id
    here = context.script.function_of(wrapper)
    if bare == made:
        return None
    for call in context.script.find("apply_gradients", "minimize", "step", "compile", bare):
        if context.script.function_of(call) is not here or call.lineno <= wrapper.lineno:
            continue
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr == "compile":
            used = argument(call, 0, "optimizer")
        elif isinstance(func, ast.Attribute):
            used = func.value
        else:  # model(images): only where it is trained
            used = func if trains_with(context, call) else None
        if isinstance(used, ast.Name) and used.id == bare:
            return call
    return None


def trains_with(context: Context, call: ast.Call) -> bool:
    """Whether the loss that `backward` starts from comes from this call."""
    losses = [c.func for c in context.updates if isinstance(c.func, ast.Attribute)
              and c.func.attr == "backward"]  # fmt: skip
    return call in context.flow.reach(*losses)


# --- 5. broadcast ---------------------------------------------------------------------------------


def broadcast(context: Context) -> Iterator[Finding]:
    script = context.script
    found = script.find(*BROADCASTS, under="horovod torch.distributed")
    if context.framework == DDP and not found:
        found = script.find(*WRAPPED_MODELS, under="torch")
    for call in found:
        name = dotted(call).rpartition(".")[2]
        root = constant(argument(call, None if name == "broadcast" else 1, "root_rank", "src"))
        if name in ("BroadcastGlobalVariablesHook", "BroadcastGlobalVariablesCallback"):
            root = constant(argument(call, 0, "root_rank"))
            if not handed_on(context, call):
                yield mistake(
                    BROADCAST, call.lineno, f"`{dotted(call)}` is made and given to nobody",
                    remedy(BROADCAST, context.framework),
                )  # fmt: skip
                return
        if context.flow.guarded(call):
            yield mistake(
                BROADCAST, call.lineno, f"only some ranks come to `{dotted(call)}` and wait for "
                "the others", "Call it on every rank.",
            )  # fmt: skip
            return
        if isinstance(root, int) and root != 0:
            yield mistake(
                BROADCAST, call.lineno, f"all start from rank {root}, but it is rank 0 that loads "
                "and saves", "Broadcast from rank 0.",
            )  # fmt: skip
            return
    if found:
        yield present(BROADCAST, found[0].lineno, f"`{dotted(found[0])}`")
        return
    yield lost(
        context, BROADCAST, None, "each rank starts from weights of its own",
        "broadcast|distribut|ddp|wrap|sync|parallel|\\bprepare",
    )  # fmt: skip


def handed_on(context: Context, made: ast.Call) -> bool:
    """Whether a hook or callback comes to a session's `hooks` or to `callbacks` of fit."""
    script = context.script
    given = [
        k.value
        for n in script.nodes
        if isinstance(n, ast.Call)
        for k in n.keywords
        if k.arg in ("hooks", "callbacks", "chief_only_hooks") or k.arg is None
    ]
    given += [a for c in script.find("CallbackList", "fit", "train_and_evaluate") for a in c.args]
    # `broadcast.on_batch_begin(0)`, called by hand, or given to another file's function
    given += [c.func for c in script.find("set_model", "on_batch_end", "after_create_session")]
    for entries in script.calls.values():
        given += [a for _, c in entries if script.foreign(c.func) for a in c.args]
    return made in context.flow.reach(*given)


def line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)
