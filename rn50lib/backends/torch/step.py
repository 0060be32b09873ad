"""One training step in PyTorch: forward, backward, exchange, update, in this order, every time.

Nothing here waits for the device: losses and hits are added up where they arise, and the loop
reads them every `disp_batches` steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rn50lib import seams
from rn50lib.backends.torch.model import ResNet, load_arrays, tensors
from rn50lib.backends.torch.parallel import exchange_for
from rn50lib.comm import Comm
from rn50lib.errors import UserError
from rn50lib.experiment import FullExperiment
from rn50lib.network import Network
from rn50lib.pipelines import Batch
from rn50lib.recipe import MEAN, STD

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TRACED_STEPS = 3


class TorchStep:
    """A ResNet with its SGD state on one device. See `rn50lib.backends.Step`."""

    def __init__(self, experiment: FullExperiment, net: Network, comm: Comm) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.dtype = DTYPES[experiment.dtype]
        configure(self.device, experiment.dtype, experiment.threads)
        self.net = net
        self.model = ResNet(net)
        start = net.initial_arrays(experiment.seed, experiment.to_recipe().zero_gamma)
        load_arrays(self.model, seams.get("broadcast_start")(start, comm))
        if self.device == "cuda":
            torch.cuda.set_device(comm.local_rank)
        self.model.to(self.device)
        if not hasattr(comm, "hvd"):
            # NHWC weights spare a reorder per convolution; Horovod sends contiguous tensors only
            self.model.to(memory_format=torch.channels_last)
        self.lr = torch.tensor(0.0, device=self.device)
        self.optimizer = torch.optim.SGD(
            self._groups(experiment.wd), lr=self.lr, momentum=experiment.mom, fused=True
        )
        self.exchange = exchange_for(experiment, comm, self.model, tensors(self.model))
        self.trained = self.exchange.model  # the model, or what wraps it to see its gradients
        self.mean = torch.tensor(MEAN, device=self.device).view(1, 3, 1, 1)
        self.inverse_std = 1 / torch.tensor(STD, device=self.device).view(1, 3, 1, 1)
        self.sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        self.measure = not experiment.no_metrics

    def _groups(self, weight_decay: float) -> list[dict[str, Any]]:
        named, names = tensors(self.model), list(self.net.parameters())
        decayed, plain = seams.get("decay_groups")(names)
        if sorted([*decayed, *plain]) != sorted(names):
            raise UserError(
                f"decay_groups put {len(decayed)} + {len(plain)} names in its groups: each of the"
                f" {len(names)} parameters must be in exactly one, or it is not trained"
            )
        groups = [
            {"params": [named[name] for name in decayed], "weight_decay": weight_decay},
            {"params": [named[name] for name in plain], "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    def inputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Normalised float32 images (NCHW in channels_last memory) and int64 labels."""
        images_NHWC = torch.as_tensor(batch.images).to(self.device, non_blocking=True)
        labels = torch.as_tensor(batch.labels).to(self.device, torch.int64, non_blocking=True)
        images_NCHW = images_NHWC.permute(0, 3, 1, 2)  # a view: NHWC memory is channels_last
        return images_NCHW.float().sub_(self.mean).mul_(self.inverse_std), labels

    def forward(self, images_NCHW: Tensor, model: torch.nn.Module | None = None) -> Tensor:
        with torch.autocast(self.device, self.dtype, enabled=self.dtype != torch.float32):
            return (model or self.model)(images_NCHW)

    def train_step(self, batch: Batch, lr: float) -> None:
        images, labels = self.inputs(batch)
        self.lr.fill_(lr)
        self.model.train()
        logits = self.forward(images, self.trained)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        self.exchange()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.add_up(logits.detach(), labels, loss.detach())

    @torch.inference_mode()
    def eval_step(self, batch: Batch) -> None:
        if not batch.valid:  # a last batch of nothing but padding: its mean loss would be NaN
            return
        images, labels = self.inputs(batch)
        self.model.eval()
        logits = self.forward(images)[: batch.valid]
        labels = labels[: batch.valid]
        self.add_up(logits, labels, F.cross_entropy(logits, labels))

    @torch.no_grad()
    def add_up(self, logits: Tensor, labels: Tensor, mean_loss: Tensor) -> None:
        """Add this batch to the sums on the device: loss, top-1 hits, top-5 hits, images."""
        if not self.measure:
            return
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices
        hits = best == labels[:, None]
        self.sums[0] += mean_loss.double() * len(labels)
        self.sums[1] += hits[:, 0].sum()
        self.sums[2] += hits.sum()
        self.sums[3] += len(labels)

    def read_sums(self) -> np.ndarray:
        if self.device == "cuda" and not self.measure:
            torch.cuda.synchronize()
        values = self.sums.cpu().numpy().copy()
        self.sums.zero_()
        return values

    def state(self) -> dict[str, np.ndarray]:
        named = tensors(self.model)
        arrays = {name: to_array(tensor) for name, tensor in named.items()}
        for name in self.net.parameters():
            held = self.optimizer.state.get(named[name], {}).get("momentum_buffer")
            arrays[f"velocity/{name}"] = to_array(
                torch.zeros_like(named[name]) if held is None else held
            )
        return arrays

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        load_arrays(self.model, arrays)
        for name, tensor in tensors(self.model).items():
            if f"velocity/{name}" in arrays:
                velocity = torch.empty_like(tensor)  # keeps the weight's memory format
                velocity.copy_(torch.from_numpy(arrays[f"velocity/{name}"]))
                self.optimizer.state[tensor]["momentum_buffer"] = velocity

    @torch.inference_mode()
    def predict(self, images: np.ndarray) -> np.ndarray:
        self.model.eval()
        pixels = torch.as_tensor(images).to(self.device).permute(0, 3, 1, 2)
        logits = self.forward(pixels.float().sub_(self.mean).mul_(self.inverse_std))
        return logits.softmax(dim=1).cpu().numpy()

    def versions(self) -> dict[str, str]:
        found = {"torch": torch.__version__, "device": self.device}
        if self.device == "cuda":
            found["device"] = torch.cuda.get_device_name()
            found["cuda"] = str(torch.version.cuda)
            found["cudnn"] = str(torch.backends.cudnn.version())
        return found

    @contextlib.contextmanager
    def trace(self, file: Path, steps: int) -> Iterator[Any]:
        from torch import profiler

        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        except OSError as error:  # the profiler would only log it, and be slow to
            raise UserError(f"--profile-trace {file}: {error.strerror}") from error
        left_out = min(2, steps - 1)  # the first steps are no example of the others
        plan = profiler.schedule(
            wait=left_out // 2,
            warmup=min(left_out, 1),
            active=min(TRACED_STEPS, steps - left_out),
            repeat=1,
        )
        activities = [profiler.ProfilerActivity.CPU]
        if self.device == "cuda":
            activities.append(profiler.ProfilerActivity.CUDA)
        with profiler.profile(
            activities=activities,
            schedule=plan,
            on_trace_ready=lambda done: done.export_chrome_trace(str(file)),
        ) as recording:
            yield recording


def to_array(tensor: Tensor) -> np.ndarray:
    """A float32 copy in plain (contiguous) memory."""
    return tensor.detach().float().contiguous().cpu().numpy().copy()


def configure(device: str, dtype: str, threads: int) -> None:
    """Set what PyTorch keeps globally: compute threads, and on a GPU what float32 really means."""
    torch.set_num_threads(threads)
    if device == "cuda":
        torch.backends.cudnn.benchmark = True
        # "float32" says float32: without this, convolutions run in TF32 from Ampere on
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        torch.backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]
