"""Two tables beside the slides' code: what each TensorFlow 1 call is called today, and the five
changes from one process to many, for three libraries.

Every cell of code is one line of Python that parses; a test looks up each name in it. The short
names stand for what `NAMES` says. A notebook shows a table with `TODAY.show()`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows of text under `columns`, as workshop.table takes them."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def show(self) -> None:
        """Show the table in a notebook."""
        from workshop import output

        output.table(self.rows, self.columns, self.caption)


# What the names in the cells stand for. A class stands for an object of it.
NAMES = {
    "tf": "tensorflow",
    "hvd": "horovod.tensorflow",
    "callbacks": "horovod.tensorflow.keras.callbacks",
    "torch": "torch",
    "dist": "torch.distributed",
    "DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "DistributedSampler": "torch.utils.data.DistributedSampler",
    "sampler": "torch.utils.data.DistributedSampler",
    "DataLoader": "torch.utils.data.DataLoader",
    "save_file": "safetensors.torch.save_file",
    "net": "torch.nn.Module",
    "os": "os",
    "model": "tensorflow.keras.Model",
    "optimizer": "tensorflow.keras.optimizers.Optimizer",
    "tape": "tensorflow.GradientTape",
    "v": "tensorflow.Variable",
    "dataset": "tensorflow.data.Dataset",
    "manager": "tensorflow.train.CheckpointManager",
    "strategy": "tensorflow.distribute.Strategy",
}

TODAY = Table(
    "The slides' calls (TensorFlow 1.8), and what does their work today",
    ("the slides", "today", "what changed"),
    (
        (
            "tf.ConfigProto().gpu_options.allow_growth = True",
            "tf.config.experimental.set_memory_growth(gpu, True)",
            "a setting of each GPU, before its first use",
        ),
        (
            "tf.ConfigProto().gpu_options.visible_device_list = str(hvd.local_rank())",
            'tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")',
            "likewise; a list of devices in place of a text",
        ),
        (
            "tf.Graph().as_default()",
            "tf.function(train_step)",
            "a graph is made from a Python function when that is first called",
        ),
        (
            "tf.placeholder(tf.float32, shape=[None, 223, 223, 3])",
            "tf.keras.layers.Input((223, 223, 3))",
            "arguments of a function; the model alone says its shapes",
        ),
        (
            "mtsess.run([train_op, loss], feed_dict=train_feed_dict)",
            "model.fit(dataset)",
            "recipe 2: a tf.data pipeline feeds; or call the tf.function in a loop of your own",
        ),
        (
            "tf.nn.softmax_cross_entropy_with_logits_v2(logits=logits, labels=labels)",
            "tf.keras.losses.CategoricalCrossentropy(from_logits=True)",
            "SparseCategoricalCrossentropy takes labels that are not one-hot",
        ),
        (
            "tf.train.RMSPropOptimizer(0.001 * hvd.size())",
            "tf.keras.optimizers.RMSprop(0.001 * hvd.size())",
            "rho (their decay) is 0.9 in both; epsilon was 1e-10 and is 1e-7",
        ),
        (
            "hvd.DistributedOptimizer(tower_optimizer).minimize(loss, global_step=global_step)",
            "hvd.grouped_allreduce(tape.gradient(loss, weights), op=hvd.Average)",
            "between tape and optimizer; hvd.DistributedOptimizer with fit needs Keras 2",
        ),
        (
            "tf.train.get_or_create_global_step()",
            "optimizer.iterations",
            "the optimizer counts its steps",
        ),
        (
            "hvd.BroadcastGlobalVariablesHook(0)",
            "for v in weights: v.assign(hvd.broadcast(tf.convert_to_tensor(v), root_rank=0))",
            "once, before the first step; or callbacks.BroadcastGlobalVariablesCallback(0)",
        ),
        (
            "tf.train.StopAtStepHook(last_step=20000 // hvd.size())",
            "model.fit(dataset.take(steps // hvd.size()))",
            "the data end, on all ranks after the same step",
        ),
        (
            "tf.train.LoggingTensorHook(tensors=tensors, every_n_iter=10)",
            "model.fit(dataset, verbose=2 if hvd.rank() == 0 else 0)",
            "rank 0 alone; reading the loss at each step would make the GPU wait",
        ),
        (
            "tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, hooks=sync_hook)",
            "tf.train.CheckpointManager(state, folder, max_to_keep=3)",
            "on rank 0 alone; manager.restore_or_initialize() goes on from the newest",
        ),
        (
            "tf.train.string_input_producer([tfrec_fname], num_epochs=10)",
            "tf.data.Dataset.list_files(pattern, shuffle=False).shard(hvd.size(), hvd.rank())",
            "each rank its own files, from a list that is the same on all",
        ),
        (
            "tf.TFRecordReader().read(filename_queue)",
            "dataset.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)",
            "several files are read at once",
        ),
        (
            "tf.parse_single_example(serialized_example, features=features)",
            "tf.io.parse_single_example(record, features)",
            "in dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE)",
        ),
        (
            "tf.decode_raw(features['img_raw'], tf.uint8)",
            "tf.io.decode_and_crop_jpeg(data, window, channels=3)",
            "JPEG stays JPEG on the disk: several times fewer bytes; raw is tf.io.decode_raw",
        ),
        (
            "tf.image.random_flip_left_right(image, seed=42)",
            "tf.image.stateless_random_flip_left_right(image, seed)",
            "with a seed for each picture: ranks differ, and a run can be repeated",
        ),
        (
            "tf.contrib.image.rotate(image, degrees * np.pi / 180)",
            "tf.raw_ops.ImageProjectiveTransformV3(images=images, transforms=turns, "
            'output_shape=shape, fill_value=0.0, interpolation="BILINEAR")',
            "tf.contrib is gone; see rotate in exercises/densenet/solutions/train_tfrecord.py",
        ),
        (
            "tf.train.shuffle_batch([image, label], batch_size=20, capacity=30, num_threads=16, "
            "min_after_dequeue=100)",
            "dataset.shuffle(1000).batch(20).prefetch(tf.data.AUTOTUNE)",
            "shuffle before the decoding, where a picture is smallest",
        ),
        (
            "tf.train.Coordinator(), tf.train.start_queue_runners()",
            "# nothing",
            "tf.data starts and ends its own threads",
        ),
    ),
)

FIVE = Table(
    "The five changes, in three libraries",
    ("change", "Horovod (TensorFlow)", "DDP (PyTorch)", "tf.distribute (TensorFlow)"),
    (
        (
            "1. start, with one GPU for each process",
            'hvd.init(); tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")',
            'dist.init_process_group("nccl"); torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
            "strategy = tf.distribute.MirroredStrategy()  # one process drives all GPUs",
        ),
        (
            "2. share the pictures, with equal steps",
            "dataset = dataset.shard(hvd.size(), hvd.rank()).batch(b).take(steps // hvd.size())",
            "sampler = DistributedSampler(data, drop_last=True); "
            "loader = DataLoader(data, b, sampler=sampler)  # each epoch: sampler.set_epoch(epoch)",
            "dataset = strategy.experimental_distribute_dataset(dataset.batch(global_batch))",
        ),
        (
            "3. scale the learning rate, with warm-up",
            "optimizer.learning_rate = rate(step) * hvd.size()",
            'group["lr"] = rate(step) * dist.get_world_size()',
            "optimizer.learning_rate = rate(step) * strategy.num_replicas_in_sync",
        ),
        (
            "4. average the gradients",
            "gradients = hvd.grouped_allreduce(tape.gradient(loss, weights), op=hvd.Average)",
            "ddp = DistributedDataParallel(net)  # averages during backward()",
            "loss = tf.nn.compute_average_loss(losses, global_batch_size=global_batch)"
            "  # apply_gradients adds the replicas' gradients up",
        ),
        (
            "5. start alike: from rank 0",
            "for v in weights: v.assign(hvd.broadcast(tf.convert_to_tensor(v), root_rank=0))",
            "ddp = DistributedDataParallel(net)  # has sent rank 0's weights to all",
            "with strategy.scope(): model = build()  # each weight is made once, for all",
        ),
        (
            "… and rank 0 alone logs and saves",
            "if hvd.rank() == 0: manager.save()",
            "if dist.get_rank() == 0: save_file(net.state_dict(), path)",
            "manager.save()  # there is one process",
        ),
    ),
)
