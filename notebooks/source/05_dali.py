# %% [markdown]
# # 05 · DALI
#
# After this notebook you can prove that a training run waits for its input, write a DALI pipeline operator by operator, compare loaders fairly, and put DALI into your own training script.
#
# **Time:** 60 minutes · **Needs:** DALI, Horovod, and the script from notebook 03, which you extend · **On a CPU:** about 3 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
v100: float = 1442.6  # images/s of the simulated accelerator: one V100 in FP16
rounds: int | None = None  # rounds of each timed comparison
seed: int = 0  # DALI's random seed

# %%
import itertools
import os
import random
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from torch.nn.functional import cross_entropy

import workshop
from rn50lib import resnet
from rn50lib.torch.model import ResNet

session = workshop.start("05", profile)
rounds, root, cores = rounds or session.rounds, session.data_root / "train", session.machine.cores
ranks = min(8, len(session.machine.gpus)) or session.ranks  # of the ladder's runs
device = torch.device("cuda" if session.profile == "gpu" else "cpu")
os.environ["DATA"] = str(session.data_root)
DALI = workshop.has("nvidia.dali")
workshop.ladder.figure()

# %% [markdown]
# ## Where is the time going?
#
# People install DALI because training is slow, and sometimes it stays slow: the input was never the problem. So first prove that it is. The test takes one line: **cache one batch** and run the same loop with it again and again. This is a perfect loader: none can be faster. Its speed divided by the real loop's is your **headroom**.
#
# Here is an ordinary loader: `DataLoader` with Pillow in its worker processes.


# %%
class Signs(torch.utils.data.Dataset):
    def __init__(self, size):
        self.files, self.size = sorted(root.rglob("*.jpg")), size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        image = Image.open(self.files[i]).convert("RGB")
        share = random.uniform(0.08, 1.0) ** 0.5  # of each side: 8 to 100% of the area
        width, height = round(share * image.width), round(share * image.height)
        left, top = random.randint(0, image.width - width), random.randint(0, image.height - height)
        box = (left, top, left + width, top + height)
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box)
        return torch.from_numpy(np.array(image)), i % 12  # any label: only the speed counts here


batch, size = session.batch, session.pixels
signs = Signs(size)
forever = torch.utils.data.RandomSampler(signs, replacement=True, num_samples=10**9)
loader = torch.utils.data.DataLoader(signs, batch, sampler=forever, num_workers=cores)
pillow = iter(loader)

# %% [markdown]
# Two devices consume the batches: this machine running ResNet-50 forward and backward, and a simulated V100, which sleeps for as long as a V100 would compute.
#
# **Predict:** how much faster is each of them with a perfect loader?

# %%
model = ResNet(resnet.resnet(50, num_classes=12)).to(device)


def train_here(images, labels):
    images = images.to(device).permute(0, 3, 1, 2).float() / 127.5 - 1
    loss = cross_entropy(model(images), labels.to(device))
    loss.backward()
    loss.item()  # waits for the device


def wait_like_a_v100(images, labels):
    time.sleep(len(images) / v100)


def images_per_second(batches, step, count, warm_up):
    """Return the speed of a loop of `count` steps; `warm_up` steps before them empty the queue."""
    for number in range(-warm_up, count):
        if number == 0:
            begin = time.perf_counter()
        step(*next(batches))
    return count * batch / (time.perf_counter() - begin)


headroom = {}
queue = 2 * cores + 4  # prefetched batches; a slow device need not drain them
for step, count, warm_up in (
    (train_here, session.own_steps, queue if device.type == "cuda" else 1),
    (wait_like_a_v100, session.batches, queue),
):
    ratios = []
    for _ in range(rounds):  # the two take turns
        real = images_per_second(pillow, step, count, warm_up)
        perfect = images_per_second(itertools.repeat(next(pillow)), step, count, 1)
        ratios.append(perfect / real)
    headroom[step] = float(np.median(ratios))
    print(f"{step.__name__}, last turn: {real:,.1f} images/s with the loader,", end=" ")
    print(f"{perfect:,.1f} with a cached batch")
    print(f"  headroom {headroom[step]:.2f} times ({min(ratios):.2f} to {max(ratios):.2f})")

