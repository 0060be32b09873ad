"""Ranks as processes: a learner's function in a real PyTorch group, by Gloo on this machine.

    found = together(metric_sums, "metrics", [{"size": 2, "sums": sums}])

`together` starts `python -m workshop.checks.process_ranks`, which imports PyTorch once and forks
the ranks of each case. Their results come back as plain data, and the check judges them.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from rn50 import launch
from rn50lib.files import write_file
from rn50lib.lifetime import end_with_parent
from workshop.checks import alone, compare, engine
from workshop.checks.compare import wrong

LOOPBACK = socket.if_indextoname(1)  # lo; on macOS lo0
LIMIT_S = 90.0
WAIT_S = 6.0  # a rank that waits longer for the others waits forever
STUCK = {"stuck": True}


def together(answer: Callable[..., Any], work: str, cases: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the results of the `size` ranks of each case; `work` names a function of this file.

    A result is the data that it returned, or a dictionary with `wrong`, `failed` or `stuck`.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        place = Path(folder)
        (place / "answer.py").write_text(alone.script_of(answer), encoding="utf-8")
        words = ["-m", "workshop.checks.process_ranks", work, answer.__name__, str(place)]
        process = subprocess.Popen(
            [sys.executable, *words, json.dumps(list(cases))],
            env=launch.with_library(dict(os.environ)) | {"GLOO_SOCKET_IFNAME": LOOPBACK},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            _, errors = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            wrong(f"the group was stopped after {LIMIT_S:g} s.", compare.ENDLESS)
        finally:  # also if the cell is interrupted
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            lines = errors.strip().splitlines() or [f"status {process.returncode}"]
            raise compare.Failed(lines[-1], "")
        found: list[Any] = json.loads((place / "found.json").read_text())
        return found


def results_of(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the results of a case's ranks.

    Raises Failed or Wrong for the first rank that has an error, and Wrong for ranks that waited
    forever.
    """
    for entry in filter(None, found):
        if "wrong" in entry:
            wrong(*entry["wrong"])
        if "failed" in entry:
            raise compare.Failed(*entry["failed"])
    if STUCK in found:
        wrong(
            "the ranks wait for each other forever: their collective calls differ.",
            "Make every torch.distributed call on all ranks, without an `if` around it, and with"
            " the same `src` or `dst`.",
        )
    return list(found)


# --- in the process of a rank ---------------------------------------------------------------------


def metrics(answer: Callable[..., Any], rank: int, case: dict[str, Any]) -> dict[str, Any] | None:
    """Return the dictionary of `answer(sums)` on a rank, with numbers or None."""
    import torch

    sums = torch.tensor(case["sums"], dtype=torch.float64)
    found = compare.call(answer, sums[rank].clone(), may_be_none=True)
    if found is None:
        return None
    if not isinstance(found, dict):
        wrong(f"the result is {compare.kind_of(found, 'a dictionary')}.",
              "Return loss, top1 and top5 by name.")  # fmt: skip
    return {
        str(name): value.item() if isinstance(value, torch.Tensor | np.generic) else value
        for name, value in found.items()
    }


def all_reduced(answer: Callable[..., Any], rank: int, case: dict[str, Any]) -> dict[str, Any]:
    """Return a rank's gradients after `answer(gradients)`, and how many numbers it sent.

    `pending` is the number of its messages for which it did not wait. Rank r begins with 16 ** r in
    every element, so that the digits of a sum show what is in it. The right sum is that of
    PyTorch's own all-reduce.
    """
    import torch
    from torch import distributed as dist

    gradients = torch.full((case["elements"],), 16.0**rank)
    right, sent, send, wait = gradients.clone(), 0, dist.ProcessGroup.send, dist.Work.wait
    dist.all_reduce(right)
    pending: list[Any] = []

    def counted(group: Any, tensors: list[torch.Tensor], *args: Any) -> Any:
        nonlocal sent
        sent += sum(tensor.numel() for tensor in tensors)
        pending.append(send(group, tensors, *args))
        return pending[-1]

    def waited(work: Any, *args: Any, **kwargs: Any) -> Any:
        pending[:] = [one for one in pending if one is not work]
        return wait(work, *args, **kwargs)

    dist.ProcessGroup.send = counted  # isend calls it; P2POp takes only PyTorch's own isend
    dist.Work.wait = waited
    answer(gradients)
    found = {"sums": gradients.tolist(), "right": right.tolist(), "sent": sent}
    with contextlib.suppress(RuntimeError):  # the next rank may still need them
        for work in pending:
            wait(work, timedelta(seconds=1))
    return found | {"pending": len(pending)}


def run_rank(
    work: str, answer: Callable[..., Any], folder: Path, case: dict[str, Any], group: str, rank: int
) -> None:
    """Run one rank of one case, from its start to its result in a file."""
    import torch
    from torch import distributed as dist

    torch.set_num_threads(1)
    end_with_parent()
    found: dict[str, Any]
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/{group}", rank=rank,
            world_size=case["size"], timeout=timedelta(seconds=WAIT_S),
        )  # fmt: skip
        dist.barrier()  # an answer without collectives must not leave while others still connect
        with compare.time_limit(2 * WAIT_S):
            found = globals()[work](answer, rank, case)
    except compare.Wrong as problem:
        found = {"wrong": [problem.diagnosis, problem.remedy]}
    except (Exception, SystemExit, compare.TooLong) as error:
        found = {"failed": [engine.message(error), engine.own_frame(error, answer)]}
        # Gloo's errors on a rank whose partners do not come, or have gone
        words = ("ransport", "imed out", "closed by peer")
        if isinstance(error, RuntimeError) and any(w in traceback.format_exc() for w in words):
            found = STUCK
    write_file(folder / f"{group}-{rank}.json", json.dumps(found))
    os._exit(0)  # ends the group, also for ranks that still wait


def main(work: str, name: str, folder: Path, cases: list[dict[str, Any]]) -> None:
    import torch  # noqa: F401 before the ranks are forked, once for all

    end_with_parent()
    answer = runpy.run_path(str(folder / "answer.py"))[name]
    fork = get_context("fork")
    results: list[list[dict[str, Any]]] = []
    for number, case in enumerate(cases):
        given, ranks = (work, answer, folder, case, f"group{number}"), range(case["size"])
        processes = [fork.Process(target=run_rank, args=(*given, rank)) for rank in ranks]
        for process in processes:
            process.start()
        for process in processes:
            process.join(3 * WAIT_S)
            process.kill()
        files = [folder / f"group{number}-{rank}.json" for rank in ranks]
        results.append([json.loads(f.read_text()) if f.exists() else STUCK for f in files])
        if STUCK in results[-1] or "TooLong" in str(results[-1]):
            results += [results[-1]] * (len(cases) - number - 1)  # they would wait as long
            break
    (folder / "found.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4]))
