"""Read every record of PREFIX.rec with MXNet, one CRC over each payload, and print the seconds.

MXNET_PYTHON benchmarks/peer_mxnet_read.py order|random PREFIX
"""

import json
import random
import resource
import sys
import time
import zlib

import mxnet


def used():
    """Processor seconds of this process and of its children."""
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(who)[:2]) for who in both)


how, prefix = sys.argv[1:]
reader = mxnet.recordio.MXIndexedRecordIO(prefix + ".idx", prefix + ".rec", "r")
keys = list(reader.keys)
random.Random(0).shuffle(keys)
start, cpu = time.perf_counter(), used()
if how == "order":
    for _ in keys:
        zlib.crc32(reader.read())
else:
    for key in keys:
        zlib.crc32(reader.read_idx(key))
seconds, cpu = time.perf_counter() - start, used() - cpu
print(json.dumps({"seconds": seconds, "cpu_seconds": cpu}))
