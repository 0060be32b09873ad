"""Training scripts that have all changes for many GPUs, as text for `rn50 workshop check-script`.

The first two are the slides' recipes put right, written out in our own words for TensorFlow 1,
which nothing here can run; the tests put each mistake in.
"""

FEED = """\
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import DenseNet as dn

SIDE, CLASSES = 223, 2
FOLDERS = ["clicks/pos", "clicks/neg"]


def read_folders(positive, negative):
    pictures, labels = [], []
    for label, folder in enumerate([positive, negative]):
        for name in tf.gfile.ListDirectory(folder):
            pictures.append(np.load(folder + "/" + name))
            labels.append(label)
    order = np.random.RandomState(7).permutation(len(pictures))
    return np.stack(pictures)[order], np.array(labels)[order]


def main():
    hvd.init()
    pictures, classes = read_folders(FOLDERS[0], FOLDERS[1])
    pictures, classes = pictures[hvd.rank() :: hvd.size()], classes[hvd.rank() :: hvd.size()]

    with tf.Graph().as_default():
        tf.train.create_global_step()
        images = tf.placeholder(tf.float32, shape=[None, SIDE, SIDE, 3], name="input_image")
        labels = tf.placeholder(tf.float32, shape=[None, CLASSES], name="training_labels")
        training = tf.placeholder(tf.bool, name="training_flag")
        net = dn.DenseNet(x=images, nb_blocks=2, filters=12, training=training).model
        logits = tf.identity(net, name="output_logits")
        loss = tf.reduce_mean(
            tf.nn.softmax_cross_entropy_with_logits_v2(logits=logits, labels=labels)
        )
        global_step = tf.train.get_or_create_global_step()
        warmup = tf.minimum(1.0, tf.cast(global_step, tf.float32) / 500.0)
        rate = 0.001 * (1 + (hvd.size() - 1) * warmup)
        tower_optimizer = tf.train.RMSPropOptimizer(rate)
        global_optimizer = hvd.DistributedOptimizer(tower_optimizer)
        train_op = global_optimizer.minimize(loss=loss, global_step=global_step)
        prediction = tf.nn.softmax(logits=logits)

        hooks = [
            hvd.BroadcastGlobalVariablesHook(0),
            tf.train.StopAtStepHook(last_step=20000 // hvd.size()),
        ]
        if hvd.rank() == 0:
            hooks.append(tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=10))
        config = tf.ConfigProto()
        config.gpu_options.allow_growth = True
        config.gpu_options.visible_device_list = str(hvd.local_rank())
        checkpoint_dir = "./checkpoints" if hvd.rank() == 0 else None

        batch_size = 128
        batches = len(pictures) // batch_size
        step = 0
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=checkpoint_dir, hooks=hooks, config=config
        ) as session:
            while not session.should_stop():
                if step > batches - 1:
                    step = 0
                batch_x = pictures[step * batch_size : (step + 1) * batch_size]
                batch_y = np.eye(CLASSES)[classes[step * batch_size : (step + 1) * batch_size]]
                feed = {images: batch_x, labels: batch_y, training: True}
                _, value, guess = session.run([train_op, loss, prediction], feed_dict=feed)
                step += 1


if __name__ == "__main__":
    tf.app.run()
"""

