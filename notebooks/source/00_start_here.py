# %% [markdown]
# # 00 · Start here
#
# In this course, you write one script that trains ResNet-50 v1.5, and make it faster, one change at a time. Before each change, you measure: *where is the time going now?* On one H100, these changes took an earlier version of the script from 1,080 to 4,107 images per second (recorded; figure at the end). On a laptop, you make the same changes with smaller images, and gain less.
#
# By the end of this notebook, you will have trained and tested a network, and will know what happens in a training step and why training is so expensive. You should know Python and the basics of deep learning: convolutions, losses and gradient steps. If you train networks regularly, run all cells and continue at [why training is expensive](#Why-training-is-expensive).
#
# **Time:** 30 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 2 minutes to run, plus a minute if the set-up has not generated the images

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
epochs: int | None = None  # epochs to train
seed: int = 0  # random seed

# %% [markdown]
# Run the cells in order with Shift + Enter. To change a parameter, edit the cell above and rerun everything below. Run one notebook at a time, and close it with *File › Close and Shut Down Notebook*: two that compute at once slow each other down, and an idle one holds up to 3 GB of memory. After a restart, or on another day, *Run › Run All Above Selected Cell* takes at most 5 minutes. The next cell reports your hardware, chooses a *profile*, and generates the road-sign images if they are missing.
#
# The profile decides how much a notebook computes: `cpu` runs any notebook in under 5 minutes on two otherwise idle cores, `gpu` mostly uses 224-pixel images, and `ci` is for tests.

# %%
import os
from pathlib import Path

import workshop

session = workshop.start("00", profile)
epochs = epochs or session.epochs
os.chdir(session.folder)  # everything below is written here
os.environ |= {"DATA": str(session.data_root), "EPOCHS": str(epochs), "SEED": str(seed)}
train = sorted(Path(session.data_root, "train").glob("*/*.jpg"))  # one folder per class

# %% [markdown]
# ## Train a network first
#
# You will train a network to recognise road signs. Which signs look alike?

# %%
import matplotlib.pyplot as plt
from PIL import Image, ImageOps


def show(ax, file, title, label):
    """Draw the middle of an image at 64 × 64 pixels, roughly what the network sees."""
    ax.imshow(ImageOps.fit(Image.open(file).convert("RGB"), (64, 64)))
    ax.set(xticks=[], yticks=[], title=title, xlabel=label)


fig, axes = plt.subplots(2, 6, figsize=(9, 3.5))
examples = {file.parent.name: file for file in train}  # the last image of each class
for ax, (name, file) in zip(axes.flat, examples.items(), strict=True):
    show(ax, file, "", name)
fig.suptitle("The twelve classes, each at 64 × 64 pixels")
workshop.figure(fig, alt=", ".join(examples))

# %% [markdown]
# The network, `tiny`, is a small version of ResNet-50: the same code, but much faster. `rn50` is the course's finished training program; you begin to write your own in notebook 02. A cell that starts with `%%bash -e` contains terminal commands; `$DATA`, `$EPOCHS` and `$SEED` were set above.
#
# - `-b`: images per step, the *batch size*; with 2,400 training images, an epoch is 75 steps of 32
# - `-e`: passes over the data, the *epochs*
# - `-n 1`: train on one device, a GPU or a CPU
# - `--image-shape 64` and `crop_area=0.5`: random crops of at least half of each image, scaled to 64 × 64 pixels
#
# **Predict:** random guessing gets 1 in 12 right (8.3%). What accuracy will the network reach?

# %%
guess = None  # your number, in percent

# %% language="bash" magic_args="-e"
# rm -f first*  # from an earlier run
# rn50 run --network tiny --image-shape 64 -n 1 -b 32 -e $EPOCHS --set crop_area=0.5 \
#   --data-root "$DATA" --seed $SEED --model-prefix first --report "run-$(date +%s).json" 2>&1

# %% [markdown]
# Lines that begin with `--` list the main settings, with reasons. `top-1` is the percentage of images whose highest-scoring class is right; for training images, it is lower, because it is an average over the whole epoch and the crops are random. The learning rate is divided by ten after 1/3, 2/3 and 8/9 of the run, so late epochs change little.
#
# Next, the network classifies all validation images; `first $EPOCHS` names the weights that training saved. Prediction rounds slightly differently from validation, so a few images can get a different answer. **Predict** the most frequent mistake.

# %%
pair = None  # the sign and what it is taken for, such as "yield taken for stop"

