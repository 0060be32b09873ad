"""ResNet as data: parameters, work and shapes against the numbers that others publish."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from rn50lib.resnet import Network, resnet, tiny

# torchvision's metadata of its ResNets (num_params, _ops in 1e9 multiply-adds), which are v1.5
PARAMETERS = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160, 152: 60_192_808}
GMACS = {18: 1.814, 34: 3.664, 50: 4.089, 101: 7.801, 152: 11.514}


@pytest.mark.parametrize("version", ["v1", "v1.5"])
@pytest.mark.parametrize("depth", PARAMETERS)
def test_parameters_are_the_published_ones_in_both_versions(depth: int, version: str) -> None:
    assert resnet(depth, version=version).num_parameters == PARAMETERS[depth]


@pytest.mark.parametrize("depth", GMACS)
def test_work_is_the_published_one(depth: int) -> None:
    net = resnet(depth)
    assert net.macs(224) / 1e9 == pytest.approx(GMACS[depth], abs=0.0006)
    assert net.train_flops(224) == 6 * net.macs(224)


def test_v1_does_less_work_with_the_same_weights() -> None:
    v1, v15 = resnet(50, version="v1"), resnet(50)
    assert v1.arrays() == v15.arrays()
    assert v1.macs(224) / 1e9 == pytest.approx(3.858, abs=0.001)  # He et al.: 3.8


def test_stride_is_in_the_published_layer() -> None:
    def strided(net: Network) -> list[str]:
        return [c.name for c in net.convolutions() if c.stride == 2]

    where = {"v1": "conv1", "v1.5": "conv2"}
    for version, conv in where.items():
        expected = [f"layer{s}.0.{part}" for s in (2, 3, 4) for part in (conv, "downsample")]
        assert strided(resnet(50, version=version)) == ["conv1", *expected]
    assert strided(resnet(18, version="v1")) == strided(resnet(18))


def test_shapes_of_resnet50() -> None:
    arrays = resnet(50).arrays()
    assert arrays["conv1.weight"] == (64, 3, 7, 7)
    assert arrays["layer1.0.downsample.weight"] == (256, 64, 1, 1)
    assert arrays["layer4.2.conv3.weight"] == (2048, 512, 1, 1)
    assert arrays["layer4.0.downsample_bn.running_var"] == (2048,)
    assert (arrays["fc.weight"], arrays["fc.bias"]) == ((1000, 2048), (1000,))
    assert len(arrays) == 53 * 5 + 2
    assert len(resnet(50).parameters()) == 161


def test_initial_weights_are_he_normal_and_a_function_of_the_seed() -> None:
    net = resnet(18, num_classes=10)
    arrays = net.initial_arrays(seed=3)
    assert arrays.keys() == net.arrays().keys()
    assert all(a.dtype == np.float32 and a.shape == net.arrays()[n] for n, a in arrays.items())
    for name in ("layer4.0.conv2.weight", "layer2.0.downsample.weight", "conv1.weight"):
        weight = arrays[name]
        wanted = math.sqrt(2 / (weight.shape[1] * weight.shape[2] * weight.shape[3]))
        assert weight.std() == pytest.approx(wanted, rel=0.03), name
        assert abs(weight.mean()) < 0.03 * wanted
    assert arrays["fc.weight"].std() == pytest.approx(math.sqrt(2 / 512), rel=0.03)
    for name, array in arrays.items():
        if name.endswith((".gamma", ".running_var")):
            assert (array == 1).all(), name
        elif name.endswith((".beta", ".running_mean", ".bias")):
            assert (array == 0).all(), name
    again, other = net.initial_arrays(seed=3), net.initial_arrays(seed=4)
    assert all(np.array_equal(arrays[name], again[name]) for name in arrays)
    assert not np.array_equal(arrays["fc.weight"], other["fc.weight"])
    assert not np.array_equal(arrays["layer1.0.conv1.weight"], arrays["layer1.0.conv2.weight"])


def test_zero_gamma_is_the_last_batch_norm_of_each_block() -> None:
    arrays = resnet(50, num_classes=10).initial_arrays(zero_gamma=True)
    zero = [name for name, a in arrays.items() if name.endswith("gamma") and not a.any()]
    assert len(zero) == 16 and all(name.endswith(".bn3.gamma") for name in zero)


@pytest.mark.parametrize("net", [resnet(50), resnet(18, 7, "v1"), tiny(5)])
def test_symbol_file_round_trips(net: Network) -> None:
    assert Network.from_symbol(json.loads(net.to_json())) == net


def test_foreign_symbol_file_is_refused() -> None:
    mxnet = {"nodes": [], "arg_nodes": [], "heads": []}
    with pytest.raises(ValueError, match="rn50-symbol-1"):
        Network.from_symbol(mxnet)
    with pytest.raises(ValueError, match="stages"):
        Network.from_symbol({"format": "rn50-symbol-1", "model": "resnet50"})
