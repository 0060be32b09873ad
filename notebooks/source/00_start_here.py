# %% [markdown]
# # 00 · Start here
#
# In this notebook, you train your first network and test it on images. You also learn why training needs so much computing power and how the notebooks work. You should know Python and the basics of deep learning: what a convolution, a loss and a gradient step are.
#
# **Time:** 10 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about a minute to run, plus a minute if the set-up has not generated the images

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
epochs: int | None = None  # epochs to train
seed: int = 0  # random seed

# %% [markdown]
# Run the cells from top to bottom with Shift + Enter. The cell above contains the notebook's parameters: to change one, edit it and rerun everything below. Every notebook starts with a cell like the next one. It reports this machine's hardware, chooses a profile for it, and generates the course's images of road signs if they are missing.

# %%
import os

import workshop

session = workshop.start("00", profile)
epochs = epochs or session.epochs
os.chdir(session.folder)  # everything below is written here
os.environ |= {"DATA": str(session.data_root), "EPOCHS": str(epochs), "SEED": str(seed)}

# %% [markdown]
# ## Train a network first
#
# The command below trains a network on images of twelve road signs. The network, `tiny`, is a small version of ResNet-50, the network of this course: it uses the same code but trains far faster. A cell that starts with `%%bash -e` contains what you would type in a terminal. The variables in capitals were set above, and `2>&1` shows the command's messages as ordinary output. `-n 1` trains on one device, `-b 32` takes 32 images per step (the *batch*), and `-e` sets the number of passes over the data (*epochs*).
#
# **Predict** before you run it: random guessing gets 1 in 12 right, or 8.3%. How much better will the network be after such a short run? (In the output, lines that begin with `--` are settings under their long names, each with its reason. `top-1` is the accuracy in percent, and `img/s` is images per second. On a slow machine, you also see progress lines, in which `ips` is images per second and `lr` the learning rate.)

# %% language="bash" magic_args="-e"
# rm -f first*  # from an earlier run
# rn50 run --network tiny --image-shape 32 -n 1 -b 32 -e $EPOCHS --data-root "$DATA" --seed $SEED \
#   --model-prefix first --report first.json 2>&1

# %% [markdown]
# Now show the network eight validation images, which it was not trained on.

# %%
from pathlib import Path

