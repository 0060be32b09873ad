# %% [markdown]
# # 00 · Start here
#
# In this course, you write one script that trains ResNet-50 v1.5, and make it faster, one change at a time. Before each, you measure: *where is the time going now?* On one H100, the changes took an earlier version, which read JPEG files with 12 workers, from 1,080 to 4,107 images per second (recorded; figure below). With several GPUs, you also measure what each GPU adds. On a laptop, you do the same with smaller images.
#
# By the end of this notebook, you will have trained and tested a network, and will know what happens in a training step and why training is so expensive. You should know Python and the basics of deep learning: convolutions, losses and gradient steps. If you have trained networks often, run all cells, and read on from [why training is expensive](#Why-training-is-expensive).
#
# **Time:** 20 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about a minute to run, plus a minute if the set-up has not generated the images

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
epochs: int | None = None  # epochs to train
seed: int = 0  # random seed

# %% [markdown]
# Run the cells from top to bottom with Shift + Enter. The cell above has the notebook's parameters: to change one, edit it and rerun everything below. The next cell reports your hardware, chooses a *profile*, and generates the images of road signs if they are missing.
#
# The profile decides how much a notebook computes: `cpu` runs any notebook in under 4 minutes on two otherwise idle cores, `gpu` mostly uses 224-pixel images, and `ci` is for tests: its numbers mean nothing. Without the hardware for a notebook, you get a smaller variant, a recorded result, or a note.

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
# **Predict:** random guessing gets 1 in 12 right, or 8.3%. What accuracy will the network reach? Enter it for a batch of 32.

# %%
guess = {32: 50, 8: 50}  # your numbers, in percent, by batch

# %% language="bash" magic_args="-e"
# BATCH=32  # images per step; later 8
# rm -f first*  # from an earlier run
# rn50 run --network tiny --image-shape 64 -n 1 -b $BATCH -e $EPOCHS --set crop_area=0.5 \
#   --data-root "$DATA" --seed $SEED --model-prefix first --report "run-$(date +%s).json" 2>&1

# %% [markdown]
# Lines that begin with `--` list the settings, with the reason for each value. `top-1` is the percentage of images whose highest-scoring class is right; for training images, it averages over the epoch, on random crops. `img/s` (or `ips`) is images per second; the first steps are slow. The learning rate (`lr`) rises, then drops tenfold three times, so late epochs add little.
#
# What does the network confuse? Show it eight validation images. In the command, `first $EPOCHS` names the weights that training saved.

