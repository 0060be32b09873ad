# %% [markdown]
# # 08 · Benchmark and scaling
#
# After this notebook you can measure a training's speed so that others may believe it, spot a benchmark that flatters, and say what your training would do on 8, 64 or 512 GPUs, and why.
#
# **Time:** 35 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 5 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
workers: int | None = None  # workers that are measured beside one; None: 2, on GPUs all, at most 8
iterations: int | None = None  # iterations of an epoch of the sweeps; None: 5, on GPUs 50
epochs: int | None = None  # epochs of the two training runs; None: 4, on a GPU those of the recipe
ips: float = 1442.6  # for the predictions: images per second of one GPU; published, V100, FP16
gpu_batch: int = 208  # the batch with which it reaches them
price: float = 2.0  # of one GPU for one hour

# %%
import workshop

profile = workshop.hide_single_gpu(
    profile
)  # several workers need a GPU each, or share the processor
session = workshop.start("08", profile)

# %% [markdown]
# ## Where is the time going?
#
# Every notebook so far changed one thing and looked where the time went: the input, the exchange, the bits. This one puts it all into numbers that leave the house. The reference, NVIDIA's document on ResNet-50 v1.5 for MXNet that this course follows, ends with three tables: training performance, weak scaling, inference. Here you make the same three from your own machine, find out in how many ways such tables go wrong, and then use them for the question that a budget asks: *what would more hardware bring?*
#
# ## A sweep
#
# `rn50 benchmark` is the reference's command with its flags: `-n` and `-b` are lists, `-i` the iterations of an epoch, `-e` the epochs, `-w` how many of them are left out. Every pair of workers and batch is a **cell**. The images are random ones that need no decoding, so that the cell measures training and not the disk; each worker has the same number of cores.
#
# Before you run it: a worker that is given twice the batch, how much faster will it be? And two workers, each with the same batch?

# %%
from rn50lib import precision
from workshop.lessons.scaling import sweeps

