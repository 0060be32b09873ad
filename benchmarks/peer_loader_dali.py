"""The peer: DALI in the best form that is known, from its file reader to a batch of uint8.

    python benchmarks/peer_loader_dali.py ROOT --size 224 --workers 1 [--fast] [--iterator]

Prints the seconds an image of class folders in ROOT/train, without the first batch.
"""

import argparse
import glob
import json
import time

import numpy as np
from nvidia.dali import fn, pipeline_def, types

parser = argparse.ArgumentParser()
parser.add_argument("root")
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--workers", type=int, default=1)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--fast", action="store_true", help="no antialiasing")
parser.add_argument("--iterator", action="store_true", help="tensors, by DALI's own for PyTorch")
args = parser.parse_args()


@pipeline_def(batch_size=args.batch, num_threads=args.workers, device_id=None, seed=0)
def graph():
    encoded, labels = fn.readers.file(file_root=f"{args.root}/train", random_shuffle=True)
    images = fn.decoders.image_random_crop(
        encoded, random_area=[0.05, 1.0], random_aspect_ratio=[3 / 4, 4 / 3],
        use_fast_idct=True, jpeg_fancy_upsampling=False)  # fmt: skip
    images = fn.resize(
        images, resize_x=args.size, resize_y=args.size, interp_type=types.INTERP_LINEAR,
        antialias=not args.fast)  # fmt: skip
    return fn.flip(images, horizontal=fn.random.coin_flip()), labels


batches = len(glob.glob(f"{args.root}/train/*/*.jpg")) // args.batch
pipeline = graph()
pipeline.build()
if args.iterator:
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    made = iter(DALIGenericIterator(pipeline, ["images", "labels"]))
next(made) if args.iterator else pipeline.run()
begin = time.perf_counter()
for _ in range(batches - 1):
    if args.iterator:
        next(made)
        continue
    images, _ = pipeline.run()
    assert np.asarray(images.as_tensor()).dtype == np.uint8  # looked at where it is, not copied
seconds = (time.perf_counter() - begin) / (args.batch * (batches - 1))
print(json.dumps({"seconds": seconds}))
