"""Read a whole data set and say what is wrong with it: folders, record files, shards, lists,
indexes.

    python -m data_prep.verify data/roadsigns
    python -m data_prep.verify train.rec val.rec --json > report.json
    python -m data_prep.verify /data/imagenet --fix /data/imagenet-fixed

Exit status 0 means that nothing was found on which training would fail or learn something wrong
(there may be notes and warnings), 1 that something was, 2 that the command was wrong.

Every image is decoded. That its bytes are those that were once written is known of TFRecord shards
and of record files with checksums (PREFIX.crc, by im2rec), and where the same images lie there in a
second form, with which they are compared: give both, `verify ROOT /elsewhere/records`. Of others it
cannot be known: a changed byte that still decodes is another picture. The report says which they
are. `--fix` writes a copy in which CMYK images and PNG images
named as JPEG are RGB JPEG of quality 100, and everything else is as it was, byte for byte.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data_prep import processes
from data_prep.checks import compare, images, shards
from data_prep.checks.folders import Part, read_split
from data_prep.checks.problems import ERROR, KINDS, LEVELS, NOTE, Problem, count_levels
from data_prep.checks.recordfiles import read_record_file
from data_prep.common import Progress, run_program
from rn50lib.argparser import Parser
from rn50lib.errors import UserError
from rn50lib.hardware import usable_cores

SPLITS = ("train", "val")


@dataclass
class Report:
    """What was read and what is wrong with it."""

    parts: list[Part] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether nothing was found on which training would fail or learn something wrong."""
        return not any(problem.level == ERROR for problem in self.problems)

    def as_json(self) -> dict[str, Any]:
        """The report for programs."""
        return {
            "good": self.good,
            "seconds": round(self.seconds, 3),
            "levels": count_levels(self.problems),
            "parts": [
                {
                    "form": part.form,
                    "split": part.split,
                    "path": str(part.path),
                    "images": len(part),
                    "contents": part.contents,
                    "classes": counts_per_class(part),
                }
                for part in self.parts
            ],
            "problems": [{"level": p.level} | asdict(p) for p in self.problems],
        }


def counts_per_class(part: Part) -> dict[str, int]:
    """Class name (or number) → images."""
    counts = np.bincount(part.labels[part.labels >= 0], minlength=len(part.classes or ()))
    names = part.classes or ()
    return {
        names[label] if label < len(names) else str(label): int(count)
        for label, count in enumerate(counts)
    }


def verify(paths: list[Path], jobs: int | None = None, quiet: bool = False) -> Report:
    """Read everything under the paths and report. Raises UserError if a path is not there.

    ``jobs`` is the number of processes, all usable cores unless given; 0 reads in this process.
    """
    report = Report()
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: there is no such file or folder")
        parts = _find_parts(path, report.problems)
        for part in parts:
            part.root = path
        if not parts:
            raise UserError(
                f"{path}: neither class folders, nor record files (.rec), nor TFRecord shards "
                "(train-00000-of-00004); give the folder or file that holds the data"
            )
        _read_images(parts, report, usable_cores() if jobs is None else jobs, quiet)
        report.parts += parts
        compare.compare_classes(parts, path if path.is_dir() else path.parent, report.problems)
    compare.compare_forms(report.parts, report.problems)
    compare.find_repeats(report.parts, report.problems)
    order = {kind: number for number, kind in enumerate(KINDS)}
    report.problems.sort(key=lambda p: (LEVELS.index(p.level), order[p.kind], p.where))
    return report


def _find_parts(path: Path, problems: list[Problem]) -> list[Part]:
    """The splits and forms that a path holds, with their structure read."""
    if path.is_file():
        split = "val" if path.name.startswith("val") else "train"
        if path.suffix in (".idx", ".lst", ".crc") and path.with_suffix(".rec").exists():
            path = path.with_suffix(".rec")
        if path.suffix == ".rec":
            return [read_record_file(path, split, problems)]
        if "-of-" in path.name:
            part = Part("tfrecord", split, path, contents="checksums")
            shards.add_shard(part, shards.single_shard(path), problems)
            return [part]
        return []
    parts = [read_split(path / s, s, problems) for s in SPLITS if (path / s).is_dir()]
    for folder in (path, path / "records"):
        for split in SPLITS:
            if (folder / f"{split}.rec").exists():
                parts.append(read_record_file(folder / f"{split}.rec", split, problems))
            elif (folder / f"{split}.idx").exists():
                text = "its record file is missing"
                problems.append(Problem("index", str(folder / f"{split}.idx"), text))
    for folder in (path, path / "tfrecord"):
        for split, pattern in (("train", "train-*-of-*"), ("val", "validation-*-of-*")):
            if folder.is_dir() and any(folder.glob(pattern)):
                parts.append(shards.read_shards(folder, split, problems))
    if not parts:
        parts = [
            read_record_file(rec, "val" if rec.name.startswith("val") else "train", problems)
            for rec in sorted(path.glob("*.rec"))
        ]
    if not parts and any(entry.is_dir() for entry in path.iterdir()):
        split = "val" if path.name == "val" else "train"
        part = read_split(path, split, problems)
        parts = [part] if len(part) else []
    return parts


