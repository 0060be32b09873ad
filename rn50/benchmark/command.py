"""`rn50 benchmark`: rates over numbers of workers and batch sizes, in a file and as tables."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path

from rn50 import compare, description, launch
from rn50 import parser as parsers
from rn50.autoconfig import Given, prepare
from rn50.benchmark import result
from rn50.benchmark.cells import Cell, measure
from rn50.benchmark.worker import WARM_UP
from rn50.common import counts
from rn50.presets import PRESETS
from rn50lib.config import flag_name
from rn50lib.errors import UserError
from rn50lib.files import check_writable
from rn50lib.preemption import die_with_parent
from rn50lib.report import write_json

# what a cell is one of, and how long it takes: a list in a file, or a number
SWEEP = ("-n", "--n-GPUs", "--ngpus", "-b", "--batch-size", "--batch-sizes", "-i",
         "--benchmark-iters", "-e", "--num-epochs", "--epochs", "-w", "--warmup")  # fmt: skip
KEYS = ("train.total_ips", "val.total_ips")
# flags of a run that would make a cell something else than a measurement of its own
REFUSED = ("report", "resume", "max_restarts", "checkpoint_steps", "test_io")
TOGETHER = ("comm", "launcher", "hosts", "bind", "timeline", "comm_timeout")
EXAMPLES = """\
  rn50 benchmark -n 1,2 -b 8,32 -e 2 -w 1 -o bench.json            four cells
  rn50 benchmark -b 1,8,32 --only-inference -o inference.json      inference alone
  rn50 benchmark --preset BENCHMARK_FP16 -o out.json --dry-run     the reference's sweep

