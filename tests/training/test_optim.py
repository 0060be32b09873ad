"""The optimizer's rules against numbers worked out by hand and against PyTorch's own SGD."""

from __future__ import annotations

import numpy as np
import pytest

from rn50lib import optim
from rn50lib.resnet import resnet


def test_one_step_by_hand() -> None:
    one = np.ones(1)
    weight, velocity = optim.sgd(
        one, 0.5 * one, 0.25 * one, lr=0.1, momentum=0.9, weight_decay=0.01
    )
    # velocity 0.9 x 0.25 + (0.5 + 0.01 x 1) = 0.735; weight 1 - 0.1 x 0.735 = 0.9265
    assert velocity == pytest.approx(0.735) and weight == pytest.approx(0.9265)


@pytest.mark.needs("torch")
def test_sgd_matches_torch_under_a_changing_rate() -> None:
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


def test_one_step_of_lars_by_hand() -> None:
    weight, gradient = np.array([[3.0, 4.0]]), np.array([[0.6, 0.8]])  # lengths 5 and 1
    velocity = np.array([[0.1, -0.2]])
    made, moved = optim.lars(weight, gradient, velocity, lr=10, momentum=0.9, weight_decay=0.2)
    # trust 0.001 x 5 / (1 + 0.2 x 5) = 0.0025, so a rate of 0.025; gradient + decay [1.2, 1.6]
    np.testing.assert_allclose(moved, [[0.09 + 0.03, -0.18 + 0.04]])
    np.testing.assert_allclose(made, [[2.88, 4.14]])


def test_lars_gives_a_vector_the_plain_rate_and_a_zero_gradient_no_infinity() -> None:
    vector, push = np.array([3.0, 4.0]), np.array([0.6, 0.8])
    made, _ = optim.lars(vector, push, 0 * push, lr=0.5, momentum=0.9, weight_decay=0.0)
    np.testing.assert_allclose(made, [2.7, 3.6])
    layer = vector[None]
    assert optim.trust_ratio(layer, 0 * layer, 0.1) == optim.trust_ratio(0 * layer, layer, 0.1) == 1
    made, _ = optim.lars(layer, 0 * layer, 0 * layer, lr=0.5, momentum=0.9, weight_decay=0.0)
    np.testing.assert_array_equal(made, layer)


def test_only_weights_decay() -> None:
    shapes = resnet(50).parameters()
    decayed, plain = optim.weights_only(shapes)
    assert sorted([*decayed, *plain]) == sorted(shapes)
    assert {len(shapes[name]) for name in decayed} == {2, 4}
    assert {len(shapes[name]) for name in plain} == {1}
    assert len(decayed) == 54 and "fc.bias" in plain and "layer1.0.downsample_bn.gamma" in plain


@pytest.mark.parametrize(
    ("scale", "good_steps", "finite", "wanted"),
    [
        (1024.0, 0, True, (1024.0, 1)),
        (1024.0, 3, True, (1024.0, 4)),
        (1024.0, 4, True, (2048.0, 0)),  # the fifth good step in a row
        (1024.0, 4, False, (512.0, 0)),  # a nonfinite one restarts the count
        (1024.0, 0, False, (512.0, 0)),
        (1.0, 2, False, (1.0, 0)),  # never below 1 ...
        (1.5, 2, False, (1.0, 0)),
        (2.0**24, 4, True, (2.0**24, 0)),  # ... nor above 2^24
        (3.0 * 2**22, 4, True, (2.0**24, 0)),
    ],
)
def test_the_loss_scale_by_hand(
    scale: float, good_steps: int, finite: bool, wanted: tuple[float, int]
) -> None:
    assert optim.loss_scale_update(scale, good_steps, finite, growth_steps=5) == wanted


def test_loss_scale_flag_is_parsed() -> None:
    assert optim.parse_loss_scale("dynamic") == (65536.0, 2000)
    assert optim.parse_loss_scale("dynamic:128") == (128.0, 2000)
    assert optim.parse_loss_scale("dynamic:128:50") == (128.0, 50)
    assert optim.parse_loss_scale("1e3") == (1000.0, None)


def test_the_reference_decays_every_parameter() -> None:
    names = list(resnet(50).parameters())
    assert optim.decay_groups(names) == (names, [])
