# %% [markdown]
# # 03 · Horovod
#
# After this notebook you can train one model with several workers, name the five changes that this takes, see what goes wrong without each of them, and compute what more workers would bring.
#
# **Time:** 45 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 4 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
workers: int | None = None  # workers whose speed is measured; None: 2, on GPUs all, at most 8
batch: int = 16  # images per worker and step where speed is measured
steps: int = 25  # timed steps
epochs: int = 3  # epochs of the runs that learn
seed: int = 0  # start of all randomness

# %%
import workshop
from rn50lib.config.workers import best_comm, horovod_has, horovod_serves

profile = workshop.hide_single_gpu(profile)
session = workshop.start("03", profile)
gpus = session.machine.gpus
workers = workers or session.pick(cpu=2, gpu=min(8, len(gpus)))
comm, why = best_comm(workers, "torch", None, bool(gpus))
print(f"The workers of this notebook talk over {comm}: {why}.")

# %% [markdown]
# ## Where is the time going?
#
# On a CPU, notebook 02 ended with the answer that a training step spends its time computing. If computing is the bottleneck, more processors are the obvious remedy. But workers that train one model must agree about it after every step, and while they talk they do not compute.
#
# So a step gets a new part, the **exchange**. In this notebook you make one model train with several workers, first so that it is *right* and then so that it is *fast*. The question stays what it was: where is the time going now?

# %% [markdown]
# ## Data parallelism
#
# There are two ways to divide the work. One could give each worker a part of the *model*; then every picture has to visit all of them. Or one gives each worker the whole model and a part of the *pictures*. The second is called data parallelism, and it is what this course does, because ResNet-50 fits on every device and its pictures do not depend on each other.
#
# The gradient of a batch is the mean of the gradients of its images. If every worker has the same number of images, the mean over all images is the mean of the workers' means. So this is all that the workers have to agree upon: an average, once per step.
#
# The batch changes what a worker *computes*. What it *sends* is as large as the model, whatever the batch. That is the whole economy of data parallelism, and at the end of this notebook it becomes a formula.

# %%
from rn50lib import network

parameters = network.resnet(50).num_parameters
print(f"ResNet-50 has {parameters:,} parameters: {4 * parameters / 1e6:.0f} MB of gradients,")
print("from a batch of 16 images as from one of 256.")

# %% [markdown]
# ## The ring
#
# How do many workers find the average of what each of them has? If all send everything to worker 0, its link carries everything: with 64 workers 63 times as much as with two. The operation that is wanted, the sum of everybody's numbers given to everybody, is called **all-reduce**. The ring is one way to do it in which no link is busier than another.
#
# Every worker cuts its gradients into as many chunks as there are workers, and only ever talks to its neighbour. In the first half, the *scatter-reduce*, chunks travel around and are added up on the way. In the second half, the *all-gather*, the finished sums travel around once more.
#
# Follow chunk 0 in the figure: it starts at worker 0, collects a stripe at every stop, and is complete one stop before it would be home again. Move the step from 0 to the last. Then set the workers to 8 and look at the megabytes after the last step.

# %%
from workshop.lessons.horovod import ring

ring.explore()

# %% [markdown]
# The drawing is not an animation of an idea: it runs the algorithm on numbers, and a chunk is called *sum* only when everybody's part has arrived in it. What each worker sends is `2 (n − 1) / n` times the gradients, less than twice their size for any number of workers.
#
# The ring made Horovod known ([Sergeev and Del Balso, 2018](https://arxiv.org/abs/1802.05799)); that workers cannot send less, unless the network adds for them, was shown by Patarasuk and Yuan in 2009. NCCL and Gloo, which carry the messages on GPUs and on processors, know the ring too, and for small messages other ways with fewer steps.

# %% [markdown]
# ## Five changes to a script
#
# The slides that this course goes back to call it "press the sport button": keep your model, and adapt the training procedure. It takes five changes. Here they are in the code of this library, which runs in every cell below.
#
# ### 1. Start, and take your own device
#
# A launcher starts the same program several times. Each process asks who it is, its **rank**, and how many there are, the **size**. The *local* rank counts on one machine and says which of its GPUs to take. If all took the first one, they would have to share its speed and its memory; NCCL refuses that with the words “Duplicate GPU detected”.

# %%
workshop.show("rn50lib.comm.horovod:Horovod.__init__")
workshop.show("rn50lib.comm.gpu:choose_gpu")

# %% [markdown]
# ### 2. Share the pictures
#
# All ranks compute the same random order of the epoch, from the seed, and each takes its own rows of every global batch. Nobody has to send anything for that. All ranks also take the same number of steps: one that took a step more would wait for the others' gradients for ever.

