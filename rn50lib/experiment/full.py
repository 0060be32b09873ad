"""`FullExperiment`: a run of which nothing is left open, and why each value was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rn50lib import network as networks
from rn50lib import recipe as recipes
from rn50lib.experiment.fields import Experiment


class FullExperiment(Experiment):
    """An experiment that leaves nothing open: `resolve` gives one, and a run wants one."""

    backend: str
    data_root: str
    data_format: str
    loader: str
    dtype: str
    n: int
    comm: str
    batch_size: int
    network: str
    resnet_version: str
    num_classes: int
    image_shape: int
    recipe: str
    num_epochs: int
    lr: float
    warmup_epochs: float
    lr_step_epochs: tuple[float, ...]
    lr_schedule: str
    optimizer: str
    mom: float
    wd: float
    bn_decay: bool
    zero_gamma: bool
    label_smoothing: float
    val_resize: int
    resample: str
    seed: int
    threads: int
    data_nthreads: int

    @property
    def global_batch(self) -> int:
        """Images of all workers in one iteration."""
        return self.n * self.batch_size

    @property
    def micro_batches(self) -> int:
        """Batches whose gradients are added up for one update."""
        return (self.macrobatch_size or self.batch_size) // self.batch_size

    @property
    def update_batch(self) -> int:
        """Images of all workers in one update: what the learning rate goes by."""
        return self.global_batch * self.micro_batches

    def to_recipe(self) -> recipes.Recipe:
        """The recipe with this experiment's own numbers in it."""
        base = recipes.RECIPES[self.recipe]
        return replace(
            base,
            augmentation=replace(
                base.augmentation, rotate=self.rotate, upside_down=0.5 * self.flip_up_down
            ),
            epochs=self.num_epochs,
            lr=self.lr,
            batch_size=self.batch_size,
            image_size=self.image_shape,
            warmup_epochs=self.warmup_epochs,
            lr_step_epochs=self.lr_step_epochs,
            momentum=self.mom,
            weight_decay=self.wd,
            zero_gamma=self.zero_gamma,
            bn_decay=self.bn_decay,
            label_smoothing=self.label_smoothing,
            lr_schedule=self.lr_schedule,
            optimizer=self.optimizer,
        )

    def to_network(self) -> networks.Network:
        """The network of this experiment."""
        if self.network == "tiny":
            return networks.tiny(self.num_classes, self.resnet_version)
        assert self.num_layers is not None
        return networks.resnet(self.num_layers, self.num_classes, self.resnet_version)


@dataclass(frozen=True)
class Resolved:
    """An experiment with every axis filled in, why each was chosen, and what was capped."""

    experiment: FullExperiment
    reasons: Mapping[str, str]
    caps: tuple[str, ...] = ()
