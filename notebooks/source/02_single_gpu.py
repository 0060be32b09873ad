# %% [markdown]
# # 02 · One GPU
#
# After this notebook you have written a training loop of your own, know what a hardened one adds to it, and can train ResNet-50 v1.5 with the published recipe, read its report, resume a killed run and say where its time goes.
#
# **Time:** 40 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 4 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
epochs: int | None = None  # epochs of the run; None: 2, on a GPU those of the recipe
batch: int | None = None  # images a step; None: 32, on a GPU the published 208 for the speed
pairs: int | None = None  # timed pairs of v1 and v1.5; None: 8
seed: int = 0  # start of all randomness

# %%
import workshop

session = workshop.start("02", profile)

# %% [markdown]
# ## A training run of your own
#
# Training needs four things: pictures, a network, a rule by which the weights change, and a loop. In PyTorch that is about forty lines, and you write them before you look at anybody else's. Change whatever you like in these cells: they are yours.
#
# First the pictures. A `Dataset` answers two questions: how many are there, and what is number `i`?

# %%
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(session.machine.cores)  # those that this process may use


class RoadSigns(Dataset):
    def __init__(self, folder, size=64):
        self.files, self.size = sorted(folder.glob("*/*.jpg")), size
        self.classes = sorted({file.parent.name for file in self.files})

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        image = Image.open(self.files[i]).convert("RGB").resize((self.size, self.size))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
        return pixels, self.classes.index(self.files[i].parent.name)


signs = RoadSigns(session.data_root / "train")
pixels, label = signs[0]
print(f"{len(signs):,} pictures; the first is a {signs.classes[label]}, {tuple(pixels.shape)}.")

# %% [markdown]
# Now the network, a **residual network** like those of torchvision, but small. It is a pile of blocks. Each block computes a *correction* to its input and adds it: `output = input + correction`. A block whose correction is zero passes its input on, and the gradient has a short way back through the additions. That is why many layers can be trained, where plain networks got worse with more of them. Where a block changes the shape, a 1×1 convolution changes that of its input too.

# %%
from torch import nn
from torch.nn import functional as F


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


def small_resnet(classes):
    blocks = Block(3, 16, 2), Block(16, 32, 2), Block(32, 64, 2), Block(64, 128, 2)
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


# %% [markdown]
# And the loop. Each step takes a batch, computes the loss, sends it backwards through the network, and lets the optimizer change every weight a little against its gradient.

