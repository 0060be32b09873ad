"""TensorFlow, imported without the notes about its build, for every module that uses it."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # 0 shows the notes
import tensorflow as tf  # noqa: E402

__all__ = ["tf"]
