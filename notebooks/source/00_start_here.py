# %% [markdown]
# # 00 · Start here
#
# In this course, you write one script that trains ResNet-50 v1.5, and make it faster, one change at a time. Before each, you measure: *where is the time going now?* On one H100, the changes took an earlier version from 1,080 to 4,107 images per second (recorded; figure below). With several GPUs, you also measure what each GPU adds. On a laptop, you make the same changes with smaller images, and gain less.
#
# By the end of this notebook, you will have trained and tested a network, and will know what happens in a training step and why training is so expensive. You should know Python and the basics of deep learning: convolutions, losses and gradient steps. If you have trained networks often, run all cells, and read on from [why training is expensive](#Why-training-is-expensive).
#
# **Time:** 20 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 2 minutes to run, plus a minute if the set-up has not generated the images

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
epochs: int | None = None  # epochs to train
seed: int = 0  # random seed

# %% [markdown]
# Run the cells from top to bottom with Shift + Enter. The cell above has the notebook's parameters: to change one, edit it and rerun everything below. The next cell reports your hardware, chooses a *profile*, and generates the images of road signs if they are missing.
#
# The profile decides how much a notebook computes: `cpu` runs any notebook in under 5 minutes on two otherwise idle cores, `gpu` mostly uses 224-pixel images, and `ci` is for tests: its numbers mean nothing. Without the hardware for a notebook, you get a smaller variant, a recorded result, or a note.

# %%
import os
from pathlib import Path

import workshop

session = workshop.start("00", profile)
epochs = epochs or session.epochs
os.chdir(session.folder)  # everything below is written here
os.environ |= {"DATA": str(session.data_root), "EPOCHS": str(epochs), "SEED": str(seed)}
count = len(list(Path(session.data_root, "train").glob("*/*.jpg")))  # training images
for old in Path().glob("run-*.json"):
    old.unlink()

# %% [markdown]
# ## Train a network first
#
# The command below trains a network to recognise twelve kinds of road sign. The network, `tiny`, is a small version of ResNet-50: the same code, but much faster. A cell that starts with `%%bash -e` contains terminal commands; `$DATA`, `$EPOCHS` and `$SEED` were set above.
#
# - `-b`: images per step, the *batch*; with 2,400 training images, an epoch is 75 steps of 32
# - `-e`: passes over the data, the *epochs*
# - `-n 1`: train on one device: a GPU or a CPU
# - `--image-shape 64` and `crop_area=0.5`: random crops of at least half of each image, scaled to 64 × 64 pixels
#
# **Predict:** random guessing gets 1 in 12 right, or 8.3%. What accuracy will the network reach?

# %%
guess = None  # your number, in percent

# %% language="bash" magic_args="-e"
# rm -f first*  # from an earlier run
# rn50 run --network tiny --image-shape 64 -n 1 -b 32 -e $EPOCHS --set crop_area=0.5 \
#   --data-root "$DATA" --seed $SEED --model-prefix first --report "run-$(date +%s).json" 2>&1

# %% [markdown]
# Lines that begin with `--` list the settings, with the reason for each value. You need none of them yet. `top-1` is the percentage of images whose highest-scoring class is right; for training images, it averages over the epoch, on random crops, and so is lower. `img/s` is images per second. The learning rate rises, then drops tenfold three times, so late epochs add little.
#
# What does the network confuse? The next cell classifies all validation images; `first $EPOCHS` names the weights that training saved. **Predict** the most frequent mistake.

# %% language="bash" magic_args="-e"
# rn50 predict -b 240 -o answers.npz first $EPOCHS "$DATA"/val/* 2>&1 > /dev/null

# %%
from collections import Counter

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