# %%
from rn50lib.records import order

workshop.show(order.shard)

# %% [markdown]
# ### 3. Scale the learning rate, and warm up
#
# Notebook 02 has the rule: the rate is proportional to the *global* batch, and rises from zero over the first epochs. A loop must therefore know all workers' images, and not only its own. In this library it is a single argument, `experiment.update_batch`, in the line of `train_epoch` that asks the schedule.
#
# ### 4. Average the gradients
#
# After the backward pass and before the update, every gradient is replaced by its average over all ranks. This is the one change that costs time, and the one that a library is needed for.
#
# Look at *when* it begins. A gradient is ready long before the backward pass is over, the last layer's first, and a hook sends it on its way at that moment. What is sent while the rest is still being computed costs no time that anybody waits for.

# %%
workshop.show("rn50lib.backends.torch.exchange:HorovodExchange")

# %% [markdown]
# ### 5. Start alike
#
# Averaged gradients make the same *change* on every rank. The weights are the same afterwards only if they were the same before. So rank 0 sends its initial weights to all, and after a resume those of its checkpoint.

# %%
workshop.show("rn50lib.comm:broadcast_start")
workshop.show("rn50lib.backends.torch.step:TorchStep.__init__")

# %% [markdown]
# In the last listing three of the five changes stand in a few lines: the broadcast, the device, and the exchange.
#
# Around the five there is some housekeeping. Rank 0 alone writes logs, reports and checkpoints. Validation is shared as well, and what is shared are *sums*: a mean of means would be wrong as soon as one rank holds fewer images than another.