small, on_gpu = session.profile == "ci", session.profile == "gpu"
workers = workers or session.pick(cpu=2, gpu=min(8, len(session.machine.gpus)))
reduced = precision.best_dtype(session.machine, "reference")[0] if on_gpu else "bfloat16"
emulated = not (on_gpu or session.machine.bfloat16)
scratch = session.runs / "08-benchmark"
scratch.mkdir(parents=True, exist_ok=True)
size, batches = session.pick(ci=(32, (2, 4)), cpu=(64, (8, 16)), gpu=(224, (64, 128)))
net = ["--network", "tiny"] if small else ["--num-layers", 50]
cores = max(1, session.machine.cores // workers)
common = [
    *("-e", 3, "-w", 1, "-i", iterations or session.pick(ci=4, cpu=5, gpu=50)), *net,
    *("--image-shape", size, "--num-classes", 12, "--loader", "synthetic"),
    *(() if on_gpu else ("--threads", cores, "--data-nthreads", 0)),
]  # fmt: skip
training = ["-n", f"1,{workers}", "-b", ",".join(map(str, batches)), "--no-val", *common]
training += [] if on_gpu else ["--bind", "core"]
files = {dtype: scratch / f"training-{dtype}.json" for dtype in (reduced, "float32")}
swept = {reduced: sweeps.run(files[reduced], *training, "--dtype", reduced)}

# %% [markdown]
# And the same in `float32`:

# %%
swept["float32"] = sweeps.run(files["float32"], *training, "--dtype", "float32")
if emulated:
    print("This processor imitates bfloat16: expect it to be the slower of the two.")

# %% [markdown]
# ### What stands in the file
#
# The file has the reference's keys in the reference's order, so that a program written for it reads yours. `metrics` holds one number a cell: the **harmonic mean over the epochs** that were not left out. Everything else that was noted about a cell stands under one more key, `env`.

# %%
import json

print(json.dumps({k: v for k, v in swept[reduced].items() if k != "env"}, indent=1))
cell = swept[reduced]["env"]["cells"][str(workers)][str(batches[-1])]
print(f"\nand of the cell n {workers}, batch {batches[-1]}:")
print(json.dumps(cell[sweeps.TRAIN], indent=1))

# %% [markdown]
# ## Three tables
#
# ### Training performance and weak scaling
#
# The reference's first table has a row for each number of GPUs, with the speed in both precisions at the best batch of each, the speed-up of one over the other, and the **weak scaling**: the speed of `n` over that of one, where each worker keeps its batch. Here is yours, and below it the published one.

# %%
from rn50lib.tools import compare

yours = [compare.read(str(path), dtype) for dtype, path in files.items()]
rows, columns = sweeps.training_table(yours)
workshop.table(rows, columns, f"Yours: {swept[reduced]['model']}, {size} pixels")
theirs = [compare.published(f"DGX-1/{kind}") for kind in ("mixed", "FP32")]
theirs[0].name, theirs[1].name = "FP16", "FP32"
workshop.table(*sweeps.training_table(theirs), "Published: DGX-1 with V100s, 224 pixels")
speedup = next(row[5] for row in rows if row[0] == 1)
session.note("speedup", speedup, "times", f"one worker in {reduced} over float32, best batches")

# %% [markdown]
# The same table as Markdown, ready for the README of your own project. Write beside it what the command was, which hardware and which versions: the file knows all three.

# %%
print(sweeps.markdown(rows, columns))
env = swept[reduced]["env"]
print("\n", " ".join(env["cmd"][:9]), "…")
print(" ", ", ".join(f"{name} {version}" for name, version in env["versions"].items() if version))

# %% [markdown]
# ### Inference
#
# The third table has one worker and many batches, and `--only-inference`. Predict its shape: what does a batch of 1 reach of the speed of the largest?

# %%
asked = session.pick(ci=(1, 4), cpu=(1, 4, 16), gpu=(1, 4, 16, 64, 128))
inference = ["-n", 1, "-b", ",".join(map(str, asked)), "--only-inference", *common]
answers = []
for dtype in files:
    path = scratch / f"inference-{dtype}.json"
    sweeps.run(path, *inference, "--dtype", dtype)
    answers.append(compare.read(str(path), dtype))

# %%
from workshop.lessons.scaling import figures

rows, columns = sweeps.batch_table(answers)
workshop.table(rows, columns, "Inference, images per second: yours")
print(sweeps.markdown(rows, columns))  # the same, for a README
workshop.table(*sweeps.batch_table(theirs), "Inference, images per second: published, one V100")
fig, finding = figures.by_batch(answers)
workshop.figure(fig, alt=f"Images per second over the batch in both precisions. {finding}")
print(finding)

# %% [markdown]
# `rn50 compare` lays files beside each other, and beside the published figures. It divides two speeds by each other only where metric, workers *and* batch are the same.

# %%
from workshop.programs import program

program("rn50lib.cli", "compare", *[path.name for path in files.values()], "--labels", *files,
        "--published", "DGX-1/mixed", folder=scratch)  # fmt: skip

# %% [markdown]
# ## Six ways to a wrong number
#
# None of the following is far-fetched: the last three are in the reference's own program or table. Each is shown with your own numbers.
#
# ### 1. No warm-up
#
# A process that has just begun is not what you want to know about: memory is fetched from the system, libraries choose their kernels, GPUs raise their clock. The cell starts a fresh process and times each of its first steps. How many of them would you leave out?

# %%
from rn50lib.config import Experiment
from workshop.pairs import first_steps

fresh = Experiment(
    network="tiny" if small else "resnet", num_classes=12, image_shape=size, dtype=reduced,
    batch_size=batches[0], threads=None if on_gpu else cores,
)  # fmt: skip
seconds = first_steps(fresh, session.pick(ci=6, cpu=16, gpu=30))
fig, finding = figures.cold_start(seconds, batches[0])
workshop.figure(fig, alt=f"Milliseconds of the first steps of a process. {finding}")
print(finding)
session.note("first_step", seconds[0] / min(seconds), "times", "first step over the fastest one")

# %% [markdown]
# `rn50 benchmark` takes three iterations that nobody times before a cell begins, leaves out the first iteration of every epoch as the reference does, and then whole epochs with `-w`.
#
# ### 2. The wrong mean
#
# If half of the images run at 100 images per second and half at 50, what is the speed? Not 75. The first half takes 1 second for each 100 images, the second half takes 2, and 200 images in 3 seconds are 66.7. **Rates over equal work are averaged by the harmonic mean**; the arithmetic mean is always higher, the more so the more they vary. Try it with your own two batches, then with every single iteration of a cell:

# %%
slow, fast = (yours[1].rates[sweeps.TRAIN, 1, b] for b in batches)
means = sweeps.means([slow, fast])
took = 1000 / slow + 1000 / fast
print(f"1,000 images with batch {batches[0]} and 1,000 with {batches[1]}, float32, one worker:")
print(f"they take {took:.1f} s, which is {2000 / took:.2f} images per second.")
print(f"Harmonic mean {means['harmonic mean']:.2f}, arithmetic {means['arithmetic mean']:.2f}.")
rates = sweeps.rates(swept["float32"], workers, batches[-1])
found = sweeps.means(rates)
print(f"\nAll {len(rates)} iterations of the cell n {workers}, batch {batches[-1]}, float32:")
for name, value in found.items():
    print(f"{name:16} {value:8.1f} images per second")

# %% [markdown]
# ### 3. The best of n
#
# "We report the best of five runs." The best of many is not a property of the program. It is a property of the noise and of your patience, and it never gets lower. These are the iterations of your own cell, drawn again and again, and nothing about the machine changes.

# %%
for n in (1, 5, 30):
    gain = 100 * (sweeps.expected_best(rates, n) / found["harmonic mean"] - 1)
    print(f"The best of {n:2} is expected to be {gain:.1f} % above the harmonic mean.")

# %% [markdown]
# The median has not this fault, but it has another: it forgets the slow iterations altogether, and those took real time. So the file gives the harmonic mean as the result, and median and quartiles beside it as a sign of how far to trust it.
#
# ### 4. Batch 208 against batch 96
#
# The published table says that FP16 is 3.6 times as fast as FP32 on one V100. It compares 208 images with 96. That is a fair answer to "what do I gain in practice?" and a wrong one to "what does the precision bring?", and the batch is not the only other difference (notebook 06). The training table has no common batch, but the inference table has. Guess the speed-up at batch 96 before you look.

# %%
fig, finding = figures.by_batch(theirs)
workshop.figure(fig, alt=f"Published inference over the batch in both precisions. {finding}")
print(finding)
equal = [yours[0].rates[sweeps.TRAIN, 1, batches[-1]] / yours[1].rates[sweeps.TRAIN, 1, b]
         for b in batches]  # fmt: skip
print(
    f"Yours, training with {batches[-1]} in {reduced}: {equal[-1]:.2f} times float32 with the same"
)
print(
    f"batch, and {equal[0]:.2f} times float32 with {batches[0]}. Which one would you put on a slide?"
)

# %% [markdown]
# So a table needs both columns, and each by its name: *equal batch* for the precision, *best batch* for the gain. `rn50 benchmark` prints "weak scaling, equal batch" and "speed-up, best batches".
#
# ### 5. A stale report
#
# The reference's benchmark starts a run for each cell, does not look at how it ended, and reads the report file. What if the run failed, and a file of the same name is still there from yesterday? The cell below puts a report there, starts a run that cannot work, and reads.

# %%
import shutil

stale = scratch / "report-yesterday.json"
shutil.copy(swept["float32"]["env"]["cells"]["1"][str(batches[0])]["report"], stale)
program("rn50lib.cli", "run", "-n", 1, *common[6:], "--load-epoch", 7, "--model-prefix",
        "no-such-model", "--report", stale.name, folder=scratch, status=2)  # fmt: skip
read = json.loads(stale.read_text())["metrics"][sweeps.TRAIN][-1]
print(f"A script that does not ask for the exit status reads {read:.1f} images per second,")
print("for a run that never started.")

# %% [markdown]
# The remedy is plain: every cell has a new folder of its own, the exit status counts, and a figure exists only if *this* run wrote it.
#
# ### 6. A failed cell that counts
#
# Now a sweep in which a cell fails. In the place of the model stands a wait as long as the GPU of the second cell would need (`--step paced:RATE`), and there are 24 images. With a batch of 24 an epoch has a single iteration. The first iteration is never timed, so there is nothing to report. What should stand in the file? The reference writes `NaN`, which is not even JSON. Zero would be worse.

# %%
paced = ["--network", "tiny", "--image-shape", 32, "--loader", "synthetic", "--threads", 1]
failing = sweeps.run(
    scratch / "failing.json", "-n", 1, "-b", "4,12,24", "-i", 6, "-e", 2, "-w", 1, "--num-examples",
    24, "--step", f"paced:{ips:g}", "--no-val", *paced, status=1,
)  # fmt: skip
cells = {b: cell[sweeps.TRAIN] for b, cell in failing["metrics"]["1"].items()}
measured = [rate for rate in cells.values() if rate is not None]
print(json.dumps(cells))
mean = sweeps.means(measured)["harmonic mean"]
print(f"Mean of what was measured: {mean:.1f} images per second.")
zeros = sum(measured) / len(cells)
print(f"With the failed cell as 0 the arithmetic mean says {zeros:.1f}. Nothing ran at that speed,")
print("and the harmonic mean cannot even be computed.")

# %% [markdown]
# In our file the cell is `null`, the reason stands beside it, the other cells go on, and the exit status is not 0, so that a script notices.
#
# ## Curves
#
# A table of speeds is worth nothing if the faster run learns less. So the reference shows three curves for both precisions: training loss, training accuracy, validation accuracy. They are drawn from the report files alone. The cell trains the small network twice, on a part of the road signs, with the same seed. Will you be able to tell the two apart?

# %%
from rn50lib import recipe

epochs = epochs or session.pick(ci=1, cpu=4, gpu=recipe.ROADSIGNS.epochs)
learning = Experiment(
    network="tiny", num_epochs=epochs, batch_size=32, model_prefix="model",
    num_examples=session.pick(ci=96, cpu=720, gpu=2400), disp_batches=5,
)  # fmt: skip
runs = {reduced: workshop.train(learning, name=reduced, dtype=reduced).wait()}

# %%
runs["float32"] = workshop.train(learning, name="float32", dtype="float32").wait()

# %%
reports = {dtype: json.loads((run.dir / "report.json").read_text()) for dtype, run in runs.items()}
fig, finding = figures.curves(reports)
workshop.figure(fig, alt=f"Loss and accuracies over the epochs in both precisions. {finding}")
print(finding)

# %% [markdown]
# `rn50 plot R1.json R2.json -o curves.png` draws the same picture from any reports. Two runs that begin alike drift apart for no other reason than rounding, so differences of this size mean nothing (notebook 06). The speeds of these two runs mean nothing either: they decode pictures and validate. **Accuracy and speed come from separate runs.**
#
# ## Weak and strong scaling
#
# There are two ways to use more workers. With **weak scaling** every worker keeps its batch, so the global batch grows. With **strong scaling** the global batch stays and is shared, so each worker gets less to do in every step, while the exchange stays as large as it was. Your sweep may hold both: two workers with half of the larger batch each are the strong version of one worker with all of it.

# %%
if workers > 1:
    rows = figures.weak_and_strong_rows(yours[0], workers)
    columns = [
        "images in a step of one worker",
        "weak: each has this batch",
        "strong: they share it",
    ]
    workshop.table(rows, columns, f"{workers} workers, times as fast as one, {reduced}")
    weak = yours[0].weak_scaling(sweeps.TRAIN, workers, batches[-1])
    session.note("weak_scaling", weak, "times", f"{workers} workers over one, {reduced}")

# %% [markdown]
# Whoever reads "we scale to 512 GPUs" should ask which of the two is meant. Weak scaling is the easier one, and it has a hidden price, to which this notebook comes at its end: a larger global batch is another training.
#
# ## A model of a step
#
# To say something about GPUs that one does not have, one needs a model. Ours adds up the time of a step from parts that can each be measured or looked up:
#
# - **compute**, as measured on one GPU;
# - **stragglers**: all wait for the slowest of `n`, and the more there are, the slower is the slowest;
# - the **exchange**, an all-reduce in a ring or hierarchically, with latency and bandwidth of each link;
# - minus what of it is **hidden**, because the gradients of the last layers travel while the first ones are still being computed;
# - the **input**, which all GPUs of a host share.

# %%
from rn50lib.tools.scaling import Training, predict

workshop.show(predict)

# %% [markdown]
# Begin with the exchange. Within a host the wires are fast. Between hosts they are slower, and one **ring** through all GPUs takes `2 (n − 1)` steps, each of which waits for its slowest wire. The **hierarchical** way first adds up within each host, then between the hosts, and hands the sum around. In which range of GPUs does it matter?

# %%
from workshop.lessons.scaling import predictions

network = "nvlink+100g"
one_gpu = Training(ips, gpu_batch)
fig, finding = predictions.exchange(one_gpu, network)
workshop.figure(fig, alt=f"Milliseconds of an all-reduce over the GPUs. {finding}")
print(finding)

# %% [markdown]
# Now all of it, as a stack. The speed of one GPU is that of the second cell. Hosts have 8 GPUs, joined by NVLink, with 100 Gbit/s between them; bandwidths and latencies are those by which NCCL itself decides. The one number that no source gives, how much the step times of the workers vary, was fitted on the published rows of 1 and 4 GPUs.

# %%
fig, finding = predictions.predicted(512, gpu_batch, network, True, price, ips)
workshop.figure(fig, alt=f"Predicted efficiency and parts of a step up to 512 GPUs. {finding}")
print(finding)

# %% [markdown]
# ### With your own machine
#
# Does the sum hold where you can check it? The cell measures the bare all-reduce between your workers and lets the model add it to the step of one worker, with **nothing fitted**. Then it compares with the cell of your sweep that it has not seen. Predict: will it be too fast or too slow?

# %%
from rn50lib import network as networks
from workshop.lessons.horovod.scaling import measure_allreduce

if workers > 1:
    bare = measure_allreduce(workers, quick=small)
    alone, together = (yours[1].rates[sweeps.TRAIN, n, batches[-1]] for n in (1, workers))
    net_here = networks.tiny(12) if small else networks.resnet(50, 12)
    own = Training(alone, batches[-1], 4, net_here, size)
    here = predictions.predict_here(own, bare, together)
    workshop.table(here.rows(), ["float32, your machine", "ms"])
    print(f"Predicted {here.predicted.ips:.1f}, measured {together:.1f} images per second:")
    print(f"the model is {abs(100 * here.error):.0f} % too {'fast' if here.error > 0 else 'slow'}.")
    session.note("own_error", 100 * here.error, "%", "error of the model on this machine")

# %% [markdown]
# On a processor expect a remainder, and its name is known: two workers share memory and caches, so each computes more slowly than alone (notebook 03 measured that), and the exchange runs on the very cores that compute, so that what the model hides beneath the backward pass is not hidden at all. GPUs have memory and wires of their own. A model is only as good as the list of what it contains.
#
# ### Against published rows that it has not seen
#
# Form and constants of the model were fixed before these rows were looked at. It was fitted on the published rows of few GPUs and then asked about the others, and the A100s were predicted with the V100s' parameters. Beside it stand two rivals that explain the same loss in another way, and two naive baselines: Amdahl's law, by which a fixed share of the work never gets faster, and "nothing is lost". Guess the error of the model, and which baseline comes closest.

# %%
rows, columns = predictions.held_out_rows()
workshop.table(rows, columns, "Predicted over published, less 1; every row that was not fitted")

# %%
from rn50lib.tools.scaling import check

print(check.verdict().replace(": ", ":\n", 1))
print(check.cannot_tell().replace(". ", ".\n"))

# %% [markdown]
# Read the table with care. One of the rivals has a smaller mean error than our model, and for the A100s in mixed precision even "nothing is lost" is closer, since they scale better than the V100s did. The rows say how long a step took and not why. So trust the *sum* to several per cent, and do not trust what it says about the *parts* before you have measured the exchange and the input yourself. And no row has more than 32 GPUs: what the model says about 512 nobody has checked here.
#
# ## What would my training do?
#
# Now the question. Before you touch a control: 90 epochs of ImageNet on 8, 64 and 512 GPUs of the kind chosen at the top. How many hours, and at which price?

# %%
rows = []
for step in predictions.steps(512, gpu_batch, network, True, ips):
    if step.gpus in (1, 8, 64, 512):
        hours = step.hours()
        took = f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"
        rows.append([step.gpus, step.gpus * gpu_batch, step.ips, 100 * step.efficiency, step.limit,
                     took, hours * step.gpus * price])  # fmt: skip
columns = ["GPUs", "global batch", "img/s", "efficiency, %", "most is lost in", "90 epochs", "cost"]
workshop.table(rows, columns, f"Predicted: {ips:g} img/s a GPU with {gpu_batch} images, {network}")
session.note("efficiency_512", rows[-1][3], "%", "predicted efficiency of 512 GPUs")

# %% [markdown]
# And why? First two causes are taken away, one at a time: the larger the gain over the first line, the more the cause weighs. Then come things that one may do wrong. The last of them is the input: eight such GPUs ask one host for all the images that they train on, and if its processors cannot deliver them, everything else hardly matters.

# %%
causes = predictions.why(one_gpu, network, 512)
workshop.table(causes, ["512 GPUs", "efficiency, %"])
gains = {name: value - causes[0][1] for name, value in causes[1:3]}
largest = max(gains, key=lambda name: gains[name])
print(f"The largest gain, {gains[largest]:.1f} points, is “{largest}”.")

# %% [markdown]
# Here is the whole model with its controls. One assumption to keep in mind: images per second of one GPU are taken as the **same for every batch**. In truth small batches are slower (your inference table shows how much), so a small batch looks better here than it is. Three things to try: from how many GPUs on are PCIe and 10 Gbit/s too little? What does overlap bring, at batch 32 and at 208? Does any network bring 512 GPUs to 90 %, and if not, what holds them up?

# %%
predictions.explore(ips, gpu_batch)

# %% [markdown]
# And strong scaling, where the global batch stays what 8 GPUs had. Follow the last column: from which number of GPUs on does more hardware bring nothing?

# %%
columns = ["GPUs", "weak, times as fast", "images per GPU", "strong, times as fast"]
rows = predictions.strong_rows(one_gpu, network, 8 * gpu_batch)
workshop.table(rows, columns, f"Predicted; strong: {8 * gpu_batch:,} images in all")

# %% [markdown]
# ## What a large batch costs
#
# So the budget asks for weak scaling, and the global batch becomes very large. Is the result still the same network? With `k` times the batch there are `k` times fewer updates, so each must go `k` times as far: the learning rate is **scaled linearly**. At the beginning, when the weights change quickly, such a rate is too much, so it is raised over the first epochs: the **warm-up** (notebook 03 let you see this at small scale). These results are published, five runs each; the batch is 8,192:

# %%
found = session.results
kinds = {"none": "no warm-up", "constant": "a small constant rate at first", "gradual": "gradual"}
named = {"batch 256": found["published.batch.256.error"]}
named |= {
    f"batch 8,192, {text}": found[f"published.warmup.{kind}.error"] for kind, text in kinds.items()
}
workshop.table(
    [[name, f"{item.value:.2f}", f"{item.spread:.2f}"] for name, item in named.items()],
    columns=["ResNet-50 on ImageNet", "top-1 error, %", "±"],
    caption=found["published.warmup.gradual.error"].source,
)

# %% [markdown]
# With a gradual warm-up 8,192 images lose nothing that could be told from noise. How far does that go? Predict the top-1 at 65,536.

# %%
errors = {
    int(key.split(".")[2]): (item.value, item.spread)
    for key, item in found.items() if key.startswith("published.batch.")
}  # fmt: skip
lars = found["published.lars.32768.top1"]
workshop.table(
    [
        [batch, f"{100 - error:.2f}", f"{spread:.2f}"]
        for batch, (error, spread) in sorted(errors.items())
    ],
    columns=["global batch", "top-1, %", "±"],
    caption="SGD, rate scaled linearly, 5 epochs of warm-up; published",
)
print(f"With LARS: {lars.value} % at 32,768 ({lars.source}).")

# %% [markdown]
# Beyond 8,192 the recipe breaks. One reason is that a single rate must fit all layers. **LARS** (layer-wise adaptive rate scaling, [You et al., 2017](https://arxiv.org/abs/1708.03888)) compares, for each layer, the size of its weights with the size of its gradient, and gives it a rate in proportion to their ratio. How different are the layers really? Here they are in the run that you have just trained; the gradient is the mean that the momentum keeps.

# %%
from rn50lib import checkpoint

prefix = runs["float32"].dir / "model"
arrays = checkpoint.load(prefix, checkpoint.epochs(prefix)[-1]).arrays
weights = {k: a for k, a in arrays.items() if a.ndim == 4 and not k.startswith("velocity/")}
gradients = {k: (1 - recipe.REFERENCE.momentum) * arrays[f"velocity/{k}"] for k in weights}
print(predictions.layer_rates(weights, gradients))

# %% [markdown]
# The library has LARS as a flag, `rn50 run --optimizer lars`, and with it what else large batches are trained with: `--lr-schedule cosine` or `poly`, `--label-smoothing`, `--zero-gamma` and `--no-bn-decay`. Recipes that were published with them are presets:

# %%
workshop.table(
    [[r.name, f"{r.global_batch:,}", r.optimizer, r.lr_schedule, r.expected]
     for r in recipe.LARGE_BATCH],
    columns=["--preset", "global batch", "optimizer", "schedule", "published accuracy"],
    caption="; ".join(f"{r.name}: {r.source}" for r in recipe.LARGE_BATCH),
)  # fmt: skip

# %% [markdown]
# None of them can be repeated on a laptop: `rn50 run --preset goyal2017 --dry-run` shows what it would take.
#
# LARS is used with a warm-up too, and the published run with 32,768 changed more than the optimizer: its batch norm, for example, took the statistics of several devices together. So it is not "the same with LARS"; it shows that the loss of accuracy is no law of nature.
#
# For your own plan remember the order. Up to about 8,192 images the plain recipe will do. 512 GPUs with 208 images each make 106,496, more than any row of the table. Whoever has so many GPUs gives each a smaller batch, and you have just seen what that does to the efficiency.
#
# ## Where is the time going now?

# %%
last = predictions.steps(512, gpu_batch, network, True, ips)
kinds = {"computing": "compute_s", "waiting for the slowest": "stragglers_s",
         "exchange that is not hidden": "exposed_s"}  # fmt: skip
shown = [step for step in last if step.gpus in (1, 8, 64, 512)]
workshop.table(
    [[name, *(100 * getattr(step, field) / step.step_s for step in shown)]
     for name, field in kinds.items()],
    columns=["% of a step, predicted", *(f"{step.gpus} GPU{'s' if step.gpus > 1 else ''}" for step in shown)],
)  # fmt: skip
if workers > 1:
    lost = 100 * (1 - together / (workers * alone))
    print(f"Measured here, {workers} workers in float32: {lost:.0f} % of the time is lost.")

# %% [markdown]
# ## What to take with you
#
# - Say what was measured: workers, batch, precision, size, hardware, versions, command. A rate without its batch is no result.
# - Warm up, average rates harmonically, show the spread, never the best of n; a failed cell is neither 0 nor yesterday's number.
# - Equal batch for the precision, best batch for the gain, and each by its name.
# - Weak scaling flatters, strong scaling ends: the exchange does not shrink with the batch.
# - A model of a step is a sum. It predicted the total to several per cent, as far as there were rows to check it, and cannot tell its parts apart without measurements of them.
# - Large batches need a scaled rate and a warm-up; beyond about 8,192 images a plain recipe loses accuracy.
#
# Something to try: measure your own GPU, put its speed and batch into the second cell, and run the notebook again from "What would my training do?".
#
# ## What you have passed
#
# This is what the records of your exercises say. Hints and solutions count as far as they were looked at before an exercise was passed. In a terminal `rn50 workshop status` says the same, and `rn50 workshop status -o summary.html` writes the page to a place of your choice.

# %%
workshop.summary()

# %% [markdown]
# This is the end of the road that began with a folder of JPEGs. The same question goes with you to the next machine: *where is the time going now?*
