"""`start("02", profile)`: the first call of a notebook.

It shows the machine, chooses a profile with a reason, and makes sure that the data exists. An
exercise notebook, `start("ex02", profile)`, shows its exercises instead; its data is made when a
run needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, TypeVar

from rn50lib import hardware
from rn50lib.errors import UserError
from workshop import errors, expected, output, paths
from workshop.checks import table
from workshop.course import catalogue

PROFILES = ("auto", "ci", "cpu", "gpu")
CI_IMAGES = (96, 48)  # training and validation images of the small set that profile ci uses

T = TypeVar("T")

_current: Session | None = None


def current() -> Session | None:
    """Return the session of this kernel, None before `start`."""
    return _current


def choose_profile(asked: str, machine: hardware.Machine) -> tuple[str, str]:
    """Return (profile, reason).

    Raises:
        UserError: The profile is unknown, or it is gpu and there is no GPU.
    """
    if asked not in PROFILES:
        raise UserError(f"profile {asked!r} does not exist: use one of {', '.join(PROFILES)}")
    if asked == "gpu" and not machine.gpus:
        raise UserError('profile "gpu": there is no GPU here; use profile = "cpu" or "auto"')
    if asked != "auto":
        short = "; runs are cut to seconds, and their numbers mean nothing"
        return asked, "requested" + short * (asked == "ci")
    if machine.gpus:
        return "gpu", f"{len(machine.gpus)} GPU(s) found"
    return "cpu", "no GPU found, so the lessons are sized for a few cores"


@dataclass(frozen=True)
class Session:
    """The settings of a notebook. `profile` is ci, cpu or gpu, never auto."""

    number: str
    profile: str
    reason: str
    machine: hardware.Machine
    data_root: Path
    runs: Path
    results: dict[str, expected.Expected] = field(default_factory=dict, repr=False)
    sizes: dict[str, Any] = field(default_factory=dict, repr=False)

    def __getattr__(self, name: str) -> Any:
        """Return a size of this notebook and profile from notebooks/profiles.yaml."""
        try:
            return self.__dict__["sizes"][name]
        except KeyError:
            raise AttributeError(
                f"notebooks/profiles.yaml has no {name!r} for notebook {self.number}"
            ) from None

    @property
    def folder(self) -> Path:
        """The folder for this notebook's own files, such as the learner's scripts."""
        folder = self.runs / f"lesson-{self.number}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def note(self, key: str, value: float | int | str, unit: str = "", what: str = "") -> None:
        """Print a key result, and add it to the index of a course run."""
        text = f"{what or key}: {output.cell_text(value)}{_unit(unit)}"
        record = {"kind": "note", "notebook": self.number, "key": key, "value": value}
        record |= {"unit": unit, "what": what or key}
        output.show(f'<p class="box">{escape(text)}</p>', text, {output.RESULT_MIME: record})

    def expect(self, yours: Mapping[str, float | None]) -> None:
        """Show your numbers next to the recorded ones: `expect({"roadsigns.top1": 83.1})`.

        None means "not measured"; without any measurement the table has no column for yours.
        Raises UserError for an unknown key.
        """
        rows, measured = [], any(value is not None for value in yours.values())
        for key, value in yours.items():
            if key not in self.results:
                raise UserError(
                    f"no recorded result {key!r} in notebooks/expected: there are"
                    f" {', '.join(self.results) or 'none'}"
                )
            item = self.results[key]
            spread = f" ± {output.cell_text(item.spread)}" if item.spread else ""
            there = f"{output.cell_text(item.value)}{spread}{_unit(item.unit)}"
            here = "–" if value is None else f"{output.cell_text(value)}{_unit(item.unit)}"
            rows.append([item.what, *[here] * measured, there, item.provenance])
        columns = ["", *["yours"] * measured, "recorded or published", "source"]
        html, text = output.table_html(rows, columns), output.table_text(rows, columns)
        if measured and self.profile == "ci":
            remark = "Under profile ci runs are cut to seconds: your numbers are not comparable."
            html, text = f'{html}<p class="dim">{remark}</p>', f"{text}\n{remark}"
        output.show(html, text)


def _unit(unit: str) -> str:
    return unit if unit in ("", "%") else f" {unit}"


def start(number: str, profile: str = "auto") -> Session:
    """Start notebook `number`: show the machine and the profile, and make the data if needed.

    For an exercise notebook, "ex02", show its exercises and your progress.

    Raises:
        UserError: The number or profile is unknown, or the data cannot be made.
    """
    global _current
    errors.show_user_errors_plainly()
    catalogue.lesson(number.removeprefix("ex"))
    if number == "03":
        profile = hide_single_gpu(profile)
    machine = hardware.machine()
    chosen, reason = choose_profile(profile, machine)
    if chosen == "ci":  # spinning threads would take cores from others
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # no lines about the processor
    _put_programs_on_path()
    data, runs = paths.set_environment()
    root = data / ("roadsigns-ci" if chosen == "ci" else "roadsigns")
    if number.startswith("ex"):
        from workshop.checks import ask

        ask.show_exercises(number)
    else:
        _show_machine(machine, chosen, reason)
        ensure_data(root, chosen)
    checkout = paths.checkout()
    folder = checkout / "notebooks" / "expected" if checkout else None
    results = expected.load(folder) if folder and folder.is_dir() else {}
    sizes = profile_sizes(checkout, number, chosen) if checkout else {}
    _current = Session(number, chosen, reason, machine, root, runs, results, sizes)
    return _current


def _put_programs_on_path() -> None:
    """Put this environment's programs first on PATH, for `rn50` in a %%bash cell."""
    folder, path = str(Path(sys.executable).parent), os.environ.get("PATH", "")
    if path.split(os.pathsep)[0] != folder:
        os.environ["PATH"] = f"{folder}{os.pathsep}{path}"


