"""Who may import what: the core takes NumPy alone, frameworks stay where they are.

Every import statement is looked at, those inside functions too; a process of its own then shows
what really gets loaded.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "rn50lib"
# each may import itself and what stands before it
LAYERS = ("rn50lib", "data_prep", "workshop")

CORE = (
    "recipe",
    "config.presets",
    "network",
    "memory",
    "config",
    "records",
    "optim",
    "metrics",
    "report",
    "tools.scaling",
    "overrides",
)
FRAMEWORKS = (
    "torch",
    "tensorflow",
    "keras",
    "tf_keras",
    "horovod",
    "nvidia",
    "torchvision",
    "mxnet",
)
# packages beyond NumPy, imported where a checksum is computed, a picture opened, a YAML file read
LATE = {
    "records.framing": "google_crc32c",
    "records.imageinfo": "PIL",
    "config.file": "yaml",
}
# where a framework may be imported: files and folders
HOMES = {
    "torch": (
        "rn50lib/torch/",
        "rn50lib/data/torch_",
        "rn50lib/data/dali.py",  # tensors on the GPU
        "rn50lib/distributed/ddp.py",
        "rn50lib/distributed/horovod.py",
        "rn50lib/distributed/gpu.py",  # which GPU is a worker's
        # what two verbs alone do with it: measure the device, read and write its files of weights
        "rn50/diagnose/peak.py",
        "rn50/state_dict.py",
        # processes that a lesson measures in, and one that watches a learner's script
        "workshop/lessons/precision/worker.py",
        "workshop/lessons/inference/worker.py",
        "workshop/checks/watch.py",
        # checks of answers on PyTorch's groups and layers, late: in the process of the answer
        "workshop/checks/process_ranks.py",
        "workshop/checks/ex06.py",
        "workshop/checks/ex07.py",
    ),
    "tensorflow": (
        "workshop/checks/recipes.py",  # writes the records of a check
        "rn50lib/tensorflow/",
        "rn50lib/data/tf_",
        "rn50lib/data/dali.py",  # which GPU it has chosen
        "rn50lib/distributed/horovod.py",
        "rn50lib/distributed/gpu.py",
        "rn50/saved_model.py",  # `rn50 export` writes it
        "workshop/lessons/tfrecord/streams.py",  # what TensorFlow's own buffer does
    ),
    "horovod": (
        "rn50lib/distributed/horovod.py",
        "rn50lib/torch/parallel.py",
        "rn50lib/tensorflow/gradient_sync.py",
    ),
    # a lesson takes the graph apart
    "nvidia": (
        "rn50lib/data/dali",
        "workshop/lessons/dali/steps.py",
    ),
}
# the doctor asks each framework what it is, in processes of their own
ASKS = "rn50/doctor/"


@functools.cache
def everything() -> dict[str, Path]:
    """Every module of the three packages by its name: 'rn50lib.data.order'."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*.py")
    }


def modules() -> dict[str, Path]:
    """Every module of the library by its name below rn50lib: 'records.order'."""
    return {
        name.removeprefix("rn50lib").removeprefix("."): path
        for name, path in everything().items()
        if name.split(".")[0] == "rn50lib"
    }


@functools.cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path, top_level: bool = False) -> list[str]:
    """Names of the modules that a file imports; `top_level`: when it is imported itself."""
    tree = syntax(path)
    return list(named(path, statements(tree.body) if top_level else ast.walk(tree)))


