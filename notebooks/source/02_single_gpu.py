# %% [markdown]
# # 02 · One GPU
#
# After this notebook you can train ResNet-50 v1.5 with the published recipe, read its report, resume a killed run and say where its time goes.
#
# **Time:** 40 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 4 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
epochs: int | None = None  # epochs of the run; None: 2, on a GPU those of the recipe
batch: int = 32  # images a step
pairs: int | None = None  # timed pairs of v1 and v1.5; None: 10
seed: int = 0  # start of all randomness

# %%
import workshop

session = workshop.start("02", profile)

# %% [markdown]
# ## Where is the time going?
#
# A training step does four things: it fetches a batch of pictures, computes with them, exchanges the result with other workers where there are any, and updates the weights. Only one of them is the slowest, and making any of the others faster gains nothing. This course therefore asks one question again and again: **where is the time going now?**
#
# This notebook has one worker, so that computing and fetching are all there is. You look at the network and the recipe, run the loop, and at the end you answer the question with the numbers of your own run.

# %% [markdown]
# ## What ResNet-50 is
#
# A residual network is a pile of blocks. Each block computes a *correction* to its input and adds it: `output = input + correction`. A block whose correction is zero passes its input on, and the gradient has a short way back through the additions. That is why fifty layers can be trained, where plain networks got worse with more layers.
#
# The table below is computed from `rn50lib.network`, the description from which the real model is built. From stage to stage the maps shrink and the channels grow.

# %%
from rn50lib import network
from workshop.lessons.single_gpu import network as drawn

v15 = network.resnet(50)
rows = drawn.part_rows(v15, image_size=224)
workshop.table(
    rows,
    columns=["part", "blocks", "pixels", "channels", "M multiply-adds", "parameters"],
    caption="ResNet-50 v1.5 at 224 pixels; pixels and channels of what comes out of a part",
)
work, weights = (max(rows, key=lambda row: row[column]) for column in (4, 5))
print(f"Most of the work is in {work[0]}, most of the parameters are in {weights[0]}.")

# %% [markdown]
# This is the block of the real model in PyTorch, a *bottleneck*: the last lines add the correction to the input. Where the shape changes, the input is projected first; elsewhere `downsample` does nothing.

# %%
workshop.show("rn50lib.backends.torch.model:Bottleneck")

# %% [markdown]
# ### v1 and v1.5
#
# Between two stages the maps shrink to half their width and height, by a convolution with a stride of 2. The original network, now called v1, does this in the first convolution of the block, a 1×1. A 1×1 convolution with a stride of 2 looks at every second pixel of every second row and never sees the others. Version 1.5 moves the stride to the 3×3 convolution, whose windows overlap, so that it sees them all. The shortcut beside it is the same in both.

# %%
v1 = network.resnet(50, version="v1")
workshop.table(
    [row for net in (v1, v15) for row in drawn.stride_rows(net, image_size=224)],
    columns=["", "convolution", "stride", "px in", "px out", "M multiply-adds", "of its input, %"],
    caption="The first block that makes the maps smaller",
)
fig, finding = drawn.strides([v1, v15])
workshop.figure(
    fig, alt=f"Pixels of a feature map that are read, and those that are not. {finding}"
)
print(finding)

# %% [markdown]
# ### Counted
#
# Moving the stride costs no parameters. It does cost work, because the first 1×1 convolution now runs on the map before it shrinks, which has four times the pixels.

# %%
rows = [
    [net.version, net.num_parameters, net.macs(224) / 1e9, net.train_flops(224) / 1e9]
    for net in (v1, v15)
]
workshop.table(
    rows,
    columns=["", "parameters", "G multiply-adds, forward", "GFLOP to train on an image"],
    caption="ResNet-50 with 1,000 classes at 224 × 224 pixels",
)
more_work = v15.macs(224) / v1.macs(224)
print(f"v1.5 does {100 * (more_work - 1):.1f} % more work with the same number of parameters.")

