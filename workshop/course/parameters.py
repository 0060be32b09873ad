"""The parameters of a notebook: read from its tagged cell, and given values checked against them.

papermill only warns about a parameter that a notebook does not know; here it is an error, and so
is a value of another type than the one declared.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rn50lib.errors import UserError

TYPES: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}


@dataclass(frozen=True)
class Parameter:
    """`name: kind = default  # help`, a line of the parameters cell. `kind` as written there."""

    name: str
    kind: str
    default: Any
    help: str


def cells_tagged(cells: Sequence[Mapping[str, Any]], tag: str) -> list[Mapping[str, Any]]:
    """The cells of a notebook (as JSON) that carry `tag`."""
    return [cell for cell in cells if tag in cell.get("metadata", {}).get("tags", [])]


def parse(source: str) -> list[Parameter]:
    """The parameters that a cell declares. Raises ValueError with what is wrong and in which
    line."""
    lines = source.splitlines()
    found = []
    for node in ast.parse(source).body:
        line = lines[node.lineno - 1]
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            raise ValueError(f"{line!r} is not of the form `name: type = value  # comment`")
        try:
            default = ast.literal_eval(node.value) if node.value else None
        except ValueError:
            raise ValueError(f"{line!r} does not have a plain value") from None
        kind = ast.unparse(node.annotation)
        if kind.removesuffix(" | None") not in TYPES:
            raise ValueError(f"{line!r}: the type must be one of {', '.join(TYPES)}")
        help_text = line.partition("#")[2].strip()
        found.append(Parameter(node.target.id, kind, default, help_text))
    return found


def convert(parameter: Parameter, text: str, where: str) -> Any:
    """The value that a text of the command line stands for. Raises UserError where it has
    another type."""
    kind = TYPES[parameter.kind.removesuffix(" | None")]
    if parameter.kind.endswith("None") and text == "None":
        return None
    if kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() in words:
            return words[text.lower()]
    else:
        try:
            return kind(text)
        except ValueError:
            pass
    raise UserError(f"{where}: parameter {parameter.name} is {parameter.kind}, and {text!r} is not")


def check(given: Mapping[str, str], known: Sequence[Parameter], where: str) -> dict[str, Any]:
    """The given values, converted. Raises UserError for the first that the notebook does not
    know."""
    names = {parameter.name: parameter for parameter in known}
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            has = ", ".join(names) or "none"
            raise UserError(f"{where} has no parameter {name!r}{hint}: it has {has}")
    return {name: convert(names[name], text, where) for name, text in given.items()}