def _read_images(parts: list[Part], report: Report, jobs: int, quiet: bool) -> None:
    """Hand every image to the workers and gather what they find."""
    work = [(part, first, task) for part in parts for first, task in part.runs]
    encoded = [entry for entry in work if entry[2][0] != "shard"]
    total = sum(len(task[2]) for _, _, task in encoded)
    files = [entry for entry in work if entry[2][0] == "shard"]
    total += sum(shards.expected_images(task) for _, _, task in files)
    with Progress(total, "verifying", quiet=quiet) as progress:
        _run(images.prepare, encoded, report, jobs, progress)
        _run(shards.prepare, files, report, jobs, progress)
        report.seconds += progress.seconds


def _run(
    prepare: Callable,
    work: list[tuple[Part, int, list]],
    report: Report,
    jobs: int,
    progress: Progress,
) -> None:
    again: list[tuple[Part, int, list]] = []
    for number, answer in processes.run(prepare, {}, [task for _, _, task in work], jobs):
        part, first, task = work[number]
        form, where, items = task
        if form == "shard":
            if isinstance(answer, processes.Died):
                report.problems.append(Problem("crash", where, answer.reason))
            else:
                shards.add_answer(part, task, answer, report.problems)
            progress.add(shards.expected_images(task))
        elif isinstance(answer, processes.Died) and len(items) > 1:
            again += [(part, first + i, [form, where, [item]]) for i, item in enumerate(items)]
        elif isinstance(answer, processes.Died):
            report.problems.append(Problem("crash", part.names[first], answer.reason))
            progress.add(1)
        else:
            part.digests[first : first + len(items)] = answer["digests"]
            for i, kind, text in answer["found"]:
                report.problems.append(Problem(kind, part.names[first + i], text))
            progress.add(len(items))
    if again:  # one of these images ends its worker: which?
        _run(prepare, again, report, jobs, progress)


def print_report(report: Report, every: bool = False) -> None:
    """The report for people."""
    for part in report.parts:
        counts = [count for count in counts_per_class(part).values() if count]
        each = ""
        if counts:
            span = "–".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))
            each = f" in {len(counts):,} classes, {span} each"
        print(f"{part.path} ({part.form}, {part.split}): {len(part):,} images{each}")
    for kind, meaning in KINDS.items():
        found = [problem for problem in report.problems if problem.kind == kind]
        if not found:
            continue
        print(f"\n{meaning.level}: {len(found):,} × {meaning.title}: {meaning.advice}")
        shown = found if every else found[: 3 if meaning.level == NOTE else 10]
        for problem in shown:
            print(f"  {problem.line()}")
        if len(found) > len(shown):
            print(f"  … and {len(found) - len(shown):,} more (--all shows them)")
    levels = count_levels(report.problems)
    images = sum(map(len, report.parts))
    rate = images / report.seconds if report.seconds else 0
    print(
        f"\n{images:,} images read in {report.seconds:.1f} s ({rate:,.0f} images/s): "
        f"{levels['error']:,} errors, {levels['warning']:,} warnings, {levels['note']:,} notes"
    )
    print(
        _praise(report.parts)
        if report.good
        else "Training cannot trust this data: put the errors right first."
    )


def _praise(parts: list[Part]) -> str:
    """What is known of data in which nothing wrong was found."""
    unknown = [f"{part.path} ({part.form})" for part in parts if part.contents == "decoded"]
    if not unknown:
        return "Training can trust this data."
    return (
        "Training can use this data: every image decodes. Whether a byte was changed since it was "
        f"written cannot be known of {', '.join(unknown)}: there are neither checksums nor a "
        "second form of the same images to compare with."
    )


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = Parser(
        prog="python -m data_prep.verify",
        description="Read a whole data set and say what is wrong with it: structure, indexes, "
        "lists and labels, and every image decoded. Bytes that were changed and still decode are "
        "seen where there are checksums (TFRecord, and PREFIX.crc beside record files) or a second "
        "form of the same images; where there are neither, the report says so.",
    )
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="DIR|FILE", help="data root, .rec file or shard")
    add("--json", action="store_true", help="print the report as JSON")
    add("--all", action="store_true", help="show every problem, not ten of a kind")
    add("--fix", type=Path, metavar="OUT", help="write a copy with CMYK and PNG images put right")
    add("--jobs", type=int, metavar="J", help="processes (all usable cores)")
    add("--quiet", action="store_true", help="no progress")
    arguments = parser.parse_args(argv)
    if arguments.jobs is not None and arguments.jobs < 1:
        parser.error(f"--jobs {arguments.jobs}: give at least one process")
    if arguments.fix and len(arguments.paths) > 1:
        parser.error("--fix: give one data set to fix at a time")
    return arguments


def main(argv: list[str] | None = None) -> int:
    """The program; returns the exit status."""
    flags = parse(argv)
    if flags.fix:
        from data_prep.checks.fix import check_target

        check_target(flags.paths[0], flags.fix)
    report = verify(flags.paths, flags.jobs, flags.quiet)
    if flags.json:
        json.dump(report.as_json(), sys.stdout, indent=4, ensure_ascii=False)
        print()
    else:
        print_report(report, flags.all)
    if flags.fix:
        from data_prep.checks.fix import FIXED, check_records, write_fixed

        check_records(report.parts, report.problems)
        broken = {p.where for p in report.problems if p.kind in ("undecodable", "crash")}
        wrong = {p.where for p in report.problems if p.kind in FIXED} - broken
        count = write_fixed(flags.paths[0], flags.fix, report.parts, wrong, flags.quiet)
        print(
            f"{flags.fix}: a copy with {count:,} images re-encoded as RGB JPEG, all else as it was",
            file=sys.stderr if flags.json else sys.stdout,
        )
    return 0 if report.good else 1


if __name__ == "__main__":
    run_program(main)
