"""Who reads what: sharding, the number of steps, and the seeds of each rank."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from workshop.check_script.context import TF1, Context
from workshop.check_script.finding import Finding, cannot_tell, missing, mistake, present
from workshop.check_script.flow import LOCAL, RANK, SIZE
from workshop.check_script.learning_rate import division
from workshop.check_script.remedies import SEEDS, SHARD, STEPS, lost, remedy
from workshop.check_script.script import argument, constant, dotted

SOURCES = (
    "string_input_producer", "DataLoader", "list_files", "TFRecordDataset", "from_tensor_slices",
    "from_generator", "ImageFolder", "image_dataset_from_directory", "flow_from_directory",
    "load_data", "glob", "load",
)  # fmt: skip
# parts of a machine, which ranks share as well
MACHINE = re.compile(r"core|cpu|gpu|thread|worker|device|port", re.I)
KEYWORDS = {"shard_id", "part_index", "rank", "process_index", "shard_index"}
SEEDERS = ("manual_seed", "manual_seed_all", "set_seed", "set_random_seed")
# a seed that has to be the same on every rank, or may be
COMMON = {"shuffle", "list_files", "DistributedSampler", "random_split", "train_test_split"}


def check(context: Context) -> Iterator[Finding]:
    marks = list(shards(context))
    yield from sharding(context, marks)
    yield from seeds(context, marks)
    yield from steps(context, marks)


# --- sharding -------------------------------------------------------------------------------------


def shards(context: Context) -> Iterator[ast.AST]:
    """The places where each rank takes a part of its own."""
    flow, script = context.flow, context.script
    yield from script.find("DistributedSampler", "split_dataset_by_node", "split_by_node")
    for node in script.nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            if flow.depends(node.slice, RANK) and not MACHINE.search(ast.unparse(node.value)):
                yield node
        elif isinstance(node, ast.Call):
            last = dotted(node).rpartition(".")[2]
            either = (RANK, LOCAL)
            if last == "shard" and len(node.args) + len(node.keywords) == 2:
                yield node
            elif last in ("range", "islice") and any(flow.depends(a, RANK) for a in node.args):
                yield node
            elif script.foreign(node.func) is None and any(
                k.arg in KEYWORDS and any(flow.depends(k.value, kind) for kind in either)
                for k in node.keywords
            ):
                if script.name(node.func).split(".")[0] in ("nvidia", "mxnet", "webdataset", "?"):
                    yield node
                elif "sampler" in last.lower() or "reader" in last.lower():
                    yield node
        elif isinstance(node, ast.Compare):  # i % size == rank
            sides = [node.left, *node.comparators]
            modulo = [s for s in sides if isinstance(s, ast.BinOp) and isinstance(s.op, ast.Mod)]
            if modulo and flow.depends(modulo[0].right, SIZE) and flow.depends(node, RANK):
                yield node


def sharding(context: Context, marks: list[ast.AST]) -> Iterator[Finding]:
    flow, advice = context.flow, remedy(SHARD, context.framework)
    used = [m for m in marks if not context.data or m in context.reached or feeds(context, m)]
    for mark in used:
        fault = shard_fault(context, mark)
        if fault:
            yield mistake(SHARD, line(mark), *fault)
            return
    if used:
        yield present(SHARD, line(used[0]), f"each rank takes its own part: {words(used[0])}")
        sampler = [m for m in used if words(m).endswith("DistributedSampler(…)")]
        if sampler and not context.script.find("set_epoch") and not context.elsewhere:
            yield mistake(
                SHARD, line(sampler[0]), "the sampler is never told the epoch, so each epoch has "
                "the same order", "`sampler.set_epoch(epoch)` at the start of each epoch.",
            )  # fmt: skip
        return
    sources = [n for n in context.reached if isinstance(n, ast.Call) and last_name(n) in SOURCES]
    near = min(sources, key=lambda n: (SOURCES.index(last_name(n)), n.lineno), default=None)
    at = near.lineno if near else None
    hidden = [
        (n.lineno, name, n)
        for n in context.reached
        if isinstance(n, ast.Call) and (name := context.script.foreign(n.func))
    ]
    # in a graph that reads by itself, the model, too, is part of what is reached
    graph = context.framework == TF1 and any(last_name(n) in SOURCES[:5] for n in sources)
    if hidden and not graph and not context.other:
        at, name, call = min(hidden, key=lambda item: item[:2])
        told = any(flow.depends(a, RANK) for a in [*call.args, *(k.value for k in call.keywords)])
        knows = ", and is told the rank" if told else ""
        yield cannot_tell(
            SHARD, at, f"the data comes from `{name}`, defined elsewhere{knows}",
            f"See there that each rank reads a part of its own. {advice}",
        )  # fmt: skip
        return
    others = [m for m in marks if isinstance(m, ast.Call)]
    if others:
        yield missing(
            SHARD, at or line(others[0]), f"what is trained on does not pass {words(others[0])} of "
            f"line {line(others[0])}", advice,
        )  # fmt: skip
        return
    if at is None and context.loops:
        at = line(context.loops[0])
    yield lost(context, SHARD, at, "every rank reads the same data", "data|load|input|shard|reader")


def feeds(context: Context, mark: ast.AST) -> bool:
    """Whether a part is taken in the training loop, or as a condition of one that is."""
    if context.in_training(mark):
        return True
    return any(outer in context.reached for outer in context.script.above(mark))


def shard_fault(context: Context, mark: ast.AST) -> tuple[str, str] | None:
    flow = context.flow
    if not isinstance(mark, ast.Call):
        return None
    if last_name(mark) == "shard":
        count, index = argument(mark, 0, "num_shards"), argument(mark, 1, "index")
        right = "`shard(hvd.size(), hvd.rank())`."
        if (
            flow.depends(count, RANK)
            and flow.depends(index, SIZE)
            and not flow.depends(index, RANK)
        ):
            return "the two arguments of shard are the wrong way round", right
        if not flow.depends(index, RANK) and flow.depends(index, LOCAL):
            return "the part is chosen by the local rank: every machine reads the same", right
        if isinstance(constant(index), int):
            return f"every rank takes part {constant(index)}", right
    if last_name(mark) == "DistributedSampler" and context.horovod and not context.ddp:
        given = {k.arg for k in mark.keywords}
        if len(mark.args) < 3 and not {"num_replicas", "rank"} <= given:
            return (
                "DistributedSampler asks torch.distributed, which Horovod does not start",
                "Give it `num_replicas=hvd.size(), rank=hvd.rank()`.",
            )
    return None


def words(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return f"{dotted(node)}(…)"
    if isinstance(node, ast.Subscript):
        return f"{dotted(node)}[…]"
    return "a test of i % size"


# --- seeds ----------------------------------------------------------------------------------------


def seeds(context: Context, marks: list[ast.AST]) -> Iterator[Finding]:
    script, flow, advice = context.script, context.flow, remedy(SEEDS, context.framework)
    common: list[int] = []  # the same on all ranks
    own: list[int] = []
    for call in script.find(*SEEDERS, "seed"):
        value = argument(call, 0, "seed", "value")
        if (
            value is None
            or isinstance(constant(value), type(None))
            and constant(value) is None
            and isinstance(value, ast.Constant)
        ):
            continue
        if generator(context, call):
            continue
        name = script.name(call.func)
        python = name in ("random.seed", "numpy.random.seed")
        if last_name(call) == "seed" and not python:
            continue
        differs = flow.depends(value, RANK) or flow.depends(value, LOCAL)
        # where a slice by rank cuts one common order, NumPy's seed has to be common
        if not differs and python and any(isinstance(m, ast.Subscript) for m in marks):
            continue
        (own if differs else common).append(call.lineno)
    drawn = [
        call.lineno
        for entries in script.calls.values()
        for name, call in entries
        if (value := argument(call, None, "seed")) is not None
        and draws(name)
        and constant(value) is not None
        and not flow.depends(value, RANK)
    ]
    if drawn and context.parallel:
        yield mistake(
            SEEDS, drawn[0], f"the seed{lines(drawn)} is the same on every rank: all draw the same "
            "flips and crops in the same order", advice,
        )  # fmt: skip
    elif own:
        yield present(SEEDS, own[0], "the seed differs from rank to rank")
    elif common and context.parallel:
        yield mistake(
            SEEDS, common[0], "the same seed on every rank: all draw the same augmentation", advice
        )
    elif common or drawn:
        yield missing(
            SEEDS, (common or drawn)[0], "the same seed for every process that is started", advice
        )
    elif context.elsewhere and not context.parallel:
        yield lost(context, SEEDS, None, "", "seed")
    elif hidden := script.foreign_calls("seed"):
        yield cannot_tell(
            SEEDS, hidden[0][1], f"`{hidden[0][0]}`, defined elsewhere, may set it",
            f"See there that it adds the rank. {advice}",
        )  # fmt: skip
    else:
        yield present(SEEDS, None, "no seed is set for all ranks alike: each draws its own numbers")


def generator(context: Context, call: ast.Call) -> bool:
    """`generator.manual_seed(0)` of a torch.Generator, which gives all ranks one order."""
    func = call.func
    if not isinstance(func, ast.Attribute):
        return False
    return any(isinstance(n, ast.Call) and last_name(n) == "Generator"
               for n in context.flow.reach(func.value))  # fmt: skip


def draws(name: str) -> bool:
    """Whether a function of TensorFlow or DALI draws random numbers for each picture."""
    first, _, last = name.rpartition(".")
    if last in COMMON or "stateless" in last or "initializers" in name:
        return False
    return (first.startswith("tensorflow.image") and last.startswith("random")) or (
        last.startswith("Random") and "layers" in first
    )


def lines(numbers: list[int]) -> str:
    rest = sorted(set(numbers))[1:]
    return f" (also in line{'s' if rest[1:] else ''} {', '.join(map(str, rest))})" if rest else ""


# --- steps ----------------------------------------------------------------------------------------


def steps(context: Context, marks: list[ast.AST]) -> Iterator[Finding]:
    script, flow, advice = context.script, context.flow, remedy(STEPS, context.framework)
    stops = script.find("StopAtStepHook")
    for stop in stops:
        value = argument(stop, 1, "last_step") or argument(stop, 0, "num_steps")
        if context.parallel and value is not None and not flow.depends(value, SIZE):
            yield missing(
                STEPS, stop.lineno, "every rank takes as many steps as one process would", advice
            )
            return
    for node in script.nodes:
        parts = division(node)
        if not parts or not whole(context, node) or "batch" in dotted(parts[0]):
            continue
        if MACHINE.search(ast.unparse(parts[0])):
            continue
        if any(flow.depends(part, SIZE) for part in parts):
            yield present(STEPS, line(node), "the number of steps is divided among the ranks")
            return
    samplers = [m for m in marks if words(m).endswith("Sampler(…)")]
    if samplers:
        yield present(
            STEPS, line(samplers[0]), f"{words(samplers[0])} gives every rank equally many pictures"
        )
        return
    joins = script.find("join", under="horovod") + script.find("Join", under="torch")
    if joins:
        yield present(STEPS, joins[0].lineno, "ranks that are done wait for the others")
        return
    if marks and context.parallel:
        yield mistake(
            STEPS, line(marks[0]), "the ranks' parts may differ by a picture: a rank with one step "
            "more waits for ever", advice,
        )  # fmt: skip
        return
    told = [line for name, line in script.foreign_calls("step|epoch|loader|dataset|data|batches")]
    if told and context.parallel:
        yield cannot_tell(
            STEPS, told[0], "how many steps a rank takes is decided by data that is made elsewhere",
            f"See there that all ranks take equally many. {advice}",
        )  # fmt: skip
        return
    at = line(context.loops[0]) if context.loops else None
    yield lost(
        context, STEPS, at, "every rank takes as many steps as one process would", "step|epoch"
    )


def whole(context: Context, node: ast.AST) -> bool:
    """Whether a division gives a whole number: a // b, int(a / b), math.ceil(a / b)."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.FloorDiv):
        return True
    outer = context.script.parents.get(node)
    return isinstance(outer, ast.Call) and last_name(outer) in ("int", "ceil", "floor", "round")


def last_name(call: ast.Call) -> str:
    return dotted(call).rpartition(".")[2]


def line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)
