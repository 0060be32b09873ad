"""One contestant of records.py, which times its work without its start-up.

    python benchmarks/contestant_records.py im2rec|order|random|tfrecord ours|peer ARGUMENTS

The peers are MXNet 1.9.1, with the Python of its environment, and TensorFlow. ARGUMENTS are those
of im2rec, a prefix, or a list of images (label, path) and the file to write.
"""

import contextlib
import io
import os
import random
import runpy
import sys
import zlib

import stopwatch

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
job, who, *arguments = sys.argv[1:]


def im2rec():
    """Return the packing of images into records."""
    if who == "ours":
        from data_prep.im2rec import main

        return lambda: main(arguments)
    import cv2  # noqa: F401  (im2rec imports it, which must not be timed)
    import mxnet

    tool = os.path.join(os.path.dirname(mxnet.__file__), "tools", "im2rec.py")
    sys.argv[1:] = arguments
    return lambda: runpy.run_path(tool, run_name="__main__")


def read():
    """Return the reading of a record file, with a CRC of each payload."""
    (prefix,) = arguments
    if who == "ours":
        from rn50lib.data.recordio import Reader

        reader = Reader(prefix + ".rec")
        keys, fetch = list(range(len(reader))), reader.read
    else:
        import mxnet

        reader = mxnet.recordio.MXIndexedRecordIO(prefix + ".idx", prefix + ".rec", "r")
        keys, fetch = list(reader.keys), reader.read_idx
        if job == "order":
            fetch = lambda key: reader.read()  # noqa: E731
    if job == "random":
        random.Random(0).shuffle(keys)
    return lambda: [zlib.crc32(fetch(key)) for key in keys]


def tfrecord():
    """Return the writing of images as tf.train.Example."""
    listing, output = arguments
    with open(listing) as file:
        images = [line.rstrip("\n").split("\t") for line in file]
    if who == "ours":
        from data_prep.tfrecordwriter import prepare

        os.makedirs(f"{output}/index", exist_ok=True)
        write = prepare({"out": output, "schema": "imagenet", "size": 0, "records": {},
                         "classes": ["n00000000"] * 2000,
                         "words": {"n00000000": "some words"}})  # fmt: skip
        rows = [[int(label), path, path] for label, path in images]
        return lambda: write(["train", "train-00000-of-00001", rows])
    import tensorflow as tf

    def feature(value):
        if isinstance(value, bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

    def example(label, path):
        with open(path, "rb") as file:
            values = {"encoded": file.read(), "format": b"JPEG", "colorspace": b"RGB",
                      "channels": 3, "height": 375, "width": 500, "class/label": int(label) + 1,
                      "filename": os.path.basename(path).encode(), "class/synset": b"n00000000",
                      "class/text": b"some words"}  # fmt: skip
        features = {f"image/{name}": feature(value) for name, value in values.items()}
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

    def work():
        with tf.io.TFRecordWriter(output) as writer:
            for image in images:
                writer.write(example(*image))

    return work


work = {"im2rec": im2rec, "tfrecord": tfrecord}.get(job, read)()
with stopwatch.timed(), contextlib.redirect_stdout(io.StringIO()):
    work()
