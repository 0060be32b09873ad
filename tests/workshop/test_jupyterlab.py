"""JupyterLab in a real browser: a control redraws its figure, the figure of a running job moves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

from tests.conftest import clean_environment
from tests.workshop.conftest import write_notebook

pytestmark = [pytest.mark.slow, pytest.mark.needs("chromium", "jupyterlab", "torch")]

EXPLORE = """from rn50lib import workshop
import matplotlib.pyplot as plt

def draw(power):
    fig, ax = plt.subplots(figsize=(4, 2.5))
    ax.plot([x**power for x in range(10)])
    return fig, f"The last value is {9**power}."

workshop.explore(draw, alt="a curve", power=(1, 4, 1));"""

LIVE = """run = workshop.train(loader="synthetic", network="tiny", num_classes=4, image_shape=32,
    batch_size=4, data_nthreads=0, threads=1, num_epochs=3, benchmark_iters=200, disp_batches=20,
    profile="cpu")
run.live();"""

BAD = 'workshop.train(nettwork="tiny")'


@pytest.fixture
def lab(tmp_path) -> Iterator[str]:
    """The address of a JupyterLab over one notebook, on localhost with a token."""
    write_notebook(tmp_path / "demo.ipynb", EXPLORE, LIVE, BAD)
    home = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "RN50_RUNS": "runs", "RN50_DATA": "data"}  # fmt: skip
    log = tmp_path / "lab.log"
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", "--port=0",
         "--ServerApp.ip=127.0.0.1", "--IdentityProvider.token=test", f"--notebook-dir={tmp_path}"],
        env=clean_environment(**{name: str(tmp_path / place) for name, place in home.items()}),
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=open(log, "w"), start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 90
        found = None
        while found is None:
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
            found = re.search(r"http://127\.0\.0\.1:\d+/", log.read_text())
        urllib.request.urlopen(found[0] + "api?token=test", timeout=30).close()
        yield found[0]
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def run_all(page) -> None:
    """Run All; again where the kernel was not ready and JupyterLab dropped it without a word."""
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    begun = page.locator(".jp-InputPrompt", has_text=re.compile(r"\[(\*|\d+)\]"))
    for _ in range(5):
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        page.wait_for_timeout(3000)
        if begun.count():
            return
    raise AssertionError("JupyterLab runs no cell")


def test_controls_redraw_and_the_live_figure_moves(lab, browser_page, tmp_path):
    page, _ = browser_page
    page.set_default_timeout(120_000)
    page.set_viewport_size({"width": 1300, "height": 1700})
    page.goto(f"{lab}lab/tree/demo.ipynb?token=test")
    run_all(page)
    pictures = page.locator(".jp-OutputArea-output img")
    seen: set[str] = set()
    deadline = time.monotonic() + 120
    error = page.locator(".jp-OutputArea-output pre", has_text="has no setting")
    while not error.count():
        if time.monotonic() > deadline:
            page.screenshot(path=tmp_path / "late.png")
            raise AssertionError(f"the last cell has not run: see {tmp_path / 'late.png'}")
        if pictures.count() > 1:
            seen.add(pictures.nth(1).get_attribute("src"))
        page.wait_for_timeout(200)
    assert len(seen) > 1, "the figure of the running job never moved"
    assert pictures.count() == 2  # each updated where it stands
    assert error.inner_text().startswith("error: train has no setting 'nettwork': did you mean")

    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")
    before = pictures.first.get_attribute("src")
    assert page.locator(".rn50 p", has_text="The last value is 81.").count() == 1
    page.locator(".widget-slider .noUi-handle").first.focus()
    page.keyboard.press("ArrowRight")
    page.locator(".rn50 p", has_text="The last value is 729.").wait_for()
    assert pictures.first.get_attribute("src") != before
    page.screenshot(path=tmp_path / "jupyterlab.png")
