"""A Python file as a tree: what its names stand for, what it calls, what it defines.

The file is parsed and never imported or run.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rn50lib.errors import UserError

LARGEST = 8 * 2**20  # bytes; the tree takes about a hundred times as much memory

# Libraries whose functions do not build a training script's data, model or loop by themselves. What
# comes from anywhere else is "defined elsewhere", and the check says that it cannot see it.
LIBRARIES = set(
    "absl albumentations apex cv2 einops h5py horovod imageio keras matplotlib mpi4py mxnet numpy "
    "nvidia packaging pandas PIL psutil pynvml rich safetensors scipy skimage sklearn "
    "tensorboard tensorboardX tensorflow tensorflow_addons tensorflow_io tf_keras tf_slim timm "
    "torch torchmetrics torchvision tqdm wandb webdataset yaml".split()
) | set(sys.stdlib_module_names)

Function = ast.FunctionDef | ast.AsyncFunctionDef
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Module)
LOOPS = (ast.For, ast.AsyncFor, ast.While)


def read(path: Path) -> ast.Module:
    """The tree of a Python file. Raises UserError, in one line, for what is none."""
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder: name the script in it")
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a file that one can read twice: name a .py file")
        size = path.stat().st_size
        if size > LARGEST:
            raise UserError(
                f"{path} has {size / 2**20:.0f} MiB, and this reads {LARGEST // 2**20} at most: "
                "is it a script?"
            )
        source = path.read_bytes()
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}") from None
    except ValueError as problem:  # a NUL in the name
        raise UserError(f"{str(path)!r} cannot be read: {problem}") from None
    if path.suffix == ".ipynb":
        raise UserError(
            f"{path} is a notebook: `jupyter nbconvert --to script` writes its code as a .py file"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the script's own strings, such as "\d"
            return ast.parse(source, str(path))
    except SyntaxError as problem:
        line = f", line {problem.lineno}" if problem.lineno else ""
        raise UserError(f"{path}{line} is not Python: {problem.msg}") from None
    except (RecursionError, MemoryError):  # each Python has words of its own for it, or none
        raise UserError(f"{path} is not Python: it is nested too deeply") from None
    except ValueError as problem:
        raise UserError(f"{path} is not Python: {problem}") from None


class Script:
    """A tree with what the rules ask of it again and again."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.nodes = list(ast.walk(tree))
        self.parents: dict[ast.AST, ast.AST] = {}
        self.children: dict[ast.AST, list[ast.AST]] = {}  # without constants and the like
        for node in self.nodes:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, (ast.expr_context, ast.operator, ast.cmpop)):
                    continue  # one object for all of its kind
                self.parents[child] = node
                if not isinstance(child, ast.Constant):
                    self.children.setdefault(node, []).append(child)
        self.aliases: dict[str, str] = {}  # name → what it was imported as, in full
        self.imports: dict[str, int] = {}  # module → line of its first import
        self.stars: list[str] = []  # modules of `from m import *`
        self.functions: dict[str, list[Function]] = defaultdict(list)
        self.methods: dict[str, list[Function]] = defaultdict(list)
        self.classes: dict[str, ast.ClassDef] = {}
        for node in self.nodes:
            self._define(node)
        self.calls: dict[str, list[tuple[str, ast.Call]]] = defaultdict(list)  # by last part
        for node in self.nodes:
            if isinstance(node, ast.Call):
                name = self.name(node.func)
                self.calls[name.rpartition(".")[2]].append((name, node))

    def _define(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for item in node.names:
                self.imports.setdefault(item.name, node.lineno)
                if item.asname:
                    self.aliases[item.asname] = item.name
                else:
                    root = item.name.split(".")[0]
                    self.aliases[root] = root
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            self.imports.setdefault(module, node.lineno)
            for item in node.names:
                if item.name == "*":
                    self.stars.append(module)
                else:
                    self.aliases[item.asname or item.name] = f"{module}.{item.name}"
                    self.imports.setdefault(f"{module}.{item.name}", node.lineno)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inside = isinstance(self.parents.get(node), ast.ClassDef)
            (self.methods if inside else self.functions)[node.name].append(node)
        elif isinstance(node, ast.ClassDef):
            self.classes[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.Attribute, ast.Name)):
            # tf1 = tf.compat.v1: a short name for a part of a module
            name = self.name(node.value)
            target = node.targets[0]
            if isinstance(target, ast.Name) and name.split(".")[0] in LIBRARIES:
                self.aliases.setdefault(target.id, name)

    # --- names ------------------------------------------------------------------------------------

    def name(self, node: ast.AST) -> str:
        """What an expression is called in full: `hvd.init` → "horovod.torch.init".

        Names that were not imported keep the name they have here; whatever is not a chain of
        names begins with "?".
        """
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        root = self.aliases.get(node.id, node.id) if isinstance(node, ast.Name) else "?"
        full = ".".join([root, *reversed(parts)])
        full = re.sub(r"\.compat\.v[12]\b", "", full)
        return re.sub(r"^(tf_)?keras\.", "tensorflow.keras.", full)

    def find(self, *names: str, under: str = "") -> list[ast.Call]:
        """The calls whose last part is one of `names`, of modules that start with one of the words
        in `under` (any object's where `under` is empty), in the order of lines."""
        roots = tuple(under.split())
        found = [
            call
            for last in names
            for full, call in self.calls.get(last, [])
            if not roots or full.startswith(roots)
        ]
        return sorted(found, key=lambda call: (call.lineno, call.col_offset))

    def mentions(self, *modules: str) -> bool:
        """Whether one of these modules, or a part of it, is imported."""
        return any(name == m or name.startswith(m + ".") for m in modules for name in self.imports)

    def foreign(self, node: ast.AST) -> str | None:
        """The name, as written here, of a function that is defined in a file of the user's own."""
        root = node
        while isinstance(root, (ast.Attribute, ast.Call, ast.Subscript)):
            root = root.func if isinstance(root, ast.Call) else root.value
        if not isinstance(root, ast.Name):
            return None
        if root.id in self.aliases:
            if self.aliases[root.id].split(".")[0] in LIBRARIES:
                return None
            return dotted(node)
        if not self.stars or hasattr(builtins, root.id) or root.id in self.bound:
            return None
        if root.id in self.functions or root.id in self.classes:
            return None
        return dotted(node)  # from an `import *`

    @property
    def bound(self) -> set[str]:
        """Every name that is assigned somewhere, as a variable or a parameter."""
        if not hasattr(self, "_bound"):
            stored = {
                n.id
                for n in self.nodes
                if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
            }
            self._bound = stored | {n.arg for n in self.nodes if isinstance(n, ast.arg)}
            self._bound |= {
                n.name for n in self.nodes if isinstance(n, ast.ExceptHandler) and n.name
            }
        return self._bound

    def foreign_calls(self, words: str = "") -> list[tuple[str, int]]:
        """(name, line) of the calls of what is defined elsewhere; those whose name has one of the
        words (a regular expression), where given."""
        found = []
        for entries in self.calls.values():
            for _, call in entries:
                name = self.foreign(call.func)
                if name and re.search(words, name, re.I):
                    found.append((name, call.lineno))
        return sorted(found, key=lambda item: item[1])

    # --- places -----------------------------------------------------------------------------------

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, from the inside to the outside."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def scope(self, node: ast.AST) -> ast.AST:
        """The function, class or module in which a node stands."""
        return next((n for n in self.above(node) if isinstance(n, SCOPES)), self.tree)

    def function_of(self, node: ast.AST) -> Function | None:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return next((n for n in self.above(node) if isinstance(n, kinds)), None)

    def loop_of(self, node: ast.AST) -> ast.For | ast.AsyncFor | ast.While | None:
        """The innermost loop around a node, in the same function."""
        for outer in self.above(node):
            if isinstance(outer, LOOPS):
                return outer
            if isinstance(outer, SCOPES):
                return None
        return None


def dotted(node: ast.AST) -> str:
    """A chain of names as it is written; what a call or an index in it takes is left out."""
    parts: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Subscript):
            node = node.value
        else:
            return ".".join([node.id if isinstance(node, ast.Name) else "?", *reversed(parts)])


def argument(call: ast.Call, place: int | None, *names: str) -> ast.expr | None:
    """An argument of a call by its place or one of its names; None where it is not given."""
    for keyword in call.keywords:
        if keyword.arg in names:
            return keyword.value
    if place is not None and place < len(call.args):
        found = call.args[place]
        return None if isinstance(found, ast.Starred) else found
    return None


def constant(node: ast.AST | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None
