"""Several worker processes, each of which gets tasks as lines of JSON and answers each with a line.

A worker that dies (a decoder that crashes, a kill) costs one task, not the run; when the main
process dies, the workers end by themselves.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError


@dataclass(frozen=True)
class Died:
    """Stands for the answer of a worker that ended in the middle of a task."""

    reason: str


Work = Callable[[Any], Any]


def run(target: str, settings: Any, tasks: Sequence[Any], jobs: int) -> Iterator[tuple[int, Any]]:
    """Yield (number of the task, answer) as the answers come, from ``jobs`` processes.

    With 0 jobs the work is done here, in this process, for sets that are too small to wait for one.

    ``target`` is "module:function"; the function is called once in each worker, with ``settings``,
    and returns the function that turns a task into an answer. Both are what JSON can hold. An
    answer is a ``Died`` where the worker ended. Raises UserError if the work did; an unforeseen
    exception of a worker is raised as RuntimeError with its traceback.
    """
    if jobs == 0:
        yield from enumerate(map(_load(target)(settings), tasks))
        return
    todo = iter(enumerate(tasks))
    turn = threading.Lock()
    answers: queue.Queue = queue.Queue()
    workers: list[subprocess.Popen[str]] = []
    stop = threading.Event()

    def serve() -> None:
        worker: subprocess.Popen[str] | None = None
        while not stop.is_set():
            with turn:
                number, task = next(todo, (-1, None))
                if number >= 0 and worker is None:
                    worker = _start(target, settings)
                    workers.append(worker)
            if number < 0:
                break
            assert worker is not None
            answer = _ask(worker, task)
            if isinstance(answer, Died):
                worker = None  # the next task gets a new one
            answers.put((number, answer))
        answers.put(None)

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(min(jobs, len(tasks)))]
    try:
        for thread in threads:
            thread.start()
        working = len(threads)
        while working:
            found = answers.get()
            if found is None:
                working -= 1
                continue
            number, answer = found
            yield number, _unwrap(answer)
    finally:  # also where the caller stops early, and on Ctrl-C
        stop.set()
        with turn:
            for worker in workers:
                worker.kill()
                worker.wait()


def _load(target: str) -> Callable[[Any], Work]:
    module, _, function = target.partition(":")
    return getattr(importlib.import_module(module), function)


def _start(target: str, settings: Any) -> subprocess.Popen[str]:
    package = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    worker = subprocess.Popen(
        [sys.executable, "-m", "data_prep.crew", target],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="surrogateescape",
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    _send(worker, settings)
    return worker


def _send(worker: subprocess.Popen[str], value: Any) -> None:
    assert worker.stdin is not None
    try:
        worker.stdin.write(json.dumps(value) + "\n")
        worker.stdin.flush()
    except BrokenPipeError:
        pass  # it has ended; reading its answer says so


def _ask(worker: subprocess.Popen[str], task: Any) -> Any:
    assert worker.stdout is not None
    _send(worker, task)
    line = worker.stdout.readline()
    if line.endswith("\n"):
        return json.loads(line)
    code = worker.wait()
    return Died(f"killed by signal {-code}" if code < 0 else f"ended with status {code}")


def _unwrap(answer: Any) -> Any:
    if isinstance(answer, Died):
        return answer
    if "error" in answer:
        raise UserError(answer["error"])
    if "traceback" in answer:
        raise RuntimeError(f"in a worker process:\n{answer['traceback']}")
    return answer["answer"]


def main() -> None:
    """A worker: read tasks until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process to handle
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="surrogateescape")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
    settings = json.loads(sys.stdin.readline())
    work: Work | None = None
    for line in sys.stdin:
        try:
            if work is None:
                work = _load(sys.argv[1])(settings)
            answer = {"answer": work(json.loads(line))}
        except UserError as error:
            answer = {"error": str(error)}
        except OSError as error:
            answer = {"error": f"{error.filename or 'output'}: {error.strerror}"}
        except Exception:
            answer = {"traceback": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
