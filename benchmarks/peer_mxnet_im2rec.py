"""Time MXNet's own im2rec without its start-up; run with the Python of an environment with MXNet
1.9.1.

    MXNET_PYTHON benchmarks/peer_mxnet_im2rec.py --pass-through --num-thread 1 PREFIX ROOT
"""

import contextlib
import io
import os
import runpy
import sys

import cv2  # noqa: F401  (imported here, so that the timed part need not)
import mxnet
import stopwatch

TOOL = os.path.join(os.path.dirname(mxnet.__file__), "tools", "im2rec.py")

sys.argv[0] = TOOL
with stopwatch.timed():
    with contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(TOOL, run_name="__main__")
