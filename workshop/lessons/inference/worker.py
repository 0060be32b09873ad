"""The forms of a network in PyTorch; `workshop.worker` calls these functions in a process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rn50.predict import prepare, trained_as
from rn50lib import checkpoint
from rn50lib.config import TrainConfig
from rn50lib.data.source import open_source
from rn50lib.recipe import MEAN, STD
from rn50lib.torch import amp as precision
from rn50lib.torch.inference import Predictor
from rn50lib.torch.model import ResNet, load_arrays
from workshop.lessons.inference.forms import random_images, repeated
from workshop.worker import tell, unpack

BATCH = 32  # pictures at a time where they are answered, not timed


class Forms:
    """A network with its weights, by form: uint8 images (N, H, W, 3) to float32 logits."""

    def __init__(
        self, config: TrainConfig, arrays: Mapping[str, np.ndarray], forms: Sequence[str]
    ) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        precision.configure(self.device, "float32")  # on a GPU: no TF32 under the name of float32
        torch.set_num_threads(config.threads)
        model = ResNet(config.to_network())
        load_arrays(model, dict(arrays))
        model = model.to(self.device, memory_format=torch.channels_last).eval()
        self.mean = torch.tensor(MEAN, device=self.device).view(1, 3, 1, 1)
        self.inverse_std = 1 / torch.tensor(STD, device=self.device).view(1, 3, 1, 1)
        self.models: dict[str, Callable[[Tensor], Tensor]] = {}
        for form in forms:
            kind, dtype = form.split(", ")
            own = Predictor(model, getattr(torch, dtype)) if kind == "folded" else model
            self.models[form] = own
        self.times: dict[str, int] = {}

    @torch.inference_mode()
    def logits(self, form: str, images: Tensor) -> Tensor:
        pixels = images.to(self.device).permute(0, 3, 1, 2)
        return self.models[form](pixels.float().sub_(self.mean).mul_(self.inverse_std))

    def repeat(self, form: str, images: Tensor, times: int) -> float:
        """Seconds a batch, for so many in a row."""
        begin = time.perf_counter()
        for _ in range(times):
            self.logits(form, images)
        if self.device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / times

    def turn(self, form: str, images: Tensor) -> float:
        if form not in self.times:
            self.times[form] = repeated(lambda times: self.repeat(form, images, times))
        return self.repeat(form, images, self.times[form])


def timer(config: dict[str, Any], forms: list[str]) -> Callable[[str], float]:
    """Each call gives the seconds of a batch in a form."""
    done = unpack(config)
    models = Forms(done, done.to_network().initial_arrays(done.seed), forms)
    images = torch.from_numpy(random_images(done))
    images = images.to(models.device)  # the copy is the same for all forms, and none of theirs
    return lambda form: models.turn(form, images)


def answers(prefix: str, epoch: int, file: str, forms: list[str], every: int) -> None:
    """Writes images, labels and the logits of every form to `file`, of one picture in `every`."""
    config = trained_as(prefix, epoch)
    models = Forms(config, checkpoint.load(prefix, epoch).arrays, forms)
    pictures = open_source(config.data_root, "val")
    chosen = range(0, len(pictures), every)
    images = np.empty((len(chosen), config.image_shape, config.image_shape, 3), np.uint8)
    for row, i in enumerate(chosen):
        images[row] = prepare(pictures, i, config)
        if row % 200 == 0:
            tell(f"picture {row} of {len(chosen)} is decoded")
    arrays = {"images": images, "labels": np.asarray(pictures.labels)[::every]}
    for place, form in enumerate(forms):
        found = []
        for start in range(0, len(images), BATCH):
            found.append(models.logits(form, torch.from_numpy(images[start : start + BATCH])))
            if start % (10 * BATCH) == 0:
                tell(f"{form}: {start} of {len(images)} pictures")
        arrays[f"logits{place}"] = torch.cat(found).float().cpu().numpy()
    with open(file, "wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]
