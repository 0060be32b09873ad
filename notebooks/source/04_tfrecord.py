# %% [markdown]
# # 04 · TFRecord
#
# After this notebook you can say whether the input holds a training run up, store pictures as TFRecord shards, and build a tf.data pipeline stage by stage until the input is no longer the slowest part.
#
# **Time:** 35 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 4 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
device: float = 1442.6  # images per second of the accelerator that is imitated: a V100 in FP16
rounds: int | None = None  # turns of every variant of the input; None: 5
epochs: int | None = None  # epochs of the four training runs; None: 3
seed: int = 0  # start of all randomness

# %%
import workshop

session = workshop.start("04", profile)

# %% [markdown]
# ## Where is the time going?
#
# The last notebook put more workers on one model, and the talk behind it, *AV Datasets & Multi-GPU Training* (2018), ends its first part with a warning: *"Your new bottleneck is likely the data pipeline now!"* Eight GPUs compute nearly eight times as fast, so they also want nearly eight times as many pictures in the same time, from the same processor and the same disk.
#
# The last stretch is not the trouble: in a DGX-1 the pictures reach the GPUs over PCIe while the gradients go over NVLink, so that neither is in the other's way. The trouble is the work before it.
#
# How little time is that? A device that trains on 1,000 pictures a second leaves a thousandth of a second for each of them. In it somebody must read a file, decode a JPEG, cut a random part out, and make it small.
#
# ### What a Python loop costs
#
# The talk's first recipe feeds the network by hand: a loop in Python takes the next pictures, makes a batch and hands it over (`feed_dict`). Here is such a loop:

# %%
import time

import numpy as np
from PIL import Image

paths = sorted((session.data_root / "train").rglob("*.jpg"))


def fed_by_hand(batch=32, size=224):
    """Batches of pictures, each cut at random and made `size` pixels large, by one thread."""
    rng = np.random.default_rng(seed)
    while True:
        pictures = []
        for path in rng.choice(paths, batch):
            image = Image.open(path).convert("RGB")
            share = rng.uniform(0.05, 1.0) ** 0.5  # of each side
            width, height = round(share * image.width), round(share * image.height)
            left = rng.integers(image.width - width + 1)
            top = rng.integers(image.height - height + 1)
            box = (left, top, left + width, top + height)
            pictures.append(np.asarray(image.resize((size, size), Image.BILINEAR, box)))
        yield np.stack(pictures)


# %% [markdown]
# How fast is it? The cell times the loop and sets it beside what NVIDIA's training package [*ResNet-50 v1.5 for MXNet*](https://github.com/NVIDIA/DeepLearningExamples/tree/master/MxNet/Classification/RN50v1.5) publishes for the V100. The last column says how many such loops would have to run at the same time to keep each of them busy.


# %%
def images_per_second(batches):
    """The rate of an iterator over batches; its first batch is not counted."""
    count = session.pick(ci=2, cpu=8)
    shape = next(batches).shape
    begin = time.perf_counter()
    for _ in range(count):
        next(batches)
    return count * shape[0] / (time.perf_counter() - begin)


by_loop = images_per_second(fed_by_hand())
loop_s = 1 / by_loop
names = {"1 V100, FP32": "1gpu.fp32", "1 V100, FP16": "1gpu.fp16", "8 V100, FP16": "8gpu.fp16"}
speeds = {name: session.results[f"published.v100.{key}.ips"].value for name, key in names.items()}
print(f"Your loop takes {1000 * loop_s:.2f} ms for a picture, one core working.")
workshop.table(
    [[name, speed, 1000 / speed, speed * loop_s] for name, speed in speeds.items()],
    columns=["device", "img/s (published)", "ms a picture", "loops like this one"],
)

# %% [markdown]
# ### Why a faster device makes it worse
#
# There is a second cost, and it is easier to overlook. The loop and the device take turns: while the loop decodes, the device has nothing to do, and while the device computes, the loop waits. A device that is twice as fast shortens only its own part of the time.
#
# The table takes the loop's time from above. In turn, a batch costs the sum of both times; overlapping, the longer of the two.

# %%
rows = []
for name, speed in {"a CPU": 20.0, **speeds}.items():
    in_turn = 1 / (loop_s + 1 / speed)
    overlapping = min(1 / loop_s, speed)
    rows.append([name, speed, in_turn, 100 * in_turn / speed, 100 * overlapping / speed])
workshop.table(
    rows,
    columns=["device", "img/s alone", "img/s in turn", "at work in turn, %", "overlapping, %"],
    caption="A device behind one Python loop, computed",
)

