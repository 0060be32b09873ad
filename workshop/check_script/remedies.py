"""What to do about a change that was not found, in the library that the script uses."""

from __future__ import annotations

from workshop.check_script.context import DDP, KERAS, TAPE, TF1, TORCH, Context
from workshop.check_script.finding import Finding, cannot_tell, missing

INIT, PIN, RATE = "start", "one GPU each", "learning rate x size"
GRADIENTS, BROADCAST = "gradient exchange", "broadcast from rank 0"
SHARD, SEEDS, CHECKPOINTS, LOGS = "sharding", "seeds", "checkpoints", "logs"
STEPS, VALIDATION, WARMUP = "steps // size", "validation", "warm-up"
FIVE = (INIT, PIN, RATE, GRADIENTS, BROADCAST)
TOPICS = (*FIVE, SHARD, SEEDS, CHECKPOINTS, LOGS, STEPS, VALIDATION, WARMUP)

_TABLE: dict[str, dict[str, str]] = {
    INIT: {
        DDP: 'Begin with `dist.init_process_group("nccl")` and start the script by torchrun.',
        TORCH: "`import horovod.torch as hvd`, then `hvd.init()` before anything else of it.",
        KERAS: "`import horovod.tensorflow.keras as hvd`, then `hvd.init()` before anything else.",
        "": "`import horovod.tensorflow as hvd`, then `hvd.init()` before anything else of it.",
    },
    PIN: {
        DDP: '`torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before the first tensor.',
        TORCH: "`torch.cuda.set_device(hvd.local_rank())` before the first tensor.",
        TF1: "`config.gpu_options.visible_device_list = str(hvd.local_rank())`.",
        "": '`tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")` before the first op.',
    },
    RATE: {
        DDP: "Give the optimizer `lr * dist.get_world_size()`.",
        "": "Give the optimizer the rate times `hvd.size()`.",
    },
    GRADIENTS: {
        DDP: "Train `DistributedDataParallel(model)` in place of the model.",
        TORCH: "`optimizer = hvd.DistributedOptimizer(optimizer, "
        "named_parameters=model.named_parameters())`.",
        TAPE: "`gradients = hvd.grouped_allreduce(gradients, op=hvd.Average)` before "
        "apply_gradients.",
        "": "Wrap the optimizer: `hvd.DistributedOptimizer(optimizer)`.",
    },
    BROADCAST: {
        DDP: "`DistributedDataParallel(model)` does it when it is made.",
        TORCH: "`hvd.broadcast_parameters(model.state_dict(), root_rank=0)`, and "
        "`hvd.broadcast_optimizer_state`.",
        KERAS: "Add `hvd.callbacks.BroadcastGlobalVariablesCallback(0)` to the callbacks of fit.",
        TF1: "Add `hvd.BroadcastGlobalVariablesHook(0)` to the hooks of the session.",
        "": "`hvd.broadcast_variables(model.variables, root_rank=0)`, and the optimizer's.",
    },
    SHARD: {
        DDP: "Give the DataLoader `sampler=DistributedSampler(data)`.",
        TORCH: "Give the DataLoader `sampler=DistributedSampler(data, num_replicas=hvd.size(), "
        "rank=hvd.rank())`.",
        "": "`dataset.shard(hvd.size(), hvd.rank())` first of all, or a slice by the rank.",
    },
    SEEDS: {
        DDP: "Add the rank: `torch.manual_seed(seed + rank)`.",
        TORCH: "Add the rank: `torch.manual_seed(seed + hvd.rank())`.",
        "": "Add the rank to the seed: `seed + hvd.rank()`.",
    },
    CHECKPOINTS: {
        DDP: "Save under `if dist.get_rank() == 0:`.",
        TF1: "`checkpoint_dir = folder if hvd.rank() == 0 else None`.",
        "": "Save under `if hvd.rank() == 0:`.",
    },
    LOGS: {
        DDP: "Print under `if dist.get_rank() == 0:`.",
        KERAS: "`verbose=2 if hvd.rank() == 0 else 0`; print under `if hvd.rank() == 0:`.",
        "": "Log under `if hvd.rank() == 0:`.",
    },
    STEPS: {
        DDP: "Let a DistributedSampler share the pictures: it gives all ranks equally many.",
        TF1: "`StopAtStepHook(last_step=steps // hvd.size())`.",
        KERAS: "`steps_per_epoch=steps // hvd.size()`, the same on every rank.",
        "": "Take `len(data) // (batch * hvd.size())` steps an epoch, the same on every rank.",
    },
    VALIDATION: {
        DDP: "`dist.all_reduce` the sums of right answers, of losses and of pictures; divide last.",
        "": "`hvd.allreduce(..., op=hvd.Sum)` of right answers and of pictures; divide last.",
    },
    WARMUP: {
        KERAS: "Add `hvd.callbacks.LearningRateWarmupCallback(initial_lr=lr * hvd.size(), "
        "warmup_epochs=5)`.",
        DDP: "Rise from `lr` to the full rate over the first epochs, such as 5 of 90 (`LinearLR`).",
        "": "Rise from `lr` to the full rate over the first epochs, such as 5 of 90.",
    },
}


def remedy(topic: str, library: str) -> str:
    choices = _TABLE[topic]
    return choices.get(library, choices[""])


def lost(context: Context, topic: str, line: int | None, what: str, words: str) -> Finding:
    """A change that was not found: missing, or cannot tell where another file may hold it."""
    advice = remedy(topic, context.framework)
    if context.other:
        return cannot_tell(
            topic,
            line,
            f"`{context.other}` has its own way, which this check does not know",
            advice,
        )
    hidden = context.script.foreign_calls(words)
    if hidden and not (context.parallel and topic == INIT):
        name, at = hidden[0]
        return cannot_tell(
            topic, at, f"it is not in this file; `{name}`, defined elsewhere, may do it",
            f"Look there for it. {advice}",
        )  # fmt: skip
    if context.elsewhere:
        return cannot_tell(topic, line, context.elsewhere, f"Check that file. {advice}")
    return missing(topic, line, what, advice)
