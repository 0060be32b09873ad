"""Read a whole data set and report what is wrong with it.

    python -m data_prep.verify data/roadsigns
    python -m data_prep.verify train.rec val.rec --json > report.json

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
import json
import os
import re
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data_prep import processes
from data_prep.common import Progress, run_program
from data_prep.verifying import compare, shards
from data_prep.verifying.compare import FORMS
from data_prep.verifying.folders import Part, read_split
from data_prep.verifying.problems import ERROR, KINDS, LEVELS, NOTE, Problems
from data_prep.verifying.recordfiles import read_record_file
from rn50lib.data import source
from rn50lib.data.classes import Classes
from rn50lib.data.scan import SPLITS, describe_contents
from rn50lib.data.tfrecord import SHARDS, shard_name
from rn50lib.errors import Parser, UserError, whole
from rn50lib.hardware import usable_cores

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
        forms = dict.fromkeys(part.form for part in self.parts)
        splits = {part.split for part in self.parts if len(part)}
        images = sum(map(len, self.parts))
        names = [f"{part.path} ({part.form})" for part in self.parts if part.contents == "decoded"]
        checked = [FORMS[form] for form in forms]
        checked.append(f"{images:,} image{'s' * (images != 1)} decoded")
        checked += ["checksums"] * (len(names) < len(self.parts))
        unchecked = []
        if splits == set(SPLITS):
            checked.append("classes and repeated images of train and val")
        else:
            missing = " and ".join(split for split in SPLITS if split not in splits)
            unchecked.append(f"{missing} (missing or not readable)")
        if names:
            unchecked.append(
                "bytes that changed and still decode, for lack of checksums, in " + ", ".join(names)
            )
        unchecked.append("whether the labels are true")
        return checked, unchecked

    def as_json(self) -> dict[str, Any]:
        checked, unchecked = self.coverage()
        return {
            "good": self.good,
            "checked": checked,
            "not_checked": unchecked,
            "seconds": round(self.seconds, 3),
            "levels": self.problems.count_levels(),
            "parts": [
                {
                    "form": part.form,
                    "split": part.split,
                    "path": str(part.path),
                    "images": len(part),
                    "contents": part.contents,
                    "left_out": dict(part.left_out),
                    "classes": counts_per_class(part),
                }
                for part in self.parts
            ],
            "problems": [{"level": p.level} | asdict(p) for p in self.problems],
        }


def counts_per_class(part: Part) -> dict[str, int]:
    """Return class name (or number) → images."""
    names = part.classes or Classes((), "")
    return {names[label]: int(count) for label, count in enumerate(part.class_counts(len(names)))}


def verify(paths: list[Path], jobs: int | None = None, quiet: bool = False) -> Report:
    """Read everything under the paths and report. Raises UserError if a path does not exist.

    ``jobs`` is the number of processes, by default all usable cores; 0 reads in this process.
    """
    report = Report()
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: there is no such file or folder")
        parts = _find_parts(path, report.problems)
        if not parts:
            instead = "give the folder or file that holds the data"
            if path.is_dir():
                instead = f"found {describe_contents(path)}"
            raise UserError(
                f"{path}: neither class folders, nor record files (.rec), nor TFRecord shards "
                f"(train-00000-of-00004); {instead}"
            )
        work = [(part, first, task) for part in parts for first, task in part.runs]
        with Progress(len(work), "verifying", "parts", quiet) as progress:
            _read_images(work, report, usable_cores() if jobs is None else jobs, progress)
            report.seconds += progress.seconds
        report.parts += parts
        compare.compare_classes(parts, report.problems)
    compare.find_repeats(report.parts, report.problems)
    order = {kind: number for number, kind in enumerate(KINDS)}
    report.problems.sort(key=lambda p: (LEVELS.index(p.level), order[p.kind], p.where))
    return report


def _find_parts(path: Path, problems: Problems) -> list[Part]:
    """Return the splits and forms that a path holds, with their structure read."""
    split = "val" if path.name.startswith("val") else "train"
    if path.is_file():
        if path.suffix in (".idx", ".lst", ".crc") and path.with_suffix(".rec").exists():
            path = path.with_suffix(".rec")
        if path.suffix == ".rec":
            return [read_record_file(path, split, problems)]
        if not SHARD_NAME.search(path.name):
            return []
        if not any(fnmatch.fnmatch(path.name, pattern) for pattern in SHARDS.values()):
            problems.add("names", path, f"expected a name such as {shard_name(split, 0, 1)}")
        return [shards.read_shards(path, split, problems)]
    parts = [read_split(path / s, s, problems) for s in SPLITS if (path / s).is_dir()]
    for folder in (path, path / "records"):
        for name in SPLITS:
            if os.path.lexists(folder / f"{name}.rec"):
                parts.append(read_record_file(folder / f"{name}.rec", name, problems))
            elif (folder / f"{name}.idx").exists():
                problems.add("index", folder / f"{name}.idx", "its record file is missing")
    for folder in (path, path / "tfrecord"):
        for name in SPLITS:
            if source.ShardSource.holds(folder, name):
                parts.append(shards.read_shards(folder, name, problems))
    for missing in {*SPLITS} - {part.split for part in parts} if parts else ():
        kind = "dangling" if (path / missing).is_symlink() else "one-split"
        problems.add(kind, path, source.FORMS[parts[0].form].describe_missing(path, missing))
    forms = [part.form for part in parts]
    taken = next((form for form in ("recordio", "files", "tfrecord") if form in forms), "")
    there = {part.split for part in parts if part.form == taken}
    for missing in {part.split for part in parts} - there:
        what = FORMS[taken].partition(" with")[0]
        text = f"--data-format auto takes the {what}, which lack {missing}; make them for both"
        problems.add("no-images", path, text)
    if not parts:
        parts = [
            read_record_file(rec, "val" if rec.name.startswith("val") else "train", problems)
            for rec in sorted(path.glob("*.rec"))
        ]
        if parts:
            problems.add("names", path, "expected the names train.rec and val.rec")
    if not parts:
        part = read_split(path, "val" if path.name == "val" else "train", problems)
        parts = [part] if len(part) else []
    return parts


def _read_images(
    work: list[tuple[Part, int, list]], report: Report, jobs: int, progress: Progress
) -> None:
    """Pass every image to the workers and gather what they find."""
    problems = report.problems
    tasks = [task for _, _, task in work]
    for number, answer in processes.run(shards.prepare, None, tasks, jobs):
        part, first, task = work[number]
        form, where, *items = task
        progress.update()
        if form == "shard":
            shards.add_answer(part, where, answer, problems)
        else:
            part.digests[first : first + len(items[0])] = answer["digests"]
            for i, kind, text in answer["found"]:
                problems.add(kind, part.names[first + i], text)


def print_report(report: Report, every: bool = False) -> None:
    for part in report.parts:
        counts = [count for count in counts_per_class(part).values() if count]
        each = ""
        if counts:
            span = "–".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))
            each = f" in {len(counts):,} class{'es' * (len(counts) != 1)}, {span} each"
        print(
            f"{part.path} ({part.form}, {part.split}): {len(part):,} images{each}"
            f"{part.left_out.note}"
        )
    for kind, meaning in KINDS.items():
        found = [problem for problem in report.problems if problem.kind == kind]
        if not found:
            continue
        print(f"\n{meaning.level}: {meaning.title} ({len(found):,}): {meaning.advice}")
        shown = found if every else found[: 3 if meaning.level == NOTE else 10]
        for problem in shown:
            print(f"  {problem.line()}")
        if len(found) > len(shown):
            print(f"  … and {len(found) - len(shown):,} more (--all shows them)")
    levels = report.problems.count_levels().items()
    totals = ", ".join(f"{count:,} {level}{'s' * (count != 1)}" for level, count in levels)
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
    add("--json", action="store_true", help="print the report as JSON")
    add("--all", action="store_true", help="show every problem, not ten of a kind")
    add("--jobs", type=whole(), metavar="J", help="processes (all usable cores)")
    add("--quiet", action="store_true", help="no progress")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    flags = parse(argv)
    report = verify(flags.paths, flags.jobs, flags.quiet)
    if flags.json:
        json.dump(report.as_json(), sys.stdout, indent=4)
        print()
    else:
        print_report(report, flags.all)
    return 0 if report.good else 1


if __name__ == "__main__":
    run_program(main)
