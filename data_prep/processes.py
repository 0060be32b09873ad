"""Tasks in worker processes, whose answers come in as they are ready."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from rn50lib.errors import UserError
from rn50lib.hardware import usable_cores
from rn50lib.lifetime import end_with_creator

Work = Callable[[Any], Any]


def run(
    prepare: Callable[[Any], Work], settings: Any, tasks: Sequence[Any], jobs: int | None
) -> Iterator[tuple[int, Any]]:
    """Yield (number of the task, answer) as the answers come in.

    Args:
        prepare: A module's function. Each worker calls it once, with ``settings``; it returns the
            function that turns a task into an answer.
        settings: What ``prepare`` gets.
        tasks: What the workers get; each can be pickled.
        jobs: The number of processes, by default all usable cores. 0 does the work in this process,
            for small data sets.

    Raises:
        UserError: A file could not be read or written, or a worker was killed or crashed. Other
            exceptions arrive as they were raised.
    """
    jobs = usable_cores() if jobs is None else jobs
    if jobs == 0:
        yield from enumerate(map(prepare(settings), tasks))
        return
    others = set(multiprocessing.active_children())
    workers: set[Any] = set()
    running: dict[Future, int] = {}
    left = list(enumerate(tasks))[::-1]
    context = multiprocessing.get_context("spawn")  # TensorFlow and DALI do not survive a fork
    pool = ProcessPoolExecutor(max(1, min(jobs, len(left))), context, _start, (prepare, settings))
    try:
        while left or running:
            with _inherited():
                while left and len(running) < 2 * jobs:
                    number, task = left.pop()
                    running[pool.submit(_do, task)] = number
            workers |= set(multiprocessing.active_children()) - others
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                answer = future.result()
                yield running.pop(future), answer
    except BrokenProcessPool:
        raise UserError(
            "a worker process was killed or crashed: the machine may have run out of memory, or a"
            " file may crash a decoder; run the same command again with fewer --jobs"
        ) from None
    except BaseException:  # an error, Ctrl-C, or a caller that stops early
        for worker in workers:
            worker.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


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
    global _prepared
    os.dup2(2, 1)  # what a library prints must not mix with the program's output
    end_with_creator()
    _prepared = functools.cache(lambda: prepare(settings))


def _do(task: Any) -> Any:
    try:
        return _prepared()(task)
    except OSError as error:
        raise UserError(f"{error.filename or 'output'}: {error.strerror}") from None
