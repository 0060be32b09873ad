"""Which values depend on which: on the rank, the number of ranks, or another expression.

What is read by a rank is not itself the rank: the rank goes through arithmetic, comparisons and
texts, and not through calls of libraries, while the number of ranks goes through everything. All
assignments of a name count, whatever their order, and an attribute is one variable in the whole
file. So a dependence that is there is found, and one that is found may not be there.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from rn50lib.workshop.check_script.script import (
    LIBRARIES,
    SCOPES,
    Function,
    Script,
    constant,
    dotted,
)

Key = tuple[object, str]  # (scope, name); (None, ".attribute"); (function, "return")

RANK, LOCAL, SIZE = "rank", "local rank", "size"
NAMES = {
    RANK: {"rank", "global_rank", "world_rank"},
    LOCAL: {"local_rank", "local_process_index"},
    SIZE: {"world_size", "num_replicas", "num_ranks", "n_ranks", "ngpus_per_node"},
}
CALLS = {
    RANK: {"rank", "get_rank", "Get_rank"},
    LOCAL: {"local_rank", "get_local_rank", "get_node_local_rank"},
    SIZE: {"size", "get_world_size", "Get_size"},
}
VARIABLES = {
    RANK: {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "HOROVOD_RANK"},
    LOCAL: {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "HOROVOD_LOCAL_RANK"},
    SIZE: {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "HOROVOD_SIZE"},
}
MAIN = re.compile(r"is_main|main_process|is_master|is_chief|rank_?zero|is_rank_?0|is_first", re.I)
PLAIN = (ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare,
         ast.IfExp, ast.JoinedStr, ast.FormattedValue, ast.Tuple, ast.List, ast.Starred, ast.Slice,
         ast.NamedExpr, ast.keyword)  # fmt: skip
THROUGH = {"int", "str", "float", "bool", "hash", "abs", "Path", "join", "format"}  # calls
MANY = 20  # functions of one name
MOST = 200  # assignments of one name that are followed; scripts have fewer
GROWS = {"append", "extend", "add", "insert", "update"}  # methods that put something in


class Flow:
    """The dependences of one script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.values: dict[Key, list[ast.AST]] = defaultdict(list)
        self.conditions: dict[Key, list[ast.AST]] = defaultdict(list)
        self.bound: dict[ast.AST, set[str]] = defaultdict(set)
        self.call_sites: dict[Function, list[ast.Call]] = defaultdict(list)
        self._facts: dict[tuple[ast.AST, bool], tuple[list[Key], set[str]]] = {}
        self._guarded: dict[ast.AST, bool] = {}
        for node in script.nodes:
            self._names(node)
        for node in script.nodes:
            self._bind(node)
        self.depending = {kind: self._depending(kind) for kind in (RANK, LOCAL, SIZE)}

    # --- what is assigned -------------------------------------------------------------------------

    def _names(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            self.bound[self.script.scope(node)].add(node.id)
        elif isinstance(node, ast.arg):
            self.bound[self.script.scope(node)].add(node.arg)

    def key(self, node: ast.AST) -> Key | None:
        """The variable that a name or attribute stands for."""
        if isinstance(node, ast.Attribute):
            return (None, "." + node.attr)
        if not isinstance(node, ast.Name):
            return None
        scope: ast.AST | None = self.script.scope(node)
        while scope is not None and node.id not in self.bound[scope]:
            scope = self.script.scope(scope) if scope is not self.script.tree else None
        return (scope or self.script.tree, node.id)

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value, node)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr, ast.AugAssign)):
            if node.value is not None:
                self._assign(node.target, node.value, node)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            self._assign(node.target, node.iter, node)
        elif isinstance(node, ast.withitem):
            if node.optional_vars is not None:
                self._assign(node.optional_vars, node.context_expr, node)
        elif isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)):
            function = self.script.function_of(node)
            if function and node.value is not None:
                self.values[(function, "return")].append(node.value)
        elif isinstance(node, ast.Call):
            self._call(node)

    def _assign(self, target: ast.AST, value: ast.AST, place: ast.AST) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            pairs = self._unpacked(value, len(target.elts))
            for i, item in enumerate(target.elts):
                for part in (row[i] for row in pairs) if pairs else [value]:
                    self._assign(item, part, place)
            return
        while isinstance(target, (ast.Starred, ast.Subscript)):
            target = target.value
        key = self.key(target)
        if key:
            self.values[key].append(value)
            self.conditions[key] += self.tests(place)

    def _unpacked(self, value: ast.AST, count: int) -> list[list[ast.expr]]:
        """What `a, b = value` gives to each name, where the value shows it."""
        found: list[ast.AST] = [value]
        if isinstance(value, ast.Call):
            found = [
                n.value
                for function in self.called(value)
                for n in ast.walk(function)
                if isinstance(n, ast.Return) and n.value is not None
            ]
        rows = [n.elts for n in found if isinstance(n, ast.Tuple) and len(n.elts) == count]
        return rows if rows and len(rows) == len(found) else []

    def _call(self, call: ast.Call) -> None:
        for function in self.called(call):
            self.call_sites[function].append(call)
            parameters = [*function.args.posonlyargs, *function.args.args]
            if isinstance(self.script.parents.get(function), ast.ClassDef):
                parameters = parameters[1:]
            given: list[tuple[ast.arg, ast.AST]] = []
            for parameter, value in zip(parameters, call.args, strict=False):
                if isinstance(value, ast.Starred):
                    break
                given.append((parameter, value))
            by_name = {p.arg: p for p in [*parameters, *function.args.kwonlyargs]}
            given += [
                (by_name[str(k.arg)], k.value) for k in call.keywords if str(k.arg) in by_name
            ]
            for parameter, passed in given:
                self.values[(function, parameter.arg)].append(passed)
        if isinstance(call.func, ast.Attribute) and call.func.attr in GROWS:
            key = self.key(call.func.value)
            if key:
                self.values[key] += call.args
                self.conditions[key] += self.tests(call)

    def called(self, call: ast.Call) -> list[Function]:
        """The functions of this file that a call may run; a class counts as its __init__."""
        func = call.func
        if isinstance(func, ast.Name):
            if func.id in self.script.classes:
                body = self.script.classes[func.id].body
                return [n for n in body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
            return self.script.functions.get(func.id, [])
        if isinstance(func, ast.Attribute) and func.attr in self.script.methods:
            root = self.script.name(func).split(".")[0]
            found = self.script.methods[func.attr]
            # a name that many classes share says nothing about which of them is meant
            return [] if root in LIBRARIES or len(found) > MANY else found
        return []

    def tests(self, node: ast.AST) -> list[ast.AST]:
        """The conditions of the `if`s around a node, in its function."""
        found: list[ast.AST] = []
        for outer in self.script.above(node):
            if isinstance(outer, SCOPES):
                break
            if isinstance(outer, (ast.If, ast.IfExp)):
                found.append(outer.test)
        return found

    # --- what depends on what ---------------------------------------------------------------------

    def within(self, expression: ast.AST, plain: bool = False) -> Iterator[ast.AST]:
        """The nodes of an expression; what a function of this file is given only if it returns it.

        A lambda's body belongs to its expression. `plain`: not what libraries are given.
        """
        stack = [expression]
        while stack:
            node = stack.pop()
            yield node
            if plain and not isinstance(node, (*PLAIN, ast.Call)):
                continue
            if plain and isinstance(node, ast.Call) and dotted(node).split(".")[-1] not in THROUGH:
                continue
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in self.script.functions
            ):
                continue
            stack += self.script.children.get(node, ())

    def facts(self, expression: ast.AST, plain: bool) -> tuple[list[Key], set[str]]:
        """The variables and returned values that an expression is made of, and which of RANK,
        LOCAL and SIZE stand in it."""
        if (expression, plain) not in self._facts:
            keys: list[Key] = []
            kinds: set[str] = set()
            for node in self.within(expression, plain):
                key = self.key(node)
                if key:
                    keys.append(key)
                elif isinstance(node, ast.Call):
                    keys += [(function, "return") for function in self.called(node)]
                kinds.update(kind for kind in self.kinds(plain) if self.source(node, kind))
            self._facts[expression, plain] = (keys, kinds)
        return self._facts[expression, plain]

    def kinds(self, plain: bool) -> tuple[str, ...]:
        return (RANK,) if plain else (LOCAL, SIZE)

    def source(self, node: ast.AST, kind: str) -> bool:
        """Whether a node is itself the rank, the local rank or the number of ranks."""
        if isinstance(node, ast.Name):
            return node.id in NAMES[kind]
        if isinstance(node, ast.Attribute):
            return node.attr in NAMES[kind]
        if isinstance(node, ast.Subscript):
            return constant(node.slice) in VARIABLES[kind]
        if isinstance(node, ast.Call):
            name = self.script.name(node.func)
            first, _, last = name.rpartition(".")
            if last in ("get", "getenv") and node.args:
                return constant(node.args[0]) in VARIABLES[kind]
            if kind == RANK and MAIN.search(last):
                return True
            return last in CALLS[kind] and (
                first.startswith(("horovod", "torch.distributed")) or last.lower().startswith("get")
            )
        # rank % device_count() is the rank on one machine
        return (
            kind == LOCAL
            and isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Mod)
            and self.depends(node.left, RANK)
        )

    def _spawned(self) -> set[Key]:
        """The first parameters of functions given to torch's `spawn`: the number of a process."""
        names = [c.args[0].id for c in self.script.find("spawn", "start_processes")
                 if c.args and isinstance(c.args[0], ast.Name)]  # fmt: skip
        functions = [f for name in names for f in self.script.functions.get(name, [])]
        return {(f, f.args.args[0].arg) for f in functions if f.args.args}

    def _depending(self, kind: str) -> set[Key]:
        users: dict[Key, list[Key]] = defaultdict(list)
        found: set[Key] = self._spawned() if kind == LOCAL else set()
        self.depending = {**getattr(self, "depending", {}), kind: found}
        for key in [*self.values, *self.conditions]:
            sources = self.values.get(key, [])
            if kind == RANK:  # what only rank 0 sets differs between the ranks
                sources = [*sources, *self.conditions.get(key, [])]
            for value in sources:
                keys, kinds = self.facts(value, kind == RANK)
                if kind in kinds:
                    found.add(key)
                for used in keys:
                    users[used].append(key)
        work = list(found)
        while work:
            for key in users[work.pop()]:
                if key not in found:
                    found.add(key)
                    work.append(key)
        return found

    def depends(self, expression: ast.AST | None, kind: str) -> bool:
        """Whether an expression differs with RANK, LOCAL or SIZE."""
        if expression is None:
            return False
        keys, kinds = self.facts(expression, kind == RANK)
        return kind in kinds or any(key in self.depending[kind] for key in keys)

    def reach(
        self, *expressions: ast.AST | None, without: frozenset[Key] = frozenset()
    ) -> set[ast.AST]:
        """All nodes that expressions are made of, through every assignment; `without` those that
        come only through some variables."""
        found: set[ast.AST] = set()
        seen: set[Key] = set(without)
        work = [e for e in expressions if e is not None]
        while work:
            expression = work.pop()
            found.update(self.within(expression))
            for key in self.facts(expression, False)[0]:
                if key not in seen:
                    seen.add(key)
                    work += self.values.get(key, [])[:MOST]
        return found

    # --- what only some ranks do ------------------------------------------------------------------

    def guarded(self, node: ast.AST) -> bool:
        """Whether a node runs under a condition on the rank."""
        if node not in self._guarded:
            self._guarded[node] = False  # a function that calls itself
            self._guarded[node] = self._is_guarded(node)
        return self._guarded[node]

    def _is_guarded(self, node: ast.AST) -> bool:
        inner = node
        for outer in self.script.above(node):
            if isinstance(outer, (ast.If, ast.IfExp, ast.While)) and inner is not outer.test:
                if self.depends(outer.test, RANK):
                    return True
            elif isinstance(outer, ast.BoolOp) and inner in outer.values:
                before = outer.values[: outer.values.index(inner)]
                if any(self.depends(value, RANK) for value in before):
                    return True
            if self._left_before(outer, inner):
                return True
            if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
                marks = [self.script.name(d) for d in outer.decorator_list]
                sites = self.call_sites.get(outer, [])
                return any(MAIN.search(mark) for mark in marks) or (
                    bool(sites) and all(self.guarded(site) for site in sites)
                )
            inner = outer
        return False

    def _left_before(self, block: ast.AST, inner: ast.AST) -> bool:
        """`if rank != 0: return` stands earlier in the same block."""
        body = getattr(block, "body", None)
        if not isinstance(body, list) or inner not in body:
            return False
        leaves = (ast.Return, ast.Continue, ast.Break)
        return any(
            isinstance(earlier, ast.If)
            and isinstance(earlier.body[-1], leaves)
            and self.depends(earlier.test, RANK)
            for earlier in body[: body.index(inner)]
        )
