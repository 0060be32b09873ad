"""Small checkouts and notebooks for the tests of the workshop."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rn50 import cli

MASTER = """# %% [markdown]
# # 00 · Start here
#
# After this notebook you know that it was built.
#
# **Time:** 5 minutes · **Needs:** nothing · **On a CPU:** a second

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
number: int = 7  # what is printed

# %%
print(number)

# %% [markdown]
# ## The same again

# %%
print(number)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one master, as `rn50 workshop` recognises it."""
    root = tmp_path / "checkout"
    (root / "rn50lib").mkdir(parents=True)
    (root / "notebooks" / "source").mkdir(parents=True)
    (root / "notebooks" / "source" / "00_start_here.py").write_text(MASTER, encoding="utf-8")
    return root


Code = str | tuple[str, list[str]]


def write_notebook(path: Path, *cells: Code, parameters: str = "", about: Any = None) -> Path:
    """Write an .ipynb with a title, code cells (with tags as a pair) and, if passed, parameters."""
    parts: list[dict[str, Any]] = [
        {"cell_type": "markdown", "metadata": {}, "source": f"# {path.stem} title", "id": "title"}
    ]
    tagged: list[Code] = [(parameters, ["parameters"])] if parameters else []
    for i, cell in enumerate([*tagged, *cells]):
        source, tags = cell if isinstance(cell, tuple) else (cell, [])
        parts.append(
            {
                "cell_type": "code",
                "execution_count": None,
                "id": f"cell-{i}",
                "metadata": {"tags": tags} if tags else {},
                "outputs": [],
                "source": source,
            }
        )
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {
        "cells": parts,
        "metadata": {"kernelspec": kernel, "rn50": about or {}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(book), encoding="utf-8")
    return path


@pytest.fixture
def notebook(tmp_path: Path) -> Callable[..., Path]:
    """`notebook("name", "code", ...)` writes an .ipynb in the test's folder."""

    def make(name: str, *cells: Code, parameters: str = "", about: Any = None) -> Path:
        path = tmp_path / f"{name}.ipynb"
        return write_notebook(path, *cells, parameters=parameters, about=about)

    return make


@pytest.fixture
def rn50(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """`rn50(folder, "workshop", ...)` runs the command line here: (status, stdout, stderr)."""

    def run(folder: Path, *args: str) -> tuple[int, str, str]:
        monkeypatch.chdir(folder)
        capsys.readouterr()
        try:
            status = cli.main([str(arg) for arg in args])
        except SystemExit as stop:
            status = int(stop.code or 0)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.fixture(scope="module")
def browser_page() -> Iterator[tuple[Any, list[str]]]:
    """A page of a headless Chromium, and the addresses that it requested."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    quiet = ["quic", "background-networking", "component-update", "sync", "gpu"]
    flags = ["--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in quiet)]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=flags)
        page = browser.new_page()
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        yield page, requests
        browser.close()


@pytest.fixture(autouse=True)
def verdicts_of_a_new_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no check of a lesson repeat the verdict of an earlier test."""
    from workshop.lessons import choice

    monkeypatch.setattr(choice, "_refused", {})