# %% [markdown]
# If the headroom is near 1 (give or take noise), leave the loader alone. On a CPU, arithmetic dominates: headroom there is mostly noise, or workers competing for cores. The same loader can be the bottleneck when it feeds a fast accelerator: the faster your device, the more likely it waits for its input.
#
# The H100's light blue bars in the first figure are an example. *One device* and *DALI* compute the same step, but with DALI the H100 trains at 1,735 images/s instead of 1,080. So the headroom of *one device* was at least 1.6: more than a third of its time went into input, that is, waiting for 12 Pillow processes and copying float32 pixels to the GPU.
#
# What takes the loader so long? A JPEG has to be *decoded*: variable-length codes become coefficients, coefficients become blocks of 8 × 8 pixels, and the colour channels are upsampled to full resolution. That is computation, so a faster disk would not help.
#
# ## A pipeline in pieces
#
# **DALI** is NVIDIA's library for everything between the files and the batch. A pipeline is defined by a Python function that calls *operators*; DALI's own threads run these in C++. Each operator's `device` decides where it runs: `cpu`, `mixed` or `gpu`. This project uses version 1.34 on CPUs and 2.4 on GPUs.
#
# Build a pipeline in four pieces. The first only reads. Calling the function describes the graph, `build` creates its operators, and `run` returns the next batch.

# %%
if DALI:
    import nvidia.dali
    from nvidia.dali import fn, pipeline_def, types

    where = {"num_threads": cores, "device_id": 0 if device.type == "cuda" else None, "seed": seed}
    print("DALI", nvidia.dali.__version__)

    @pipeline_def(batch_size=8, **where)
    def reading():
        jpegs, labels = fn.readers.file(file_root=str(root), random_shuffle=True)
        return jpegs, labels

    pipe = reading()
    pipe.build()
    jpegs, labels = pipe.run()
    for i in range(3):
        data = np.array(jpegs[i])
        print(f"{len(data):,} bytes, first {data[:4]}, class {np.array(labels[i])}")

# %% [markdown]
# Every JPEG begins with the bytes 255 and 216. The second piece decodes. On a GPU, the decoder is a `mixed` operator: its input is in CPU memory, its output on the GPU. **Predict** the shapes: will eight images fit into one array?

# %%
if DALI:
    decoder = "mixed" if device.type == "cuda" else "cpu"

    @pipeline_def(batch_size=8, **where)
    def decoding():
        jpegs, labels = fn.readers.file(file_root=str(root), random_shuffle=True)
        return fn.decoders.image(jpegs, device=decoder, output_type=types.RGB), labels

    pipe = decoding()
    pipe.build()
    print(pipe.run()[0].shape())

# %% [markdown]
# Images differ in size, so a DALI batch is a *list* of arrays. The third piece makes them the same size by resizing a random crop. The fourth mirrors half of them at random and normalises: `(pixel − mean) / std`, with one plane per colour.
#
# Pass the crop's area yourself. The published recipe says 5 to 100%, but NVIDIA's program never passed that to DALI, so its runs used the default, which starts at 8%.

# %%
if DALI:

    @pipeline_def(batch_size=8, **where)
    def training(normalise):
        jpegs, labels = fn.readers.file(file_root=str(root), random_shuffle=True)
        images = fn.decoders.image(jpegs, device=decoder, output_type=types.RGB)
        images = fn.random_resized_crop(images, size=(size, size), random_area=[0.05, 1.0])
        if normalise:
            images = fn.crop_mirror_normalize(
                images, mirror=fn.random.coin_flip(), dtype=types.FLOAT, output_layout="CHW",
                mean=[127.5] * 3, std=[127.5] * 3,
            )  # fmt: skip
        return images, labels

    for normalise in (True, False):
        pipe = training(normalise)
        pipe.build()
        images, _ = pipe.run()
        pixels = (images.as_cpu() if device.type == "cuda" else images).as_array()
        print(pixels.shape, pixels.dtype, f"from {pixels.min():.2f} to {pixels.max():.2f}")
    fig, axes = plt.subplots(1, 8, figsize=(9, 1.3), layout="constrained")
    for ax, image in zip(axes, pixels, strict=True):
        ax.imshow(image)
        ax.axis("off")
    workshop.figure(fig, alt="Eight crops made by the pipeline, before normalising")