# %% [markdown]
# The last column counts two operations per multiply-add, and three times the forward pass, because the backward pass computes two gradients: one for the weights and one for the layer's input.
#
# ### Timed
#
# More work need not mean as much more time. NVIDIA's document on this network says that v1.5 is about 0.5 % better in top-1 and about 5 % slower. The accuracy is quoted here, not claimed: to see half a per cent one needs ImageNet, 90 epochs and several runs of each. The time you can measure.
#
# Two runs after each other would compare two moments of this machine. The cell lets the two networks take turns, each in a process of its own, and takes the ratio of each pair. The shaded band is where the median lies, with a confidence of at least 95 % from six pairs on.

# %%
from dataclasses import replace

from rn50lib.config import Experiment
from workshop.lessons import figures
from workshop.pairs import median_interval, time_pairs

at_224 = Experiment(image_shape=224, num_classes=1000, batch_size=session.pick(cpu=8, gpu=64))
both = {version: replace(at_224, resnet_version=version) for version in ("v1", "v1.5")}
count, steps = pairs or session.pick(ci=2, cpu=10), session.pick(cpu=1, gpu=10)
measured = time_pairs(both, pairs=count, steps=steps)
fig, finding = figures.pairs(measured, {"published": 1.05, "work counted": more_work})
workshop.figure(fig, alt=f"Milliseconds a step of v1 and v1.5, and their ratio. {finding}")
done = measured.experiment
print(f"{done.dtype}, {done.image_shape} px, batch {done.batch_size}, {done.threads} threads.")
print(finding)
ratio = median_interval(measured.ratios)[0]
session.note("v15_over_v1", ratio, "times", "time of a v1.5 step over a v1 step")

# %% [markdown]
# ## The recipe
#
# Two people who train "ResNet-50" and disagree about accuracy mostly disagree about the recipe. Here it is data, in one place, and every loader and framework of this project reads it there. The first is the published one for ImageNet. The second is made from it for the built-in road signs: the same schedule over fewer epochs, a rate found by a sweep, crops that still show the sign, and `zero_gamma`, which starts every block with a correction of zero.

# %%
workshop.show("rn50lib.recipe:REFERENCE")
workshop.show("rn50lib.recipe:ROADSIGNS")

# %% [markdown]
# ### Linear scaling and warm-up
#
# The learning rate belongs to a batch size. A step on twice as many images averages over twice as many gradients, and an epoch has half as many steps. If each step is also twice as long, the weights end up in much the same place. That is **linear scaling**: 0.1 for a global batch of 256, and in proportion for others.
#
# The argument holds while the weights change little from step to step. At the beginning they change a lot, and a long step can throw the run off. So the rate starts at zero and rises linearly over the first epochs: the **warm-up**. Later the rate falls to a tenth, three times, so that the weights can settle.

# %%
from rn50lib import recipe

workshop.show(recipe.learning_rate)

# %% [markdown]
# Look at what the function does *not* have: a counter, a state, a call that must come once per epoch. The learning rate is a pure function of the progress. Ask it about epoch 45.5 in any order, on any worker, after any crash, and the answer is the same. A run that is resumed in the middle therefore needs to restore nothing to know its learning rate.
#
# ### Turn the knobs
#
# The dashed line is the preset as it stands in the library, the solid line is yours, and the cross is the function asked at one moment. Three things to try: double the workers and watch the peak; set the warm-up to 0; choose the preset `roadsigns` and see how short its run is.

# %%
drawn.explore_schedule()

# %% [markdown]
# ## The loop
#
# Here is one epoch of the real loop. Every run of every notebook goes through it, whatever the framework, the loader and the precision.

# %%
from rn50lib import training

workshop.show(training.train_epoch)

# %% [markdown]
# And here is the step that it calls, in PyTorch. `inputs` puts the pixels on the device and normalises them there, because bytes are a quarter of the traffic that floating-point numbers would be. `compute` goes forwards and backwards and has the gradients averaged over the workers, and `update` changes the weights. Whatever is said there of a scaler belongs to mixed precision, notebook 06: in this notebook there is none.

# %%
from rn50lib.backends.torch.step import TorchStep

workshop.show(TorchStep.inputs)
workshop.show(TorchStep.train_step)
workshop.show(TorchStep.compute)
workshop.show(TorchStep.update)

