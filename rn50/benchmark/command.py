"""`rn50 benchmark`: rates over numbers of workers and batch sizes, in a file and as tables."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rn50 import compare, description, launch
from rn50 import parser as parsers
from rn50.autoconfig import Given, prepare
from rn50.benchmark.cells import Cell, contents, measure
from rn50.common import counts, has_key
from rn50lib.config import flag_name, scoped
from rn50lib.errors import UserError, converter, whole
from rn50lib.files import Output
from rn50lib.lifetime import die_with_parent
from rn50lib.report import as_json

# names in a file that are lists here, or a sweep's own; the names of the parsed values
SWEEP = {"n": "workers", "batch_size": "batches", "warmup": "warmup"}


def parse(argv: list[str]) -> tuple[argparse.Namespace, Given]:
    """Return a benchmark's own flags, and the values that every cell has."""
    parser = parsers.config_parser("benchmark")
    parser.conflict_handler = "resolve"  # -n and -b are lists here
    add, several = parser.add_argument_group("sweep").add_argument, converter(counts)
    add("-n", "--n-GPUs", "--ngpus", dest="workers", type=several, metavar="N,N,...",
        help="numbers of workers")  # fmt: skip
    add("-b", "--batch-size", "--batch-sizes", dest="batches", type=several, metavar="N,N,...",
        help="batch sizes per worker")  # fmt: skip
    number: dict[str, Any] = {"type": whole(), "metavar": "N", "default": argparse.SUPPRESS}
    add("-i", "--benchmark-iters", help="iterations per epoch (100)", **number)
    add("-e", "--num-epochs", "--epochs", help="epochs (1)", **number)
    add("-w", "--warmup", type=int, default=0, metavar="N",
        help="first epochs to leave out (0)")  # fmt: skip
    add("-o", "--output", type=Path, help="JSON file to write", required=True)
    add("--dry-run", action="store_true", help="print every cell's run, and stop")
    for _, values in parsers.sources(parser.parse_known_args(argv)[0]):
        for key, value in values.items():
            if name := SWEEP.get(str(key).replace("-", "_")):
                text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
                parser.set_defaults(**{name: text})
    asked, own = parsers.parse_given(parser, argv, SWEEP)
    for name in scoped("untimed"):
        if asked.get(name):
            raise UserError(f"{flag_name(name)} does not work with a benchmark: omit it")
    asked = {"num_epochs": 1, "benchmark_iters": 100, **asked, "no_metrics": True}
    epochs = asked["num_epochs"]
    if own.warmup >= epochs:
        raise UserError(f"-w {own.warmup} leaves nothing of -e {epochs}: use a larger -e")
    return own, asked


def main(argv: list[str]) -> int:
    """Return 0 if every cell was measured, 1 if one failed, 130 after Ctrl-C."""
    die_with_parent()
    own, asked = parse(argv)
    output = Output("-o", own.output, "a benchmark", has_key("metric_keys"))
    if own.dry_run:
        show(plan(own, asked), asked)
        return 0
    cells = plan(own, asked)
    resolve(cells, asked)
    runnable = [cell for cell in cells if cell.resolved]
    dropped = min(own.warmup, min(cell.config.num_epochs for cell in runnable) - 1)
    if dropped < own.warmup:
        launch.say(f"profile ci: -w {own.warmup} capped to {dropped}")
    interrupted = False
    try:
        for cell in runnable:
            measure(cell)
    except KeyboardInterrupt:
        interrupted = True
        for cell in cells:
            cell.reason = cell.reason or (None if cell.report else "interrupted")
    if not any(cell.report for cell in cells) and interrupted:
        launch.say("interrupted before the first cell was measured: nothing is written")
        return 130
    found = contents(cells, dropped, ["rn50", "benchmark", *argv])
    output.write(as_json(found))
    launch.say(compare.text([compare.side_of(found, "this sweep")]))
    print(own.output)
    return 130 if interrupted else int(any(cell.reason for cell in cells))


def plan(own: argparse.Namespace, asked: Given) -> list[Cell]:
    """Return the cells of the sweep, none of them resolved yet."""
    ns, batches = own.workers, own.batches
    if not (ns and batches):
        chosen = prepare(asked, remarks=[] if own.dry_run else None).config
        ns, batches = ns or [chosen.n], batches or [chosen.batch_size]
    home = Path() if own.dry_run else launch.new_run("benchmark")
    return [Cell(n, b, home / f"n{n}-b{b}") for n in ns for b in batches]


def in_cell(asked: Given, n: int, batch: int) -> Given:
    """Return the flags of one cell, without flags for several workers if it has one."""
    kept = {name: value for name, value in asked.items() if n > 1 or name not in scoped("group")}
    return {**kept, "n": n, "batch_size": batch}


def show(cells: list[Cell], asked: Given) -> None:
    """Print what each cell would run, then what is missing here."""
    missing: list[str] = []
    for cell in cells:
        resolved = prepare(in_cell(asked, cell.n, cell.batch), remarks=missing)
        print("\n".join([f"{cell.title}:", *description.command_lines(resolved)]))
    print("\n".join(dict.fromkeys(missing)))
    if not missing:
        description.check_data(asked, resolved.config)


def resolve(cells: list[Cell], asked: Given) -> None:
    """Fill in what each cell runs. Raise UserError if none of them can run here."""
    for cell in cells:
        try:
            cell.resolved = prepare(in_cell(asked, cell.n, cell.batch))
        except UserError as error:
            cell.reason = str(error)
    found = [cell.resolved for cell in cells if cell.resolved]
    if not found:
        raise UserError(cells[0].reason or "")
    launch.say(description.describe(found[0]))
    for cell in cells:
        if cell.reason:
            launch.say(f"{cell.title} is left out: {cell.reason}")