# %% [markdown]
# Normalising turns every 1-byte value into a 4-byte float. So if the CPU decodes, send the bytes to the GPU and normalise there.
#
# ### Python runs once
#
# The function looks as if it processed images, but it only describes a graph, and Python runs it **once**. So you can repeat notebook 04's mistake here. The next cell draws a number for each of four images, with Python and in the graph. **Predict** what two batches print:

# %%
if DALI:

    @pipeline_def(batch_size=4, num_threads=1, device_id=None, seed=seed)
    def draws():
        return types.Constant(random.random()), fn.random.uniform(range=[0.0, 1.0])

    pipe = draws()
    pipe.build()
    for _ in range(2):
        python, graph = (np.round(values.as_array().ravel(), 2) for values in pipe.run())
        print(f"drawn by Python: {python}, in the graph: {graph}")

# %% [markdown]
# The number drawn by Python is the same for every image throughout training, and no error is raised. Draw random numbers in the graph, with `fn.random`.
#
# ### What each operator costs
#
# **Predict:** which operator takes the most time, and how much does decoding only the crop save? The next cell truncates the graph after each operator and times each version on one CPU thread. *Decode the crop* is a fused operator that decodes only the part it needs.

# %%
if DALI:

    @pipeline_def(batch_size=16, num_threads=1, device_id=None, seed=seed)
    def until(last):
        jpegs, _ = fn.readers.file(file_root=str(root), random_shuffle=True)
        if last == "read":
            return jpegs
        if last == "decode the crop, resize":
            images = fn.decoders.image_random_crop(jpegs, random_area=[0.05, 1.0])
            return fn.resize(images, size=(size, size))
        images = fn.decoders.image(jpegs)
        if last == "decode":
            return images
        return fn.random_resized_crop(images, size=(size, size), random_area=[0.05, 1.0])

    names = ("read", "decode", "decode, crop, resize", "decode the crop, resize")
    pieces = {name: until(name) for name in names}
    for pipe in pieces.values():
        pipe.build()
    ms = {name: [] for name in names}
    for turn in range(rounds + 1):
        for name, pipe in pieces.items():
            for _ in range(3):  # DALI works ahead: empty its queue first
                pipe.run()
            begin = time.perf_counter()
            for _ in range(session.operator_batches):
                pipe.run()
            if turn > 0:
                spent = 1000 * (time.perf_counter() - begin)
                ms[name].append(spent / session.operator_batches / 16)
    ms = {name: float(np.median(values)) for name, values in ms.items()}
    for name, value in ms.items():
        print(f"{name:24} {value:.3f} ms per image")
    share = 100 * (ms["decode"] - ms["read"]) / ms["decode, crop, resize"]
    saved = 100 - 100 * ms["decode the crop, resize"] / ms["decode, crop, resize"]
    print(f"Decoding is {share:.0f}% of the graph's time.", end=" ")
    print(f"Decoding only the crop changes the time by {-saved:+.0f}%.")

# %% [markdown]
# A crop keeps about half the pixels but saves far less than half the time. A JPEG is a sequence of variable-length codes: to reach row 300, a decoder has to unpack all rows before it, even if it then discards them.
#
# ### What changed since 1.34
#
# Older DALI tutorials state rules that no longer hold:
#
# - *No CPU operator after a GPU operator.* True in 1.34. Since 1.44, `node.cpu()` brings data back with `exec_dynamic=True`, the default since 1.51.
# - *A pipeline is always a graph.* Since 1.52, an experimental **dynamic mode** calls operators like functions, batch by batch. It suits debugging and Python control flow.
# - *nvJPEG and libjpeg-turbo decode.* Since 2.2, the default decoder is nvImageCodec, which uses these two and others.
#
# Check your version:

