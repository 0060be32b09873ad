"""The TensorFlow backend, for Keras 3 and for Keras 2 (TF_USE_LEGACY_KERAS=1)."""

from rn50lib.tf import PythonCalls, tf

__all__ = ["PythonCalls", "tf"]