# %% [markdown]
# ### What is not in it
#
# A GPU works through a queue: the processor hands over work and goes on. The queue keeps the GPU busy as long as nobody asks for a *result*, because whoever asks must wait for everything before it. One `loss.item()` per step is such a question, and it drains the queue each time. Loss and accuracy are therefore added up on the device, and the loop reads the sums every 20 steps, or as often as `disp_batches` says.
#
# The cell looks for such questions in the source that you have just seen, and in the function that does ask.

# %%
from workshop.lessons.single_gpu.reading import calls

waits = {"item", "cpu", "numpy", "tolist", "synchronize"}
functions = (
    training.train_epoch, TorchStep.train_step, TorchStep.inputs, TorchStep.compute,
    TorchStep.forward, TorchStep.update, TorchStep.add_up, TorchStep.read_sums,
)  # fmt: skip
rows = []
for function in functions:
    found = calls(function)
    asking = ", ".join(name for name in found if name in waits)
    rows.append([function.__qualname__, len(found), asking or "none"])
workshop.table(rows, columns=["function", "calls", "calls that wait for the device"])

# %% [markdown]
# Nor is there any Python per image: the loop handles whole batches, decoding happens in worker processes ahead of time, and normalising is one operation for the whole batch.

# %% [markdown]
# ## Run it
#
# Now train. The full run of the road signs goes through all epochs of the recipe, which takes minutes on two CPU cores. On a CPU this cell therefore stops after 2, and where the processor does not compute in bfloat16 it takes 1,600 of the 2,400 pictures. The schedule shrinks with the run, so that the warm-up and the three decays are all there. On a GPU the cell does the full run.

# %%
epochs = epochs or session.pick(cpu=2, gpu=recipe.ROADSIGNS.epochs)
slow = session.profile != "gpu" and not session.machine.bfloat16
run = workshop.train(
    name="short", num_epochs=epochs, batch_size=batch, seed=seed, model_prefix="model",
    num_examples=1600 if slow else None, disp_batches=10,
).live()  # fmt: skip
# %% [markdown]
# Before you go on, look at the curves. The learning rate climbs during the warm-up and then falls in three steps. Does the loss fall faster right after one of them? In the last row you see whether the cores were busy all the time.

# %%
report = run.report
metrics, axes = report["metrics"], report["env"]["axes"]
top1, classes = metrics["val.top1"][-1], axes["num_classes"]["value"]
dtype = axes["dtype"]["value"]
print(f"{report['model']}, {len(metrics['val.top1'])} epochs in {dtype}: top-1 {top1:.1f} %.")
print(f"Guessing among {classes} classes would give {100 / classes:.1f} %.")
session.note("short_top1", top1, "%", f"top-1 of {report['model']} after the short run")

# %% [markdown]
# ### What the full run gives
#
# This is what the full run gave, `rn50 run --preset roadsigns`, where it was recorded. Your own number stands beside it only if your run was the full one.

# %%
keys = ["roadsigns.untrained.top1"]
for precision in ("float32", "bfloat16"):
    keys += [f"roadsigns.resnet50.{precision}.{what}" for what in ("top1", "minutes")]
yours = {key: None for key in keys if key in session.results}
mine = f"roadsigns.resnet50.{dtype}.top1"
full = (report["model"], len(metrics["val.top1"])) == ("resnet50", recipe.ROADSIGNS.epochs)
if full and mine in yours:
    yours[mine] = top1
if yours:
    session.expect(yours)
else:
    print("No full run has been recorded for this version of the workbook yet.")

# %% [markdown]
# ## Read the report
#
# A run that leaves no report did not happen: nobody can compare with it. The report of this project has the keys of the published one, in its order, so that tools for the one read the other. Each metric is a list with one value per epoch. What was not measured is absent or `null`, never 0 and never `NaN`, which would not be JSON.

# %%
from workshop.lessons.single_gpu import reading

workshop.table(
    reading.report_rows(report), columns=["key", "last epoch", "meaning"], caption="report.json"
)

# %% [markdown]
# ### The first iteration is left out
#
# The first iteration of an epoch waits for the first batch, and in the first epoch it also waits for worker processes to start and for kernels to be chosen. It would make a short run look slow, so `train.time` leaves it out. The speed is the global batch divided by that time, with loading and computing together.

