"""The order in which two frameworks can be loaded by one process."""

import contextlib
import importlib
import importlib.util


def load_triton_first() -> None:
    """Load Triton where it and TensorFlow are installed, before somebody loads TensorFlow.

    PyTorch's builds for CUDA load Triton with the first optimizer. Once TensorFlow 2.20 or later is
    there that ends the process, for each brings an LLVM of its own and TensorFlow's is found first
    (github.com/tensorflow/tensorflow/issues/124205).
    """
    if importlib.util.find_spec("triton") and importlib.util.find_spec("tensorflow"):
        with contextlib.suppress(ImportError):
            importlib.import_module("triton")