# %%
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(seed)
model = small_resnet(len(signs.classes)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
batches = DataLoader(signs, batch_size=32, shuffle=True, drop_last=True, num_workers=2)

for step, (images, labels) in enumerate(batches):
    loss = F.cross_entropy(model(images.to(device)), labels.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0:
        print(f"step {step} of {len(batches)}: loss {loss.item():.2f}")

# %% [markdown]
# A network that only guesses among 12 classes has a loss of ln 12 = 2.48. What has one epoch taught this one? Ask about pictures that it was not trained on.

# %%
validation = RoadSigns(session.data_root / "val")
right = 0
model.eval()  # batch norm now uses its running statistics
with torch.no_grad():
    for images, labels in DataLoader(validation, batch_size=100, num_workers=2):
        answers = model(images.to(device)).argmax(dim=1)
        right += (answers == labels.to(device)).sum().item()
model.train()
print(f"{right:,} of {len(validation):,} right: {100 * right / len(validation):.1f} %.")

# %% [markdown]
# Before you go on, break it, one thing at a time, and run from there. Leave out `optimizer.zero_grad()`, and the gradients of all steps add up. Put `lr=5`. Leave out `model.eval()`. Put `shuffle=False`, so that nearly every batch holds a single class. Each of these mistakes runs without an error.
#
# ## Where is the time going?
#
# A training step does four things: it fetches a batch of pictures, computes with them, exchanges the result with other workers where there are any, and updates the weights. If these overlap, the slowest of them decides, and making any of the others faster gains nothing. If they wait for each other, their times add up. This course therefore asks one question again and again: **where is the time going now?**
#
# Ask your own loop. How fast are its pictures when nobody computes, and how fast is its step when the pictures are there already?

# %%
import itertools
import time


def wait():
    return torch.cuda.synchronize() if device == "cuda" else None


count = min(20, len(batches))
begin = time.perf_counter()
kept = list(itertools.islice(batches, count))
fetching = time.perf_counter() - begin
begin = time.perf_counter()
for images, labels in kept:
    optimizer.zero_grad()
    F.cross_entropy(model(images.to(device)), labels.to(device)).backward()
    optimizer.step()
wait()  # a GPU still works when the loop has handed it everything
computing = time.perf_counter() - begin
for what, seconds in {"fetching": fetching, "computing": computing}.items():
    print(f"{what}: {1000 * seconds / count:.0f} ms a batch, {32 * count / seconds:,.0f} images/s")

# %% [markdown]
# The first number includes the start of the two worker processes, the second is that of a small network. To make the first one faster, add `image.draft("RGB", (self.size, self.size))` between opening and converting: the JPEG decoder then leaves out the pixels that nobody will look at. Notebooks 04 and 05 are about little else.
#
# ## What the forty lines lack
#
# They train. For a run of days on many GPUs they lack nearly everything else, and this is what the rest of the notebook adds:
#
# | your loop | the library's | because |
# |---|---|---|
# | a small network | ResNet-50 v1.5 | its figures are published, so that you can compare |
# | one learning rate | warm-up and decay, a function of the progress | a large batch needs the first, good accuracy the second |
# | whole pictures, as they are | random crops and mirror images | otherwise it learns the pictures by heart |
# | `loss.item()` when it is to be printed | sums that stay on the device | each question to a GPU stops it |
# | prints | a report with every setting and its reason | others must be able to compare |
# | weights that die with the kernel | checkpoints, and a run that goes on from them | machines fail |
#
# ## ResNet-50, counted
#
# The network of this course has the same idea and fifty layers. The cell builds the real model in PyTorch and counts with **hooks**, functions that PyTorch calls after a layer has computed: the shape that comes out, and the multiply-adds that it took.

# %%
from rn50lib import resnet as network
from rn50lib.torch.model import ResNet

resnet50 = ResNet(network.resnet(50))
parts = {}


def count_into(part):
    def hook(layer, inputs, output):
        work = output.numel() * layer.weight[0].numel() / 1e6
        parts[part] = [part, str(tuple(output.shape[1:])), parts.get(part, [0, 0, 0])[2] + work]

    return hook


for name, layer in resnet50.named_modules():
    if isinstance(layer, nn.Conv2d | nn.Linear):
        layer.register_forward_hook(count_into(name.split(".")[0]))
with torch.no_grad():
    resnet50(torch.zeros(1, 3, 224, 224))
workshop.table(list(parts.values()), columns=["part", "what comes out", "M multiply-adds"])
print(f"{sum(p.numel() for p in resnet50.parameters()):,} parameters")

# %% [markdown]
# From stage to stage the maps shrink and the channels grow. Training costs three times the forward pass, because the backward pass computes two gradients: one for the weights and one for the layer's input. And this is its block, a *bottleneck*: a 1×1 convolution to fewer channels, a 3×3, a 1×1 to more, and the addition in the last lines.

# %%
workshop.show("rn50lib.torch.model:Bottleneck")

# %% [markdown]
# ### v1 and v1.5
#
# Between two stages the maps shrink to half their width and height, by a convolution with a stride of 2. The original network, now called v1, does this in the first convolution of the block, a 1×1. Version 1.5 moves the stride to the 3×3. What difference does it make? Let the gradient tell: where it is zero, the pixel was never looked at.

# %%
pixels = torch.ones(1, 1, 8, 8, requires_grad=True)
for name, conv in {
    "v1, 1×1 with stride 2": nn.Conv2d(1, 1, 1, stride=2),
    "v1.5, 3×3 with stride 2": nn.Conv2d(1, 1, 3, stride=2, padding=1),
}.items():
    (gradient,) = torch.autograd.grad(conv(pixels).sum(), pixels)
    read = (gradient != 0)[0, 0]
    print(f"{name}: looks at {100 * read.float().mean():.0f} % of its input")
    print("\n".join("".join(" ■" if pixel else " ·" for pixel in row) for row in read), "\n")

# %% [markdown]
# Moving the stride costs no parameters. It does cost work, because the first 1×1 convolution now runs on the map before it shrinks, which has four times the pixels.
#
# More work need not mean as much more time. NVIDIA's description of this network, [*ResNet-50 v1.5 for MXNet*](https://github.com/NVIDIA/DeepLearningExamples/tree/master/MxNet/Classification/RN50v1.5), says that v1.5 is about 0.5 % better in top-1 and about 5 % slower. The accuracy is quoted here, not claimed: to see half a per cent one needs ImageNet, 90 epochs and several runs of each. The time you can measure.
#
# Two runs after each other would compare two moments of this machine. The cell lets the two networks take turns, each in a process of its own, and takes the ratio of each pair. The shaded band is where the median lies, with a confidence of at least 95 % from six pairs on.

# %%
from dataclasses import replace

from rn50lib.config import Experiment
from workshop.lessons import figures
from workshop.pairs import median_interval, time_pairs

at_224 = Experiment(image_shape=224, num_classes=1000, batch_size=session.pick(cpu=8, gpu=64))
both = {version: replace(at_224, resnet_version=version) for version in ("v1", "v1.5")}
macs = {version: network.resnet(50, version=version).macs(224) for version in both}
more_work = macs["v1.5"] / macs["v1"]
count, steps = pairs or session.pick(ci=2, cpu=8), session.pick(cpu=1, gpu=10)
measured = time_pairs(both, pairs=count, steps=steps)
fig, finding = figures.pairs(measured, {"published": 1.05, "work counted": more_work})
workshop.figure(fig, alt=f"Milliseconds a step of v1 and v1.5, and their ratio. {finding}")
done = measured.experiment
print(f"{done.dtype}, {done.image_shape} px, batch {done.batch_size}, {done.threads} threads.")
print(f"{finding} v1.5 does {100 * (more_work - 1):.1f} % more work.")
ratio = median_interval(measured.ratios)[0]

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
#
# PyTorch has schedulers for this. Here are two of them in a row, and beside them the library's function.

# %%
from rn50lib import recipe

per_epoch = 10  # steps
optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-6, total_iters=5 * per_epoch)
falls = [(epoch - 5) * per_epoch for epoch in (30, 60, 80)]  # counted from the end of the warm-up
decay = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls, gamma=0.1)
schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, decay], [5 * per_epoch])
rows = []
for step in range(90 * per_epoch):
    if step % (15 * per_epoch) == 0 or step == 2 * per_epoch:
        epoch = step // per_epoch
        here = recipe.learning_rate(epoch, 256, recipe.REFERENCE)
        rows.append([epoch, optimizer.param_groups[0]["lr"], here])
    optimizer.step()
    schedule.step()