# %%
steps = run.progress[0]["steps"]
workshop.table(
    reading.iteration_rows(report, steps),
    columns=["epoch", "iterations timed", "seconds per iteration", "images per second"],
)
first = reading.first_iterations(report, steps)
print(f"The {len(metrics['train.time'])} first iterations took {first:.1f} s together.")

# %% [markdown]
# ### Who decided what
#
# Nothing that decides a result may be hidden in a default. `env` holds every setting with the reason for it, next to the machine and the versions. A setting that you give is never changed; one that you leave open is chosen once, and the report says why.

# %%
names = ("data_root", "loader", "dtype", "n", "batch_size", "num_layers", "image_shape", "lr",
         "warmup_epochs", "threads", "data_nthreads")  # fmt: skip
workshop.table(reading.axes_rows(report, names), columns=["setting", "value", "why"])
flops = report["env"]["model_flops"]
print(f"Training on one image takes {flops['per_image'] / 1e9:.2f} GFLOP,")
print(f"so the model computes {flops['per_second'] / 1e9:,.0f} GFLOP per second.")

# %% [markdown]
# ## Kill it, and go on
#
# Machines fail, queues end, somebody trips over a cable. A run of days must survive that, and it must not matter to the result. After every epoch the run writes a checkpoint: first beside the old one, then renamed, so that at any moment there is a whole one.
#
# The claim is strong: a run that was killed and resumed ends with the *same bits* as one that nobody disturbed. To test it you need both. The network is `tiny` here, because the claim is about bits and not about accuracy.

# %%
from rn50lib import checkpoint

last = session.pick(ci=7, cpu=3)  # the last epoch, counted from 0
small = Experiment(
    network="tiny",
    num_epochs=last + 1,
    no_val=True,
    model_prefix="model",
    disp_batches=5,
    seed=seed,
)
if session.profile == "ci":  # small, but long enough to be killed in the middle
    small = replace(small, profile="cpu", image_shape=32, batch_size=4)
    small = replace(small, threads=1, data_nthreads=0)


def finished(line):
    return line["phase"] == "epoch" and line["epoch"] == last


undisturbed = workshop.train(small, name="undisturbed")
undisturbed.wait_for(finished)
print("The undisturbed run is done.")

# %% [markdown]
# Now the same run again, but in the middle of its second epoch all of its processes are killed with SIGKILL, which no program can catch. This is what a power cut looks like to software.

# %%
from workshop.runs import describe

broken = workshop.train(small, name="broken")
broken.wait_for(lambda line: line["phase"] == "train" and line["epoch"] == 1)
broken.kill()
before = list(broken.progress)
print("The last reading before the end:", describe(before[-1]))
workshop.table(
    [[file.name, file.stat().st_size / 1e3] for file in sorted(broken.dir.iterdir())],
    columns=["file", "KB"],
    caption="What is left on the disk",
)

# %% [markdown]
# `resume()` starts the same command with `--resume`. The run looks for the newest checkpoint that verifies, checks that network, classes, seed and data are the same, takes over the weights, the velocity of the optimizer and the metrics so far, and repeats the epoch that was cut short.

# %%
from workshop.lessons.single_gpu import figures as shown

resumed = broken.resume()
resumed.wait_for(finished)
fig, finding = shown.resumed(undisturbed.progress, before, resumed.new_progress)
workshop.figure(fig, alt=f"Training loss of both runs over the epochs. {finding}")
print(finding)

# %%
ends = {
    name: checkpoint.load(handle.dir / "model", last + 1)
    for name, handle in (("undisturbed", undisturbed), ("killed and resumed", resumed))
}
workshop.table(
    [
        [name, len(end.arrays), sum(a.nbytes for a in end.arrays.values()) / 1e6,
         end.metrics["train.top1"][-1], checkpoint.checksum(end.arrays, {})]
        for name, end in ends.items()
    ],
    columns=["run", "arrays", "MB", "train.top1", "CRC-32 of the arrays"],
    caption=f"The checkpoints after epoch {last + 1}",
)  # fmt: skip
same = len({checkpoint.checksum(end.arrays, {}) for end in ends.values()}) == 1
print("The weights are", "the same, bit for bit." if same else "not the same.")

