"""The talk's two recipes: a learner's script, run on two ranks and judged by what it did there.

`workshop.try_script` starts it and watches; nothing is guessed from its text.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from workshop import try_script
from workshop.checks import capstone, compare, process_ranks
from workshop.checks.compare import wrong
from workshop.errors import RunFailed

RANKS, BATCH, PICTURES, SIDE = 2, 4, 96, 16
MORE_STEPS = 60  # than any right script takes: it is watched to its end
MISSING = {  # a change: what is wrong without it, and what to do
    "start": ("Horovod is not started", "Change 1: hvd.init(), before anything else of Horovod."),
    "share": (
        "the ranks do not share the pictures",
        "Change 2: each rank takes its own part: order[hvd.rank() :: hvd.size()].",
    ),
    "rate": (
        "the learning rate is not scaled",
        "Change 3: as many times the rate as there are ranks, lr * hvd.size().",
    ),
    "average": (
        "the gradients are not averaged",
        "Change 4: hvd.DistributedOptimizer(optimizer, net.named_parameters()) averages them in"
        " step(); it is the one to call.",
    ),
    "alike": (
        "the ranks do not start alike",
        "Change 5: hvd.broadcast_parameters(net.state_dict(), root_rank=0), before the first step.",
    ),
    "writes": (
        "not only rank 0 writes",
        "Change 6: `if hvd.rank() == 0:` before what is written.",
    ),
}


def pictures(path: Path, count: int = PICTURES) -> Path:
    """A file with `count` small pictures of two signs, a red disc and a yellow triangle:
    `images` (count, 3, SIDE, SIDE), float32 from 0 to 1, and `labels` (count,)."""
    draw = np.random.default_rng(0)
    labels = np.arange(count) % 2
    y, x = np.mgrid[:SIDE, :SIDE] / (SIDE - 1) - 0.5
    disc, triangle = x**2 + y**2 < 0.16, (y < 0.4) & (2 * np.abs(x) < y + 0.4)
    images = draw.random((count, 3, SIDE, SIDE), np.float32) * 0.6
    images[labels == 0, 0] += 0.4 * disc
    images[labels == 1, :2] += 0.4 * triangle
    np.savez(path, images=images, labels=labels)
    return path


def signs() -> Path:
    """The pictures of the exercise, in a temporary folder."""
    return pictures(Path(tempfile.mkdtemp(prefix="signs-")) / "signs.npz")


def horovod(answer: Callable[..., Any]) -> str:
    """Check of recipe 1: `answer(data, out)`."""
    found = run(answer)
    if "error" in found:
        failed(found)
    rows, steps = found["rows"], found["steps"]
    for change, (what, remedy) in MISSING.items():
        status, evidence = rows[change]
        # equal weights without a broadcast: this training draws them without a seed, so they come
        # from a seed that the learner has set, and a resumed rank 0 would be alone
        if status == "missing" or (change in ("alike", "writes", "share") and status != "seen"):
            wrong(f"{what}: {evidence}.", remedy)
    right = PICTURES // (RANKS * BATCH)
    if steps != right:
        as_one = ", as many as one alone" * (steps == PICTURES // BATCH)
        wrong(
            f"each rank takes {steps} steps{as_one}, where {right} are an epoch of {RANKS} ranks.",
            f"{PICTURES} pictures, {BATCH} on each rank in a step.",
        )
    return f"{steps} steps on {RANKS} ranks. " + " ".join(
        f"{text[:1].upper()}{text[1:]}." for change, (_, text) in rows.items() if change != "writes"
    )


def failed(found: dict[str, Any]) -> None:
    """Wrong, or an error, for a script that did not come to its end."""
    error, place = found["error"], found["place"]
    if any(word in error for word in ("not been initialized", "has not been init")):
        wrong("the script ends in: " + error, MISSING["start"][1])
    problem = RuntimeError(error)
    problem.learners_place = place  # type: ignore[attr-defined]
    raise problem


@compare.beside
def run(answer: Callable[..., Any], more: str = "", files: bool = True) -> dict[str, Any]:
    """The learner's cell as a script on two ranks and on one; what was seen, as plain data.

    `more` is code that stands below the cell; without it the script calls the function with the
    file of pictures and a folder to write to.
    """
    name = answer.__name__
    with tempfile.TemporaryDirectory(prefix="recipe-") as folder:
        script = Path(folder) / "train.py"
        call = more or f'import os\nos.makedirs("out", exist_ok=True)\n{name}("signs.npz", "out")\n'
        script.write_text(process_ranks.source(answer) + "\n" + call, encoding="utf-8")
        if files:
            pictures(Path(folder) / "signs.npz")
        try:
            seen = try_script(
                script,
                np=RANKS,
                launcher="horovodrun",
                steps=MORE_STEPS,
                env={"CUDA_VISIBLE_DEVICES": ""},
                say=capstone.progress("your script"),
            )
        except RunFailed as problem:
            return told(problem, script)
    rows = {row.change: [row.status, row.evidence] for row in seen.rows}
    return {"rows": rows, "steps": seen.steps, "printed": seen.output}


def told(problem: RunFailed, script: Path) -> dict[str, Any]:
    """The last line of a script's traceback, and the innermost line of its own."""
    lines = [line.strip() for line in problem.log.strip().splitlines()]
    own = [i for i, line in enumerate(lines) if f'{script.name}", line' in line]
    place = ""
    if own:
        function = lines[own[-1]].rpartition(" in ")[2]
        place = f"In {function}: `{lines[own[-1] + 1]}`." if own[-1] + 1 < len(lines) else ""
    errors = [line for line in lines if ": " in line and line.split(":")[0].isidentifier()]
    return {"error": (errors or lines or ["it failed"])[-1], "place": place}
