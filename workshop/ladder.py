"""The ladder: one training script that gets faster from notebook to notebook.

`exercises/ladder` has the finished scripts of every rung. From rung 2 on there are two, one with
Horovod and one with DDP: `3_dali_horovod.py` and `3_dali_ddp.py`. Yours is `train.py` in the folder
of runs: you edit it, predict the effect, run it, and see the figure grow. Functions take the name
of a rung, such as `3_dali`, and choose the library; `3_dali_ddp` names it.
"""

from __future__ import annotations

import difflib
import html
import json
import re
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rn50 import installed
from rn50.doctor import used_memory
from rn50lib import hardware
from rn50lib.errors import UserError
from rn50lib.report import write_json
from workshop import output, paths, programs, session
from workshop import race as racing
from workshop.observe import try_script
from workshop.observe.verdict import Result
from workshop.rungs import LIBRARIES, PARTS, RECORD, RUNGS, load, picture, split

TECHNIQUES = {
    "DDP": r"\bDistributedDataParallel\b",
    "Horovod": r"\bimport horovod|from horovod",
    "DALI": r"\bnvidia\.dali\b",
    "autocast": r"\bautocast\(",
    "a setting of rung 5": (
        r"\b(channels_last|output_layout *= *.HWC|cudnn\.benchmark|set_num_threads|Compression"
        r"|fp16_compress)"
    ),
    "torch.compile": r"\btorch\.compile\(|\.compile\(\)",
}
SETTINGS = {"a setting of rung 5", "torch.compile"}  # that a script of any rung may use
GAP = "...  # your code"
GAPS = {  # the line before each part of train.py that you write in notebook 02, and what it is
    "def __getitem__(self, i):": "the lines of your __getitem__",
    'with record_function("forward"):': "compute the loss",
    'with record_function("backward"):': "erase the old gradients, then compute the new ones",
    'with record_function("update"):': "change the weights",
}
MISTAKES = (  # that cost no time: what a script has, what it lacks, and the remedy
    (r"output_layout *= *.HWC",
     r"permute\([^)]*\b0, *(3|-1), *1, *2\b|move(dim|axis)\(|rearrange\(",
     "The model takes (N, C, H, W): permute(0, 3, 1, 2) keeps height and width apart."),
    (r"DistributedSampler\(", r"set_epoch\(",
     "Every epoch has the same order: call sampler.set_epoch(epoch) before each epoch."),
    (r"(?s)(\bhorovod\b|\btorch(\.| import )distributed).*DataLoader\(", r"DistributedSampler\(",
     "Each rank draws from all images: give its DataLoader a DistributedSampler."),
    (r"(?s)(\bhorovod\b|\btorch(\.| import )distributed).*manual_seed\(\d+\).*DataLoader\(",
     r"manual_seed\(\D|worker_init_fn",
     "All ranks draw the same random numbers: pass the rank to torch.manual_seed."),
    (r"SGD\(", r"\.zero_grad\(|\.grad *= *None",
     "Each step adds to the gradients before: call zero_grad()."),
    (r"readers\.tfrecord\(", r"[\w)\]] *- *1\b|-= *1\b|add_?\(-1|sub(tract)?_?\((.*, *)?1\b",
     "Shards count classes from 1, the network from 0: subtract 1 from the labels."),
    (r"(?s)\A(?=.*autocast\()(?:(?!.*bfloat16)|(?=.*\bfloat16))", r"GradScaler\(",
     "Gradients in float16 can underflow: add a GradScaler. (bfloat16 needs none.)"),
    (r"\bwith\b[^:]*\bautocast\(",  # its block has no line such as `loss = …(…)`
     r"(?m)^( *)with\b[^:]*\bautocast\([^:]*:(?:\n(?:\1 +.*\n)*?\1 +| )\w[\w, ]* = .*\(",
     "autocast has to cover the forward pass: compute the loss inside its `with` block."),
    (r"GradScaler\(", r"(?s)\A(?=.*\.scale\()(?=.*\.step\(\s*\w)(?=.*\.update\()",
     "The loss scaler needs its scale(loss), step(optimizer) and update(), too."),
    (r"(?s)\A(?=.*\bDistributedOptimizer\()(?=.*GradScaler\()", r"\.skip_synchronize\(",
     "scaler.step tests gradients that Horovod must exchange before: call optimizer.synchronize()"
     " before it, and scaler.step(optimizer) in `with optimizer.skip_synchronize():`."),
    (r"(?s)\A(?!.*GradScaler\()(?=.*\bDistributedOptimizer\()"
     r"(?=.*\boptimizer\.synchronize\()", r"\.skip_synchronize\(",
     "After synchronize(), Horovod's step() exchanges the gradients again: call it in"
     " `with optimizer.skip_synchronize():`."),
)  # fmt: skip
BEFORE = {"05": "2", "06": "3_dali", "08": "4_amp"}  # the rung with which a notebook begins
LEAD = 2  # steps at the beginning of a turn that do not count
TRACED_STEPS = 4  # of a ladder script with --trace, after its warm-up: they are not timed
PROCESS_BYTES, GPU_PROCESS_BYTES = 5 * 2**28, 3 * 2**29  # of a rank of a race, on each device
GPU_IMAGE_BYTES = 10**8  # and of each image on a GPU: 224 pixels in float32


