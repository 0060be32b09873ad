"""The verb `rn50 diagnose`: its flags, and where what was found is written."""

from __future__ import annotations

import time

from rn50 import launch, plot
from rn50.description import describe
from rn50.diagnose import changes, show
from rn50.diagnose.diagnosis import diagnose
from rn50.parser import experiment_parser, parse_experiment
from rn50.prepare import prepare
from rn50lib.errors import UserError
from rn50lib.files import check_writable
from rn50lib.preemption import die_with_parent
from rn50lib.report import write_json

SECONDS, SECONDS_CI = 6.0, 0.5  # of a measurement


def main(argv: list[str]) -> int:
    """`rn50 diagnose`; returns the exit status."""
    parser = experiment_parser("diagnose")
    parser.add_argument(
        "--change", action="append", default=[], metavar="FLAGS",
        help="predict the run with these flags changed, as in --change '--loader dali'; repeatable"
        " (default: what is likely to help)",
    )  # fmt: skip
    parser.add_argument(
        "--verify", action="store_true",
        help="measure the changes too, and say how far the predictions were off",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write everything that was found")
    parser.add_argument("-o", "--output", metavar="FILE", help="write a picture (.png, .svg, .pdf)")
    parser.add_argument(
        "--seconds", type=float, metavar="SECONDS",
        help=f"length of a measurement (default: {SECONDS:g})",
    )  # fmt: skip
    asked, extra = parse_experiment(parser, changes.joined(argv))
    if extra.seconds is not None and not 0 < extra.seconds <= 120:
        raise UserError(f"--seconds {extra.seconds:g}: give more than 0 and at most 120")
    for flag, file in (("--json", extra.json), ("--output", extra.output)):
        if file:
            check_writable(file, flag)
    wanted = {text: changes.parse(text) for text in extra.change}
    die_with_parent()
    resolved = prepare(asked)
    if resolved.experiment.load_epoch is not None:
        raise UserError("--load-epoch: speed does not depend on the weights; leave it out")
    launch.say(describe(resolved))
    usual = SECONDS_CI if resolved.experiment.profile == "ci" else SECONDS
    folder = launch.new_run("diagnose")
    begin = time.monotonic()
    found = diagnose(resolved, asked, wanted, extra.verify, extra.seconds or usual, folder)
    launch.say(f"measured in {time.monotonic() - begin:.0f} s; the runs are in {folder}")
    print(show.text(found))
    if extra.json:
        write_json(extra.json, show.content(found))
        launch.say(extra.json)
    if extra.output:
        plot.save(show.bars(found), extra.output)
        launch.say(extra.output)
    return 0
