"""The verb `rn50 diagnose`: measure an experiment and predict the gain of changes."""

from __future__ import annotations

import shlex

from rn50 import launch
from rn50.autoconfig import Given, prepare
from rn50.description import describe
from rn50.diagnose import model
from rn50.diagnose.measure import Bench, measured
from rn50.diagnose.model import COMMUNICATION, COMPUTE, INPUT, Change
from rn50.parser import config_parser, parse_given
from rn50lib.config import FLAGS, TrainConfig, scoped
from rn50lib.errors import UserError
from rn50lib.hardware import Machine, machine
from rn50lib.lifetime import die_with_parent

SECONDS, SECONDS_CI = 6.0, 0.5  # of a measurement
MAX_CANDIDATES = 2  # candidates that are measured: each takes as long as a part of the run


def join_changes(argv: list[str]) -> list[str]:
    """Write each `--change FLAGS` as `--change=FLAGS`: argparse rejects FLAGS such as '-b 64'."""
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1] == "--change":
            joined[-1] = f"--change={word}"
        else:
            joined.append(word)
    return joined


def parse_change(text: str) -> Given:
    """Parse '--loader dali' into the values that it sets. Raises UserError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"--change {text!r}: {error}") from error
    asked, _ = parse_given(config_parser("diagnose"), words)
    if not asked:
        raise UserError(f"--change {text!r} changes nothing")
    return asked


def candidates(part: str, config: TrainConfig, machine: Machine) -> list[str]:
    """Return flags that might help a run limited by `part`, the most promising first."""
    cores, gpu = max(1, machine.cores // config.n), bool(machine.gpus)
    reduced = config.dtype in ("float32", "tf32") and (gpu or bool(machine.bfloat16))
    table = {
        INPUT: {
            "--loader dali": config.loader != "dali" and config.backend == "torch",
            f"--data-nthreads {cores}": config.data_nthreads < cores,
        },
        COMPUTE: {
            f"--threads {cores}": config.threads < cores and not gpu,
            "--dtype bfloat16": reduced,
            "--dtype float16": reduced and gpu and config.backend == "torch",
            "--compile": gpu and not config.compile and config.backend == "torch",
        },
        COMMUNICATION: {
            f"-b {2 * config.batch_size}": True,
            "--comm ddp --launcher torchrun": config.comm == "horovod"
            and config.backend == "torch",
            "--comm horovod --launcher horovodrun": config.comm == "ddp",
        },
    }
    if part == COMPUTE and config.step is not None:
        return []
    return [flags for flags, useful in table[part].items() if useful]


def try_change(
    bench: Bench, asked: Given, config: TrainConfig, part: str, text: str
) -> Change | None:
    """Predict a change; None if it changes nothing here. Raises UserError if it is impossible."""
    change = parse_change(text)
    changed = {**asked, **change}
    if "data_root" not in change and "num_classes" not in change:  # the same model
        changed["num_classes"] = config.num_classes
    other = measured(prepare(changed).config)
    names = {name for name in FLAGS if getattr(config, name) != getattr(other, name)}
    if not names:
        return None
    if names <= set(scoped("input")) or names <= set(scoped("step")):
        part = INPUT if names <= set(scoped("input")) else COMPUTE
    predicted = model.together(bench.loader(other), bench.step(other), formula(other))
    return Change(text, model.lesson(part, other.backend, text), predicted)


def formula(config: TrainConfig) -> str:
    """Return how the times of the loader and the step add up."""
    on_processor = config.step is None and not machine().gpus
    return model.SUM if on_processor else model.SLOWER


def table(config: TrainConfig, rates: model.Rates) -> list[str]:
    """Return the rates of the parts, and what they cost, as lines."""
    lines = [f"  {'':22}{'img/s':>10}  {'ms per image':>12}"]
    rows = {
        "loader alone": rates.loader,
        "step alone": rates.compute,
        "step without exchange": rates.without_exchange,
        "both together": rates.both,
        f"  predicted ({rates.formula})": model.together(
            rates.loader, rates.compute, rates.formula
        ),
    }
    for name, ips in rows.items():
        if ips != model.FREE and (ips != rates.compute or name == "step alone"):
            lines.append(f"  {name:22}{ips:10,.1f}  {1000 / ips:12.3f}")
    if config.n > 1 and config.trains:
        step, alone = (
            1000 * config.global_batch / ips for ips in (rates.compute, rates.without_exchange)
        )
        lines.append(
            f"  a step of {step:.0f} ms loses {max(0.0, step - alone):.0f} ms to the exchange of"
            f" {4e-6 * config.to_network().num_parameters:.1f} MB"
        )
    return lines


def main(argv: list[str]) -> int:
    parser = config_parser("diagnose")
    parser.add_argument(
        "--change", action="append", default=[], metavar="FLAGS",
        help="predict the run with these flags changed, as in --change '--loader dali'; repeatable"
        " (default: what is likely to help)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, metavar="SECONDS",
        help=f"length of a measurement (default: {SECONDS:g})",
    )  # fmt: skip
    asked, extra = parse_given(parser, join_changes(argv))
    if extra.seconds is not None and not 0 < extra.seconds <= 120:
        raise UserError(f"--seconds {extra.seconds:g}: use more than 0 and at most 120")
    for text in extra.change:
        parse_change(text)
    die_with_parent()
    resolved = prepare(asked)
    if resolved.config.load_epoch is not None:
        raise UserError("--load-epoch: speed does not depend on the weights; leave it out")
    launch.say(describe(resolved))
    launch.warn_of_load()
    usual = SECONDS_CI if resolved.config.profile == "ci" else SECONDS
    bench = Bench(launch.new_run("diagnose"), extra.seconds or usual)
    config = measured(resolved.config)
    loader, compute = bench.loader(config), bench.step(config)
    single = bench.without_exchange(config, compute)
    rates = model.Rates(loader, compute, single, bench.both(config), formula(config))
    bound = model.find_bound(rates)
    changes: list[Change] = []
    for text in extra.change or candidates(bound.part, config, machine()):
        try:
            change = try_change(bench, asked, config, bound.part, text)
        except UserError as error:
            if extra.change:
                raise
            launch.say(f"{text} is left out: {error}")
            continue
        if change:
            changes.append(change)
        elif extra.change:
            raise UserError(f"--change {text!r} changes nothing here: the run has it already")
        if len(changes) == MAX_CANDIDATES and not extra.change:
            break
    launch.say(f"the runs are in {bench.folder}")
    print(model.verdict(rates, bound, changes, config.backend))
    print("\n".join(["", *table(config, rates)]))
    for change in changes:
        print(f"  with {change.flags}: {change.predicted:,.1f} img/s predicted")
    return 0
