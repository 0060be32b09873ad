"""The PyTorch process behind `workshop.forms`: one network in several forms.

python -m workshop.lessons.inference.forms_worker answers PREFIX EPOCH FILE FORM...
python -m workshop.lessons.inference.forms_worker speed FORM... -- FLAGS...
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rn50lib import launch
from rn50lib.backends.torch import precision
from rn50lib.backends.torch.inference import Predictor
from rn50lib.backends.torch.model import ResNet, load_arrays
from rn50lib.config import Experiment, from_json
from rn50lib.recipe import MEAN, STD
from workshop import measuring

TURN_S = 0.05  # a turn repeats the batch for about so long
BATCH = 32  # pictures at a time where they are answered, not timed


class Forms:
    """A network with its weights, by form: uint8 images (N, H, W, 3) to float32 logits."""

    def __init__(
        self, done: Experiment, arrays: Mapping[str, np.ndarray], forms: Sequence[str]
    ) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        precision.configure(self.device, "float32")  # on a GPU: no TF32 under the name of float32
        torch.set_num_threads(done.threads)
        model = ResNet(done.to_network())
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
            self.repeat(form, images, 2)
            self.times[form] = max(1, min(200, round(TURN_S / self.repeat(form, images, 1))))
        return self.repeat(form, images, self.times[form])


def speed(forms: Sequence[str], argv: list[str]) -> int:
    """Says "ready", then answers every form on stdin with the seconds of a batch."""

    done = from_json(argv[0])
    models = Forms(done, done.to_network().initial_arrays(done.seed), forms)
    shape = (done.batch_size, done.image_shape, done.image_shape, 3)
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, np.uint8))
    images = images.to(models.device)  # the copy is the same for all forms, and none of theirs
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(models.turn(line.strip(), images)), flush=True)
    return 0


def answers(prefix: str, epoch: int, file: Path, forms: Sequence[str]) -> int:
    """Writes images, labels and the logits of every form to `file`; answers with their names."""
    from rn50lib import checkpoint
    from rn50lib.records.source import open_source
    from rn50lib.tools.predict import prepare, trained_as

    done = trained_as(prefix, epoch)
    models = Forms(done, checkpoint.load(prefix, epoch).arrays, forms)
    pictures = open_source(done.data_root, "val")
    images = np.empty((len(pictures), done.image_shape, done.image_shape, 3), np.uint8)
    for i in range(len(pictures)):
        images[i] = prepare(pictures, i, done)
        if i % 200 == 0:
            measuring.tell(f"picture {i} of {len(pictures)} is decoded")
    arrays = {"images": images, "labels": np.asarray(pictures.labels)}
    for place, form in enumerate(forms):
        found = []
        for start in range(0, len(images), BATCH):
            found.append(models.logits(form, torch.from_numpy(images[start : start + BATCH])))
            if start % (10 * BATCH) == 0:
                measuring.tell(f"{form}: {start} of {len(images)} pictures")
        arrays[f"logits{place}"] = torch.cat(found).float().cpu().numpy()
    with open(file, "wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]
    measuring.answer(list(forms))
    return 0


def main(argv: list[str]) -> int:
    launch.die_with_parent()
    if argv[0] == "speed":
        end = argv.index("--")
        return speed(argv[1:end], argv[end + 1 :])
    return answers(argv[1], int(argv[2]), Path(argv[3]), argv[4:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