# %% language="bash" magic_args="-e"
# rn50 predict -b 240 -o answers.npz first $EPOCHS "$DATA"/val/* 2>&1 > /dev/null  # show only progress

# %%
from collections import Counter

import numpy as np

found = np.load("answers.npz")
files, probabilities = found["names"], found["probabilities"]
truth = np.array([Path(file).parent.name for file in files])
answers, sure = found["classes"][probabilities.argmax(1)], probabilities.max(1)
wrong = np.flatnonzero(answers != truth)
print(f"You expected {'?' if guess is None else guess}% right; most often wrong: {pair or '?'}")
top1 = 100 * (1 - len(wrong) / len(files))
session.note("first_top1", top1, "%", "accuracy of your first run")
(((sign, answer), often),) = Counter(zip(truth[wrong], answers[wrong], strict=True)).most_common(1)
surest = wrong[np.argsort(-sure[wrong])][:8]
fig, axes = plt.subplots(2, 4, figsize=(9, 5))
for ax, i in zip(axes.flat, surest, strict=False):
    show(ax, files[i], f"says {answers[i]}, {sure[i]:.0%}", f"is {truth[i]}")
fig.suptitle(f"{len(wrong)} of {len(files):,} are wrong; {often} are {sign} taken for {answer}")
alt = ", ".join(f"{truth[i]} as {answers[i]}" for i in surest)
workshop.figure(fig, alt=f"The mistakes of which the network is surest: {alt}")

# %% [markdown]
# These are the mistakes the network is surest of; each percentage is the probability it gives its wrong answer. What do the confused signs share: colour, shape, or neither?
#
# ## Change one thing
#
# Where did the time go? Some of it was spent waiting for images, even though one worker process per core was decoding the next batches while the network computed. **Predict** the share of waiting, with workers and without (`--data-nthreads 0`: the training process decodes).

# %%
waiting = None  # two percentages: with workers, without

# %% language="bash" magic_args="-e"
# rn50 run --network tiny --image-shape 64 -n 1 -b 32 -e $EPOCHS --set crop_area=0.5 \
#   --data-nthreads 0 --data-root "$DATA" --seed $SEED --report "run-$(date +%s).json" 2>&1

# %%
import json

runs = [json.loads(file.read_text()) for file in sorted(Path().glob("run-*.json"))]
runs = [run for run in runs if run["metrics"].get("val.top1")]  # those that were validated
for run in runs:
    flags, seconds = run["env"]["axes"], run["env"]["seconds"]
    names = ("network", "batch_size", "data_nthreads", "seed")
    network, batch, workers, used = (flags[name]["value"] for name in names)
    total, wait, scores = sum(seconds.values()), seconds["data"], run["metrics"]["val.top1"]
    print(f"{network}, batch {batch}, {workers} worker(s), seed {used},", end=" ")
    print(f"{len(scores)} epoch(s): {total:.1f} s to train, {wait:.1f} s", end=" ")
    print(f"({wait / total:.0%}) waiting for images and {total - wait:.1f} s computing;", end=" ")
    print(f"validation is extra; top-1 {scores[-1]:.1f}%")
print(f"You expected these shares of waiting, with workers and without: {waiting or '?'}")

# %% [markdown]
# Without workers, the training process itself decodes between steps, so all decoding counts as waiting. With workers, a step waits only if decoding is slower than computing, or at the start of an epoch, when no batch is ready yet; in the first epoch, the workers themselves have to start (compare its seconds in the log with the later epochs'). On a GPU, the waiting time is the most that faster input can save, because during a wait, the GPU still computes the steps that were launched before it. On a CPU, faster input can save more, because decoding also takes cores from the network. Compare the totals and the computing times, too. The logs show how much the speed varies between the epochs of one run (img/s): if the total times differ by no more than that, the difference may be chance. If computing took longer with workers on a CPU, the workers slowed the network, because both need the cores: then less waiting need not mean a shorter run.
#
# **Your turn:** change the batch size instead. **Predict:** with 8 images per step, how many steps per epoch? Does the run take longer? Is the network more accurate? Copy the last training command to the cell below, replace `-b 32` with `-b 8`, delete `--data-nthreads 0`, and run it; then run the cell above again. The seed alone changes the top-1 accuracy, too: among ten ResNet-50 runs in bfloat16 with different seeds, the best and the worst were 4 points apart. Before you believe a difference, repeat both runs with `--seed 1` instead of `--seed $SEED`.
#
# If you have a GPU, next restore `-b 32` and delete `--network tiny` to train ResNet-50. **Predict** how much longer it takes, with 36 times the work per image.
#
# <details><summary>Why?</summary>An epoch has 300 steps. With four times as many steps at a quarter of the learning rate, the network should become about as accurate (<i>linear scaling</i>). But each step has a fixed cost, so the run takes longer. Notebook 02 explains both. On a GPU, most of a step of <code>tiny</code> may be spent waiting for images, or for the CPU to launch the GPU's programs (<i>kernels</i>); then ResNet-50 takes far less than 36 times as long.</details>

