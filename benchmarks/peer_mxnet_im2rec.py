"""Time MXNet's own im2rec without its start-up; run with the Python of an environment with MXNet
1.9.1.

    MXNET_PYTHON benchmarks/peer_mxnet_im2rec.py --pass-through --num-thread 1 PREFIX ROOT
"""

import contextlib
import io
import json
import os
import resource
import runpy
import sys
import time

import cv2  # noqa: F401  (imported here, so that the timed part need not)
import mxnet


def used():
    """Processor seconds of this process and of its children."""
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(who)[:2]) for who in both)


TOOL = os.path.join(os.path.dirname(mxnet.__file__), "tools", "im2rec.py")

sys.argv[0] = TOOL
start, cpu = time.perf_counter(), used()
with contextlib.redirect_stdout(io.StringIO()):
    runpy.run_path(TOOL, run_name="__main__")
seconds, cpu = time.perf_counter() - start, used() - cpu
print(json.dumps({"seconds": seconds, "cpu_seconds": cpu}))
