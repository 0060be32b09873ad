"""What decays, and the loss scale against numbers worked out by hand."""

from __future__ import annotations

import pytest

from rn50lib import optim
from rn50lib.resnet import resnet


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
