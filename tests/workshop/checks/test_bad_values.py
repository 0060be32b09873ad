"""Every exercise, answered with bad values and with other types."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.workshop.checks.answers import changed
from workshop import catalogue
from workshop.checks import engine

NO_NUMBERS = {"ex01.frame"}
# answers.py has wrong values for those that need a framework; a test of a learner's returns nothing
RESULTS = [item.name for item in catalogue.EXERCISES if not item.needs and item.name != "ex01.leak"]


def altered(name: str, change: Callable[[Any], Any]) -> Any:
    """Return the right answer with its value, or its result, changed."""
    answer = changed(name)
    if not catalogue.find(name).function:
        return change(answer)

    @functools.wraps(answer)
    def function(*arguments):
        return change(answer(*arguments))

    return function


def everywhere(value: Any, change: Callable[[Any], Any], only: int | None = None) -> Any:
    """The value with every leaf changed, or with leaf number `only` of its array or container."""
    count = 0

    def changed(item: Any) -> Any:
        nonlocal count
        if isinstance(item, np.ndarray):
            flat = [changed(one) for one in item.ravel().tolist()]
            kind = None if all(type(one) in (int, float) for one in flat) else object
            return np.array(flat, kind).reshape(item.shape)
        if isinstance(item, dict):
            return {key: changed(one) for key, one in item.items()}
        if isinstance(item, list | tuple | set):
            return type(item)(changed(one) for one in item)
        count += 1
        return change(item) if only in (None, count - 1) else item

    return changed(value)


def emptied(value: Any) -> Any:
    """Return an empty value of the same kind."""
    if isinstance(value, np.ndarray):
        return np.zeros((0,), value.dtype)
    if isinstance(value, tuple) and any(isinstance(part, np.ndarray) for part in value):
        return tuple(map(emptied, value))
    return type(value)() if hasattr(value, "__len__") else np.zeros(0)


def refused(name: str, answer: Any) -> engine.Result:
    result = engine.judge(name, answer)
    assert result.outcome == engine.WRONG, result.lines
    assert "cannot use this answer" not in result.said, result.lines
    return result


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize(
    "bad",
    [float("nan"), float("inf"), None, 1j, "six"],
    ids=["nan", "inf", "None", "complex", "text"],
)
def test_bad_value_is_refused(name, bad):
    refused(name, altered(name, lambda value: everywhere(value, lambda _: bad)))
    if name not in NO_NUMBERS and name != "ex02.stride":  # which may be None
        refused(name, altered(name, lambda value: everywhere(value, lambda _: bad, only=0)))


@pytest.mark.parametrize("name", [n for n in RESULTS if catalogue.find(n).function])
def test_forgotten_return_is_reported(name):
    said = refused(name, altered(name, lambda value: None)).said
    assert said == "your function returns nothing: is a `return` missing?"


@pytest.mark.parametrize("name", RESULTS)
def test_empty_answer_is_refused(name):
    refused(name, altered(name, emptied))


# --- other types, with which the answer is as right -----------------------------------------------


def as_type(kind: Any) -> Callable[[Any], Any]:
    """Convert arrays and numbers to a different type; whole numbers stay whole."""

    def convert(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            same_kind = (value.dtype.kind in "iu") == issubclass(kind, np.integer)
            return value.astype(kind) if same_kind else value
        if isinstance(value, dict):
            return {key: convert(item) for key, item in value.items()}
        if isinstance(value, list | tuple | set):
            return type(value)(map(convert, value))
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        return kind(value) if float(kind(value)) == value or kind == np.float32 else value

    return convert


def listed(value: Any) -> Any:
    """Replace tuples by lists and lists by tuples."""
    if isinstance(value, tuple):
        return [listed(item) for item in value]
    if isinstance(value, list):
        return tuple(map(listed, value))
    return value


@pytest.mark.parametrize("name", [name for name in RESULTS if name != "ex01.frame"])
@pytest.mark.parametrize(
    "other",
    [*map(as_type, (np.float32, np.float64, np.longdouble, np.int32)), listed],
    ids=["float32", "float64", "longdouble", "int32", "tuples for lists"],
)
def test_equivalent_types_pass(name, other):
    result = engine.judge(name, altered(name, other))
    assert result.passed, result.lines
