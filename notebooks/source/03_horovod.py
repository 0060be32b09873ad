# %% [markdown]
# # 03 · Horovod
#
# After this notebook you can train one model with several workers, in PyTorch and in TensorFlow, name the five changes that this takes, see what goes wrong without each of them, and compute what more workers would bring.
#
# **Time:** 45 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 4 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
workers: int | None = None  # workers that train together; None: 2, on GPUs all, at most 8
batch: int = 16  # images per worker and step where speed is measured
steps: int = 12  # timed steps
epochs: int = 3  # epochs of the library's runs that learn
seed: int = 0  # start of all randomness

# %%
import workshop
from rn50.autoconfig import best_comm
from workshop.lessons.horovod.scripts import horovodrun, torchrun

profile = workshop.hide_single_gpu(profile)
session = workshop.start("03", profile)
gpus = session.machine.gpus
workers = workers or session.pick(cpu=2, gpu=min(8, len(gpus)))
comm, why = best_comm(workers, "torch", None, bool(gpus))
print(f"The library's workers talk over {comm} in this notebook: {why}.")

# %% [markdown]
# ## Where is the time going?
#
# On a CPU, notebook 02 ended with the answer that a training step spends its time computing. If computing is the bottleneck, more processors are the obvious remedy. But workers that train one model must agree about it after every step, and while they talk they do not compute.
#
# So a step gets a new part, the **exchange**. In this notebook you make your own script train with several workers, first so that it is *right* and then so that it is *fast*. The question stays what it was: where is the time going now?
#
# ## Data parallelism
#
# There are two ways to divide the work. One could give each worker a part of the *model*; then every picture has to visit all of them. Or one gives each worker the whole model and a part of the *pictures*. The second is called data parallelism, and it is what this course does, because ResNet-50 fits on every device and its pictures do not depend on each other.
#
# The gradient of a batch is the mean of the gradients of its images. So if each of two workers has half of the batch, the mean of their two gradients should be the gradient of the whole. Is it?

# %%
import torch
from torch import nn

torch.set_num_threads(session.machine.cores)  # those that this process may use


def gradient(net, images):
    net.zero_grad()
    net(images).square().mean().backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


torch.manual_seed(seed)
images = torch.randn(32, 3, 8, 8, dtype=torch.float64)
for name, norm in {"without batch norm": nn.Identity(), "with it": nn.BatchNorm2d(8)}.items():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Conv2d(8, 1, 3)).double()
    whole = gradient(net, images)
    halves = (gradient(net, images[:16]) + gradient(net, images[16:])) / 2
    apart = (whole - halves).abs().max() / whole.abs().max()
    print(f"{name}: the gradient of 32 and the mean of two of 16 differ by {apart:.1g} of its size")

# %% [markdown]
# Without batch norm the two differ by rounding alone. Batch norm computes its mean and variance from the images of its own worker: that is what everybody does, because exchanging them would cost a message per layer.
#
# So this is all that the workers have to agree upon: an average, once per step. The batch changes what a worker *computes*. What it *sends* is as large as the model: the 25.6 million parameters of ResNet-50 give 102 MB of gradients, from a batch of 16 images as from one of 256. That is the whole economy of data parallelism, and further down it becomes a formula.
#
# ## The ring
#
# How do many workers find the average of what each of them has? If all send everything to worker 0, its link carries everything: with 64 workers 63 times as much as with two. The operation that is wanted, the sum of everybody's numbers given to everybody, is called **all-reduce**. The ring is one way to do it in which no link is busier than another.
#
# Every worker cuts its gradients into as many chunks as there are workers, and only ever talks to its neighbour. In the first half, the *scatter-reduce*, chunks travel around and are added up on the way. In the second half, the *all-gather*, the finished sums travel around once more. Follow chunk 0 in the figure: it starts at worker 0, collects a part at every stop, and is complete one stop before it would be home again. Then set the workers to 8 and look at the megabytes after the last step.

# %%
from workshop.lessons.horovod import ring

ring.explore()

# %% [markdown]
# The drawing runs the algorithm on numbers, and a chunk is called *sum* only when everybody's part has arrived in it. What each worker sends is `2 (n − 1) / n` times the gradients, less than twice their size for any number of workers.
#
# The ring made Horovod known ([Sergeev and Del Balso, 2018](https://arxiv.org/abs/1802.05799)); that workers cannot send less, unless the network adds for them, was shown by Patarasuk and Yuan in 2009. NCCL and Gloo, which carry the messages on GPUs and on processors, know the ring too, and for small messages other ways with fewer steps.
#
# ## A script for one worker
#
# A launcher starts a *program* several times, so your training has to stand in a file. The first holds the pictures and the network, about as you wrote them in notebook 02, at 32 × 32 pixels so that each run here takes seconds.

