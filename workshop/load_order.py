"""The order in which one process can load Triton and TensorFlow."""

import contextlib
import importlib
import importlib.util
import sys
import warnings

LATE = (
    "tensorflow was imported before workshop: Triton stays off in this process, and with it"
    " torch.compile on a GPU; restart the kernel and import workshop first"
)


def load_triton_first() -> None:
    """Load Triton before TensorFlow if both are installed, or never.

    PyTorch's CUDA builds load Triton with the first optimizer. If TensorFlow 2.20 or later is
    loaded by then, the process crashes, because each includes its own LLVM and TensorFlow's is
    found first (github.com/tensorflow/tensorflow/issues/124205).
    """
    if "triton" in sys.modules or not importlib.util.find_spec("triton"):
        return
    if "tensorflow" in sys.modules:
        warnings.warn(LATE, RuntimeWarning, stacklevel=3)
        sys.modules["triton"] = None  # type: ignore[assignment]  # `import triton` raises
    elif importlib.util.find_spec("tensorflow"):
        with contextlib.suppress(ImportError):
            importlib.import_module("triton")