# %% [markdown]
# Three things can be done, and the rest of this notebook does them: **store** the pictures so that they can be read quickly, **share** the decoding among all cores, and let input and device **overlap**. The talk calls it the second recipe, "optimize the fuel flow".
#
# ## Shards of records
#
# TFRecord is the format that TensorFlow reads. A file of it, a *shard*, is one record behind the other:
#
# | bytes | what |
# |---|---|
# | 8 | length of the data |
# | 4 | checksum of the length |
# | as many as that | the data: a message of named features, `tf.train.Example` |
# | 4 | checksum of the data |
#
# Notebook 01 took such a record apart byte by byte. Here it matters what the format is *for*: a program opens one file, reads it from front to back in large pieces, and never jumps. A disk or a network is fastest that way. Several shards can be read at the same time, and given to different workers.
#
# Write one yourself. An example is a dictionary of features, and each feature is a list of bytes, of integers or of floating-point numbers:

# %%
TF = workshop.has("tensorflow")
scratch = session.runs / "04-tfrecord"
scratch.mkdir(parents=True, exist_ok=True)
if TF:
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")  # the input works on the processor
    own_file = scratch / "mine.tfrecord"
    with tf.io.TFRecordWriter(str(own_file)) as writer:
        for path in paths[:3]:
            jpeg = tf.train.BytesList(value=[path.read_bytes()])
            sign = tf.train.BytesList(value=[path.parent.name.encode()])
            feature = {
                "jpeg": tf.train.Feature(bytes_list=jpeg),
                "sign": tf.train.Feature(bytes_list=sign),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())
    size = sum(path.stat().st_size for path in paths[:3])
    print(f"{size:,} bytes of JPEG became {own_file.stat().st_size:,} bytes of TFRecord.")

# %% [markdown]
# And read it back. Nothing in the file says what is in it: whoever reads must know the names and the types. Ask for a feature that was not written and see what you get.

# %%
if TF:
    for record in tf.data.TFRecordDataset(str(own_file)):
        feature = tf.train.Example.FromString(record.numpy()).features.feature
        jpeg = feature["jpeg"].bytes_list.value[0]
        sign = feature["sign"].bytes_list.value[0].decode()
        print(f"{sign}: {len(jpeg):,} bytes, a picture of shape {tf.io.decode_jpeg(jpeg).shape}")

# %% [markdown]
# The library's program packs all the pictures, unless an earlier run has done so. It copies the JPEG files as they are, in an order that is shuffled across the classes.

# %%
from rn50lib.data.source import open_source
from workshop.lessons.tfrecord import data as lesson

files = open_source(session.data_root, "train", "files")
data = lesson.make_shards(session.data_root, scratch)
folder = data / "tfrecord"
for path in sorted(folder.glob("train-*")):
    print(f"{path.stat().st_size:14,} bytes  {path.relative_to(data.parent)}")

# %% [markdown]
# ### Two kinds of examples
#
# What a record holds is a matter of agreement. Most of the field uses the names that the table below calls `imagenet`, with the picture as a JPEG. The talk decodes each picture once, stores its **raw** pixels, and calls them differently. The cell packs a part of the pictures that way too, and shows the first record of each.

# %%
from rn50lib.data.tfrecord import TFRecordReader, find_shards
from workshop.programs import program

lesson.take_part(session.data_root, scratch / "part", session.pick(ci=2, cpu=10))
program("data_prep.tfrecord", "part", "--schema", "slides", "--size", lesson.SIDE,
        "--train-shards", 2, folder=scratch)  # fmt: skip
shards = {"imagenet": find_shards(folder, "train")[0]}
shards["slides"] = find_shards(scratch / "part" / "tfrecord", "train")[0]


def as_text(feature):
    value = getattr(feature, feature.WhichOneof("kind")).value[0]
    if isinstance(value, bytes):
        return value.decode() if len(value) < 60 else f"{len(value):,} bytes"
    return str(value)


if TF:
    rows = []
    for kind, shard in shards.items():
        record = next(iter(tf.data.TFRecordDataset(str(shard.path)))).numpy()
        features = tf.train.Example.FromString(record).features.feature
        rows += [[kind, name, as_text(features[name])] for name in sorted(features)]
    workshop.table(rows, columns=["schema", "feature", "value"])

# %% [markdown]
# Mind the labels: they count **from 1** in the first schema and **from 0** in the second, where they are floating-point numbers besides. A program that mixes the two is wrong by one for every picture, and says nothing.
#
# ### Raw or JPEG?
#
# Raw pixels need no decoding. What do they cost? The size can be computed: 224 × 224 × 3 bytes are 150.5 KB. Speed and real sizes are measured on your own files: each picture is read from its shard, cut and resized as in training, on one core and without TensorFlow.

# %%
from rn50lib.config import Experiment