# %% [markdown]
# ### The slides' calls, today
#
# The slides were written for TensorFlow 1. If you meet such code, this table says what does the same work now. The whole script, in its original form and in today's, is `exercises/recipes`.
#
# | the slides (TensorFlow 1.8) | today | what changed |
# |---|---|---|
# | `tf.ConfigProto().gpu_options.allow_growth = True` | `tf.config.experimental.set_memory_growth(gpu, True)` | a setting of each GPU, before its first use |
# | `tf.ConfigProto().gpu_options.visible_device_list = str(hvd.local_rank())` | `tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")` | likewise; a list of devices in place of a text |
# | `tf.Graph().as_default()` | `tf.function(train_step)` | a graph is made from a Python function when that is first called |
# | `tf.placeholder(tf.float32, shape=[None, 223, 223, 3])` | `tf.keras.layers.Input((223, 223, 3))` | arguments of a function; the model alone says its shapes |
# | `mtsess.run([train_op, loss], feed_dict=train_feed_dict)` | `model.fit(dataset)` | recipe 2: a tf.data pipeline feeds; or call the tf.function in a loop of your own |
# | `tf.nn.softmax_cross_entropy_with_logits_v2(logits=logits, labels=labels)` | `tf.keras.losses.CategoricalCrossentropy(from_logits=True)` | SparseCategoricalCrossentropy takes labels that are not one-hot |
# | `tf.train.RMSPropOptimizer(0.001 * hvd.size())` | `tf.keras.optimizers.RMSprop(0.001 * hvd.size())` | rho (their decay) is 0.9 in both; epsilon was 1e-10 and is 1e-7 |
# | `hvd.DistributedOptimizer(tower_optimizer).minimize(loss, global_step=global_step)` | `hvd.grouped_allreduce(tape.gradient(loss, weights), op=hvd.Average)` | between tape and optimizer; hvd.DistributedOptimizer with fit needs Keras 2 |
# | `tf.train.get_or_create_global_step()` | `optimizer.iterations` | the optimizer counts its steps |
# | `hvd.BroadcastGlobalVariablesHook(0)` | `for v in weights: v.assign(hvd.broadcast(tf.convert_to_tensor(v), root_rank=0))` | once, before the first step; or callbacks.BroadcastGlobalVariablesCallback(0) |
# | `tf.train.StopAtStepHook(last_step=20000 // hvd.size())` | `model.fit(dataset.take(steps // hvd.size()))` | the data end, on all ranks after the same step |
# | `tf.train.LoggingTensorHook(tensors=tensors, every_n_iter=10)` | `model.fit(dataset, verbose=2 if hvd.rank() == 0 else 0)` | rank 0 alone; reading the loss at each step would make the GPU wait |
# | `tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, hooks=sync_hook)` | `tf.train.CheckpointManager(state, folder, max_to_keep=3)` | on rank 0 alone; manager.restore_or_initialize() goes on from the newest |
# | `tf.train.string_input_producer([tfrec_fname], num_epochs=10)` | `tf.data.Dataset.list_files(pattern, shuffle=False).shard(hvd.size(), hvd.rank())` | each rank its own files, from a list that is the same on all |
# | `tf.TFRecordReader().read(filename_queue)` | `dataset.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)` | several files are read at once |
# | `tf.parse_single_example(serialized_example, features=features)` | `tf.io.parse_single_example(record, features)` | in dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE) |
# | `tf.decode_raw(features['img_raw'], tf.uint8)` | `tf.io.decode_and_crop_jpeg(data, window, channels=3)` | JPEG stays JPEG on the disk: several times fewer bytes; raw is tf.io.decode_raw |
# | `tf.image.random_flip_left_right(image, seed=42)` | `tf.image.stateless_random_flip_left_right(image, seed)` | with a seed for each picture: ranks differ, and a run can be repeated |
# | `tf.contrib.image.rotate(image, degrees * np.pi / 180)` | `tf.raw_ops.ImageProjectiveTransformV3(images=images, transforms=turns, output_shape=shape, fill_value=0.0, interpolation="BILINEAR")` | tf.contrib is gone; see rotate in exercises/recipes/solutions/train_tfrecord.py |
# | `tf.train.shuffle_batch([image, label], batch_size=20, capacity=30, num_threads=16, min_after_dequeue=100)` | `dataset.shuffle(1000).batch(20).prefetch(tf.data.AUTOTUNE)` | shuffle before the decoding, where a picture is smallest |
# | `tf.train.Coordinator(), tf.train.start_queue_runners()` | nothing | tf.data starts and ends its own threads |
#
# ### The same five, in three libraries
#
# | change | Horovod (TensorFlow) | DDP (PyTorch) | tf.distribute (TensorFlow) |
# |---|---|---|---|
# | 1. start, with one GPU for each process | `hvd.init(); tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")` | `dist.init_process_group("nccl"); torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` | `strategy = tf.distribute.MirroredStrategy()` (one process drives all GPUs) |
# | 2. share the pictures, with equal steps | `dataset = dataset.shard(hvd.size(), hvd.rank()).batch(b).take(steps // hvd.size())` | `sampler = DistributedSampler(data, drop_last=True); loader = DataLoader(data, b, sampler=sampler)` (each epoch: sampler.set_epoch(epoch)) | `dataset = strategy.experimental_distribute_dataset(dataset.batch(global_batch))` |
# | 3. scale the learning rate, with warm-up | `optimizer.learning_rate = rate(step) * hvd.size()` | `group["lr"] = rate(step) * dist.get_world_size()` | `optimizer.learning_rate = rate(step) * strategy.num_replicas_in_sync` |
# | 4. average the gradients | `gradients = hvd.grouped_allreduce(tape.gradient(loss, weights), op=hvd.Average)` | `ddp = DistributedDataParallel(net)` (averages during backward()) | `loss = tf.nn.compute_average_loss(losses, global_batch_size=global_batch)` (apply_gradients adds the replicas' gradients up) |
# | 5. start alike: from rank 0 | `for v in weights: v.assign(hvd.broadcast(tf.convert_to_tensor(v), root_rank=0))` | `ddp = DistributedDataParallel(net)` (has sent rank 0's weights to all) | `with strategy.scope(): model = build()` (each weight is made once, for all) |
# | … and rank 0 alone logs and saves | `if hvd.rank() == 0: manager.save()` | `if dist.get_rank() == 0: save_file(net.state_dict(), path)` | `manager.save()` (there is one process) |

# %% [markdown]
# > **Which one, today?** Horovod's last release, 0.28.1, is of 2023. It still builds with today's frameworks, with a patch in the case of this project, but nobody adds the support that the next release of PyTorch or TensorFlow will need. Its ideas have become those of everybody.
# >
# > For a new PyTorch project take **DDP**: it comes with PyTorch, and NVIDIA's containers no longer ship Horovod. For TensorFlow take **tf.distribute**: `MirroredStrategy` on one machine, `MultiWorkerMirroredStrategy` on several. **Horovod** is what you will find in existing code and on clusters that start everything with MPI, and it serves both frameworks with the same five lines.

# %% [markdown]
# ## Two workers, one model
#
# Now run it. One worker with 32 images a step, and two workers with 16 each, are the same training: the same images in the same order, the same averages, the same learning rate. The loss should be the same too, but for what you find below the curves.
#
# The network is `tiny` at 32 × 32 pixels, the same code as ResNet-50 with fewer and thinner layers, because the claim is about being right and not about being good. Each process computes with one thread.