# %%
images = sorted(Path(session.data_root, "val").glob("*/*.jpg"))
chosen = images[len(images) // 16 :: len(images) // 8]
_ = Path("chosen.txt").write_text("\n".join(map(str, chosen)))

# %% language="bash" magic_args="-e"
# tr '\n' '\0' < chosen.txt | xargs -0 rn50 predict -o answers.npz first $EPOCHS 2>&1

# %%
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

with np.load("answers.npz") as found:
    probabilities = found["probabilities"]
    answers, sure = found["classes"][probabilities.argmax(1)], probabilities.max(1)
truth = np.array([file.parent.name for file in chosen])
fig, axes = plt.subplots(2, 4, figsize=(9, 4.8))
for ax, file, true, answer, share in zip(axes.flat, chosen, truth, answers, sure, strict=True):
    ax.imshow(Image.open(file))
    ax.set(xticks=[], yticks=[], xlabel=f"{'✓' if answer == true else '✗'} class: {true}")
    ax.set_title(f"{answer}, {share:.0%}")
right = sum(answers == truth)
fig.suptitle(f"{right} of 8 are right: each answer with its probability")
workshop.figure(fig, alt=f"Eight road signs, of the classes {', '.join(truth)}")

# %% [markdown]
# **Try it:** how often is `speed-50` confused with `speed-80`? In the cell that chooses the images, replace `*/*.jpg` with `speed-50/*.jpg`. Then run it and the next two again.
#
# Eight images are too few to judge a network by. The run's report has the top-1 on the whole validation set. The next cell prints it, your prediction, and the share of time spent waiting for images: the most that a faster input can save. The table has recorded runs of a full ResNet-50, nine epochs on the same images.

# %%
import json

for file in sorted(Path().glob("run-*.json")):
    report = json.loads(file.read_text())
    flags, seconds = report["env"]["axes"], report["env"]["seconds"]
    batch, decoders = flags["batch_size"]["value"], flags["data_nthreads"]["value"]
    top1 = report["metrics"]["val.top1"]
    print(f"batch {batch}, {decoders} decoding thread(s):", end=" ")
    print(f"{count // batch} steps per epoch, {report['total_duration']:.0f} s in all;", end=" ")
    total = sum(seconds.values())
    print(f"training: {total:.0f} s, of which {seconds['data'] / total:.0%} is waiting for images")
    print("  validation top-1 after each epoch:", ", ".join(f"{value:.1f}%" for value in top1))
    print(f"  you expected {guess.get(batch, '?')}%")
session.expect(dict.fromkeys(["roadsigns.resnet50.float32.top1", "roadsigns.h100.seconds"]))
session.note("first_top1", top1[-1], "%", "accuracy of your last run")

# %% [markdown]
# ### Change one thing
#
# **Predict:** with 8 images per step, how many steps per epoch? Does the run take longer? Is the network more accurate? **Your turn:** enter the accuracy in `guess`, set `BATCH=8` in the training cell, and rerun from the `guess` cell to the one above, which shows all runs.
#
# Then set `BATCH=32` again, and **predict** the share of waiting with one decoding thread: add `--data-nthreads 1`, run, compare. On a GPU, then delete that flag and `--network tiny`: the default is ResNet-50.
#
# <details><summary>Why?</summary>Four times as many steps at a quarter of the learning rate are meant to end alike (*linear scaling*). But each step has a fixed cost. Notebook 02 explains both. With one thread, steps wait only if it decodes more slowly than the network computes, and only for the difference.</details>
#
# ## What happens in a step
#
# Each step repeats the same work on the next batch. The processor reads JPEGs from storage, decodes and crops them, and copies the pixels to the device that computes, usually a GPU. The **forward** pass turns pixels into predictions and keeps each layer's output. The **loss** compares the predictions with the labels. The **backward** pass goes through the layers in reverse and uses the kept outputs to compute a gradient for every weight. If there are several devices, they **exchange** gradients (*communication*), so that each uses the average. The **update** then changes the weights. The figure shows how much data moves where, for ResNet-50 and 64 images. Later figures keep its colours.

# %% tags=["folded"]
batch, weights = 64, 25_557_032  # of ResNet-50
jpegs = batch * 147_897 / 1_281_167  # MB: ImageNet's mean image
pixels = batch * 3 * 224 * 224 * 4 / 1e6  # MB in float32
kept = batch * 86 / 1000  # GB: 86 MB for each image, as notebook 02 measures
gradients = weights * 4 / 1e6  # MB
places = {"JPEG files": (0, 1), "decode, crop": (2.2, 1), "forward": (2.2, 0), "loss": (4, 0),
          "backward": (6, 0), "update": (8.4, 0), "other devices": (6, 1)}  # fmt: skip
moves = [  # from, to, part, bend; text and its position
    ("JPEG files", "decode, crop", "input", 0, f"input: {jpegs:.1f} MB", 1.03, 1.15),
    ("decode, crop", "forward", "input", 0, f"{pixels:.1f} MB of pixels", 3.1, 0.5),
    ("forward", "loss", "compute", 0, "compute", 3.15, 0.1),
    ("loss", "backward", "compute", 0, "", 0, 0),
    ("forward", "backward", "compute", 0.3, f"each layer's output is kept: {kept:.1f} GB", 4, -0.7),
    ("backward", "update", "compute", 0, f"gradients, {gradients:.0f} MB", 7.25, 0.15),
    ("backward", "other devices", "communication", 0, "communication:\ngradients", 6.9, 0.4),
]
fig, ax = plt.subplots(figsize=(9, 3))
ax.set(xlim=(-0.8, 9), ylim=(-0.8, 1.5))
frame = {"fc": "white", "boxstyle": "round,pad=0.5"}
boxes = {name: ax.text(*place, name, ha="center", va="center", bbox=frame)
         for name, place in places.items()}  # fmt: skip
fig.draw_without_rendering()  # places the boxes, at whose edges the arrows end
for start, end, part, bend, text, x, y in moves:
    arrow = {"arrowstyle": "<->" if part == "communication" else "->", "lw": 2}
    arrow |= {"color": workshop.MEANING[part], "connectionstyle": f"arc3,rad={bend}"}
    arrow |= {"patchA": boxes[start].get_bbox_patch(), "patchB": boxes[end].get_bbox_patch()}
    ax.annotate("", places[end], places[start], arrowprops=arrow)
    ax.text(x, y, text, ha="center", va="bottom")
ax.set_title(f"ResNet-50, 64 images in float32: {jpegs:.1f} MB are read, {kept:.1f} GB are kept")
ax.axis("off")
alt = "; ".join(f"{start} to {end} {text}" for start, end, _, _, text, _, _ in moves)
workshop.figure(fig, alt=f"A step as a diagram: {alt}")

# %% [markdown]
# ## Why training is expensive
#
# How long does one training run on ImageNet take: 1,281,167 training images, and the published recipe's 90 epochs? On one V100, a data-centre GPU from 2017, [NVIDIA's program](https://github.com/NVIDIA/DeepLearningExamples/tree/a8e1d1cd/MxNet/Classification/RN50v1.5) trains at 400.2 images per second in 32-bit precision (FP32) and at 1,442.6 in 16-bit (FP16). **Predict:** hours, days or weeks for each? And how many MB/s must storage deliver, at 115 KB per image?
#
# **Your turn:** write the formula. The next cell checks it, and uses it for three GPUs and your run.


# %%
def training_hours(images, epochs, rate):
    """Return the hours of `epochs` passes over `images` images at `rate` images per second."""
    return None  # your code


# %%
from rn50lib import resnet
from workshop.lessons import nb00

training_hours = nb00.check_hours(training_hours)
images, megabytes, passes = 1_281_167, 147_897, 90  # ImageNet's training archive, epochs
work = resnet.resnet(50, 1000).train_flops(224)  # of an image: forward, and twice that backward
print(f"{work / 1e9:.1f} billion operations per image, {images * passes * work:.1e} in all")
for gpu, key, most in (
    ("V100, FP32", "published.v100.1gpu.fp32.ips", "v100.fp32"),
    ("V100, FP16", "published.v100.1gpu.fp16.ips", "v100.fp16"),
    ("H100, FP16", "h100.float16.ips", "h100.fp16"),
):
    rate, peak = session.results[key].value, session.results[most]
    hours, reached = training_hours(images, passes, rate), rate * work / 1e12  # TFLOP/s
    print(f"{gpu} ({session.results[key].kind}): {rate:,} images/s take {hours:.1f} h", end=" ")
    print(f"and {rate * megabytes / images:.0f} MB/s of JPEGs;", end=" ")
    print(
        f"{reached:.0f} of {peak.value:g} TFLOP/s ({peak.kind} peak), or {reached / peak.value:.0%}"
    )
speeds = report["metrics"]["train.total_ips"]  # of your last run, without each epoch's first step
rate = len(speeds) / sum(1 / speed for speed in speeds)  # equal images: the harmonic mean
seconds = 3600 * training_hours(count, len(speeds), rate)
print(f"your last run: {rate:,.0f} images/s take {seconds:.0f} s;", end=" ")
print(f"measured, with first steps: {sum(report['env']['seconds'].values()):.0f} s")

# %% [markdown]
# In FP32, arithmetic explains most: the V100 reaches 63% of its peak for over three days; the published run took 82.0 hours. In FP16, it explains less: the V100 reaches 28% of its data sheet's peak, the H100 17% of a measured one. Where does the rest of the time go? That is the course's question.
#
# FP16, with the larger batch it allows, cuts the published run from 82.0 to 22.9 hours. That is 3.6 times as fast; half the bytes explain at most 2 (notebook 06). The H100 was measured on synthetic images: it needs 6.6 hours only if it never waits for real ones. More GPUs help as long as the input keeps up: at the published 10,263.2 images/s, eight V100s read 1.2 GB/s.
#
# **Try it:** what would other data cost? Self-driving cars need such networks, and collect the data for them. A fleet has 100 cars with 8 cameras each. Every camera records 30 images per second for 2 hours a day, and one image in 1,000 is worth keeping. How many days would 90 epochs on a year's images take on a V100 in FP16? Call `training_hours` in a new cell.
#
# <details><summary>Solution</summary><code>training_hours(365 * 100 * 8 * 30 * (2 * 60 * 60) / 1000, 90, 1442.6) / 24</code>: a year is 49 times ImageNet, and takes 45.5 days on a V100, 6.4 on eight, and 13.6 on one H100.</details>
#
# ## Where the course goes
#
# Below are the notebooks, and the speed of published runs and of the course's script on an H100 after notebooks 02, 05, 06 and 08. Its first version, in float32, is slower than a V100 in FP16. Once your script has run, the figure shows your speeds instead.

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
# The run above read packed images (`recordio`). The next notebook packs them, and asks whether that pays.