workshop.table(rows, columns=["epoch", "PyTorch's schedulers", "recipe.learning_rate"])
workshop.show(recipe.learning_rate)

# %% [markdown]
# The numbers agree. Look at what the function does *not* have: a counter, a state, a call that must come once per step. It is a pure function of the progress. Ask it about epoch 45.5 in any order, on any worker, after any crash, and the answer is the same, where PyTorch's schedulers must be saved and restored. (Their trap is in the cell too: in a sequence the second one counts from its own start. Put `(30, 60, 80)` there without the subtraction, and see.)
#
# ### Turn the knobs
#
# The dashed line is the preset as it stands in the library, the solid line is yours, and the cross is the function asked at one moment. Three things to try: double the workers and watch the peak; set the warm-up to 0; choose the preset `roadsigns` and see how short its run is.

# %%
from workshop.lessons.single_gpu import schedule as drawn

drawn.explore_schedule()

# %% [markdown]
# ## The loop, hardened
#
# Here is one epoch of the library's loop. Find your own four lines in it. Every run of every notebook goes through it, whatever the framework, the loader and the precision.

# %%
from rn50lib.train import train_one_epoch

workshop.show(train_one_epoch)

# %% [markdown]
# And here is the step that it calls, in PyTorch. `inputs` puts the pixels on the device and normalises them there, because bytes are a quarter of the traffic that floating-point numbers would be. `compute` goes forwards and backwards and has the gradients averaged over the workers, and `update` changes the weights. Whatever is said there of a scaler belongs to mixed precision, notebook 06: in this notebook there is none.

