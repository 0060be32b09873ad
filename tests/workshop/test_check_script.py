"""`rn50 workshop check-script`: right scripts pass, and each mistake put into one is told.

Every case starts from a script in which all is there, changes one thing, and expects exactly the
findings named, on the lines where the change was made.
"""

# ruff: noqa: E501  (lines of scripts, as they are written there)
from __future__ import annotations

import ast
import json
import os
import textwrap
from pathlib import Path

import pytest

from rn50lib import cli
from tests.conftest import ROOT
from tests.workshop.training_scripts import RIGHT
from workshop.check_script import check
from workshop.check_script.remedies import TOPICS

DENSENET = ROOT / "exercises" / "densenet"
PRESENT, MISSING, MISTAKE, CANNOT = "present", "missing", "mistake", "cannot tell"


def found(path: Path, source: str) -> list[tuple[str, str, str]]:
    """(topic, kind, the line's text) of what is not as it should be."""
    path.write_text(source, encoding="utf-8")
    lines = ["", *source.splitlines()]
    return [(f.topic, f.kind, lines[f.line or 0].strip()) for f in check(path) if f.kind != PRESENT]


def changed(script: str, *changes: tuple[str, str]) -> str:
    source = RIGHT[script]
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    ast.parse(source)
    return source


# --- right scripts --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_script_has_no_finding(tmp_path, name):
    source = RIGHT[name]
    path = tmp_path / f"{name}.py"
    assert found(path, source) == []
    assert [f.topic for f in check(path)] == list(TOPICS)


@pytest.mark.parametrize("name", ["train_horovod.py", "train_tfrecord.py"])
def test_the_solutions_have_everything(name):
    findings = check(DENSENET / "solutions" / name)
    assert [(f.topic, f.kind) for f in findings] == [(topic, PRESENT) for topic in TOPICS]


def test_the_solution_is_told_where_it_does_what(tmp_path):
    lines = ["", *(DENSENET / "solutions" / "train_horovod.py").read_text().splitlines()]
    at = {
        f.topic: lines[f.line or 0].strip() for f in check(DENSENET / "solutions/train_horovod.py")
    }
    assert at["start"] == "hvd.init()"
    assert at["one GPU each"].startswith("tf.config.set_visible_devices(gpus[hvd.local_rank()]")
    assert at["learning rate x size"].startswith("optimizer.learning_rate.assign(learning_rate(")
    assert at["gradient exchange"].startswith("gradients = hvd.grouped_allreduce(")
    assert at["broadcast from rank 0"].startswith("variable.assign(hvd.broadcast(")
    assert at["sharding"].startswith("chosen = [pictures[i] for i in order[first :")
    assert at["seeds"].startswith("tf.keras.utils.set_random_seed(flags.seed + rank)")
    assert at["checkpoints"] == "manager.save()"
    assert at["steps // size"].startswith("steps_per_epoch = len(pictures) // global_batch")


def test_the_start_of_the_exercise_lacks_everything():
    findings = {f.topic: f.kind for f in check(DENSENET / "train_single.py")}
    assert findings.pop("validation") == PRESENT  # it has none
    assert findings == {topic: MISSING for topic in TOPICS if topic != "validation"}


def test_one_process_with_torch_lacks_everything(tmp_path):
    source = """
        import torch
        from torch.utils.data import DataLoader
        from torchvision import datasets, models
        torch.manual_seed(0)
        loader = DataLoader(datasets.ImageFolder("train"), 32, shuffle=True)
        held = DataLoader(datasets.ImageFolder("val"), 32)
        model = models.resnet50().to("cuda:0")
        criterion = torch.nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for epoch in range(90):
            for images, labels in loader:
                optimizer.zero_grad()
                loss = criterion(model(images.cuda()), labels.cuda())
                loss.backward()
                optimizer.step()
            print(loss.item())
            model.eval()
            right = sum((model(x.cuda()).argmax(1) == y.cuda()).sum() for x, y in held)
            torch.save(model.state_dict(), "model.pt")
    """
    findings = found(tmp_path / "one.py", textwrap.dedent(source))
    assert {topic: kind for topic, kind, _ in findings} == dict.fromkeys(TOPICS, MISSING)
    lines = {topic: line for topic, _, line in findings}
    assert lines["one GPU each"] == 'model = models.resnet50().to("cuda:0")'
    assert lines["learning rate x size"] == "optimizer = torch.optim.SGD(model.parameters(), 0.1)"
    assert lines["gradient exchange"] == "loss.backward()"
    assert lines["checkpoints"] == 'torch.save(model.state_dict(), "model.pt")'
    assert lines["logs"] == "print(loss.item())"
    assert lines["validation"] == "model.eval()"