found = np.load("answers.npz")
files, probabilities = found["names"], found["probabilities"]
truth = np.array([Path(file).parent.name for file in files])
answers, sure = found["classes"][probabilities.argmax(1)], probabilities.max(1)
wrong = np.flatnonzero(answers != truth)
mistakes = Counter(f"{truth[i]} as {answers[i]}" for i in wrong)
((mistake, often),) = mistakes.most_common(1)
surest = wrong[np.argsort(-sure[wrong])][:8]
fig, axes = plt.subplots(2, 4, figsize=(9, 4.8))
for ax, i in zip(axes.flat, surest, strict=False):
    ax.imshow(Image.open(files[i]).convert("RGB"))
    ax.set(xticks=[], yticks=[], xlabel=f"class: {truth[i]}")
    ax.set_title(f"{answers[i]}, {sure[i]:.0%}")
fig.suptitle(f"{len(wrong)} of {len(files)} are wrong, most often {mistake}: {often}")
alt = ", ".join(f"{truth[i]} as {answers[i]}" for i in surest)
workshop.figure(fig, alt=f"The mistakes of which the network is surest: {alt}")

# %% [markdown]
# These are the mistakes of which the network is surest, each with its probability.
#
# ## Change one thing
#
# Where did the time go? Some of it was spent waiting for images: the most that a faster input can save. **Predict** the share of waiting in the run above, which decoded images in one thread per core, and with a single thread. The next cell trains again, with one.

# %% language="bash" magic_args="-e"
# rn50 run --network tiny --image-shape 64 -n 1 -b 32 -e $EPOCHS --set crop_area=0.5 \
#   --data-nthreads 1 --data-root "$DATA" --seed $SEED --report "run-$(date +%s).json" 2>&1

# %%
import json

runs = [json.loads(file.read_text()) for file in sorted(Path().glob("run-*.json"))]
for run in runs:
    flags, seconds = run["env"]["axes"], run["env"]["seconds"]
    batch, threads = flags["batch_size"]["value"], flags["data_nthreads"]["value"]
    total, top1 = sum(seconds.values()), run["metrics"]["val.top1"][-1]
    print(f"batch {batch}, {threads} decoding thread(s): {total:.0f} s of training,", end=" ")
    print(f"{seconds['data'] / total:.0%} of it waiting for images; top-1 {top1:.1f}%")
print(f"You expected {guess or '?'}%.")
session.note("first_top1", runs[0]["metrics"]["val.top1"][-1], "%", "accuracy of your first run")

# %% [markdown]
# With one thread, steps wait only if it decodes more slowly than the network computes, and only for the difference. (A few seconds between runs are noise.)
#
# **Your turn:** change the batch instead. **Predict:** with 8 images per step, how many steps per epoch? Does the run take longer? Is the network more accurate? In the last training cell, replace `-b 32` by `-b 8`, delete `--data-nthreads 1`, and run it and the next. On a GPU, then delete `--network tiny`, too: the default is ResNet-50.
#
# <details><summary>Why?</summary>An epoch has 300 steps. Four times as many steps at a quarter of the learning rate are meant to end alike (*linear scaling*). But each step has a fixed cost. Notebook 02 explains both.</details>
#
# ## What happens in a step
#
# Each step repeats the same work on the next batch. The processor reads JPEGs from storage, decodes and crops them, and copies the pixels to the device that computes, usually a GPU. The **forward** pass turns pixels into predictions and keeps each layer's output. The **loss** compares the predictions with the labels. The **backward** pass goes through the layers in reverse and uses the kept outputs to compute a gradient for every weight. If there are several devices, they **exchange** gradients (*communication*), so that each uses the average. The **update** then changes the weights. The figure shows how much data moves where: ImageNet's mean JPEG has 115 KB, and ResNet-50 keeps 86 MB of outputs per image, as notebook 02 measures. Later figures keep its colours.

# %%
from workshop.lessons import nb00

nb00.show_step()

# %% [markdown]
# ## Why training is expensive
#
# How long does one training run on ImageNet take: 1,281,167 training images, and the published recipe's 90 epochs? On one V100, a data-centre GPU from 2017, [NVIDIA's program](https://github.com/NVIDIA/DeepLearningExamples/tree/a8e1d1cd/MxNet/Classification/RN50v1.5) trains at 400.2 images per second in 32-bit precision (FP32) and at 1,442.6 in 16-bit (FP16). **Predict:** hours, days or weeks for each? And how many MB/s must storage deliver, at 115 KB per image?
#
# **Your turn:** write the formula. The next cell checks it, and uses it for two GPUs and your last run.