# %%
if DALI:
    from nvidia.dali.data_node import DataNode

    print(f"DALI {nvidia.dali.__version__}: node.cpu() exists: {hasattr(DataNode, 'cpu')}")
    try:
        import nvidia.dali.experimental.dynamic as ndd
    except ImportError:
        print("Dynamic mode is not in this version.")
    else:
        reader = ndd.readers.File(file_root=str(root), random_shuffle=True)
        for jpegs, _ in reader.next_epoch(batch_size=4):
            images = ndd.decoders.image(jpegs, device="cpu")
            print("Dynamic mode:", images.shape, ndd.resize(images, size=(size, size)).shape)
            break

# %% [markdown]
# ## A fair comparison
#
# Three loaders now read the same files, take random crops of 8 to 100% of the area (TensorFlow and DALI vary the crop's aspect ratio too, and TensorFlow's crops are smaller on average), and resize with antialiasing: Pillow in processes (above), TensorFlow's `tf.data`, and DALI.

# %%
loaders = {"DataLoader + Pillow": pillow}
try:
    with workshop.quiet_stderr():  # TensorFlow logs notes while it is imported
        import tensorflow as tf
except ImportError:
    print("TensorFlow is not installed here: tf.data is left out.")
else:
    tf.config.set_visible_devices([], "GPU")  # it would reserve the GPU's memory

    def prepare(path):
        jpeg = tf.io.read_file(path)
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(jpeg), tf.zeros([1, 0, 4]), area_range=(0.08, 1.0),
            min_object_covered=0.0, use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        image = tf.io.decode_and_crop_jpeg(jpeg, tf.concat([begin[:2], extent[:2]], 0), channels=3)
        return tf.cast(tf.image.resize(image, (size, size), antialias=True), tf.uint8)

    files = tf.data.Dataset.from_tensor_slices([str(file) for file in loader.dataset.files])
    files = files.shuffle(len(loader.dataset)).repeat()
    loaders["tf.data"] = iter(files.map(prepare, num_parallel_calls=cores).batch(batch).prefetch(2))
if DALI:

    @pipeline_def(batch_size=batch, **where)
    def fused():
        jpegs, labels = fn.readers.file(file_root=str(root), random_shuffle=True)
        images = fn.decoders.image_random_crop(jpegs, device=decoder, random_area=[0.08, 1.0])
        return fn.resize(images, size=(size, size)), labels

    pipe = fused()
    pipe.build()
    loaders["DALI"] = iter(pipe.run, None)  # calls run() endlessly

# %% [markdown]
# Your machine's speed varies, so the loaders take **turns**, and ratios are computed within a round (their median need not be the ratio of the medians). Loaders also work ahead, so each turn first empties the queue.
#
# **Predict** the order, and DALI's speed relative to Pillow.

# %%
rates = {name: [] for name in loaders}
for _ in range(rounds):
    for name, batches in loaders.items():
        time.sleep(0.02 * batch)  # until the others have filled their queues
        rates[name].append(
            images_per_second(batches, lambda *batch: None, session.batches, 2 * cores + 4)
        )
fig, axes = plt.subplots(figsize=(9, 2.9), layout="constrained")
for row, (name, values) in enumerate(rates.items()):
    axes.barh(row, np.median(values), color="#0072b2")
    axes.plot(values, [row] * rounds, "o", color="white", mec="black", ms=5)
    ratio = np.divide(values, rates["DataLoader + Pillow"])
    print(f"{name:20} {np.median(values):8,.0f} images/s,", end=" ")
    print(f"{np.median(ratio):.2f} times Pillow ({ratio.min():.2f} to {ratio.max():.2f})")
