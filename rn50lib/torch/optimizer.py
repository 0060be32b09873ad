"""The update in PyTorch: the fused SGD, and mixed precision with its loss scale.

Weights, batch-norm statistics, the last layer and the loss are always float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from rn50lib import optim
from rn50lib.config import TrainConfig
from rn50lib.optim import weight_decays

AUTOCAST = {
    "float32": torch.float32,
    "tf32": torch.float32,  # the tensors are float32: only the multipliers round
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def set_precision(device: str, dtype: str) -> torch.dtype:
    """Return autocast's type, and allow TF32 for --dtype tf32 only.

    PyTorch's default is TF32 convolutions.
    """
    if device != "cuda":
        return AUTOCAST[dtype]
    torch.backends.cudnn.benchmark = True
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    # The old settings first: PyTorch refuses to read them (and torch.compile does) where they say
    # otherwise than the new ones, as in NGC's containers. The last layer stays in float32.
    cudnn.allow_tf32 = dtype == "tf32"
    torch.set_float32_matmul_precision("highest")
    if hasattr(cudnn, "conv"):  # from PyTorch 2.9 on
        cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "tf32" if dtype == "tf32" else "ieee"
        matmul.fp32_precision = "ieee"
    return AUTOCAST[dtype]


class LossScaler:
    """The loss scale and its rule, on the device."""

    def __init__(self, text: str, device: str) -> None:
        start, self.growth_steps = optim.parse_loss_scale(text)
        self.scale = torch.tensor(start, device=device)
        self.good_steps = torch.tensor(0, device=device)
        self.skipped = torch.tensor(0, device=device)
        self.not_finite = torch.tensor(0.0, device=device)  # 1.0: the update is skipped

    def check(self, gradients: Sequence[Tensor]) -> None:
        """Record whether all synchronised gradients are finite."""
        norms = torch.stack(torch._foreach_norm(list(gradients)))  # one pass over all of them
        self.not_finite.copy_(norms.isfinite().all().logical_not())

    def advance(self) -> None:
        """Set the scale of the next step by the rule of a dynamic scale (see `optim`)."""
        bad = self.not_finite.bool()
        self.skipped += bad
        if self.growth_steps is None:
            return
        self.good_steps.add_(1).masked_fill_(bad, 0)
        grown = self.good_steps >= self.growth_steps
        factor = torch.where(bad, optim.BACKOFF, torch.where(grown, optim.GROWTH, 1.0))
        self.scale.mul_(factor).clamp_(optim.SMALLEST_SCALE, optim.LARGEST_SCALE)
        self.good_steps.masked_fill_(grown, 0)

    def state(self) -> dict[str, float]:
        names = ("scale", "good_steps", "skipped")
        return {name: getattr(self, name).item() for name in names}

    def load(self, state: dict[str, float]) -> None:
        """Continue from `state()`; a static scale stays the configured one."""
        self.skipped.fill_(int(state["skipped"]))
        if self.growth_steps is not None:
            self.scale.fill_(state["scale"])
            self.good_steps.fill_(int(state["good_steps"]))


class FusedSGD:
    """SGD with momentum and a rate on the device; all weights in one kernel per weight decay.

    It calls the function of `torch.optim.SGD(fused=True)`; making one imports PyTorch's compiler,
    which nearly doubles the start of a worker. Each weight starts with a velocity of zeros, which a
    checkpoint needs even if the first update is skipped.
    """

    def __init__(self, config: TrainConfig, named: Mapping[str, Tensor], lr: Tensor) -> None:
        self.lr, self.momentum = lr, config.mom
        self.velocity = {name: torch.zeros_like(weight) for name, weight in named.items()}
        self.named, self.groups = named, dict[float, list[str]]()
        for name, decay in weight_decays(list(named), config.wd, config.bn_decay).items():
            self.groups.setdefault(decay, []).append(name)

    @torch.no_grad()
    def step(self, scaler: LossScaler | None) -> None:
        """Unscale, decay, update velocity and weights; a gradient that is not finite skips all."""
        for decay, names in self.groups.items():
            weights = [self.named[name] for name in names]
            sgd(
                weights,
                [weight.grad for weight in weights],
                [self.velocity[name] for name in names],
                weight_decay=decay,
                momentum=self.momentum,
                lr=self.lr,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                fused=True,
                grad_scale=scaler and scaler.scale,
                found_inf=scaler and scaler.not_finite,
            )
        for weight in self.named.values():
            weight.grad = None
