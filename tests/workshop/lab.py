"""JupyterLab in a headless browser: a server over a folder, and a learner's actions in it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import clean_environment

TOKEN = "test"
PLACES = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_RUNTIME_DIR": "runtime",
          "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
          "RN50_RUNS": "runs", "RN50_DATA": "data"}  # fmt: skip
# the page contains all cells, including those out of sight
SETTINGS = {"notebook-extension/tracker": {"windowingMode": "none"},
            "apputils-extension/notification": {"fetchNews": "false"}}  # fmt: skip


@contextmanager
def serve(folder: Path, home: Path | None = None, **environment: str) -> Iterator[str]:
    """Start a JupyterLab over `folder`, on localhost with a token, and yield its address.

    Runs, data and settings go to `home`. It ends with the block, and its kernels with it.
    """
    home = home or folder
    for name, values in SETTINGS.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values), encoding="utf-8")
    places = {name: str(home / place) for name, place in PLACES.items()} | environment
    log = home / "lab.log"
    with open(log, "w", encoding="utf-8") as told:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", "--port=0",
             "--ServerApp.ip=127.0.0.1", f"--IdentityProvider.token={TOKEN}",
             f"--ServerApp.root_dir={folder}"],
            env=clean_environment(**places), cwd=folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=told, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 300
        address = None
        while address is None:
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
            address = answering(log)
        yield address
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def answering(log: Path) -> str | None:
    """Return the address that a server has logged, as soon as it responds there."""
    found = re.search(r"http://127\.0\.0\.1:\d+/", log.read_text())
    if found is None:
        return None
    try:
        urllib.request.urlopen(f"{found[0]}api?token={TOKEN}", timeout=30).close()
    except urllib.error.URLError:
        return None
    return found[0]


class Lab:
    """A notebook open in JupyterLab, controlled through the page."""

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.address = page, address
        page.set_default_timeout(120_000)
        page.set_viewport_size({"width": 1300, "height": 1000})

    def open(self, path: str) -> None:
        """Open a notebook, and wait until its kernel is there."""
        self.page.goto(f"{self.address}lab/tree/{path}?token={TOKEN}")
        self.wait_for_kernel()

    def wait_for_kernel(self) -> None:
        self.page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]:visible").wait_for()
        self.page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()

    @property
    def notebook(self) -> Any:
        """The notebook in front."""
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")

    def cell(self, text: str) -> Any:
        """The code cell that contains a text."""
        editors = self.page.locator(".cm-content", has_text=text)
        return self.notebook.locator(".jp-CodeCell", has=editors).first

    def write(self, text: str, code: str) -> None:
        """Replace the text of the cell that contains `text`."""
        self.cell(text).locator(".cm-content").click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(code)

    def answer(self, text: str, code: str) -> Any:
        """Write `code` into the cell that contains `text`, and run it."""
        self.write(text, code)
        return self.run(code.splitlines()[0])

    def run(self, text: str, seconds: float = 120) -> Any:
        """Run the cell that contains a text, wait until it is done, and return it.

        A kernel that has just started silently drops requests, so they are repeated.
        """
        cell = self.cell(text)
        prompt = cell.locator(".jp-InputPrompt").first
        before = prompt.inner_text()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            cell.locator(".cm-content").first.click()
            self.page.keyboard.press("Control+Enter")
            asked = time.monotonic()
            while time.monotonic() < deadline:
                now = prompt.inner_text()
                if now != before and re.fullmatch(r"\[\d+\]:?", now.strip()):
                    return cell
                if now == before and time.monotonic() > asked + 5:
                    break
                self.page.wait_for_timeout(100)
        raise AssertionError(f"JupyterLab has not run the cell with {text!r}")