QUEUE = """\
import horovod.tensorflow as hvd
import tensorflow as tf

import DenseNet as dn

SIDE = 223
FILES = ["cracks-%d.tfrecords" % i for i in range(16)]


def read_and_decode(queue):
    reader = tf.TFRecordReader()
    _, record = reader.read(queue)
    features = tf.parse_single_example(
        record,
        features={
            "img_raw": tf.FixedLenFeature([], tf.string),
            "label": tf.FixedLenFeature([], tf.float32),
        },
    )
    image = tf.cast(tf.decode_raw(features["img_raw"], tf.uint8), tf.float32) / 256.0
    image = tf.reshape(image, [SIDE, SIDE, 3])
    image = tf.image.random_flip_left_right(image, seed=42 + hvd.rank())
    image = tf.image.random_flip_up_down(image, seed=43 + hvd.rank())
    degrees = tf.random_uniform([], -10.0, 10.0)
    image = tf.contrib.image.rotate(image, degrees * 3.14159 / 180.0, interpolation="BILINEAR")
    label = tf.one_hot(tf.cast(features["label"], tf.int32), depth=2)
    return tf.train.shuffle_batch(
        [image, label], batch_size=20, capacity=400, num_threads=16, min_after_dequeue=100
    )


def main():
    hvd.init()
    with tf.Graph().as_default():
        queue = tf.train.string_input_producer(FILES[hvd.rank() :: hvd.size()], num_epochs=10)
        images, labels = read_and_decode(queue)
        tf.train.create_global_step()
        images = tf.identity(images, name="input_image")
        training = tf.placeholder_with_default(True, [], name="training_flag")
        logits = dn.DenseNet(x=images, nb_blocks=2, filters=12, training=training).model
        loss = tf.reduce_mean(
            tf.nn.softmax_cross_entropy_with_logits_v2(logits=logits, labels=labels)
        )
        global_step = tf.train.get_or_create_global_step()
        warmup = tf.minimum(1.0, tf.cast(global_step, tf.float32) / 500.0)
        tower_optimizer = tf.train.RMSPropOptimizer(0.001 * hvd.size() * warmup)
        global_optimizer = hvd.DistributedOptimizer(tower_optimizer)
        train_op = global_optimizer.minimize(loss=loss, global_step=global_step)

        hooks = [
            hvd.BroadcastGlobalVariablesHook(0),
            tf.train.StopAtStepHook(last_step=20000 // hvd.size()),
        ]
        config = tf.ConfigProto()
        config.gpu_options.visible_device_list = str(hvd.local_rank())
        checkpoint_dir = "./checkpoints" if hvd.rank() == 0 else None
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=checkpoint_dir, hooks=hooks, config=config
        ) as session:
            coordinator = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(sess=session, coord=coordinator)
            while not session.should_stop():
                _, value = session.run([train_op, loss])
            coordinator.request_stop()
            coordinator.join(threads)


if __name__ == "__main__":
    tf.app.run()
"""

TAPE = """\
import horovod.tensorflow as h
import tensorflow as tf

h.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[h.local_rank()], "GPU")

EPOCHS, BATCH, PICTURES = 10, 32, 1281167
steps = PICTURES // (BATCH * h.size())


def parse(record):
    example = tf.io.parse_single_example(record, {"image": tf.io.FixedLenFeature([], tf.string)})
    image = tf.io.decode_jpeg(example["image"])
    turn = tf.random.uniform([], -0.1, 0.1)
    return tf.image.random_flip_left_right(image), turn


files = tf.data.Dataset.list_files("train-*", shuffle=False).shard(h.size(), h.rank())
dataset = files.interleave(tf.data.TFRecordDataset).shuffle(1000, seed=5)
dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE).repeat().batch(BATCH)

model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(1000)])
loss_function = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.SGD(0.1 * h.size(), momentum=0.9)


@tf.function
def train_step(images, labels, first):
    with tf.GradientTape() as tape:
        loss = loss_function(labels, model(images, training=True))
    tape = h.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    if first:
        h.broadcast_variables(model.variables, root_rank=0)
        h.broadcast_variables(optimizer.variables, root_rank=0)
    return loss


def validate(data):
    right = tf.constant(0.0)
    count = tf.constant(0.0)
    for images, labels in data:
        guesses = tf.argmax(model(images, training=False), 1)
        right += tf.reduce_sum(tf.cast(guesses == labels, tf.float32))
        count += len(labels)
    return h.allreduce(right, op=h.Sum) / h.allreduce(count, op=h.Sum)


val = tf.data.Dataset.list_files("validation-*", shuffle=False).shard(h.size(), h.rank())
saver = tf.train.Checkpoint(model=model, optimizer=optimizer)
for step, (images, labels) in enumerate(dataset.take(EPOCHS * steps)):
    if step < 5 * steps:
        warmup = (step + 1) / (5 * steps)
        optimizer.learning_rate.assign(0.1 * (1 + (h.size() - 1) * warmup))
    loss = train_step(images, labels, step == 0)
    if step % 10 == 0 and h.rank() == 0:
        print("step", step, "loss", float(loss))
    if step % steps == 0:
        accuracy = validate(val)
        if h.rank() == 0:
            print("top-1", float(accuracy))
            saver.save("checkpoints/model")
"""

KERAS = """\
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow.keras as hvd
import tensorflow as tf

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
tf.keras.utils.set_random_seed(1 + hvd.rank())

(pictures, labels), (val_pictures, val_labels) = tf.keras.datasets.cifar10.load_data()
dataset = tf.data.Dataset.from_tensor_slices((pictures, labels)).shard(hvd.size(), hvd.rank())
dataset = dataset.shuffle(10000).repeat().batch(128)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(32, 3, activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10),
    ]
)
optimizer = tf.keras.optimizers.SGD(0.01 * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer)
model.compile(
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    optimizer=optimizer,
    metrics=["accuracy"],
)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.01 * hvd.size(), warmup_epochs=3),
]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint("checkpoint-{epoch}.h5"))
model.fit(
    dataset,
    steps_per_epoch=len(labels) // 128 // hvd.size(),
    epochs=20,
    validation_data=(val_pictures, val_labels),
    callbacks=callbacks,
    verbose=2 if hvd.rank() == 0 else 0,
)
"""

