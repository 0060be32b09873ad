"""`show` finds the real file and line of functions, methods, classes and constants."""

from __future__ import annotations

import pytest

from rn50lib import recipe
from rn50lib.errors import UserError
from workshop import source


@pytest.mark.parametrize(
    ("obj", "name", "begins"),
    [
        (recipe.learning_rate, "learning_rate", "def learning_rate("),
        (recipe.Recipe, "Recipe", "@dataclass"),
        ("rn50lib.recipe:BN_EPS", "BN_EPS", "BN_EPS = "),
        ("rn50lib.recipe:Recipe", "Recipe", "@dataclass"),
    ],
)
def test_source_matches_the_file(obj, name, begins):
    file, first, found, text = source.find(obj)
    assert found == name and text.startswith(begins)
    lines = open(file, encoding="utf-8").read().splitlines(keepends=True)
    count = len(text.splitlines())
    assert "".join(lines[first - 1 : first - 1 + count]).rstrip() == text.rstrip()


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ("rn50lib.recipe:NOTHING", "defines no NOTHING"),
        ("rn50lib.nothing:X", "no module rn50lib.nothing"),
    ],
)
def test_objects_without_source_are_refused(obj, message):
    with pytest.raises(UserError, match=message):
        source.find(obj)


def test_shown_source_has_its_location(monkeypatch):
    shown: list[dict[str, str]] = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    source.show("rn50lib.recipe:BN_EPS")
    head, _, code = shown[0]["text/plain"].partition("\n\n")
    assert head.startswith("rn50lib/recipe.py:") and "BN_EPS = " in code
    assert f"\n`````python\n{code}`````" in shown[0]["text/markdown"]
