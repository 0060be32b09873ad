"""The optimizer's rules against numbers worked out by hand and against PyTorch's own SGD."""

from __future__ import annotations

import numpy as np
import pytest

from rn50lib import optim
from rn50lib.network import resnet


def test_one_step_by_hand() -> None:
    one = np.ones(1)
    weight, velocity = optim.sgd(
        one, 0.5 * one, 0.25 * one, lr=0.1, momentum=0.9, weight_decay=0.01
    )
    # velocity 0.9 x 0.25 + (0.5 + 0.01 x 1) = 0.735; weight 1 - 0.1 x 0.735 = 0.9265
    assert velocity == pytest.approx(0.735) and weight == pytest.approx(0.9265)


def test_a_new_rate_acts_on_the_whole_velocity() -> None:
    one, zero = np.ones(1), np.zeros(1)
    weight, velocity = optim.sgd(one, one, zero, lr=0.1, momentum=0.5, weight_decay=0)
    weight, velocity = optim.sgd(weight, zero, velocity, lr=0.01, momentum=0.5, weight_decay=0)
    # torch's rule: 0.9 - 0.01 x 0.5; Keras would go on with the old rate: 0.9 - 0.1 x 0.5
    assert weight == pytest.approx(0.895)


@pytest.mark.needs("torch")
def test_the_rule_is_torch_s_while_the_rate_changes() -> None:
    import torch

    rng = np.random.default_rng(0)
    weight, velocity = rng.normal(size=(4, 3)), np.zeros((4, 3))
    parameter = torch.nn.Parameter(torch.from_numpy(weight.copy()))
    peer = torch.optim.SGD([parameter], lr=1.0, momentum=0.9, weight_decay=1e-2)
    for lr in (0.0, 0.05, 0.1, 0.1, 0.01):
        gradient = rng.normal(size=(4, 3))
        weight, velocity = optim.sgd(weight, gradient, velocity, lr, 0.9, 1e-2)
        peer.param_groups[0]["lr"] = lr
        parameter.grad = torch.from_numpy(gradient)
        peer.step()
        np.testing.assert_allclose(parameter.detach().numpy(), weight, rtol=1e-12)


def test_the_reference_decays_every_parameter() -> None:
    names = list(resnet(50).parameters())
    assert optim.decay_groups(names) == (names, [])
