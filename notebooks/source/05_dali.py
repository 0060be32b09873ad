# %% [markdown]
# # 05 · DALI
#
# After this notebook you can say who decodes the pictures, read and time a DALI graph operator by operator, and tell in advance whether another loader makes a training run faster.
#
# **Time:** 40 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 5 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
device: float = 1442.6  # images per second of the accelerator that is imitated: a V100 in FP16
rounds: int | None = None  # turns of everything that is timed; None: 5
epochs: int | None = None  # epochs of the training run; None: 3
seed: int = 0  # start of all randomness

# %%
import workshop

session = workshop.start("05", profile)

# %% [markdown]
# ## A pipeline of your own
#
# **DALI** is NVIDIA's library for one job: from the files on the disk to a batch that a network can be fed. A pipeline is a Python function of *operators*. This one reads the road signs, decodes them, cuts a random part out, brings it to one size and turns half of the pictures round. Change it: another size, `random_area=(0.05, 0.1)` in the crop, no flip.

# %%
HERE = workshop.has("nvidia.dali")
on_gpu = session.profile == "gpu"
if HERE:
    from nvidia.dali import fn, pipeline_def, types

    gpu = {"device_id": 0 if on_gpu else None}

    @pipeline_def(batch_size=32, num_threads=session.machine.cores, seed=seed, **gpu)
    def mine(root, size=224):
        jpegs, labels = fn.readers.file(file_root=str(root), random_shuffle=True, name="reader")
        images = fn.decoders.image(jpegs, device="mixed" if on_gpu else "cpu")
        images = fn.random_resized_crop(images, size=(size, size))
        images = fn.flip(images, horizontal=fn.random.coin_flip())
        return images, labels


# %% [markdown]
# Two calls make batches of it. `build` turns the function into a graph, and `run` asks for the next batch; what comes back are lists of arrays, on the GPU where the last operator ran there.

# %%
if HERE:
    pipe = mine(session.data_root / "train")
    pipe.build()
    images, labels = pipe.run()
    pixels = (images.as_cpu() if on_gpu else images).as_array()
    print(pixels.shape, pixels.dtype, "labels", labels.as_array().ravel()[:8].tolist())
    workshop.images(list(pixels[:8]), columns=8, alt="Eight pictures that the pipeline has made")

# %% [markdown]
# How fast is it? A loop and a clock. A second pipeline, which only reads, tells how much of the time that is:

# %%
import time


def images_per_second(batch_of, batches):
    """The rate of a function that makes a batch of 32; the first two are not counted."""
    batch_of(), batch_of()
    begin = time.perf_counter()
    for _ in range(batches):
        batch_of()
    return 32 * batches / (time.perf_counter() - begin)


rates, batches = {}, session.pick(ci=2, cpu=20)
if HERE:

    @pipeline_def(batch_size=32, num_threads=session.machine.cores, seed=seed, device_id=None)
    def only_reading(root):
        jpegs, labels = fn.readers.file(file_root=str(root), random_shuffle=True)
        return jpegs, labels

    reader = only_reading(session.data_root / "train")
    reader.build()
    rates["DALI"] = images_per_second(pipe.run, batches)
    reading = images_per_second(reader.run, batches)
    print(f"{rates['DALI']:,.0f} pictures a second; reading alone does {reading:,.0f}.")

# %% [markdown]
# And now the same work as you would write it without DALI: PyTorch's `DataLoader` with Pillow in as many processes as there are cores, and TensorFlow's `tf.data`. Which of them do you expect to be the fastest? All three call some build of the same library for JPEGs.

# %%
import numpy as np
import torch
from PIL import Image


