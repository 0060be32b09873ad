"""What is said about a run before it begins."""

from __future__ import annotations

from rn50lib import recipe as recipes
from rn50lib.experiment.full import FullExperiment


def arithmetic(done: FullExperiment) -> str:
    """Global batch and learning rate, worked out in one line."""
    numbers, images = done.to_recipe(), done.update_batch
    peak = recipes.learning_rate(done.warmup_epochs, images, numbers)
    factors = f"{done.n} x {done.batch_size}"
    if done.micro_batches > 1:
        factors += f" x {done.micro_batches} batches per update"
    return (
        f"global batch {factors} = {images}; "
        f"learning rate {done.lr:g} x {images} / {numbers.lr_batch} = {peak:g}"
    )


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