# %%
# %%writefile {session.folder}/signs.py
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F


class RoadSigns(torch.utils.data.Dataset):
    def __init__(self, folder, size=32):
        self.files, self.size = sorted(Path(folder).glob("*/*.jpg")), size
        self.classes = sorted({file.parent.name for file in self.files})

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        image = Image.open(self.files[i])
        image.draft("RGB", (self.size, self.size))
        image = image.convert("RGB").resize((self.size, self.size))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
        return pixels, self.classes.index(self.files[i].parent.name)


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        correction = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(self.shortcut(x) + correction)


def small_resnet(classes=12):
    blocks = Block(3, 16, 2), Block(16, 32, 1), Block(32, 64, 2), Block(64, 128, 2)
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


def describe(seen, losses, model):
    """What a rank prints at its end."""
    last, weights = sum(losses[-10:]) / len(losses[-10:]), model[-1].weight[0, :3].tolist()
    told = f"{len(seen):,} pictures, first {seen[:4]}; loss of the last steps {last:.2f}\n"
    told += "three of the final weights: " + " ".join(f"{weight:.5f}" for weight in weights)
    print(f"{told}\n", end="", flush=True)  # at once, or the lines of two ranks would mix


# %% [markdown]
# The second holds the training, for one worker, as in notebook 02.

# %%
# %%writefile {session.folder}/train.py
import sys

import torch
from signs import RoadSigns, describe, small_resnet
from torch.nn import functional as F
from torch.utils.data import DataLoader

data = RoadSigns(sys.argv[1])
mine = torch.randperm(len(data)).tolist()
model = small_resnet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

losses = []
for images, labels in DataLoader(data, 32, sampler=mine):
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
describe(mine, losses, model)
torch.save(model.state_dict(), "model.pt")

# %% [markdown]
# What happens if a launcher starts it twice, as it is? `horovodrun` puts the number of the process in front of each line.

# %%
folder, pictures = session.folder, session.data_root / "train"
horovodrun(folder / "train.py", pictures, np=2)
if (folder / "model.pt").exists():
    weights = torch.load(folder / "model.pt")["6.weight"][0, :3]
    print("three of the weights in model.pt:", *(f"{weight:.5f}" for weight in weights))

# %% [markdown]
# Two complete trainings: each process goes through *all* the pictures, in an order of its own, from weights of its own, and comes to weights of its own. Nothing is faster. Both write `model.pt`, and whoever comes last wins. (Which of the two was it?)
#
# ## Five changes to a script
#
# The talk that this course goes back to, *AV Datasets & Multi-GPU Training* (2018), calls what follows "press the sport button": keep your model, and adapt the training procedure. (Its scripts are in [exercises/recipes](../exercises/recipes/README.md); you will run one below.) It takes five changes.
#
# ### 1 and 2: start, and share the pictures
#
# After `hvd.init()` each process knows who it is, its **rank**, and how many there are, the **size**. The *local* rank counts on one machine and says which of its GPUs to take. If all took the first one, NCCL would refuse with the words “Duplicate GPU detected”.
#
# To share the pictures, all ranks compute the same random order from the same seed, and each takes its own part. Nobody has to send anything for that. All take the same number of steps: one that took a step more would wait for the others for ever.

# %%
# %%writefile {session.folder}/train.py
import sys

import horovod.torch as hvd
import torch
from signs import RoadSigns, describe, small_resnet
from torch.nn import functional as F
from torch.utils.data import DataLoader

hvd.init()  # 1. start
device = f"cuda:{hvd.local_rank()}" if torch.cuda.is_available() else "cpu"

data = RoadSigns(sys.argv[1])
order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
mine = order[hvd.rank() :: hvd.size()].tolist()  # 2. share the pictures
model = small_resnet().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

