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

CORE = (
    "recipe",
    "presets",
    "network",
    "memory",
    "experiment",
    "records",
    "optim",
    "metrics",
    "report",
    "scaling",
    "seams",
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
# the one package beyond NumPy, imported where a checksum is computed
LATE = {"records.tfrecord": "google_crc32c"}
# where a framework may be imported: files and folders under rn50lib
HOMES = {
    "torch": (
        "backends/torch/",
        "pipelines/torch_",
        "pipelines/dali.py",  # tensors on the GPU
        "comm/ddp.py",
        "comm/horovod.py",
        "workshop/in_torch/",  # processes that a notebook measures in
    ),
    "tensorflow": (
        "backends/tensorflow/",
        "pipelines/tf_",
        "pipelines/dali.py",  # which GPU it has chosen
        "comm/horovod.py",
        "workshop/input_streams.py",  # the lesson shows what TensorFlow's own buffer does
    ),
    "horovod": ("comm/horovod.py", "backends/torch/exchange.py", "backends/tensorflow/exchange.py"),
    "nvidia": ("pipelines/dali", "workshop/dali_steps.py"),  # a lesson takes the graph apart
}
# the doctor asks each framework what it is, in processes of their own
ASKS = "doctor/"


@functools.cache
def modules() -> dict[str, Path]:
    """Every module of the library by its name below rn50lib: 'records.order'."""
    return {
        ".".join(path.relative_to(LIBRARY).with_suffix("").parts).removesuffix(".__init__"): path
        for path in LIBRARY.rglob("*.py")
    }


@functools.cache
def imports(path: Path, top_level: bool = False) -> list[str]:
    """Names of the modules that a file imports; `top_level`: when it is imported itself."""
    tree = ast.parse(path.read_text())
    return list(named(path, statements(tree.body) if top_level else ast.walk(tree)))


def named(path: Path, nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level and node.module, f"{path}: relative import"
            yield node.module
            if node.module.split(".")[0] == "rn50lib":
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
    return path.relative_to(LIBRARY).as_posix()


def test_there_is_something_to_look_at() -> None:
    names = modules()
    assert {"training", "records.order", "backends.torch.step", "workshop.session"} <= names.keys()
    assert "torch" in set(imports(names["backends.torch.step"]))


@pytest.mark.parametrize("name", [m for m in modules() if m.split(".")[0] in CORE])
def test_the_core_imports_the_standard_library_and_numpy(name: str) -> None:
    late = set(imports(modules()[name])) - set(imports(modules()[name], top_level=True))
    for imported in imports(modules()[name]):
        top = imported.split(".")[0]
        if imported in late and imported == LATE.get(name):
            continue
        assert top in sys.stdlib_module_names or top in ("numpy", "rn50lib"), imported


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_is_imported_in_its_own_files_only(framework: str) -> None:
    homes = (*HOMES.get(framework, ()), ASKS)
    for path in modules().values():
        tops = {imported.split(".")[0] for imported in imports(path)}
        if framework in tops:
            assert place(path).startswith(homes), f"{place(path)} imports {framework}"


def test_the_loop_sees_protocols_only() -> None:
    allowed = {"backends", "pipelines", "comm"}  # the packages, where the protocols stand
    for imported in imports(modules()["training"]):
        parts = imported.split(".")
        if parts[0] == "rn50lib" and len(parts) > 2 and parts[1] in allowed:
            opens = parts[2].startswith(("open_", "build_")) or parts[2] in ("agree", "apart")
            assert opens or parts[2][0].isupper(), imported


def test_only_the_command_line_knows_the_workshop() -> None:
    for name, path in modules().items():
        if name != "cli" and not name.startswith("workshop"):
            found = [i for i in imports(path) if i.startswith("rn50lib.workshop")]
            assert not found, f"{name}: {found}"
    at_import = imports(modules()["cli"], top_level=True)
    assert not any("workshop" in imported for imported in at_import)


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
        and not name.startswith(("workshop", "doctor"))
    ]  # fmt: skip
    assert len(names) > 25
    code = "import importlib\n" + "\n".join(f"importlib.import_module({n!r})" for n in names)
    assert not loaded(code) & {*FRAMEWORKS, "matplotlib", "IPython", "ipywidgets", "pandas"}


def test_importing_the_workshop_loads_no_framework() -> None:
    found = loaded("from rn50lib import workshop")
    assert not found & {*FRAMEWORKS, "matplotlib", "ipywidgets", "papermill", "nbconvert"}


@pytest.mark.parametrize("name", CORE)
def test_the_core_runs_where_only_numpy_is_installed(name: str) -> None:
    if name not in {m.split(".")[0] for m in modules()}:
        assert name == "scaling"  # not written yet
        return
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
    without = ("optim", "presets", "recipe", "records", "report", "seams")
    assert "numpy" in loaded(code) or name in without