Every flag of `rn50 run` may follow, and holds for every cell; `rn50 run --help all` lists them."""


def own_parser() -> parsers.Parser:
    """The flags that a benchmark has beyond a run's, or reads differently."""
    parser = parsers.Parser(
        prog="rn50 benchmark",
        description=parsers.VERBS["benchmark"].capitalize() + ".",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    def add(*names: str, kind: Callable, help: str, default: object = None) -> None:
        parser.add_argument(
            *names, type=parsers.converter(kind), metavar="N" if kind is not counts else "N,N,...",
            help=help, default=default,
        )  # fmt: skip

    add("-n", "--n-GPUs", "--ngpus", kind=counts, help="numbers of workers (default: as rn50 run)")
    add(
        "-b",
        "--batch-size",
        "--batch-sizes",
        kind=counts,
        help="batch sizes per worker (default: as rn50 run)",
    )
    add(
        "-i",
        "--benchmark-iters",
        kind=parsers.positive,
        default=100,
        help="iterations per epoch (100)",
    )
    add("-e", "--num-epochs", "--epochs", kind=parsers.positive, default=1, help="epochs (1)")
    add("-w", "--warmup", kind=parsers.natural, default=0, help="first epochs to leave out (0)")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write", required=True)
    parser.add_argument("--dry-run", action="store_true", help="print every cell's run, and stop")
    parser.add_argument("--preset", help="a named set of flags; flags given beside it win")
    parser.add_argument("--config", type=Path, help="the same from a YAML or JSON file")
    return parser


def flags_in(file: Path) -> list[str]:
    """What a file of --config gives of the flags in SWEEP."""
    given = {parsers.flag_of(key): value for key, value in parsers.read_file(file).items()}
    texts = {k: ",".join(map(str, v)) if isinstance(v, list) else str(v) for k, v in given.items()}
    return [word for flag, text in texts.items() if flag in SWEEP for word in (flag, text)]


def main(argv: list[str]) -> int:
    """Returns 0 when every cell was measured, 1 when one failed, 130 after Ctrl-C."""
    die_with_parent()
    own, asked = parse(argv)
    if own.dry_run:
        show(plan(own, asked), asked)
        return 0
    check_writable(own.output, "-o")
    cells = plan(own, asked)
    resolve(cells, asked)
    dropped = epochs_left_out(own.warmup, cells)
    skipped = {"train.total_ips": asked.get("only_inference"), "val.total_ips": asked.get("no_val")}
    keys = [key for key in KEYS if not skipped[key]]
    status = 0
    runnable = [cell for cell in cells if cell.resolved is not None]
    try:
        # by the workers that measure a cell: --profile ci caps them
        for _, group in itertools.groupby(runnable, key=lambda cell: cell.experiment.n):
            measure(list(group))
    except KeyboardInterrupt:
        status = 130
        for cell in cells:
            if cell.report is None and cell.reason is None:
                cell.reason = "interrupted"
        if not any(cell.report for cell in cells):
            launch.say("interrupted before the first cell was measured: nothing is written")
            return status
    caps = [line for cell in cells if cell.resolved for line in cell.resolved.caps]
    more = {
        "cmd": ["rn50", "benchmark", *argv],
        "warm_up": {"untimed_iterations": WARM_UP, "epochs_left_out": dropped},
        "caps": list(dict.fromkeys(caps)),  # what --profile ci has changed, over all cells
    }
    found = result.to_dict(cells, keys, dropped, more)
    write_json(own.output, found)
    launch.say(compare.text([compare.side_of(found)]) + "\n" + result.spreads(found))
    print(own.output)
    return status or int(any(cell.reason for cell in cells))


def parse(argv: list[str]) -> tuple[argparse.Namespace, Given]:
    """A benchmark's own flags, and the experiment that every cell is a variant of."""
    parser = own_parser()
    own, rest = parser.parse_known_args([*argv])
    first = flags_in(own.config) if own.config else []
    preset = PRESETS.get(own.preset)
    if preset is not None and preset.command == "benchmark":
        first += preset.flags
    own, rest = parser.parse_known_args([*first, *argv])
    if own.preset is not None and (preset is None or preset.command != "benchmark"):
        rest = ["--preset", own.preset, *rest]  # a run's
    if own.config is not None:
        rest = ["--config", str(own.config), *rest]
    asked, _ = parsers.parse_given(parsers.config_parser("benchmark"), rest, SWEEP)
    for name in REFUSED:
        if asked.get(name):
            raise UserError(f"{flag_name(name)} does not go with a benchmark: leave it out")
    if "n" in asked:  # of a run's preset
        own.n_GPUs = own.n_GPUs or [asked["n"]]
        own.batch_size = own.batch_size or [asked["batch_size"]]
    if own.warmup >= own.num_epochs:
        raise UserError(f"-w {own.warmup} leaves nothing of -e {own.num_epochs}: give a larger -e")
    cell = {"num_epochs": own.num_epochs, "benchmark_iters": own.benchmark_iters}
    return own, asked | cell | {"no_metrics": True}


def plan(own: argparse.Namespace, asked: Given) -> list[Cell]:
    """The cells of the sweep, none of them resolved yet."""
    ns, batches = own.n_GPUs, own.batch_size
    if not (ns and batches):
        chosen = prepare(asked, make_data=not own.dry_run).experiment
        ns, batches = ns or [chosen.n], batches or [chosen.batch_size]
    home = Path() if own.dry_run else launch.new_run("benchmark")
    return [Cell(n, b, home / f"n{n}-b{b}") for n in ns for b in batches]


def in_cell(asked: Given, n: int, batch: int) -> Given:
    """The experiment of one cell. What many workers were given is not for a lone one among them."""
    kept = {k: v for k, v in asked.items() if n > 1 or k not in TOGETHER}
    return {**kept, "n": n, "batch_size": batch}


def show(cells: list[Cell], asked: Given) -> None:
    """Print what each cell would run, then what is missing here."""
    missing: dict[str, None] = {}
    for cell in cells:
        resolved, remarks = description.prepared(in_cell(asked, cell.n, cell.batch))
        print("\n".join([f"{cell.title}:", *description.command_lines(resolved)]))
        missing |= dict.fromkeys(remarks)
    print("\n".join(missing))


def resolve(cells: list[Cell], asked: Given) -> None:
    """Fill in what each cell runs. Raises UserError where none of them can run here."""
    for cell in cells:
        try:
            cell.resolved = prepare(in_cell(asked, cell.n, cell.batch))
        except UserError as error:
            cell.reason = str(error)
    found = [cell.resolved for cell in cells if cell.resolved is not None]
    if not found:
        raise UserError(cells[0].reason or "")
    launch.say(description.describe(found[0]))
    for cell in cells:
        if cell.reason:
            launch.say(f"{cell.title} is left out: {cell.reason}")


def epochs_left_out(dropped: int, cells: list[Cell]) -> int:
    """The epochs to leave out: fewer than asked for where --profile ci has capped the epochs."""
    epochs = min(cell.experiment.num_epochs for cell in cells if cell.resolved)
    if dropped >= epochs:
        launch.say(f"profile ci: -w {dropped} capped to {epochs - 1}")
        return epochs - 1
    return dropped
