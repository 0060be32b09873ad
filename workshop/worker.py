"""Measurements in separate processes, which free their memory and the frameworks when they end.

    found = ask("package.module:function", env, prefix="model", epoch=2)

    with Worker("package.module:function", env, experiment=pack(config)) as worker:
        worker.ask("alone")                                     # as often as you like

The process calls the function with these arguments, which are JSON, as is the result. If the
function returns a function, that one answers each later `ask`. It may report progress with `tell`.
Several workers, asked in turns, measure several things under the same load.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from rn50 import launch
from rn50lib.config import TrainConfig, from_dict
from rn50lib.errors import UserError
from rn50lib.preemption import PARENT, die_with_parent
from workshop import output
from workshop.programs import lines_of

LIMIT_S = 40.0  # no round begins later, so that a cell ends in time on a slow machine too
QUIET_S = 3.0  # a cell that waits says something at least this often
_channel: TextIO | None = None  # in the process: where answers go, and nothing else


def ask(function: str, env: Mapping[str, str], doing: str, **arguments: Any) -> Any:
    """Return the result of `function`, "module:name"; its progress is shown in the cell.

    Raises:
        UserError: It failed; with its message, or the last line of its standard error.
    """
    begin = time.monotonic()
    with Worker(function, env, **arguments) as worker:
        found = worker.wait(doing)
        worker.slot.line(f"{doing}: done in {time.monotonic() - begin:.0f} s")
    return found


def in_turns(
    measures: Mapping[str, Callable[..., Any]],
    rounds: int,
    slot: output.Slot,
    warm_up: int = 0,
    limit_s: float = LIMIT_S,
) -> dict[str, list[Any]]:
    """Return each measurement's results, one per round: a slow moment then affects all of them.

    Each is called as `measure(doing=...)`, with the text that the cell shows meanwhile. `warm_up`
    rounds come first and do not count; after `limit_s` seconds no second or later round starts.
    """
    begin = time.monotonic()
    found: dict[str, list[Any]] = {name: [] for name in measures}
    for round_ in range(1 - warm_up, rounds + 1):
        if round_ > 1 and time.monotonic() - begin > limit_s:
            break
        doing = f"round {round_} of {rounds}" if round_ > 0 else "warming up"
        for name, measure in measures.items():
            value = measure(doing=f"{doing}: {name}")
            if round_ > 0:
                found[name].append(value)
    count = min(map(len, found.values()))
    slot.line(f"{count} rounds in {time.monotonic() - begin:.0f} s")
    return found


class Worker:
    """`function` in a separate process, which ends with the `with` block."""

    def __init__(
        self,
        function: str,
        env: Mapping[str, str],
        slot: output.Slot | None = None,
        **arguments: Any,
    ) -> None:
        self.slot = slot or output.Slot()
        self.complaints = tempfile.TemporaryFile()  # an unread pipe could fill up
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from workshop.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            env=launch.with_library({**env, PARENT: str(os.getpid())}),
        )
        self.lines = lines_of(self.process.stdout)
        self._send([function, arguments])

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            assert self.process.stdin
            self.process.stdin.close()
        self.complaints.close()

    def ask(self, *arguments: Any, doing: str) -> Any:
        """Return the answer to these arguments. Raises UserError if the process has ended."""
        self._send(arguments)
        return self.wait(doing)

    def _send(self, message: Any) -> None:
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):  # it ended: `wait` says why
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def wait(self, doing: str) -> Any:
        """Return the next answer; the cell shows `doing` and the seconds."""
        self.slot.line(doing)
        begin, line = time.monotonic(), doing
        while True:
            try:
                message = json.loads(self.lines.get(timeout=QUIET_S) or self._ended())
            except queue.Empty:
                self.slot.line(f"{line}, {time.monotonic() - begin:.0f} s")
                continue
            if "tell" not in message:
                break
            line = message["tell"]
            self.slot.line(line)
        if "error" in message:
            raise UserError(message["error"])
        return message["answer"]

    def _ended(self) -> str:
        """Return an error message with the last output of a process that has ended."""
        self.complaints.seek(0)
        lines = self.complaints.read().decode("utf-8", "replace").strip().splitlines()
        last = (lines or ["it printed nothing"])[-1]
        return json.dumps({"error": f"the process that measures has ended: {last}"})


def pack(config: TrainConfig) -> dict[str, Any]:
    """Return a resolved experiment as JSON, for an argument."""
    return config.to_dict()


# --- in the process -------------------------------------------------------------------------------


def unpack(fields: Mapping[str, Any]) -> TrainConfig:
    """Return the resolved experiment that was packed by `pack`."""
    return from_dict(fields, "the arguments")


def tell(text: str) -> None:
    """Show in the cell what is being done now."""
    _reply({"tell": text})


def _reply(message: dict[str, Any]) -> None:
    if _channel is not None:
        _channel.write(json.dumps(message) + "\n")
        _channel.flush()


def main() -> None:
    """Answer what is asked on stdin; what anything prints goes to standard error."""
    global _channel
    die_with_parent()
    _channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        function, arguments = json.loads(sys.stdin.readline())
        module, name = function.split(":")
        answer = getattr(importlib.import_module(module), name)(**arguments)
        _reply({"answer": None if callable(answer) else answer})
        for line in sys.stdin if callable(answer) else ():
            _reply({"answer": answer(*json.loads(line))})
    except UserError as error:
        _reply({"error": str(error)})
