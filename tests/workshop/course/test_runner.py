"""The strict runner, with real kernels: what passes, what fails and why, what is ended."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from rn50lib.errors import UserError
from tests.conftest import clean_environment
from tests.support import Ended
from tests.workshop.conftest import write_notebook
from workshop.course import run

pytestmark = pytest.mark.slow

PASSES = """from workshop.session import Session
from pathlib import Path
s = Session("00", "ci", None, Path("d"), Path("r"))
s.note("answer", number * 6, "img/s", "the answer");"""

SPEAKS = """from IPython.display import Markdown, display
print("first", flush=True); print("second", flush=True)
display(Markdown("third"))
print("fourth")"""

# The grandchild leaves its parent's group and session, as a training run does.
HANGS = """import subprocess, sys, time
code = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
open("pids", "w").write(child.stdout.readline())
time.sleep(600)"""

BASH = """%%bash -e
(for i in $(seq 20); do echo line $i; done; echo; echo the reason; echo =====) >&2; exit 3"""

LEAVES = """import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
open("pids", "w").write(str(child.pid))"""


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """Two courses of small notebooks, run once: (finished processes, folder, all items)."""
    root = tmp_path_factory.mktemp("course")
    made = [
        write_notebook(
            root / "passes.ipynb", PASSES, SPEAKS, "import sys; print(sys.executable)",
            parameters='profile: str = "auto"  # the profile\nnumber: int = 7  # a number',
        ),
        write_notebook(root / "fails.ipynb", "x = 1", "print(x)\nraise ValueError('no <b>')", "1"),
        write_notebook(root / "bash.ipynb", BASH, "1"),
        write_notebook(root / "leaves.ipynb", LEAVES),
        write_notebook(root / "exits.ipynb", "import os; os._exit(3)", "1"),
        write_notebook(root / "skips.ipynb", "1", ("1 / 0", ["skip-execution"])),
    ]  # fmt: skip
    hangs = write_notebook(root / "hangs.ipynb", "1", HANGS, "2")
    # a python3 kernel that must not be used
    bad = root / "home" / "jupyter" / "kernels" / "python3"
    bad.mkdir(parents=True)
    argv = ["/bin/false", "{connection_file}"]
    spec = {"argv": argv, "display_name": "bad", "language": "python"}
    (bad / "kernel.json").write_text(json.dumps(spec))

    def start(out: str, *words: object) -> subprocess.Popen[str]:
        words = ("workshop", "run", *map(str, words), "--out", root / out)
        return subprocess.Popen(
            [sys.executable, "-m", "rn50", *words],
            env=clean_environment(JUPYTER_DATA_DIR=str(root / "home" / "jupyter")),
            cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    # the one that waits for its limit runs meanwhile
    running = {"out": start("out", *made), "late": start("late", hangs, "--time-limit", 12)}
    done, items = {}, []
    for name, process in running.items():
        out, err = process.communicate(timeout=300)
        done[name] = Ended(process.returncode, out, err)
        items += json.loads((root / name / "course.json").read_text())["notebooks"]
    return done, root, items


def entry(course, name: str) -> dict:
    return next(item for item in course[2] if item["name"] == name)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_exit_code_and_last_lines_lead_to_the_index(course):
    for name, passed in {"out": "2 of 6", "late": "0 of 1"}.items():
        done = course[0][name]
        assert done.status == 1, done
        last, index = done.out.splitlines()[-3:], course[1] / name / "index.html"
        assert last[0].startswith(f"{passed} notebooks passed in ")
        assert last[1:] == [str(index), index.as_uri()]


def test_passing_notebook_and_its_results(course):
    item = entry(course, "passes")
    assert item["status"] == "passed" and item["error"] == ""
    assert [(n["what"], n["value"], n["unit"]) for n in item["notes"]] == [
        ("the answer", 42, "img/s")
    ]
    assert item["seconds"] > 0


def test_lines_stay_before_or_after_what_is_displayed(course):
    """Pieces of one stream are joined, so that the page has no line between them."""
    book = json.loads((course[1] / "out" / "passes.ipynb").read_text())
    outputs = book["cells"][-2]["outputs"]
    texts = ["".join(o.get("text", "") or o["data"]["text/markdown"]) for o in outputs]
    assert texts == ["first\nsecond\n", "third", "fourth\n"]


def test_kernel_is_this_interpreter_whatever_kernels_exist(course):
    book = json.loads((course[1] / "out" / "passes.ipynb").read_text())
    assert "".join(book["cells"][-1]["outputs"][0]["text"]) == f"{sys.executable}\n"


def test_failing_notebook_has_error_and_excerpt(course):
    item = entry(course, "fails")
    assert item["status"] == "failed"
    assert item["error"] == "ValueError: no <b>"
    assert "raise ValueError" in item["excerpt"] and "\x1b" not in item["excerpt"]


def test_error_of_a_bash_cell_has_the_last_lines_that_it_printed(course):
    first, *printed = entry(course, "bash")["error"].splitlines()
    assert first.startswith("CalledProcessError: ") and first.endswith("exit status 3.")
    assert printed == [*(f"line {i}" for i in range(8, 21)), "the reason"]


def test_time_limit_ends_kernel_and_grandchild(course):
    item = entry(course, "hangs")
    assert item["status"] == "time limit"
    assert item["error"] == "stopped after its time limit of 12 s"
    assert "import subprocess" in item["excerpt"]
    assert 12 <= item["seconds"] < 120
    pid = int((course[1] / "late" / "files" / "hangs" / "pids").read_text())
    assert not is_alive(pid)


def test_leftover_processes_are_ended(course):
    pid = int((course[1] / "out" / "files" / "leaves" / "pids").read_text())
    assert entry(course, "leaves")["status"] == "passed" and not is_alive(pid)


def test_notebook_with_a_cell_that_was_not_executed_fails(course):
    item = entry(course, "skips")
    assert item["status"] == "failed"
    assert item["error"] == "this cell was not executed" and item["excerpt"] == "1 / 0"


def test_notebook_whose_kernel_died_fails(course):
    item = entry(course, "exits")
    assert item["status"] == "failed"
    assert item["error"].startswith("Kernel died")


def test_index_shows_status_excerpt_and_results_escaped(course):
    out, late = course[1] / "out", course[1] / "late"
    text = (out / "index.html").read_text()
    assert "2 of 6" in text and "✓ passed" in text and "✗ failed" in text
    assert "◷ time limit" in (late / "index.html").read_text()
    assert "ValueError: no &lt;b&gt;" in text and "no <b>" not in text
    assert "the answer" in text and "42 img/s" in text
    for page in ("passes", "fails"):
        assert f'href="{page}.html"' in text and (out / f"{page}.html").exists()
    assert (late / "hangs.html").exists()


def test_pages_load_nothing_from_outside(course):
    import re

    pages = [*course[1].glob("*/*.html")]
    assert len(pages) == 9
    for page in pages:
        text = page.read_text()
        assert not re.search(r"""(src|href)=["']?(https?:)?//""", text), page
        assert "require" not in re.sub(r"<pre>.*?</pre>", "", text, flags=re.S)


