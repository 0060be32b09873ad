"""N workers together compute the same as one worker with all their images, and skip together."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50lib.recipe import BN_MOMENTUM
from tests.conftest import clean_environment

# One step with learning rate 0 on this worker's part of eight images: the velocity is then the
# exchanged gradient. argv: backend, comm, file for the result, how the images are laid out.
STEP = """
import sys
import numpy as np
from rn50lib import distributed as comm
from rn50lib.run_setup import build_step
from rn50lib.data import Batch
from tests.support import full

backend, carrier, result, layout = sys.argv[1:]
group = comm.connect(carrier, backend)
rows = 8 // group.size
done = full(n=group.size, comm=carrier, batch_size=rows, backend=backend, wd=0.0)
step = build_step(done, done.to_network(), group)
dice = np.random.default_rng(3)
images = dice.integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)
if layout != "frozen":
    images[4:] = images[:4]  # the same batch statistics in both halves, other labels
else:
    step.model.eval()
    step.model.train = lambda mode=True: step.model
labels = dice.integers(0, 6, 8).astype(np.int32)
part = slice(group.rank * rows, (group.rank + 1) * rows)
arrays = step.state()
arrays["fc.weight"] += dice.standard_normal(arrays["fc.weight"].shape).astype(np.float32)
step.load(arrays)
step.train_step(Batch(images[part], labels[part], rows), 0.0)
arrays = {n: a for n, a in step.state().items() if n.startswith("velocity/")}
# two steps on images that only this worker has, between three looks at its running statistics
own = Batch(images[part] // (1 + group.rank), labels[part], rows)
looks = [step.state()["bn1.running_mean"]]
for _ in range(2):
    step.train_step(own, 0.0)
    looks.append(step.state()["bn1.running_mean"])
if group.rank == group.size - 1:
    np.savez(result, looks=looks, **arrays)
"""
# Then three steps with a loss scale; in the second, one gradient of the last rank alone is
# corrupted before the exchange.
OVERFLOW = """
import json
from tests.backends.test_torch import batch, busy_arrays

parts = 2  # batches per update
done = full(n=group.size, comm=carrier, batch_size=4, macrobatch_size=4 * parts,
            loss_scale="dynamic:64:5")
net = done.to_network()
step = build_step(done, net, group)
step.load(busy_arrays(net))
mine = group.rank == group.size - 1
corrupt = False
step.model.fc.weight.register_hook(lambda g: g * float("inf") if corrupt else g)
history = []
for i in range(3):
    before = step.state()
    for part in range(parts):
        corrupt = mine and i == 1 and part == 0
        step.train_step(batch(4, seed=100 * i + 10 * part + group.rank), 0.05)
    after = step.state()
    weights = {n: after[n] for n in net.parameters()}
    history.append({
        "changed": any((after[n] != before[n]).any() for n in weights),
        "difference": comm.max_difference(weights, group),
        **step.loss_scale_state(),
    })
with open(f"{result}.{group.rank}", "w") as file:
    json.dump(history, file)
group.barrier()
"""
# as a worker of rn50 train: the threads of a group may outlive its work
END = "from rn50lib.lifetime import end_with\nend_with(lambda: 0)\n"
GROUPS = [  # backend and what exchanges the gradients
    pytest.param(("torch", "horovod"), marks=pytest.mark.needs("horovod")),
    pytest.param(("torch", "ddp"), marks=pytest.mark.needs("torch")),
    pytest.param(("tensorflow", "horovod"), marks=pytest.mark.needs("horovod", "tensorflow")),
]
pytestmark = pytest.mark.slow


def gradients(folder: Path, backend: str, carrier: str, layout: str) -> dict[str, np.ndarray]:
    """Return the gradients that the last rank of a group has after the exchange."""
    result = folder / f"{backend}-{carrier}-{layout}.npz"
    given = [str(folder / "worker.py"), backend, carrier, str(result), layout]
    if carrier == "local":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", given)
            exec(STEP, {"__name__": "worker"})
        return saved(result)
    (folder / "worker.py").write_text(f"{STEP}{OVERFLOW if backend == 'torch' else ''}{END}")
    worker = [sys.executable, *given]
    start = {
        "horovod": [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", "2",
                    "--network-interface", "lo"],
        "ddp": [sys.executable, "-m", "torch.distributed.run", "--standalone",
                "--nproc-per-node", "2", "--no-python"],
    }[carrier]  # fmt: skip
    env = clean_environment(OMP_NUM_THREADS="1", TF_CPP_MIN_LOG_LEVEL="2")
    done = subprocess.run([*start, *worker], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    if layout != "frozen":
        first, second, third = np.load(result)["looks"]
        # the same images move them the same way twice, unless another worker's replace them
        moved = [
            after - BN_MOMENTUM * before for before, after in ((first, second), (second, third))
        ]
        np.testing.assert_allclose(*moved, rtol=1e-4, atol=1e-6)
        assert np.abs(moved[0]).max() > 1e-3
    return saved(result)


def saved(result: Path) -> dict[str, np.ndarray]:
    """Return the gradients that a worker wrote."""
    with np.load(result) as held:
        return {name: held[name] for name in held if name != "looks"}


def distance(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """Return the largest relative L2 distance of any gradient."""
    assert sorted(one) == sorted(other) and len(one) > 40
    return max(
        float(np.linalg.norm(one[n] - other[n]) / (np.linalg.norm(one[n]) + 1e-12)) for n in one
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, np.ndarray]]:
    """Return the gradients of one worker with a backend, whose run all groups share."""
    folder = tmp_path_factory.mktemp("alone")
    return functools.cache(lambda backend: gradients(folder, backend, "local", "twice"))


@pytest.fixture(scope="module", params=GROUPS, ids="-".join)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, np.ndarray], list[list[dict[str, Any]]]]:
    """A backend, and of two workers: gradients, and (PyTorch) three steps with a loss scale."""
    folder = tmp_path_factory.mktemp("both")
    made = gradients(folder, *request.param, "twice")
    name = "-".join([*request.param, "twice.npz"])
    steps = [folder / f"{name}.{rank}" for rank in range(2)] if request.param[0] == "torch" else []
    ranks = [json.loads(file.read_text()) for file in steps]
    return request.param[0], made, ranks


def test_two_workers_match_the_gradients_of_one(
    both: tuple[str, dict, list], alone: Callable[[str], dict[str, np.ndarray]]
) -> None:
    """Both halves of the batch contain the same images, with different labels.

    Batch norm computes its statistics per worker; so one worker with all eight images has the same
    statistics, except for rounding, which batch norm's gradient amplifies.
    """
    backend, made, _ = both
    assert distance(alone(backend), made) < 5e-4


@pytest.mark.parametrize("both", GROUPS[:2], indirect=True, ids="-".join)
def test_overflow_on_one_rank_makes_all_skip(both: tuple[str, dict, list]) -> None:
    """The run continues, with equal weights on both ranks (two batches per update)."""
    first, second = both[2]
    assert first == second
    assert [step["changed"] for step in first] == [True, False, True]
    assert [step["scale"] for step in first] == [64, 32, 32]
    assert [step["skipped"] for step in first] == [0, 1, 1]
    assert all(step["difference"] == 0 for step in first)


@pytest.mark.acceptance
@pytest.mark.needs("horovod")
def test_frozen_batch_norm_and_different_images(tmp_path: Path) -> None:
    """Frozen statistics give the same gradients for any eight images on both."""
    alone = gradients(tmp_path, "torch", "local", "frozen")
    assert distance(alone, gradients(tmp_path, "torch", "horovod", "frozen")) < 1e-5