by_hand = workshop.session.resolve(
    Experiment(recipe="reference", data_format="files", batch_size=32, seed=seed)
)
stored = {
    "JPEG": open_source(data, "train", "tfrecord"),
    "raw, 224 × 224": open_source(scratch / "part", "train", "tfrecord"),
}
rows, kilobytes = {}, {}
for name, source in stored.items():
    kilobytes[name] = sum(path.stat().st_size for path in source.shards) / len(source) / 1000
    rows[name] = (kilobytes[name], lesson.rate(source, by_hand))
imagenet = 1_281_167  # training pictures
rows["raw, 500 × 375"] = (562.5, None)
workshop.table(
    [[name, kb, fast, imagenet * kb / 1e6, speeds["8 V100, FP16"] * kb / 1e3]
     for name, (kb, fast) in rows.items()],
    columns=["stored as", "KB each", "img/s, one core", "GB for ImageNet", "MB/s for 8 V100"],
    caption="Measured here; the last line and the last two columns are computed",
)  # fmt: skip
faster = rows["raw, 224 × 224"][1] / rows["JPEG"][1]
print(f"Raw pixels take {rows['raw, 224 × 224'][0] / rows['JPEG'][0]:.2f} times the space here")
print(f"and are {faster:.1f} times as fast.")

# %% [markdown]
# If raw pixels are faster here, that looks like a bargain, and for small pictures of one size it may be one: the talk's are 223 × 223 and never cropped. Two things speak against it.
#
# The first is the disk. A picture of 500 × 375 pixels has 562 KB in raw, which is why it was made small *before* it was stored. And the disk must deliver at the speed of the devices: the last columns are for ImageNet's 1,281,167 pictures and the 10,263.2 images per second published for eight V100.
#
# The second is what the model sees. The recipe cuts out random parts, down to 5 % of a picture, and makes them 224 pixels large again. Cut from the JPEG, a part has the camera's pixels; cut from raw pixels that were made small before, it has to be blown up. Both pictures show the same third:

# %%
example = files.read(int((files.labels < files.classes.index("yield")).sum()))
workshop.images(
    lesson.from_jpeg_and_raw(example),
    labels=["cut from the JPEG", "cut from raw pixels of 224 × 224"],
    columns=2,
    alt="The same part of a picture twice: with fine detail from the JPEG, soft from raw pixels",
)

# %% [markdown]
# So this workbook stores JPEGs, and looks for the speed elsewhere.
#
# ### The index
#
# A shard is read from front to back. Sometimes one wants to jump all the same: to look at record 500, to let PyTorch read in random order, or to give DALI its share. Without help a reader must walk there from record to record. The **index** is a small text file beside each shard that says where each record begins and how long it is.

# %%
shard = shards["imagenet"]
with_index, without = TFRecordReader(shard.path, shard.index), TFRecordReader(shard.path)
print(f"{shard.index.name} begins with {shard.index.read_text().splitlines()[:3]}")
position = len(with_index) // 2


def walk():
    for number, record in enumerate(without):
        if number == position:
            return record


jump_s, walk_s = (lesson.seconds(f) for f in (lambda: with_index.read(position), walk))
print(f"Record {position}: {1e6 * jump_s:,.0f} µs with the index, {1e6 * walk_s:,.0f} µs without.")
print("The same record:", with_index.read(position) == walk())

# %% [markdown]
# ## From a loop to a pipeline
#
# tf.data takes a description of the work (*read these shards, decode each record, make batches*) and does it in threads of its own, without Python. You will now write it, a stage at a time, and time each. First reading alone:

# %%
cores = session.machine.cores
timed = {"your Python loop": by_loop}
if TF:
    names = [str(path) for path in sorted(folder.glob("train-*")) if path.is_file()]
    records = tf.data.TFRecordDataset(names)
    print(records.element_spec)
    begin = time.perf_counter()
    count = sum(1 for _ in records)
    print(f"{count:,} records read in {time.perf_counter() - begin:.2f} s.")

# %% [markdown]
# A record is a string until somebody takes it apart. `parse_single_example` does, by a description of what to look for; what is not named there is passed over.

# %%
if TF:
    description = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(record):
        features = tf.io.parse_single_example(record, description)
        return features["image/encoded"], features["image/class/label"] - 1  # they count from 1

    for jpeg, label in records.map(parse).take(3):
        print(f"{len(jpeg.numpy()):,} bytes of JPEG, label {label.numpy()}")

# %% [markdown]
# Then the work: decode, cut a random part out, make it 224 pixels large, and make batches. One thread does it first.

# %%
if TF:

    def make(jpeg, label):
        image = tf.io.decode_jpeg(jpeg, channels=3)
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            tf.shape(image), tf.zeros([1, 0, 4]), area_range=(0.05, 1.0),
            min_object_covered=0.0, use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        image = tf.image.resize(tf.slice(image, begin, extent), (224, 224), antialias=True)
        return tf.cast(image, tf.uint8), label

    def rate(dataset):
        return images_per_second(iter(dataset.map(lambda image, label: image)))

    chain = records.repeat().map(parse).map(make).batch(32)
    timed["parse, decode, batch"] = rate(chain)

