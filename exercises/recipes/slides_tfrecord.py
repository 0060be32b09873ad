"""The slides' recipe 2: TensorFlow 1's queues read the images, and nothing is fed.

    python -m data_prep.tfrecord data/two-signs signs --schema slides --size 64 --train-shards 1
    horovodrun -np 2 --gloo python exercises/recipes/slides_tfrecord.py \\
        --image_size 64 --last_step 60

Its mistakes are left in: see README.md.
"""

import DenseNet as dn
import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.INFO)
tf.get_logger().propagate = False  # TensorFlow 2 would print each line twice

flags = tf.app.flags
flags.DEFINE_string("tfrec_fname", "signs/train-00000-of-00001", "what data_prep.tfrecord wrote")
flags.DEFINE_integer("image_size", 223, "height and width in pixels, as written")
flags.DEFINE_integer("last_step", 20000, "steps")
flags.DEFINE_integer("num_epochs", 10, "passes over the file")
flags.DEFINE_string("checkpoint_dir", "./checkpoints", "where the training is saved")
FLAGS = flags.FLAGS

growth_k = 12
nb_block = 2  # how many (dense block + Transition Layer) ?
class_num = 2


def contrib_image_rotate(image, angle):
    """Rotate about the centre, bilinear, as tf.contrib.image.rotate did in TensorFlow 1."""
    x = y = (FLAGS.image_size - 1) / 2
    cos, sin = np.cos(angle), np.sin(angle)
    transform = [cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y, 0.0, 0.0]
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=np.array([transform], np.float32),
        output_shape=[FLAGS.image_size, FLAGS.image_size],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )[0]


def read_and_decode(filename_queue):
    reader = tf.TFRecordReader()

    _, serialized_example = reader.read(filename_queue)

    features = tf.parse_single_example(
        serialized_example,
        features={
            "height": tf.FixedLenFeature([], tf.int64),
            "width": tf.FixedLenFeature([], tf.int64),
            "img_raw": tf.FixedLenFeature([], tf.string),
            "label": tf.FixedLenFeature([], tf.float32),
        },
    )

    image = tf.decode_raw(features["img_raw"], tf.uint8)
    image = tf.cast(image, tf.float32)
    image = image / 256.0

    label = tf.cast(features["label"], tf.int32)
    label = tf.one_hot(label, depth=2)

    height = tf.cast(features["height"], tf.int32)
    width = tf.cast(features["width"], tf.int32)

    width, height = FLAGS.image_size, FLAGS.image_size

    image_shape = tf.stack([height, width, tf.constant(3)], axis=0)
    image = tf.reshape(image, [height, width, 3])
    image = tf.image.random_flip_left_right(image, seed=42)
    image = tf.image.random_flip_up_down(image, seed=42)

    vrot = 20
    degrees = np.random.random() * vrot - vrot / 2

    image = contrib_image_rotate(image, degrees * np.pi / 180.0)

    images, labels = tf.train.shuffle_batch(
        [image, label], batch_size=20, capacity=130, num_threads=16, min_after_dequeue=100
    )

    return images, labels


def main(_):
    hvd.init()

    graph = tf.Graph()

    with graph.as_default():
        filename_queue = tf.train.string_input_producer(
            [FLAGS.tfrec_fname], num_epochs=FLAGS.num_epochs
        )
        images, labels = read_and_decode(filename_queue)
        training_flag = tf.placeholder(tf.bool, name="training_flag")
        tf.train.create_global_step()

        images = tf.identity(images, name="input_image")

        logits = dn.DenseNet(
            x=images, nb_blocks=nb_block, filters=growth_k, training=training_flag
        ).model

        assert logits.shape == labels.shape

        loss = tf.reduce_mean(
            tf.nn.softmax_cross_entropy_with_logits_v2(logits=logits, labels=labels)
        )

        tower_optimizer = tf.train.RMSPropOptimizer(0.001 * hvd.size())
        global_optimizer = hvd.DistributedOptimizer(tower_optimizer)

        global_step = tf.train.get_or_create_global_step()

        train_op = global_optimizer.minimize(loss=loss, global_step=global_step)
        train_prediction = tf.nn.softmax(logits=logits)

        sync_hook = [
            hvd.BroadcastGlobalVariablesHook(0),
            tf.train.StopAtStepHook(last_step=FLAGS.last_step // hvd.size()),
            tf.train.LoggingTensorHook(
                tensors={"step": global_step, "loss": loss}, every_n_iter=10
            ),
        ]

        config = tf.ConfigProto()
        config.gpu_options.allow_growth = True
        config.gpu_options.visible_device_list = str(hvd.local_rank())

        checkpoint_dir = FLAGS.checkpoint_dir if hvd.rank() == 0 else None

        # do the following on the same graph as on the one above
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=checkpoint_dir, hooks=sync_hook, config=config
        ) as mtsess:
            coord = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(sess=mtsess, coord=coord)

            while not mtsess.should_stop():
                img, lbls, _, l, t_predict = mtsess.run(
                    [images, labels, train_op, loss, train_prediction],
                    feed_dict={training_flag: True},
                )
                # print("loss:", l)

            coord.request_stop()
            coord.join(threads)


if __name__ == "__main__":
    tf.app.run()