def chosen_library() -> str:
    """Return "ddp" or "horovod": what your train.py uses, or else Horovod if it is built.

    On GPUs Horovod counts as built only if it has NCCL.
    """
    built = installed.horovod_serves("torch") and (
        not hardware.machine().gpus or installed.horovod_has("nccl", "torch")
    )
    own = _own()
    uses_ddp = own.exists() and "DDP" in _used(own)
    return "horovod" if built and not uses_ddp else "ddp"


def finished(rung: str) -> Path:
    """Return the finished script of a rung. Raises UserError for an unknown one."""
    name, chosen = split(rung)
    if name != "1_single":
        name = f"{name}_{chosen or chosen_library()}"
    return paths.need_checkout() / "exercises" / "ladder" / f"{name}.py"


def start_script() -> Path:
    """Return your train.py; write it if there is none: rung 1 without the parts you write."""
    own = _own()
    if not own.exists():
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(with_gaps(_text(finished("1_single"))), encoding="utf-8")
    return own


def with_gaps(text: str) -> str:
    """Return the script of rung 1 with a line `...` in place of each part that you write."""
    for before, part in GAPS.items():
        block = rf"(?m)^( *){re.escape(before)}\n(?:\1 +.*\n)+"
        text = re.sub(block, rf"\1{before}\n\1    {GAP}: {part}\n", text)
    return text


def has_gaps(script: Path) -> bool:
    """Return True if a part that you write is still missing from a script."""
    return GAP in _text(script)


def _settings(script: Path) -> set[str]:
    """Return the settings of rung 5 that a script uses."""
    found = re.findall(TECHNIQUES["a setting of rung 5"], _code(_text(script)))
    return {name.partition("=")[0].strip() for name in found}


def is_rung_1(script: Path) -> bool:
    """Return True for a script without gaps that uses nothing of a later rung but settings."""
    return not has_gaps(script) and _used(script) <= SETTINGS


def script(rung: str) -> Path:
    """Return your train.py if it uses what this rung needs, or the finished script.

    It may use settings of later rungs, too, but no other technique: a line says that their gain
    counts for this rung. If there is no train.py, it becomes the script with which the notebook
    begins; an existing file is never changed.
    """
    why = why_not_yours(rung)
    own, wanted = _own(), finished(rung)
    if not why:
        lines = [f"Using your script {own}"]
        if more := _used(own) - _used(wanted):
            lines += [f"It also uses {' and '.join(sorted(more))}: the gain counts for this rung."]
        if missing := _settings(wanted) - _settings(own):
            lines += [f"It lacks what {wanted.name} has: {', '.join(sorted(missing))}."]
        print("\n".join([*lines, *_warnings(_text(own))]))
        return own
    print(f"{own} {why}: using the finished {wanted.name} instead")
    _catch_up()
    return wanted


def _catch_up() -> None:
    """Print how to continue if your train.py is not at the rung with which the notebook begins."""
    before = BEFORE.get(session.need().number, "1_single")
    why, first = why_not_yours(before), finished(before)
    if why and not why.startswith("already"):
        print(f"(To catch up: rename your train.py, and copy {first} to {_own()}.)")


