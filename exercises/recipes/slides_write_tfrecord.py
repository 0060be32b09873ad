"""The slides' recipe 2, first half: write all images to one TFRecord file with TensorFlow 1.

    python exercises/recipes/slides_write_tfrecord.py --image_size 64 --out signs.tfrecords

The slides show only the reader; this writes what it reads: raw pixels, and the label as a float.
"""

import os

import numpy as np
import tensorflow.compat.v1 as tf
from PIL import Image

flags = tf.app.flags
flags.DEFINE_string("data", "data/roadsigns/train", "folder with the two classes")
flags.DEFINE_integer("image_size", 223, "height and width in pixels")
flags.DEFINE_string("out", "signs.tfrecords", "the file to write")
FLAGS = flags.FLAGS

class_directories = ["stop", "yield"]


def int64_feature(value):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def float_feature(value):
    return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))


def bytes_feature(value):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def main(_):
    photos = []
    for label, name in enumerate(class_directories):
        folder = os.path.join(FLAGS.data, name)
        photos += [(os.path.join(folder, file), label) for file in sorted(os.listdir(folder))]
    # Python shuffles once, because the reader's queue holds few images at a time.
    order = np.random.RandomState(42).permutation(len(photos))

    with tf.python_io.TFRecordWriter(FLAGS.out) as writer:
        for path, label in (photos[i] for i in order):
            size = (FLAGS.image_size, FLAGS.image_size)
            image = np.asarray(Image.open(path).convert("RGB").resize(size), np.uint8)
            feature = {
                "height": int64_feature(image.shape[0]),
                "width": int64_feature(image.shape[1]),
                "img_raw": bytes_feature(image.tobytes()),
                "label": float_feature(float(label)),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())
    print(f"{FLAGS.out}: {len(photos)} images")


if __name__ == "__main__":
    tf.app.run()
