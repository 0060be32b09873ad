"""A run in words: its axes and its arithmetic."""

from __future__ import annotations

from rn50lib import optim
from rn50lib import recipe as recipes
from rn50lib.config.experiment import Experiment, flag_name
from rn50lib.config.file import Config
from rn50lib.hardware import machine


def arithmetic(experiment: Experiment) -> str:
    """Global batch and learning rate, worked out in one line."""
    numbers, images = experiment.to_recipe(), experiment.update_batch
    peak = recipes.learning_rate(experiment.warmup_epochs, images, numbers)
    factors = f"{experiment.n} x {experiment.batch_size}"
    if experiment.micro_batches > 1:
        factors += f" x {experiment.micro_batches} batches per update"
    line = (
        f"global batch {factors} = {images}; "
        f"learning rate {experiment.lr:g} x {images} / {numbers.lr_batch} = {peak:g}"
    )
    if experiment.lr_schedule != "step":
        line += f", {experiment.lr_schedule} to 0 at epoch {experiment.num_epochs}"
    if experiment.optimizer == "lars":
        line += f"; LARS: for each layer x {optim.TRUST:g} |w| / (|g| + {experiment.wd:g} |w|)"
    return line


def batch_remark(experiment: Experiment) -> str | None:
    """One line where a recipe that was published with one global batch runs with another."""
    batch = recipes.RECIPES[experiment.recipe].global_batch
    if batch is None or batch == experiment.update_batch:
        return None
    return (
        f"the recipe {experiment.recipe} was published with a global batch of {batch}, this run's"
        f" is {experiment.update_batch}: its accuracy is not promised here"
    )


def recipe_line(experiment: Experiment) -> str | None:
    """A published recipe for large batches: where it is from, and what it reached."""
    base = recipes.RECIPES[experiment.recipe]
    return f"{base.name}: {base.source}; {base.expected}" if base.global_batch else None


def schedule_remark(experiment: Experiment) -> str | None:
    """One line when the run ends before its warm-up or its first decay, else None."""
    ends = f"{experiment.num_epochs} epoch{'s' if experiment.num_epochs > 1 else ''}"
    if experiment.num_epochs < experiment.warmup_epochs:
        return (
            f"the run ends after {ends}, inside its warm-up of"
            f" {experiment.warmup_epochs:g}: the learning rate never reaches its full value"
        )
    if experiment.lr_step_epochs and experiment.num_epochs <= experiment.lr_step_epochs[0]:
        return (
            f"the run ends after {ends}, before its first decay at epoch "
            f"{experiment.lr_step_epochs[0]:g}: expect less than the recipe's accuracy"
        )
    return None


def untrained(experiment: Experiment) -> bool:
    """Return True if a run validates the random weights that training would start from."""
    starts = experiment.load_epoch is not None or experiment.resume or experiment.init_from
    timed = experiment.no_metrics or experiment.test_io or experiment.step is not None
    return experiment.only_inference and not (starts or timed)


def describe(config: Config) -> str:
    """The axes of a run with the reason for each, and the arithmetic, as lines for people."""
    experiment, lines = config.experiment, list(config.caps)
    numbers = recipes.REFERENCE
    tricks = {"optimizer": numbers.optimizer, "lr_schedule": numbers.lr_schedule,
              "label_smoothing": numbers.label_smoothing, "bn_decay": numbers.bn_decay,
              "zero_gamma": numbers.zero_gamma}  # fmt: skip
    shown = ("data_root", "backend", "loader", "dtype", "loss_scale", "n", "comm", "launcher",
             "batch_size", "macrobatch_size", "recipe", *tricks, "num_epochs", "image_shape",
             "num_classes", "threads", "data_nthreads", "model_prefix", "init_from",
             "freeze_until")  # fmt: skip
    for name in shown:
        value = getattr(experiment, name)
        unread = name in ("data_root", "data_nthreads") and experiment.loader == "synthetic"
        unread |= name == "comm" and value == "local"
        unread |= name in tricks and value == tricks[name]
        if value is not None and not unread:
            reason = config.reasons.get(name, "given")
            lines.append(f"  {flag_name(name):16} {value}  ({reason})")
    if experiment.dtype == "float16" and not machine().gpus:
        lines.append("  float16 on a processor shows what float16 does, not how fast it is")
    if experiment.loader == "synthetic":
        lines.append("  synthetic images: speed is real, accuracy means nothing")
    elif untrained(experiment):
        lines.append(
            "  no checkpoint: the weights are random and accuracy means nothing; `rn50 score PREFIX"
            " EPOCH` validates a trained model"
        )
    if experiment.step is not None:
        lines.append(f"  paced at {experiment.step:g} img/s: the model is replaced by a wait")
    elif not (experiment.only_inference or experiment.test_io):
        lines.append(f"  {arithmetic(experiment)}")
        if not experiment.benchmark_iters:
            remarks = (recipe_line, batch_remark, schedule_remark)
            lines += [f"  {line}" for line in (remark(experiment) for remark in remarks) if line]
    return "\n".join(lines)