@pytest.mark.needs("chromium")
def test_index_in_a_browser(course, browser_page):
    page, requests = browser_page
    page.goto((course[1] / "out" / "index.html").as_uri())
    assert page.title() == "2 of 6 passed · RN50 workbook"
    assert page.locator(".pill.passed").count() == 2
    for width in (1280, 420):
        page.set_viewport_size({"width": width, "height": 900})
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{wide} px on a screen of {width}"
    page.set_viewport_size({"width": 1280, "height": 900})
    page.get_by_role("link", name="passes title", exact=True).click()
    assert page.locator("text=the answer: 42 img/s").is_visible()
    page.get_by_role("link", name="All notebooks").click()
    assert page.locator("h1").is_visible()
    assert [r for r in requests if not r.startswith(("file:", "data:"))] == []


@pytest.mark.acceptance
def test_interrupted_course_ends_its_kernels_and_leaves_its_index(tmp_path):
    quick = write_notebook(tmp_path / "quick.ipynb", "1")
    hangs = write_notebook(tmp_path / "hangs.ipynb", HANGS)
    out = tmp_path / "out"
    runner = subprocess.Popen(
        [sys.executable, "-m", "rn50", "workshop", "run", quick, hangs, "--out", out],
        env=clean_environment(), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    pids = out / "files" / "hangs" / "pids"
    deadline = time.monotonic() + 90
    while not (pids.exists() and pids.read_text().strip()):
        assert time.monotonic() < deadline and runner.poll() is None
        time.sleep(0.1)
    runner.send_signal(signal.SIGTERM)
    _, err = runner.communicate(timeout=60)
    assert runner.returncode == 130 and err.strip() == "interrupted"
    assert not is_alive(int(pids.read_text()))
    found = json.loads((out / "course.json").read_text())
    assert [i["status"] for i in found["notebooks"]] == ["passed", "not run"]


CELL = """profile: str = "auto"  # the profile
epochs: int = 3  # epochs
rate: float | None = None  # the rate
fast: bool = False  # skip the rest"""


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("profile", "12", "12"),
        ("epochs", "12", 12),
        ("rate", "1e-3", 0.001),
        ("rate", "None", None),
        ("fast", "true", True),
    ],
)
def test_values_take_the_declared_type(notebook, name, text, value):
    job = run.prepare(notebook("x", parameters=CELL), {name: text}, "auto", None)
    assert job.parameters == {name: value} and type(job.parameters[name]) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("epoch", "1", "x.ipynb has no parameter 'epoch': it has profile, epochs"),
        ("quux", "1", "it has profile, epochs, rate, fast"),
        ("epochs", "many", "parameter epochs is int, and 'many' is not"),
        ("epochs", "None", "parameter epochs is int"),
        ("fast", "perhaps", "parameter fast is bool"),
    ],
)
def test_unknown_names_and_wrong_types_are_refused(notebook, name, text, message):
    with pytest.raises(UserError, match=message):
        run.prepare(notebook("x", parameters=CELL), {name: text}, "auto", None)


