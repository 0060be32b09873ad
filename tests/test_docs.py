"""The pages against what is really there: their commands, links, paths and tables."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest

from rn50 import benchmark
from rn50 import parser as parsers
from rn50.parser import PRESETS
from rn50.run import run_parser
from rn50lib.recipe import RECIPES
from tests.conftest import clean_environment
from tests.support import strict_json
from workshop import catalogue

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = ROOT / "docs" / "commands.md"
REFERENCE = ROOT / "docs" / "reference.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "tests" / "README.md"]
PAGES += sorted((ROOT / "docs").glob("*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
CHECKED = re.compile(r"<!-- checked -->\n```console\n(.*?)^```$", re.M | re.S)


def commands(block: str) -> list[list[str]]:
    """Return the command lines of a console block as words, without comments."""
    lines = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    return [shlex.split(line, comments=True) for line in lines]


def all_commands() -> list[list[str]]:
    found = []
    for page in PAGES:
        for kind, block in FENCE.findall(page.read_text()):
            if kind == "console":
                found += commands(block)
            elif kind == "sh":  # what a container runs
                runs = re.findall(r" (rn50 run .*)", block.replace("\\\n", ""))
                found += [shlex.split(line) for line in runs]
    # the right column of the table of the reference's commands
    for cell in re.findall(r"`((?:rn50|python -m) [^`]*)`", REFERENCE.read_text()):
        found.append(shlex.split(cell))
    return found


# --- commands -------------------------------------------------------------------------------------


def test_documents_contain_checked_commands() -> None:
    assert len(CHECKED.findall(COMMANDS.read_text())) >= 3
    assert len(all_commands()) > 20


@pytest.mark.parametrize("words", all_commands(), ids=" ".join)
def test_every_command_exists(words: list[str]) -> None:
    if words[0] == "make":
        rules = re.findall(r"^([a-z ]+):", (ROOT / "Makefile").read_text(), re.M)
        targets = {name for rule in rules for name in rule.split()}
        assert [w for w in words[1:] if "=" not in w and w not in targets] == []
    elif words[:2] == ["python", "-m"]:
        assert (ROOT / f"{words[2].replace('.', '/')}.py").exists()
    elif words[0] == "rn50":
        verb, rest = words[1], words[2:]
        assert verb in (*parsers.VERBS, "--help")
        if verb == "benchmark" and {"-o", "--output"} & set(rest):
            benchmark.parse(rest)  # likewise
        if verb == "run" and "--help" not in rest:
            parsers.parse_given(run_parser(), rest)  # leaves the process on an unknown flag
    elif words[0] in ("horovodrun", "torchrun", "python"):  # a script of the repository
        scripts = [word for word in words if word.endswith(".py")]
        assert scripts
        assert all((ROOT / script).exists() for script in scripts)
    else:
        pytest.fail(f"not a command of the workbook: {' '.join(words)}")


@pytest.mark.acceptance
@pytest.mark.needs("torch")
def test_checked_commands_work(tmp_path: Path, roadsigns_small) -> None:
    """Run them in order in one folder, as a reader would, capped by --profile ci."""
    shutil.copytree(roadsigns_small.folder, tmp_path / "data" / "roadsigns")
    for split in ("train", "val"):
        shutil.copytree(roadsigns_small.folder / split, tmp_path / "photos" / split)
    env = clean_environment()
    for block in CHECKED.findall(COMMANDS.read_text()):
        for words in commands(block):
            done = subprocess.run(
                small(words), cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
            assert "Traceback" not in done.stderr
    left = {path.name for path in tmp_path.iterdir()}
    assert left >= {"signs.json", "signs.png", "signs-symbol.json", "runs"}


def small(words: list[str]) -> list[str]:
    """Return the command as run here: with this interpreter and ci's caps, so with two epochs."""
    if words[0] == "python":
        return [sys.executable, *words[1:]]
    words = [sys.executable, "-m", "rn50", *words[1:]]
    if words[3] in ("score", "predict", "export"):
        words = ["2" if word == "9" else word for word in words]
    if words[3] in ("run", "score") and "--dry-run" not in words:
        words += ["--profile", "ci"]
    return words


def test_the_epoch_that_is_scored_is_the_recipes_last() -> None:
    scored = re.findall(r"rn50 score signs (\d+)", COMMANDS.read_text())
    assert set(scored) == {str(RECIPES["roadsigns"].num_epochs)}


def test_the_pages_name_presets_that_work() -> None:
    text = COMMANDS.read_text() + REFERENCE.read_text()
    named = set(re.findall(r"--preset (\w+)", text))
    assert named and named <= set(PRESETS)