axes.axvline(v100, color="#d55e00", ls="--", label=f"a V100 in FP16 needs {v100:,.0f}")
axes.set_yticks(range(len(rates)), list(rates))
axes.set(
    title=f"Loaders on {cores} cores ({decoder} in DALI), {size} pixels, one dot per round",
    xlabel="images/s",
)
fig.legend(loc="outside lower right")
medians = ", ".join(f"{name} {np.median(values):.0f}" for name, values in rates.items())
workshop.figure(fig, alt=f"Images per second by loader: {medians}. The dashed line is a V100.")
over_pillow = None
if DALI:
    over_pillow = float(np.median(np.divide(rates["DALI"], rates["DataLoader + Pillow"])))

# %% [markdown]
# On a CPU, all three unpack the same bits on the same cores with similar JPEG libraries, so expect no large factor. A loader whose bar ends left of the dashed line cannot feed even one V100. To remove the bottleneck, decode on other hardware: `mixed` decodes on the GPU, and an A100 or H100 also has a JPEG engine. According to DALI's documentation, the fused operator has used that engine since 2.2; in older versions, use `decoders.image` followed by `random_resized_crop`.
#
# Published runs on eight V100s with TensorFlow show the effect of the input pipeline:

# %%
published = {
    key: session.results[f"published.v100.8gpu.input.{key}.ips"].value
    for key in ("tfdata", "dali", "synthetic")
}
for name, ips in published.items():
    print(f"{name:10} {ips:9,.2f} images/s, {100 * ips / published['synthetic']:.1f}% of synthetic")
print("source:", session.results["published.v100.8gpu.input.dali.ips"].provenance)

# %% [markdown]
# *Synthetic* is the perfect loader from the first cells, so 100% divided by the last column is the headroom again. (In the published MXNet runs on a DGX-1, DALI used three threads per GPU. That program's 40 reader threads, `--data-nthreads`, serve only MXNet's own loader.)
#
# ## The same image?
#
# A network that is trained with one loader and used with another may lose accuracy without any error message. The next cell resizes the centre of some validation images with Pillow and with DALI. **Predict:** how large is the mean difference, out of 255?

# %%
files = [
    str(file) for file in sorted((session.data_root / "val").rglob("*.jpg"))[: session.compared]
]
small = 64
resized = {"Pillow": []}
for file in files:
    image = Image.open(file).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    resized["Pillow"].append(np.array(image.resize((small, small), Image.Resampling.BILINEAR, box)))
if DALI:
    from nvidia.dali import math

    @pipeline_def(batch_size=len(files), num_threads=cores, device_id=None)
    def validation(square, antialias):
        jpegs, _ = fn.readers.file(files=files)
        images, shape = fn.decoders.image(jpegs), fn.peek_image_shape(jpegs)
        if square:
            side = fn.cast(math.min(shape[0], shape[1]), dtype=types.FLOAT)
            images = fn.crop(images, crop_h=side, crop_w=side, rounding="truncate")
        return fn.resize(images, size=(small, small), antialias=antialias)

    choices = {"DALI": (True, True), "antialias=False": (True, False), "squashed": (False, True)}
    for name, choice in choices.items():
        pipe = validation(*choice)
        pipe.build()
        resized[name] = list(pipe.run()[0].as_array())
differ = {
    name: float(np.abs(np.subtract(images, resized["Pillow"], dtype=float)).mean())
    for name, images in resized.items()
}
finding = ", ".join(f"{name} {value:.2f}" for name, value in differ.items())
print(f"Mean difference from Pillow, of 255: {finding}")
fig, axes = plt.subplots(1, len(resized), figsize=(9, 2.6), squeeze=False, layout="constrained")
for ax, (name, images) in zip(axes[0], resized.items(), strict=True):
    ax.imshow(images[-1])
    ax.set_title(name)
    ax.axis("off")
workshop.figure(fig, alt=f"One image resized in several ways. From Pillow, of 255: {finding}")

