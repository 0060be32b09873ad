"""The TensorFlow backend, for Keras 3 and for Keras 2 (TF_USE_LEGACY_KERAS=1)."""

import rn50lib.tf  # noqa: F401 - before TensorFlow, whose notes it silences
