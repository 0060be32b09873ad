"""The scripts of docs/migration.md: each on two ranks, against one process in plain PyTorch."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rn50 import launch
from tests.conftest import clean_environment

HOROVOD = ("1_tf1_horovod", "2_tf2_horovod", "3_torch_horovod")


@functools.cache
def expected(folder: Path) -> dict[str, np.ndarray]:
    """Train on whole batches in this process; return the weights in TensorFlow's order."""
    import torch
    from torch import nn

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        import common

        layers = nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        model = nn.Sequential(*layers, nn.Linear(8, 2))
        first = common.to_torch(common.first_weights(0))
        model.load_state_dict({n: torch.tensor(a.copy()) for n, a in first.items()})
        optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
        losses = []
        for step in range(50):
            images, labels = map(torch.from_numpy, common.batch(step, 0, 1))
            loss = nn.functional.cross_entropy(model(images.permute(0, 3, 1, 2)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])  # it learns
        return common.from_torch({n: t.numpy() for n, t in model.state_dict().items()})


@pytest.mark.acceptance
@pytest.mark.needs("torch", "tensorflow", "tf_keras", "horovod")
@pytest.mark.parametrize("name", [*HOROVOD, "4_ddp", "5_fsdp2"])
def test_two_ranks_end_with_the_same_weights(repository: Path, tmp_path: Path, name: str) -> None:
    folder = repository / "exercises" / "migration"
    script, file = str(folder / f"{name}.py"), tmp_path / "weights.npz"
    env = clean_environment(TF_USE_LEGACY_KERAS="1", OMP_NUM_THREADS="1")
    env["PYTHONPATH"] += f":{repository / 'tests/at_exit'}"
    start = launch.horovodrun if name in HOROVOD else launch.torchrun
    command = start(2, [sys.executable, script, str(file)])
    done = subprocess.run(command, env=env, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    trained, wanted = np.load(file), expected(folder)
    for key, array in wanted.items():
        np.testing.assert_allclose(trained[key], array, atol=2e-6, err_msg=key)


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize("left", ["nothing", "the model", "a late import"])
def test_threads_of_gloo_end_with_the_script(repository: Path, tmp_path: Path, left: str) -> None:
    folder, script = repository / "exercises" / "migration", tmp_path / "train.py"
    text = (folder / "4_ddp.py").read_text()
    line = {"the model": "del model ", "a late import": "import torch.distributed.nn.functional "}
    kept = [x for x in text.splitlines() if left == "nothing" or not x.startswith(line[left])]
    assert len(text.splitlines()) - len(kept) == (left != "nothing")
    script.write_text("\n".join(kept))
    env = clean_environment(OMP_NUM_THREADS="1")
    env["PYTHONPATH"] += f":{repository / 'tests/at_exit'}:{folder}"
    command = launch.torchrun(2, [sys.executable, str(script), str(tmp_path / "weights.npz")])
    done = subprocess.run(command, env=env, timeout=120, capture_output=True, text=True)
    assert (done.returncode == 0) == (left == "nothing"), done.stderr
    assert ("threads of Gloo are left" in done.stderr) == (left != "nothing")