# %%
from dataclasses import replace

from rn50lib.config import Experiment

epochs = session.pick(cpu=epochs, ci=2)
small = Experiment(
    network="tiny", image_shape=32, dtype="float32", threads=1, data_nthreads=1, seed=seed,
    num_epochs=epochs, disp_batches=15,
)  # fmt: skip
one = workshop.train(small, name="one-worker", n=1, batch_size=32).live()

# %%
pair = replace(small, n=2, batch_size=16)
two = workshop.train(pair, name="two-workers").live()

# %% [markdown]
# This is the line that started the two, without the flags of the training. The program at its end is the same on a cluster: there, `rn50 run -n 8 --hosts a:4,b:4 --launcher mpirun` starts eight workers on two machines with the slides' `mpirun`, and with `--dry-run` it prints its line and starts nothing.

# %%
import shlex

words = two.resolved["command"]
print(shlex.join(words[: words.index("rn50lib.rank") + 1]), "…")

# %%
from workshop.lessons import figures
from workshop.lessons.horovod import scaling

both = {"1 worker × 32": one.progress, "2 workers × 16": two.progress}
fig, finding = figures.loss_curves(both, "The same global batch of 32")
workshop.figure(fig, alt=f"Training loss of one worker and of two over the epochs. {finding}")
print(finding)
print(scaling.difference(one.progress, two.progress))

# %% [markdown]
# The two curves run together, but they are not equal. Two things differ. **Batch norm** computes its mean and variance from the 16 images of its own worker, and not from all 32: that is what everybody does, because exchanging them would cost a message per layer, although statistics of 16 images are noisier. And sums of rounded numbers depend on the order in which they are added; training makes small differences larger. How large is that? Compare with the spread of the recorded runs, which differ in nothing but the seed.

# %%
full = session.profile != "ci" and epochs == 3
ends = [run.report["metrics"]["train.loss"][-1] if full else None for run in (one, two)]
session.expect({"horovod.one_worker.loss": ends[0], "horovod.two_workers.loss": ends[1]})

# %% [markdown]
# That the *averaged gradient* is the gradient of the whole batch, where no batch norm is in the way, is a matter of rounding alone, and a test of this project holds it for Horovod and DDP (`tests/backends/test_exchange.py`). For validation and for the checkpoint the running statistics are averaged over the ranks, so that there is one model at the end.
#
# The reports side by side. The last line is the most important one: after all those steps the two ranks' weights are equal, to the last bit.

# %%
rows, columns = scaling.beside({"one worker": one.report, "two workers": two.report})
workshop.table(rows, columns=columns)
apart = two.report["env"]["weights_apart"]
print(f"Largest difference between a weight on rank 0 and on rank 1: {apart}")
session.note("weights_apart", apart, "", "largest difference between the two ranks' weights")

# %% [markdown]
# ## A larger batch
#
# With eight workers and 16 images each, a step has 128 images, and an epoch has an eighth of the steps. What should the learning rate be? What it depends on is the global batch and not who computes it, so one worker with 128 images shows the same thing, and four such runs fit on two cores. All draw from the same 1,200 pictures for six epochs; nine batches of 128 leave 48 of them over in each.
#
# - *Batch 16*: what one of the workers would do alone.
# - *Batch 128, not scaled*: the rate of the small batch. The steps are as long as before, and there are eight times fewer.
# - *Scaled, without warm-up*: eight times the rate, from the first step.
# - *Scaled, with warm-up*: the rate climbs to eight times the small one over the first four epochs.

# %%
base = replace(
    small, n=1, num_examples=1200, num_epochs=6, lr_step_epochs=(6.0,), warmup_epochs=0.0, lr=1.6,
    no_val=True, disp_batches=3, data_nthreads=0,
)  # fmt: skip
runs = {
    "batch 16": workshop.train(base, name="small-batch", batch_size=16),
    "128, not scaled": workshop.train(base, name="unscaled", batch_size=128, lr=1.6 / 8),
    "128, scaled, no warm-up": workshop.train(base, name="no-warm-up", batch_size=128),
    "128, scaled, warm-up": workshop.train(base, name="warm-up", batch_size=128, warmup_epochs=4.0),
}
for run in runs.values():
    run.wait()

# %%
shown = {name: run.progress for name, run in runs.items()}
fig, finding = figures.loss_curves(shown, "The same images, in larger steps", rate=True)
workshop.figure(fig, alt=f"Training loss and learning rate of four runs. {finding}")
print(finding)
cold, warm = (figures.last_loss(lines) for lines in list(shown.values())[2:])
session.note("no_warmup_loss", cold, "", "training loss at batch 128 without warm-up")
session.note("warmup_loss", warm, "", "training loss at batch 128 with warm-up")

