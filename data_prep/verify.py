"""Read a whole data set and report what is wrong with it.

    python -m data_prep.verify data/roadsigns
    python -m data_prep.verify train.rec val.rec

It reads folders, record files, shards, lists and indexes, and decodes every image. Exit status 1
means that it found something by which training would fail or learn something wrong, 2 that the
command was wrong. 0 means that it found none (there may be notes and warnings): the last line says
what was checked, and what could not be.

A changed byte that still decodes is found in TFRecord shards and in record files with checksums
(PREFIX.crc, by im2rec), and nowhere else.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from data_prep import processes
from data_prep.command_line import Parser, whole
from data_prep.common import Progress, run_program
from data_prep.verifying.compare import FORMS, compare_classes, find_repeats, one_form
from data_prep.verifying.folders import Part, read_split
from data_prep.verifying.images import Images, prepare
from data_prep.verifying.problems import ERROR, KINDS, LEVELS, NOTE, Problems
from data_prep.verifying.recordfiles import read_record_file
from data_prep.verifying.shards import read_shards
from rn50lib.data import source
from rn50lib.data.classes import Classes
from rn50lib.data.scan import SPLITS, describe_contents
from rn50lib.data.tfrecord import SHARDS, shard_name
from rn50lib.errors import UserError

SHARD_NAME = re.compile(r"\.tfrec(ord)?s?\b|-of-\d+", re.IGNORECASE)


@dataclass
class Report:
    """The parts that were read and their problems."""

    parts: list[Part] = field(default_factory=list)
    problems: Problems = field(default_factory=Problems)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Return True if nothing was found by which training would fail or learn wrongly."""
        return not any(problem.level == ERROR for problem in self.problems)

    def coverage(self) -> tuple[list[str], list[str]]:
        """Return what was checked, and what could not be."""
        images = sum(digest > 0 for part in self.parts for digest in part.digests)
        images -= sum(problem.kind in ("undecodable", "no-image") for problem in self.problems)
        decoded = [f"{p.path} ({p.form})" for p in self.parts if p.contents == "decoded"]
        checked = [FORMS[form] for form in dict.fromkeys(part.form for part in self.parts)]
        checked += [f"{images:,} image{'s' * (images != 1)} decoded"]
        checked += ["checksums"] * (len(decoded) < len(self.parts))
        unchecked = []
        there = {part.split for part in self.parts if len(part)}
        if missing := [split for split in SPLITS if split not in there]:
            unchecked.append(f"{' and '.join(missing)} (missing or not readable)")
        else:
            checked.append("classes and repeated images of train and val")
        if decoded:
            what = "bytes that changed and still decode, for lack of checksums, in "
            unchecked.append(what + ", ".join(decoded))
        return checked, [*unchecked, "whether the labels are true"]


def counts_per_class(part: Part) -> dict[str, int]:
    """Return class name (or number) → images."""
    names = part.classes or Classes((), "")
    return {names[label]: count for label, count in enumerate(part.class_counts(len(names)))}


def verify(paths: list[Path], jobs: int | None = None, quiet: bool = False) -> Report:
    """Read everything under the paths and report. Raises UserError if a path does not exist.

    ``jobs`` is the number of processes, by default all usable cores; 0 reads in this process.
    """
    report = Report()
    roots, compared = [], []
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: there is no such file or folder")
        if path.is_dir():
            parts = _parts_of_folder(path, report.problems)
        else:  # a pipe or a device holds no data, and reading one may wait forever
            parts = _parts_of_file(path) if path.is_file() else []
        if not parts:
            instead = "give the folder or file that holds the data"
            if path.is_dir():
                instead = f"found {describe_contents(path)}"
            raise UserError(
                f"{path}: neither class folders, nor record files (.rec), nor TFRecord shards "
                f"(train-00000-of-00004); {instead}"
            )
        tasks = [task for part in parts for task in part.tasks]
        answers = [Images()] * len(tasks)  # in the order of the tasks
        with Progress(len(tasks), "verifying", "parts", quiet) as progress:
            for number, answer in processes.run(prepare, None, tasks, jobs):
                answers[number] = answer
                progress.update()
            report.seconds += progress.seconds
        owners = (part for part in parts for _ in part.tasks)
        for part, answer in zip(owners, answers, strict=True):
            part.extend(answer)
        for part in parts:
            report.problems += part.problems
        report.parts += parts
        roots.append(parts)
        compared += one_form(parts)
    kinds = [(part.form, part.split) for part in report.parts]
    is_one = len({*kinds}) == len(kinds)  # such as `train.rec val.rec`, and not two data roots
    for parts in [report.parts] if is_one else roots:
        compare_classes(parts, report.problems)
    find_repeats(compared, report.problems)
    order = list(KINDS)
    report.problems.sort(key=lambda p: (LEVELS.index(p.level), order.index(p.kind), p.where))
    return report


