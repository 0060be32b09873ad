"""TensorFlow, imported without the notes about its build, for every module that uses it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # 0 shows the notes
import tensorflow as tf  # noqa: E402

__all__ = ["PythonCalls", "tf"]


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
