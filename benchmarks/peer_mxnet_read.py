"""Read every record of PREFIX.rec with MXNet, one CRC over each payload, and print the seconds.

MXNET_PYTHON benchmarks/peer_mxnet_read.py order|random PREFIX
"""

import random
import sys
import zlib

import mxnet
import stopwatch

how, prefix = sys.argv[1:]
reader = mxnet.recordio.MXIndexedRecordIO(prefix + ".idx", prefix + ".rec", "r")
keys = list(reader.keys)
random.Random(0).shuffle(keys)
with stopwatch.timed():
    if how == "order":
        for _ in keys:
            zlib.crc32(reader.read())
    else:
        for key in keys:
            zlib.crc32(reader.read_idx(key))