# %% [markdown]
# Guessing among 12 classes costs ln 12 = 2.48. The full rate throws the weights so far off in the first steps that six epochs later the network has hardly got over it. The small rate is safe, and so slow that six epochs bring it no further than guessing. With warm-up the large batch comes close to the small one, with an eighth of the steps. This is what you should see, over three seeds.

# %%
keys = [f"horovod.large_batch.{name}" for name in ("small", "unscaled", "no_warmup", "warmup")]
mine = [figures.last_loss(lines) for lines in shown.values()]
if session.profile == "ci":
    mine = [None] * len(keys)
session.expect(dict(zip(keys, mine, strict=True)))

# %% [markdown]
# Be careful with what this shows. It is a demonstration of seconds: a tiny network, half of a small data set, 54 steps in all, and a rate chosen high enough that the effect cannot be missed. The result that counts is that of [Goyal et al., 2017](https://arxiv.org/abs/1706.02677): with linear scaling and five epochs of warm-up, ResNet-50 on ImageNet reaches the same accuracy with a batch of 8,192 as with 256, and without the warm-up it does not. They also say where it ends: beyond 8,192 the accuracy falls.

# %% [markdown]
# ## What goes wrong: no shard
#
# Scripts that forget one of the five changes do not fail. They run, print a loss that falls, and are wrong. So it is worth seeing what each mistake looks like.
#
# The first is the commonest, and it is on the slides: nobody says which images a rank is to take, so all take the same ones.

# %%
from workshop.lessons.horovod import mistakes

workshop.show(mistakes.no_shard)
override = mistakes.put(mistakes.no_shard)
unsharded = workshop.train(pair, name="no-shard", override=(override,)).wait()

# %% [markdown]
# `--override` put the wrong function into the real loop, on every rank, where it also wrote down what it returned. The right function needs no run to be asked: it is pure.

# %%
from rn50lib.records.source import open_source

wrong = mistakes.noted(override)
images = len(open_source(session.data_root, "train", "auto"))
whole = order.epoch_order(images, seed, 0)
right = [order.shard(whole, rank, 2, wrong[0].shape[1]) for rank in range(2)]
for name, rows in (("without a shard", wrong), ("with one", right)):
    read, distinct = mistakes.seen(rows)
    print(f"{name}: {read:,} images read, {distinct:,} different ones: {distinct / read:.0%}.")
read, distinct = mistakes.seen(wrong)
session.note("no_shard_seen", 100 * distinct / read, "%", "images seen without a shard")

# %% [markdown]
# Both ranks compute the same gradient, and the average of two equal numbers is the number. The second worker is paid for and adds nothing; with eight workers it would be seven of them. Meanwhile the learning rate was scaled for a global batch that does not exist.

# %% [markdown]
# ## What goes wrong: no broadcast
#
# In the second mistake every rank starts from weights of its own. In this library you would not notice if the broadcast were left out: the initial weights are a function of the seed, and all ranks have the same seed, so they would agree by luck. A script that sets no seed has no such luck, and that is what this function stands for.

# %%
workshop.show(mistakes.own_start)
override = mistakes.put(mistakes.own_start)
own = workshop.train(pair, name="no-broadcast", override=(override,)).wait()

# %%
three = {"right": two, "without a shard": unsharded, "without a broadcast": own}
lines = {name: run.progress for name, run in three.items()}
fig, finding = figures.loss_curves(lines, "Two workers, right and wrong")
workshop.figure(fig, alt=f"Training loss of a right run and of two wrong ones. {finding}")
print(finding)
rows = []
for name, run in three.items():
    metrics = run.report["metrics"]
    apart = run.report["env"]["weights_apart"]
    rows.append([name, metrics["train.loss"][-1], metrics["val.top1"][-1], apart])
columns = ["run", "training loss", "validation top-1, %", "ranks' weights apart by"]
workshop.table(rows, columns=columns)
session.note("no_broadcast_apart", rows[-1][-1], "", "ranks' weights apart without a broadcast")
keys = [f"horovod.{name}.loss" for name in ("two_workers", "no_shard", "no_broadcast")]
session.expect({key: row[1] if full else None for key, row in zip(keys, rows, strict=True)})

# %%
if rows[-1][-1]:
    print("Without a broadcast the ranks end with different weights. The averaged gradient")
    print("belongs to none of them, and a checkpoint would keep rank 0's and lose the other.")
