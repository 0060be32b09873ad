"""Validation: every rank its share, sums over all ranks, and nobody left waiting."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from workshop.check_script.context import FITS, Context
from workshop.check_script.finding import Finding, cannot_tell, mistake, present
from workshop.check_script.five import REDUCERS, is_gradient
from workshop.check_script.flow import MOST
from workshop.check_script.remedies import VALIDATION, lost, remedy
from workshop.check_script.script import Function, argument, dotted

NAMES = re.compile(r"(^|_)(val|valid|validate|validation|eval|evaluate|evaluation|test)(_|$)")
ALSO = ("all_gather", "gather", "reduce", "allgather", "all_gather_into_tensor")
# what hands a number on as it is: tensor(x), x.item()
OUTER = {"tensor", "constant", "convert_to_tensor", "float", "array", "asarray", "as_tensor",
         "cast", "FloatTensor", "float32", "float64", "Variable"}  # fmt: skip
INNER = {"item", "to", "cuda", "float", "double", "detach", "clone", "numpy", "result"}
MEANS = {"mean", "reduce_mean", "evaluate", "accuracy_score", "average"}


def check(context: Context) -> Iterator[Finding]:
    script, flow, advice = context.script, context.flow, remedy(VALIDATION, context.framework)
    marks = validations(context)
    if not marks:
        if context.elsewhere or context.other:
            yield lost(context, VALIDATION, None, "", "valid|eval|test|accuracy")
        elif hidden := script.foreign_calls("valid|eval|test_|accuracy"):
            yield cannot_tell(
                VALIDATION, hidden[0][1], f"`{hidden[0][0]}` is defined elsewhere",
                f"See there that it sums over ranks. {advice}",
            )  # fmt: skip
        else:
            yield present(VALIDATION, None, "nothing is validated here")
        return
    holders = {script.function_of(mark) for mark in marks}
    holders |= {f for mark in marks for f in flow.called(mark)}
    reducers = [
        c for c in script.find(*REDUCERS, *ALSO)[:MOST] if reduces(context, c, set(marks), holders)
    ]
    for mark in marks:
        if flow.guarded(mark) and (context.in_training(mark) or loops(context, mark) or reducers):
            ends = "waits for the others for ever" if reducers else "makes the others wait"
            yield mistake(
                VALIDATION, mark.lineno, f"only some ranks validate, which {ends}",
                f"Validate on every rank. {advice}",
            )  # fmt: skip
            return
    for call in reducers:
        values = call.args[:1] or [k.value for k in call.keywords][:1]
        if any(averaged(context, value, call, set()) for value in values):
            yield mistake(
                VALIDATION, call.lineno, f"`{dotted(call)}` is given each rank's average: the mean "
                "of means is not the mean where ranks have unequal shares", advice,
            )  # fmt: skip
            return
    if reducers:
        yield present(VALIDATION, reducers[0].lineno, f"`{dotted(reducers[0])}` over all ranks")
        return
    averages = script.find("MetricAverageCallback")
    if averages:
        yield present(
            VALIDATION, averages[0].lineno, "the ranks' results are averaged, which is exact where "
            "all validate equally many pictures",
        )  # fmt: skip
    elif script.mentions("torchmetrics"):
        yield present(
            VALIDATION, script.imports.get("torchmetrics"), "torchmetrics sums over ranks"
        )
    else:
        yield lost(
            context, VALIDATION, marks[0].lineno, "each rank tells a result of its own",
            "average|reduce|sync|gather|sum",
        )  # fmt: skip


def validations(context: Context) -> list[ast.Call]:
    """The calls that validate, or by which one sees that the code around them does."""
    script = context.script
    found = [c for c in script.find("evaluate") if isinstance(c.func, ast.Attribute)]
    found += [
        c
        for c in script.find("eval")
        if isinstance(c.func, ast.Attribute) and not c.args and not c.keywords
    ]
    found += [c for c in script.find(*FITS) if argument(c, None, "validation_data") is not None]
    for name, functions in script.functions.items():
        if NAMES.search(name):
            found += [site for function in functions for site in context.flow.call_sites[function]]
    for node in script.nodes:
        if isinstance(node, (ast.For, ast.AsyncFor)):
            names = [n for n in ast.walk(node.iter) if isinstance(n, (ast.Name, ast.Attribute))]
            if any(NAMES.search(dotted(n).rpartition(".")[2]) for n in names):
                found += [n for n in ast.walk(node) if isinstance(n, ast.Call)][:1]
    return sorted(set(found), key=lambda call: (call.lineno, call.col_offset))


def loops(context: Context, mark: ast.Call) -> bool:
    """Whether a validation stands in a loop that also trains."""
    outer = context.script.loop_of(mark)
    while outer is not None:
        if outer in context.loops:
            return True
        outer = context.script.loop_of(outer)
    return False


def reduces(
    context: Context, call: ast.Call, marks: set[ast.Call], holders: set[Function | None]
) -> bool:
    """Whether a reduction belongs to a validation: to its function, or to its result."""
    script, flow = context.script, context.flow
    reached = flow.reach(*call.args, without=context.models)
    if any(is_gradient(node) for node in reached):
        return False
    names = {n.attr for n in reached if isinstance(n, ast.Attribute)}
    if names & {"non_trainable_variables", "buffers", "named_buffers"}:
        return False
    here = script.function_of(call)
    if here in holders or marks & reached:
        return True
    return here is not None and any(
        script.function_of(site) in holders for site in flow.call_sites.get(here, [])
    )


def averaged(context: Context, node: ast.AST, call: ast.Call, seen: set[object]) -> bool:
    """Whether a number was divided, or came out of a mean, before `call`."""
    flow, script = context.flow, context.script
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Div)
    if isinstance(node, (ast.Tuple, ast.List)):
        return any(averaged(context, item, call, seen) for item in node.elts)
    if isinstance(node, ast.Call):
        last = dotted(node).rpartition(".")[2]
        if last in MEANS:
            return True
        if last in INNER and isinstance(node.func, ast.Attribute):
            return averaged(context, node.func.value, call, seen)
        if last in OUTER and node.args:
            return averaged(context, node.args[0], call, seen)
        inner = [v for f in flow.called(node) for v in flow.values.get((f, "return"), [])]
        return any(averaged(context, value, call, seen) for value in inner)
    key = flow.key(node)
    if key is None or key in seen:
        return False
    seen.add(key)
    for value in flow.values.get(key, []):
        place = script.parents.get(value)
        if isinstance(place, ast.AugAssign):
            late = script.function_of(place) is script.function_of(call)
            late = late and place.lineno > call.lineno
            if isinstance(place.op, ast.Div) and not late:
                return True
        elif isinstance(place, ast.Assign) and call in ast.walk(place):
            continue  # x = allreduce(x)
        elif averaged(context, value, call, seen) and not later(context, place, call):
            return True
    return False


def later(context: Context, place: ast.AST | None, call: ast.Call) -> bool:
    """Whether a statement follows the call, in its function."""
    return (
        isinstance(place, ast.stmt)
        and context.script.function_of(place) is context.script.function_of(call)
        and place.lineno > call.lineno
    )