def profile_sizes(checkout: Path, number: str, profile: str) -> dict[str, Any]:
    """Return the sizes of a notebook under a profile; one that is not listed is that of cpu.

    Raises UserError if a size has no value for cpu.
    """
    import yaml

    file = checkout / "notebooks" / "profiles.yaml"
    listed = (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).get(number, {})
    for name, values in listed.items():
        if not isinstance(values, dict) or "cpu" not in values:
            raise UserError(f"{file}: {number}: {name} needs a value for cpu, such as {{cpu: 8}}")
    return {name: values.get(profile, values["cpu"]) for name, values in listed.items()}


def _show_machine(machine: hardware.Machine, profile: str, reason: str) -> None:
    rows = machine_rows(machine) + [["Profile", f"{profile}: {reason}"]]
    html = output.table_html(rows, ["", "this machine"]).replace("<thead>", "<thead hidden>")
    output.show(html, "\n".join(f"{name}: {value}" for name, value in rows))


def machine_rows(machine: hardware.Machine) -> list[list[str]]:
    """Return the machine as pairs of name and text, for a table."""
    memory = f"{machine.memory / 2**30:.0f} GiB" if machine.memory else "not known"
    bfloat16 = machine.bfloat16 or "none: bfloat16 would be emulated, slower than float32"
    rows = [
        ["Processor", f"{machine.processor}, {machine.cores} core(s) usable, {memory} of memory"],
        ["bfloat16 on the CPU", bfloat16],
    ]
    for gpu in machine.gpus:
        capability = ".".join(map(str, gpu.capability))
        text = f"{gpu.name}, {gpu.memory / 2**30:.0f} GiB, capability {capability}"
        rows.append([f"GPU {gpu.index}", f"{text}, driver {gpu.driver}"])
    return rows if machine.gpus else [*rows, ["GPU", "none"]]


def ensure_data(root: Path, profile: str) -> None:
    """Draw the built-in data set and its record files if they are missing.

    Raises:
        UserError: That is not possible.
    """
    if not (root / ".complete").exists():
        print(f"Generating the road signs in {root}; this happens only once.", flush=True)
    try:
        from data_prep import im2rec, roadsigns
    except ImportError as problem:
        raise UserError(f"data_prep cannot be imported ({problem}): run `make setup`") from None
    with redirect_stderr(sys.stdout):
        if profile == "ci":
            ensure_small(root)
        else:
            roadsigns.ensure(root)
        im2rec.ensure_records(root)
    output.Slot().line(f"The data is in {root}.")


def ensure_small(root: Path) -> None:
    """Make the small data set of profile ci, and replace one with different settings."""
    from data_prep import roadsigns

    train, val = CI_IMAGES
    try:
        roadsigns.ensure(root, train=train, val=val)
    except UserError:
        roadsigns.ensure(root, train=train, val=val, overwrite=True)


def session_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the session's defaults for a training run: profile, data, and one worker.

    A lesson that needs more workers passes `n`.
    """
    if _current is None:
        return {}
    fields: dict[str, Any] = {}
    if "n" not in given:
        fields["n"] = 1
    if "profile" not in given:
        fields["profile"] = _current.profile
    if given.get("loader") != "synthetic" and "data_root" not in given:
        fields["data_root"] = str(_current.data_root)
        if "recipe" not in given:
            fields["recipe"] = "roadsigns"
    return fields


def has(package: str) -> bool:
    """Return True if a framework is installed; if not, print that the cell is skipped."""
    found = table.installed(package)
    if not found:
        name = table.PACKAGES.get(package, package)
        text = f"{name} is not installed here, so this cell is skipped."
        if package == "tensorflow":
            text += " `make setup WITH=tensorflow` adds it."
        output.show(f'<p class="box warn">{escape(text)}</p>', text)
    return found


def hide_single_gpu(profile: str) -> str:
    """Hide a single GPU from notebook 03 and its runs: several workers need one each.

    Prints a line if it does, and returns the profile to use.
    """
    if len(hardware.machine().gpus) != 1:
        return profile
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    hardware.machine.cache_clear()
    text = (
        "This machine has one GPU, and several workers need one each. In this notebook they run on"
        " the processor instead: everything is the same but the speed."
    )
    output.show(f'<p class="box warn">{text}</p>', text)
    return "cpu" if profile == "gpu" else profile