def test_refuses_before_anything_runs(rn50, notebook, tmp_path):
    first = notebook("one", "open('ran', 'w')", parameters=CELL)
    second = notebook("two", "1", parameters='profile: str = "auto"  # the profile')
    out = tmp_path / "out"
    flags = ("-p", "epochs", "1", "--out", out)
    status, _, err = rn50(tmp_path, "workshop", "run", first, second, *flags)
    assert status == 2
    assert err.strip() == "error: two.ipynb has no parameter 'epochs': it has profile"
    assert not out.exists()


def test_two_notebooks_of_one_name_are_refused(rn50, notebook, tmp_path):
    first = notebook("one", "1")
    (tmp_path / "more").mkdir()
    second = shutil.copy(first, tmp_path / "more")
    status, _, err = rn50(tmp_path, "workshop", "run", first, second, "--out", tmp_path / "out")
    assert status == 2 and "two of the notebooks are called one" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run"], 'name the notebooks to run, such as "02", or use --all (not both)'),
        (["run", "99"], "no notebook is named 99: there are 00_start_here"),
        (["run", "00", "--profile", "ci", "-p", "profile", "cpu"], "contradict each other"),
        (["run", "00", "--time-limit", "-1"], "must be at least 1"),
        (["run", "00", "--out", "/dev/null/x"], "--out /dev/null/x cannot be written"),
        (["fly"], "invalid choice: 'fly'"),
    ],
)
def test_cli_refuses_in_one_line(repository, rn50, args, message):
    status, _, err = rn50(repository, "workshop", *args)
    assert status == 2 and err.startswith("error: ") and message in err
    assert len(err.splitlines()) == 1