def why_not_yours(rung: str) -> str:
    """Return what keeps your train.py from being the script of a rung, "" if nothing does."""
    _copy_if_missing()
    own, wanted = _own(), finished(rung)
    yours, needed = _used(own), _used(wanted)
    if has_gaps(own):
        return f"still has lines `{GAP}`"
    lacks, has = (
        ", ".join(sorted(names, key=lambda name: (name in LIBRARIES.values(), name)))
        for names in (needed - yours, yours - needed - SETTINGS)
    )
    if not lacks and not has:
        return ""
    if not yours & {"Horovod", "DDP"}:  # either would do
        lacks = re.sub(r"\b(Horovod|DDP)\b", "Horovod or DDP", lacks)
    why = f"does not use {lacks} yet" if lacks else f"already uses {has}"
    other = {"Horovod"} == yours & {"Horovod", "DDP"} and "DDP" in needed
    if other and chosen_library() == "ddp":
        why += " (Horovod cannot run it here: it is not built, or not for GPUs)"
    return why


def _copy_if_missing() -> None:
    own = _own()
    if not own.exists():
        first = finished(BEFORE.get(session.need().number, "1_single"))
        own.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(first, own)
        print(f"{own} was missing: it is the finished {first.name} now, yours to change.")
        if "_horovod" in first.name:
            other = first.with_name(first.name.replace("horovod", "ddp"))
            print(f"(For DDP, copy {other} over it, and run this cell again.)")


def changes(rung: str) -> None:
    """Show how the finished script of a rung differs from the one before: a folded diff.

    Both use your library; as long as you have chosen none, there is a diff for each.
    """
    _copy_if_missing()
    before = list(RUNGS)[list(RUNGS).index(rung) - 1]
    chosen = _used(_own()) & set(LIBRARIES.values())
    for library in [chosen_library()] if chosen else LIBRARIES:
        old, new = (finished(f"{each}_{library}") for each in (before, rung))
        lines = difflib.unified_diff(
            _text(old).splitlines(), _text(new).splitlines(), old.name, new.name,
            n=1, lineterm="",
        )  # fmt: skip
        text, shown = "\n".join(lines), f"<summary>Show {new.name}</summary>"
        page = f"<details>{shown}<pre>{html.escape(text)}</pre></details>"
        output.Slot().update({"text/plain": text, "text/html": page})


def try_rung(
    rung: str, *, ranks: int, only_yours: bool = False, compare: bool = False,
    env: Mapping[str, str] | None = None, **flags: Any,
) -> Result | None:  # fmt: skip
    """Run the script of a rung for a few steps and judge what it does; see `workshop.try_script`.

    `flags` are those of the script. If your train.py is not at this rung yet, you see what it lacks
    and, folded, the finished edit; then the finished script runs, unless `only_yours`. With
    `compare`, the script also runs on one rank, and with different seeds.
    """
    why, path = why_not_yours(rung), None
    if why and only_yours:
        past = why.startswith("already")
        more = "it is not tried" if past else "change it, and run this cell again"
        print(f"{_own()} {why}: {more}.")
        _catch_up()
    else:
        path = script(rung)
    if why:
        changes(rung)
    if path is None:
        return None
    if "DALI" in _used(path) and not session.has("nvidia.dali"):
        print("It is not tried: DALI is not installed here.")
        return None
    return try_script(
        path, *_words(path, flags), ranks=ranks, steps=3, single=compare, reseed=compare, env=env
    )


def climb(
    rung: str, *, ranks: int = 1, env: Mapping[str, str] | None = None, **flags: Any
) -> dict[str, Any]:
    """Run the script of a rung once and return its report; nothing is recorded.

    The report has images_per_s; input_ms, compute_ms and communication_ms, means per step; and the
    path of the script: your train.py if it is at this rung, else the finished one.
    `flags` are those of the script: `batch_size=8` is passed as `--batch-size 8`. `env` is added to
    its environment. Returns an empty report if DALI is missing here.

    Raises RunFailed if the script fails.
    """
    prepared = _prepare(rung, ranks, True, flags)
    if prepared is None:
        return {}
    runner, report = prepared
    path = runner.script
    words, shown, threads = programs.command(path.name, runner.flags, ranks, runner.launcher)
    programs.run(words, path.parent, shown, threads | dict(env or {}))
    return _report(runner, report)


