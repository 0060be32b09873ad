"""Write the images listed on stdin (label, path) as tf.train.Example with TensorFlow's
TFRecordWriter.

    python benchmarks/peer_tensorflow_write.py OUT < LIST
"""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import stopwatch
import tensorflow as tf


def feature(value):
    """A feature of bytes or of one number."""
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


images = [line.rstrip("\n").split("\t") for line in sys.stdin]
with stopwatch.timed():
    with tf.io.TFRecordWriter(sys.argv[1]) as writer:
        for label, path in images:
            with open(path, "rb") as file:
                data = file.read()
            values = {
                "image/encoded": data,
                "image/format": b"JPEG",
                "image/colorspace": b"RGB",
                "image/channels": 3,
                "image/height": 375,
                "image/width": 500,
                "image/filename": os.path.basename(path).encode(),
                "image/class/label": int(label) + 1,
                "image/class/synset": b"n00000000",
                "image/class/text": b"some words",
            }
            features = {name: feature(value) for name, value in values.items()}
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