# %%
from rn50lib.torch.train_step import TorchStep

workshop.show(TorchStep.inputs)
workshop.show(TorchStep.train_step)
workshop.show(TorchStep.compute)
workshop.show(TorchStep.update)

# %% [markdown]
# ### What is not in it
#
# There is no `loss.item()`. A GPU works through a queue: the processor hands over work and goes on. The queue keeps the GPU busy as long as nobody asks for a *result*, because whoever asks must wait for everything before it. Loss and accuracy are therefore added up on the device, and the loop reads the sums every 20 steps, or as often as `disp_batches` says. Nor is there any Python per image: decoding happens in worker processes ahead of time, and normalising is one operation for the whole batch.
#
# What does asking cost? Take your own network through the same batches in both ways. On a CPU there is no queue, and the two are alike but for the noise.

# %%
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def milliseconds(ask):
    total, begin = torch.zeros((), device=device), time.perf_counter()
    for images, labels in on_device:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() if ask else loss.detach()
    total.item()
    return 1000 * (time.perf_counter() - begin) / len(on_device)


on_device = [(images.to(device), labels.to(device)) for images, labels in kept[:6]]
milliseconds(ask=True)  # the first time is slower than all others
for ask in (True, False, True, False):
    way = "asked at each step" if ask else "added up on the device"
    print(f"loss {way}: {milliseconds(ask):.1f} ms a step")

# %% [markdown]
# ## Run it
#
# Now train ResNet-50. The full run of the road signs goes through all epochs of the recipe, which takes minutes on two CPU cores. On a CPU this cell therefore stops after 2, and where the processor does not compute in bfloat16 it takes half of the 2,400 pictures. The schedule shrinks with the run, so that the warm-up and the three decays are all there. On a GPU the cell does the full run.

# %%
epochs = epochs or session.pick(cpu=2, gpu=recipe.ROADSIGNS.epochs)
slow = session.profile != "gpu" and not session.machine.bfloat16
settings = Experiment(num_epochs=epochs, batch_size=batch or 32, seed=seed, disp_batches=10)
run = workshop.train(
    settings, name="short", model_prefix="model", num_examples=960 if slow else None
).live()

# %% [markdown]
# Before you go on, look at the curves. The learning rate falls in three steps; in a short run the warm-up is over before the first reading. Does the loss fall faster right after a step? The last row shows whether the cores were busy all the time. And how does it compare with your small network, which had one epoch at a constant rate? Below, what the full run gave where it was recorded, `rn50 run --preset roadsigns`; your own number stands beside it only if your run was the full one.

# %%
from workshop.lessons.single_gpu import reading

report = run.report
metrics, axes = report["metrics"], report["env"]["axes"]
top1, classes = metrics["val.top1"][-1], axes["num_classes"]["value"]
print(f"{report['model']}, {len(metrics['val.top1'])} epochs in {axes['dtype']['value']}:")
print(f"top-1 {top1:.1f} %, where guessing would give {100 / classes:.1f} %.")
session.expect(reading.full_run(report, recipe.ROADSIGNS.epochs))

# %% [markdown]
# And these are the accuracies that *ResNet-50 v1.5 for MXNet* reports for ImageNet, with the hours that its 90 epochs took. One V100 in FP32 needs three and a half days. The other columns are what the rest of this course is about: more GPUs (notebook 03) and mixed precision (notebook 06), and neither costs accuracy.

# %%
from workshop.lessons import dgx1

workshop.table(
    *dgx1.accuracy_rows(session.results),
    caption="Published: 90 epochs of ImageNet on a DGX-1 with V100s",
)