# %% language="bash" magic_args="-e"
# # your predictions: steps per epoch: ?  seconds: ?  top-1: ?
# # your command, in place of the next line
# true

# %% [markdown]
# ## What happens in a step
#
# Every step does the same work on a new batch. Ahead of time, workers read, decode and crop JPEGs. The pixels are copied to the device that computes, usually a GPU. The **forward** pass turns pixels into predictions and keeps each layer's output. The **loss** compares the predictions with the labels. The **backward** pass goes through the layers in reverse and uses the kept outputs to compute a gradient for every weight. If there are several devices, they **exchange** gradients (*communication*), and each uses the average. The **update** then changes the weights. The figure shows how much data a step handles: an ImageNet JPEG averages 115 KB, and in float32, ResNet-50 keeps 86 MB of outputs per image. Later figures use the same colours for input, compute and communication.

# %%
from workshop.lessons import nb00

nb00.show_step()

# %% [markdown]
# ## Why training is expensive
#
# How long does it take to train on ImageNet, which has 1,281,167 training images, for the published recipe's 90 epochs? On one V100, a data-centre GPU from 2017, [NVIDIA's program](https://github.com/NVIDIA/DeepLearningExamples/tree/a8e1d1cd/MxNet/Classification/RN50v1.5) trains at 400.2 images per second in 32-bit precision (FP32) and at 1,442.6 in 16-bit (FP16). **Predict** the hours for each.

# %%
expected = None  # two numbers: hours in FP32, in FP16

# %% [markdown]
# **Your turn:** in the next cell, write a formula for the hours, and one for the MB/s that storage must deliver. The cell after it checks both.


# %%
def training_hours(images, epochs, rate):
    """Return the hours of `epochs` passes over `images` images at `rate` images per second."""
    return None  # your code


def megabytes_per_second(rate, kilobytes):
    """Return the MB/s of `rate` images per second of `kilobytes` KB each; 1 MB is 1,000 KB."""
    return None  # your code


# %%
from rn50lib import resnet

training_hours = nb00.check("training_hours", training_hours)
megabytes_per_second = nb00.check("megabytes_per_second", megabytes_per_second)
images, passes, kilobytes = 1_281_167, 90, 115.44  # ImageNet's images, epochs, mean size
work = resnet.resnet(50, 1000).train_flops(224)  # per image: forward, and twice as much backward
print(f"{work / 1e9:.1f} billion operations per image (a multiply-add is two),", end=" ")
print(f"{images * passes * work:.1e} in all")
rows = []
for gpu, trained, possible in (
    ("V100, FP32, batch 96", "published.v100.1gpu.fp32.ips", "v100.fp32"),
    ("V100, FP16, batch 208", "published.v100.1gpu.fp16.ips", "v100.fp16"),
    ("H100, FP16, batch 256", "h100.float16.ips", "h100.fp16"),
):
    rate, peak = session.results[trained].value, session.results[possible].value
    reached = rate * work / 1e12  # TFLOP/s
    hours, read = training_hours(images, passes, rate), megabytes_per_second(rate, kilobytes)
    rows.append([gpu, rate, hours, read, reached, peak, f"{reached / peak:.0%}"])
print(f"You expected {expected or '?'} hours.")
workshop.table(rows, ["", "images/s", "hours", "needs MB/s", "TFLOP/s", "peak, TFLOP/s", "of peak"])

# %% [markdown]
# (The V100's numbers are published; the H100's are measured, including its peak of 681 TFLOP/s.) In FP32, arithmetic explains most of the time: the V100 reaches 63% of its peak, and needs over three days. In FP16, it explains much less: the V100 reaches 28% of its peak, the H100 17% (12% of the 989 in its data sheet). Where does the rest of the time go? That is the course's question. The next cell computes the rate of your latest run; notebook 06 measures your machine's peak.

