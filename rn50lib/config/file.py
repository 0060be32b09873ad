"""`Config`: a run of which nothing is left open; and the forms of one: a file, flags."""

from __future__ import annotations

import difflib
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rn50lib.config.experiment import Experiment
from rn50lib.config.kinds import epoch_list, pace, text_of, why_not
from rn50lib.errors import UserError
from rn50lib.files import read_json
from rn50lib.report import write_json

ON_THE_LINE = {"--preset": "give --preset beside --config", "--no-dali": "write loader: native"}


@dataclass(frozen=True)
class Config:
    """An experiment with every axis filled in, why each was chosen, and what was capped.

    `rn50 run` writes it to RUN/experiment.json, and each worker reads it there.
    """

    experiment: Experiment
    reasons: Mapping[str, str] = field(default_factory=dict)
    caps: tuple[str, ...] = ()

    def write(self, path: Path, command: list[str] | None = None) -> None:
        """Write it, with the command that starts its workers."""
        content: dict[str, Any] = {
            "experiment": self.experiment.given(),
            "reasons": dict(self.reasons),
            "caps": list(self.caps),
        }
        write_json(path, content | ({"command": command} if command else {}))

    @classmethod
    def read(cls, path: Path) -> Config:
        """What `write` has written. Raises UserError where it cannot be read."""
        content = read_mapping(path)
        experiment = experiment_from(content.get("experiment", {}), path)
        return cls(experiment, content.get("reasons", {}), tuple(content.get("caps", ())))


def read_experiment(
    path: Path, without: Container[str] = (), hints: Mapping[str, str] = MappingProxyType({})
) -> Experiment:
    """The experiment of a file, as `read_values` reads it, but for the flags in `without`."""
    values = read_values(path)
    values = {k: v for k, v in values.items() if flag_of(k) not in without}
    return experiment_from(values, path, hints)


def read_values(path: Path) -> dict[str, Any]:
    """What a file gives: one that `rn50 run` wrote, or a mapping from names of fields, or of flags,
    to values; YAML where the name ends so, else JSON. Raises UserError."""
    content = read_mapping(path)
    inner = content.get("experiment")
    return inner if isinstance(inner, dict) else content


def flag_of(key: object) -> str:
    """The flag that a key of a file stands for: 'batch_size', 'b' and '--batch-size' are fine."""
    name = str(key).lstrip("-").replace("_", "-")
    return f"--{name}" if len(name) > 1 else f"-{name}"


def read_mapping(path: Path) -> dict[str, Any]:
    """The content of a JSON or YAML file with a mapping in it. Raises UserError."""
    try:
        content = read_yaml(path) if path.suffix in (".yaml", ".yml") else read_json(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        form = "YAML" if path.suffix in (".yaml", ".yml") else "JSON"
        raise UserError(f"{path} is not {form}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no names and values, such as batch_size: 64")
    return content


def read_yaml(path: Path) -> Any:
    """The content of a YAML file. Raises OSError, or ValueError where it is not YAML."""
    try:
        import yaml
    except ImportError as error:
        raise UserError(f"{path}: YAML needs the package PyYAML; or write JSON") from error
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, yaml.SafeLoader)
        names = [key.value for key, _ in root.value] if isinstance(root, yaml.MappingNode) else []
        for i, name in enumerate(names):  # PyYAML would take the last one
            if name in names[:i]:
                raise ValueError(f"{name!r} stands there twice")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(error) from error


def experiment_from(
    values: Mapping[str, Any], path: Path, hints: Mapping[str, str] = MappingProxyType({})
) -> Experiment:
    """An experiment of these values by name. Raises UserError for a name that is none, and for a
    value that the flag of that name would not take."""
    known: dict[str, Any] = {}
    for f in fields(Experiment):
        known |= dict.fromkeys((flag_of(f.name), *f.metadata["names"]), f)
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = flag_of(key)
        if name not in known:
            bare = [flag[2:].replace("-", "_") for flag in known if flag.startswith("--")]
            close = difflib.get_close_matches(name[2:].replace("-", "_"), bare, n=1)
            meant = f"did you mean {close[0]}?" if close else "`rn50 run --help all` lists all"
            meant = (dict(hints) | ON_THE_LINE).get(name, meant)
            raise UserError(f"{path}: there is no {key!r}: {meant}")
        if known[name].name in found:
            raise UserError(f"{path}: {key!r} stands there twice, by two of its names")
        try:
            found[known[name].name] = converted(known[name], value)
        except ValueError as error:
            why = why_not(error)
            raise UserError(f"{path}: {key} {value!r} {why}") from error
    return Experiment(**found)


def converted(f: Any, value: Any) -> Any:
    """A field's value from a file's. Raises ValueError as its flag does."""
    kind, choices = f.metadata["kind"], f.metadata["choices"]
    if value is None:
        return f.default
    if kind in (None, bool):
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return value
    if kind is list:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError("must be a list of texts")
        return tuple(value)
    if isinstance(value, (bool, dict)):
        raise ValueError("must be one value")
    if isinstance(value, list):
        value = ",".join(text_of(item) for item in value)
    if kind is pace and not isinstance(value, str):
        value = f"paced:{text_of(value)}"
    result = kind(text_of(value))
    if choices and result not in choices:
        raise ValueError(f"must be one of {', '.join(map(str, choices))}")
    return result


def flags_of(experiment: Experiment) -> list[str]:
    """The flags that one would type for this experiment, long names, in the order of the fields:
    for people to read and to paste."""
    argv: list[str] = []
    for f in fields(experiment):
        value, kind = getattr(experiment, f.name), f.metadata["kind"]
        if value == f.default:
            continue
        name = f.metadata["names"][-1]
        if kind in (None, bool):
            argv.append(name if value else name.replace("--", "--no-"))
            continue
        for text in texts(value, kind):
            # joined where argparse would take the value for a flag, or a reader miss it
            joined = text.startswith("-") or not text
            argv += [f"{name}={text}"] if joined else [name, text]
    return argv


def texts(value: Any, kind: Any) -> list[str]:
    """What is written behind a flag to give it `value`, once for each time it is repeated."""
    if kind is list:
        return list(value)
    if kind is epoch_list:
        return [",".join(text_of(step) for step in value)]
    return [f"paced:{text_of(value)}" if kind is pace else text_of(value)]
