"""Plans the environment inside an NGC container, or over any base Python that has a CUDA framework.

PyTorch, TensorFlow, NumPy, DALI, Horovod and all that they depend on are held at the versions that
are there; only what is missing is added, under the container's own pip constraints.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from facts import Facts
from plan import Plan, Step, choose_dali, project_step, state
from requirements import ROOT, name_of, normal

FRAMEWORKS = ("torch", "tensorflow", "nvidia-dali", "horovod")  # never replaced
NAMES = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly")}


def make(facts: Facts, venv: Path, dali: str, with_: tuple[str, ...]) -> Plan:
    """The plan: add what is missing, replace nothing.

    `with_` names frameworks that the container lacks and that are wanted all the same; `dali` is as
    in `plan.choose_dali`.
    """
    notes = [f"The frameworks of the base Python are kept: {facts.container}."]
    frameworks = {name: _present(facts, name) for name in FRAMEWORKS}
    for name, there in frameworks.items():
        if not there:
            notes.append(_left_out(name, with_))
    kept: dict[str, str] = {}
    added: list[str] = []
    for line in _ranges(facts, with_, frameworks):
        name = name_of(line)
        version = facts.installed.get(name)
        if version is None:
            added.append(line)
        elif _satisfies(version, line):
            kept[name] = version
        elif name in ("numpy", *FRAMEWORKS):
            kept[name] = version
            notes.append(f"{name} {version} is kept, though the project asks for {line}.")
        else:
            added.append(line)
    # What `pip install -e` builds with, since it is told to build nothing apart.
    added += [name for name in ("setuptools", "wheel") if name not in facts.installed]
    if not frameworks["nvidia-dali"] and (dali or "dali" in with_):
        wheel, why = choose_dali(facts, dali)
        added += [wheel] if wheel else []
        notes.append(f"DALI: {wheel or 'none'} ({why})")
    # Whatever the frameworks themselves depend on is held, or pip would shadow it in .venv.
    held = _closure(facts, [*filter(None, frameworks.values()), "numpy"])
    kept.update({name: facts.installed[name] for name in held if name in facts.installed})
    pins = "".join(f"{name}=={version}\n" for name, version in sorted(kept.items()))
    pip = (str(venv / "bin" / "python"), "-m", "pip", "install")
    limits = [*facts.constraints, str(state(venv) / "constraints.txt")]
    pip_c = (*pip, *(word for limit in limits for word in ("-c", limit)))
    checks = {_requirement(line).name for line in _project()["optional-dependencies"]["test"]}
    needed = [line for line in added if name_of(line) not in checks]
    steps = []
    for title, lines, fatal in (
        ("packages that the container lacks", needed, True),
        ("packages of make test", [line for line in added if line not in needed], False),
    ):
        if lines:
            remedy = "the container's constraint file may forbid a version: look at the log"
            steps.append(Step(title, ((*pip_c, *lines),), remedy, pins + facts.python, fatal))
    steps += _container_keras(facts, frameworks["tensorflow"], pip)
    steps.append(project_step(pip, facts))
    return Plan(
        True,
        "the ranges of pyproject.toml",
        tuple(steps),
        {"constraints.txt": pins},
        tuple(notes),
        kept,
    )


def _present(facts: Facts, framework: str) -> str | None:
    """The distribution of the base Python that holds this framework."""
    if framework == "nvidia-dali":
        names = [n for n in facts.installed if re.match(r"nvidia-dali(-nightly)?-cuda", n)]
        return names[0] if names else None
    return next((n for n in NAMES.get(framework, (framework,)) if n in facts.installed), None)


def _left_out(name: str, with_: tuple[str, ...]) -> str:
    if name == "horovod":
        return "Horovod is not in this container and is not built here; DDP runs those lessons."
    short = "dali" if name == "nvidia-dali" else name
    if short in with_:
        return f"{short} is not in this container; it is added, as asked."
    return f"{short} is not in this container and is left out; `make setup WITH={short}` adds it."


def _ranges(facts: Facts, with_: tuple[str, ...], frameworks: dict[str, str | None]) -> list[str]:
    """The ranges of pyproject.toml that apply here, frameworks only where asked for."""
    project = _project()
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["data"], *extras["notebooks"], *extras["test"]]
    lines += extras["horovod"] if frameworks["horovod"] else []
    lines += extras["torch"] if frameworks["torch"] or "torch" in with_ else []
    lines += extras["tensorflow"] if "tensorflow" in with_ and not frameworks["tensorflow"] else []
    if "torch" in with_ and not frameworks["torch"] and facts.cuda == 12:
        lines.append("torch<2.11")  # the later ones on the index are built for CUDA 13
    parsed = [_requirement(line) for line in lines]
    wanted = [r for r in parsed if r.marker is None or r.marker.evaluate()]
    return [f"{r.name}{r.specifier}" for r in wanted]


def _project() -> dict[str, Any]:
    return _toml(ROOT / "pyproject.toml")["project"]


def _satisfies(version: str, line: str) -> bool:
    return bool(_requirement(line).specifier.contains(version, prereleases=True))


def _closure(facts: Facts, names: list[str]) -> set[str]:
    found: set[str] = set()
    todo = [normal(name) for name in names]
    while todo:
        name = todo.pop()
        if name not in found and name in facts.installed:
            found.add(name)
            todo += facts.depends.get(name, ())
    return found


def _container_keras(facts: Facts, tensorflow: str | None, pip: tuple[str, ...]) -> list[Step]:
    """tf-keras of TensorFlow's own version: Horovod's Keras integration is wrong with Keras 3."""
    if tensorflow is None or "tf-keras" in facts.installed:
        return []
    major, minor = facts.installed[tensorflow].split(".")[:2]
    if (int(major), int(minor)) < (2, 16):  # its own Keras is Keras 2
        return []
    command = (*pip, "--no-deps", f"tf-keras~={major}.{minor}.0")
    remedy = "without it, the lessons with Horovod and Keras fit do not run"
    return [Step("tf-keras", (command,), remedy, key=facts.python, fatal=False)]


def _toml(path: Path) -> dict[str, Any]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        from pip._vendor import tomli as tomllib  # type: ignore[no-redef]
    return tomllib.loads(path.read_text())


def _requirement(line: str) -> Any:
    # The standard library cannot read a version range; pip, which every container has, can.
    from pip._vendor.packaging.requirements import Requirement

    return Requirement(line)