# %% [markdown]
# Now on all cores; then only the part of the JPEG that is needed is decoded. Guess both factors.

# %%
if TF:

    def make_part(jpeg, label):
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(jpeg), tf.zeros([1, 0, 4]), area_range=(0.05, 1.0),
            min_object_covered=0.0, use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        box = tf.stack([begin[0], begin[1], extent[0], extent[1]])
        image = tf.io.decode_and_crop_jpeg(jpeg, box, channels=3)
        return tf.cast(tf.image.resize(image, (224, 224), antialias=True), tf.uint8), label

    chain = records.repeat().map(parse).map(make, num_parallel_calls=cores).batch(32)
    timed["map on all cores"] = rate(chain)
    chain = records.repeat().map(parse).map(make_part, num_parallel_calls=cores).batch(32)
    timed["decode only the crop"] = rate(chain)

# %% [markdown]
# Last come the stages that change the order and the timing: `interleave` takes turns among several shards, `shuffle` mixes what they give, and `prefetch` makes the next batch while somebody else works. This somebody is a device that takes as long for a batch as a V100 does; it only waits.

# %%
if TF:
    whole = tf.data.Dataset.from_tensor_slices(names).shuffle(len(names), seed=seed).repeat()
    whole = whole.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=4)
    whole = whole.shuffle(1000, seed=seed).map(parse).map(make_part, num_parallel_calls=cores)
    whole = whole.batch(32)

    def behind_a_device(dataset):
        """Batches that somebody works on for as long as a V100 would take."""
        for images, _ in dataset:
            yield images
            time.sleep(32 / device)

    timed["interleave and shuffle"] = rate(whole)
    for name, dataset in (("with a device", whole), ("and prefetch(2)", whole.prefetch(2))):
        timed[name] = images_per_second(behind_a_device(dataset))
workshop.table([[name, value] for name, value in timed.items()], columns=["yours", "img/s, 224 px"])

# %% [markdown]
# This chain is what the talk's queues, readers and coordinators have become. The library's has the same stages, and each can be switched off:

# %%
workshop.show("rn50lib.data.tfdata:Stages")
workshop.show("rn50lib.data.tfdata:TfData.dataset")

# %% [markdown]
# - **interleave** reads several shards in turn, and at the same time,
# - **parallel map** decodes several pictures at the same time, on all cores,
# - **prefetch** makes the next batches while the device computes: the overlap of above,
# - **decode and crop** decodes only the part of a JPEG that the crop needs.
#
# You will now switch them on one after the other, twice: in front of this machine's own model, and in front of a fast device.
#
# ### In front of this machine's model
#
# First the real thing: ResNet-50 trains on this machine, fed by the Python loop, by tf.data with all stages off, and then with one more stage on each time. The variants take turns, so that a slow moment of the machine hits each of them. Before you run it, guess: how much faster does training get?

# %%
import statistics
from dataclasses import replace

from workshop.lessons.tfrecord import stages

fed = Experiment(data_root=str(data), data_format="tfrecord", recipe="reference", seed=seed)
if session.profile == "ci":  # the lesson in small; its numbers mean nothing
    fed = replace(fed, profile="cpu", network="tiny", image_shape=32, batch_size=4)
    fed = replace(fed, threads=1, data_nthreads=2)
model = replace(fed, batch_size=session.pick(ci=4, cpu=4, gpu=64))
turns = rounds or session.pick(ci=1, cpu=3, gpu=5)
steps = session.pick(ci=2, cpu=2, gpu=20)
with_model = stages.compare(model, turns, steps, warm_up=1)
what = "the model on this machine"
fig, finding = stages.figure(with_model, what)
workshop.figure(fig, alt=f"Images per second, stage by stage, in front of the model. {finding}")
print(finding)
print(stages.bottleneck(with_model))
last_one = with_model.variants[-1]
gain = statistics.median(with_model.ratios(last_one, with_model.variants[0]))
print(f"All stages make training {gain:.2f} times as fast as the Python loop.")

# %% [markdown]
# Where the model runs on a CPU, one picture costs it many times what it costs the loop. Then even an input that takes no time at all gains next to nothing, and whoever measures only there concludes that a Python loop is good enough. That is a correct conclusion about the wrong machine.
#
# ### In front of a fast device
#
# The speed of a V100 is published, so any machine can imitate one. `--step paced:1442.6` puts a wait in the place of the model: a batch occupies "the device" for as long as a V100 in FP16 would need, and no core works meanwhile. The input in front of it is real, every picture of it. Nothing is learnt, and such a run reports no accuracy.

