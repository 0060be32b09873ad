"""What a learner reads about a function that is missing, half written, failing or wrong."""

from __future__ import annotations

import ast
import builtins
import dis
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workshop.lessons.choice import lesson_check, pasteable, without_types

ROOT = Path(__file__).parents[3]
STUBS = ("return None", "...")


def f(a: float, b: float) -> float:
    return a * b


def stub(a: float, b: float) -> Any:
    """Return the product."""
    return None  # your code


def dots(a: float, b: float) -> Any: ...


def passes(a: float, b: float) -> Any:
    pass  # later
    return None


def forgets(a: float, b: float) -> Any:
    a * b


def fails(a: float, b: float) -> Any:
    return a.product(b)  # type: ignore[attr-defined]


def not_implemented(a: float, b: float) -> Any:
    raise NotImplementedError("not implemented for 'Long'")  # as PyTorch does for a wrong type


def listed(a: float, b: float) -> Any:
    return [a * b]


def in_tensorflow(a: float, b: float) -> Any:
    raise ValueError(
        'in user code:\n\n    File "cell", line 2, in f  *\n        g(x)\n'
        "\n    ValueError: no rank\n"
    )


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (stub, "○ `f` is not written yet."),
        (dots, "○ `f` is not written yet."),
        (passes, "○ `f` is not written yet."),
        (forgets, "✗ `f`: your function returns nothing: is a `return` missing?"),
        (fails, "✗ `f` ended with AttributeError: 'float' object has no attribute 'product'."
                f" In fails, line {fails.__code__.co_firstlineno + 1}: `return a.product(b)"),
        (not_implemented, "✗ `f` ended with NotImplementedError: not implemented for 'Long'. In"),
        (listed, "✗ `f`: listed(2, 3): the result is of type list, not a number. Return a number."),
        (in_tensorflow, "✗ `f` ended with ValueError: no rank. In in_tensorflow,"
                        f" line {in_tensorflow.__code__.co_firstlineno + 1}:"),
        (lambda a, b: 6.0, "✗ `f`: <lambda>(0.5, 4) gives 6. It should be 2."),
        (3, "✗ `f` ended with TypeError: 'int' object is not callable"),
        (lambda a, b: a + b, "✗ `f`: <lambda>(2, 3) gives 5. It should be 6."),
        (lambda a, b: b * a, "✓ `f` is right"),
    ],
)  # fmt: skip
def test_what_is_said(own: Callable[..., Any], said: str, capsys: pytest.CaptureFixture) -> None:
    chosen = lesson_check((f, [(2.0, 3.0), (0.5, 4.0)], ()))("f", own)
    assert capsys.readouterr().out.startswith(said)
    assert chosen is (own if said.startswith("✓") else f)


def test_an_answer_that_changes_its_arguments_leaves_the_cases_intact() -> None:
    cases = [([2.0, 3.0],), ([1.0],)]

    def pops(numbers: list[float]) -> float:
        return numbers.pop()

    lesson_check((sum, cases, ()))("sum", pops)
    assert cases == [([2.0, 3.0],), ([1.0],)]


def test_a_check_that_runs_again_says_the_same(capsys: pytest.CaptureFixture) -> None:
    check = lesson_check((f, [(2.0, 3.0)], ()))
    used = check("f", forgets)
    first = capsys.readouterr().out
    assert check("f", used) is f
    assert capsys.readouterr().out == first and first.startswith("✗")

    def own(a: float, b: float) -> float:
        return b * a

    assert check("f", own) is own
    assert capsys.readouterr().out.startswith("✓")


def test_shown_code_has_the_learner_s_name_and_no_types() -> None:
    assert pasteable(f, "product") == "def product(a, b):\n    return a * b"


def names_of(code: types.CodeType, *kinds: str) -> set[str]:
    """Return the names that instructions of some kinds use in a code and the functions in it."""
    found = {one.argval for one in dis.get_instructions(code) if one.opname in kinds}
    inside = [names_of(c, *kinds) for c in code.co_consts if isinstance(c, types.CodeType)]
    return found.union(*inside)


def shown() -> Iterator[tuple[str, str, ast.FunctionDef, str]]:
    """Yield the lesson, name, definition and notebook of each finished function.

    The notebook is that up to the cell after the one in which a learner writes the function.
    """
    for path in sorted((ROOT / "workshop/lessons").glob("nb*.py")):
        tree = ast.parse(path.read_text())
        nodes = reversed([*ast.walk(tree)])  # what is defined outermost is last
        defined = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
        names = {
            ast.unparse(node.args[0]).strip("'"): ast.unparse(node.args[2])
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("choose")
        }
        notebook = next((ROOT / "notebooks/source").glob(f"{path.stem[2:4]}_*.py")).read_text()
        cells = ["# %%" + cell for cell in notebook.split("\n# %%")]
        for number, cell in enumerate(cells):
            for node in ast.walk(ast.parse(cell)):
                if isinstance(node, ast.FunctionDef) and ast.unparse(node.body[-1]) in STUBS:
                    finished = defined.get(names.get(node.name, node.name))
                    if finished:
                        before = "\n".join(cells[: number + 2])
                        yield path.stem[:4], node.name, finished, before


SHOWN = list(shown())


def test_every_lesson_shows_functions() -> None:
    assert len({lesson for lesson, *_ in SHOWN}) == 9 and len(SHOWN) > 25


@pytest.mark.parametrize(
    ("finished", "notebook"),
    [pytest.param(*rest, id=f"{lesson}-{name}") for lesson, name, *rest in SHOWN],
)
def test_shown_code_runs_where_it_is_pasted(finished: ast.FunctionDef, notebook: str) -> None:
    code = compile(
        without_types(ast.unparse(finished), finished.name), "", "exec", dont_inherit=True
    )
    used = names_of(code, "LOAD_GLOBAL") | names_of(code, "LOAD_NAME")
    known = names_of(compile(notebook, "", "exec"), "STORE_NAME") | {*dir(builtins)}
    assert used <= known
