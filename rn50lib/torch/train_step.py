"""One training step in PyTorch: forward, backward, gradient synchronisation, update.

Nothing here waits for the device: metrics are summed on it, and the loop reads them every
`disp_batches` steps. What only makes a step faster is in `gpu`, `graphs` and `fused`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import record_function

from rn50lib import hooks
from rn50lib.config import TrainConfig
from rn50lib.data import Batch
from rn50lib.distributed import Comm
from rn50lib.errors import UserError
from rn50lib.recipe import MEAN, STD
from rn50lib.report import SUMS, TOP
from rn50lib.resnet import Network
from rn50lib.torch import gpu, graphs, inference
from rn50lib.torch.gradient_sync import gradient_sync
from rn50lib.torch.model import ResNet, load_arrays, tensors
from rn50lib.torch.optimizer import FusedSGD, LossScaler, set_precision


class TorchStep:
    """A ResNet with its optimizer on one device; the public methods are those of `TrainStep`."""

    saves = True

    def __init__(self, config: TrainConfig, net: Network, comm: Comm) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.dtype = set_precision(self.device, config.dtype)
        torch.set_num_threads(config.threads)
        self.config, self.net = config, net
        self.model = ResNet(net)
        start = net.initial_arrays(config.seed, config.zero_gamma)
        load_arrays(self.model, comm.broadcast(start))
        self.model.to(self.device)
        if comm.name != "horovod":
            # NHWC weights spare a reorder per convolution; Horovod sends contiguous tensors only
            self.model.to(memory_format=torch.channels_last)
        fastest: torch.nn.Module = self.model
        if config.fused:
            from rn50lib.torch import fused  # it imports Triton

            fused.check(self.device, config)
            fastest = fused.FusedResNet(self.model)
        self.lr = torch.tensor(0.0, device=self.device)
        named = tensors(self.model)
        weights = {name: named[name] for name in net.parameters()}
        self.optimizer = FusedSGD(config, weights, self.lr)
        self.sync = gradient_sync(comm, fastest, named)
        self.trained = self.sync.model  # the model, or what wraps it to see its gradients
        self.scaler = LossScaler(config.loss_scale, self.device) if config.loss_scale else None
        self.grad_accum_steps, self.batches = config.grad_accum_steps, 0
        self.mean = torch.tensor(MEAN, device=self.device)
        self.inverse_std = 1 / torch.tensor(STD, device=self.device)
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=self.device)
        self.measure = not config.no_metrics
        self.predictor: Callable[[Tensor], Tensor] | None = None  # a copy of the present weights
        self.replayed: graphs.Replayed | None = None  # its CUDA graph
        self.prefetcher = gpu.CudaPrefetcher() if self.device == "cuda" else None
        self.queue = gpu.Queue(self.device)
        self.tracer = gpu.Tracer(None if comm.rank else config.trace)
        if config.compile:
            self.model.compile()  # in place: what wraps the model still sees its parameters
        self.run: Callable[..., tuple[Tensor, ...]] = self.compute  # or its CUDA graph
        if config.cuda_graph:
            graphs.check(self.device, config)
            self.run = graphs.Replayed(self.compute)

    def fetch(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return uint8 images (NHWC) and int64 labels on the device."""
        arrays = self.prefetcher(batch) if self.prefetcher else (batch.images, batch.labels)
        images_NHWC, labels = map(torch.as_tensor, arrays)
        return images_NHWC, labels.long()

    def inputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return normalised float32 images (NCHW in channels_last memory) and int64 labels."""
        images_NHWC, labels = self.fetch(batch)
        return self.normalise(images_NHWC), labels

    def normalise(self, images_NHWC: Tensor) -> Tensor:
        """Return normalised float32 images: NCHW in channels_last memory."""
        rows, width = images_NHWC.flatten(2).float(), images_NHWC.shape[2]
        # long rows: on a CPU 5 times as fast as a broadcast over 3 channels
        rows.sub_(self.mean.repeat(width)).mul_(self.inverse_std.repeat(width))
        return rows.view(images_NHWC.shape).permute(0, 3, 1, 2)

    def forward(self, images_NCHW: Tensor, model: torch.nn.Module | None = None) -> Tensor:
        """Return the logits, computed in the run's precision."""
        with torch.autocast(self.device, self.dtype, enabled=self.dtype != torch.float32):
            return (model or self.model)(images_NCHW)

    def train_step(self, batch: Batch, lr: float) -> None:
        with gpu.explain_errors(self.config, training=True):
            images_NHWC, labels = self.fetch(batch)
            self.lr.fill_(lr)
            self.drop_predictor()
            self.tracer.input_done()
            self.run(images_NHWC, labels)
            self.queue.limit()
            self.tracer.step()

    def compute(self, images_NHWC: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Run a step on the device. Of accumulated batches, only the last exchanges and updates.

        It returns nothing: the results stay in the model and in `sums`.
        """
        images = self.normalise(images_NHWC)
        self.model.train()
        self.batches += 1
        last = self.batches % self.grad_accum_steps == 0
        with contextlib.nullcontext() if last else self.sync.no_sync():
            with record_function("forward"):
                logits = self.forward(images, self.trained)
                loss = self.loss(logits, labels)
            with record_function("backward"):
                self.scaled(loss).backward()
        if last:
            self.sync()  # now every worker has the average of all workers' gradients
            with record_function("update"):
                self.update()
        self.update_metrics(logits.detach(), labels, loss.detach())
        return ()

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the training loss; validation does not smooth the labels."""
        return F.cross_entropy(logits, labels, label_smoothing=self.config.label_smoothing)

    def scaled(self, loss: Tensor) -> Tensor:
        """Return this batch's share of the loss, times the loss scale."""
        if self.grad_accum_steps > 1:
            loss = loss / self.grad_accum_steps
        return loss if self.scaler is None else loss * self.scaler.scale

    def update(self) -> None:
        """Apply the optimizer in one kernel, which changes nothing if a gradient is not finite.

        Until the kernel divides them, the gradients are those of the loss times the loss scale.
        """
        if self.scaler is not None:
            self.scaler.check([p.grad for p in self.model.parameters() if p.grad is not None])
        self.optimizer.step(self.scaler)
        if self.scaler is not None:
            self.scaler.advance()

    @torch.inference_mode()
    def eval_step(self, batch: Batch) -> None:
        if not batch.valid:  # a last batch of padding only: its mean loss would be NaN
            return
        with gpu.explain_errors(self.config, training=False):
            images, labels = self.inputs(batch)
            logits, labels = self.predicted(images)[: batch.valid], labels[: batch.valid]
            self.update_metrics(logits, labels, F.cross_entropy(logits, labels))
            self.queue.limit()

    def predicted(self, images_NCHW: Tensor) -> Tensor:
        """Return float32 logits by the compiled model, an engine or a `predictor` (hooks)."""
        if self.config.compile:
            self.model.eval()
            return self.forward(images_NCHW)
        if self.predictor is None:
            make = inference.BUILDERS.get(self.config.engine) or hooks.get("predictor")
            torch.set_num_threads(self.config.threads)  # an engine before may have taken them
            self.predictor = make(self.model, self.dtype)
        logits = self.predictor(images_NCHW) if callable(self.predictor) else None
        wanted = len(images_NCHW), self.config.num_classes
        if not isinstance(logits, Tensor) or logits.shape != wanted:
            raise UserError(
                "--override predictor: it must return a function that returns logits, a tensor of"
                f" shape {wanted} for {len(images_NCHW)} images"
            )
        return logits

    @torch.no_grad()
    def update_metrics(self, logits: Tensor, labels: Tensor, mean_loss: Tensor) -> None:
        """Add this batch to the `SUMS` on the device."""
        if not self.measure:
            return
        best = logits.topk(min(max(TOP.values()), logits.shape[1]), dim=1).indices
        hits = best == labels[:, None]
        self.sums[0] += mean_loss.double() * len(labels)
        for i, k in enumerate(TOP.values(), start=1):
            self.sums[i] += hits[:, :k].sum()
        self.sums[-1] += len(labels)

    def pop_metrics(self) -> np.ndarray:
        if self.device == "cuda" and not self.measure:
            torch.cuda.synchronize()
        values = self.sums.cpu().numpy().copy()
        self.sums.zero_()
        return values

    def state(self) -> dict[str, np.ndarray]:
        arrays = {name: to_array(tensor) for name, tensor in tensors(self.model).items()}
        for name, velocity in self.optimizer.velocity.items():
            arrays[f"velocity/{name}"] = to_array(velocity)
        return arrays

    def loss_scale_state(self) -> dict[str, float]:
        return self.scaler.state() if self.scaler else {}

    def load(
        self, arrays: dict[str, np.ndarray], loss_scale: dict[str, float] | None = None
    ) -> None:
        load_arrays(self.model, arrays)
        self.drop_predictor()
        for name, velocity in self.optimizer.velocity.items():
            if f"velocity/{name}" in arrays:
                velocity.copy_(torch.from_numpy(arrays[f"velocity/{name}"]))
        if self.scaler and loss_scale:
            self.scaler.load(loss_scale)

    def drop_predictor(self) -> None:
        """Forget the copy of the weights, which change, and the graph that reads it."""
        self.predictor = self.replayed = None

    def probabilities(self, images_NHWC: Tensor) -> tuple[Tensor, ...]:
        """Return the probabilities (N, classes) of uint8 images on the device."""
        return (self.predicted(self.normalise(images_NHWC)).softmax(dim=1),)

    @torch.inference_mode()
    def predict(self, images: np.ndarray) -> np.ndarray:
        stored = torch.as_tensor(images)
        with gpu.explain_errors(self.config, training=False):
            if self.device == "cuda":
                stored = gpu.pinned(stored)
            if not self.config.cuda_graph:
                stored = stored.to(self.device, non_blocking=True)
                return self.probabilities(stored)[0].cpu().numpy()
            if self.replayed is None:
                self.replayed = graphs.Replayed(self.probabilities)
            return self.replayed(stored)[0].cpu().numpy()

    def versions(self) -> dict[str, str]:
        found = {"torch": torch.__version__, "device": self.device}
        if self.device == "cuda":
            found |= {"device": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
            found["cudnn"] = str(torch.backends.cudnn.version())
        return found


def to_array(tensor: Tensor) -> np.ndarray:
    """Return a float32 copy in contiguous memory."""
    return tensor.detach().float().contiguous().cpu().numpy().copy()