images = sorted(Path(session.data_root, "val").glob("*/*.jpg"))
chosen = images[len(images) // 16 :: len(images) // 8]
Path("chosen.txt").write_text("\n".join(map(str, chosen)))
print(f"{len(chosen)} of {len(images):,} validation images chosen")

# %% language="bash" magic_args="-e"
# tr '\n' '\0' < chosen.txt | xargs -0 rn50 predict -o answers.npz first $EPOCHS 2>&1

# %%
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

plt.style.use("tableau-colorblind10")
with np.load("answers.npz") as found:
    answers, sure = (
        found["classes"][found["probabilities"].argmax(1)],
        found["probabilities"].max(1),
    )
truth = [file.parent.name for file in chosen]
fig, axes = plt.subplots(2, 4, figsize=(10, 5), layout="constrained")
for ax, file, answer, share in zip(axes.flat, chosen, answers, sure, strict=True):
    ax.imshow(Image.open(file))
    ax.set(
        xticks=[], yticks=[], title=f"{file.parent.name}", xlabel=f"{answer}, {100 * share:.0f}%"
    )
right = sum(answers == truth)
fig.suptitle(f"True class above, the network's answer below: {right} of 8 correct")
workshop.figure(fig, alt=f"Eight road signs with the network's answers, {right} of them right")

# %% [markdown]
# The run's report contains the accuracy on the whole validation set: the **top-1**, the share of images whose top-ranked class is right. Compare it with the 8.3% of random guessing and with your prediction. With only eight images, the share of right answers above can be far from the top-1. The report also records the machine, the software versions, and the reason for every setting.

# %%
import json

report = json.loads(Path("first.json").read_text())
top1 = report["metrics"]["val.top1"]
print("validation top-1 after each epoch:", ", ".join(f"{value:.1f}%" for value in top1))
print(f"the run took {report['total_duration']:.0f} s; its metrics: {', '.join(report['metrics'])}")

# %% [markdown]
# ## Why train so often?
#
# This course grew out of a talk on data sets for autonomous driving. A self-driving car needs networks that recognise signs, pedestrians and lanes. The same cars collect the data that trains the next networks, so development is a loop. Simulation tests a new network on virtual roads, and re-simulation runs it on recorded drives. Mapping turns the recordings into maps for the next drives.

# %%
loop = ["collect data", "train models", "simulate", "re-simulate", "map"]
angles = np.pi / 2 - 2 * np.pi * np.arange(len(loop)) / len(loop)
x, y = 2.2 * np.cos(angles), np.sin(angles)
arrow = {"arrowstyle": "-|>", "connectionstyle": "arc3,rad=-0.15", "lw": 2}
fig, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
for i, name in enumerate(loop):
    after = (i + 1) % len(loop)
    ax.annotate(
        "", (x[after], y[after]), (x[i], y[i]), arrowprops=arrow | {"shrinkA": 50, "shrinkB": 50}
    )
    colour, width = ("#c85200", 4) if name == "train models" else ("#006ba4", 2)
    box = {"boxstyle": "round,pad=0.5", "fc": "white", "ec": colour, "lw": width}
    ax.text(x[i], y[i], name, ha="center", va="center", bbox=box)
ax.set(
    xlim=(-3, 3),
    ylim=(-1.2, 1.2),
    title="The development loop of self-driving cars: this course covers training",
)
ax.axis("off")
workshop.figure(fig, alt=f"A loop of five steps: {', '.join(loop)}, and back to the start")

# %% [markdown]
# Every pass through the loop adds data, and the networks are retrained on all of it. How long does that take? **Predict:** hours, days or weeks? To get a feel for it, estimate how long one training run takes on ImageNet, the data set behind the published ResNet-50 results. It has 1,281,167 training images, and the recipe trains for 90 epochs. NVIDIA published the rates and hours below for one V100, a data-centre GPU from 2017 with 16 GB of memory, in 32-bit (FP32) and 16-bit (FP16) precision. NVIDIA's training program is called `runner`: the published hours come from `runner -n 1 -b 96 --dtype float32` and `runner -n 1 -b 208` (FP16 is its default).

# %%
images, megabytes, passes = 1_281_167, 147_897, 90  # ImageNet's training archive, epochs
for precision in ("fp32", "fp16"):
    rate = session.results[f"published.v100.1gpu.{precision}.ips"].value
    took = session.results[f"published.v100.1gpu.{precision}.hours"].value
    hours = images * passes / rate / 3600
    print(f"{precision.upper()}: {images:,} images x {passes} epochs / {rate:,} images/s", end=" ")
    print(
        f"= {hours:.1f} h at {rate * megabytes / images:.0f} MB/s from storage; published: {took} h"
    )
print(f"size: {megabytes / 1000:.0f} GB on disk, {megabytes * passes / 1e6:.1f} TB read in all")

# %% [markdown]
# So the answer is days: more than three in FP32, about one in FP16. The estimate is slightly low, because it leaves out validation, checkpoints and start-up. FP16 and the larger batch it allows cut 82 hours to 23. Halving the size of each number does not explain that alone: the V100 also multiplies 16-bit numbers in special units, its Tensor Cores (notebook 06). The published runs fit a batch of 96 (FP32) or 208 (FP16) into the same 16 GB: memory limits the batch size (in the words of the talk's slide, "Minibatching - memorybound"). Adding GPUs also helps, as long as the input pipeline keeps up: at the published 10,263.2 images/s, eight V100s read 1.2 GB/s.
#
# ## Where the course goes
#
# The course takes you from a folder of JPEGs to a trained ResNet-50 v1.5. One training script grows along the way. Each change can move the bottleneck, so keep asking: *where is the time going now?*

# %%
workshop.course_map()

# %% [markdown]
# Notebooks 01 to 08 have exercises. Automatic checks tell you at once what is wrong with your answer, and why. The next cell shows which exercises you have passed:

# %%
workshop.progress()

# %% [markdown]
# The profile decides how much a notebook computes, not what it teaches. `cpu` runs any notebook from top to bottom within 5 minutes on two cores, and `gpu` runs long enough for reliable numbers. `ci` is for tests: its runs are so short that accuracy and speed mean nothing. If you lack the hardware for a notebook, you get a smaller variant, or a recorded result with its source.
#
# ## Your turn
#
# A fleet has 100 cars with 8 cameras each. Every camera records 30 images per second for 2 hours a day, and one image in 1,000 is worth keeping. The fleet collects images for `days` days. How many days would it then take to train for 90 epochs on the images kept, at `rate` images per second? Replace `...` with `return` and your formula.


# %%
def training_days(days, rate):
    """Return how many days 90 epochs on the fleet's images take."""
    ...


# %% tags=["folded"]
yours = training_days(days=365, rate=1442.6)  # one V100, FP16
kept = 100 * 8 * 30 * (2 * 60 * 60) / 1000  # images per day
factor = (yours or 0) * 1442.6 * 24 * 60 * 60 / (365 * kept * 90)
hints = {24: "these are hours", 86400: "these are seconds", 1 / 90: "the 90 epochs are missing"}
hints |= {1000: "only one image in 1,000 is kept", 1 / 3600: "2 hours are 7,200 seconds"}
if yours is None:
    print("Nothing returned yet: in the cell above, `return` your formula, and run both cells.")
elif abs(factor - 1) < 0.01 and abs(training_days(730, 721.3) / yours - 4) > 0.04:
    print("Right for these two numbers only: use `days` and `rate` in your formula.")
elif abs(factor - 1) < 0.01:
    print(f"Right: a year of data is {365 * kept / 1_281_167:.0f} times ImageNet.", end=" ")
    print(f"90 epochs take {yours:.1f} days on one V100 in FP16 and", end=" ")
    print(f"{training_days(365, 10263.2):.1f} days on eight (10,263.2 images/s, published).")
else:
    close = [text for size, text in hints.items() if abs(factor / size - 1) < 0.01]
    print(f"{yours:.4g} is {factor:.4g} times the right answer", *close, sep=": ")

# %% tags=["results"]
session.note("first_top1", top1[-1], "%", "accuracy of the first network")
session.note("first_run_s", report["total_duration"], "s", "duration of the first training run")

# %% [markdown]
# ## If something does not work
#
# - **A one-line error** names the offending file, value or flag, and the fix.
# - **`rn50 doctor`**, in a terminal, checks memory, disk, driver and frameworks, and suggests a fix for each problem.
# - **To restore a notebook**, run `rn50 workshop reset 00`. It keeps a copy of your version.
# - **To stop a run**, interrupt the cell (■ in the toolbar).
# - **Out of GPU memory?** Shut down the kernels of other notebooks. `nvidia-smi` lists the processes that hold memory.
# - **To run a notebook without a browser**: `rn50 workshop run 00 --profile cpu -p seed 1` writes the executed notebook and an HTML copy to `runs/`.
#
# The next notebook packs a folder of JPEGs into files that a training run can read quickly.