losses = []
for images, labels in DataLoader(data, 16, sampler=mine, drop_last=True):
    loss = F.cross_entropy(model(images.to(device)), labels.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
describe(mine, losses, model)

# %%
horovodrun(folder / "train.py", pictures, np=workers)

# %% [markdown]
# Now each rank has its own part of the pictures, and the work is shared. The models are not: each rank still trains one of its own, on less data than before.
#
# ### 3, 4 and 5: one model
#
# 3. **The learning rate follows the global batch.** A step now has the images of all ranks.
# 4. **Average the gradients.** `hvd.DistributedOptimizer` replaces each gradient by its mean over all ranks before the update. This is the one change that costs time.
# 5. **Rank 0 speaks for all.** Averaged gradients make the same *change* on every rank. The weights are the same afterwards only if they were the same before, so rank 0 sends its own to all; after a resume, those of its checkpoint, and the optimizer's state too. And it alone writes the file.

# %%
# %%writefile {session.folder}/train.py
import sys

import horovod.torch as hvd
import torch
from signs import RoadSigns, describe, small_resnet
from torch.nn import functional as F
from torch.utils.data import DataLoader

leave_out = sys.argv[2:]  # changes to do without, to see what they are for
hvd.init()  # 1. start
device = f"cuda:{hvd.local_rank()}" if torch.cuda.is_available() else "cpu"

data = RoadSigns(sys.argv[1])
order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
mine = order[hvd.rank() :: hvd.size()].tolist()  # 2. share the pictures
torch.manual_seed(hvd.rank())  # each rank starts with different weights
model = small_resnet().to(device)
rate = 0.05 * 16 * hvd.size() / 32  # 3. the rate follows the global batch
optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
if "average" not in leave_out:  # 4. average the gradients
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
if "broadcast" not in leave_out:  # 5. rank 0 speaks for all: its weights ...
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

losses = []
for images, labels in DataLoader(data, 16, sampler=mine, drop_last=True):
    loss = F.cross_entropy(model(images.to(device)), labels.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
describe(mine, losses, model)
if hvd.rank() == 0 and not leave_out:  # ... and its file
    torch.save(model.state_dict(), "model.pt")

# %%
horovodrun(folder / "train.py", pictures, np=workers)
horovodrun(folder / "train.py", pictures, "broadcast", np=workers)
if session.profile != "ci":
    horovodrun(folder / "train.py", pictures, "average", np=workers)

# %% [markdown]
# In the first run the final weights of all ranks are equal, to the last digit: there is one model. Without the broadcast they are not, although the gradients were averaged: the average belongs to none of the models. Without the average the ranks start alike and drift apart. (In profile ci the third run is left out.)
#
# Look at how *late* such a mistake would be noticed: no run fails, and each prints a loss that falls. So ask your own scripts the same two questions: *how many different pictures did we see, and are the weights equal?* `rn50 workshop try SCRIPT -n 2` asks them, and a few more, of any script.
#
# ### The same with DDP
#
# PyTorch has its own way, `DistributedDataParallel`, with a launcher of its own, `torchrun`. The five changes are the same. Wrapping the model does two of them at once: it sends rank 0's weights to all, and it averages the gradients while `backward()` runs.

# %%
# %%writefile {session.folder}/train_ddp.py
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the group exists: imported later, it would hold on to it
from signs import RoadSigns, describe, small_resnet
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

cuda = torch.cuda.is_available()
device = f"cuda:{os.environ['LOCAL_RANK']}" if cuda else "cpu"
if cuda:
    torch.cuda.set_device(device)  # otherwise barrier() and synchronize() use GPU 0 on every rank
dist.init_process_group("nccl" if cuda else "gloo")  # 1. start

data = RoadSigns(sys.argv[1])
mine = DistributedSampler(data, seed=0, drop_last=True)  # 2. share the pictures
mine.set_epoch(0)  # another order in each epoch, the same on all ranks
rate = 0.05 * 16 * dist.get_world_size() / 32  # 3. the rate follows the global batch
torch.manual_seed(dist.get_rank())  # each rank starts with different weights
model = small_resnet().to(device)
ddp = DistributedDataParallel(model)  # 4. averages in backward(), 5. has sent rank 0's weights
optimizer = torch.optim.SGD(ddp.parameters(), lr=rate, momentum=0.9)

losses = []
for images, labels in DataLoader(data, 16, sampler=mine, drop_last=True):
    loss = F.cross_entropy(ddp(images.to(device)), labels.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
describe(list(mine), losses, model)
if dist.get_rank() == 0:  # 5. rank 0 alone writes
    torch.save(model.state_dict(), "model_ddp.pt")
del ddp  # it refers to the group, whose threads end with the last reference
dist.destroy_process_group()

# %%
torchrun(folder / "train_ddp.py", pictures, np=workers)

# %% [markdown]
# The last two lines matter. A Gloo group has threads, which end when nothing refers to the group any more. `destroy_process_group()` drops PyTorch's own reference, but the DDP wrapper has another one. A thread that still runs when Python shuts down can abort the process (`terminate called without an active exception`), and `torchrun` then reports a finished training as failed. The same happens if `torch.distributed.nn`, which DDP itself uses, is first imported while the group exists: its functions keep the group as a default argument. So import it first, delete the wrapper, then destroy the group.
#
# What the ranks have written is an ordinary PyTorch file. One process reads it and asks it about the validation pictures, as in notebook 02. Both scripts start from the weights of seed 0, see the same pictures in the same order and use the same learning rate, so both models should score the same up to rounding.

# %%
import sys

sys.path.insert(0, str(folder))
from signs import RoadSigns, small_resnet

validation = torch.utils.data.DataLoader(RoadSigns(session.data_root / "val"), batch_size=100)
for name in ("model.pt", "model_ddp.pt"):
    if (folder / name).exists():
        model = small_resnet().eval()
        model.load_state_dict(torch.load(folder / name, map_location="cpu"))
        with torch.no_grad():
            right = [(model(x).argmax(1) == y).float().mean().item() for x, y in validation]
        print(f"{name}: {100 * sum(right) / len(right):.1f} % right after one epoch")

# %% [markdown]
# > **Which one, today?** Horovod's last release, 0.28.1, dates from 2023. It still builds with today's frameworks, with a patch in the case of this project, but nobody adds the support that the next release of PyTorch or TensorFlow will need. For a new PyTorch project take **DDP**, which comes with PyTorch. For TensorFlow take **tf.distribute**: `MirroredStrategy` on one machine, `MultiWorkerMirroredStrategy` on several. **Horovod** is what you will find in existing code and on clusters that start everything with MPI, and it serves both frameworks with the same calls.

# %% [markdown]
# ## TensorFlow: Keras and its callbacks
#
# With Keras the loop is `fit`, so the changes go into the optimizer and into **callbacks**: one broadcasts after the first step, one averages the metrics over the ranks at the end of each epoch, and one raises the learning rate from that of one worker to that of all.

# %%
# %%writefile {session.folder}/train_keras.py
import sys

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from tensorflow import keras

hvd.init()  # 1. start, with a GPU of one's own
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

keras.utils.set_random_seed(0)
pictures = keras.utils.image_dataset_from_directory(
    sys.argv[1], image_size=(32, 32), batch_size=None, seed=0
)
mine = pictures.shard(hvd.size(), hvd.rank())  # 2. share the pictures
mine = mine.map(lambda image, label: (image / 255, label)).batch(16, drop_remainder=True)

model = keras.Sequential(
    [
        keras.layers.Input((32, 32, 3)),
        keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
        keras.layers.Conv2D(64, 3, strides=2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(12),
    ]
)
optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
model.compile(
    hvd.DistributedOptimizer(optimizer),  # 4. average the gradients
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # 5. rank 0 speaks for all
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(  # 3. the rate follows the global batch
        0.05 * hvd.size(), warmup_epochs=1, momentum_correction=False
    ),
]
if "no-callbacks" in sys.argv:
    callbacks = []
model.fit(mine, epochs=2, callbacks=callbacks, verbose=2 if hvd.rank() == 0 else 0)
print("three of the final weights:", *(f"{w:.5f}" for w in model.get_weights()[-1][:3]))

# %% [markdown]
# Horovod's Keras integration was written for Keras 2, which today's TensorFlow has as the package `tf_keras` and takes if `TF_USE_LEGACY_KERAS` is 1. What if one forgets that, and Keras 3 runs? With the callbacks the script fails, and that is the good case. The second run goes without them; all ranks have the same seed, so they start alike.

# %%
legacy = {"np": workers, "framework": "tensorflow", "env": {"TF_USE_LEGACY_KERAS": "1"}}
horovodrun(folder / "train_keras.py", pictures, **legacy)
if session.profile != "ci":
    keras_3 = legacy | {"env": {"TF_USE_LEGACY_KERAS": "0"}}
    horovodrun(folder / "train_keras.py", pictures, "no-callbacks", **keras_3)

# %% [markdown]
# With Keras 2 the weights of all ranks are equal. With Keras 3 the second run (left out in profile ci) ends without a warning of Horovod's, the loss is one that nobody would doubt, and the ranks have **different weights**: Keras 3 calls other methods of the optimizer than those that Horovod replaces, so that nothing is averaged. Two answers help: Keras 2, or a step of your own with `tf.GradientTape` and `hvd.grouped_allreduce`, which is what this library does.
#
# ### The talk's own script
#
# This is how it looked in 2018, in TensorFlow 1: placeholders, a `MonitoredTrainingSession`, hooks where Keras has callbacks. `exercises/recipes/slides_horovod.py` holds it as the talk shows it, with its mistakes; TensorFlow 2 still runs it through `tf.compat.v1`. `train_horovod.py` beside it is today's form. Watch the losses that the ranks log in the first.

# %%
import shutil

from workshop.paths import need_checkout

recipes = need_checkout() / "exercises" / "recipes"
shutil.rmtree(folder / "slides", ignore_errors=True)  # it would go on from what it finds
horovodrun(
    recipes / "slides_horovod.py", "--data", pictures, "--image_size", 64, "--batch_size", 16,
    "--last_step", 40, "--checkpoint_dir", folder / "slides", np=workers, framework="tensorflow",
)  # fmt: skip
if session.profile != "ci":
    horovodrun(
        recipes / "train_horovod.py", "--data", session.data_root, "--size", 64, "--steps", 40,
        "--warmup-epochs", 0.5, np=workers, framework="tensorflow",
    )  # fmt: skip

# %% [markdown]
# In the talk's script all ranks log the **same losses, to the last digit**: nobody has shared out the pictures, so all compute the same gradient, and the average of equal numbers is the number. Of eight GPUs, seven would be paid for nothing. That is not its only mistake; `exercises/recipes/README.md` lists them, and finding them yourself first is the better exercise. What replaces what:
#
# | the talk (TensorFlow 1.8) | today |
# |---|---|
# | `config.gpu_options.visible_device_list = str(hvd.local_rank())` | `tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")` |
# | `tf.placeholder`, `mtsess.run(…, feed_dict=…)` | `model.fit(dataset)`, or a `tf.function` in a loop of your own |
# | `tf.train.RMSPropOptimizer(0.001 * hvd.size())` | `keras.optimizers.RMSprop`, the rate raised by a warm-up |
# | `hvd.BroadcastGlobalVariablesHook(0)` | `hvd.callbacks.BroadcastGlobalVariablesCallback(0)` |
# | `tf.train.StopAtStepHook(last_step=20000 // hvd.size())` | `dataset.take(steps // hvd.size())` |
# | `tf.train.LoggingTensorHook` | `verbose=2` on rank 0, `verbose=0` on the others |
# | `MonitoredTrainingSession(checkpoint_dir=…)` | `tf.train.CheckpointManager`, on rank 0 |
#
# ## The same, hardened
#
# The library's run makes the same five changes. What it adds: the pictures' order is a function of seed and epoch, so that a run can be resumed in the middle; the rate is a function of the progress; validation is shared, and what the ranks share are *sums*, since a mean of means would be wrong as soon as one rank holds fewer images than another. Before it starts, the ranks agree that they have the same data and the same number of steps, and at the end they compare their weights.

# %%
from rn50lib.data import sampler

workshop.show(sampler.shard)
workshop.show("rn50lib.torch.gradient_sync:HorovodSync")

# %% [markdown]
# Look at *when* the exchange begins. A gradient is ready long before the backward pass is over, and a hook sends it on its way at that moment. What is sent while the rest is still being computed costs no time that anybody waits for. See for yourself in which order they become ready:

# %%
from rn50lib import resnet as network
from rn50lib.torch.model import ResNet

ready, sent = [], 0
resnet50 = ResNet(network.resnet(50))
for name, parameter in resnet50.named_parameters():
    parameter.register_post_accumulate_grad_hook(lambda p, name=name: ready.append((name, p)))
resnet50(torch.randn(2, 3, 64, 64)).sum().backward()
for i, (name, parameter) in enumerate(ready, 1):
    sent += 4 * parameter.numel() / 1e6
    if i % 32 == 1 or i == len(ready):
        print(f"{i:3} of {len(ready)} gradients ready, {sent:5.1f} MB: {name}")

# %% [markdown]
# The last layer's gradients come first, and the last stages hold most of the parameters: most of the megabytes can travel while the early layers, which have most of the pixels, are still computing.
#
# ## Several workers, one model
#
# Now the library's run. One worker with all the images of a step, and several workers with 16 of them each, are the same training: the same images in the same order, the same averages, the same learning rate. The loss should be the same too, but for batch norm and rounding. The network is `tiny` at 32 × 32 pixels, the same code as ResNet-50 with fewer and thinner layers, because the claim is about being right and not about being good. Each process computes with one thread.

# %%


epochs = session.pick(cpu=epochs, ci=2)
small = dict(
    network="tiny", image_shape=32, dtype="float32", threads=1, data_nthreads=1, seed=seed,
    num_epochs=epochs, disp_batches=15,
)  # fmt: skip
one = workshop.train(small, name="one-worker", n=1, batch_size=16 * workers).live()
many = workshop.train(small, name="several-workers", n=workers, batch_size=16).live()

# %%
from workshop.lessons import figures
from workshop.lessons.horovod import scaling

curves = {f"1 worker × {16 * workers}": one.progress, f"{workers} workers × 16": many.progress}
fig, finding = figures.loss_curves(curves, f"The same global batch of {16 * workers}")
workshop.figure(fig, alt=f"Training loss of one worker and of several. {finding}")
print(finding)
print(scaling.difference(one.progress, many.progress))
rows, columns = scaling.beside({"one worker": one.report, f"{workers} workers": many.report})
workshop.table(rows, columns=columns)
apart = many.report["env"]["weights_apart"]
session.expect(scaling.recorded_losses(session, one.report, many.report, epochs, workers))

# %% [markdown]
# The last row of the first table is the most important one: after all those steps the ranks' weights are equal, to the last bit.
#
# The losses are not equal, and you have seen why: batch norm took its statistics from 16 images and not from all. (And sums of rounded numbers depend on the order in which they are added; training makes small differences larger.) How large is that? Compare with the spread of the recorded runs, which differ in nothing but the seed. For validation and for the checkpoint the running statistics are averaged over the ranks, so that there is one model at the end.
#
# On a cluster the same program runs: `rn50 run -n 8 --hosts a:4,b:4 --launcher mpirun` starts eight workers on two machines with `mpirun`, as in the talk; with `--dry-run` it prints the command and starts nothing.

# %% [markdown]
# ## A larger batch
#
# With eight workers and 16 images each, a step has 128 images, and an epoch has an eighth of the steps. What should the learning rate be? What it depends on is the global batch and not who computes it, so one worker with 128 images shows the same thing, and four such runs fit on two cores. All draw from the same 1,200 pictures for six epochs; nine batches of 128 leave 48 of them over in each. (Profile ci leaves the runs out.)
#
# - *Batch 16*: what one of the workers would do alone.
# - *Batch 128, not scaled*: the rate of the small batch. The steps are as long as before, and there are eight times fewer.
# - *Scaled, without warm-up*: eight times the rate, from the first step.
# - *Scaled, with warm-up*: the rate climbs to eight times the small one over the first four epochs.

# %%
base = dict(
    small, n=1, num_examples=1200, num_epochs=6, lr_step_epochs=(6.0,), warmup_epochs=0.0, lr=1.6,
    no_val=True, disp_batches=3, data_nthreads=0,
)  # fmt: skip
batches = {
    "batch 16": {"batch_size": 16},
    "128, not scaled": {"batch_size": 128, "lr": 1.6 / 8},
    "128, scaled, no warm-up": {"batch_size": 128},
    "128, scaled, warm-up": {"batch_size": 128, "warmup_epochs": 4.0},
}
runs = {}
if session.profile != "ci":
    runs = {name: workshop.train(base, **settings) for name, settings in batches.items()}
for run in runs.values():
    run.wait()

# %%
shown = {name: run.progress for name, run in runs.items()}
if runs:
    fig, finding = figures.loss_curves(shown, "The same images, in larger steps", rate=True)
    workshop.figure(fig, alt=f"Training loss and learning rate of four runs. {finding}")
    print(finding)
session.expect(scaling.recorded_batches(session, shown))

# %% [markdown]
# The table shows what you should see, over three seeds, and beside it your own losses if the runs were made. Guessing among 12 classes costs ln 12 = 2.48. In the recorded runs the full rate throws the weights so far off in the first steps that six epochs later the network has hardly got over it. The small rate is safe, and so slow that six epochs bring it no further than guessing. With warm-up the large batch comes close to the small one, with an eighth of the steps.
#
# Be careful with what this shows. It is a demonstration of seconds: a tiny network, half of a small data set, 54 steps with the large batch, and a rate chosen high enough that the effect cannot be missed. The result that counts is that of [Goyal et al., 2017](https://arxiv.org/abs/1706.02677): with linear scaling and five epochs of warm-up, ResNet-50 on ImageNet reaches the same accuracy with a batch of 8,192 as with 256, and without the warm-up it does not. They also say where it ends: beyond 8,192 the accuracy falls.
#
# ## How fast is it?
#
# So much for being right. For speed one compares **weak scaling**: every worker keeps the batch that it had alone, so that `n` workers do `n` times the work. If nothing were lost, a step would take as long as with one worker. The efficiency is the share of that which is left: the step's time with one worker, divided by that with `n`.
#
# The comparison must be fair. Each worker gets the same number of cores, `--bind core` keeps workers off each other's, the pictures are random ones that need no decoding, and the network is ResNet-50. The second run also writes Horovod's timeline.

# %%
at_speed = scaling.at_speed(session, workers, batch, steps)
alone = workshop.train(at_speed, name="alone", n=1).wait()
file = "timeline.json" if comm == "horovod" else None
together = workshop.train(at_speed, name="together", n=workers, bind="core", timeline=file).wait()

# %% [markdown]
# ### A sum that adds up
#
# An efficiency alone explains nothing. The bar below takes the step of several workers apart into pieces that were measured in different ways, and they have to add up to it. The first piece is the step of one worker alone. What happens while the workers exchange comes from the timeline.
#
# What is lost does not depend on the batch: the gradients are as large from 16 images as from 256. So a larger batch does more work for the same lost time. If `c` is the time of an image and `o` what a step loses, the efficiency is `b c / (b c + o)`, which the table computes from *your* two numbers.

# %%
from workshop.lessons.horovod import trace

marked = trace.load(together.given["timeline"]) if file else None
times = [run.report["metrics"]["train.time"][-1] for run in (alone, together)]
parts = trace.mean_parts(marked) if marked else None
weak = scaling.explain(*times, workers, at_speed["batch_size"], parts)
fig, finding = scaling.figure(weak)
workshop.figure(fig, alt=f"A step of one worker and of {workers}, in parts. {finding}")
print(finding)
rows = [[b, 100 * scaling.efficiency(b, weak.per_image, weak.overhead)] for b in (8, 16, 64, 256)]
workshop.table(rows, columns=["batch per worker", "efficiency, %, computed"])
needed = scaling.wanted_batch(weak.per_image, weak.overhead, 0.9)

# %% [markdown]
# Two of the pieces are about the machine and not about Horovod. Workers on one processor share its memory and its caches, so each computes more slowly than it does alone. And a step lasts as long as its slowest worker: whoever is ready first waits. On GPUs the first of the two is small, because each has memory of its own. The table is a model, with an assumption in it: that the lost time stays as it is. Another `batch` in the second cell of this notebook tests it.
#
# ### The bare all-reduce
#
# How much of the lost time is the exchange itself? Let the workers do nothing else, for messages of many sizes. The largest is as large as the gradients of ResNet-50.

# %%
# %%writefile {session.folder}/allreduce.py
import time

import horovod.torch as hvd
import torch

hvd.init()
device = f"cuda:{hvd.local_rank()}" if torch.cuda.is_available() else "cpu"
mean = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Average)
print(f"I am rank {hvd.rank()} of {hvd.size()}; the mean of all ranks is {mean.item()}.")

for numbers in (1_000, 100_000, 1_000_000, 5_000_000, 25_557_032):
    gradients = torch.ones(numbers, device=device)
    times = []
    for _ in range(6):
        begin = time.perf_counter()
        mean = hvd.allreduce(gradients, op=hvd.Average)
        mean[0].item()  # wait until it has arrived
        times.append(time.perf_counter() - begin)
    if hvd.rank() == 0:
        print(f"{4 * numbers / 1e6:8.3f} MB: {1000 * min(times[1:]):8.2f} ms")

# %%
horovodrun(folder / "allreduce.py", np=workers)
print(f"The library's step of {workers} workers took {1000 * weak.overhead:.0f} ms longer.")

# %% [markdown]
# A message costs something however small it is, and then something for every further megabyte. On GPUs NVIDIA's [nccl-tests](https://github.com/NVIDIA/nccl-tests) measure the same, and notebook 08 fits the two numbers. Because each message has its price, Horovod collects what is ready in a cycle of a millisecond and copies it into one **fusion buffer**; the variables `HOROVOD_FUSION_THRESHOLD` (bytes) and `HOROVOD_CYCLE_TIME` (milliseconds) set both.
#
# ### A step, looked at through a window
#
# With `--timeline FILE` (in a script of your own: the variable `HOROVOD_TIMELINE`) rank 0 writes down when each tensor was announced, copied and reduced. The dotted line is the moment at which the step has nothing left to compute. What lies to the left of it is *hidden* beneath the backward pass, what lies to the right is *exposed*, and only that makes the step longer.

# %%
from workshop.lessons.horovod import timeline as drawn

if marked:
    fig, finding = drawn.step(marked[len(marked) // 2])
    workshop.figure(fig, alt=f"One training step with its exchange, on a time line. {finding}")
    print(finding)
    rows, columns = drawn.table(marked)
    workshop.table(rows, columns=columns, caption=f"Mean of {len(marked)} steps")
    print(f"The training loop itself measured {1000 * times[1]:.1f} ms a step.")
else:
    print(f"{comm} writes no timeline. `--profile-trace FILE` records a few of its steps.")

# %% [markdown]
# ### Beside the published figures
#
# [*ResNet-50 v1.5 for MXNet*](https://github.com/NVIDIA/DeepLearningExamples/tree/master/MxNet/Classification/RN50v1.5), NVIDIA's document on this network, measured the same thing on a DGX-1 with V100 GPUs, 208 images each in FP16 and 96 in FP32. FP16 scales *worse* than FP32. Why? The last three columns let one cause at a time explain all of the loss, with one number that is fitted to the row of four GPUs.

# %%
from workshop.lessons import dgx1

workshop.table(*dgx1.lost_rows(), caption="ResNet-50 v1.5 for MXNet, container 18.12, DGX-1")
print(dgx1.account())
print(f"Yours: {100 * weak.efficiency:.0f} % with {workers} workers of {weak.batch} images each.")

# %% [markdown]
# That is why this notebook measured the parts of *your* step one by one. A table of speeds, however good, cannot do that afterwards.
#
# ## The wires
#
# On a machine with several GPUs the time of the exchange is decided by how they are joined. The talk draws it for the DGX-1: the **pictures come over PCIe**, from the processor to each GPU, while the **gradients go over NVLink**, from GPU to GPU, so that the two do not get in each other's way. It names the next steps too: an NVSwitch, by which every GPU reaches every other at full speed, and 32 GB of memory for larger batches, which make the exchange a smaller share.
#
# `nvidia-smi topo -m` asks the driver how your GPUs are joined; the cell draws its answer. Where there are none to ask about, the figure is that of the DGX-1. `NV2` stands for two NVLinks, `PIX` and `PXB` for PCIe switches, `PHB` and `NODE` for a way through the processor, `SYS` for the link between two processors. If there is a round trip over NVLink alone, an all-reduce runs at NVLink's speed. If a single hop must go over PCIe or through the other processor, the whole ring runs at the speed of that hop.
#
# NCCL chooses its ring by itself, and tells you what it chose if you run with `NCCL_DEBUG=INFO`, as the talk does. It writes hundreds of lines; the table has the kinds to look for.

# %%
from workshop.lessons.horovod import nccl_log, topology

found, remark = topology.find()
fig, finding = topology.figure(found)
workshop.figure(fig, alt=f"How the GPUs of a machine are joined. {finding}")
print(" ".join(filter(None, [remark, finding])))
nccl_log.table(together.log if "NCCL INFO" in together.log else None)

# %% [markdown]
# The lines with `via` decide. `P2P` is what you want inside a machine, `NET/IB` with `GDRDMA` between machines. `SHM` or `NET/Socket` where there is better hardware is the commonest reason for a cluster that scales badly.
#
# ## Does it learn as well?
#
# Speed is worth nothing if the accuracy suffers. A whole training takes five to twelve minutes on two cores, so it is not run here. This is what it gave when it was: the recipe of notebook 02 with ResNet-50 in bfloat16, on one worker with a batch of 32 and on two with 16 each, in every way that this course starts workers. Below it is what *ResNet-50 v1.5 for MXNet* reports for ImageNet.

# %%
starts = ["torch.horovodrun", "torch.mpirun", "torch.torchrun"]
starts += ["tensorflow.horovodrun", "tensorflow.mpirun"]
one_worker = "roadsigns.resnet50.bfloat16.top1"
ways = [one_worker, *(f"horovod.accuracy.{way}" for way in starts)]
session.expect(dict.fromkeys(ways))
means = [session.results[key].value for key in ways]
print(f"The six means lie within {max(means) - min(means):.1f} points.")
luck = session.results[one_worker].spread
print(f"Runs of one worker that differ in the seed alone: ± {luck} points.")
workshop.table(
    *dgx1.accuracy_rows(session.results), caption="Published: 90 epochs of ImageNet, DGX-1"
)

# %% [markdown]
# On the road signs the ways differ by less than the luck of a seed, and on ImageNet eight GPUs reach what one reaches, in 3.3 hours instead of 22.9 in FP16 and in 11.1 instead of 82.0 in FP32. `horovodrun` and `mpirun` even agree run by run, to the last digit: they start the same program.

# %% [markdown]
# ## Your numbers
#
# What this notebook measured on your machine, in one place: to compare with a colleague's, or with those of another machine.

# %% tags=["results"]
session.note("weights_apart", apart, "", "largest difference between the ranks' weights")
session.note("weak_efficiency", 100 * weak.efficiency, "%", f"efficiency of {workers} workers")
session.note("batch_for_90", needed, "images", "batch per worker for an efficiency of 90 %")

# %% [markdown]
# ## What to take with you
#
# - Data parallelism needs one agreement per step: the average of the gradients. What it sends does not depend on the batch.
# - Five changes make a script right: start and take a device, share the pictures, let the rate follow the global batch, average the gradients, let rank 0 speak for all.
# - Without a shard, a broadcast or an average a script runs and looks healthy. Count the pictures, compare the weights.
# - Horovod's Keras integration belongs to Keras 2; with Keras 3 it averages nothing and does not say so.
# - A ring all-reduce keeps every link equally busy; each worker sends less than twice the gradients, however many workers there are.
# - The step of several workers is a sum. Larger batches, a faster wire and more overlap help; faster computing alone makes what is lost a larger share.
#
# **Try it yourself.** Make the five changes in `exercises/recipes/train_single.py`; `train_horovod.py` beside it is there to compare with. And here: set `batch = 64` in the second cell and predict the efficiency before you look.
#
# The talk ends this chapter with a warning: "Your new bottleneck is likely the data pipeline now!" Random pictures were used here for the speed, on purpose. Next in the course comes notebook 04, where real ones must keep up with all these workers.
