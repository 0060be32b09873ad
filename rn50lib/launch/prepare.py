"""From what was asked for to what is run: the checkpoint, the data, the whole configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rn50lib import checkpoint
from rn50lib.config import Config, Experiment, flag_name
from rn50lib.config.checks import check
from rn50lib.config.defaults import default_data_root, is_roadsigns, resolve
from rn50lib.errors import UserError
from rn50lib.hardware import Machine, machine
from rn50lib.launch.launchers import with_library
from rn50lib.precision import lacks
from rn50lib.rank import Member

STDERR = 2
SCORED_WITH = ("image_shape", "val_resize", "dtype", "batch_size", "data_root", "recipe")


def prepare(
    experiment: Experiment,
    make_data: bool = True,
    here: Machine | None = None,
    group: Member | None = None,
) -> Config:
    """Fill in what is not given; draw the built-in data where it is asked for and missing.

    It is for this machine, or for another one that is given as `here`; for a run with workers of
    its own, or for one worker of the `group` that has started this process.
    """
    here = here or machine()
    given, experiment = experiment, with_checkpoint(experiment)
    root = Path(experiment.data_root) if experiment.data_root else default_data_root()[0]
    classes, counted = experiment.num_classes, "counted in the data set"
    if experiment.loader == "synthetic":
        classes, counted = classes or 1000, "as ImageNet has: synthetic images have no data set"
    else:
        check(experiment, here, group)  # before minutes are spent on drawing
        built_in = root.absolute() == default_data_root()[0].absolute()
        if make_data and built_in and root.name == "roadsigns":
            make_roadsigns(root, experiment.data_format)
        if make_data or root.exists():
            from rn50lib.records.source import classes_of

            found = len(classes_of(root, experiment.data_format or "auto"))
            if classes is not None and classes < found:
                raise UserError(
                    f"--num-classes {classes}: {root} has {found} classes; leave the flag out"
                )
            classes = classes or found
    if classes is None:  # a dry run, and the data set is not here yet
        drawn = is_roadsigns(root)
        classes = 12 if drawn else 1000
        counted = "the built-in road signs'" if drawn else f"as ImageNet has: there is no {root}"
    config = resolve(experiment, here, classes, group)
    reasons = dict(config.reasons)
    if experiment.num_classes is None:
        reasons["num_classes"] = counted
    for name in experiment.given():
        if name not in given.given():
            reasons[name] = "the checkpoint's"
    return replace(config, reasons=reasons)


def make_roadsigns(root: Path, data_format: str | None) -> None:
    """Draw the built-in data and pack it in records, and in shards if those are asked for, where
    that is not done yet: by the program that a person would use.

    Raises UserError where that fails; the program has said why.
    """
    parts, flags = [root, root / "records"], ["--records"]
    if data_format == "tfrecord":
        parts, flags = [*parts, root / "tfrecord"], [*flags, "--tfrecord"]
    if all((part / ".complete").exists() for part in parts):
        return
    arguments = ["-m", "data_prep.roadsigns", str(root), *flags]
    program = subprocess.run(
        [sys.executable, *arguments], env=with_library(dict(os.environ)), stdout=STDERR
    )
    if program.returncode == 130:
        raise KeyboardInterrupt
    if program.returncode:
        raise UserError(
            f"the road signs are not complete in {root}: try `python {' '.join(arguments)}`"
        )


def with_checkpoint(experiment: Experiment) -> Experiment:
    """Fill in what a loaded checkpoint decides: the network, and for scoring the input too."""
    if not experiment.model_prefix or (experiment.load_epoch is None and not experiment.resume):
        return experiment
    if experiment.resume and not checkpoint.symbol_path(experiment.model_prefix).exists():
        return experiment
    net = checkpoint.read_network(experiment.model_prefix)
    wanted: dict[str, Any] = {"num_classes": net.num_classes, "resnet_version": net.version}
    if net.name == "resnet-tiny":
        wanted["network"] = "tiny"
    else:
        wanted |= {"network": "resnet", "num_layers": int(net.name.removeprefix("resnet"))}
    for name, value in wanted.items():
        other = getattr(experiment, name)
        if other is not None and other != value:
            raise UserError(
                f"{flag_name(name)} {other}: the checkpoint {experiment.model_prefix} is a"
                f" {net.name} {net.version} with {net.num_classes} classes; leave the flag out"
            )
    if experiment.only_inference and experiment.load_epoch is not None:
        trained = checkpoint.load(experiment.model_prefix, experiment.load_epoch).experiment
        wanted |= {n: trained[n] for n in SCORED_WITH if trained.get(n) is not None}
        if "dtype" in wanted and lacks(wanted["dtype"], machine(), wanted["network"]):
            del wanted["dtype"]  # trained on another machine: here `auto` chooses
    return replace(
        experiment, **{n: v for n, v in wanted.items() if getattr(experiment, n) is None}
    )
