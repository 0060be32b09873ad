"""What runs inside the box: the learner's statements, then answers to the check's questions."""

from __future__ import annotations

import ast
import linecache
import socket
import sys
import types
from typing import Any

from workshop.classroom.channel import Channel

FIRST = 0  # the number of the object that a check starts from


class Answers:
    """The learner's names."""

    def __init__(self) -> None:
        self.module = types.ModuleType("__main__")
        self.sources: dict[str, list[str]] = {}

    def run(self, plan: list[tuple[str, str, list[int]]]) -> None:
        """Run the statements of some cells, each cell as far as it goes.

        A call that only shows something (`print(shard(…))`) may fail; what fails otherwise raises
        at the end, when all others have run.
        """
        sys.modules["__main__"] = self.module
        problem: BaseException | None = None
        for name, source, numbers in plan:
            lines = source.splitlines(keepends=True)
            self.sources[name] = lines
            linecache.cache[name] = (len(source), None, lines, name)
            body = ast.parse(source).body
            for number in numbers:
                code = compile(ast.Module([body[number]], []), name, "exec")
                try:
                    exec(code, vars(self.module))
                except (Exception, SystemExit) as error:
                    if not isinstance(body[number], ast.Expr):
                        problem = problem or error
        if problem is not None:
            raise problem

    def get(self, name: str) -> Any:
        return vars(self.module)[name]

    def has(self, name: str) -> bool:
        return name in vars(self.module)

    def place(self, error: BaseException) -> str:
        """Where in the learner's code an error arose, innermost."""
        found, trace = "", error.__traceback__
        while trace is not None:
            code, number = trace.tb_frame.f_code, trace.tb_lineno
            lines = self.sources.get(code.co_filename)
            if lines and 0 < number <= len(lines):
                text = lines[number - 1].strip()[:160]
                where = code.co_name
                if where == "<module>":
                    found = f"In line {number} of the cell: `{text}`."
                else:
                    found = f"In {where}, line {number - code.co_firstlineno + 1}: `{text}`."
            trace = trace.tb_next
        return found


def live(line: socket.socket) -> None:
    """Serve the check until it hangs up."""
    answers = Answers()
    channel = Channel(line, trusted=False, place=answers.place)
    channel.hand_over(FIRST, answers)
    channel.start()
    channel.serve()