# %%
env, speeds = runs[-1]["env"], runs[-1]["metrics"]["train.total_ips"]  # first steps left out
rate = len(speeds) / sum(1 / speed for speed in speeds)  # equal images per epoch: harmonic mean
flops, size = env["model_flops"]["per_image"], env["axes"]["image_shape"]["value"]
print(f"your latest run: {rate:,.0f} images/s, {rate * flops / 1e12:.2g} TFLOP/s", end=" ")
print(f"({network}, {size} px: 1/{work / flops:,.0f} of the work per image)")
seconds = 3600 * training_hours(len(train), len(speeds), rate)
print(f"At this rate, your formula gives {seconds:.1f} s;", end=" ")
print(f"including each epoch's first step, training took {total:.1f} s.")

# %% [markdown]
# The published runs took 82.0 and 22.9 hours, 2 to 3% more than the formula gives. FP16, with a larger batch, is 3.6 times as fast. The H100's images were synthetic; with real ones and batch 128, an earlier version of the course's script reached 4,107 images per second. Eight V100s reach 10,263.2 images/s (published), only 7.1 times the speed of one. They also have to exchange gradients, and they share the host's processors and its storage, which must deliver 1.2 GB/s.
#
# **Try it:** how many V100s would finish the training in one hour in FP16 if each were as fast as one V100 alone? And if each contributed one eighth of the speed of eight?

# %%
# your code: call training_hours with `images` and `passes`
gpus = None, None  # your two numbers
for count, rate in zip(gpus, (1442.6, 10263.2 / 8), strict=True):
    if count and count > 1:  # one GPU fewer must need more than an hour
        hours, more = (training_hours(images, passes, n * rate) for n in (count, count - 1))
        print(f"{count} GPUs: {hours:.2f} hours; {count - 1}: {more:.2f} hours")

# %% [markdown]
# <details><summary>Solution</summary><code>training_hours(images, passes, 1442.6)</code> is 22.2: 23 GPUs. With <code>10263.2 / 8</code>, it is 24.97: 25.</details>
#
# ## Where the course goes
#
# | notebook | topic | its question | your time | exercises |
# |---|---|---|--:|---|
# | [00 Start here](00_start_here.ipynb) | overview | Why does training need so much computing power? | 30 minutes | |
# | [01 Data](01_dataset_preparation.ipynb) | input | How does a model read a million JPEGs? | 60 minutes | [ex01](../exercises/ex01_records.ipynb): 36 minutes |
# | [02 One GPU](02_single_gpu.ipynb) | compute | What happens in a training step? | 90 minutes | [ex02](../exercises/ex02_training.ipynb): 48 minutes |
# | [03 Horovod and DDP](03_horovod.ipynb) | communication | How do many workers train one model? | 120 minutes | [ex03](../exercises/ex03_horovod.ipynb): 52 minutes |
# | [04 TFRecord](04_tfrecord.ipynb) | input | Can the input keep up? | 75 minutes | [ex04](../exercises/ex04_tfrecord.ipynb): 43 minutes |
# | [05 DALI](05_dali.ipynb) | input | Who decodes the images? | 90 minutes | [ex05](../exercises/ex05_dali.ipynb): 22 minutes |
# | [06 Mixed precision](06_mixed_precision.ipynb) | compute | How few bits are enough? | 100 minutes | [ex06](../exercises/ex06_mixed_precision.ipynb): 40 minutes |
# | [07 Inference](07_inference.ipynb) | latency | How fast is one answer? | 75 minutes | [ex07](../exercises/ex07_inference.ipynb): 32 minutes |
# | [08 Scaling](08_benchmark_and_scaling.ipynb) | everything | How much faster are more GPUs? | 95 minutes | [ex08](../exercises/ex08_scaling.ipynb): 90 minutes |
#
# The next figure shows the speeds of published runs and of the course's script. On the H100, the first version waits for images: DALI alone takes it past one V100 in FP16. From notebook 02 on, the figure shows your machine's speeds instead. In a hurry? Take 00, 02, and 03 up to *What goes wrong without each change?* (half a day), then 05 and 06 (another half day).

# %%
workshop.ladder.figure()

# %% [markdown]
# Your runs read images that the set-up had packed (`recordio`). In notebook 01, you pack images yourself and measure whether that pays off.
#
# ## If something does not work
#
# - **`rn50` prints one-line errors**: what is wrong, and how to fix it. [docs/troubleshooting.md](../docs/troubleshooting.md) explains common ones.
# - **`rn50 doctor`**, in a terminal, checks your machine and suggests a fix for each problem.
# - **To restore a notebook**, run `rn50 workshop reset 00`. It keeps a copy of your version.