def test_processes_that_spawn_started_take_the_gpu_of_their_number(tmp_path):
    source = changed(
        "ddp",
        (
            "def main():\n",
            "def worker(gpu, args):\n    args.gpu = gpu\n    run(args)\n\n\ndef run(args):\n",
        ),
        ('int(os.environ["LOCAL_RANK"])', "args.gpu"),
        ("    main()\n", "    torch.multiprocessing.spawn(worker, nprocs=8, args=(None,))\n"),
    )
    assert found(tmp_path / "train.py", source) == []


def test_a_batch_that_is_divided_needs_no_other_rate(tmp_path):
    source = changed(
        "ddp",
        (
            "args = parser.parse_args()\n",
            "args = parser.parse_args()\n    world = dist.get_world_size\n",
        ),
        ("train_data, args.batch_size,", "train_data, args.batch_size // dist.get_world_size(),"),
        ("lr=args.lr * dist.get_world_size()", "lr=args.lr"),
        ("LinearLR(optimizer, 0.1, total_iters=5), ", ""),
        ("LinearLR, ", ""),
    )
    assert found(tmp_path / "train.py", source) == []


def test_cores_that_are_shared_out_are_neither_data_nor_steps(tmp_path):
    source = changed(
        "ddp",
        ("sampler=sampler, num_workers=4", "shuffle=True"),
        ("sampler=DistributedSampler(val_data, shuffle=False)", "shuffle=False"),
        ("    sampler = DistributedSampler(train_data, drop_last=True)\n", ""),
        ("        sampler.set_epoch(epoch)\n", ""),
        (
            "    criterion = nn",
            "    cores = sorted(os.sched_getaffinity(0))\n"
            "    each, rank = len(cores) // dist.get_world_size(), dist.get_rank()\n"
            "    os.sched_setaffinity(0, cores[rank * each : (rank + 1) * each])\n    criterion = nn",
        ),
    )
    findings = found(tmp_path / "train.py", source)
    assert [(topic, kind) for topic, kind, _ in findings] == [
        ("sharding", MISSING),
        ("steps // size", MISSING),
    ]


# --- each change taken out ------------------------------------------------------------------------

