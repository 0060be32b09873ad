"""Which values each variable of a script may have: its assignments, whatever their order.

An argument is assigned to its parameter, what a function returns to its calls, and an attribute is
one variable in the whole file.
"""

from __future__ import annotations

import ast
from collections import defaultdict

from workshop.check_script.script import LIBRARIES, SCOPES, Function, Script

Key = tuple[object, str]  # (scope, name); (None, ".attribute"); (function, "return")

MANY = 20  # functions of one name
GROWS = {"append", "extend", "add", "insert", "update"}  # methods that put something in


class Assignments:
    """The assignments of one script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.values: dict[Key, list[ast.AST]] = defaultdict(list)
        self.conditions: dict[Key, list[ast.AST]] = defaultdict(list)
        self.bound: dict[ast.AST, set[str]] = defaultdict(set)
        self.call_sites: dict[Function, list[ast.Call]] = defaultdict(list)
        for node in script.nodes:
            self._names(node)
        for node in script.nodes:
            self._bind(node)

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
