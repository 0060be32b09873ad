"""The process behind `gradients.look`: one training step in float32, its gradients counted.

python -m workshop.lessons.precision.worker.gradients PREFIX EPOCH
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch.nn import functional as F

from rn50lib import checkpoint, launch
from rn50lib.backends.torch.model import ResNet, load_arrays
from rn50lib.config import Experiment
from rn50lib.pipelines.pictures import Pictures
from rn50lib.recipe import MEAN, STD
from rn50lib.records.source import open_source
from rn50lib.tools.predict import trained_as
from workshop import measuring
from workshop.lessons.precision.gradients import FLOWING, HIGHEST, LOWEST, WEIGHTS, count


def main(argv: list[str]) -> int:
    launch.die_with_parent()
    prefix, epoch = argv[0], int(argv[1])
    done = trained_as(prefix, epoch)
    torch.set_num_threads(done.threads)
    model = ResNet(done.to_network()).to(memory_format=torch.channels_last)
    load_arrays(model, checkpoint.load(prefix, epoch).arrays)
    counts = {kind: np.zeros(HIGHEST - LOWEST + 1, np.int64) for kind in (FLOWING, WEIGHTS)}
    zeros = dict.fromkeys(counts, 0)

    def add(kind: str, gradient: torch.Tensor) -> None:
        found, none = count(gradient.detach().numpy().ravel())
        counts[kind] += found
        zeros[kind] += none

    def watch(module: torch.nn.Module, given: object, out: torch.Tensor) -> None:
        out.register_hook(lambda gradient: add(FLOWING, gradient))

    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    for module in convolutions:
        module.register_forward_hook(watch)
    images, labels = first_batch(done)
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    for module in convolutions:
        assert module.weight.grad is not None
        add(WEIGHTS, module.weight.grad)
    kinds = {kind: [counts[kind].tolist(), zeros[kind]] for kind in counts}
    measuring.answer({"kinds": kinds, "loss": loss.item()})
    return 0


def first_batch(done: Experiment) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of training pictures spread over the classes, cut and normalised as training does:
    float32 NCHW in channels_last memory, and int64 labels."""
    source = open_source(done.data_root, "train")
    pictures = Pictures(source, True, done)
    chosen = np.linspace(0, len(source) - 1, min(done.batch_size, len(source))).astype(int)
    pixels = np.stack([pictures.image(0, int(i)) for i in chosen])
    images = (torch.from_numpy(pixels).float() - torch.tensor(MEAN)) / torch.tensor(STD)
    labels = torch.from_numpy(np.asarray(source.labels)[chosen].astype(np.int64))
    return images.permute(0, 3, 1, 2), labels


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
