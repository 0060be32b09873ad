"""Tasks in worker processes. A worker that dies costs one task, not the run."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from rn50lib.errors import UserError

Work = Callable[[Any], Any]
Answers = Generator[tuple[int, Any], None, tuple[list[tuple[int, Any]], str]]


class Failed(UserError):
    """A file that a worker could not read or write."""


@dataclass(frozen=True)
class Died:
    """The answer to a task that ended its worker twice."""

    reason: str


def run(
    prepare: Callable[[Any], Work], settings: Any, tasks: Sequence[Any], jobs: int
) -> Iterator[tuple[int, Any]]:
    """Yield (number of the task, answer) as the answers come in.

    A task whose worker died runs again, alone; if that worker dies too, the answer is a ``Died``.

    Args:
        prepare: A module's function. Each worker calls it once, with ``settings``; it returns the
            function that turns a task into an answer.
        settings: What ``prepare`` gets.
        tasks: What the workers get; each can be pickled.
        jobs: The number of processes. 0 does the work in this process, for small data sets.

    Raises:
        Failed: A file could not be read or written. Other exceptions arrive as they were raised.
    """
    if jobs == 0:
        yield from enumerate(map(prepare(settings), tasks))
        return
    left = deque(enumerate(tasks))
    while left:
        suspects, _ = yield from _run_pool(prepare, settings, left, min(jobs, len(left)))
        for suspect in suspects:
            lost, reason = yield from _run_pool(prepare, settings, deque([suspect]), 1)
            if lost:
                yield suspect[0], Died(reason)


def run_all(
    prepare: Callable[[Any], Work], settings: Any, tasks: Sequence[Any], jobs: int
) -> Iterator[tuple[int, Any]]:
    """Do the same as ``run``, but raise UserError for a task whose worker died twice."""
    for number, answer in run(prepare, settings, tasks, jobs):
        if isinstance(answer, Died):
            raise UserError(
                f"a worker process was {answer.reason}, twice on the same task; "
                "run the same command again to continue from here"
            )
        yield number, answer


def _run_pool(prepare: Callable, settings: Any, left: deque, jobs: int) -> Answers:
    """Yield answers until all tasks are done or a worker dies.

    Returns the unfinished tasks, one of which ended its worker, and how a worker ended.
    """
    others = set(multiprocessing.active_children())
    workers: set[Any] = set()
    running: dict[Future, tuple[int, Any]] = {}
    context = multiprocessing.get_context("spawn")  # TensorFlow and DALI do not survive a fork
    pool = ProcessPoolExecutor(jobs, context, _start, (prepare, settings))
    try:
        while left or running:
            with _inherited():
                while left and len(running) < 2 * jobs:
                    future = pool.submit(_do, left[0][1])
                    running[future] = left.popleft()
            workers |= set(multiprocessing.active_children()) - others
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                answer = future.result()
                yield running.pop(future)[0], answer
    except BrokenProcessPool:
        pool.shutdown()
        codes = [worker.exitcode for worker in workers if worker.exitcode]
        code = codes[0] if codes else 1
        reason = f"killed by signal {-code}" if code < 0 else f"ended with status {code}"
        return list(running.values()), reason
    except BaseException:  # an error, Ctrl-C, or a caller that stops early
        for worker in workers:
            worker.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return [], ""


@contextlib.contextmanager
def _inherited() -> Iterator[None]:
    """Set what new workers inherit.

    They ignore Ctrl-C, which the main process handles; NumPy starts no threads in them; and the
    caller's script does not run again in them, so it needs no ``if __name__ == "__main__"``.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    main, threads = sys.modules["__main__"], os.environ.get("OMP_NUM_THREADS")
    sys.modules["__main__"] = types.ModuleType("__main__")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        os.environ.pop("OMP_NUM_THREADS")
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = threads
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_prepared: Callable[[], Work]


def _start(prepare: Callable[[Any], Work], settings: Any) -> None:
    """Begin a worker."""
    global _prepared
    os.dup2(2, 1)  # what a library prints must not mix with the program's output
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _prepared = functools.cache(lambda: prepare(settings))


def _end_with_parent() -> None:
    """End this worker when its parent ends, even if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do(task: Any) -> Any:
    try:
        return _prepared()(task)
    except OSError as error:
        raise Failed(f"{error.filename or 'output'}: {error.strerror}") from None
