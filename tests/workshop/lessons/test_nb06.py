"""Work and traffic of a step in notebook 06, against sums by hand and published speeds."""

from __future__ import annotations

import inspect

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


STEP = inspect.getsource(nb06.scaled_step)
BLOCK = STEP[STEP.index("    with ") : STEP.index("    optimizer")]
LATER = STEP[STEP.index("    optimizer") :]
CLEAR, UPDATE = "    optimizer.zero_grad()\n", "    scaler.update()\n"
LOSS = "torch.nn.functional.cross_entropy(model(x), y)"
SCALED = "scaler.scale(loss).backward()"


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", "✓"),
        ("return loss", "return loss.item()", "✓"),
        (SCALED, "scaled = scaler.scale(loss); scaled.backward()", "✓"),
        ("    scaler.step", "    scaler.unscale_(optimizer)\n    scaler.step", "✓"),
        (LATER, LATER.replace("    ", " " * 8), "✓"),  # all in the `with` block: harmless
        (LATER, LATER.replace(CLEAR, "").replace(UPDATE, UPDATE + CLEAR), "✓"),
        ("model(x), y)", "model(x).float(), y)", "✓"),
        (SCALED, "loss.backward()", "The loss is not scaled."),
        (SCALED, "scaler.scale(loss); loss.backward()", "the loss without the scale"),
        ("scaler.step(optimizer)", "optimizer.step()", "scaler.step(optimizer), then"),
        (f"scaler.step(optimizer)\n{UPDATE}", "optimizer.step()\n", "1.02e+03 times as large"),
        ("scaler.step(optimizer)", "scaler.step(optimizer); optimizer.step()", "is 2 times"),
        ("scaler.step(optimizer)", "scaler.unscale_(optimizer); optimizer.step()",
         "although a gradient overflows"),
        (f"    scaler.step(optimizer)\n{UPDATE}", f"{UPDATE}    scaler.step(optimizer)\n",
         "scaler.update() comes before"),
        (UPDATE, "", "scaler.update() is missing"),
        ("update()", "update(512.0)", "The scale is 512 after step 1, by your rule 1024"),
        (CLEAR, "", "Gradients of earlier steps are added"),
        (LATER, LATER.replace(CLEAR, "").replace(SCALED, f"{SCALED}\n{CLEAR}"), "no gradients"),
        ("float16", "bfloat16", "not in float16"),
        (BLOCK, f"    loss = {LOSS}\n", "not in float16"),
        (f"loss = {LOSS}", f"out = model(x)\n    loss = {LOSS.replace('model(x)', 'out')}",
         "The loss is computed in float16"),
        (STEP[STEP.index(f"        loss = {LOSS}") :],
         f"        out = model(x)\n    loss = {LOSS.replace('model(x)', 'out')}\n"
         f"{LATER.replace('return loss', 'return loss.item()')}", "loss is computed in float16"),
        ("return loss", "return scaler.scale(loss)", "The loss is 997 instead of 0.974"),
        ("    return loss\n", "", "is a `return` missing?"),
        (STEP[STEP.index("    import") :], "    return None\n", "not written yet"),
    ],
)  # fmt: skip
def test_step_with_a_scaler(old: str, new: str, said: str, capsys):
    assert old in STEP
    names: dict = {"Any": object}
    exec(f"from __future__ import annotations\n{STEP.replace(old, new)}", names)
    own = names["scaled_step"]
    chosen = nb06.check("scaled_step", own, nb06.next_scale, "cpu")
    printed = capsys.readouterr().out
    assert said in printed
    assert chosen is (own if said == "✓" else nb06.scaled_step), printed
