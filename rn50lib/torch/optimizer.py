"""The optimizers in PyTorch: the fused SGD, and LARS on top of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rn50lib.config import TrainConfig
from rn50lib.optim import TRUST, weight_decays


def build_optimizer(
    config: TrainConfig, named: Mapping[str, Tensor], names: list[str], lr: Tensor
) -> torch.optim.SGD:
    """Return the optimizer of the parameters `names`, in at most two groups.

    The step fills `lr`. Each parameter starts with a velocity of zeros, which a checkpoint needs
    even if the first update is skipped.
    """
    decays = weight_decays(config, names)
    groups = [
        {"params": [named[n] for n, own in decays.items() if own == decay], "weight_decay": decay}
        for decay in dict.fromkeys((config.wd, 0.0))
    ]
    groups = [group for group in groups if group["params"]]
    made: torch.optim.SGD
    if config.optimizer == "lars":
        made = Lars(groups, lr, config.mom)
    else:
        made = torch.optim.SGD(groups, lr=lr, momentum=config.mom, fused=True)
    for name in names:
        made.state[named[name]]["momentum_buffer"] = torch.zeros_like(named[name])
    return made


class Lars(torch.optim.SGD):
    """LARS: Algorithm 1 of You, Gitman and Ginsburg 2017 (arXiv:1708.03888), as in MLPerf.

    The rate of a layer is lr * TRUST |weight| / (|gradient| + decay |weight|), and plain lr if a
    norm is zero or the tensor has one dimension (gamma, beta, bias). Each gradient is turned into
    rate * (gradient + decay * weight). SGD's kernel, at a rate of 1 and without decay, adds that
    to the velocity, and skips it if `found_inf` is set.
    """

    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None

    def __init__(self, groups: list[dict[str, Any]], lr: Tensor, momentum: float) -> None:
        own = [{**group, "weight_decay": 0.0, "decay": group["weight_decay"]} for group in groups]
        super().__init__(own, lr=1.0, momentum=momentum, fused=True)
        self.rate = lr

    def step(self, closure: Any = None) -> Any:
        """Update all weights."""
        scale, self.grad_scale = self.grad_scale, None  # the norms are those of the true gradients
        with torch.no_grad():
            for group in self.param_groups:
                self.scale(group["params"], group["decay"], scale)
        return super().step(closure)

    def scale(self, weights: list[Tensor], decay: float, loss_scale: Tensor | None) -> None:
        """Turn the gradients of a group into steps, in place."""
        gradients = [weight.grad for weight in weights]
        if loss_scale is not None:
            torch._foreach_mul_(gradients, loss_scale.reciprocal())
        layers = [i for i, weight in enumerate(weights) if weight.dim() > 1]
        rates = [self.rate] * len(weights)
        if layers:
            length = torch.stack(torch._foreach_norm([weights[i] for i in layers]))
            slope = torch.stack(torch._foreach_norm([gradients[i] for i in layers]))
            trust = TRUST * length / (slope + decay * length)
            trust = torch.where((length > 0) & (slope > 0), trust, 1.0)
            for i, rate in zip(layers, (self.rate * trust).unbind(), strict=True):
                rates[i] = rate
        if decay:
            torch._foreach_add_(gradients, weights, alpha=decay)
        torch._foreach_mul_(gradients, rates)
