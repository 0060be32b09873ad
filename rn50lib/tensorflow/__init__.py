"""The TensorFlow backend. Right under Keras 3 and under Keras 2 (TF_USE_LEGACY_KERAS=1) alike.

TensorFlow is imported here, before any module of this package asks for it, so that its notes on how
it was built do not stand between the lines of a run.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

NOTE = re.compile(rb"^(WARNING: All log messages before absl|[IW]\d{4} )")


@contextmanager
def without_notes() -> Iterator[None]:
    """Leaves out TensorFlow's notes and warnings, which its C++ writes past `sys.stderr`.

    What else is written comes at the end. TF_CPP_MIN_LOG_LEVEL of 0 or 1 shows everything.
    """
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") in ("0", "1"):
        yield
        return
    sys.stderr.flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)
            written.seek(0)
            for line in written:
                if not NOTE.match(line):
                    os.write(2, line)


with without_notes():
    import tensorflow as tf

__all__ = ["PythonCalls", "tf", "without_notes"]


class PythonCalls:
    """Calls Python functions from a graph, and keeps the `error` that one of them has raised:
    TensorFlow would hide it behind one of its own."""

    def __init__(self, stateful: bool = True) -> None:
        self.error: Exception | None = None
        self.stateful = stateful

    def __call__(self, function: Callable, arguments: list, types: Any) -> Any:
        def called(*values: Any) -> Any:
            try:
                return function(*values)
            except Exception as error:
                self.error = error
                raise

        return tf.numpy_function(called, arguments, types, stateful=self.stateful)
