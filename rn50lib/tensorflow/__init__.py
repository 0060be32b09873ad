"""The TensorFlow backend."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # 0 shows TensorFlow's notes about its build