def test_the_page_on_architecture_mentions_every_module_of_the_library() -> None:
    tree = (ROOT / "docs" / "architecture.md").read_text().split("```")[1]
    named = set(re.findall(r"\w+", tree.partition("rn50/ ")[0]))
    files = {path.stem for path in (ROOT / "rn50lib").rglob("*.py")}
    assert files - {"__init__"} <= named


@pytest.mark.parametrize("name", PRESETS)
def test_recipes_page_matches_the_file(name: str) -> None:
    head = dict(line[2:].split(":", 1) for line in PRESETS[name].read_text().splitlines()[1:5])
    said = {key: text.strip() for key, text in head.items()}
    row = f"| [{name}](../rn50/configs/{name}.yaml) | {{hardware}} | {{expected}} | {{source}} |"
    page = (ROOT / "docs" / "recipes.md").read_text()
    assert row.format(**said) in page.splitlines()
    assert f"--preset {name}" in said["command"]
    if name in RECIPES:
        assert (said["expected"], said["source"]) == (RECIPES[name].expected, RECIPES[name].source)


def test_published_speeds_are_next_to_their_commands() -> None:
    """The commands are those of the reference's document, the figures those that are compared."""
    page = (ROOT / "docs" / "recipes.md").read_text()
    rows = {row[1]: row[0] for row in re.findall(r"^\| (.*: .*) \| `(rn50 .*)` \|$", page, re.M)}
    known = (ROOT / "tests" / "parity" / "commands.toml").read_text()
    series = strict_json(ROOT / "rn50" / "published.json")["sets"]["DGX-1"]["series"]
    runs = re.findall(r'^there = "(python benchmark.py .* -e 12 .*)"$', known, re.M)
    assert len(runs) == 4
    for there in runs:
        command = there.replace(" --data-root <path to imagenet>", "")
        command = command.replace("python benchmark.py", "rn50 benchmark")
        figures = series["mixed" if "float16" in there else "FP32"]
        of = figures["inference_ips" if "--only-inference" in there else "ips"]
        said = rows[command]
        assert said.endswith(": " + ", ".join(map(str, of.values()))), said
        own, asked = benchmark.parse(shlex.split(command)[2:])
        assert (asked["num_epochs"], own.warmup) == (12, 4)


# --- links, paths, tables -------------------------------------------------------------------------


def anchor(heading: str) -> str:
    """The anchor that a heading gets on the usual code-hosting sites."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_are_not_broken(page: Path) -> None:
    text = re.sub(FENCE, "", page.read_text())
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://", "mailto:", "../../actions/")):
            continue  # the last one: GitHub's own pages of the repository
        name, _, part = target.partition("#")
        path = (page.parent / urllib.parse.unquote(name)) if name else page
        if not path.exists():
            dead.append(target)
        elif part and path.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
            if part not in map(anchor, headings):
                dead.append(target)
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_paths_exist(page: Path) -> None:
    """Check every `folder/file.ext` and `folder/` in backticks, except outputs of runs."""
    made = (
        "data/",
        "runs/",
        "photos/",
        "archives/",
        "imagenet/",
        ".venv",
        "answers/",
        "build/",
        "./examples/",  # the reference's own
        "/",
    )
    text = re.sub(FENCE, "", page.read_text())
    named = re.findall(r"`([\w./-]+/|[\w./-]+/[\w.-]+\.\w+)`", text)
    paths = [name for name in named if not name.startswith(made)]
    assert [
        p
        for p in paths
        if not any((base / p).exists() for base in (ROOT, ROOT / "rn50lib", ROOT / "workshop"))
    ] == []


def test_images_have_alt_text() -> None:
    for page in PAGES:
        for words in re.findall(r"!\[([^\]]*)\]\(", page.read_text()):
            assert len(words) > 20, f"{page.name}: an image needs alt text"


def test_the_table_of_notebooks_is_the_course() -> None:
    readme = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| (\d\d) \| (.*?) \| (\d+) \| (.*?) \|$", readme, re.M)
    there = {item.number for item in catalogue.existing(ROOT)}
    assert [(n, int(minutes)) for n, _, minutes, _ in rows] == [
        (item.number, item.minutes) for item in catalogue.COURSE
    ]
    for number, name, _, text in rows:
        linked, planned = name.startswith("["), text == "planned"
        assert linked == (number in there) and planned == (number not in there), number


@pytest.mark.acceptance
def test_no_placeholder_is_left() -> None:
    for page in PAGES:
        assert "TODO" not in page.read_text(), page.name


# --- nothing about the author's machine -----------------------------------------------------------


def test_no_file_contains_a_home_folder() -> None:
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True)
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    homes = re.compile(rb"(?<![\w.])/(?:home|Users)/\w+/")
    assert not [str(p) for p in paths if p.is_file() and homes.search(p.read_bytes())]
