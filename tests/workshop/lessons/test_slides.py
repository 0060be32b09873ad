"""The tables beside the slides' code: every cell parses, and every name in it exists.

A child process looks the names up in TensorFlow, Horovod and PyTorch as they are installed.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT, clean_environment

# What the names in the cells stand for. A class stands for an object of it.
NAMES = {
    "tf": "tensorflow",
    "hvd": "horovod.tensorflow",
    "callbacks": "horovod.tensorflow.keras.callbacks",
    "torch": "torch",
    "dist": "torch.distributed",
    "DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "DistributedSampler": "torch.utils.data.DistributedSampler",
    "sampler": "torch.utils.data.DistributedSampler",
    "DataLoader": "torch.utils.data.DataLoader",
    "save_file": "safetensors.torch.save_file",
    "net": "torch.nn.Module",
    "os": "os",
    "model": "tensorflow.keras.Model",
    "optimizer": "tensorflow.keras.optimizers.Optimizer",
    "tape": "tensorflow.GradientTape",
    "v": "tensorflow.Variable",
    "dataset": "tensorflow.data.Dataset",
    "manager": "tensorflow.train.CheckpointManager",
    "strategy": "tensorflow.distribute.Strategy",
}


def tables() -> tuple[list[list[str]], list[list[str]]]:
    """The rows of notebook 03's two tables: (the slides, today, remark) and (change, three
    libraries)."""
    master = (ROOT / "notebooks" / "source" / "03_horovod.py").read_text(encoding="utf-8")
    part = master.partition("### The slides' calls, today")[2].partition("# %%")[0]
    rows = [line[4:-2].split(" | ") for line in part.splitlines() if line.startswith("# | ")]
    heads = [i for i, row in enumerate(rows) if "`" not in "".join(row)]
    return rows[heads[0] + 1 : heads[1]], rows[heads[1] + 1 :]


TODAY, FIVE = tables()


def code(cell: str) -> str:
    """The code of a cell, without a remark behind it."""
    return cell.split("`")[1] if "`" in cell else ""


def cells() -> list[tuple[str, str]]:
    """(text, "tf1" or "today") of every cell of code."""
    new = [code(row[1]) for row in TODAY] + [code(cell) for row in FIVE for cell in row[1:]]
    old = [(code(row[0]), "tf1") for row in TODAY]
    return old + [(text, "today") for text in new + prose()]


def prose() -> list[str]:
    """The names that remarks mention: `manager.restore_or_initialize`."""
    remarks = [row[2] for row in TODAY] + [cell.rpartition("`")[2] for row in FIVE for cell in row]
    name = re.compile(rf"\b(?:{'|'.join(NAMES)})(?:\.\w+)+")
    return [found for text in remarks for found in name.findall(text)]


def test_every_row_fills_every_column() -> None:
    assert len(TODAY) == 21 and len(FIVE) == 6
    assert {len(row) for row in TODAY} == {3} and {len(row) for row in FIVE} == {4}


def test_every_cell_is_python() -> None:
    for text, _ in cells():
        ast.parse(text)


def test_the_five_changes_are_numbered_in_order() -> None:
    numbers = [row[0][0] for row in FIVE if row[0][0].isdigit()]
    assert numbers == ["1", "2", "3", "4", "5"]


LOOK_UP = '''
import ast, importlib, inspect, json, sys
import tensorflow as tf

names, cells = json.load(sys.stdin)
checked, wrong = set(), []


def find(dotted):
    """The object of a dotted name; modules on the way are imported where they have to be."""
    parts = dotted.split(".")
    found = importlib.import_module(parts[0])
    for stop, part in enumerate(parts[1:], 2):
        if not hasattr(found, part):
            importlib.import_module(".".join(parts[:stop]))
        found = getattr(found, part)
    return found


def resolve(node, known):
    """What an expression stands for: an object, or None where that is not known."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Call):
        called = resolve(node.func, known)
        if inspect.isclass(called):
            return called
        if getattr(tf.data.Dataset, getattr(called, "__name__", ""), None) is not None:
            return tf.data.Dataset  # its methods give a dataset again
        return None
    if not isinstance(node, ast.Attribute):
        return None
    owner = resolve(node.value, known)
    if owner is None or not (inspect.isclass(owner) or inspect.ismodule(owner)):
        return None
    checked.add(ast.unparse(node))
    if hasattr(owner, "DESCRIPTOR"):  # a protocol buffer knows its fields only so
        assert node.attr in owner.DESCRIPTOR.fields_by_name, node.attr
        return None
    return getattr(owner, node.attr)


def look(text, known):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            resolve(node, known)
        elif isinstance(node, ast.Call) and node.keywords:
            called = resolve(node.func, known)
            if callable(called):
                parameters = inspect.signature(called).parameters
                if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
                    for keyword in node.keywords:
                        assert keyword.arg in parameters, keyword.arg


today = {name: find(dotted) for name, dotted in names.items()}
tf1 = {"tf": tf.compat.v1, "hvd": today["hvd"]}
for text, kind in cells:
    if "tf.contrib" in text:
        assert not hasattr(tf.compat.v1, "contrib")
        continue
    try:
        look(text, today if kind == "today" else tf1)
    except (AttributeError, AssertionError) as error:
        wrong.append(f"{text}: {error!r}")
print(json.dumps([sorted(checked), wrong]))
'''


@pytest.mark.slow
@pytest.mark.needs("tensorflow", "torch", "horovod")
def test_every_name_exists() -> None:
    looked = subprocess.run(
        [sys.executable, "-c", LOOK_UP],
        input=json.dumps([NAMES, cells()]),
        env=clean_environment(CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert looked.returncode == 0, looked.stderr
    checked, wrong = json.loads(looked.stdout.splitlines()[-1])
    assert not wrong, "\n".join(wrong)
    # the look-up looked: names of each library, an argument's owner, and a chain through calls
    assert {"hvd.grouped_allreduce", "dist.init_process_group", "strategy.scope"} <= set(checked)
    assert "dataset.shuffle(1000).batch(20).prefetch" in checked
    assert {"manager.restore_or_initialize", "sampler.set_epoch"} <= set(checked)
    roots = {name.split(".")[0].split("(")[0] for name in checked}
    used = {
        n.id for text, _ in cells() for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)
    }
    assert set(NAMES) <= used, "NAMES holds a name that no cell uses"
    assert {"tf", "hvd", "dist", "torch", "net", "v", "manager", "tape", "optimizer"} <= roots
