"""Tasks in several worker processes, of which any may die: it costs one task, not the run.

(`concurrent.futures` gives up all tasks when one process dies, and leaves the others behind when
the main process is killed.)
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, cast

from rn50lib.errors import UserError


class Failed(UserError):
    """A file that a worker could not read or write."""


Work = Callable[[Any], Any]


@dataclass(frozen=True)
class Died:
    """Stands for the answer of a worker that ended in the middle of a task."""

    reason: str


def run(
    prepare: Callable[[Any], Work], settings: Any, tasks: Sequence[Any], jobs: int
) -> Iterator[tuple[int, Any]]:
    """Yield (number of the task, answer) as the answers come, from ``jobs`` processes.

    With 0 jobs the work is done here, in this process, for sets that are too small to wait for one.

    ``prepare`` is a function of a module; it is called once in each worker, with ``settings``, and
    returns the function that turns a task into an answer. An answer is a ``Died`` where the worker
    ended. Raises UserError if the work did, ``Failed`` where a file could not be read or written;
    an unforeseen exception of a worker is raised as RuntimeError with its traceback.
    """
    if jobs == 0:
        yield from enumerate(map(prepare(settings), tasks))
        return
    left = iter(enumerate(tasks))
    working: dict[Connection, tuple[subprocess.Popen, int]] = {}
    try:
        first = list(itertools.islice(left, jobs))
        for number, _ in first:
            connection, process = _start(prepare, settings)
            working[connection] = process, number
        for connection, (_, task) in zip(working, first, strict=True):
            _send(connection, task)
        while working:
            for ready in wait(list(working)):
                connection = cast(Connection, ready)
                process, done = working[connection]
                answer = _receive(connection, process)
                if isinstance(answer, Exception):  # and no other task begins
                    raise answer
                del working[connection]
                number, task = next(left, (-1, None))
                if number >= 0:
                    if isinstance(answer, Died):
                        connection, process = _start(prepare, settings)
                    working[connection] = process, number
                    _send(connection, task)
                elif not isinstance(answer, Died):
                    connection.close()  # by which the worker ends
                    process.wait()
                yield done, answer
    finally:  # also where the caller stops early, and on Ctrl-C
        for process, _ in working.values():
            process.kill()
            process.wait()


def _start(prepare: Callable[[Any], Work], settings: Any) -> tuple[Connection, subprocess.Popen]:
    """A worker and the connection to it. It is a fresh Python: TensorFlow and DALI, which a caller
    may have loaded, do not survive a fork; and the caller's own script is not run again in it, as
    by `multiprocessing.Process`, so that it needs no `if __name__ == "__main__"`."""
    here, there = multiprocessing.Pipe()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    # A worker inherits what is blocked: Ctrl-C is for the main process to handle.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import main; main()", str(there.fileno())],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a library prints must not get between what the program prints
            env=environment,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    there.close()
    _send(here, (prepare, settings))
    return here, process


def _send(connection: Connection, task: Any) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died: seen at its answer
        connection.send(task)


def _receive(connection: Connection, process: subprocess.Popen) -> Any:
    try:
        return connection.recv()
    except (EOFError, ConnectionResetError):
        connection.close()
        code = process.wait()
        return Died(f"killed by signal {-code}" if code < 0 else f"ended with status {code}")


def main() -> None:
    """A worker: it ends with the connection, so with the main process, however that ends."""
    connection: Connection = Connection(int(sys.argv[1]))
    work: Work | None = None
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        prepare, settings = connection.recv()
        while True:
            task = connection.recv()
            answer: Any
            try:
                work = work or prepare(settings)
                answer = work(task)
            except UserError as error:
                answer = error
            except OSError as error:
                answer = Failed(f"{error.filename or 'output'}: {error.strerror}")
            except Exception:
                answer = RuntimeError(f"in a worker process:\n{traceback.format_exc()}")
            connection.send(answer)
