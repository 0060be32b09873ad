"""`rn50 workshop try SCRIPT`: a parallel training script, judged by what it does on several ranks.

Supported: Horovod and DistributedDataParallel for PyTorch, and GradientTape with Horovod for
TensorFlow 2.

run        runs a copy of the script on several ranks, with a recorder in each process
recorder   runs inside the script's processes and writes down what they do
verdict    says which of the changes that a parallel script needs were there
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from rn50lib.errors import UserError
from workshop import output, programs
from workshop.errors import RunFailed
from workshop.observe import verdict
from workshop.observe.run import LAUNCHERS, check_inside, choose_launcher, run_ranks


def try_script(
    script: str | os.PathLike,
    *arguments: object,
    ranks: int = 2,
    launcher: str = "auto",
    steps: int = 5,
    seconds: float = 20.0,
    single: bool = True,
    reseed: bool = True,
    folder: str | os.PathLike | None = None,
    env: Mapping[str, str] | None = None,
) -> verdict.Result:
    """Run a script on `ranks` ranks and judge which changes for parallel training it has.

        result = workshop.try_script("train.py", "--epochs", 1)
        result["average"].status, result["average"].evidence

    The rows are "start", "share", "rate", "average", "alike" and "writes". The launcher is
    horovodrun, torchrun, python (the script starts its ranks itself), or "auto", which chooses by
    what the script imports. The script runs in a copy of `folder` (default: its own). After `steps`
    updates it may continue for `seconds`, so that its files are seen. With `single` it also runs on
    one rank, to compare; with `reseed`, if the weights are equal, once more with a different seed
    on each rank. Raises RunFailed, with the script's traceback as `log`, and UserError.
    """
    path = Path(script).absolute()
    if not path.is_file():
        raise UserError(f"no such script: {script}")
    if path.suffix == ".ipynb":
        raise UserError(f"{script} is a notebook: `jupyter nbconvert --to script {script}` first")
    launcher = choose_launcher(path) if launcher == "auto" else launcher
    if launcher not in LAUNCHERS:
        raise UserError(f"launcher {launcher!r}: there are auto, {', '.join(LAUNCHERS)}")
    programs.check_ranks(ranks, f"-n {ranks}", least=2)
    if steps < 1:
        raise UserError(f"--steps {steps}: a script is tried for 1 step or more")
    words, where = [str(word) for word in arguments], Path(folder or path.parent).resolve()
    check_inside(path, where)
    run = partial(run_ranks, path, words, where, launcher)
    added = dict(env or {})
    show = progress_line()
    show(f"{path.name} runs on {ranks} ranks ({launcher})")
    events, ended = run(ranks, steps, seconds, added)
    alone: verdict.Events = []
    if single and launcher != "python" and any(event["kind"] == "update" for event in events):
        show(f"{path.name} runs on one rank, to compare")
        with suppress(RunFailed):
            alone, _ = run(1, steps, 0.0, added)

    def reseeded() -> verdict.Events:
        show(f"{path.name} runs on {ranks} ranks with different seeds")
        with suppress(RunFailed):
            return run(ranks, 2, 0.0, added | {"RN50_TRY_RESEED": "1"})[0]
        return []

    rows, steps = verdict.judge(events, alone, ranks, ended, reseeded if reseed else None)
    return verdict.Result(path.name, launcher, ranks, steps, rows)


def progress_line() -> Callable[[str], None]:
    """Return a function that shows the latest line in a notebook, or prints to stderr."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return output.Slot().line if shell else lambda line: print(line, file=sys.stderr, flush=True)