def _parts_of_file(path: Path) -> list[Part]:
    """Return the record file, also of its index, list or checksums, or the shard."""
    split = "val" if path.name.startswith("val") else "train"
    if path.suffix in (".idx", ".lst", ".crc") and path.with_suffix(".rec").exists():
        path = path.with_suffix(".rec")
    if path.suffix == ".rec":
        return [read_record_file(path, split)]
    if not SHARD_NAME.search(path.name):
        return []
    part = read_shards(path, split)
    if not any(fnmatch.fnmatch(path.name, pattern) for pattern in SHARDS.values()):
        part.problems.add("names", path, f"expected a name such as {shard_name(split, 0, 1)}")
    return [part]


def _parts_of_folder(path: Path, problems: Problems) -> list[Part]:
    """Return the splits and forms that a data root holds, or else a folder of records or classes.

    Their structure has been read, and their tasks have not.
    """
    parts = [read_split(path / split, split) for split in SPLITS if (path / split).is_dir()]
    for folder in (path, path / "records"):
        for split in SPLITS:
            if os.path.lexists(folder / f"{split}.rec"):
                parts.append(read_record_file(folder / f"{split}.rec", split))
            elif (folder / f"{split}.idx").exists():
                problems.add("index", folder / f"{split}.idx", "its record file is missing")
    for folder in (path, path / "tfrecord"):
        parts += [read_shards(folder, s) for s in SPLITS if source.ShardSource.holds(folder, s)]
    if not parts:
        records = sorted(path.glob("*.rec"))
        if records:
            problems.add("names", path, "expected the names train.rec and val.rec")
            return [part for record in records for part in _parts_of_file(record)]
        part = read_split(path, "val" if path.name == "val" else "train")
        return [part] if part.tasks else []
    splits = {part.split for part in parts}
    for missing in {*SPLITS} - splits:
        kind = "dangling" if (path / missing).is_symlink() else "one-split"
        why = source.FORMS[parts[0].form].describe_missing(path, missing)
        problems.add(kind, path, f"{missing} is missing: {why}")
    # a run takes the first form that is there
    taken = next(form for form in source.FORMS if form in {part.form for part in parts})
    for missing in splits - {part.split for part in parts if part.form == taken}:
        what = FORMS[taken].partition(" with")[0]
        text = f"--data-format auto takes the {what}, which lack {missing}; make them for both"
        problems.add("no-images", path, text)
    return parts


def print_report(report: Report, every: bool = False) -> None:
    for part in report.parts:
        each = ""
        if counts := [count for count in counts_per_class(part).values() if count]:
            span = "–".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))
            each = f" in {len(counts):,} class{'es' * (len(counts) != 1)}, {span} each"
        what = f"{part.path} ({part.form}, {part.split})"
        print(f"{what}: {len(part):,} images{each}{part.left_out.note}")
    for kind, meaning in KINDS.items():
        found = [problem for problem in report.problems if problem.kind == kind]
        if not found:
            continue
        print(f"\n{meaning.level}: {meaning.title} ({len(found):,}): {meaning.advice}")
        shown = found if every else found[: 0 if meaning.level == NOTE else 10]
        for problem in shown:
            print(f"  {problem.line()}")
        if len(found) > len(shown):
            more = f"… and {len(found) - len(shown):,} more (--all shows them)"
            print(f"  {more if shown else '(--all shows where)'}")
    levels = [problem.level for problem in report.problems]
    counted = [(level, levels.count(level)) for level in LEVELS]
    totals = ", ".join(f"{count:,} {level}{'s' * (count != 1)}" for level, count in counted)
    images = sum(map(len, report.parts))
    rate = images / report.seconds if report.seconds else 0
    print(f"\n{images:,} images read in {report.seconds:.1f} s ({rate:,.0f} images/s): {totals}")
    if not report.good:
        print("Do not train on this data until the errors are fixed.")
    checked, unchecked = report.coverage()
    print(f"checked: {', '.join(checked)}; not checked: {', '.join(unchecked)}")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m data_prep.verify",
        description="Read a whole data set and report what is wrong with it: structure, indexes, "
        "lists, labels, and images that do not decode. A changed byte that still decodes is found "
        "if there are checksums (TFRecord, and PREFIX.crc next to record files); if there are "
        "none, the report says so.",
    )
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="DIR|FILE", help="data root, .rec file or shard")
    add(
        "--all",
        action="store_true",
        help="show each problem, not ten of a kind and the number of notes",
    )
    add("--jobs", type=whole(), metavar="J", help="processes (all usable cores)")
    add("--quiet", action="store_true", help="no progress")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    flags = parse(argv)
    report = verify(flags.paths, flags.jobs, flags.quiet)
    print_report(report, flags.all)
    return 0 if report.good else 1


if __name__ == "__main__":
    run_program(main)
