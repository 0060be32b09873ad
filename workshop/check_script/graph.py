"""Mistakes of TensorFlow 1: feeds, queues, loops, and what is drawn when a graph is built."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from workshop.check_script.context import Context
from workshop.check_script.finding import Finding, cannot_tell, mistake
from workshop.check_script.script import LOOPS, Function, Script, argument, constant, dotted

FEEDS, QUEUE, LOOP, DRAWN = "feeds", "queue", "training loop", "augmentation"
READERS = ("decode_raw", "parse_single_example", "shuffle_batch", "decode_jpeg", "decode_image",
           "decode_and_crop_jpeg")  # fmt: skip
ENDS = ("request_stop", "join", "close", "shutdown", "destroy_process_group")
OUTSIDE = ("py_function", "numpy_function", "py_func")  # run Python for each picture


def check(context: Context) -> Iterator[Finding]:
    yield from feeds(context)
    yield from queues(context)
    yield from frozen_steps(context)
    yield from ends_in_loop(context)
    yield from drawn_once(context)


# --- feeds ----------------------------------------------------------------------------------------


def feeds(context: Context) -> Iterator[Finding]:
    script = context.script
    placeholders = {
        node.targets[0].id: node.value
        for node in script.nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and script.name(node.value.func).endswith(".placeholder")
    }
    tensors = {str(constant(k.value)) for entries in script.calls.values() for _, c in entries
               for k in c.keywords if k.arg == "name"}  # fmt: skip
    keys: list[ast.expr] = []
    unseen = False
    runs = [c for c in script.find("run", "eval") if argument(c, 1, "feed_dict") is not None]
    for run in runs:
        dictionaries, elsewhere = fed_with(context, argument(run, 1, "feed_dict"))
        unseen = unseen or elsewhere is not None
        if elsewhere:
            yield cannot_tell(
                FEEDS, run.lineno, f"what is fed comes from `{elsewhere}`, defined elsewhere",
                "See there that its keys are the placeholders.",
            )  # fmt: skip
        for dictionary in dictionaries:
            for key, value in zip(dictionary.keys, dictionary.values, strict=True):
                if key is None:
                    unseen = True
                    continue
                keys.append(key)
                yield from feed(context, run, key, value, tensors)
    written = {str(constant(k)).split(":")[0] for k in keys if isinstance(k, ast.Constant)}
    fed = {k.id for k in keys if isinstance(k, ast.Name)} | written
    if unseen or not context.session_runs():
        return
    for name, made in placeholders.items():
        called = str(constant(argument(made, 2, "name")))
        if name not in fed and called not in fed and used(script, name):
            yield mistake(
                FEEDS, made.lineno, f"the placeholder `{name}` is never fed: the first step fails",
                f"Feed it, `{{{name}: ...}}`, or use `tf.placeholder_with_default`.",
            )  # fmt: skip


def fed_with(context: Context, node: ast.AST | None) -> tuple[list[ast.Dict], str | None]:
    """The dictionaries that a feed may be, and what else it is: "" where that has no name."""
    flow, found, other = context.flow, [], None
    work, seen = [node], set()
    while work:
        node = work.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        key = flow.key(node)
        if isinstance(node, ast.Dict):
            found.append(node)
        elif isinstance(node, ast.Call) and flow.called(node):
            work += [v for f in flow.called(node) for v in flow.values.get((f, "return"), [])]
        elif key and flow.values.get(key):
            work += flow.values[key]
        else:
            other = (
                other or (context.script.foreign(node) if isinstance(node, ast.Call) else "") or ""
            )
    return found, other


def feed(
    context: Context, run: ast.Call, key: ast.expr, value: ast.expr, tensors: set[str]
) -> Iterator[Finding]:
    script = context.script
    text = constant(key)
    advice = "Use the placeholder itself as the key: `feed_dict={images: batch}`."
    if isinstance(text, str):
        name, _, output = text.partition(":")
        if not output:
            kind = "an operation's name, not a tensor's" if name in tensors else "no tensor's name"
            yield mistake(FEEDS, key.lineno, f"the key '{text}' is {kind}", advice)
        elif name not in tensors and not script.foreign_calls():
            yield mistake(FEEDS, key.lineno, f"no tensor of this file is called '{text}'", advice)
    elif isinstance(key, ast.Name) and unbound(script, key):
        yield mistake(FEEDS, key.lineno, f"`{key.id}` is fed, but nothing is called so", advice)
    if isinstance(value, ast.Name):
        statement = next((n for n in script.above(run) if isinstance(n, ast.stmt)), None)
        bound = [
            n for n in script.nodes
            if isinstance(n, ast.Name) and n.id == value.id and not isinstance(n.ctx, ast.Load)
        ]  # fmt: skip
        inside = set(ast.walk(statement)) if isinstance(statement, ast.Assign) else set()
        if bound and all(n in inside for n in bound):
            yield mistake(
                FEEDS, value.lineno, f"`{value.id}` is fed to the call that returns it",
                "Feed what is known before the call; what a queue gives needs no feed.",
            )  # fmt: skip


def unbound(script: Script, name: ast.Name) -> bool:
    known = script.bound | script.aliases.keys() | script.functions.keys()
    return name.id not in known and not script.stars


def used(script: Script, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
               for n in script.nodes)  # fmt: skip


# --- queues and loops -----------------------------------------------------------------------------


def queues(context: Context) -> Iterator[Finding]:
    for call in context.script.find("shuffle_batch", "shuffle_batch_join"):
        capacity = number(context, argument(call, 2, "capacity"))
        least = number(context, argument(call, 3, "min_after_dequeue"))
        if capacity is not None and least is not None and capacity <= least:
            yield mistake(
                QUEUE, call.lineno, f"a queue that holds {capacity:g} never has the {least:g} "
                "that it waits for before it gives one", "Make capacity min_after_dequeue + "
                "3 x batch_size, or use `dataset.shuffle(n)`.",
            )  # fmt: skip


def number(context: Context, node: ast.expr | None) -> float | None:
    """A number that is written in the call, or given once to the name in it."""
    if isinstance(node, ast.Name):
        key = context.flow.key(node)
        values = context.flow.values.get(key, []) if key else []
        node = values[0] if len(values) == 1 and isinstance(values[0], ast.expr) else None
    value = constant(node)
    return float(value) if isinstance(value, (int, float)) else None


def frozen_steps(context: Context) -> Iterator[Finding]:
    """A `while` that takes a slice by a counter which it never counts."""
    for loop in context.loops:
        if not isinstance(loop, ast.While):
            continue
        inside = list(ast.walk(loop))
        counted = {name.id for node in inside for name in changed(node)}
        for node in inside:
            if not (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)):
                continue
            names = [n for n in ast.walk(node.slice) if isinstance(n, ast.Name)]
            counters = [n.id for n in names if starts_at_number(context, n)]
            still = [name for name in counters if name not in counted]
            if still and not any(n.id in counted for n in names):
                yield mistake(
                    LOOP, node.lineno, f"`{still[0]}` is never counted up: every step trains on "
                    "the same pictures", f"`{still[0]} += 1` at the end of the loop.",
                )  # fmt: skip
                break


def starts_at_number(context: Context, name: ast.Name) -> bool:
    """Whether a name is set to 0 and to nothing else that changes."""
    key = context.flow.key(name)
    values = context.flow.values.get(key, []) if key else []
    return bool(values) and any(constant(value) == 0 for value in values)


def changed(node: ast.AST) -> list[ast.Name]:
    """The names that a statement gives a value which is not written down."""
    if isinstance(node, ast.AugAssign):
        targets: list[ast.AST] = [node.target]
    elif isinstance(node, ast.Assign) and not isinstance(node.value, ast.Constant):
        targets = list(node.targets)
    elif isinstance(node, (ast.For, ast.NamedExpr, ast.comprehension)):
        targets = [node.target]
    else:
        return []
    return [n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]


def ends_in_loop(context: Context) -> Iterator[Finding]:
    """stop, join or close as a plain statement of the training loop: after the first step."""
    found = [
        statement.value
        for loop in context.loops
        if isinstance(loop, LOOPS) and innermost(context, loop)
        for statement in loop.body
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and dotted(statement.value).rpartition(".")[2] in ENDS
        and ends_training(context, statement.value)
    ]
    for call in sorted(set(found), key=lambda c: c.lineno)[:1]:
        names = ", ".join(dict.fromkeys(f"`{dotted(c)}`" for c in found))
        yield mistake(
            LOOP, call.lineno, f"{names} in the training loop: it ends after its first step",
            "Put it behind the loop, to the left by one level.",
        )  # fmt: skip


def innermost(context: Context, loop: ast.AST) -> bool:
    """Whether a loop takes steps, and not only epochs."""
    return not any(loop in context.script.above(other) for other in context.loops)


def ends_training(context: Context, call: ast.Call) -> bool:
    """Whether a call ends a session, a coordinator or the processes (not a file or a thread)."""
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr in ("request_stop", "shutdown", "destroy_process_group"):
        return True
    made = {
        dotted(n).rpartition(".")[2]
        for n in context.flow.reach(call.func.value)
        if isinstance(n, ast.Call)
    }
    return bool(made & {"Coordinator", "MonitoredTrainingSession", "Session", "InteractiveSession"})


# --- what is drawn once ---------------------------------------------------------------------------


def drawn_once(context: Context) -> Iterator[Finding]:
    script = context.script
    for function in graph_functions(context):
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            name = script.name(node.func)
            if not name.startswith(("numpy.random.", "random.")) or name.endswith(
                ("seed", "default_rng")
            ):
                continue
            outer = [
                dotted(n).rpartition(".")[2] for n in script.above(node) if isinstance(n, ast.Call)
            ]
            if not any(o in OUTSIDE for o in outer):
                yield mistake(
                    DRAWN, node.lineno, f"`{dotted(node)}` runs once, when the graph is built: all "
                    "pictures get the same number", "Draw with `tf.random.uniform`, which runs for "
                    "each picture.",
                )  # fmt: skip


def graph_functions(context: Context) -> list[Function]:
    """The functions that TensorFlow runs once and keeps the operations of."""
    script = context.script
    python = {
        n.id for c in script.find(*OUTSIDE) for a in c.args for n in ast.walk(a)
        if isinstance(n, ast.Name)
    }  # fmt: skip
    mapped = {
        n.id
        for call in script.find("map", "interleave", "flat_map", "filter")
        if isinstance(call.func, ast.Attribute) and script.mentions("tensorflow")
        for a in [*call.args, *(k.value for k in call.keywords)]
        for n in ast.walk(a)
        if isinstance(n, ast.Name)
    }
    work = [
        f
        for name, functions in script.functions.items()
        for f in functions
        if name in mapped
        or any(script.name(getattr(d, "func", d)).endswith("tensorflow.function")
               for d in f.decorator_list)
        or (context.tf1 and any(script.function_of(c) is f for c in script.find(*READERS)))
    ]  # fmt: skip
    found: list[Function] = []
    for function in work:  # grows
        if function in found or function.name in python:
            continue
        found.append(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                work += script.functions.get(node.func.id, [])
    return found