else:
    print(f"The ranks agree all the same: {comm} sends rank 0's weights itself when it starts.")

# %% [markdown]
# Look at how *late* the two mistakes would be noticed. The curve without a shard looks like any other, in such a short run perhaps even better than the right one. Without a broadcast this short run hardly learns, for which one would blame the learning rate first; with a higher rate it does learn a little, and nothing in its curve names the mistake.
#
# That is why this library checks what can be checked: at the start that all ranks have the same number of steps and the same data, and at the end that they have the same weights. Ask your own scripts the same two questions: *how many different images did we see, and are the weights equal?*

# %% [markdown]
# ## How fast is it?
#
# So much for being right. For speed one compares **weak scaling**: every worker keeps the batch that it had alone, so that `n` workers do `n` times the work. If nothing were lost, a step would take as long as with one worker. The efficiency is the share of that which is left: the step's time with one worker, divided by that with `n`.
#
# The comparison must be fair. Each worker gets the same number of cores, `--bind core` keeps workers off each other's, the pictures are random ones that need no decoding, and the network is ResNet-50. The second run also writes a timeline, for later.

# %%
cores = max(1, session.machine.cores // workers)
pixels = session.pick(cpu=64, gpu=224)
at_speed = Experiment(
    num_layers=50, batch_size=batch, image_shape=pixels, loader="synthetic", num_classes=12,
    num_epochs=1, no_val=True, no_metrics=True, benchmark_iters=steps, disp_batches=5,
    threads=cores, data_nthreads=0,
)  # fmt: skip
if session.profile == "ci":  # small, but with steps enough to look into
    at_speed = Experiment(
        network="tiny", batch_size=4, image_shape=32, loader="synthetic", num_classes=12,
        num_epochs=1, no_val=True, no_metrics=True, benchmark_iters=6, threads=1,
        data_nthreads=0, profile="cpu",
    )  # fmt: skip
alone = workshop.train(at_speed, name="alone", n=1).wait()

# %%
file = "timeline.json" if comm == "horovod" else None
together = workshop.train(at_speed, name="together", n=workers, bind="core", timeline=file).wait()

# %% [markdown]
# ### A sum that adds up
#
# An efficiency alone explains nothing. The bar below takes the step of several workers apart into pieces that were measured in different ways, and they have to add up to it. The first piece is the step of one worker alone. What happens while the workers exchange comes from Horovod's timeline.

# %%
from workshop.lessons.horovod import trace

parts = None
if file:
    marked = trace.load(together.experiment.timeline)
    parts = trace.mean_parts(marked)
times = [run.report["metrics"]["train.time"][-1] for run in (alone, together)]
weak = scaling.explain(*times, workers, at_speed.batch_size, parts)
fig, finding = scaling.figure(weak)
workshop.figure(fig, alt=f"A step of one worker and of {workers}, in parts. {finding}")
print(finding)
session.note("weak_efficiency", 100 * weak.efficiency, "%", f"efficiency of {workers} workers")

# %% [markdown]
# Two of the pieces are about the machine and not about Horovod. Workers on one processor share its memory and its caches, so each computes more slowly than it does alone. And a step lasts as long as its slowest worker: whoever is ready first waits. On GPUs the first of the two is small, because each has memory of its own.

# %% [markdown]
# ### What batch would be enough?
#
# What is lost does not depend on the batch: the gradients of ResNet-50 are about 100 MB whether they come from 16 images or from 256. A larger batch does more work for the same lost time. If `c` is the time of an image and `o` what a step loses, the efficiency is `b c / (b c + o)`, and from that follows the batch that is needed, here computed from *your* two numbers.

# %%
rows = [[b, 100 * scaling.efficiency(b, weak.per_image, weak.overhead)] for b in (8, 16, 64, 256)]
workshop.table(rows, columns=["batch per worker", "efficiency, %, computed"])
needed = scaling.wanted_batch(weak.per_image, weak.overhead, 0.9)
session.note("batch_for_90", needed, "images", "batch per worker for an efficiency of 90 %")

# %% [markdown]
# This is a model, with an assumption in it: that the lost time stays as it is. Another `batch` in the second cell of this notebook tests it.

# %% [markdown]
# ### Beside the published figures
#
# NVIDIA's document measured the same thing on a DGX-1: 1, 4 and 8 V100 GPUs, 208 images each in FP16 and 96 in FP32.

# %%
published = scaling.published_rows(session.results)
images = {"FP16": 208, "FP32": 96}  # per GPU and step
single = {row[1]: row[2] for row in published if row[0] == 1}
rows = []
for count, bits, ips, share in published:
    lost_ms = 1000 * images[bits] * (count / ips - 1 / single[bits])
    rows.append([count, bits, ips, 100 * share, lost_ms])
workshop.table(
    rows,
    columns=["GPUs", "precision", "images per second", "efficiency, %", "ms lost in a step"],
    caption="ResNet50 v1.5 for MXNet, NVIDIA, container 18.12, DGX-1",
)
print(f"Yours: {100 * weak.efficiency:.0f} % with {workers} workers of {weak.batch} images each.")

# %% [markdown]
# FP16 scales *worse* than FP32, and the last column says why: eight GPUs lose nearly the same time in both. Tensor Cores shorten the computing, and not what is lost. Everything that makes computing faster makes communication matter more, and that is why the slides speak of NVLink right after Tensor Cores.

# %% [markdown]
# ### The bare all-reduce
#
# How much of the lost time is the exchange itself? `rn50 doctor --allreduce` starts the workers and lets them do nothing else, for messages of many sizes. Two numbers describe it: what a message costs however small it is, and what every further megabyte costs.

# %%
from rn50lib.tools.doctor.allreduce import sentence

measured = scaling.measure_allreduce(workers, quick=session.profile == "ci")
rows = [[s / 1e6, 1000 * t] for s, t in zip(measured.sizes, measured.seconds, strict=True)]
workshop.table(rows[::3], columns=["MB", "ms"], caption="An all-reduce by its size")
print(sentence(measured))
gradients = 4 * network.resnet(50, num_classes=12).num_parameters
bare = 1000 * measured.predicted(gradients)
print(f"The gradients of this ResNet-50, {gradients / 1e6:.0f} MB, would take {bare:.0f} ms.")
print(f"The step of {workers} workers took {1000 * weak.overhead:.0f} ms longer than that of one.")
session.note("allreduce_gradients", bare, "ms", "a bare all-reduce of ResNet-50's gradients")

# %% [markdown]
# ## A step, looked at through a window
#
# The sum above used numbers from Horovod's timeline: with `--timeline FILE` rank 0 writes down when each tensor was announced, copied and reduced. Usually one loads the file into Chrome's tracing page; the picture here needs nothing but the file. The dotted line is the moment at which the step has nothing left to compute. What lies to the left of it is *hidden* beneath the backward pass, what lies to the right is *exposed*, and only that makes the step longer.

# %%
from workshop.lessons.horovod import timeline as drawn

if file:
    fig, finding = drawn.steps(marked, first=len(marked) // 2)
    workshop.figure(fig, alt=f"One training step with its exchange, on a time line. {finding}")
    print(finding)
else:
    print(f"{comm} writes no timeline. `--profile-trace FILE` records a few of its steps.")
    for key in (key for key in session.results if key.startswith("horovod.timeline.")):
        session.recorded(key)

# %% [markdown]
# Many small tensors travel together: Horovod collects what is ready in a cycle of a millisecond and copies it into one **fusion buffer**, because a message costs its latency however short it is. Two flags turn the knobs: `--fusion-mb` and `--cycle-ms`.

# %%
if file:
    rows, columns = drawn.table(marked)
    workshop.table(rows, columns=columns, caption=f"Mean of {len(marked)} steps")
    print(f"The training loop itself measured {1000 * times[1]:.1f} ms a step.")

# %% [markdown]
# The four parts are measured by Horovod and by marks in our exchange, the step in the last line by the training loop, which knows nothing of either. As far as the two agree, nothing is missing from the explanation.

# %% [markdown]
# ## The wires
#
# On a machine with several GPUs the time of the exchange is decided by how they are joined. `rn50 doctor --topology` asks the driver and prints the answer; the cell draws it. Where there are no GPUs to ask about, it is the DGX-1 of the published figures.

# %%
from rn50lib.tools.doctor import topology
from workshop.lessons.horovod import figures_topology

found, remark = topology.find()
fig, finding = figures_topology.figure(found)
workshop.figure(fig, alt=f"How the GPUs of a machine are joined. {finding}")
print(" ".join(filter(None, [remark, finding])))

# %% [markdown]
# Read it with the ring in mind. If there is a round trip over NVLink alone, an all-reduce runs at NVLink's speed. If a single hop must go over PCIe or through the other processor, the whole ring runs at the speed of that hop.
#
# ### What NCCL says
#
# NCCL chooses the ring by itself, and tells what it chose if you run with `NCCL_DEBUG=INFO`, as the slides do. It writes hundreds of lines. These are the kinds to look for.

# %%
from workshop.lessons.horovod import nccl_log

nccl_log.table(together.log if "NCCL INFO" in together.log else None)

# %% [markdown]
# The lines with `via` decide. `P2P` is what you want inside a machine, `NET/IB` with `GDRDMA` between machines. `SHM` or `NET/Socket` where there is better hardware is the commonest reason for a cluster that scales badly.

# %% [markdown]
# ## The same with TensorFlow
#
# One experiment, a few axes: now only the framework changes. The order of the images, the crops, the initial weights, the schedule and the exchange are the same, so the loss should be as well, but for rounding and for how each library makes a picture small.

# %%
tensorflow = None
if horovod_has("nccl", "tensorflow") if gpus else horovod_serves("tensorflow"):
    tensorflow = workshop.train(pair, name="tensorflow", backend="tensorflow").wait()
else:
    what = "with NCCL, which it needs for GPUs" if gpus else "here: `make horovod` builds it"
    print(f"Horovod is not built for TensorFlow {what}.")
    session.recorded("horovod.tensorflow.loss")

# %%
if tensorflow:
    fig, finding = figures.loss_curves(
        {"torch": two.progress, "tensorflow": tensorflow.progress}, "Two workers, two frameworks"
    )
    workshop.figure(fig, alt=f"Training loss of PyTorch and of TensorFlow. {finding}")
    rows, columns = scaling.beside({"torch": two.report, "tensorflow": tensorflow.report})
    workshop.table(rows, columns=columns)
    print(finding)
    end = tensorflow.report["metrics"]["train.loss"][-1] if full else None
    session.expect({"horovod.tensorflow.loss": end})

# %% [markdown]
# ## Does it learn as well?
#
# Speed is worth nothing if the accuracy suffers. A whole training takes five to twelve minutes on two cores, so it is not run here. This is what it gave when it was: the recipe of notebook 02 with ResNet-50 in bfloat16, on one worker with a batch of 32 and on two with 16 each, in every way that this course starts workers.

# %%
starts = ["torch.horovodrun", "torch.mpirun", "torch.torchrun"]
starts += ["tensorflow.horovodrun", "tensorflow.mpirun"]
one_worker = "roadsigns.resnet50.bfloat16.top1"
ways = [f"horovod.accuracy.{way}" for way in starts]
session.expect(dict.fromkeys([one_worker, *ways]))
means = [session.results[key].value for key in [one_worker, *ways]]
print(f"The six means lie within {max(means) - min(means):.1f} points.")
luck = session.results[one_worker].spread
print(f"Runs of one worker that differ in the seed alone: ± {luck} points.")

# %% [markdown]
# The ways differ by less than the luck of a seed. That is what should be: the global batch is the same, so the steps are, and what is left is each rank's own batch norm statistics and the order of additions. `horovodrun` and `mpirun` even agree run by run, to the last digit: they start the same program.

# %% [markdown]
# ## Where is the time going now?

# %%
part = {name: 100 * seconds / weak.many for name, seconds in weak.parts.items()}
names = [scaling.PARTS[name] for name in part]
workshop.table(list(zip(names, part.values(), strict=True)), columns=["part", "% of a step"])
largest = max((name for name in part if name != "alone"), key=lambda name: part[name])
print(f"Computing takes {part['alone']:.0f} % of a step of {workers} workers.")
print(f"The largest other part is “{scaling.PARTS[largest]}”: {part[largest]:.0f} %.")
if parts:
    print(f"{1000 * parts['hidden']:.0f} ms of exchange are hidden beneath the computation.")

# %% [markdown]
# ## What to take with you
#
# - Data parallelism needs one agreement per step: the average of the gradients. What it sends does not depend on the batch.
# - A ring all-reduce keeps every link equally busy; each worker sends less than twice the gradients, however many workers there are.
# - Five changes make a script right: start and take a device, share the pictures, scale the rate with warm-up, average the gradients, start alike.
# - Without a shard or a broadcast a script runs and looks healthy. Count the images, compare the weights.
# - The step of several workers is a sum: computing, what is slower beside others, what is exposed of the exchange. Larger batches, a faster wire and more overlap help; faster computing alone makes it worse.
#
# **Try it yourself.** `exercises/recipes` holds the slides' own training script for one process. Make the five changes in it; a solution with Horovod is there to compare with.
#
# Something to try here: set `batch = 64` in the second cell and predict the efficiency before you look.
#
# The slides end this chapter with a warning: "Your new bottleneck is likely the data pipeline now!" Random pictures were used here for the speed, on purpose. Next in the course comes notebook 04, where real ones must keep up with all these workers.