# %% [markdown]
# Pillow and DALI agree up to rounding as long as both **antialias**, which means averaging over all source pixels that become one new pixel. Without it, each new pixel mixes four neighbours and ignores the rest. `tf.image.resize` and OpenCV do not antialias unless you ask. The last value above, "squashed", has a different, easily overlooked cause: `size=(64, 64)` alone ignores the **aspect ratio**. In one recorded run, a tiny network lost 4 points of accuracy when validated without antialiasing (last row of the table at the end).
#
# ## Who reads what
#
# With several workers, each must read its own shard. In the next cell the labels are file numbers, so each batch shows who reads what. With 48 files, two ranks and batches of six, the fifth batch begins a new epoch. **Predict** what rank 0 reads then.

# %%
if DALI:

    @pipeline_def(batch_size=6, num_threads=1, device_id=None, seed=seed)
    def numbers(rank):
        names = [str(file) for file in loader.dataset.files[:48]]
        shard = {"shard_id": rank, "num_shards": 2, "random_shuffle": False}
        return fn.readers.file(files=names, labels=list(range(48)), **shard)[1]

    for rank in (0, 1):
        pipe = numbers(rank)
        pipe.build()
        read = [np.array(pipe.run()[0].as_array()).ravel().tolist() for _ in range(5)]
        print(f"rank {rank}: first batch {read[0]}, fifth {read[4]}")

# %% [markdown]
# Shards rotate: in the next epoch each rank reads the *other* half, unless you set `stick_to_shard`. By default nothing is shuffled, and an incomplete last batch is filled with images from the next epoch.
#
# Folders of images can be split file by file. In a record file, DALI needs an **index** with the offset of each record to find where shard 1 begins.

# %% language="bash" magic_args="-e"
# echo "key and offset of each record:"
# head -n 3 "$DATA/records/train.idx"

# %%
if DALI:

    @pipeline_def(batch_size=4, num_threads=1, device_id=None)
    def records(index):
        path = str(session.data_root / "records" / "train.rec")
        jpegs, labels = fn.readers.mxnet(path=[path], index_path=[index])
        return jpegs, labels

    for index in ("train.idx", "missing.idx"):
        try:
            pipe = records(str(session.data_root / "records" / index))
            pipe.build()
            print(f"{index}: labels", np.array(pipe.run()[1].as_array()).ravel())
        except RuntimeError as error:
            line = next(line for line in str(error).splitlines() if "missing" in line)
            print(f"{index}:", line.split("failed: ")[-1])

# %% [markdown]
# Copy each index together with its records. If one is missing, `python -m data_prep.im2rec --index PREFIX` or `python -m data_prep.tfrecord --index FOLDER` rebuilds it.
#
# ## Your turn: one more rung
#
# Add DALI to your `runs/train.py`. Replace the dataset, the sampler and the loader with a pipeline and `DALIClassificationIterator` (with `LastBatchPolicy`, from `nvidia.dali.plugin.pytorch`). Each batch is a list with a dictionary (`data`, `label`) per pipeline; `label` is int32 of shape (batch, 1): apply `.squeeze(1).long()`.
#
# - Keep your script's crop, a square of 70 to 100% of the shorter side: `random_area=[0.37, 0.75]` (for 4:3 images), `random_aspect_ratio=[1.0, 1.0]`, no mirror. Then both rungs do nearly the same work.
# - Give the reader this rank's shard (`shard_id`, `num_shards`) and `name="reader"`, and the iterator `reader_name="reader"`. Pass `auto_reset=True` to start again after an epoch, and `last_batch_policy=LastBatchPolicy.DROP`.
# - On a CPU, the pipeline needs `device_id=None`. On a GPU, it needs `device_id=hvd.local_rank()` (with DDP, `int(os.environ["LOCAL_RANK"])`), and the decoder `device="mixed"`. Shuffle in the reader (`random_shuffle=True`; its buffer, `initial_fill`, holds 1,024 files by default), use the rank as the pipeline's `seed`, so that the ranks draw different crops, and remove `set_epoch`. End with `crop_mirror_normalize` as above, but without `mirror`, since the model expects float CHW; count the folders in `train` for `num_classes`.
#
# Try it before you open the solution:

# %%
workshop.ladder.changes("3_dali")

# %% [markdown]
# Is your edit correct? The next cell runs three small steps on two CPU processes. Watch the row *share the samples*: without `shard_id` and `num_shards` the script is just as fast, but every rank reads every image. A ○ means that this short run could not tell: it does not train on one rank for comparison, and saves nothing. No row shows a missing `random_shuffle`: print some labels, which would then all be the same.

# %%
if DALI:
    small = ["--image-size", 32, "--batch-size", 4, "--steps", 3, "--warm-up", 0]
    tried = workshop.try_script(
        workshop.ladder.script("3_dali"), "--data", session.data_root, *small,
        ranks=2, steps=3, single=False, env={"CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    print(tried)

# %% [markdown]
# Your script's headroom is its step time over the time without input (see rung 2's bar in the first figure). **Predict** DALI's speed-up: replace the number, then run the cell. (The two rungs take turns, so the output also repeats your prediction from notebook 03.) Open a terminal first to watch the utilisation with `htop`, or `nvidia-smi dmon` on a GPU. Which is busy, the CPU or the GPU?

# %%
workshop.ladder.predict("3_dali", 1.0)  # your number
milliseconds = {"2": [], "3_dali": []}
for _ in range(session.turns):
    for rung, turns in milliseconds.items():
        found = workshop.ladder.climb(
            rung, ranks=ranks, own=rung == "3_dali",  # your train.py is past rung 2
            image_size=session.image_size, batch_size=session.batch_size,
            steps=session.steps, workers=max(1, cores // ranks),
        )  # fmt: skip
        parts = ("input", "compute", "communication")
        turns.append([found.get(f"{part}_ms", 0) for part in parts])
before, after = (np.array(turns) for turns in milliseconds.values())
if after.any():
    gains = before.sum(axis=1) / after.sum(axis=1)
    room = np.median(before.sum(axis=1) / before[:, 1:].sum(axis=1))
    print(f"Headroom of rung 2: {room:.2f} times; DALI's speed-up:", end=" ")
    print(f"{np.median(gains):.2f} times ({gains.min():.2f} to {gains.max():.2f})")

# %% tags=["results"]
workshop.ladder.figure()
session.note("headroom", headroom[train_here], "times", "speed-up with a cached batch, here")
session.note("headroom_v100", headroom[wait_like_a_v100], "times", "the same when feeding a V100")
if DALI:
    session.note("dali_over_pillow", over_pillow, "times", "DALI's speed over DataLoader + Pillow")
    session.note("decode_share", share, "%", "share of the graph's time spent decoding")
    session.expect(
        {
            "dali.over_pillow": over_pillow if device.type == "cpu" else None,
            "dali.decode.share": share,
            "dali.fused.saved": saved,
            "dali.differs": differ["DALI"],
            "dali.aliased": differ["antialias=False"],
            "dali.fast_costs": None,
        }
    )

# %% [markdown]
# The figure splits each step into input, computation and communication. The headroom tells you how much you could gain by shortening the input part. On a CPU, expect a headroom near 1, so DALI can gain almost nothing. It can even be slower, because decoding competes with the computation for the cores.
#
# ## Key takeaways
#
# - Cache one batch before you change a loader. You cannot gain more than the headroom: a larger speed-up did not come from the input.
# - A pipeline is built once and run by threads without Python. Draw random numbers inside it.
# - Decoding takes most of a loader's time; decoding only the crop saves less than the skipped pixels suggest.
# - Let loaders take turns when you compare them, on the same images and with the same resizing.
# - Defaults differ between loaders, so set crop area, antialiasing, aspect ratio and shuffling explicitly.
#
# Now the input keeps up, or you know what holds it back. What remains is the arithmetic. The next notebook asks how few bits it needs.