# %% [markdown]
# ## Read the report
#
# A run that leaves no report did not happen: nobody can compare with it. The report of this project has the keys of the published one, in its order, so that tools for the one read the other. Each metric is a list with one value per epoch. What was not measured is absent or `null`, never 0 and never `NaN`, which would not be JSON.
#
# The first iteration of an epoch waits for the first batch, and in the first epoch it also waits for worker processes to start and for kernels to be chosen. It would make a short run look slow, so `train.time` leaves it out.

# %%
workshop.table(
    reading.report_rows(report), columns=["key", "last epoch", "meaning"], caption="report.json"
)
first = reading.first_iterations(report, run.progress[0]["steps"])
print(f"The {len(metrics['train.time'])} first iterations took {first:.1f} s together.")

# %% [markdown]
# ### Who decided what
#
# Nothing that decides a result may be hidden in a default. `env` holds every setting with the reason for it, next to the machine and the versions. A setting that you leave open is chosen once, and the report says why. One that you give is kept as it is; the profile `ci` alone makes everything smaller.

# %%
names = ["data_root", "loader", "dtype", "n", "batch_size", "num_layers", "image_shape"]
names += ["lr", "warmup_epochs", "threads", "data_nthreads"]
workshop.table(reading.axes_rows(report, names), columns=["setting", "value", "why"])
flops = report["env"]["model_flops"]
print(f"Training on one image takes {flops['per_image'] / 1e9:.2f} GFLOP,")
print(f"so the model computes {flops['per_second'] / 1e9:,.0f} GFLOP per second.")

# %% [markdown]
# ## Kill it, and go on
#
# Machines fail, queues end, somebody trips over a cable. A run of days must survive that, and it must not matter to the result. What has to be saved? Try it with your own network: three steps, save, and the same three again. Then a new model and a new optimizer take over what was saved and repeat the second half.

# %%
import copy

saved = session.folder / "checkpoint.pt"
start = copy.deepcopy(model.state_dict())


def go_on(batches, state, momentum=None):
    net = small_resnet(len(signs.classes)).to(device)
    net.load_state_dict(state)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    if momentum:
        optimizer.load_state_dict(momentum)
    for images, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()
    return net, optimizer


three = (on_device * 3)[:3]
halfway, optimizer = go_on(three, start)
torch.save({"model": halfway.state_dict(), "optimizer": optimizer.state_dict()}, saved)
undisturbed, _ = go_on(three, halfway.state_dict(), optimizer.state_dict())

# %%
found = torch.load(saved)
resumed = {
    "weights alone": go_on(three, found["model"])[0],
    "weights and momentum": go_on(three, found["model"], found["optimizer"])[0],
}
for what, net in resumed.items():
    pairs_of = zip(net.parameters(), undisturbed.parameters(), strict=True)
    apart = max((a - b).abs().max().item() for a, b in pairs_of)
    print(f"{what} restored: the weights differ by up to {apart:.2g}")

# %% [markdown]
# Whoever saves the weights alone gets another run: the optimizer remembers its way too. A real run must also restore its place in the epoch, its order of images, its loss scale and its metrics. The library writes all of this after every epoch: first beside the old checkpoint, then renamed, so that at any moment there is a whole one.
#
# Its claim is strong: on a CPU, a run that was killed and resumed ends with the *same bits* as one that nobody disturbed. To test it you need both. The network is `tiny` here, because the claim is about bits and not about accuracy. The second run is killed in the middle of its second epoch with SIGKILL, which no program can catch. This is what a power cut looks like to software.

# %%
from workshop.lessons.single_gpu import restart

small, last = restart.experiment(session, seed)
undisturbed = workshop.train(small, name="undisturbed")
undisturbed.wait_for(restart.finished(last))
broken = workshop.train(small, name="broken")
broken.wait_for(lambda line: line["phase"] == "train" and line["epoch"] == 1)
broken.kill()
before = list(broken.progress)
workshop.table(
    [[file.name, file.stat().st_size / 1e3] for file in sorted(broken.dir.iterdir())],
    columns=["file", "KB"],
    caption="What is left on the disk",
)