HOOK = "            hvd.BroadcastGlobalVariablesHook(0),\n"
PIN1 = "        config.gpu_options.visible_device_list = str(hvd.local_rank())\n"
OPTIMIZER1 = "tower_optimizer = tf.train.RMSPropOptimizer(rate)"
MINIMIZE = "train_op = global_optimizer.minimize(loss=loss, global_step=global_step)"
SLICES = (
    "    pictures, classes = pictures[hvd.rank() :: hvd.size()], "
    "classes[hvd.rank() :: hvd.size()]\n"
)
CASES = {
    # the slides' recipe 1, without each of its changes
    "no init": (
        "feed",
        [("    hvd.init()\n", "")],
        [("start", MISSING, "import horovod.tensorflow as hvd")],
    ),
    "no pin": ("feed", [(PIN1, "")], [("one GPU each", MISSING, "")]),
    "rate not scaled": (
        "feed",
        [
            (OPTIMIZER1, "tower_optimizer = tf.train.RMSPropOptimizer(0.001)"),
            ("(hvd.size() - 1) * warmup", "warmup"),
        ],
        [
            ("learning rate x size", MISSING, "tower_optimizer = tf.train.RMSPropOptimizer(0.001)"),
            ("warm-up", MISSING, "tower_optimizer = tf.train.RMSPropOptimizer(0.001)"),
        ],
    ),
    "no distributed optimizer": (
        "feed",
        [
            (
                "global_optimizer = hvd.DistributedOptimizer(tower_optimizer)",
                "global_optimizer = tower_optimizer",
            )
        ],
        [("gradient exchange", MISSING, MINIMIZE)],
    ),
    "no broadcast": ("feed", [(HOOK, "")], [("broadcast from rank 0", MISSING, "")]),
    "no shard": (
        "feed",
        [(SLICES, "")],
        [("sharding", MISSING, 'pictures.append(np.load(folder + "/" + name))')],
    ),
    "checkpoints on every rank": (
        "feed",
        [('"./checkpoints" if hvd.rank() == 0 else None', '"./checkpoints"')],
        [("checkpoints", MISSING, "with tf.train.MonitoredTrainingSession(")],
    ),
    "logs on every rank": (
        "feed",
        [("if hvd.rank() == 0:\n            hooks", "if True:\n            hooks")],
        [
            (
                "logs",
                MISSING,
                'hooks.append(tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=10))',
            )
        ],
    ),
    "steps of one process": (
        "feed",
        [("20000 // hvd.size()", "20000")],
        [("steps // size", MISSING, "tf.train.StopAtStepHook(last_step=20000),")],
    ),
    # the mistakes on the slides
    "no warm-up": (
        "feed",
        [(OPTIMIZER1, "tower_optimizer = tf.train.RMSPropOptimizer(0.001 * hvd.size())")],
        [("warm-up", MISTAKE, "tower_optimizer = tf.train.RMSPropOptimizer(0.001 * hvd.size())")],
    ),
    "a warm-up that is set and not used": (
        "feed",
        [
            (
                OPTIMIZER1,
                "warmup_steps = 500\n        tower_optimizer = tf.train.RMSPropOptimizer(0.001 * hvd.size())",
            ),
            ("rate = 0.001 * (1 + (hvd.size() - 1) * warmup)", "rate = 0.001"),
            ("warmup = tf.minimum", "risen = tf.minimum"),
        ],
        [("warm-up", MISTAKE, "tower_optimizer = tf.train.RMSPropOptimizer(0.001 * hvd.size())")],
    ),
    "feed keys that match no tensor": (
        "feed",
        [
            (
                "{images: batch_x, labels: batch_y, training: True}",
                '{"images": batch_x, "labels:0": batch_y, training: True}',
            )
        ],
        [("feeds", MISTAKE, 'feed = {"images": batch_x, "labels:0": batch_y, training: True}')],
    ),
    "feed keys that name an operation": (
        "feed",
        [("training: True}", '"training_flag": True}')],
        [("feeds", MISTAKE, 'feed = {images: batch_x, labels: batch_y, "training_flag": True}')],
    ),
    "a placeholder never fed": (
        "feed",
        [(", training: True}", "}")],
        [("feeds", MISTAKE, 'training = tf.placeholder(tf.bool, name="training_flag")')],
    ),
    "step never counted": (
        "feed",
        [("                step += 1\n", "")],
        [
            (
                "training loop",
                MISTAKE,
                "batch_x = pictures[step * batch_size : (step + 1) * batch_size]",
            )
        ],
    ),
    "a queue that never fills": (
        "queue",
        [("capacity=400", "capacity=30")],
        [("queue", MISTAKE, "return tf.train.shuffle_batch(")],
    ),
    "one seed on every rank": (
        "queue",
        [("seed=42 + hvd.rank()", "seed=42"), ("seed=43 + hvd.rank()", "seed=42")],
        [("seeds", MISTAKE, "image = tf.image.random_flip_left_right(image, seed=42)")],
    ),
    "an angle drawn once": (
        "queue",
        [
            ("tf.random_uniform([], -10.0, 10.0)", "np.random.random() * 20 - 10"),
            ("import tensorflow as tf\n", "import numpy as np\nimport tensorflow as tf\n"),
        ],
        [("augmentation", MISTAKE, "degrees = np.random.random() * 20 - 10")],
    ),
    "stop and join in the loop": (
        "queue",
        [
            (
                "            coordinator.request_stop()\n            coordinator.join(threads)\n",
                "                coordinator.request_stop()\n                coordinator.join(threads)\n"
                "                session.close()\n",
            )
        ],
        [("training loop", MISTAKE, "coordinator.request_stop()")],
    ),
    "close in the loop": (
        "queue",
        [
            (
                "session.run([train_op, loss])",
                "session.run([train_op, loss])\n                session.close()",
            )
        ],
        [("training loop", MISTAKE, "session.close()")],
    ),
    "a queue of files that all ranks read": (
        "queue",
        [("FILES[hvd.rank() :: hvd.size()]", "FILES")],
        [("sharding", MISSING, "queue = tf.train.string_input_producer(FILES, num_epochs=10)")],
    ),
    "recipe 2 without its flag": (
        "queue",
        [
            (
                'tf.placeholder_with_default(True, [], name="training_flag")',
                'tf.placeholder(tf.bool, name="training_flag")',
            ),
            ("session.run([train_op, loss])", "session.run([train_op, loss], feed_dict={})"),
        ],
        [("feeds", MISTAKE, 'training = tf.placeholder(tf.bool, name="training_flag")')],
    ),
    "recipe 2 without its flag, and no feed at all": (
        "queue",
        [
            (
                'tf.placeholder_with_default(True, [], name="training_flag")',
                'tf.placeholder(tf.bool, name="training_flag")',
            )
        ],
        [("feeds", MISTAKE, 'training = tf.placeholder(tf.bool, name="training_flag")')],
    ),
    "recipe 2 feeds what it has not": (
        "queue",
        [
            (
                "_, value = session.run([train_op, loss])",
                "batch, _ = session.run([labels, train_op], feed_dict={training_images: batch})",
            )
        ],
        [
            (
                "feeds",
                MISTAKE,
                "batch, _ = session.run([labels, train_op], feed_dict={training_images: batch})",
            )
        ]
        * 2,
    ),
    # other workshops' mistakes
    "Keras 3": (
        "keras",
        [('os.environ["TF_USE_LEGACY_KERAS"] = "1"\n', "")],
        [("Keras", MISTAKE, "optimizer = hvd.DistributedOptimizer(optimizer)")],
    ),
    "Keras 2 asked for too late": (
        "keras",
        [
            ('os.environ["TF_USE_LEGACY_KERAS"] = "1"\n', ""),
            ("hvd.init()", 'hvd.init()\nos.environ["TF_USE_LEGACY_KERAS"] = "1"'),
        ],
        [("Keras", MISTAKE, 'os.environ["TF_USE_LEGACY_KERAS"] = "1"')],
    ),
    "double softmax, Keras": (
        "keras",
        [("Dense(10)", 'Dense(10, activation="softmax")')],
        [("loss", MISTAKE, 'tf.keras.layers.Dense(10, activation="softmax"),')],
    ),
    "double softmax, TensorFlow 1": (
        "feed",
        [("_v2(logits=logits,", "_v2(logits=tf.nn.softmax(logits),")],
        [
            (
                "loss",
                MISTAKE,
                "tf.nn.softmax_cross_entropy_with_logits_v2(logits=tf.nn.softmax(logits), labels=labels)",
            )
        ],
    ),
    "double softmax, torch": (
        "ddp",
        [
            (
                "loss = criterion(model(images), labels)",
                "loss = criterion(torch.softmax(model(images), 1), labels)",
            )
        ],
        [("loss", MISTAKE, "loss = criterion(torch.softmax(model(images), 1), labels)")],
    ),
    "double softmax at the end of a network": (
        "ddp",
        [
            (
                "Parallel(models.resnet50().cuda())",
                "Parallel(nn.Sequential(models.resnet50(), nn.Softmax(1)).cuda())",
            )
        ],
        [
            (
                "loss",
                MISTAKE,
                "model = Parallel(nn.Sequential(models.resnet50(), nn.Softmax(1)).cuda())",
            )
        ],
    ),
    "double softmax, functional": (
        "torch",
        [
            (
                "F.cross_entropy(self.model(images.cuda()),",
                "F.cross_entropy(F.softmax(self.model(images.cuda()), 1),",
            )
        ],
        [
            (
                "loss",
                MISTAKE,
                "loss = F.cross_entropy(F.softmax(self.model(images.cuda()), 1), labels.cuda())",
            )
        ],
    ),
    "two steps under a scaler": (
        "ddp",
        [("scaler.update()", "scaler.update()\n        optimizer.step()")],
        [("optimizer", MISTAKE, "optimizer.step()")],
    ),
    "decay by name": (
        "ddp",
        [
            (
                "[p for p in model.parameters() if p.ndim > 1]",
                '[p for n, p in model.named_parameters() if "bn" not in n]',
            )
        ],
        [
            (
                "weight decay",
                MISTAKE,
                'decayed = [p for n, p in model.named_parameters() if "bn" not in n]',
            )
        ],
    ),
    "version 1 of Keras": (
        "tape",
        [
            (
                "tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(1000)])",
                "tf.keras.applications.ResNet50(weights=None)",
            )
        ],
        [("network", MISTAKE, "model = tf.keras.applications.ResNet50(weights=None)")],
    ),
    "version 1 by hand": (
        "ddp",
        [
            (
                "def groups(model):",
                "def bottleneck(c, w, stride):\n    return nn.Sequential(\n"
                "        nn.Conv2d(c, w, 1, stride=stride),\n"
                "        nn.Conv2d(w, w, 3, padding=1),\n"
                "        nn.Conv2d(w, 4 * w, 1),\n    )\n\n\ndef groups(model):",
            )
        ],
        [("network", MISTAKE, "nn.Conv2d(c, w, 1, stride=stride),")],
    ),
    "mean of means": (
        "torch",
        [("return metric_sum(right) / metric_sum(count)", "return metric_sum(right / count)")],
        [("validation", MISTAKE, "return hvd.allreduce(torch.tensor(value), op=hvd.Sum).item()")],
    ),
    "mean of means, divided in place": (
        "torch",
        [
            (
                "        return metric_sum(right) / metric_sum(count)",
                "        right /= count\n        return metric_sum(right)",
            )
        ],
        [("validation", MISTAKE, "return hvd.allreduce(torch.tensor(value), op=hvd.Sum).item()")],
    ),
    "mean of means, DDP": (
        "ddp",
        [
            ("dist.all_reduce(sums)", "sums = sums[0] / sums[1]\n    dist.all_reduce(sums)"),
            ("return (sums[0] / sums[1]).item()", "return sums.item()"),
        ],
        [("validation", MISTAKE, "dist.all_reduce(sums)")],
    ),
    "rank 0 alone validates": (
        "tape",
        [
            (
                "accuracy = validate(val)\n        if h.rank() == 0:",
                "if h.rank() == 0:\n            accuracy = validate(val)",
            )
        ],
        [("validation", MISTAKE, "accuracy = validate(val)")],
    ),
    "rank 0 alone validates and nobody sums": (
        "ddp",
        [
            (
                "        top1 = validate(model, val_loader)\n        if is_main():\n",
                "        if is_main():\n            top1 = validate(model, val_loader)\n",
            ),
            ("    dist.all_reduce(sums)\n", ""),
        ],
        [("validation", MISTAKE, "top1 = validate(model, val_loader)")],
    ),
    "no sums over ranks": (
        "ddp",
        [("    dist.all_reduce(sums)\n", "")],
        [("validation", MISSING, "model.eval()")],
    ),
    "unequal steps": (
        "tape",
        [("PICTURES // (BATCH * h.size())", "100"), ("dataset.take(EPOCHS * steps)", "dataset")],
        [
            (
                "steps // size",
                MISTAKE,
                'files = tf.data.Dataset.list_files("train-*", shuffle=False).shard(h.size(), h.rank())',
            )
        ],
    ),
    "the same seed, torch": (
        "torch",
        [("torch.manual_seed(1 + hvd.rank())", "torch.manual_seed(1)")],
        [("seeds", MISTAKE, "torch.manual_seed(1)")],
    ),
    "the same seed, Keras": (
        "keras",
        [("set_random_seed(1 + hvd.rank())", "set_random_seed(1)")],
        [("seeds", MISTAKE, "tf.keras.utils.set_random_seed(1)")],
    ),
    # each change taken out of today's scripts
    "DDP without a process group": (
        "ddp",
        [('    dist.init_process_group("nccl")\n', "")],
        [("start", MISSING, "")],
    ),
    "DDP without a GPU each": (
        "ddp",
        [('    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n', "")],
        [("one GPU each", MISSING, "")],
    ),
    "DDP on one GPU": (
        "ddp",
        [('int(os.environ["LOCAL_RANK"])', "0")],
        [("one GPU each", MISTAKE, "torch.cuda.set_device(0)")],
    ),
    "a GPU by rank": (
        "ddp",
        [('int(os.environ["LOCAL_RANK"])', "dist.get_rank()")],
        [("one GPU each", MISTAKE, "torch.cuda.set_device(dist.get_rank())")],
    ),
    "a GPU by rank, TensorFlow": (
        "tape",
        [("gpus[h.local_rank()]", "gpus[h.rank()]")],
        [("one GPU each", MISTAKE, 'tf.config.set_visible_devices(gpus[h.rank()], "GPU")')],
    ),
    "DDP is not there": (
        "ddp",
        [("Parallel(models.resnet50().cuda())", "models.resnet50().cuda()")],
        [
            ("gradient exchange", MISSING, "scaler.scale(loss).backward()"),
            ("broadcast from rank 0", MISSING, ""),
        ],
    ),
    "the bare model is trained": (
        "ddp",
        [
            (
                "    model = Parallel(models.resnet50().cuda())\n",
                "    model = models.resnet50().cuda()\n    ddp = Parallel(model)\n",
            ),
            (
                "        train(model, train_loader, criterion, optimizer, scaler, epoch)\n",
                "        for images, labels in train_loader:\n"
                "            criterion(model(images), labels).backward()\n            optimizer.step()\n",
            ),
        ],
        [("gradient exchange", MISTAKE, "criterion(model(images), labels).backward()")],
    ),
    "the bare optimizer is used": (
        "feed",
        [("global_optimizer.minimize", "tower_optimizer.minimize")],
        [
            (
                "gradient exchange",
                MISTAKE,
                "train_op = tower_optimizer.minimize(loss=loss, global_step=global_step)",
            )
        ],
    ),
    "no sampler": (
        "ddp",
        [("sampler=sampler, num_workers=4", "shuffle=True, num_workers=4")],
        [
            (
                "sharding",
                MISSING,
                "train_loader = DataLoader(train_data, args.batch_size, shuffle=True, num_workers=4)",
            )
        ],
    ),
    "no set_epoch": (
        "ddp",
        [("        sampler.set_epoch(epoch)\n", "")],
        [("sharding", MISTAKE, "sampler = DistributedSampler(train_data, drop_last=True)")],
    ),
    "a sampler that Horovod does not tell": (
        "torch",
        [
            (
                "DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())",
                "DistributedSampler(data)",
            )
        ],
        [("sharding", MISTAKE, "self.sampler = DistributedSampler(data)")],
    ),
    "shard the wrong way round": (
        "tape",
        [
            (
                'files = tf.data.Dataset.list_files("train-*", shuffle=False).shard(h.size(), h.rank())',
                'files = tf.data.Dataset.list_files("train-*", shuffle=False).shard(h.rank(), h.size())',
            )
        ],
        [
            (
                "sharding",
                MISTAKE,
                'files = tf.data.Dataset.list_files("train-*", shuffle=False).shard(h.rank(), h.size())',
            )
        ],
    ),
    "part 0 on every rank": (
        "keras",
        [(".shard(hvd.size(), hvd.rank())", ".shard(8, 0)")],
        [
            (
                "sharding",
                MISTAKE,
                "dataset = tf.data.Dataset.from_tensor_slices((pictures, labels)).shard(8, 0)",
            )
        ],
    ),
    "part by local rank": (
        "keras",
        [(".shard(hvd.size(), hvd.rank())", ".shard(hvd.size(), hvd.local_rank())")],
        [
            (
                "sharding",
                MISTAKE,
                "dataset = tf.data.Dataset.from_tensor_slices((pictures, labels)).shard(hvd.size(), hvd.local_rank())",
            )
        ],
    ),
    "only the validation is sharded": (
        "tape",
        [
            (
                'list_files("train-*", shuffle=False).shard(h.size(), h.rank())',
                'list_files("train-*", shuffle=False)',
            )
        ],
        [("sharding", MISSING, 'files = tf.data.Dataset.list_files("train-*", shuffle=False)')],
    ),
    "a callback given to nobody": (
        "keras",
        [
            ("    hvd.callbacks.BroadcastGlobalVariablesCallback(0),\n", ""),
            (
                "callbacks = [",
                "start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)\ncallbacks = [",
            ),
        ],
        [
            (
                "broadcast from rank 0",
                MISTAKE,
                "start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)",
            )
        ],
    ),
    "a broadcast on rank 0 alone": (
        "torch",
        [
            (
                "        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)\n",
                "        if hvd.rank() == 0:\n"
                "            hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)\n",
            )
        ],
        [
            (
                "broadcast from rank 0",
                MISTAKE,
                "hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)",
            )
        ],
    ),
    "a broadcast from another rank": (
        "tape",
        [("model.variables, root_rank=0", "model.variables, root_rank=1")],
        [("broadcast from rank 0", MISTAKE, "h.broadcast_variables(model.variables, root_rank=1)")],
    ),
    "size before init": (
        "tape",
        [("h.init()\n", ""), ("loss_function =", "h.init()\nloss_function =")],
        [("start", MISTAKE, 'tf.config.set_visible_devices(gpus[h.local_rank()], "GPU")')],
    ),
    "rate divided": (
        "ddp",
        [("lr=args.lr * dist", "lr=args.lr / dist")],
        [
            (
                "learning rate x size",
                MISTAKE,
                "optimizer = torch.optim.SGD(groups(model), lr=args.lr / dist.get_world_size(), momentum=0.9)",
            )
        ],
    ),
    "everybody saves": (
        "ddp",
        [("            torch.save(", "        torch.save(")],
        [
            (
                "checkpoints",
                MISSING,
                'torch.save({"model": model.module.state_dict(), "epoch": epoch}, "checkpoint.pt")',
            )
        ],
    ),
    "everybody prints": (
        "torch",
        [("if step % 10 == 0 and hvd.rank() == 0:", "if step % 10 == 0:")],
        [("logs", MISSING, 'print(f"epoch {epoch} step {step} loss {loss.item()}")')],
    ),
    "fit prints on every rank": (
        "keras",
        [("    verbose=2 if hvd.rank() == 0 else 0,\n", "")],
        [("logs", MISSING, "model.fit(")],
    ),
    "no warm-up, DDP": (
        "ddp",
        [("LinearLR(optimizer, 0.1, total_iters=5), ", ""), ("LinearLR, ", "")],
        [
            (
                "warm-up",
                MISTAKE,
                "optimizer = torch.optim.SGD(groups(model), lr=args.lr * dist.get_world_size(), momentum=0.9)",
            )
        ],
    ),
    "an angle drawn once, tf.data": (
        "tape",
        [
            ("tf.random.uniform([], -0.1, 0.1)", "random.uniform(-0.1, 0.1)"),
            ("import tensorflow as tf\n", "import tensorflow as tf\nimport random\n"),
        ],
        [("augmentation", MISTAKE, "turn = random.uniform(-0.1, 0.1)")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_change_is_told_and_nothing_else(tmp_path, case):
    script, changes, expected = CASES[case]
    assert found(tmp_path / "train.py", changed(script, *changes)) == expected


# --- the slides as they were shown ----------------------------------------------------------------


def test_recipe_1_as_on_the_slides(tmp_path):
    """All its mistakes at once; the five changes themselves are there."""
    slides = changed(
        "feed",
        (SLICES, ""),
        ("                step += 1\n", ""),
        (OPTIMIZER1, "tower_optimizer = tf.train.RMSPropOptimizer(0.001 * hvd.size())"),
        (
            "{images: batch_x, labels: batch_y, training: True}",
            '{"images": batch_x, "labels": batch_y, "training_flag": True}',
        ),
    )
    findings = found(tmp_path / "train.py", slides)
    assert [(topic, kind) for topic, kind, _ in findings] == [
        ("sharding", MISSING),
        ("warm-up", MISTAKE),
        ("feeds", MISTAKE),
        ("feeds", MISTAKE),
        ("feeds", MISTAKE),
        ("training loop", MISTAKE),
    ]


def test_recipe_2_as_on_the_slides(tmp_path):
    slides = changed(
        "queue",
        ("FILES[hvd.rank() :: hvd.size()]", "FILES"),
        ("seed=42 + hvd.rank()", "seed=42"),
        ("seed=43 + hvd.rank()", "seed=42"),
        ("tf.random_uniform([], -10.0, 10.0)", "np.random.random() * 20 - 10"),
        ("import tensorflow as tf\n", "import numpy as np\nimport tensorflow as tf\n"),
        ("capacity=400", "capacity=30"),
        ("0.001 * hvd.size() * warmup", "0.001 * hvd.size()"),
        ('placeholder_with_default(True, [], name="training_flag")', "placeholder(tf.bool)"),
        (
            "            coordinator.request_stop()\n            coordinator.join(threads)\n",
            "                coordinator.request_stop()\n"
            "                coordinator.join(threads)\n"
            "                session.close()\n",
        ),
    )
    findings = found(tmp_path / "train.py", slides)
    assert [(topic, kind) for topic, kind, _ in findings] == [
        ("sharding", MISSING),
        ("seeds", MISTAKE),
        ("warm-up", MISTAKE),
        ("feeds", MISTAKE),
        ("queue", MISTAKE),
        ("training loop", MISTAKE),
        ("augmentation", MISTAKE),
    ]


# --- what cannot be told --------------------------------------------------------------------------


def told(tmp_path: Path, source: str) -> dict[str, tuple[str, str]]:
    path = tmp_path / "hides.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return {f.topic: (f.kind, f.what) for f in check(path)}


def test_data_from_another_file_is_said_to_be_out_of_sight(tmp_path):
    source = changed(
        "ddp",
        ("import torch\n", "import torch\nfrom pipeline import make_data\n"),
        (
            "train_loader = DataLoader(train_data, args.batch_size, sampler=sampler, num_workers=4)",
            "train_loader = make_data(args.data)",
        ),
        ("        sampler.set_epoch(epoch)\n", ""),
        ("    sampler = DistributedSampler(train_data, drop_last=True)\n", ""),
    )
    kind, what = told(tmp_path, source)["sharding"]
    assert (kind, what) == (CANNOT, "the data comes from `make_data`, defined elsewhere")
    kind, what = told(
        tmp_path, source.replace("make_data(args.data)", "make_data(dist.get_rank())")
    )["sharding"]
    assert kind == CANNOT and what.endswith("defined elsewhere, and is told the rank")


def test_a_rate_and_a_schedule_from_another_file(tmp_path):
    source = changed(
        "ddp",
        ("import torch\n", "import torch\nimport recipe\n"),
        ("lr=args.lr * dist.get_world_size()", "lr=recipe.learning_rate(args)"),
        ("LinearLR(optimizer, 0.1, total_iters=5), ", ""),
        ("LinearLR, ", ""),
    )
    findings = told(tmp_path, source)
    assert findings["learning rate x size"][0] == findings["warm-up"][0] == CANNOT
    assert "`recipe.learning_rate`" in findings["learning rate x size"][1]


def test_a_loop_in_another_file_leaves_everything_open(tmp_path):
    findings = told(
        tmp_path,
        """
        import horovod.torch as hvd
        import engine
        from mylib import *
        hvd.init()
        engine.train(make_model(), "data")
        """,
    )
    assert findings["start"][0] == PRESENT
    others = {kind for topic, (kind, _) in findings.items() if topic not in ("start", "seeds")}
    assert others == {CANNOT}
    assert "`mylib`" in findings["broadcast from rank 0"][1]


def test_setup_in_another_file(tmp_path):
    source = changed(
        "ddp",
        ("import torch\n", "import torch\nfrom helpers import setup_distributed\n"),
        ('dist.init_process_group("nccl")', "setup_distributed()"),
    )
    kind, what = told(tmp_path, source)["start"]
    assert kind == CANNOT and "`setup_distributed`" in what


def test_code_that_is_run_from_a_text_is_out_of_sight(tmp_path):
    findings = told(tmp_path, 'import torch\nexec(open("train_body.py").read())\n')
    assert {kind for kind, _ in findings.values()} == {CANNOT}


def test_what_another_framework_does_is_not_called_missing(tmp_path):
    findings = told(
        tmp_path,
        """
        import torch
        from accelerate import Accelerator
        accelerator = Accelerator()
        for x, y in loader:
            loss = model(x)
            loss.backward()
        """,
    )
    assert findings["gradient exchange"][0] == CANNOT
    assert "`accelerate`" in findings["gradient exchange"][1]


# --- the command ----------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    status = cli.main(["workshop", "check-script", *map(str, args)])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_table_names_line_and_remedy(capsys):
    status, out, _ = run(capsys, DENSENET / "train_single.py")
    assert status == 1
    assert "checkpoints           missing     line 132" in out
    assert "→ Save under `if hvd.rank() == 0:`." in out
    assert out.splitlines()[-1] == "1 present, 11 missing"
    assert max(map(len, out.splitlines()[1:])) <= 100


def test_all_fine_is_status_0_and_json_is_complete(capsys):
    path = DENSENET / "solutions" / "train_horovod.py"
    assert run(capsys, path)[0] == 0
    status, out, _ = run(capsys, path, "--json")
    data = json.loads(out)
    assert status == 0 and data["script"] == str(path)
    assert data["counts"] == {"present": 12, "missing": 0, "mistake": 0, "cannot tell": 0}
    assert set(data["findings"][0]) == {"topic", "kind", "line", "what", "remedy"}
    assert [f["line"] for f in data["findings"] if f["topic"] == "start"] == [89]


def test_every_finding_that_is_not_present_has_a_remedy(tmp_path):
    for script, changes, _ in CASES.values():
        path = tmp_path / "train.py"
        path.write_text(changed(script, *changes))
        for f in check(path):
            assert bool(f.remedy) == (f.kind != PRESENT), f


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "broken.py",
            b"import torch\nfor x in\n",
            "broken.py, line 2 is not Python: invalid syntax",
        ),
        ("picture.py", b"\xff\xd8\xff\xe0\0\0", "picture.py"),
        ("nul.py", b"x = 1\0", "is not Python: source code string cannot contain null bytes"),
        ("deep.py", b"x = " + b"-" * 50_000 + b"1", "nested too deeply"),
        ("course.ipynb", b"{}", "is a notebook: `jupyter nbconvert --to script`"),
        ("large.py", b"#" * (9 * 2**20), "has 9 MiB, and this reads 8 at most"),
    ],
)
def test_what_is_no_python_is_told_in_one_line(tmp_path, capsys, name, content, message):
    (tmp_path / name).write_bytes(content)
    status, out, err = run(capsys, tmp_path / name)
    assert status == 2 and out == ""
    assert err.startswith("error: ") and message in err and len(err.splitlines()) == 1


def test_a_missing_file_a_folder_and_a_pipe(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe.py")
    for path, message in [
        (tmp_path / "none.py", "none.py cannot be read: No such file or directory"),
        (tmp_path, "is a folder"),
        (tmp_path / "pipe.py", "is not a file"),
    ]:
        status, _, err = run(capsys, path)
        assert status == 2 and message in err and len(err.splitlines()) == 1


def test_the_script_is_never_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mark = tmp_path / "was-run"
    (tmp_path / "beside.py").write_text(f"open({str(mark)!r}, 'w')\n")
    script = tmp_path / "endless.py"
    script.write_text(
        f"import beside\nopen({str(mark)!r}, 'w').close()\nimport torch\nwhile True:\n    loss.backward()\n"
    )
    assert run(capsys, script)[0] == 1
    assert not mark.exists()