class Signs(torch.utils.data.Dataset):
    def __init__(self, root):
        self.files = sorted(root.rglob("*.jpg"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        image = Image.open(self.files[i]).convert("RGB")
        share = torch.empty(1).uniform_(0.08, 1.0).item() ** 0.5  # of each side
        width, height = round(share * image.width), round(share * image.height)
        left = torch.randint(image.width - width + 1, (1,)).item()
        top = torch.randint(image.height - height + 1, (1,)).item()
        box = (left, top, left + width, top + height)
        return torch.from_numpy(np.array(image.resize((224, 224), Image.BILINEAR, box)))


# %%
signs = Signs(session.data_root / "train")
loader = torch.utils.data.DataLoader(
    signs, 32, shuffle=True, drop_last=True, num_workers=session.machine.cores
)


def forever(make):
    while True:
        yield from make()


stream = forever(lambda: loader)
rates["DataLoader with Pillow"] = images_per_second(lambda: next(stream), batches)
del stream  # ends the worker processes

# %%
if workshop.has("tensorflow"):
    import tensorflow as tf

    def made(path):
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            tf.shape(image), tf.zeros([1, 0, 4]), area_range=(0.08, 1.0),
            min_object_covered=0.0, use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        image = tf.image.resize(tf.slice(image, begin, extent), (224, 224), antialias=True)
        return tf.image.random_flip_left_right(tf.cast(image, tf.uint8))

    files = tf.data.Dataset.from_tensor_slices([str(file) for file in signs.files])
    chain = files.shuffle(len(signs)).repeat().map(made, num_parallel_calls=tf.data.AUTOTUNE)
    stream = iter(chain.batch(32).prefetch(2))
    rates["tf.data"] = images_per_second(lambda: next(stream), batches)
    del stream
workshop.table(
    [[name, rate, rate / session.machine.cores] for name, rate in rates.items()],
    columns=["your own", "img/s", "per core"],
)

# %% [markdown]
# A training loop does not call `run` itself. DALI has an iterator for each framework, which hands over tensors of that framework and knows where an epoch ends. Here is one step of a loop with it:

# %%
if HERE:
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    pipe = mine(session.data_root / "train", size=64)
    batches_of = DALIGenericIterator([pipe], ["images", "labels"], reader_name="reader")
    classifier = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64 * 64 * 3, 12))
    classifier.to("cuda" if on_gpu else "cpu")
    for (batch,) in batches_of:
        x = batch["images"].float() / 255
        y = batch["labels"].squeeze(1).long().to(x.device)
        loss = torch.nn.functional.cross_entropy(classifier(x), y)
        loss.backward()
        break
    print(
        f"{tuple(x.shape)} on {x.device}, loss {loss.item():.2f}; an epoch has {len(batches_of)} batches"
    )

# %% [markdown]
# ## Where is the time going?
#
# So far you have found the bottleneck by hand, one measurement at a time. There is a program for it: `rn50 diagnose` times the loader alone, the step alone and both together, and says in one sentence what holds the run up. Its patient is a run like those of the last notebook, with PyTorch's loader: JPEGs, the published crops of 224 pixels, and in the model's place a wait that is as long as a V100 in FP16 would compute.
#
# Before you run it, guess: which share of its time does that device work?

# %%
from dataclasses import replace

from workshop.lessons.dali import lesson

scratch = session.runs / "05-dali"
scratch.mkdir(parents=True, exist_ok=True)
fed = dict(
    data_root=str(session.data_root), data_format="files", recipe="reference", batch_size=32,
    seed=seed, profile=session.profile, n=1,
)  # fmt: skip
if session.profile == "ci":  # the lesson in small; its numbers mean nothing
    fed = dict(fed, profile="cpu", image_shape=32, batch_size=4, threads=1, data_nthreads=1)
paced = dict(fed, step=device, loader="native")
seconds = ("--seconds", session.pick(ci=0.3, cpu=2))
change = ("--change", "--loader dali") if lesson.HERE else ()
before = lesson.diagnose(scratch, "before", paced, *seconds, *change)

# %%
idle = 100 - 100 * before["rates"]["both"] / before["rates"]["compute"]
stages = before["stages"]
decoding = 100 * (stages["decode"] + stages["augment"]) / sum(stages.values())
print(before["verdict"])
print(f"Of the work on a picture, {decoding:.0f} % is decoding it and making it small.")

# %% [markdown]
# Reading from memory and copying cost little. A JPEG has to be *decoded*, and that is arithmetic: the stored bits are unpacked into coefficients one after the other, the coefficients become blocks of 8 × 8 pixels by a cosine transform, the colours are blown up to full size. A faster disk would not help.
#
# DALI does two things about it: it runs the whole chain in threads of its own, without Python, and the parts of the chain that it is told to it runs on the GPU.
#
# ## Three loaders, hardened
#
# Your three pipelines differ in more than their speed: other crops, other resizing, other orders. This workbook has three ways from a file to a batch, and they take the same flags:
#
# | loader | what decodes | where |
# |---|---|---|
# | PyTorch's (`--loader native`) | libjpeg-turbo, in worker processes | the processor |
# | tf.data (`--backend tensorflow`) | TensorFlow's libjpeg, in threads | the processor |
# | DALI (`--loader dali`) | DALI's libjpeg or nvJPEG, in threads | the processor, or the GPU |
#
# They read the same files in orders that are known, cut the same kind of crops and resize with the same care, so that a difference in speed is one of speed alone. Which one do you expect to be the fastest, and by how much?
#
# The cell lets them take turns, on the same files and with the same careful resizing. In each round every loader runs alone and then in front of the paced device; last comes this machine's own ResNet-50, on images that cost nothing.

