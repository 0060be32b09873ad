"""Work and traffic of a step in notebook 06, against sums by hand and published speeds."""

from __future__ import annotations

import pytest

from rn50lib import resnet
from rn50lib.resnet import Network
from workshop.lessons import nb06

# One stage of one basic block of 4 channels on 32 x 32: the stem makes 16 x 16, the pooling 8 x 8.
HAND = Network("hand", "v1.5", 3, "basic", (1,), width=4)


def by_kind(layers: list[tuple[str, nb06.Work]]) -> dict[str, nb06.Work]:
    """Return the sums over the layers of each kind."""
    found = dict.fromkeys([kind for kind, _ in layers], nb06.Work(0, 0))
    for kind, work in layers:
        found[kind] = nb06.Work(found[kind].flops + work.flops, found[kind].bytes + work.bytes)
    return found


def test_work_and_traffic_of_a_small_network():
    found = by_kind(nb06.count(HAND, 32, 2, "bfloat16"))
    macs = 2 * (4 * 3 * 49 * 16 * 16 + 2 * (4 * 4 * 9 * 8 * 8))
    assert found["convolution"].flops == 6 * macs
    through = 2 * (3 * 32 * 32 + 4 * 16 * 16 + 2 * (4 * 8 * 8 + 4 * 8 * 8))
    weights = 4 * 3 * 49 + 2 * 4 * 4 * 9
    assert found["convolution"].bytes == 3 * 2 * (through + weights)
    assert found["batch norm"].bytes == 2 * 8 * 2 * (4 * 16 * 16 + 2 * 4 * 8 * 8)
    assert found["addition"].bytes == 2 * 6 * 2 * 4 * 8 * 8
    assert found["last layer"].flops == 6 * 2 * 4 * 3
    wide = by_kind(nb06.count(HAND, 32, 2, "float32"))
    for kind in ("convolution", "batch norm", "ReLU", "addition", "pooling"):
        assert (wide[kind].flops, wide[kind].bytes) == (found[kind].flops, 2 * found[kind].bytes)
    assert wide["last layer"] == found["last layer"]  # float32 in both


@pytest.mark.parametrize(
    "net", [resnet.tiny(), resnet.resnet(18, 10), resnet.resnet(50), resnet.resnet(50, 7, "v1")]
)
def test_work_of_convolutions_is_that_of_the_network(net):
    work = by_kind(nb06.count(net, 64, 1, "float32"))
    assert work["convolution"].flops + work["last layer"].flops == net.train_flops(64)


@pytest.mark.parametrize(
    ("dtype", "peak", "published"), [("float32", 15.7e12, 400.2), ("float16", 125e12, 1442.6)]
)
def test_roofline_of_a_v100_is_just_above_the_published_speed(dtype, peak, published):
    least_ms = nb06.least_ms(resnet.resnet(50), 224, 96, dtype, peak, 900e9)
    limit = 1000 * 96 / sum(least_ms.values())
    assert 0.7 * limit < published < limit


ROWS = [(finished, row) for finished, rows in nb06.MISTAKES.items() for row in rows]


@pytest.mark.parametrize(
    ("finished", "row"), ROWS, ids=[f"{name.__name__}-{row[1]}" for name, row in ROWS]
)
def test_wrong_function_gets_its_diagnosis(finished, row, capsys):
    wrong, diagnosis, remedy = row
    assert nb06.check(finished.__name__, wrong) is finished
    assert f"✗ `{finished.__name__}`: {diagnosis} {remedy}" in capsys.readouterr().out


@pytest.mark.parametrize("finished", nb06.CASES)
def test_right_function_is_used_and_an_unwritten_one_replaced(finished, capsys):
    assert nb06.check(finished.__name__, finished) is finished

    def stub(*given):
        return None

    assert nb06.check(finished.__name__, stub) is finished
    said = capsys.readouterr().out
    assert "is right in all" in said and "not written yet" in said


def test_count_of_one_convolution_is_that_of_the_network():
    (conv,) = (layer for layer in resnet.resnet(50).layers(224) if layer.name == "layer1.0.conv2")
    flops, moved = nb06.convolution(1, 4)
    assert flops == 2 * conv.macs
    assert moved == 4 * (2 * conv.activations + conv.parameters)
