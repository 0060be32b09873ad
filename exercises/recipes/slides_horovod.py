"""The slides' recipe 1: their TensorFlow 1 script with Horovod.

    horovodrun -np 2 --gloo python exercises/recipes/slides_horovod.py \
        --image_size 64 --batch_size 16 --last_step 60

Its mistakes are left in: see README.md.
"""

import os

import DenseNet as dn
import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf
from PIL import Image

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.INFO)
tf.get_logger().propagate = False  # TensorFlow 2 would print each line twice

flags = tf.app.flags
flags.DEFINE_string("data", "data/roadsigns/train", "folder with the two classes")
flags.DEFINE_integer("image_size", 223, "height and width in pixels")
flags.DEFINE_integer("batch_size", 128, "images per step")
flags.DEFINE_integer("last_step", 20000, "steps")
flags.DEFINE_string("checkpoint_dir", "./checkpoints", "where the training is saved")
FLAGS = flags.FLAGS

growth_k = 12
nb_block = 2  # how many (dense block + Transition Layer) ?
class_num = 2

class_directories = ["stop", "yield"]


def grab_dir(path):
    size = (FLAGS.image_size, FLAGS.image_size)
    files = [os.path.join(path, name) for name in sorted(os.listdir(path))]
    photos = [Image.open(file).convert("RGB").resize(size) for file in files]
    return np.stack([np.asarray(photo, np.float32) / 256.0 for photo in photos])


def Xy_shuffle_loader(pos_dir, neg_dir):
    pos, neg = grab_dir(pos_dir), grab_dir(neg_dir)
    X, y = np.concatenate([pos, neg]), np.array([0] * len(pos) + [1] * len(neg))
    order = np.random.RandomState(42).permutation(len(X))
    X, y = X[order], y[order]
    validation = len(X) // 10
    return X[validation:], y[validation:], X[:validation], y[:validation]


def main(_):
    hvd.init()

    pos_dir, neg_dir = [os.path.join(FLAGS.data, name) for name in class_directories]
    X_train, y_train, X_validation, y_validation = Xy_shuffle_loader(pos_dir, neg_dir)

    graph = tf.Graph()

    with graph.as_default():
        tf.train.create_global_step()

        shape = [None, FLAGS.image_size, FLAGS.image_size, 3]
        images = tf.placeholder(tf.float32, shape=shape, name="input_image")
        labels = tf.placeholder(tf.float32, shape=[None, class_num], name="training_labels")
        training_flag = tf.placeholder(tf.bool, name="training_flag")

        logits = dn.DenseNet(
            x=images, nb_blocks=nb_block, filters=growth_k, training=training_flag
        ).model
        logits = tf.identity(logits, name="output_logits")

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

        batch_size = FLAGS.batch_size
        total_batch = int(len(X_train) / batch_size)
        step = 0

        # do the following on the same graph as on the one above
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=checkpoint_dir, hooks=sync_hook, config=config
        ) as mtsess:
            while not mtsess.should_stop():
                if step > total_batch - 1:
                    step = 0

                batch_x = X_train[step * batch_size : (step + 1) * batch_size]
                batch_y = np.eye(class_num)[y_train[step * batch_size : (step + 1) * batch_size]]
                train_feed_dict = {images: batch_x, labels: batch_y, training_flag: True}

                _, l, t_predict = mtsess.run(
                    [train_op, loss, train_prediction], feed_dict=train_feed_dict
                )
                # print("loss:", l)


if __name__ == "__main__":
    tf.app.run()
