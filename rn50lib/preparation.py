"""From what was asked for to what is run: the checkpoint, the data, the resolved experiment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rn50lib import checkpoint, experiment, recipe
from rn50lib.errors import UserError
from rn50lib.experiment import Experiment, Resolved
from rn50lib.hardware import Machine, machine
from rn50lib.precision import lacks

SCORED_WITH = ("image_shape", "val_resize", "dtype", "batch_size", "data_root", "recipe")


def prepare(asked: Experiment, make_data: bool = True, here: Machine | None = None) -> Resolved:
    """Fill in what is not given; draw the built-in data where it is asked for and missing.

    It is for this machine, or for another one that is given as `here`.
    """
    here = here or machine()
    user, asked = asked, with_checkpoint(asked)
    root = Path(asked.data_root) if asked.data_root else experiment.default_data_root()[0]
    classes, counted = asked.num_classes, "counted in the data set"
    if asked.loader == "synthetic":
        classes, counted = classes or 1000, "as ImageNet has: synthetic images have no data set"
    else:
        experiment.check(asked, here)  # before minutes are spent on drawing
        if make_data and asked.data_root is None and root.name == "roadsigns":
            make_roadsigns(root, asked.data_format)
        if make_data or root.exists():
            from rn50lib.records.source import describe as describe_data

            found = len(describe_data(root, asked.data_format or "auto").classes)
            if classes is not None and classes < found:
                raise UserError(
                    f"--num-classes {classes}: {root} has {found} classes; leave the flag out"
                )
            classes = classes or found
    if classes is None:  # a dry run, and the data set is not here yet
        drawn = experiment.is_roadsigns(root)
        classes = 12 if drawn else 1000
        counted = "the built-in road signs'" if drawn else f"as ImageNet has: there is no {root}"
    resolved = experiment.resolve(asked, here, classes)
    reasons = dict(resolved.reasons)
    if asked.num_classes is None:
        reasons["num_classes"] = counted
    reasons |= {name: "the checkpoint's" for name in asked.given() if name not in user.given()}
    return replace(resolved, reasons=reasons)


def make_roadsigns(root: Path, data_format: str | None) -> None:
    """Draw the built-in data and pack it in records, and in shards if those are asked for, where
    that is not done yet."""
    from data_prep.im2rec import ensure_records
    from data_prep.roadsigns import ensure

    ensure(root)
    ensure_records(root)
    if data_format == "tfrecord":
        from data_prep.tfrecord import ensure_tfrecord

        ensure_tfrecord(root)


def with_checkpoint(asked: Experiment) -> Experiment:
    """Fill in what a loaded checkpoint decides: the network, and for scoring the input too."""
    if not asked.model_prefix or (asked.load_epoch is None and not asked.resume):
        return asked
    if asked.resume and not checkpoint.symbol_path(asked.model_prefix).exists():
        return asked
    net = checkpoint.read_network(asked.model_prefix)
    wanted: dict[str, Any] = {"num_classes": net.num_classes, "resnet_version": net.version}
    if net.name == "resnet-tiny":
        wanted["network"] = "tiny"
    else:
        wanted |= {"network": "resnet", "num_layers": int(net.name.removeprefix("resnet"))}
    for name, value in wanted.items():
        given = getattr(asked, name)
        if given is not None and given != value:
            raise UserError(
                f"{experiment.flag_name(name)} {given}: the checkpoint {asked.model_prefix} is a"
                f" {net.name} {net.version} with {net.num_classes} classes; leave the flag out"
            )
    if asked.only_inference and asked.load_epoch is not None:
        trained = checkpoint.load(asked.model_prefix, asked.load_epoch).experiment
        wanted |= {n: trained[n] for n in SCORED_WITH if trained.get(n) is not None}
        if "dtype" in wanted and lacks(wanted["dtype"], machine(), wanted["network"]):
            del wanted["dtype"]  # trained on another machine: here `auto` chooses
    return replace(asked, **{n: v for n, v in wanted.items() if getattr(asked, n) is None})


def describe(resolved: Resolved) -> str:
    """The axes of a run with the reason for each, and the arithmetic, as lines for people."""
    done, lines = resolved.experiment, list(resolved.caps)
    numbers = recipe.REFERENCE
    tricks = {"optimizer": numbers.optimizer, "lr_schedule": numbers.lr_schedule,
              "label_smoothing": numbers.label_smoothing, "bn_decay": numbers.bn_decay,
              "zero_gamma": numbers.zero_gamma}  # fmt: skip
    shown = ("data_root", "backend", "loader", "dtype", "loss_scale", "n", "comm", "launcher",
             "batch_size", "macrobatch_size", "recipe", *tricks, "num_epochs", "image_shape",
             "num_classes", "threads", "data_nthreads", "model_prefix")  # fmt: skip
    for name in shown:
        value = getattr(done, name)
        unread = name in ("data_root", "data_nthreads") and done.loader == "synthetic"
        unread |= name == "comm" and value == "local"
        unread |= name in tricks and value == tricks[name]
        if value is not None and not unread:
            reason = resolved.reasons.get(name, "given")
            lines.append(f"  {experiment.flag_name(name):16} {value}  ({reason})")
    if done.dtype == "float16" and not machine().gpus:
        lines.append("  float16 on a processor shows what float16 does, not how fast it is")
    if done.loader == "synthetic":
        lines.append("  synthetic images: speed is real, accuracy means nothing")
    if done.step is not None:
        lines.append(f"  paced at {done.step:g} img/s: the model is replaced by a wait")
    elif not (done.only_inference or done.test_io):
        lines.append(f"  {experiment.arithmetic(done)}")
        if not done.benchmark_iters:
            told = (experiment.recipe_line, experiment.batch_remark, experiment.schedule_remark)
            lines += [f"  {line}" for line in (say_of(done) for say_of in told) if line]
    return "\n".join(lines)
