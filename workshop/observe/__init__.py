"""`rn50 workshop try SCRIPT`: a parallel training script, judged by what it does on several ranks.

Supported: Horovod and DistributedDataParallel for PyTorch, and GradientTape with Horovod for
TensorFlow 2. Not supported: TensorFlow 1 sessions, Keras's `fit`, and FSDP, whose ranks hold
different weights.

sandbox    copies the script's folder, so that the original does not change
run        starts the script on several ranks, and on one, with a recorder in each process
recorder   runs inside the script's processes and writes down what they do
verdict    says which of the changes that a parallel script needs were there
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from workshop import output
from workshop.errors import RunFailed
from workshop.observe import verdict
from workshop.observe.run import LAUNCHERS, ScriptRun, choose_launcher

__all__ = ["ScriptRun", "progress_line", "try_script"]


def try_script(
    script: str | os.PathLike,
    *arguments: object,
    ranks: int = 2,
    launcher: str = "auto",
    steps: int = 5,
    seconds: float = 20.0,
    single: bool = True,
    folder: str | os.PathLike | None = None,
    env: Mapping[str, str] | None = None,
) -> verdict.Result:
    """Run a script on `ranks` ranks and judge which changes for parallel training it has.

        result = workshop.try_script("train.py", "--epochs", 1)
        result.passed                     # True if no change is missing
        result["average"].status          # "seen", "missing" or "not seen"
        result["average"].evidence        # what was seen, in words

    The rows are "start", "share", "rate", "average", "alike" and "writes". The launcher is
    horovodrun, torchrun, python (the script starts its ranks itself), or "auto", which chooses by
    what the script imports. The script runs in a copy of `folder` (default: its own), so what it
    writes there does not reach yours. Its first `steps` updates are observed; then it may continue
    for `seconds`, so that its files are seen. With `single` it also runs on one rank, to compare.
    If the weights are equal without a broadcast, it runs once more with different seeds. `env` is
    added to the environment.

    Raises RunFailed, with the script's traceback as `log`, if the script fails; UserError for a
    script or a launcher that does not exist.
    """
    path = Path(script).absolute()
    if not path.is_file():
        raise UserError(f"no such script: {script}")
    if launcher not in ("auto", *LAUNCHERS):
        raise UserError(f"launcher {launcher!r}: there are auto, {', '.join(LAUNCHERS)}")
    if ranks < 2 or steps < 1:
        raise UserError("a script is tried on 2 ranks or more, for 1 step or more")
    say = progress_line()
    reason = f"--launcher {launcher}"
    if launcher == "auto":
        launcher, reason = choose_launcher(path)
    if launcher == "horovodrun" and find_spec("horovod") is None:
        raise UserError(f"{path.name} would need horovodrun ({reason}); Horovod is not installed")
    say(f"{path.name} on {ranks} ranks ({launcher}): {reason}")
    where = Path(folder).absolute() if folder is not None else path.parent
    run = ScriptRun(path, [str(word) for word in arguments], where, launcher, steps, seconds,
                    env=dict(env or {}), say=say)  # fmt: skip
    events, ended = run.on_ranks(ranks)
    alone: list[dict[str, Any]] = []
    reseeded: list[dict[str, Any]] = []
    problems = []

    def again(ranks: int, why: str, **changes: Any) -> list[dict[str, Any]]:
        say(f"and {why}")
        try:
            return replace(run, seconds=0.0, **changes).on_ranks(ranks)[0]
        except RunFailed as error:
            lines = [str(error), *error.log.splitlines()]
            problems.append(f"how it runs {why}: {lines[-1]}")
            return []

    if single and launcher != "python" and any(event["kind"] == "update" for event in events):
        alone = again(1, "on one rank")
    result = verdict.judge(events, alone, reseeded, ranks, ended)
    if result.steps and (result["start"].status, result["alike"].status) == ("seen", "not seen"):
        env = run.env | {"RN50_TRY_RESEED": "1"}
        reseeded = again(ranks, "with a different seed on each rank", steps=1, env=env)
        result = verdict.judge(events, alone, reseeded, ranks, ended)
    say(f"{path.name} has been observed")
    result.script, result.launcher = path.name, launcher
    result.unseen += problems
    return result


def progress_line() -> Callable[[str], None]:
    """Return a function that shows the latest line in a notebook, or prints to stderr."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return output.Slot().line if shell else lambda line: print(line, file=sys.stderr, flush=True)