# %%
turns = rounds or session.pick(ci=1, cpu=5)
paced = stages.compare(replace(fed, step=device), turns, steps=session.pick(ci=2, cpu=10))
what = f"a device paced at {device:,.1f} img/s"
fig, finding = stages.figure(paced, what, device)
workshop.figure(fig, alt=f"Images per second, stage by stage, below the device's speed. {finding}")
print(finding)
print(stages.bottleneck(paced))
workshop.table(
    paced.rows(),
    columns=["input", "img/s", "device at work, %", "times the one before", "from", "to"],
    caption=f"Medians of {paced.rounds} rounds; from and to are the smallest and largest ratio",
)
best = paced.variants[-1]
gain_paced = statistics.median(paced.ratios(best, paced.variants[0]))
cores = paced.experiment.data_nthreads
print(f"All stages together: {gain_paced:.2f} times the Python loop, on {cores} cores.")
print(f"At this rate a device of {device:,.1f} img/s needs about")
print(f"{device / paced.rate(best) * cores:.0f} cores like these for its pictures.")

# %% [markdown]
# Read the table from the top and ask after each line: **is the input the bottleneck now?** The column *device at work* answers it; it is about what `nvidia-smi` would show as utilisation.
#
# The order of the lines is part of the lesson. A stage helps only where the bottleneck is. Reading several shards at once brings little while one thread decodes everything: reading was not what took the time. Decoding on all cores brings at most as much as there are cores. Prefetching saves at most the shorter of the two times, that of the device; in front of a fast one that is little. What is left is work on the processor, and there is only one way to have less of it, which is to decode less.
#
# A remark on `prefetch`: the same stage is worth most where input and device are equally fast, up to twice the speed. Try it: in the second cell of this notebook set `device` to about the images per second that the line `parallel map` shows, and run again.
#
# ## Shard, then shuffle
#
# A pipeline for several workers needs one more stage, and its place in the order decides whether the result is right.
#
# ### Who reads what
#
# Each of n workers should train on another n-th of the pictures. Four programs try it, on an epoch of your training set and eight workers. They all run, and their losses all fall. Say before you run the cell which of them are right.

