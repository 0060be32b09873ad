"""Which GPU is a worker's."""

from __future__ import annotations


def own_gpu(local_rank: int, visible: int) -> int:
    """The number, among the `visible` GPUs of this process, of the one that is this worker's.

    Where a batch system shows each worker its own GPU alone (Slurm's --gpus-per-task, a MIG slice),
    that is number 0 for every one of them.
    """
    return local_rank % visible


def choose_gpu(backend: str, local_rank: int) -> None:
    """Give this worker its own GPU, where there are any, before anything uses one: where no model
    is built, a loader that decodes on a GPU asks for it, too."""
    if backend == "torch":
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_device(own_gpu(local_rank, torch.cuda.device_count()))
        return
    from rn50lib.tensorflow import tf

    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices([gpus[own_gpu(local_rank, len(gpus))]], "GPU")
