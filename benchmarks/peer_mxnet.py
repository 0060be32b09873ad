"""The peers from MXNet 1.9.1, without their start-up; run with the Python of its environment.

PYTHON benchmarks/peer_mxnet.py im2rec --pass-through --num-thread 1 PREFIX ROOT
PYTHON benchmarks/peer_mxnet.py order|random PREFIX
"""

import contextlib
import io
import os
import random
import runpy
import sys
import zlib

import cv2  # noqa: F401  (im2rec imports it, which must not be timed)
import mxnet
import stopwatch

how = sys.argv.pop(1)
if how == "im2rec":
    tool = os.path.join(os.path.dirname(mxnet.__file__), "tools", "im2rec.py")
    with stopwatch.timed(), contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(tool, run_name="__main__")
else:
    prefix = sys.argv[1]
    reader = mxnet.recordio.MXIndexedRecordIO(prefix + ".idx", prefix + ".rec", "r")
    keys = list(reader.keys)
    random.Random(0).shuffle(keys)
    with stopwatch.timed():
        for key in keys:
            zlib.crc32(reader.read() if how == "order" else reader.read_idx(key))