def race(
    rungs: Sequence[str],
    *,
    turns: int,
    ranks: int,
    own: str = "",
    guess: float | None = None,
    **flags: Any,
) -> dict[str, dict[str, Any]]:
    """Run the scripts of several rungs in turns; record and return their reports, by rung.

    Each script starts once. Then one at a time trains for `steps` steps while the others wait. A
    report is that of `climb`, with the images/s of each turn in `turns` and, if a rung was before
    it, its name in `over` and the ratios turn by turn in `gains`. images_per_s is the median of
    the turns, and the parts in milliseconds add up to that turn's mean step: within a turn only the
    mean counts, because a loader's processes deliver several batches at once. `warm_up` is at
    least 1. With `trace`, a file, steps of the first turn that do not count are traced. Your
    train.py runs for the rung `own`, and `guess` is your prediction of its images/s over those of
    the rung before; rung 1 has one rank.
    Rungs that need DALI are left out if it is missing here; without any, the result is empty. If
    memory does not suffice for all at once, each rung has its turns alone, and `paired` is False:
    ratios turn by turn mean nothing. So it is for a script that takes no turns; its `turns` are the
    speed of all its steps.

    Raises RunFailed if a script fails.
    """
    window, runs = flags["steps"], {}
    for rung in rungs:
        count = 1 if rung == "1_single" else ranks
        if prepared := _prepare(rung, count, rung == own, flags, turns):
            runs[rung] = prepared
    if not runs:  # the notebook has said that DALI is missing
        return {}
    runners = [runner for runner, _ in runs.values()]
    together = _fit_in_memory(runners, flags["batch_size"])
    for group in [runners] if together else [[runner] for runner in runners]:
        racing.race(group, flags["warm_up"], window, turns)
    record, found, over = load(_file()), {}, ""
    if guess is not None:
        record["predictions"][split(own)[0]] = guess
    settings = ("script", "ranks", "image_size", "batch_size")
    for rung, (runner, report) in runs.items():
        earlier = record["rungs"].pop(runner.name, {})  # the latest race comes last
        one = found[rung] = record["rungs"][runner.name] = _report(runner, report)
        images = flags["batch_size"] * runner.ranks * window
        rates = [images / sum(turn) for turn in runner.turns] or [one["images_per_s"]]
        one |= {"images_per_s": statistics.median(rates), "turns": rates}
        one["paired"] = together and bool(runner.turns)
        one |= {"image_size": flags.get("image_size", 224), "batch_size": flags["batch_size"]}
        if runner.turns:  # the script divides by all steps, but its sums are of those that count
            ms = 1000 * images / window / one["images_per_s"]
            parts = {key: one[key] for part in PARTS if one.get(key := f"{part}_ms")}
            one |= {key: ms * part / sum(parts.values()) for key, part in parts.items()}
        if over and one["paired"] and record["rungs"][over]["paired"]:
            pairs = zip(rates, record["rungs"][over]["turns"], strict=True)
            one |= {"over": over, "gains": [new / old for new, old in pairs]}
        elif not over and all(one[key] == earlier.get(key) for key in settings):
            one |= {key: earlier[key] for key in ("over", "gains") if key in earlier}
        over = runner.name
    write_json(_file(), record)
    return found


def _prepare(
    rung: str, ranks: int, own: bool, flags: Mapping[str, Any], turns: int = 0
) -> tuple[racing.Runner, Path] | None:
    """Return the script of a rung with its flags, and its report's path; None without its DALI.

    With `turns`, the steps are those of as many turns.
    """
    path = script(rung) if own else finished(rung)
    uses = _used(path)
    if "DALI" in uses and not session.has("nvidia.dali"):
        return None
    name = finished(rung).stem
    report = session.need().runs / "ladder" / f"{name}.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)  # never take an earlier one for this run's
    lead = LEAD
    if "trace" in flags:  # the loader works ahead while it is written
        lead += TRACED_STEPS + 2 * flags.get("workers", 2)
    if turns:
        flags = {**flags, "steps": turns * (lead + flags["steps"])}
    launcher = "torchrun" if "DDP" in uses else "horovodrun"
    words = _words(path, {"report": report, **flags})
    return racing.Runner(name, path, words, ranks, launcher, lead), report


