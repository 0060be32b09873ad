"""The peer: tf.data in the best form that is known, from reading a file to a batch of uint8.

    python benchmarks/peer_loader_tensorflow.py ROOT --size 224 --workers 1 [--fast]

An image whose crop holds more than is needed is decoded at a half, a quarter or an eighth. Prints
the seconds an image of class folders in ROOT/train, without the first batch.
"""

import argparse
import functools
import glob
import json
import os
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("root")
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--workers", type=int, default=1)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--fast", action="store_true", help="no antialiasing")
args = parser.parse_args()
DECODE = {"dct_method": "INTEGER_FAST", "fancy_upscaling": False}
RATIOS = (1, 2, 4, 8)


def crop(height, width):
    """As torchvision and DALI draw it: the crops of TensorFlow's own sampler are 6 % smaller."""
    area = tf.random.uniform([10], 0.05, 1.0) * tf.cast(height * width, tf.float32)
    aspect = tf.exp(tf.random.uniform([10], -0.28768, 0.28768))  # from 3 / 4 to 4 / 3
    sides = tf.cast(tf.round(tf.sqrt(tf.stack([area / aspect, area * aspect], 1))), tf.int32)
    fits = tf.reduce_all(sides <= [height, width], 1)
    size = tf.minimum(sides[tf.argmax(tf.cast(fits, tf.int8))], [height, width])
    start = tf.random.uniform([2]) * tf.cast([height, width] - size + 1, tf.float32)
    return tf.concat([tf.cast(start, tf.int32), size], 0)


def decode(data, window, ratio):
    return tf.io.decode_and_crop_jpeg(data, window // ratio, channels=3, ratio=ratio, **DECODE)


def load(path, label):
    data = tf.io.read_file(path)
    window = crop(*tf.unstack(tf.io.extract_jpeg_shape(data)[:2]))
    fits = tf.reduce_min(window[2:]) // args.size  # how often the crop holds what is needed
    half = tf.reduce_sum(tf.cast(fits >= RATIOS[1:], tf.int32))  # how often to halve it
    part = tf.switch_case(half, [functools.partial(decode, data, window, r) for r in RATIOS])
    small = tf.image.resize(part, (args.size, args.size), antialias=not args.fast)
    return tf.cast(tf.image.random_flip_left_right(small), tf.uint8), label


files = sorted(glob.glob(f"{args.root}/train/*/*.jpg"))
labels = [int(os.path.basename(os.path.dirname(path))) for path in files]
dataset = tf.data.Dataset.from_tensor_slices((files, labels)).shuffle(len(files))
dataset = dataset.map(load, args.workers, deterministic=False)
options = tf.data.Options()
options.threading.private_threadpool_size = args.workers
options.threading.max_intra_op_parallelism = 1
batches = iter(dataset.batch(args.batch, True).prefetch(4).with_options(options))
next(batches)
begin = time.perf_counter()
count = sum(len(x) for x, _ in batches)
print(json.dumps({"seconds": (time.perf_counter() - begin) / count}))