# %% [markdown]
# `resume()` starts the same command with `--resume`. The run looks for the newest checkpoint that verifies, checks that network, classes, seed and data are the same, takes over the weights, the velocity of the optimizer and the metrics so far, and repeats the epoch that was cut short.

# %%
from rn50lib import checkpoint
from workshop.lessons.single_gpu import figures as shown

resumed = broken.resume()
resumed.wait_for(restart.finished(last))
fig, finding = shown.resumed(undisturbed.progress, before, resumed.new_progress)
workshop.figure(fig, alt=f"Training loss of both runs over the epochs. {finding}")
print(finding)
ends = {}
for name, handle in (("undisturbed", undisturbed), ("killed and resumed", resumed)):
    arrays = checkpoint.load(handle.dir / "model", last + 1).arrays
    ends[name] = checkpoint.checksum(arrays, {})
    print(f"{name}: {len(arrays)} arrays, CRC-32 {ends[name]}")
same = len(set(ends.values())) == 1
print("The weights are", "the same, bit for bit." if same else "not the same.")

# %% [markdown]
# On a CPU this holds with the same number of threads, because sums are then added in the same order. On a GPU some operations add in whatever order their threads finish, and `cudnn.benchmark` may choose another kernel the next time, so there the two runs are equal but for rounding. It also needs the order of the images and every random crop to be a function of seed, epoch and image, so that a worker that starts again makes the same choices.

# %% [markdown]
# ## Score a checkpoint
#
# A checkpoint is worth something only if it gives the same accuracy to somebody else. Take the one of the short run into your own hands: the arrays go into a model in this kernel, and the model is asked about one picture.

# %%
from rn50.predict import prepare, trained_as
from rn50lib.data.source import open_source
from rn50lib.torch.model import load_arrays

prefix = run.dir / "model"
end = checkpoint.epochs(prefix)[-1]
restored = ResNet(checkpoint.read_network(prefix)).eval()
load_arrays(restored, checkpoint.load(prefix, end).arrays)
source = open_source(session.data_root, "val")
pixels = torch.from_numpy(prepare(source, 0, trained_as(prefix, end)).copy())
normal = (pixels - torch.tensor(recipe.MEAN)) / torch.tensor(recipe.STD)
with torch.no_grad():
    answer = restored(normal.permute(2, 0, 1)[None].float()).softmax(dim=1)[0]
print(f"The picture is a {source.classes[source.labels[0]]}. The model says:")
for probability, label in zip(*answer.topk(3), strict=True):
    print(f"{100 * probability:5.1f} %  {source.classes[label]}")

# %% [markdown]
# `rn50 score PREFIX EPOCH` does this for the whole validation set. Below, every picture is asked in a new process, and the sum must come to the number that the training run reported.
#
# One number for 1,200 pictures hides what the model has learnt. So look at the right answers that it is surest of, one per class at most: the bars are its three likeliest classes, and green is the truth. Then look at the wrong answers that it is surest of, with the truth above each picture. They teach more: ask of each whether *you* would have known at 64 × 64 pixels, which is all that the model gets.

# %%
from workshop.lessons.single_gpu.predictions import predict_split

answers = predict_split(prefix, end)
seen = reading.validated(report, len(answers.labels))
print(f"{seen:,} pictures: {answers.top1(seen)} % right; the report said {top1} %.")
for right, count in ((True, 6), (False, 12)):
    fig, alt = shown.gallery(answers, shown.most_certain(answers, right=right, count=count))
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
# Signs that differ only in a digit, as speed limits do, need pixels that tell the digits apart. If yours are confused, would a larger picture help, or only a longer run? You can test both: put `image_shape=96` into the settings of the cell that trains, or give the notebook more `epochs`.

# %% [markdown]
# ## Beside the published figures
#
# How fast is ResNet-50 on this machine? The run below is short, does not validate and counts no hits: **speed and accuracy come from separate runs**, so that neither spoils the other.