def _words(path: Path, flags: Mapping[str, Any]) -> list[object]:
    """Return the arguments of a script: its data set, and flags."""
    words: list[object] = [
        "--data", shards() if "readers.tfrecord" in _code(_text(path)) else session.need().data_root
    ]  # fmt: skip
    for flag, value in flags.items():
        words += [f"--{flag.replace('_', '-')}", value]
    return words


def _report(runner: racing.Runner, file: Path) -> dict[str, Any]:
    """Return what a script has written, with its ranks and its path; a NaN becomes None."""
    if not file.exists():
        raise UserError(f"{runner.script} wrote no report: keep its last lines, with --report")
    found: dict[str, Any] = json.loads(file.read_text(), parse_constant=lambda name: None)
    return found | {"ranks": runner.ranks, "script": str(runner.script)}


def _fit_in_memory(runners: Sequence[racing.Runner], batch: int) -> bool:
    """Return True if all processes of a race fit into memory at once; if not, say so."""
    machine = hardware.machine()
    needed, there = PROCESS_BYTES * sum(runner.ranks for runner in runners), machine.memory
    if known := [gpu.memory - used_memory(gpu) for gpu in machine.gpus if gpu.memory]:
        needed = (GPU_PROCESS_BYTES + GPU_IMAGE_BYTES * batch) * len(runners)
        there = min(known)
    if needed <= there:
        return True
    print(f"{needed / 2**30:.0f} GiB for all rungs at once do not fit: each has its turns alone.")
    return False


def shards_folder() -> Path:
    """Return the folder for the TFRecord shards that notebook 04 writes and rung 3 reads."""
    here = session.need()
    return here.runs / f"shards-{here.data_root.name}"


def shards() -> Path:
    """Return the folder with your shards of notebook 04; write some like them if there are none."""
    from data_prep import tfrecord

    folder = shards_folder()
    if not (folder / "classes.txt").exists():  # notebook 04 writes it last
        print(f"Your shards are missing in {folder}: writing them with `data_prep.tfrecord`")
        tfrecord.convert(session.need().data_root, folder, shards={"train": 8}, quiet=True)
    return folder


def figure(rung: str = "") -> None:
    """Draw the speed of each rung that has run, and its gain over the one before.

    With a rung, only of those up to it. If none has run, published and recorded speeds of GPUs are
    drawn. Profile ci has separate numbers, which are not drawn.
    """
    output.Slot().update(picture(session.need().runs / RECORD, rung))


def _own() -> Path:
    return session.need().runs / "train.py"


def _text(path: Path) -> str:
    """Return a script's text; only its names matter, so any encoding will do."""
    return path.read_text(encoding="utf-8", errors="replace")


def _code(text: str) -> str:
    """Return a script's text without comments and docstrings, also if Python cannot parse it."""
    strings = r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""  # a # in one begins no comment
    return re.sub(rf"#.*|(\"{{3}}|'{{3}})(?s:.*?)\1|{strings}", lambda m: m[2] or "", text)


def _used(script: Path) -> set[str]:
    """Return which of the techniques of the rungs a script uses."""
    code = _code(_text(script))
    return {name for name, pattern in TECHNIQUES.items() if re.search(pattern, code)}


def _warnings(text: str) -> list[str]:
    """Return a line for what looks like a mistake that a script's measurements do not show."""
    code = _code(text)
    return [f"Perhaps: {remedy}" for has, needs, remedy in MISTAKES
            if re.search(has, code) and not re.search(needs, code)]  # fmt: skip


def _file() -> Path:
    """Return the record that this session writes: profile ci has one that is not drawn."""
    here = session.need()
    return here.runs / ("ladder-ci.json" if here.profile == "ci" else RECORD)
