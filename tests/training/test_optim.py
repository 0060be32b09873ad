"""What decays, and the loss scale against numbers worked out by hand."""

from __future__ import annotations

from rn50lib import optim
from rn50lib.resnet import resnet


def test_only_weights_decay() -> None:
    shapes = resnet(50).parameters()
    decays = optim.weight_decays(shapes, 1e-4, bn_decay=False)
    assert list(decays) == list(shapes) and set(decays.values()) == {1e-4, 0}
    assert {len(shapes[name]) for name, decay in decays.items() if decay} == {2, 4}
    assert {len(shapes[name]) for name, decay in decays.items() if not decay} == {1}
    assert sum(map(bool, decays.values())) == 54
    assert decays["fc.bias"] == decays["layer1.0.downsample_bn.gamma"] == 0


def test_the_reference_decays_every_parameter() -> None:
    names = list(resnet(50).parameters())
    assert optim.weight_decays(names, 1e-4, bn_decay=True) == dict.fromkeys(names, 1e-4)


def test_loss_scale_flag_is_parsed() -> None:
    assert optim.parse_loss_scale("dynamic") == (65536.0, 2000)
    assert optim.parse_loss_scale("dynamic:128") == (128.0, 2000)
    assert optim.parse_loss_scale("dynamic:128:50") == (128.0, 50)
    assert optim.parse_loss_scale("1e3") == (1000.0, None)