# %%
def training_hours(images, epochs, rate):
    """Return the hours of `epochs` passes over `images` images at `rate` images per second."""
    return None  # your code


# %%
from rn50lib import resnet

training_hours = nb00.check_hours(training_hours)
images, megabytes, passes = 1_281_167, 147_897, 90  # ImageNet's training archive, epochs
work = resnet.resnet(50, 1000).train_flops(224)  # of an image: forward, and twice that backward
print(f"{work / 1e9:.1f} billion operations per image, {images * passes * work:.1e} in all")
rows = []
for gpu, trained, possible in (
    ("V100, FP32", "published.v100.1gpu.fp32.ips", "v100.fp32"),
    ("V100, FP16", "published.v100.1gpu.fp16.ips", "v100.fp16"),
    ("H100, FP16", "h100.float16.ips", "h100.fp16"),
):
    rate, peak = session.results[trained].value, session.results[possible].value
    reached = rate * work / 1e12  # TFLOP/s
    hours, read = training_hours(images, passes, rate), rate * megabytes / images
    rows.append([gpu, rate, hours, read, reached, peak, f"{reached / peak:.0%}"])
workshop.table(rows, ["", "images/s", "hours", "MB/s read", "TFLOP/s", "peak", "of peak"])
speeds = runs[-1]["metrics"]["train.total_ips"]  # without each epoch's first step
rate = len(speeds) / sum(1 / speed for speed in speeds)  # equal images: the harmonic mean
seconds = 3600 * training_hours(count, len(speeds), rate)
print(f"your last run: {rate:,.0f} images/s take {seconds:.0f} s;", end=" ")
print(f"measured, with first steps: {sum(runs[-1]['env']['seconds'].values()):.0f} s")

# %% [markdown]
# (V100: published; H100: measured, as is its peak.) In FP32, arithmetic explains most: the V100 reaches 63% of its peak, and needs over three days (published: 82.0 hours). In FP16, it explains less: the V100 reaches 28% of its peak, the H100 17%. Where does the rest of the time go? That is the course's question.
#
# FP16, with the larger batch it allows, cuts the published run from 82.0 to 22.9 hours: 3.6 times as fast. Half the bytes explain at most a factor of 2; Tensor Cores and the batch do the rest (notebooks 06 and 08). The H100 was measured on synthetic images: it needs 6.6 hours only if it never waits for real ones. More GPUs help as long as the input keeps up: at the published 10,263.2 images/s, eight V100s read 1.2 GB/s.
#
# **Try it:** cars collect images, too. A fleet keeps 63 million a year, 49 times ImageNet. How many days would 90 epochs take on a V100 in FP16? Call `training_hours` in a new cell.
#
# <details><summary>Solution</summary><code>training_hours(63e6, 90, 1442.6) / 24</code>: 45.5 days on a V100, 6.4 on eight, and 13.6 on one H100.</details>
#
# ## Where the course goes
#
# Below are the notebooks, and the speed of published runs and of the course's script on an H100 after notebooks 02, 05, 06 and 08. Its first version, in PyTorch's default precision, is slower than a V100 in FP16. Once your script has run, the figure shows your speeds instead.

# %%
workshop.course_map()
workshop.ladder.figure()

# %% [markdown]
# ## If something does not work
#
# - **Errors of `rn50` are one line long**: what is wrong, and how to fix it. [docs/troubleshooting.md](../docs/troubleshooting.md) explains common ones.
# - **`rn50 doctor`**, in a terminal, checks your machine and suggests a fix for each problem.
# - **To restore a notebook**, run `rn50 workshop reset 00`. It keeps a copy of your version.
#
# Your runs read packed images (`recordio`). The next notebook packs them, and asks whether that pays.
