# %% [markdown]
# # 00 · Start here
#
# After this notebook you know what this machine can do, where the course goes, and that a training
# run works here from start to report.
#
# **Time:** 5 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about half a minute,
# and once a minute more to draw the pictures

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
seed: int = 0  # start of all randomness in the training run below

# %% [markdown]
# ## What this machine has
#
# Every notebook begins with the line below. It looks at the machine, chooses a profile that fits
# it, and draws the course's pictures of road signs if they are not there yet.

# %%
import workshop

session = workshop.start("00", profile)

# %% [markdown]
# The profile decides how large the lessons are, never what they teach:
#
# | profile | for | a notebook takes |
# |---|---|---|
# | `gpu` | one or more NVIDIA GPUs | as long as the numbers need to be worth quoting |
# | `cpu` | a laptop or a server without a GPU | at most 5 minutes when run from top to bottom |
# | `ci` | checking that everything works | seconds; its accuracy and speed mean nothing |
#
# With `auto` the notebook takes `gpu` where there is a GPU and `cpu` elsewhere. Where a lesson
# needs hardware that is not here, you see a smaller variant that does run, or a result that was
# recorded elsewhere and says where and when.

# %% [markdown]
# ## Where the course goes
#
# The course takes a folder of JPEGs to a trained ResNet-50 v1.5. There is one experiment, and each
# notebook changes one thing about it, runs it again and lays the two reports side by side. Each
# change moves the bottleneck somewhere else, which is why the course keeps asking the same
# question: *where is the time going now?*

# %%
workshop.course_map()

# %% [markdown]
# Every lesson has a notebook of exercises. A check tells at once what is wrong with an answer and
# why, hints help when you are stuck, and what you pass is written down. So far that is:

# %%
workshop.progress()

# %% [markdown]
# ## How a notebook works
#
# Run the cells from top to bottom with Shift + Enter. The second cell of every notebook holds its
# parameters: change a value there, then run from that cell on. Everything else follows from it.
#
# The same notebooks also run without a browser. In a terminal, in the folder of the course:
#
# ```
# rn50 workshop run 00 --profile cpu -p seed 1
# ```
#
# writes the executed notebook and a web page of it to `runs/`. A parameter that a notebook does not
# have is an error there, so a misspelt name cannot pass unnoticed.
#
# The code that a notebook shows is the code that runs. This is the learning rate of the whole
# course, read from the file at this moment:

# %%
from rn50lib import recipe

workshop.show(recipe.learning_rate)

# %% [markdown]
# ## A first training run
#
# `workshop.train` starts a run in processes of its own and gives back a handle. `live()` watches it
# until it ends. The network here is `tiny`: the code path of ResNet-50 in a fraction of its time,
# so that you see a run from beginning to end in a quarter of a minute. It is so small that one
# thread serves it as well as many.

# %%
run = workshop.train(
    network="tiny",
    image_shape=32,
    num_epochs=3,
    benchmark_iters=30,
    disp_batches=3,
    threads=1,
    data_nthreads=0,
    seed=seed,
).live()

# %% [markdown]
# The line in small print is the whole command. Typed in a terminal it does the same thing, because
# a notebook has no way of training of its own.

# %% [markdown]
# ## What a run leaves behind
#
# Each run has a folder, and in it a report. Its keys are those of the published ResNet-50 v1.5 for
# MXNet, with a list per metric that has one value per epoch. What this project adds is under
# the one further key `env`: the machine, the versions, and for each setting the reason why it was
# chosen.

# %%
report = run.report
metrics = {name: values for name, values in report["metrics"].items() if values}
epochs = [f"epoch {i + 1}" for i in range(len(metrics["val.top1"]))]
workshop.table(
    [[name, *values] for name, values in metrics.items()],
    columns=["metric", *epochs],
    caption=f"{report['model']} on {session.data_root.name}",
)

# %%
settings = run.resolved["experiment"]
reasons = run.resolved["reasons"]
shown = ["data_root", "dtype", "batch_size", "num_epochs", "image_shape", "threads", "seed"]
workshop.table(
    [[name, str(settings.get(name)), reasons.get(name, "the default")] for name in shown],
    columns=["setting", "value", "why"],
)
session.note("first_run_s", run.seconds, "s", "first training run, from start to report")
session.note("cores", session.machine.cores, "", "CPU cores that a run may use")

# %% [markdown]
# ## If something does not work
#
# - **An error in one line** names the file, the value or the flag that is wrong and says what to
#   do.
# - **`rn50 doctor`**, in a terminal, checks the machine: memory, disk, driver, frameworks. It
#   prints what is missing and the remedy.
# - **You changed a notebook and want the original back**: `rn50 workshop reset 00` restores it and
#   keeps yours beside it.
# - **A run that should stop**: interrupt the cell (■ in the toolbar), and the run stops with it.
# - **Not enough GPU memory**: shut down the kernels of other notebooks. The table at the top of
#   each notebook says who holds memory.
#
# Now continue with the next notebook.