# %%
if TF:
    from collections import Counter

    workers, everything = 8, tf.data.Dataset.range(len(files))  # numbers in the place of records

    def shuffled(dataset, seed):
        return dataset.shuffle(len(files), seed=seed)

    programs = {
        "shuffle": lambda r: shuffled(everything, seed + r).take(len(files) // workers),
        "shuffle, shard": lambda r: shuffled(everything, seed + r).shard(workers, r),
        "shuffle with one seed, shard": lambda r: shuffled(everything, seed).shard(workers, r),
        "shard, shuffle": lambda r: shuffled(everything.shard(workers, r), seed + r),
    }
    rows = []
    for name, mine in programs.items():
        seen = Counter(int(n) for r in range(workers) for n in mine(r).as_numpy_iterator())
        twice = sum(times > 1 for times in seen.values())
        rows.append([name, len(seen), twice, len(files) - len(seen)])
    workshop.table(rows, columns=["program", "different pictures", "seen twice or more", "never"])

# %% [markdown]
# The first is the talk's program. It has no shard at all, and every rank reads what it likes. (With one seed for all it would be worse: eight times the same eighth.) The second looks right, and it is the one that people write: shuffle everything, then take every eighth. But each rank has shuffled with a seed of its own, so the eighth of one rank is not what the others leave over.
#
# The third repairs that with one seed for all, at a price: every rank reads and throws away seven of eight records, so that eight workers read the data eight times. Only the last one is right and cheap: **shard first, then shuffle what is yours.** Then the seeds may differ, and should.
#
# ### The shuffle buffer
#
# A stream cannot be shuffled as a list can, because nobody knows yet what comes later. tf.data keeps a buffer: fill it, hand out one of its elements by chance, put the next of the stream in its place. So a picture can come out at most one buffer earlier than it stands in the file.

# %%
if TF:
    for buffer in (1, 4, 16, 1000):
        mixed = tf.data.Dataset.range(1000).shuffle(buffer, seed=seed).take(12)
        print(f"buffer {buffer:4}: {[n.numpy().item() for n in mixed]}")

# %% [markdown]
# That is harmless where the file is mixed. Below it is sorted, class after class, as one gets it by packing a folder after the other. Each row shows the classes in the first twelve batches.

# %%
from workshop.lessons.tfrecord import order

sizes = tuple(max(1, len(files) * part // 60) for part in (0, 1, 8, 60))
fig, held = order.buffers(files.labels, len(files.classes), sizes, by_hand.batch_size, seed)
told = ", ".join(f"{size:,}: {values.mean():.1f}" for size, values in held.items())
alt = f"The classes of the first batches behind shuffle buffers. Classes in a batch by size: {told}"
workshop.figure(fig, alt=alt)
print(f"Classes in a batch, by the size of the buffer: {told}")
print(f"Batches of a single class with the second smallest: {(held[sizes[1]] == 1).mean():.0%}")

# %% [markdown]
# A network that sees one class for many steps learns to say that class, and batch normalisation computes its mean and variance from it. The cure is not a larger buffer, which takes memory (1,000 pictures of 100 KB are 100 MB on every rank). It is to shuffle **once, when the shards are written**, as `data_prep.tfrecord` does, and to read several shards in turn. A small buffer then does the rest.

# %% [markdown]
# ### What the real pipeline promises
#
# For files and RecordIO this library promises the exact order of pictures, on any number of workers. A stream cannot promise that much. What it does promise is this: **in an epoch no picture comes twice, on whichever rank; all ranks make equally many steps; and the same seed gives the same order again.** The cell asks the real pipeline, with two ranks, for the numbers of all records of two epochs, and builds the first epoch a second time.

# %%
from workshop.lessons.tfrecord import streams

*streamed, again = streams.look(fed, ranks=2)
rows = []
for number, ranks in enumerate(streamed):
    together = [record for rank in ranks for record in rank]
    rows.append([number, *(len(rank) for rank in ranks), len(set(together)), len(files)])
    assert len(set(together)) == len(together), "a record came twice"
workshop.table(
    rows, columns=["epoch", "records of rank 0", "of rank 1", "different ones", "in the data set"]
)
print("Epoch 0 again, record by record the same:", again == streamed[0])
print("Epoch 1 in the order of epoch 0:", streamed[1] == streamed[0])
print(f"Rank 0 begins epoch 0 with the records {streamed[0][0][:8]}")
print(f"and epoch 1 with {streamed[1][0][:8]}.")

# %% [markdown]
# A few pictures are left over in each epoch: those that do not fill a batch on every rank. If one rank went on alone, it would wait for ever for the others' gradients. They are other pictures in every epoch, because each epoch gives the shards to the ranks in another order.
#
# ## The talk's augmentations
#
# The second recipe moves the augmentation into the pipeline, where it costs the device no time: a mirror image, a picture upside down, and a rotation by up to 10° to either side. This library has the two last as options, `--flip-up-down` and `--rotate 10`, and they are off unless you ask for them. Two things can go wrong with them.
#
# ### Drawn once or drawn each time
#
# The talk draws the angle with NumPy, in the function that builds the graph. Such a function runs **once**, whatever the number of pictures. This is as true of tf.data today as it was of TensorFlow 1:

# %%
from rn50lib.data.decode import Pictures

angles = []
if TF:
    six = tf.data.Dataset.range(6)
    by_numpy = six.map(lambda _: tf.constant(np.random.uniform(-10, 10)))
    in_graph = six.map(lambda _: tf.random.uniform([], -10, 10))
    angles = [angle.numpy().item() for angle in by_numpy.concatenate(in_graph)]
level = Pictures(files, False, workshop.session.resolve(Experiment(image_shape=160)))
chosen = [int((files.labels < label).sum()) for label in range(len(angles) // 2)]
if TF:
    crops = [level.image(0, index) for index in chosen]
    workshop.images(
        lesson.turned(crops * 2, angles),
        columns=6,
        labels=[f"{angle:+.1f}°" for angle in angles],
        alt="Six pictures twice: above all turned by the same angle, below each by another one",
    )
    print(f"Drawn by Python: {len(set(angles[:6]))} angle for 6 pictures;")
    print(f"drawn in the graph: {len(set(angles[6:]))} angles.")

# %% [markdown]
# In the first row all pictures of the whole training lean alike. Nothing fails, and the augmentation adds no variety whatever. The rule is worth keeping: **chance belongs in the graph**, or, as in this library, it is computed for each picture from seed, epoch and number before the graph runs.
#
# ### Does it belong to this data?
#
# An augmentation says: *the label stays the same*. It is true or false depending on what the pictures show. The talk looked for cracks, and a crack upside down is a crack. Look at signs:

# %%
from PIL import Image

from data_prep.signs.faces import ahead, draw_face

label_of = {name: label for label, name in enumerate(files.classes)}
give_way, deer, fifty = (
    level.image(0, int((files.labels < label_of[name]).sum()))
    for name in ("yield", "deer", "speed-50")
)
white = Image.new("RGBA", (160, 160), "white")
arrow = Image.alpha_composite(white, draw_face(ahead, 160)).convert("RGB")
workshop.images(
    [give_way, give_way[::-1], deer, fifty, fifty[::-1],
     arrow, arrow.rotate(-10, Image.Resampling.BILINEAR, fillcolor="white"), arrow.rotate(-90)],
    labels=["give way", "give way, upside down", "a warning sign", "limit 50",
            "limit 50, upside down", "ahead only", "turned by 10°", "turned by 90°: right only"],
    columns=4,
    alt="Signs and the same signs turned. Give way upside down has the outline of a warning sign, "
    "a limit of 50 upside down reads like 20, an arrow turned by 90° points to the right",
)  # fmt: skip

# %% [markdown]
# Upside down, *give way* has the outline of a warning sign, and a limit of 50 reads like 20. The label that the network is told to learn for them has become false. **Upside-down pictures do not belong here.**
#
# With the rotation one must look closer. By 90° an arrow becomes another sign; by 10° none of these does, so the label stays true. What speaks against it is that it is no news: the signs in this data lean already, by up to 12° to either side, as real ones do. Turning them once more shows angles that do not occur, brings black corners, and costs time in the very pipeline that was too slow. An augmentation should show what the camera could have seen.

# %% [markdown]
# ## The same training from every format
#
# Does the way of storing change what is learnt? It must not. First the pictures themselves: are the bytes and the labels in files, RecordIO and TFRecord the same, though one counts its labels from 1?

# %%
roots = {"files": session.data_root, "recordio": session.data_root, "tfrecord": data}
sets = {name: lesson.contents(open_source(root, "train", name)) for name, root in roots.items()}
common = set.intersection(*sets.values())
for name, held_there in sets.items():
    print(f"{name:9} {len(held_there):6,} pictures, {len(common):6,} of them in all three")
assert all(held_there == common for held_there in sets.values())

# %% [markdown]
# Now train from each of them: the same small network, recipe and seed; and once more through tf.data, with TensorFlow computing. Only the order of the pictures and their random crops differ, because each format numbers them in its own way.

# %%
length = epochs or session.pick(cpu=3)
small = Experiment(network="tiny", recipe="roadsigns", num_epochs=length, batch_size=32, seed=seed,
                   threads=1, disp_batches=25)  # fmt: skip
runs = {}
for name, root in roots.items():
    print(f"\n{name}")
    runs[name] = workshop.train(small, name=name, data_format=name, data_root=str(root)).wait()

# %%
runs["tfrecord, tf.data"] = workshop.train(
    small, name="tf-data", backend="tensorflow", data_format="tfrecord", data_root=str(data)
).wait()
reports = {name: run.report for name, run in runs.items()}
workshop.table(
    [[name, r["env"]["axes"]["backend"]["value"], r["metrics"]["train.loss"][-1],
      r["metrics"]["val.top1"][-1]] for name, r in reports.items()],
    columns=["stored as", "backend", "training loss", "validation top-1, %"],
    caption=f"{reports['files']['model']} after {length} epochs",
)  # fmt: skip
scores = [report["metrics"]["val.top1"][-1] for report in reports.values()]
print(f"The four lie between {min(scores):.1f} and {max(scores):.1f} %.")

# %% [markdown]
# How far may they lie apart? As far as runs with other seeds do, for another order is nothing else. After three epochs of a small network that is a few points, so a single run of each proves little: compare your mean with that of the recorded runs, and the distance of your four with their spread.

# %%
yours = {
    "input.jpeg_kb": kilobytes["JPEG"],
    "input.raw_kb": kilobytes["raw, 224 × 224"],
    "input.tiny.top1": statistics.mean(scores) if length == 3 else None,
}
session.expect({key: value for key, value in yours.items() if key in session.results})

# %% [markdown]
# ## The talk's code
#
# [exercises/recipes](../exercises/recipes/README.md) holds recipe 2 as the talk shows it, in the calls of TensorFlow 1, which `tf.compat.v1` still runs: a script that writes the records, and one that trains from them with a `TFRecordReader`, a queue of file names and `shuffle_batch`. Today's form follows, with the chain that you have written and Horovod's optimizer and callbacks under Keras's `fit`. It prints a checksum of its weights for every rank at the end; the talk's script prints nothing by which one could tell whether its ranks agree.

# %%
import shutil

from workshop.paths import need_checkout

recipes = need_checkout() / "exercises" / "recipes"
ranks = session.pick(ci=1, cpu=2)
if TF:
    shutil.rmtree(scratch / "slides", ignore_errors=True)  # it would go on from what it finds
    (scratch / "slides").mkdir()
    records_file = scratch / "slides" / "train.tfrecords"
    workshop.run_script(
        recipes / "slides_write_tfrecord.py", "--data", session.data_root / "train",
        "--image_size", 64, "--out", records_file,
    )  # fmt: skip
    workshop.run_script(
        recipes / "slides_tfrecord.py", "--tfrec_fname", records_file, "--image_size", 64,
        "--last_step", session.pick(ci=4, cpu=20), "--checkpoint_dir", scratch / "slides", np=ranks,
    )  # fmt: skip

# %%
two_signs = lesson.take_part(
    session.data_root, scratch / "two-signs", session.pick(ci=8, cpu=64), ("stop", "yield")
)
program("data_prep.tfrecord", "two-signs", "--schema", "slides", "--size", 64,
        "--train-shards", 2, folder=scratch)  # fmt: skip
if TF and session.profile != "ci":
    workshop.run_script(
        recipes / "train_tfrecord.py", "--data", two_signs / "tfrecord",
        "--batch-size", 16, "--epochs", 2,
        np=ranks, env={"TF_USE_LEGACY_KERAS": "1"},
    )  # fmt: skip

# %% [markdown]
# The short form of what replaces what: queues, readers, coordinators and `feed_dict` have become one chain, `Dataset.from_tensor_slices(shards)`, shard, `interleave(TFRecordDataset)`, `shuffle`, `map`, `batch`, `prefetch`. You have written it above.
#
# The recipe was right, and its code had mistakes. Two of them stop the program with an error; the other three say nothing, and can still be made:
#
# | in the talk | what it does | how to notice |
# |---|---|---|
# | `step` is never increased | every step trains on the first 128 pictures | print which pictures a step gets; the training loss falls far too fast |
# | `capacity=30, min_after_dequeue=100` | a queue of 30 can never hold the 100 that it should wait for | run it: TensorFlow refuses such a queue |
# | the angle comes from `np.random` | one angle for all pictures | look at a batch |
# | `training_flag` is never fed in the second recipe | the first step fails: a placeholder has no value | run it once |
# | no shard, and `seed=42` on every rank | every rank reads the one file from its beginning, and draws the same flips | write down the record numbers of two ranks |
#
# To do it by hand, start from `train_single.py` in the same folder, which has the Python loop, and bring it to TFRecord yourself.

# %% [markdown]
# ## Where is the time going now?
#
# Here is your own answer, for the two devices of this notebook. Below it is what others measured on eight V100, where a good input makes the difference between idle and busy GPUs. *Synthetic* stands for pictures that cost nothing, so it is the ceiling.

# %%
rows = []
for where, measured in (("this machine's model", with_model), ("the paced device", paced)):
    start, end = measured.variants[0], measured.variants[-1]
    rows.append([where, 100 - measured.share(start), 100 - measured.share(end),
                 measured.rate(start), measured.rate(end)])  # fmt: skip
workshop.table(
    rows,
    columns=["device", "waiting, Python loop, %", "waiting, all stages, %", "img/s", "img/s"],
)
pipelines = {"tf.data": "tfdata", "DALI": "dali", "synthetic pictures": "synthetic"}
items = {
    name: session.results[f"published.v100.8gpu.input.{k}.ips"] for name, k in pipelines.items()
}
ceiling = items["synthetic pictures"]
workshop.table(
    [[name, item.value, 100 * item.value / ceiling.value] for name, item in items.items()],
    columns=["input", "img/s", "per cent of the ceiling"],
    caption=ceiling.provenance,
)
missing = 100 - 100 * items["tf.data"].value / ceiling.value
print(f"Even a tuned tf.data left {missing:.0f} % of eight V100 unused.")

# %% [markdown]
# ## Your numbers
#
# What this notebook measured on your machine, in one place: to compare with a colleague's, or with those of another machine.

# %% tags=["results"]
session.note("loop_ms", 1000 * loop_s, "ms", "a Python loop's time for one picture")
session.note("raw_over_jpeg", faster, "times", "speed of raw pixels over JPEG, one core")
session.note("gain_model", gain, "times", "speed with all input stages, in front of the model")
session.note("gain_paced", gain_paced, "times", f"speed with all input stages, in front of {what}")
session.note("busy_paced", paced.share(best), "%", f"of the time in which {what} is at work")
session.note("formats_apart", max(scores) - min(scores), "points", "top-1, best minus worst format")

# %% [markdown]
# ## What to take with you
#
# - A device that is fed by hand waits for its food, and a faster one waits a larger part of its time.
# - TFRecord is made for reading in large pieces from front to back; the index brings the jumps back.
# - Raw pixels save decoding. They cost disk, bandwidth, and the detail of small crops.
# - Add one stage at a time and look at the device's utilisation after each: a stage helps only where the bottleneck is.
# - Shard first, then shuffle. Mix the classes when the shards are written.
# - Draw chance in the graph, and augment only by what leaves the label true.
#
# Something to try: give the second cell `device = 400.2`, the V100 in FP32, and predict after which stage the input ceases to be the bottleneck.
#
# What is left is decoding, and it keeps the cores busy while the GPU beside them would be good at it. The next notebook hands it over: DALI decodes on the GPU, and describes the whole pipeline in one function that runs on either.
