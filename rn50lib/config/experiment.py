"""`Experiment`: what is trained, on what, how. Each field is a flag of the command line."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from rn50lib import recipe as recipes
from rn50lib import resnet as networks
from rn50lib.config.kinds import (
    degrees,
    epoch_list,
    flag,
    host_list,
    image_shape,
    loss_scale,
    natural,
    not_negative,
    pace,
    positive,
    seed,
    share,
)

BACKENDS = ("torch", "tensorflow")
DTYPES = ("float32", "tf32", "bfloat16", "float16")
LOADERS = ("native", "dali", "synthetic")
FORMATS = ("auto", "files", "recordio", "tfrecord")
RESAMPLE = ("antialias", "fast")
COMMS = ("local", "horovod", "ddp")
LAUNCHERS = ("horovodrun", "mpirun", "torchrun")
PARTS = ("stem", "stage1", "stage2", "stage3", "stage4")
PROFILES = ("auto", "ci", "cpu", "gpu")
IMAGENET_ROOT = "/data/imagenet/train-val-recordio-passthrough"  # where the reference mounts it


@dataclass(frozen=True)
class Experiment:
    """What is trained, on what, how. Each field is a flag of `rn50 run`, `train` and `score`.

    A field is None where nothing was given; `resolve` fills in all that a run needs, and the types
    are those of an experiment that it has filled in.
    """

    backend: str = flag(
        "--backend", group="axes", kind=str, choices=BACKENDS, help="framework (default: torch)"
    )
    data_root: str = flag(
        "--data-root", kind=str,
        help="folder with train.rec, train.idx, val.rec, val.idx or train/CLASS/*.jpg and"
        f" val/CLASS/*.jpg (default: {IMAGENET_ROOT} where it exists, else the road signs)",
    )  # fmt: skip
    data_format: str = flag(
        "--data-format", kind=str, choices=FORMATS,
        help="how the images are stored (default: records where there are some, else files, else"
        " TFRecord shards)",
    )  # fmt: skip
    loader: str = flag(
        "--loader", kind=str, choices=LOADERS,
        help="input pipeline: native is PyTorch's or tf.data, synthetic makes random images"
        " (default: native; for the reference's recipe on GPUs dali, where it is installed)",
    )  # fmt: skip
    dtype: str = flag(
        "--dtype", kind=str, choices=DTYPES,
        help="precision of the arithmetic (default: the fastest that the hardware has)",
    )  # fmt: skip
    loss_scale: str | None = flag(
        "--loss-scale", kind=loss_scale,
        help="what the loss is multiplied by, so that small gradients do not vanish: dynamic,"
        " dynamic:START:STEPS (doubles after STEPS good steps) or a number (default: dynamic for"
        " float16, none for the others)",
    )  # fmt: skip
    n: int = flag(
        "-n", "--n-GPUs", kind=positive,
        help="workers, one a GPU; without GPUs, processes (default: 1)",
    )  # fmt: skip
    comm: str = flag(
        "--comm", kind=str, choices=COMMS,
        help="what carries the gradients between workers (default: Horovod where it is built for"
        " this hardware, else DDP)",
    )  # fmt: skip
    batch_size: int = flag("-b", "--batch-size", kind=positive, help="images per worker and step")
    macrobatch_size: int | None = flag(
        "--macrobatch-size", kind=positive,
        help="images per worker and update, a multiple of -b: the gradients of several batches are"
        " added up and exchanged once (default: -b)",
    )  # fmt: skip
    network: str = flag(
        "--network", group="model", kind=str, choices=("resnet", "tiny"),
        help="tiny is the same code path in a fraction of the time, for tests (default: resnet)",
    )  # fmt: skip
    num_layers: int | None = flag(
        "--num-layers", kind=int, choices=tuple(networks.STAGES),
        help="depth of the ResNet (default: 50)",
    )  # fmt: skip
    resnet_version: str = flag(
        "--resnet-version", kind=str, choices=networks.VERSIONS,
        help="where the stride of a down-sampling bottleneck stands (default: v1.5)",
    )  # fmt: skip
    num_classes: int = flag(
        "--num-classes", kind=positive, help="classes (default: the data set's)"
    )
    image_shape: int = flag(
        "--image-shape", kind=image_shape,
        help="input size, 3,224,224 or 224 (default: the recipe's)",
    )  # fmt: skip
    recipe: str = flag(
        "--recipe", group="recipe", kind=str, choices=tuple(recipes.RECIPES),
        help="which numbers the flags below start from (default: roadsigns for the built-in data)",
    )  # fmt: skip
    num_epochs: int = flag(
        "-e", "--num-epochs", kind=positive, help="epochs (default: the recipe's)"
    )
    lr: float = flag(
        "-l", "--lr", kind=not_negative,
        help="learning rate at a global batch of 256, scaled linearly (default: the recipe's)",
    )  # fmt: skip
    warmup_epochs: float = flag(
        "--warmup-epochs", kind=not_negative,
        help="epochs over which the rate rises from 0 (default: the recipe's)",
    )  # fmt: skip
    lr_step_epochs: tuple[float, ...] = flag(
        "--lr-step-epochs", kind=epoch_list,
        help="epochs at which the rate falls to a tenth (default: the recipe's)",
    )  # fmt: skip
    lr_schedule: str = flag(
        "--lr-schedule", kind=str, choices=recipes.SCHEDULES,
        help="how the rate falls after the warm-up: step at --lr-step-epochs, cosine or poly (the"
        " square of what is left) to 0 over all epochs (default: the recipe's)",
    )  # fmt: skip
    optimizer: str = flag(
        "--optimizer", kind=str, choices=recipes.OPTIMIZERS,
        help="lars gives each layer a rate of its own, for very large batches; its rates are far"
        " larger than SGD's, so give --lr too (default: the recipe's)",
    )  # fmt: skip
    mom: float = flag("--mom", kind=not_negative, help="momentum (default: 0.9)")
    wd: float = flag("--wd", kind=not_negative, help="weight decay (default: 1e-4)")
    bn_decay: bool = flag(
        "--bn-decay", kind=bool,
        help="weight decay on batch norm's gamma and beta and on the bias too, or on weights alone"
        " (default: the recipe's)",
    )  # fmt: skip
    zero_gamma: bool = flag(
        "--zero-gamma", kind=bool,
        help="start the last batch norm of each block at 0, so that the block begins as its"
        " shortcut (default: the recipe's)",
    )  # fmt: skip
    label_smoothing: float = flag(
        "--label-smoothing", kind=share,
        help="share of the label that goes to all classes alike, in the training loss alone"
        " (default: the recipe's)",
    )  # fmt: skip
    val_resize: int = flag(
        "--val-resize", kind=positive,
        help="shorter side of a validation image before the crop (default: size x 256 / 224)",
    )  # fmt: skip
    resample: str = flag(
        "--resample", kind=str, choices=RESAMPLE,
        help="how tf.data and DALI make a crop small: fast leaves out what keeps fine patterns from"
        " turning into coarse ones (default: antialias, as every other loader)",
    )  # fmt: skip
    rotate: float = flag(
        "--rotate", kind=degrees, default=0.0,
        help="turn every training image by up to so many degrees to either side (default: 0)",
    )  # fmt: skip
    flip_up_down: bool = flag(
        "--flip-up-down", default=False,
        help="turn every other training image upside down, by chance",
    )  # fmt: skip
    seed: int = flag(
        "--seed", kind=seed,
        help="start of all randomness: initial weights, order, augmentation (default: 0)",
    )  # fmt: skip
    model_prefix: str | None = flag(
        "--model-prefix",
        group="run",
        kind=str,
        help="write PREFIX-symbol.json and PREFIX-NNNN.safetensors",
    )
    save_period: int = flag(
        "--save-period", kind=positive, default=1, help="epochs between checkpoints (default: 1)"
    )
    checkpoint_steps: int | None = flag(
        "--checkpoint-steps", kind=positive,
        help="write a checkpoint within an epoch too, after so many updates each (default: at the"
        " end of an epoch, and when the run is asked to end)",
    )  # fmt: skip
    keep: int | None = flag(
        "--keep", kind=positive, help="epochs' checkpoints to keep, the newest (default: all)"
    )
    load_epoch: int | None = flag(
        "--load-epoch", kind=natural, help="start from the checkpoint of this epoch, or score it"
    )
    init_from: str | None = flag(
        "--init-from", kind=str,
        help="begin with the weights of a checkpoint, the newest under PREFIX or one that is named"
        " by its file, and with a new last layer where the classes are others in number",
    )  # fmt: skip
    freeze_until: str | None = flag(
        "--freeze-until", kind=str, choices=PARTS,
        help="leave the first layers, up to this stage, as they are: weights and batch norm",
    )  # fmt: skip
    resume: bool = flag(
        "--resume", default=False,
        help="go on from the newest checkpoint of --model-prefix that verifies",
    )  # fmt: skip
    report: str | None = flag("--report", kind=str, help="write a JSON report, after every epoch")
    logdir: str | None = flag("--logdir", kind=str, help="write TensorBoard files to this folder")
    logger: tuple[str, ...] = flag(
        "--logger", kind=list, default=(),
        help="tell the readings to tensorboard, wandb or mlflow, or FILE.py:FUNCTION, which gets"
        " each line of progress.jsonl and the report; repeatable",
    )  # fmt: skip
    profile_trace: str | None = flag(
        "--profile-trace", kind=str, help="write a Chrome trace of a few steps to this file"
    )
    no_val: bool = flag("--no-val", default=False, help="train only")
    only_inference: bool = flag("--only-inference", default=False, help="validate only")
    no_metrics: bool = flag("--no-metrics", default=False, help="measure speed, not accuracy")
    benchmark_iters: int | None = flag(
        "--benchmark-iters", kind=positive, help="iterations per epoch (default: the whole data)"
    )
    num_examples: int | None = flag(
        "--num-examples", kind=positive, help="use only this many training images per epoch"
    )
    test_io: bool = flag("--test-io", default=False, help="time the input pipeline alone")
    step: float | None = flag(
        "--step", kind=pace,
        help="paced:RATE replaces the model by a wait that stands for RATE images a second",
    )  # fmt: skip
    override: tuple[str, ...] = flag(
        "--override", kind=list, default=(),
        help="NAME=FILE:FUNCTION puts a function of your own into the run",
    )  # fmt: skip
    disp_batches: int = flag(
        "--disp-batches",
        kind=positive,
        default=20,
        help="iterations between readings (default: 20)",
    )
    timeline: str | None = flag(
        "--timeline", kind=str, help="write Horovod's timeline of the run to this file"
    )
    launcher: str | None = flag(
        "--launcher", group="many workers", kind=str, choices=LAUNCHERS,
        help="what starts the workers (default: horovodrun for Horovod, torchrun for DDP)",
    )  # fmt: skip
    hosts: str | None = flag(
        "--hosts", kind=host_list,
        help="where the workers run, HOST:SLOTS,... (default: all on this machine)",
    )  # fmt: skip
    bind: str | None = flag(
        "--bind", kind=str, choices=("core",),
        help="core gives every worker cores of its own (default: the system moves them)",
    )  # fmt: skip
    comm_timeout: int | None = flag(
        "--comm-timeout", kind=positive,
        help="seconds after which a worker that does not answer fails the run (default: Horovod"
        " 120, DDP 1800)",
    )  # fmt: skip
    max_restarts: int = flag(
        "--max-restarts", kind=natural, default=0,
        help="restart a run that fails up to N times, from the newest checkpoint",
    )  # fmt: skip
    fp16_allreduce: bool = flag(
        "--fp16-allreduce", default=False,
        help="send gradients in 16 bits: half the bytes, less precision",
    )  # fmt: skip
    fusion_mb: int | None = flag(
        "--fusion-mb", kind=positive,
        help="gradients that travel as one message, in MB (default: Horovod 128, DDP 25)",
    )  # fmt: skip
    cycle_ms: float | None = flag(
        "--cycle-ms", kind=not_negative,
        help="milliseconds between Horovod's looks for ready gradients (default: 1)",
    )  # fmt: skip
    threads: int = flag(
        "--threads", group="machine", kind=positive,
        help="compute threads per worker (default: the cores it may use)",
    )  # fmt: skip
    data_nthreads: int = flag(
        "--data-nthreads", kind=natural,
        help="loader workers per worker; 0 loads in the training process (default: the cores)",
    )  # fmt: skip
    compile: bool = flag(
        "--compile", default=False,
        help="let torch.compile, or TensorFlow's XLA, join the model's operations into kernels",
    )  # fmt: skip
    cuda_graphs: bool = flag(
        "--cuda-graphs", default=False,
        help="record a training step once and replay it, without launching its kernels one by one",
    )  # fmt: skip
    profile: str = flag(
        "--profile", kind=str, choices=PROFILES, default="auto",
        help="ci caps the run to seconds and prints every cap",
    )  # fmt: skip

    def given(self) -> dict[str, Any]:
        """The fields that differ from an experiment of which nothing was given."""
        return {name: value for name, value in vars(self).items() if value != DEFAULTS[name]}

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


DEFAULTS = {f.name: f.default for f in fields(Experiment)}
FLAGS = {f.name: f.metadata["names"][-1] for f in fields(Experiment)}


def flag_name(name: str) -> str:
    """The flag of a field: 'batch_size' gives '--batch-size'."""
    return FLAGS[name]
