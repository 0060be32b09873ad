"""A process that measures on demand: a word goes in, a line of JSON comes out.

    with Worker("workshop.lessons.dali.loader_turns", words, env) as worker:
        worker.say("alone")
        found = worker.hear(lambda seconds: tell(f"{seconds:.0f} s"))

Several of them, asked by turns, measure several things under the same load.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rn50lib.errors import UserError

SAY_S = 3.0  # while it waits, the caller is told this often


class Worker:
    """`python -m MODULE WORDS...` in a process of its own, which ends with the `with` block."""

    def __init__(self, module: str, words: Sequence[str], env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                assert pipe
                pipe.close()

    def say(self, word: str) -> None:
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):  # it ended: `hear` says why
            self.process.stdin.write(f"{word}\n".encode())
            self.process.stdin.flush()

    def hear(self, waiting: Callable[[float], object]) -> Any:
        """The next answer; `waiting(seconds)` is called every few seconds until it is there.

        Raises UserError, with the last line of its standard error, when the process has ended.
        """
        assert self.process.stdout and self.process.stderr
        begin = time.monotonic()
        while not select.select([self.process.stdout], [], [], SAY_S)[0]:
            waiting(time.monotonic() - begin)
        line = self.process.stdout.readline()
        if not line:
            said = self.process.stderr.read().decode("utf-8", "replace").strip().splitlines()
            raise UserError(
                f"the process that measures has ended: {(said or ['nothing said'])[-1]}"
            )
        return json.loads(line)