# %% [markdown]
# On a CPU this holds with the same number of threads, because sums are then added in the same order. It also needs the order of the images and every random crop to be a function of seed, epoch and image, so that a worker that starts again makes the same choices.

# %% [markdown]
# ## Score a checkpoint
#
# A checkpoint is worth something only if it gives the same accuracy to somebody else. `rn50 score PREFIX EPOCH` reads the network from the checkpoint, validates it in a new process, and must come to the number that the training run reported.

# %%
prefix = run.dir / "model"
end = checkpoint.epochs(prefix)[-1]
score = workshop.train(
    name="score", model_prefix=str(prefix), load_epoch=end, only_inference=True, num_epochs=1
).wait()
again = score.report["metrics"]["val.top1"][-1]
verdict = "equal" if again == top1 else "NOT equal"
print(f"Training said {top1}, scoring says {again}: {verdict}.")

# %% [markdown]
# ## Right and wrong
#
# One number for 1,200 pictures hides what the model has learnt. So look at what it says about each of them. `predict` prepares the pictures as validation does and gives a probability for every class; summed up, the answers must give the same top-1 once more.

# %%
import rn50lib.tools.predict
from workshop.lessons.single_gpu.predictions import predict_split

workshop.show(rn50lib.tools.predict.prepare)
answers = predict_split(prefix, end)
seen = len(answers.labels)
if "benchmark_iters" in axes:  # profile ci validates on the first pictures only
    seen = min(seen, axes["benchmark_iters"]["value"] * axes["batch_size"]["value"])
print(f"{seen:,} pictures: {answers.top1(seen)} % right; the report said {top1} %.")

# %% [markdown]
# These are the right answers that the model is surest of, one per class at most. The bars are its three likeliest classes, and green is the truth.

# %%
chosen = shown.most_certain(answers, right=True, count=6)
fig, alt = shown.gallery(answers, chosen)
workshop.figure(fig, alt=alt)

# %% [markdown]
# And these are the wrong answers that it is surest of. Above each picture stands the truth. They teach more than the right ones: ask of each whether *you* would have known at 64 × 64 pixels, which is all that the model gets.

# %%
chosen = shown.most_certain(answers, right=False, count=12)
fig, alt = shown.gallery(answers, chosen)
workshop.figure(fig, alt=alt)

# %% [markdown]
# ### What kind of mistakes
#
# Mistakes are rarely spread evenly. In the matrix every row is a true class, and each number says how many of its pictures were given the class of the column. The diagonal is right.

# %%
fig, finding = shown.confusion(answers)
workshop.figure(fig, alt=f"Matrix of the true class against the answer. {finding}")
print(finding)

# %% [markdown]
# Signs that differ only in a digit, as speed limits do, need pixels that tell the digits apart. If yours are confused, would a larger picture help, or only a longer run? You can test both: put `image_shape=96` into the cell that trains, or give the notebook more `epochs`.

# %% [markdown]
# ## Beside the published figures
#
# How fast is the network on this machine? The run below is short, does not validate and counts no hits: **speed and accuracy come from separate runs**, so that neither spoils the other.

# %%
pixels = session.pick(cpu=64, gpu=224)
at_speed = Experiment(
    num_layers=50, batch_size=batch, image_shape=pixels, num_epochs=2, no_val=True,
    benchmark_iters=session.pick(ci=2, cpu=30, gpu=100), no_metrics=True, disp_batches=15,
)  # fmt: skip
speed = workshop.train(at_speed, name="speed").wait()
ips = speed.report["metrics"]["train.total_ips"][-1]
session.note("resnet50_ips", ips, "img/s", f"training speed of {speed.report['model']}")

# %%
flops, axes = speed.report["env"]["model_flops"], speed.report["env"]["axes"]
what = f"yours, in {axes['dtype']['value']} at {axes['image_shape']['value']} px"
rows = [[what, ips, flops["per_image"] / 1e9, flops["per_second"] / 1e12, "this machine"]]
full_size = v15.train_flops(224)
for precision in ("fp16", "fp32"):
    key = f"published.v100.1gpu.{precision}.ips"
    if key in session.results:
        item = session.results[key]
        what = f"one V100, in {precision.upper()} at 224 px"
        rows.append([what, item.value, full_size / 1e9, item.value * full_size / 1e12,
                     item.provenance])  # fmt: skip
