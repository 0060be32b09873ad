"""How the text after a flag becomes a value, and back: what the fields of `Experiment` accept.

Each function here raises ValueError with the words that the command line shows the user.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field
from typing import Any

from rn50lib import optim


def whole(low: int, high: float, message: str) -> Callable[[str], int]:
    """A whole number within these limits."""

    def convert(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(message)
        return value

    return convert


positive = whole(1, math.inf, "must be at least 1")
natural = whole(0, math.inf, "must be 0 or more")
# what every framework's generators take
seed = whole(0, 2**32 - 1, "must be from 0 to 4294967295")


def not_negative(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError("must be a number of 0 or more")
    return value


def share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise ValueError("must be from 0 to less than 1")
    return value


def image_shape(text: str) -> int:
    """'3,224,224', the reference's form, or '224'. Returns the size in pixels."""
    parts = [int(part) for part in text.split(",")]
    if len(parts) == 3 and parts[0] == 3 and parts[1] == parts[2]:
        parts = parts[1:2]
    if len(parts) != 1 or parts[0] < 32:
        raise ValueError("must be '3,SIZE,SIZE' or 'SIZE' with a size of at least 32 pixels")
    return parts[0]


def epoch_list(text: str) -> tuple[float, ...]:
    """'30,60,80' as numbers in rising order; an empty text means that the rate never decays."""
    steps = tuple(float(part) for part in text.split(",") if part.strip())
    if list(steps) != sorted(steps) or not all(0 <= step < math.inf for step in steps):
        raise ValueError("must be epochs in rising order, such as 30,60,80")
    return steps


def pace(text: str) -> float:
    """'paced:1442.6' gives 1442.6 images per second."""
    word, _, rate = text.partition(":")
    if word != "paced" or not 0 < float(rate) < math.inf:
        raise ValueError("must be paced:RATE, a rate in images per second")
    return float(rate)


def loss_scale(text: str) -> str:
    """'dynamic', 'dynamic:START', 'dynamic:START:STEPS', or a number: a scale that stays."""
    scaling(text)
    return text


def scaling(text: str) -> tuple[float, int | None]:
    """What a --loss-scale says: the scale to start with, and after how many good steps it doubles
    (None: never, it is static)."""
    word, *numbers = text.split(":")
    dynamic = word == "dynamic"
    try:
        start = float(numbers[0] if dynamic and numbers else optim.FIRST_SCALE if dynamic else text)
        growth_steps = int(numbers[1]) if dynamic and numbers[1:] else optim.GROWTH_STEPS
    except ValueError:
        start = growth_steps = 0
    if len(numbers) > 2 or growth_steps < 1:
        start = 0
    if not optim.SMALLEST_SCALE <= start <= optim.LARGEST_SCALE:
        raise ValueError(
            "must be dynamic, dynamic:START:STEPS or a number, and the scale from 1 to 2^24 ="
            f" {optim.LARGEST_SCALE:.0f}"
        )
    return start, growth_steps if dynamic else None


def degrees(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 180:
        raise ValueError("must be from 0 to 180 degrees")
    return value


def host_list(text: str) -> str:
    """'a:4,b:4', each host once with its slots; a host without a number has one slot."""
    names = []
    for part in text.split(","):
        name, _, slots = part.strip().partition(":")
        if not name or name.startswith("-") or not (slots or "1").isdigit() or slots == "0":
            raise ValueError("must be HOST:SLOTS,... such as a:4,b:4")
        names.append(name)
    if len(set(names)) < len(names):
        raise ValueError("must be hosts that are each named once")
    return text


def slots(hosts: str) -> dict[str, int]:
    """'a:4,b:4' as {'a': 4, 'b': 4}."""
    parts = [part.strip().partition(":") for part in hosts.split(",")]
    return {name: int(number or 1) for name, _, number in parts}


def text_of(value: Any) -> str:
    """A value as one writes it: for a number the shortest text that reads back as the same."""
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def why_not(error: ValueError) -> str:
    """What a text that was refused must be: the words of this module, or in place of Python's."""
    why = str(error)
    if why.startswith("must be"):
        return why
    return "must be a whole number" if "int()" in why else "must be a number"


def not_empty(text: str) -> str:
    """A name, a folder or a file: `"$NAME"` gives none of them where NAME is not set."""
    if not text.strip():
        raise ValueError("must be a text that is not empty")
    return text


def flag(
    *names: str,
    help: str,
    kind: Callable[[str], Any] | None = None,
    choices: tuple | None = None,
    default: Any = None,
    group: str | None = None,
) -> Any:
    """A field of `Experiment` and its flag. `kind` None makes a switch, `bool` one that has its
    opposite (--no-NAME), `list` a flag to repeat. `group` begins a group of the help."""
    if kind is str and not choices:
        kind = not_empty
    metadata = {"names": names, "help": help, "kind": kind, "choices": choices, "group": group}
    return field(default=default, metadata=metadata)
