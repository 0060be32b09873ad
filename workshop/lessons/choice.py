"""The functions that a learner writes in a lesson: judged at once, or replaced by finished ones."""

from __future__ import annotations

import html
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from workshop import output
from workshop.checks.alone import cell_of
from workshop.checks.compare import Failed, Mistake, Wrong, examine
from workshop.checks.engine import message, own_frame

Function = Callable[..., Any]
# what a notebook has imported by then
IMPORTED = {"time.": "import time", "np.": "import numpy as np", "torch.": "import torch"}


def choose(
    name: str, own: Function, finished: Function, judge: Callable[[], str], show: bool = False
) -> Function:
    """Print what `judge` finds; return the learner's function if it is right, else the finished.

    `judge` returns what is right. It raises Wrong, or NotImplementedError if nothing is written
    yet; with `show`, the finished version is shown then, folded.
    """
    try:
        said = judge()
    except NotImplementedError:
        print(f"○ `{name}` is not written yet. A finished version is used until then.")
        if show:
            code = inspect.getsource(finished)
            page = f"<details><summary>Show it</summary><pre>{html.escape(code)}</pre></details>"
            output.show(page, code)
        return finished
    except Wrong as problem:
        print(f"✗ {problem.diagnosis} {problem.remedy}")
    except Failed as error:
        print(f"✗ `{name}` ended with {error.text} {error.place}".rstrip())
    except Exception as error:
        print(f"✗ `{name}` ended with {message(error)} {own_frame(error, own)}".rstrip())
    else:
        print(f"✓ {said}")
        return own
    print("Until it is right, a finished version is used.")
    return finished


def write_chosen(file: str, chosen: Function, finished: Function, name: str) -> None:
    """Write the version that `choose` has returned to a file, as a function called `name`."""
    if chosen is finished:
        text = inspect.getsource(chosen).replace(f"def {chosen.__name__}(", f"def {name}(", 1)
    else:
        text = cell_of(chosen)
    imports = [line for used, line in IMPORTED.items() if used in text]
    head = "\n".join(["from __future__ import annotations", *imports])
    Path(file).write_text(f"{head}\n\n\n{text.strip()}\n")


def choose_by_cases(
    name: str, own: Function, finished: Function, cases: Sequence[tuple[Any, ...]],
    mistakes: Sequence[Mistake] = (), right: str = "",
) -> Function:  # fmt: skip
    """Choose as `choose` does; a right function returns in each case what the finished one does.

    `mistakes` are those of `compare.examine`. For a right function, `right` is printed.
    """

    def judge() -> str:
        if own(*cases[0]) is None:
            raise NotImplementedError
        examine(own, cases, finished, mistakes, one_case=True)
        return right or f"`{name}` is right in all {len(cases)} test cases."

    return choose(name, own, finished, judge)
