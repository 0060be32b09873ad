"""The process that times ONNX Runtime for `workshop.forms`: the same network and batch, exported.

python -m workshop.lessons.inference.onnx_turns FLAGS...
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from rn50lib import launch
from rn50lib.config import from_json
from rn50lib.tools.export import folded, to_onnx

TURN_S = 0.05  # a turn repeats the batch for about so long


def main(argv: list[str]) -> int:
    """Says "ready", then answers every line on stdin with the seconds of a batch."""
    import onnxruntime

    launch.die_with_parent()
    done = from_json(argv[0])
    net = done.to_network()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = done.threads
    made = to_onnx(folded(net, net.initial_arrays(done.seed), done.image_shape))
    place = ["CPUExecutionProvider"]
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        place.insert(0, "CUDAExecutionProvider")
    session = onnxruntime.InferenceSession(made, options, providers=place)
    shape = (done.batch_size, done.image_shape, done.image_shape, 3)
    images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)

    def repeat(times: int) -> float:
        begin = time.perf_counter()
        for _ in range(times):
            session.run(["logits"], {"images": images})
        return (time.perf_counter() - begin) / times

    repeat(2)
    times = max(1, min(200, round(TURN_S / repeat(1))))
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        print(json.dumps(repeat(times)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