columns = ["training", "img/s", "GFLOP per image", "TFLOP per second", "from"]
workshop.table(rows, columns=columns)
print(f"An image at 224 px is as much work as {full_size / flops['per_image']:.1f} of yours.")

# %% [markdown]
# Images per second cannot be compared one to one when the images differ in size: a picture with a side of 64 pixels has a twelfth of the pixels of one with 224. The last column removes the size and leaves what the hardware did. Even that is not quite fair, because small pictures usually keep a processor less busy than large ones, and because the precision is another one. A speed without model, size, batch and precision beside it means nothing.

# %% [markdown]
# ## Where is the time going now?
#
# Back to the question. The run above did two things at once, loading and computing. Two more runs do one of them each: `--test-io` loads pictures and throws them away, and the `synthetic` loader gives the model random pictures that need no loading.

# %%
loading = workshop.train(
    at_speed, name="input", test_io=True, num_epochs=1, benchmark_iters=None
).wait()
classes = axes["num_classes"]["value"]
computing = workshop.train(
    at_speed, name="model", loader="synthetic", num_classes=classes, num_epochs=1
).wait()
speeds = {
    "input alone": reading.input_speed(loading),
    "model alone": computing.report["metrics"]["train.total_ips"][-1],
    "both together": ips,
}

# %% [markdown]
# The report of the run that did both also counts the seconds of its loop in three parts: in the step, waiting for the next batch, and everything else.

# %%
seconds = speed.report["env"]["seconds"]
share = {part: 100 * value / sum(seconds.values()) for part, value in seconds.items()}
told = f"{share['step']:.0f} % of the loop is the model, {share['data']:.0f} % waiting"
told += f" for data and {share['loop']:.1f} % everything else."
names = {"step": "the model", "data": "waiting for a batch", "loop": "everything else"}
bars = {"the loop": {names[part]: value for part, value in seconds.items()}}
fig = figures.stacked(bars, "seconds", "Where the time of the loop went")
workshop.figure(fig, alt=f"Seconds of the loop by part. {told}")
workshop.table(list(speeds.items()), columns=["", "images per second"])
print(told)
steps = speed.progress[0]["steps"]
first = reading.first_iterations(speed.report, steps)
print(f"The first iterations, in which the workers start, took {first:.1f} s of the total.")

# %%
times = speeds["input alone"] / speeds["model alone"]
if times > 1.2:
    verdict = "the model: computing is the bottleneck, a faster input would gain little"
elif times < 1 / 1.2:
    verdict = "the input: the model waits for pictures, a faster processor would gain little"
else:
    verdict = "both alike: input and model are about equally fast"
print(f"The time goes into {verdict}.")
print(f"The input alone delivers {times:.1f} times what the model alone takes.")
session.note("data_share", share["data"], "%", "of the training loop spent waiting for data")

# %% [markdown]
# Two remarks before you trust the picture. The wait includes the start of the loader's worker processes, which a long run pays once and a short one feels. And on a CPU the loader and the model share the cores: what the loader uses, the model lacks, even while nobody waits. That is why both together can be slower than either alone. On a GPU they are separate, and there the input must keep up with something far faster. Remember your input's images per second: the published V100 took more than 1,400 of them, at 224 pixels.

# %% [markdown]
# ## What to take with you
#
# - v1.5 moves one stride: the same parameters, a little more work, and no pixel skipped on the way through the block.
# - The learning rate scales with the global batch, starts with a warm-up, and is a pure function of the progress.
# - A loop is fast when nothing in it waits and nothing in it happens per image.
# - A report says what was measured, with which settings, and why those; the first iteration is left out.
# - A run that is killed and resumed gives the same bits, and scoring its checkpoint gives the same accuracy.
# - Before you make anything faster, ask where the time is going.
#
# Something to try: run the notebook again with `batch = 16` or `batch = 64` in its second cell, and predict the learning rate and the speed before you look.
#
# If computing is the bottleneck, more processors are the next idea. Then the workers must agree on one model, and their agreement takes time as well. That comes next in the course: notebook 03, several workers with Horovod.