# %%
from workshop.lessons.dali import loaders

turns = rounds or session.pick(ci=1, cpu=5)
own = dict(image_shape=224, num_classes=1000, batch_size=session.pick(cpu=4, gpu=64))
if session.profile == "ci":
    own = dict(own, network="tiny", image_shape=32, profile="cpu", threads=1)
measured = loaders.compare(
    fed, loaders.loaders(), device, turns, steps=session.pick(ci=2, cpu=12), model=own
)
fig, finding = loaders.figure(measured, device)
workshop.figure(fig, alt=f"Images per second of the loaders and of the model. {finding}")
print(finding)

# %%
import statistics

threads = measured.experiment.data_nthreads
per_core = {name: measured.rate(name) / max(1, threads) for name in measured.alone}
first = loaders.PYTORCH
rows = []
for name, rate in per_core.items():
    ratios = measured.ratios(name, first)
    rows.append([name, measured.rate(name), rate, statistics.median(ratios), min(ratios),
                 max(ratios), device / rate])  # fmt: skip
workshop.table(
    rows,
    columns=["loader", "img/s", "per core", f"times {first}", "from", "to", "cores for a V100"],
    caption=f"{threads} threads or workers, {measured.experiment.image_shape} px, antialiased; "
    f"medians of {measured.rounds} rounds",
)
if lesson.here(session, "dali.over_native"):
    gain = statistics.median(measured.ratios(loaders.DALI, first))

# %% [markdown]
# ### Is decoding the bottleneck here?
#
# Compare two of the numbers: what this machine's own model takes, and what the slowest of the loaders gives.

# %%
model_ips = statistics.median(measured.model)
slowest = min(measured.alone, key=measured.rate)
times = measured.rate(slowest) / model_ips
print(f"The model on this machine takes {model_ips:,.1f} images per second;")
print(
    f"{slowest}, the slowest loader, gives {measured.rate(slowest):,.0f}: {times:.1f} times as many."
)
if times > 3:
    print("In front of this machine's own model no loader makes training noticeably faster.")
print(
    f"The published V100 takes {device:,.1f}, {device / measured.rate(slowest):.2f} times as many."
)

# %% [markdown]
# So the answer depends on the device. In front of a processor the model is the bottleneck, and the rest of this notebook would gain nothing for a training run *here*. In front of a fast accelerator it is the other way round, and the more so the faster the accelerator is.

# %% [markdown]
# ## The graph, operator by operator
#
# A DALI pipeline is a function that describes what happens to *one* picture. This is the library's, for training. Read it from `encoded` to `delivered`, and leave the branch `look.engine` for later.

# %%
workshop.show("rn50lib.data.dali_graph:training")

# %% [markdown]
# What flows through it is easiest to see. The cell runs the graph on one file and shows what comes out behind each operator: the file as it lies on the disk, the part that the random crop has chosen, that part at the network's size, and the normalised numbers that a network is fed. The last are floats around zero, in a plane per colour; you see the red one.

# %%
from rn50lib.data.source import open_source
from workshop.lessons.dali import figures

done = workshop.session.resolve(dict(fed, loader="native"))
files = open_source(session.data_root, "train", "files")
paths = [files.path / files.name(i) for i in range(len(files))]
example = paths[int((files.labels < files.classes.index("yield")).sum()) + 1]
found = lesson.outputs(done, example, seed + 3)
fig, finding = figures.outputs(found)
workshop.figure(fig, alt=f"The file as noise, the crop, the small picture, a plane. {finding}")
print(f"Drawn by {lesson.DRAWN_BY}. {finding}")

# %% [markdown]
# Mind the sizes. Decoding multiplies the bytes, resizing brings them down, and normalising multiplies them by four again, because a byte becomes a float of 32 bits. Many pipelines normalise in the loader, since DALI has an operator for it (`crop_mirror_normalize`), and then, where the processor decodes, send four times as much to the GPU. The library stops one step earlier: it hands over bytes, and the training step normalises them where arithmetic is cheap. You have seen that line in notebook 02.
#
# ### What each one costs
#
# Guess before you measure: which operator takes most of the time, and what does the mirror image cost?
#
# The cell cuts the graph off behind each operator and times the stumps in turns, on one core. The difference between two stumps is the time of the operator between them. The second bar is a graph that does the same work apart: decode all of the picture, then cut the crop out.