def named(path: Path, nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level and node.module, f"{path}: relative import"
            yield node.module
            if node.module.split(".")[0] in LAYERS:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """What runs when a module is imported; `if TYPE_CHECKING:` does not."""
    for node in body:
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from statements(node.body + node.orelse)
        elif isinstance(node, ast.Try):
            handlers = [line for handler in node.handlers for line in handler.body]
            yield from statements(node.body + handlers + node.orelse)


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def known(imported: str) -> str | None:
    """The module of ours that an imported name stands in; None for somebody else's."""
    while imported and imported not in everything():
        imported = imported.rpartition(".")[0]
    return imported or None


def needs() -> dict[str, set[str]]:
    """Which modules of ours each one imports, at its head or later; its own package left out."""
    return {
        name: {
            found
            for imported in imports(path)
            if (found := known(imported)) and not name.startswith(f"{found}.") and found != name
        }
        for name, path in everything().items()
    }


def circles() -> list[list[str]]:
    """Groups of modules that import each other, directly or around (Tarjan's algorithm)."""
    graph, index, low, stack, found = needs(), {}, {}, [], []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def test_there_is_something_to_look_at() -> None:
    names = modules()
    assert {"training", "records.order", "backends.torch.step"} <= names.keys()
    assert {"workshop.session", "data_prep.im2rec"} <= everything().keys()
    assert "torch" in set(imports(names["backends.torch.step"]))


@pytest.mark.parametrize("name", [m for m in modules() if m.startswith(CORE)])
def test_the_core_imports_the_standard_library_and_numpy(name: str) -> None:
    late = set(imports(modules()[name])) - set(imports(modules()[name], top_level=True))
    for imported in imports(modules()[name]):
        top = imported.split(".")[0]
        if imported in late and top == LATE.get(name):
            continue
        assert top in sys.stdlib_module_names or top in ("numpy", "rn50lib"), imported


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_is_imported_in_its_own_files_only(framework: str) -> None:
    homes = (*HOMES.get(framework, ()), ASKS)
    for path in everything().values():
        tops = {imported.split(".")[0] for imported in imports(path)}
        if framework in tops:
            assert place(path).startswith(homes), f"{place(path)} imports {framework}"


def foreign_private_names(path: Path) -> set[str]:
    """Names with an underscore in front that a file takes from what is not ours."""
    found = set()
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            found.update(part for name in names for part in name.split("."))
        elif isinstance(node, ast.Constant) and str(node.value).isidentifier():
            found.add(str(node.value))  # getattr(torch, "_name")
    return {name for name in found if name.startswith("_") and name not in own_names()}


@functools.cache
def own_names() -> set[str]:
    """What the three packages define themselves, and what others document in spite of the line."""
    own = {"_exit"}
    for path in everything().values():
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if ast.unparse(node.value) in ("self", "cls"):
                    own.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
    return own


def test_a_framework_s_private_parts_are_used_in_one_file_only() -> None:
    """`torch._foreach_norm` and its like stand in PyTorch's documentation."""
    found = {}
    for path in everything().values():
        if {imported.split(".")[0] for imported in imports(path)} & set(FRAMEWORKS):
            names = {
                n for n in foreign_private_names(path) if not n.startswith(("__", "_foreach_"))
            }
            if names:
                found[place(path)] = names
    operators = {f"_convolution_pointwise{end}" for end in ("", "_")}
    operators.add("_reorder_convolution_weight")
    assert found == {"rn50lib/torch/cpu.py": operators}


def test_nobody_changes_how_python_tells_of_errors() -> None:
    for path in everything().values():
        assert "sys.excepthook" not in path.read_text(), path


def test_the_loop_sees_protocols_only() -> None:
    allowed = {"backends", "pipelines", "comm"}  # the packages, where the protocols stand
    for imported in imports(modules()["training"]):
        parts = imported.split(".")
        if parts[0] == "rn50lib" and len(parts) > 2 and parts[1] in allowed:
            function = parts[2] in ("agree", "max_difference")
            opens = function or parts[2].startswith(("open_", "build_"))
            assert opens or parts[2][0].isupper(), imported


def test_imports_go_one_way() -> None:
    wrong = {
        (name, other)
        for name, others in needs().items()
        for other in others
        if LAYERS.index(other.split(".")[0]) > LAYERS.index(name.split(".")[0])
    }
    assert wrong == set()


def test_nothing_imports_itself_around() -> None:
    assert circles() == []


def test_benchmarks_know_nothing_of_the_library() -> None:
    for path in (ROOT / "benchmarks").glob("peer*.py"):
        assert not any(i.startswith("rn50lib") for i in imports(path)), path


def test_the_package_itself_imports_nothing() -> None:
    assert imports(LIBRARY / "__init__.py") == []


def loaded(code: str) -> set[str]:
    """The top-level modules that are there after `code` ran in a process of its own."""
    code = f"import sys\n{code}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_everything_else_loads_no_framework() -> None:
    """All modules but those that are a framework's own: nothing loads one by the way."""
    homes = {home for places in HOMES.values() for home in places}
    names = [
        f"rn50lib.{name}"
        for name, path in modules().items()
        if not place(path).startswith(tuple(homes)) and name not in ("", "__init__")
        and not name.startswith("tools.doctor")
    ]  # fmt: skip
    assert len(names) > 25
    code = "import importlib\n" + "\n".join(f"importlib.import_module({n!r})" for n in names)
    assert not loaded(code) & {*FRAMEWORKS, "matplotlib", "IPython", "ipywidgets", "pandas"}


def test_importing_the_workshop_loads_no_framework() -> None:
    found = loaded("import workshop")
    assert not found & {*FRAMEWORKS, "matplotlib", "ipywidgets", "papermill", "nbconvert"}


@pytest.mark.parametrize("name", CORE)
def test_the_core_runs_where_only_numpy_is_installed(name: str) -> None:
    # a finder that refuses whatever is neither built in nor NumPy
    code = f"""
import importlib.abc
class OnlyNumpy(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        top = fullname.split(".")[0]
        if top not in sys.stdlib_module_names and top not in ("numpy", "rn50lib"):
            raise ModuleNotFoundError(fullname)
sys.meta_path.insert(0, OnlyNumpy())
import rn50lib.{name}
"""
    without = ("optim", "recipe", "records", "report", "overrides")
    assert "numpy" in loaded(code) or name in without
