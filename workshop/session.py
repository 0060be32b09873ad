"""The settings of a notebook, its data, and what its training runs use by default."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from rn50 import installed
from rn50lib import hardware
from rn50lib.errors import UserError
from workshop import catalogue, expected, output

CI_IMAGES = (96, 48)  # training and validation images of the small set that profile ci uses

_current: Session | None = None


def current() -> Session | None:
    """Return the session of this kernel, None before `start`."""
    return _current


def need() -> Session:
    """Return the session of this kernel. Raises UserError before `start`."""
    if _current is None:
        raise UserError("this needs the notebook's session: run the cell with workshop.start first")
    return _current


def open_session(opened: Session) -> Session:
    """Make a session the one of this kernel, and return it."""
    global _current
    _current = opened
    return opened


@dataclass(frozen=True)
class Session:
    """The settings of a notebook. `profile` is ci, cpu or gpu, never auto."""

    number: str
    profile: str
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
            spread = f" ± {output.cell_text(item.spread)}" if item.spread and not item.each else ""
            there = f"{output.cell_text(item.value)}{spread}{_unit(item.unit)}"
            there += f" ({min(item.each):g} to {max(item.each):g})" if item.each else ""
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


def ensure_data(root: Path, profile: str) -> None:
    """Draw the built-in data set and its record files if they are missing.

    Profile ci has a small one, which replaces one with different settings. Raises UserError if
    that is not possible.
    """
    from data_prep import roadsigns

    if not (root / ".complete").exists():
        print(f"Generating the road signs in {root}; this happens only once.", flush=True)
    with redirect_stderr(sys.stdout):
        if profile == "ci":
            try:
                roadsigns.ensure(root, *CI_IMAGES)
            except UserError:
                roadsigns.ensure(root, *CI_IMAGES, overwrite=True)
        roadsigns.ensure_packed(root)
    output.Slot().line(f"The data is in {root}.")


def has(package: str) -> bool:
    """Return True if a framework is installed; if not, print that the cell is skipped."""
    found = installed.has(package)
    if not found:
        name = catalogue.PACKAGES.get(package, package)
        text = f"{name} is not installed here, so this cell is skipped."
        if package == "tensorflow":
            text += " `make setup WITH=tensorflow` adds it."
        output.show(f'<p class="box warn">{escape(text)}</p>', text)
    return found
