"""The order in which one process can load Triton and TensorFlow."""

import contextlib
import importlib
import importlib.util


def load_triton_first() -> None:
    """Load Triton before TensorFlow if both are installed.

    PyTorch's CUDA builds load Triton with the first optimizer. If TensorFlow 2.20 or later is
    loaded by then, the process crashes, because each includes its own LLVM and TensorFlow's is
    found first (github.com/tensorflow/tensorflow/issues/124205).
    """
    if importlib.util.find_spec("triton") and importlib.util.find_spec("tensorflow"):
        with contextlib.suppress(ImportError):
            importlib.import_module("triton")
