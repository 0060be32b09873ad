"""What is said about a run before it begins."""

from __future__ import annotations

from rn50lib import optim
from rn50lib import recipe as recipes
from rn50lib.experiment.full import FullExperiment


def arithmetic(done: FullExperiment) -> str:
    """Global batch and learning rate, worked out in one line."""
    numbers, images = done.to_recipe(), done.update_batch
    peak = recipes.learning_rate(done.warmup_epochs, images, numbers)
    factors = f"{done.n} x {done.batch_size}"
    if done.micro_batches > 1:
        factors += f" x {done.micro_batches} batches per update"
    line = (
        f"global batch {factors} = {images}; "
        f"learning rate {done.lr:g} x {images} / {numbers.lr_batch} = {peak:g}"
    )
    if done.lr_schedule != "step":
        line += f", {done.lr_schedule} to 0 at epoch {done.num_epochs}"
    if done.optimizer == "lars":
        line += f"; LARS: for each layer x {optim.TRUST:g} |w| / (|g| + {done.wd:g} |w|)"
    return line


def batch_remark(done: FullExperiment) -> str | None:
    """One line where a recipe that was published with one global batch runs with another."""
    batch = recipes.RECIPES[done.recipe].global_batch
    if batch is None or batch == done.update_batch:
        return None
    return (
        f"the recipe {done.recipe} was published with a global batch of {batch}, this run's is"
        f" {done.update_batch}: its accuracy is not promised here"
    )


def recipe_line(done: FullExperiment) -> str | None:
    """A published recipe for large batches: where it is from, and what it reached."""
    base = recipes.RECIPES[done.recipe]
    return f"{base.name}: {base.source}; {base.expected}" if base.global_batch else None


def schedule_remark(done: FullExperiment) -> str | None:
    """One line when the run ends before its warm-up or its first decay, else None."""
    if done.num_epochs < done.warmup_epochs:
        return (
            f"the run ends after {done.num_epochs} epochs, inside its warm-up of "
            f"{done.warmup_epochs:g}: the learning rate never reaches its full value"
        )
    if done.lr_step_epochs and done.num_epochs <= done.lr_step_epochs[0]:
        return (
            f"the run ends after {done.num_epochs} epochs, before its first decay at epoch "
            f"{done.lr_step_epochs[0]:g}: expect less than the recipe's accuracy"
        )
    return None