# %%
if lesson.here(session, "dali.decode.share", "dali.fused.saved"):
    from workshop.lessons.dali import steps

    look, some = lesson.look(done), paths[:: max(1, len(paths) // 64)]
    until = steps.step_times(some, look, turns, batch=done.batch_size)
    fused, apart = "crop while decoding", "decode all, then crop"
    ways = {fused: [steps.READ, steps.DECODE, steps.RESIZE, steps.NORMALISE]}
    ways[apart] = [steps.READ, steps.WHOLE, steps.CROP]
    fig, finding, ms = figures.step_times(until, ways)
    workshop.figure(fig, alt=f"Milliseconds of each operator, stacked. {finding}")
    print(finding)
    share = 100 * ms[fused][steps.DECODE] / sum(ms[fused][s] for s in ways[fused][:3])

# %% [markdown]
# The mirror image has no bar of its own. In the source above, a mirrored picture is resized *from right to left*: the same work, read in the other direction. A `flip` of its own would have copied every pixel once more.
#
# ### Decoding a part
#
# The recipe's crops take between 5 % and 100 % of a picture. Somebody who decodes all of it and then cuts throws most of the work away, it seems. So DALI, tf.data and libjpeg all offer to decode only the part that is needed. How much does that save?

# %% [markdown]
# A JPEG is one long string of bits of variable length. Where row 300 begins is known only to somebody who has unpacked the 299 rows before it. A part at the top is cheap, because the decoder may stop early; one at the bottom needs nearly all of the unpacking and saves only the cosine transforms. That is why cropping while decoding saves less than the pixels suggest:

# %%
from workshop.lessons.data.figures import crop_shares

areas = crop_shares(done.to_recipe().augmentation, 500, 375, 2000)
print(f"A crop of the recipe has {100 * areas.mean():.0f} % of the pixels, on average:")
print(f"{100 - 100 * areas.mean():.0f} % of the pixels need not be decoded.")
if lesson.HERE:
    spared = 100 * steps.saved(until[steps.WHOLE], until[steps.DECODE])
    whole = 100 * steps.saved(until[steps.CROP], until[steps.RESIZE])
    print(f"Cropping while decoding spares {spared:.0f} % of the time for reading and decoding,")
    print(f"and {whole:.0f} % of the whole graph.")

# %% [markdown]
# ### Chance inside the graph
#
# Every operator has defaults, and those of the random crop are not the recipe's. The document that this course follows passed no area to DALI, so its runs took DALI's smallest crop and not the 5 % that it describes. The library passes every number. Look at both:

# %%
import inspect

if lesson.HERE:
    known = inspect.signature(fn.decoders.image_random_crop).parameters["random_area"].default
    print(f"DALI's own area: {known}; the recipe's: {list(done.to_recipe().augmentation.area)}")
else:
    print(f"The recipe's area: {list(done.to_recipe().augmentation.area)}")
# %% [markdown]
# ## Building and running
#
# The function above looks as if it worked on pictures. It does not: `fn.resize` returns no pixels but a node, a note that says "here something is resized". Python runs through the function **once**, when the graph is built. From then on DALI's threads do the work, and Python only asks for the next batch. The cell counts.

# %%
if lesson.here(session, "dali.python_calls"):
    calls = []

    @pipeline_def(batch_size=8, num_threads=1, device_id=None)
    def counted(root):
        calls.append("Python was here")
        jpegs, labels = fn.readers.file(file_root=str(root))
        return fn.resize(fn.decoders.image(jpegs), size=(64, 64)), labels

    begin = time.perf_counter()
    graph = counted(session.data_root / "train")
    graph.build()
    built = time.perf_counter()
    for _ in range(10):
        graph.run()
    ran = (time.perf_counter() - built) / 10
    print(f"Built in {1000 * (built - begin):.0f} ms, then {1000 * ran:.0f} ms a batch.")
    print(f"Ten batches of 8, and the function was called {len(calls)} time(s).")

# %% [markdown]
# Where Python must take part, because the data comes from a database or from an augmentation of your own, `external_source` calls a function for every picture, and pays for it:

# %%
if HERE:
    asked = []

    def from_python(sample):
        asked.append(sample.idx_in_epoch)
        return np.frombuffer(signs.files[sample.idx_in_epoch % len(signs)].read_bytes(), np.uint8)

    @pipeline_def(batch_size=8, num_threads=1, device_id=None)
    def by_hand():
        jpegs = fn.external_source(source=from_python, batch=False, dtype=types.UINT8)
        return fn.resize(fn.decoders.image(jpegs), size=(64, 64))

    graph = by_hand()
    graph.build()
    graph.run()
    print(f"One batch of 8 was asked for, and Python was called {len(asked)} times:")
    print("DALI makes the next batches ahead.")

# %% [markdown]
# Two things follow. A learner's own Python function for the crop cannot be put in here, and `--override augment` says so where you try it. And a random number that *Python* draws in this function is drawn once and is the same for the whole training: the mistake of notebook 04 with the angle, in another library. Chance belongs in the graph: `fn.random.coin_flip`.
#
# DALI makes batches ahead and keeps them in a queue, like tf.data's `prefetch` and the workers of PyTorch's loader. A queue lends time from fast batches to slow ones. What it cannot do is make the loader faster on average. The library makes two batches ahead; on a GPU each of them lies in the GPU's memory, which a deeper queue would take from the model.
#
# ## On the GPU
#
# The same function describes the graph for a processor and for a GPU. One word per operator decides where it runs:
#
# - `cpu`: from host memory to host memory,
# - `mixed`: begins on the processor and ends on the GPU; the decoder is of this kind, because unpacking begins with bytes in host memory,
# - `gpu`: from the GPU's memory to the GPU's memory. It follows from where its input is, and in DALI 1.34, which this project names, no operator on the CPU can come after it.

# %%
workshop.show("rn50lib.data.dali_graph:decoding")
workshop.show("rn50lib.data.dali_graph:delivered")
if lesson.here(session):
    places = steps.devices(look)
    workshop.table(
        [[name, *where] for name, where in places.items()],
        columns=["operator", "graph for a CPU", "graph for a GPU"],
        caption="Asked of both graphs; writing one down needs no GPU",
    )

# %% [markdown]
# Everything behind the reader moves. Now the branch that you left out: some GPUs (A100, H100 and their successors) have a **JPEG engine**, a piece of silicon that decodes beside everything else. It knows whole pictures only. There the order is turned round, `decoders.image` and then `random_resized_crop`: more pixels, on a unit that has nothing else to do. And what comes out stays there: this is how PyTorch gets its batch, from DALI's buffer in the GPU's memory to a tensor in the GPU's memory.

# %%
workshop.show("rn50lib.data.dali:Dali.batch")
if session.machine.gpus and loaders.ON_CPU in measured.alone:
    ratio = statistics.median(measured.ratios(loaders.DALI, loaders.ON_CPU))
    print(f"Decoding on this GPU is {ratio:.2f} times as fast as on the {threads} cores.")
else:
    print("Nothing was decoded on a GPU in this run. What follows was published.")

# %% [markdown]
# And this is what others measured, on a server with eight V100 and with TensorFlow. *Synthetic* stands for pictures that cost nothing, the ceiling.

# %%
kinds = {"tf.data": "tfdata", "DALI": "dali", "synthetic pictures": "synthetic"}
items = {n: session.results[f"published.v100.8gpu.input.{k}.ips"] for n, k in kinds.items()}
ceiling = items["synthetic pictures"].value
kilobytes = sum(path.stat().st_size for path in paths) / len(paths) / 1000
workshop.table(
    [[name, item.value, 100 * item.value / ceiling, item.value * kilobytes / 1000]
     for name, item in items.items()],
    columns=["input", "img/s", "per cent of synthetic", f"MB/s at {kilobytes:.0f} KB a picture"],
    caption=items["DALI"].provenance,
)  # fmt: skip
shares = {name: 100 * item.value / ceiling for name, item in items.items()}
closed = (shares["DALI"] - shares["tf.data"]) / (100 - shares["tf.data"])
print(f"tf.data left {100 - shares['tf.data']:.1f} % of the eight GPUs unused, DALI "
      f"{100 - shares['DALI']:.1f} %:")  # fmt: skip
print(f"it closed {100 * closed:.0f} % of the gap, and did not close it all.")

# %% [markdown]
# ## The same picture?
#
# Three libraries decode the same file. Do they give the same pixels? If not, a network that was trained behind one of them sees other pictures behind another, and its accuracy may suffer without any error message. The cell takes the first validation pictures through each loader: no chance is in them, so every difference is the library's. tf.data and DALI come twice, the second time with `--resample fast`. The measure is Pillow, taking no shortcut at all.

# %%
from workshop.lessons.dali import pictures as seen

count, sizes = (
    session.pick(ci=8, cpu=32),
    (fed.get("image_shape", 224), session.pick(ci=16, cpu=64)),
)
chosen = {name: f for name, f in loaders.loaders().items() if name != loaders.ON_CPU}
pictures = seen.seen(fed, chosen, count, sizes)
differ = {size: seen.differences(pictures[size]) for size in sizes}
workshop.images(
    [images[count // 2] for images in pictures[sizes[0]].values()],
    labels=list(pictures[sizes[0]]),
    alt="The same validation picture through each loader; they look alike",
)

# %%
differing = [
    [name, *differ[sizes[0]][name], differ[sizes[1]][name][0]] for name in differ[sizes[0]]
]
columns = ["loader", f"mean at {sizes[0]} px", "of the worst picture", "largest value"]
workshop.table(
    differing,
    columns=[*columns, f"mean at {sizes[1]} px"],
    caption=f"How far pixels are from Pillow's, of 255; {count} validation pictures",
)

# %% [markdown]
# With care, the three agree at 224 pixels to a fraction of one step in 255; what is left is rounding. At 64 pixels something else comes in: PyTorch's and tf.data's loaders let libjpeg decode such a picture at half of its size, which is nearly free and averages in blocks, where DALI decodes all of it. That, too, is within the three steps that this project allows a loader.
#
# In a hurry, they do not agree. `--resample fast` takes three shortcuts at once, and the last of them does most of the damage:
#
# - a **faster cosine transform**, which rounds more coarsely,
# - **plain colour upsampling**: many JPEGs store colour at half the size, and the careful way interpolates between the stored values where the plain one repeats them,
# - **no antialiasing**: to make a picture small, the careful way averages over all pixels that become one; without that, each new pixel is mixed from its four neighbours, and what lies between is passed over.

# %% [markdown]
# Training takes the first two shortcuts in every loader, whatever `--resample` says: they save about a thirteenth of the decoding, and beside a crop that is drawn anew in each epoch the difference is nothing. Validation takes none unless it is told to, because there the answers are compared.
#
# ### Does the network notice?
#
# Pixels are not the point, predictions are. A small network now learns from DALI's careful pictures, and then the same checkpoint answers all validation pictures through each loader. What do you expect of the fast ones, at 64 pixels?

# %%
length = epochs or session.pick(cpu=3)
loader = "dali" if lesson.HERE else "native"
small = dict(network="tiny", recipe="roadsigns", num_epochs=length, batch_size=32, seed=seed,
                   threads=1, disp_batches=25)  # fmt: skip
trained = workshop.train(small, name="trained", loader=loader, model_prefix="model").wait()

# %%
prefix, last = str(trained.dir / "model"), len(trained.report["metrics"]["val.top1"])
readers = {name: {**fields, "resample": "antialias"} for name, fields in chosen.items()}
for name in list(chosen)[1:]:
    readers[f"{name}, fast"] = {**chosen[name], "resample": "fast"}
if session.profile == "ci":
    readers = {name: fields for name, fields in readers.items() if "tf" not in name}
scores = {}
for name, fields in readers.items():
    print(f"\n{name}")
    run = workshop.train(name="scored", only_inference=True, num_epochs=1, load_epoch=last,
                         network="tiny", model_prefix=prefix, batch_size=48, **fields).wait()  # fmt: skip
    scores[name] = run.report["metrics"]["val.top1"][-1]
careful = [score for name, score in scores.items() if "fast" not in name]
workshop.table([[n, s] for n, s in scores.items()], columns=["read by", "validation top-1, %"])
print(f"The careful loaders lie {max(careful) - min(careful):.2f} points apart.")
if lesson.HERE:
    lost = scores[loaders.DALI] - scores[f"{loaders.DALI}, fast"]

# %% [markdown]
# Two things are in this table. The careful loaders hardly differ, although at 64 pixels two of them decode at half of the size. And DALI's fast way is further off than that of tf.data, which in a hurry decodes at a quarter of the size, and so has averaged over blocks of pixels before any are passed over.
#
# A network can be trained on fast pictures too. What one must not do is to train with one and to answer with the other: production code that resizes "a little differently" is a classic way to lose points that nobody finds again. That is why the careful way is this library's default, and why loaders are compared in speed only within the same variant.
#
# ## Who reads what
#
# What notebook 04 said about streams holds here too: **shard first, then shuffle.** DALI's readers do both, and like most of DALI they have defaults that one should know: no shuffle unless you ask for it, then a buffer of 1,024 pictures, shards that rotate from epoch to epoch, and a last batch that is filled up with pictures of the next round. This is what the library passes instead:

# %%
workshop.show("rn50lib.data.dali:Stream.read")

# %% [markdown]
# First ask DALI yourself. As "label" each file gets its own number, so that the batch says which pictures a rank reads; two ranks, first as DALI does it by itself and then shuffled:

# %%
if HERE:

    @pipeline_def(batch_size=6, num_threads=1, device_id=None, seed=seed)
    def numbers(rank, shuffle):
        names = [str(file) for file in signs.files[:48]]
        _, number = fn.readers.file(
            files=names, labels=list(range(48)), shard_id=rank, num_shards=2, random_shuffle=shuffle
        )
        return number

    for shuffle in (False, True):
        for rank in (0, 1):
            pipe = numbers(rank, shuffle)
            pipe.build()
            batches_read = [pipe.run()[0].as_array().ravel().tolist() for _ in range(5)]
            print(
                f"shuffle {shuffle!s:5} rank {rank}: first {batches_read[0]}, fifth {batches_read[4]}"
            )

# %% [markdown]
# Each rank has 24 of the 48 files, which is four batches of six. The fifth batch already belongs to the next epoch, and unless told otherwise a rank then reads the *other* half: over the epochs all ranks see all files.
#
# The library's reader asks for more. What it promises is what tf.data's streams promise: in an epoch no picture comes twice, on whichever rank; all ranks make equally many steps; and the same seed gives the same order again. Class folders promise more, because they are read by number: exactly the order of PyTorch's loader. The cell asks DALI's readers, for two ranks.

# %%
from workshop.lessons.tfrecord.data import make_shards

data = make_shards(session.data_root, scratch)
roots = {"files": session.data_root, "recordio": session.data_root, "tfrecord": data}
if lesson.here(session, "dali.twice"):
    rows = []
    for name, root in roots.items():
        asked = workshop.session.resolve(
            dict(fed, data_root=str(root), data_format=name, loader="dali")
        )
        read = seen.reads(asked, open_source(root, "train", name), ranks=2)
        both = read.together
        assert len(set(both)) == len(both), "a picture came twice"
        rows.append([name, *map(len, read.epochs[0]), len(set(both)), len(files),
                     read.again == read.epochs[0], read.epochs[1] == read.epochs[0]])  # fmt: skip
    workshop.table(
        rows,
        columns=["format", "rank 0", "rank 1", "different ones", "in the data set",
                 "epoch 0 again the same", "epoch 1 in the order of epoch 0"],
    )  # fmt: skip

# %% [markdown]
# ### The index
#
# To give rank 1 its half, DALI must know where that half begins. It reads that from an index beside each record file. The two formats write it differently:

# %%
from rn50lib.data.tfrecord import find_shards

shards = find_shards(data / "tfrecord", "train")
indexes = {"RecordIO: key, offset": session.data_root / "records" / "train.idx"}
indexes["TFRecord: offset, size"] = shards[0].index
for name, index in indexes.items():
    print(f"{name:24}{index.name:28}{index.read_text().splitlines()[:3]}")

# %% [markdown]
# What if it is missing? The library's own readers walk through the shards once and make one in memory; DALI cannot. The cell makes a folder of the same shards without their indexes, asks DALI for it, and then does what the error message says.

# %%
import shutil

from rn50lib.data import open_pipeline
from rn50lib.errors import UserError
from workshop.programs import program

bare = scratch / "no-index"
shutil.rmtree(bare, ignore_errors=True)
(bare / "tfrecord").mkdir(parents=True)
for file in (data / "tfrecord").iterdir():
    if file.is_file():
        (bare / "tfrecord" / file.name).symlink_to(file)
if lesson.here(session):
    without = open_source(bare, "train", "tfrecord")
    try:
        open_pipeline(replace(done, loader="dali"), without, "train", 0, 1)
    except UserError as error:
        print(error)
program("data_prep.tfrecord", "--index", "tfrecord", folder=bare)

# %% [markdown]
# ## Where is the time going now?
#
# Back to the patient. At the beginning the diagnosis also predicted what DALI would bring, from the loaders and the step alone. Now the run itself, with DALI in the place of PyTorch's loader. Did the prediction hold? Is the input still the bottleneck?

# %%
if lesson.here(session, "dali.over_native"):
    with_dali = dict(paced, loader="dali")
    after = lesson.diagnose(scratch, "after", with_dali, *seconds)
    runs = {"PyTorch's loader": before, "DALI": after}
    workshop.table(
        lesson.diagnosed(runs),
        columns=["input", "loader alone", "step alone", "both", "step at work, %"],
        caption=f"Images per second in front of a device paced at {device:,.1f}",
    )
    gained = after["rates"]["both"] / before["rates"]["both"]
    print(after["verdict"])
    for change in before["changes"]:
        print(f"Predicted for {change['flags']}: {change['predicted']:,.0f} images per second;")
        print(f"measured: {after['rates']['both']:,.0f}.")

# %% [markdown]
# On a processor, exchanging one decoder for another moves the bottleneck little or not at all: all of them unpack the same bits on the same cores. What moves it is other hardware for the same work, and that is what `mixed` stands for. Where you have a GPU, run this notebook there and look at the same table.
#
# Your numbers beside the recorded ones:

# %%
yours = {
    "dali.crop_share": 100 * float(areas.mean()),
    "dali.native_differs": differ[sizes[0]][loaders.PYTORCH][0],
}
if lesson.HERE:
    yours |= {
        "dali.over_native": gain, "dali.decode.share": share, "dali.fused.saved": whole,
        "dali.differs": differ[sizes[0]][loaders.DALI][0],
        "dali.fast_differs": differ[sizes[0]][f"{loaders.DALI}, fast"][0],
        "dali.fast_costs": lost if length == 3 else None,
    }  # fmt: skip
if loaders.TF_DATA in chosen:
    yours["dali.tfdata_differs"] = differ[sizes[0]][loaders.TF_DATA][0]
session.expect(yours)

# %% [markdown]
# ## Your numbers
#
# What this notebook measured on your machine, in one place: to compare with a colleague's, or with those of another machine.

# %% tags=["results"]
session.note("idle_before", idle, "%", "waiting in front of PyTorch's loader, paced device")
if lesson.HERE:
    session.note("dali_over_native", gain, "times", "DALI's speed over PyTorch's loader")
session.note("loader_over_model", times, "times", "slowest loader over this machine's model")
if lesson.HERE:
    session.note("decode_share", share, "%", "decoding's part of the graph up to uint8 pixels")
    session.note("fused_saved", whole, "%", "time saved by cropping while decoding")
    session.note("python_calls", len(calls), "", "calls of the graph's function for ten batches")
if session.machine.gpus and loaders.ON_CPU in measured.alone:
    session.note("gpu_over_cpu", ratio, "times", "DALI decoding on the GPU over on the CPU")
for name, far, *_ in differing:
    key = name.lower().replace(".", "").replace(", ", "_")
    session.note(f"{key}_differs", far, "of 255", f"mean difference of {name} from Pillow")
session.note("loaders_apart", max(careful) - min(careful), "points", "top-1 of one checkpoint")
if lesson.HERE:
    session.note("fast_costs", lost, "points", "top-1 lost by reading with --resample fast")
    session.note("twice", 0, "", "pictures that came twice in an epoch, over both ranks")
    session.note("gained", gained, "times", "speed in front of the paced device, DALI over native")

# %% [markdown]
# ## What to take with you
#
# - Ask what the device takes and what the loader gives before you change anything. In front of this machine's model no loader helps; in front of a V100 every one of them is measured in cores.
# - A DALI graph is written once and run by threads without Python. Chance belongs inside it, and its defaults are not your recipe's.
# - Cropping while decoding saves less than the pixels suggest, because a JPEG can only be unpacked from its beginning.
# - Hand over bytes, and normalise on the device.
# - A queue evens out; it does not speed up.
# - Careful decoders agree to a fraction of a step. Antialiasing is what fast resizing gives away, and a network notices.
# - `cpu`, `mixed`, `gpu`: one word moves the decoding. The gap to synthetic pictures says whether it was worth it.
#
# Something to try: give the second cell `device = 400.2`, the V100 in FP32, and predict the verdict of the first diagnosis.
#
# The input now keeps up, or you know what it would take. What is left is the arithmetic itself, and the next notebook asks how few bits it can be done with.
