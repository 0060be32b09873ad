"""PyTorch's optimizers after TensorFlow, in the process of a notebook."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import clean_environment

STEP = "import torch; torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()"


@pytest.mark.acceptance
@pytest.mark.needs("torch", "tensorflow", "triton")
@pytest.mark.parametrize("order", ["workshop, tensorflow", "tensorflow, workshop"])
def test_an_optimizer_after_tensorflow_does_not_end_the_process(order: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {order}; {STEP}"], env=clean_environment(),
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert ("import workshop first" in done.stderr) == (order == "tensorflow, workshop")