# %%
pixels = session.pick(cpu=64, gpu=224)
at_speed = Experiment(
    num_layers=50, batch_size=batch or reading.speed_batch(session), image_shape=pixels,
    num_epochs=2, no_val=True, benchmark_iters=session.pick(ci=2, cpu=15, gpu=100),
    no_metrics=True, disp_batches=5,
)  # fmt: skip
speed = workshop.train(at_speed, name="speed").wait()
ips = speed.report["metrics"]["train.total_ips"][-1]
workshop.table(*reading.beside_published(speed.report, session.results))

# %% [markdown]
# Images per second cannot be compared one to one when the images differ in size: a picture with a side of 64 pixels has a twelfth of the pixels of one with 224. The column of TFLOP per second removes the size and leaves what the hardware did. Even that is not quite fair where the batch or the precision is another one. A speed without model, size, batch and precision beside it means nothing.

# %% [markdown]
# ## Where is the time going now?
#
# Back to the question, with the two measurements that you made of your own loop. The run above did both things at once, loading and computing. Two more runs do one of them each: `--test-io` loads pictures and throws them away, and the `synthetic` loader gives the model random pictures that need no loading.

# %%
loading = workshop.train(
    at_speed, name="input", test_io=True, num_epochs=1, benchmark_iters=None
).wait()
classes = speed.report["env"]["axes"]["num_classes"]["value"]
computing = workshop.train(
    at_speed, name="model", loader="synthetic", num_classes=classes, num_epochs=1
).wait()
speeds = {
    "input alone": reading.input_speed(loading),
    "model alone": computing.report["metrics"]["train.total_ips"][-1],
    "both together": ips,
}
workshop.table(list(speeds.items()), columns=["", "images per second"])

# %% [markdown]
# The report of the run that did both also counts the seconds of its loop in three parts: in the step, waiting for the next batch, and everything else.

# %%
fig, finding = shown.loop(speed.report)
workshop.figure(fig, alt=f"Seconds of the loop by part. {finding}")
print(finding)
times = speeds["input alone"] / speeds["model alone"]
print(f"The input alone delivers {times:.1f} times what the model alone takes.")
print(reading.verdict(times, session.profile))
waiting = reading.shares(speed.report)["data"]

# %% [markdown]
# Two remarks before you trust the picture. The wait includes the start of the loader's worker processes, which a long run pays once and a short one feels. And on a CPU the loader and the model share the cores: what the loader uses, the model lacks, even while nobody waits. That is why both together can be slower than either alone. On a GPU they are separate, and there the input must keep up with something far faster. Remember your input's images per second: the published V100 took more than 1,400 of them, at 224 pixels.

# %% [markdown]
# ## Your numbers
#
# What this notebook measured on your machine, in one place: to compare with a colleague's, or with those of another machine.

# %% tags=["results"]
session.note("v15_over_v1", ratio, "times", "time of a v1.5 step over a v1 step")
session.note("short_top1", top1, "%", f"top-1 of {report['model']} after the short run")
session.note("resnet50_ips", ips, "img/s", f"training speed of {speed.report['model']}")
session.note("data_share", waiting, "%", "of the training loop spent waiting for data")

# %% [markdown]
# ## What to take with you
#
# - A training loop is forty lines. What it takes to trust it with days of computing is the rest.
# - v1.5 moves one stride: the same parameters, a little more work, and no pixel skipped on the way through the block.
# - The learning rate scales with the global batch, starts with a warm-up, and is a pure function of the progress.
# - A loop is fast when nothing in it waits and nothing in it happens per image.
# - A report says what was measured, with which settings, and why those; the first iteration is left out.
# - A checkpoint without the optimizer's memory is half of one. With everything restored, a killed run ends as if nothing had happened.
# - Before you make anything faster, ask where the time is going.
#
# Something to try: run the notebook again with `batch = 16` or `batch = 64` in its second cell, and predict the learning rate and the speed before you look.
#
# If computing is the bottleneck, more processors are the next idea. Then the workers must agree on one model, and their agreement takes time as well. That comes next in the course: notebook 03, several workers with Horovod.
