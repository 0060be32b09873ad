"""From what was asked for to what is run: the checkpoint, the data, the whole configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rn50.autoconfig import default_data_root, is_roadsigns, resolve
from rn50.checks import check_framework
from rn50.launch import with_library
from rn50.precision import lacks
from rn50lib import checkpoint
from rn50lib.config import Config, Experiment, flag_name
from rn50lib.distributed.launch_env import LaunchEnv
from rn50lib.errors import UserError
from rn50lib.hardware import Machine, machine

STDERR = 2
SCORED_WITH = ("image_shape", "val_resize", "dtype", "batch_size", "data_root", "recipe")


def prepare(
    experiment: Experiment,
    make_data: bool = True,
    here: Machine | None = None,
    group: LaunchEnv | None = None,
) -> Config:
    """Fill in what is not given; draw the built-in data where it is asked for and missing.

    It is for this machine, or for another one that is given as `here`; for a run with workers of
    its own, or for one worker of the `group` that has started this process.
    """
    real, here = here is None, here or machine()
    given, experiment = experiment, with_checkpoint(experiment)
    root = Path(experiment.data_root) if experiment.data_root else default_data_root()[0]
    classes, counted = experiment.num_classes, "counted in the data set"
    first = resolve(experiment, here, classes or 1000, group)  # errors come before the drawing
    if real:
        check_framework(first.experiment, here)
    if experiment.loader == "synthetic":
        classes, counted = classes or 1000, "as ImageNet has: synthetic images have no data set"
    else:
        built_in = root.absolute() == default_data_root()[0].absolute()
        if make_data and built_in and root.name == "roadsigns":
            make_roadsigns(root, experiment.data_format)
        if make_data or root.exists():
            from rn50lib.data.source import classes_of

            found = len(classes_of(root, experiment.data_format or "auto"))
            if classes is not None and classes < found:
                if given.num_classes is None:
                    raise UserError(
                        f"--data-root {root} has {found} classes, the checkpoint of --model-prefix"
                        f" {experiment.model_prefix} {classes}: give the data set it was trained"
                        f" on, or begin a new run with --init-from {experiment.model_prefix}"
                    )
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
            f"the road signs are not complete in {root}: try `python {' '.join(arguments)}`, or set"
            " RN50_DATA to a folder that you may write to"
        )


def with_checkpoint(experiment: Experiment) -> Experiment:
    """Fill in what a checkpoint decides: the network, and for scoring the input too.

    An --init-from becomes the name of the very file that the run begins with.
    """
    if experiment.init_from:
        file = checkpoint.find(experiment.init_from, "--init-from")
        wanted = network_of(experiment, checkpoint.parts(file)[0], classes=False)
        experiment = filled(replace(experiment, init_from=str(file)), wanted)
    if not experiment.model_prefix or (experiment.load_epoch is None and not experiment.resume):
        return experiment
    if experiment.resume and not checkpoint.symbol_path(experiment.model_prefix).exists():
        return experiment
    wanted = network_of(experiment, experiment.model_prefix)
    if experiment.only_inference and experiment.load_epoch is not None:
        trained = checkpoint.load(experiment.model_prefix, experiment.load_epoch).experiment
        wanted |= {n: trained[n] for n in SCORED_WITH if trained.get(n) is not None}
        if "dtype" in wanted and lacks(wanted["dtype"], machine(), wanted["network"]):
            del wanted["dtype"]  # trained on another machine: here `auto` chooses
    return filled(experiment, wanted)


def network_of(experiment: Experiment, prefix: str, classes: bool = True) -> dict[str, Any]:
    """The flags of a checkpoint's network, with the number of `classes` or without. Raises
    UserError where the experiment gives others."""
    net = checkpoint.read_network(prefix)
    wanted: dict[str, Any] = {"resnet_version": net.version}
    if classes:
        wanted["num_classes"] = net.num_classes
    if net.name == "resnet-tiny":
        wanted["network"] = "tiny"
    else:
        wanted |= {"network": "resnet", "num_layers": int(net.name.removeprefix("resnet"))}
    for name, value in wanted.items():
        other = getattr(experiment, name)
        if other is not None and other != value:
            raise UserError(
                f"{flag_name(name)} {other}: the checkpoint {prefix} is a {net.name} {net.version}"
                f" with {net.num_classes} classes; leave the flag out"
            )
    return wanted


def filled(experiment: Experiment, values: dict[str, Any]) -> Experiment:
    """The experiment with these values where it has none."""
    return replace(
        experiment, **{n: v for n, v in values.items() if getattr(experiment, n) is None}
    )
