"""Turn ImageNet (ILSVRC 2012), in any of its usual forms, into class folders.

    python -m data_prep.imagenet /downloads /data/imagenet --jobs 8

The form is detected: the original archives with the devkit, folders train-jpeg and val-jpeg, or
Kaggle's ILSVRC tree; the labels are the same from all of them.
The output is OUT/train/WNID/, OUT/val/WNID/ and OUT/classes.txt (index, WNID, words). The folder
appears whole; a killed run can be continued. Nothing is downloaded: access to ImageNet needs your
own registration at image-net.org, whose terms allow non-commercial research and teaching.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from data_prep import processes
from data_prep.command_line import Parser, whole
from data_prep.common import Progress, check_room, run_program
from data_prep.devkit import DEVKIT
from data_prep.layouts import Plan, make_plan
from data_prep.lists import write_classes
from data_prep.output import OutputFolder
from data_prep.unpacking import prepare
from rn50lib.errors import UserError
from rn50lib.files import format_bytes

KNOWN = {"train": 1_281_167, "val": 50_000}
"""Images of ILSVRC 2012, which has 1000 classes."""


def unpack(
    source: Path, out: Path, *, devkit: Path | None = None, jobs: int | None = None,
    quiet: bool = False,
) -> bool:  # fmt: skip
    """Make the class folders; return True if every expected image is there.

    Files are linked, or copied if the file system cannot link them. ``jobs`` is the
    number of processes, by default all usable cores; 0 works in this one. Raises UserError if the
    source is none of the forms, is damaged or unsafe, if no image of a class can be read, if the
    disk has too little room, or if ``out`` exists and was made from something else.
    """
    plan = make_plan(source, devkit)
    inputs = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in plan.inputs]
    stamp = [str(source.resolve()), plan.form, inputs, plan.images]
    folder = OutputFolder(out, stamp)
    if folder.is_complete():
        print(f"{out}: already complete")
        return _compare_counts(plan, {s: sum(1 for _ in out.glob(f"{s}/*/*")) for s in plan.images})
    if out.exists():
        raise UserError(f"{out}: this is there already; name a new folder")
    done = {"train": 0, "val": 0}
    with folder:
        if not folder.resumed:
            check_room(out.parent, plan.needs(folder.part), f"unpacking {plan.form}")
        elif not quiet:
            print("continuing an interrupted run", file=sys.stderr)
        total, size = sum(plan.images.values()), 0
        with Progress(total, f"unpacking {plan.form}", quiet=quiet) as progress:
            for number, answer in processes.run(prepare, str(folder.part), plan.tasks, jobs):
                done[plan.tasks[number][1]] += answer[0]
                size += answer[1]
                progress.update(answer[0])
            took = f"{progress.seconds:.1f} s"
            if not folder.resumed:  # else the run before made a part of them
                took = progress.took(sum(done.values()))
        for split in plan.images:
            for wnid in plan.wnids:
                (folder.part / split / wnid).mkdir(parents=True, exist_ok=True)
        write_classes(folder.part, plan.wnids, plan.words)
    if not quiet:
        print(
            f"{out}: {done['train']:,} train and {done['val']:,} val images of "
            f"{len(plan.wnids):,} classes, {format_bytes(size)}, in {took}{plan.left_out.note}"
        )
    return _compare_counts(plan, done)


def _compare_counts(plan: Plan, done: dict[str, int]) -> bool:
    """Compare the counts with the devkit's, or with ILSVRC 2012's; return True if they agree."""
    expected = KNOWN if len(plan.wnids) == 1000 else plan.expected
    good = True
    for split, count in expected.items():
        if not count:
            continue
        if split not in plan.images:
            print(f"note: the source has no {split}", file=sys.stderr)
        elif done[split] == count:
            print(f"{split}: {count:,} images, as expected")
        else:
            found = f"{split} has {done[split]:,} images, not {count:,}"
            print(f"warning: {found}; the source is incomplete", file=sys.stderr)
            good = False
    return good


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m data_prep.imagenet",
        description="Turn ImageNet, in any of its usual forms, into class folders.",
        epilog="Nothing is downloaded: access to ImageNet needs your own registration at "
        "image-net.org.",
    )
    add = parser.add_argument
    add("source", type=Path, metavar="SOURCE", help="folder with the archives or tree")
    add("out", type=Path, metavar="OUT", help="new folder for train/, val/ and classes.txt")
    add("--devkit", type=Path, metavar="PATH", help=f"{DEVKIT}.tar.gz, or its folder")
    add("--jobs", type=whole(), metavar="J", help="processes (all usable cores)")
    add("--quiet", action="store_true", help="no progress and no summary")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the program; return 1 if images are missing."""
    return 0 if unpack(**vars(parse(argv))) else 1


if __name__ == "__main__":
    run_program(main)
