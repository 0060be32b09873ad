"""Which values depend on which: on the rank, the number of ranks, or another expression.

What is read by a rank is not itself the rank: the rank goes through arithmetic, comparisons and
texts, and not through calls of libraries, while the number of ranks goes through everything. A
dependence that is there is found, and one that is found may not be there.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from workshop.check_script.assignments import Assignments, Key
from workshop.check_script.script import Script, constant, dotted

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
MOST = 200  # assignments of one name that are followed; scripts have fewer


class Flow(Assignments):
    """The dependences of one script."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._facts: dict[tuple[ast.AST, bool], tuple[list[Key], set[str]]] = {}
        self._guarded: dict[ast.AST, bool] = {}
        self.depending = {kind: self._depending(kind) for kind in (RANK, LOCAL, SIZE)}

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
