"""TensorFlow, imported without the notes about its build, for every module that uses it."""

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
    """Drop TensorFlow's notes and warnings, which its C++ code writes past `sys.stderr`.

    Other output appears at the end. TF_CPP_MIN_LOG_LEVEL of 0 or 1 shows everything.
    """
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") in ("0", "1"):
        yield
        return
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            written.seek(0)
            for line in written:
                if not NOTE.match(line):
                    os.write(2, line)


with without_notes():
    import tensorflow as tf

__all__ = ["PythonCalls", "tf", "without_notes"]


class PythonCalls:
    """Python functions called from a graph; `error` keeps the exception that one of them raised."""

    def __init__(self, stateful: bool = True) -> None:
        self.error: Exception | None = None
        self.stateful = stateful

    def __call__(self, function: Callable, arguments: list, types: Any) -> Any:
        """Return the tensors that `function` computes from the arrays of `arguments`."""

        def called(*values: Any) -> Any:
            try:
                return function(*values)
            except Exception as error:
                self.error = error
                raise

        return tf.numpy_function(called, arguments, types, stateful=self.stateful)