TORCH = """\
import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms


def metric_sum(value):
    return hvd.allreduce(torch.tensor(value), op=hvd.Sum).item()


class Trainer:
    def __init__(self, folder, epochs):
        self.epochs = epochs
        prepare = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
        data = datasets.ImageFolder(folder + "/train", prepare)
        self.sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
        self.loader = DataLoader(data, 32, sampler=self.sampler)
        held = datasets.ImageFolder(folder + "/val", transforms.ToTensor())
        part = DistributedSampler(held, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
        self.val_loader = DataLoader(held, 32, sampler=part)
        self.model = models.resnet50().cuda()
        self.warmup_epochs = 5
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0125 * hvd.size(), momentum=0.9)
        self.optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=self.model.named_parameters()
        )
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)

    def rate(self, epoch):
        risen = min(1.0, (epoch + 1) / self.warmup_epochs)
        return 0.0125 * (1 + (hvd.size() - 1) * risen) * 0.1 ** (epoch // 30)

    def train_epoch(self, epoch):
        self.model.train()
        self.sampler.set_epoch(epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(epoch)
        for step, (images, labels) in enumerate(self.loader):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(images.cuda()), labels.cuda())
            loss.backward()
            self.optimizer.step()
            if step % 10 == 0 and hvd.rank() == 0:
                print(f"epoch {epoch} step {step} loss {loss.item()}")

    def evaluate(self):
        self.model.eval()
        right, count = 0.0, 0.0
        with torch.no_grad():
            for images, labels in self.val_loader:
                guesses = self.model(images.cuda()).argmax(1)
                right += (guesses == labels.cuda()).sum().item()
                count += len(labels)
        return metric_sum(right) / metric_sum(count)

    def run(self):
        for epoch in range(self.epochs):
            self.train_epoch(epoch)
            top1 = self.evaluate()
            if hvd.rank() == 0:
                print(f"epoch {epoch} top-1 {top1}")
                torch.save(self.model.state_dict(), f"model-{epoch}.pt")


def main():
    hvd.init()
    torch.cuda.set_device(hvd.local_rank())
    torch.manual_seed(1 + hvd.rank())
    Trainer("data", 90).run()


if __name__ == "__main__":
    main()
"""

DDP = """\
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Parallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, models, transforms


def is_main():
    return dist.get_rank() == 0


def groups(model):
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": decayed, "weight_decay": 5e-5}, {"params": plain, "weight_decay": 0.0}]


def train(model, loader, criterion, optimizer, scaler, epoch):
    model.train()
    for step, (images, labels) in enumerate(loader):
        images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16):
            loss = criterion(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 100 == 0 and is_main():
            print("epoch", epoch, "step", step, "loss", loss.item())


@torch.no_grad()
def validate(model, loader):
    model.eval()
    sums = torch.zeros(2, device="cuda")
    for images, labels in loader:
        guesses = model(images.cuda()).argmax(1)
        sums[0] += (guesses == labels.cuda()).sum()
        sums[1] += len(labels)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(1 + dist.get_rank())

    prepare = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()])
    train_data = datasets.ImageFolder(os.path.join(args.data, "train"), prepare)
    sampler = DistributedSampler(train_data, drop_last=True)
    train_loader = DataLoader(train_data, args.batch_size, sampler=sampler, num_workers=4)
    val_data = datasets.ImageFolder(os.path.join(args.data, "val"), prepare)
    val_loader = DataLoader(val_data, 64, sampler=DistributedSampler(val_data, shuffle=False))

    model = Parallel(models.resnet50().cuda())
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(groups(model), lr=args.lr * dist.get_world_size(), momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    scheduler = SequentialLR(
        optimizer,
        [LinearLR(optimizer, 0.1, total_iters=5), CosineAnnealingLR(optimizer, 85)],
        milestones=[5],
    )
    for epoch in range(90):
        sampler.set_epoch(epoch)
        train(model, train_loader, criterion, optimizer, scaler, epoch)
        scheduler.step()
        top1 = validate(model, val_loader)
        if is_main():
            print("epoch", epoch, "top-1", top1)
            torch.save({"model": model.module.state_dict(), "epoch": epoch}, "checkpoint.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""

RIGHT = {"feed": FEED, "queue": QUEUE, "tape": TAPE, "keras": KERAS, "torch": TORCH, "ddp": DDP}
