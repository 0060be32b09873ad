"""The tables beside the slides' code: every cell parses, and every name in it exists.

A child process looks the names up in TensorFlow, Horovod and PyTorch as they are installed.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from html import escape, unescape

import pytest

from tests.conftest import ROOT, clean_environment
from workshop import output
from workshop.lessons.horovod import slides

TABLES = (slides.TODAY, slides.FIVE)


def cells() -> list[tuple[str, str]]:
    """(text, "tf1" or "today") of every cell of code."""
    old = [(row[0], "tf1") for row in slides.TODAY.rows]
    new = [row[1] for row in slides.TODAY.rows] + [c for r in slides.FIVE.rows for c in r[1:]]
    return old + [(text, "today") for text in new + prose()]


def prose() -> list[str]:
    """The names that remarks and comments mention: `manager.restore_or_initialize`."""
    remarks = [row[2] for row in slides.TODAY.rows]
    remarks += [cell.partition("#")[2] for row in slides.FIVE.rows for cell in row]
    name = re.compile(rf"\b(?:{'|'.join(slides.NAMES)})(?:\.\w+)+")
    return [found for text in remarks for found in name.findall(text)]


def test_no_cell_is_wider_than_a_page_has_room_for() -> None:
    for table in TABLES:
        html = output.table_html(table.rows, table.columns)
        pieces = re.split(r"<[^>]+>|\s+", html)  # <wbr> is a place to break
        assert max(map(len, map(unescape, pieces))) < 40
        assert escape(table.rows[0][0]) in html.replace("<wbr>", "")


def test_every_row_fills_every_column() -> None:
    for table in TABLES:
        for row in table.rows:
            assert len(row) == len(table.columns), row
            assert all(row) and not any("\n" in cell for cell in row), row


def test_every_cell_is_python() -> None:
    for text, _ in cells():
        ast.parse(text)


def test_the_five_changes_are_numbered_in_order() -> None:
    numbers = [row[0][0] for row in slides.FIVE.rows if row[0][0].isdigit()]
    assert numbers == ["1", "2", "3", "4", "5"]


def test_a_table_shows_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(
        "IPython.display.display", lambda data, **_: shown.append(data["text/html"])
    )
    for table in TABLES:
        table.show()
        for text in (table.caption, *table.columns, *sum(table.rows, ())):
            assert f">{escape(text)}<" in shown[-1].replace("<wbr>", "")


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
        input=json.dumps([slides.NAMES, cells()]),
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
    assert set(slides.NAMES) <= used, "NAMES holds a name that no cell uses"
    assert {"tf", "hvd", "dist", "torch", "net", "v", "manager", "tape", "optimizer"} <= roots
