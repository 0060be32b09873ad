"""Options that only make a step faster, compilers among them, and the message if memory is full."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50 import launch
from rn50.autoconfig import prepare
from rn50.parser import config_parser, parse_given
from rn50lib.errors import UserError
from tests.backends.test_exchange import distance
from tests.backends.test_precision import build, trained
from tests.backends.test_torch import batch
from tests.conftest import clean_environment
from tests.support import TINY, Ended, Photos, strict_json

Run = Callable[..., Ended]
SHORT = (*TINY, "-e", "1", "--benchmark-iters", "2", "--no-val", "--report", "r.json")


# --- compiled -------------------------------------------------------------------------------------


@pytest.mark.acceptance
@pytest.mark.needs("torch")
def test_without_a_compiler_one_line_says_why(
    run_cli: Callable[..., Any], photos: Photos, tmp_path: Path
) -> None:
    env = {"CXX": str(tmp_path / "no-compiler"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    command = ("train", "--data-root", photos.root, *SHORT, "--compile")
    done = run_cli(*command, env=env, timeout=300)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "--compile: " in done.stderr.splitlines()[-1]
    assert done.stderr.rstrip().endswith("; `--no-compile` runs without it")


@pytest.mark.acceptance
@pytest.mark.needs("torch")
def test_a_run_that_chose_to_compile_starts_again_without_a_compiler(
    photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """Nothing that it leaves says that it was compiled. On a processor, no run chooses that."""
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    flags = ["--data-root", str(photos.root), *SHORT[:-2]]
    resolved = prepare(parse_given(config_parser("run"), flags)[0])
    assert launch.run(resolved.chosen("so long a run", compile=True), tmp_path) == 0
    assert "starting again: --compile: " in capfd.readouterr().err
    assert "compile" not in strict_json(tmp_path / "experiment.json")["experiment"]
    assert "compile" not in strict_json(tmp_path / "report.json")["env"]["axes"]


@pytest.mark.acceptance
@pytest.mark.needs("torch")
def test_compiled_step_gives_the_same_result() -> None:
    """float32 results differ only by the order of sums.

    Fused bfloat16 kernels round in different places; they may not be further from float32 than
    before.
    """
    made, sums = {}, {}
    for dtype in ("float32", "bfloat16"):
        for fast in (False, True):
            step = build("torch", dtype=dtype, compile=fast)
            step.train_step(batch(8), 0.0)
            step.eval_step(batch(8, seed=9))
            made[dtype, fast] = {n: a for n, a in trained(step).items() if "velocity/" in n}
            sums[dtype, fast] = step.pop_metrics()
    exact = made["float32", False]
    assert distance(exact, made["float32", True]) < 1e-3
    np.testing.assert_allclose(sums["float32", True], sums["float32", False], rtol=1e-4)
    plain, fast = (distance(exact, made["bfloat16", way]) for way in (False, True))
    assert 0 < fast < 2 * plain
    np.testing.assert_allclose(sums["bfloat16", True][0], sums["bfloat16", False][0], rtol=0.05)


# When the first gradient is ready, as a share of the backward pass: the median of five passes.
FIRST = """
import time
import torch
from torch import distributed, nn
from rn50lib.torch.gradient_sync import ddp_sync

class Layers(nn.ModuleList):
    def forward(self, x):
        for layer in self:
            x = layer(x)
        return x

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
images, ready = torch.ones(1024, 512), []
for way in ("eager", "compiled", "compiled for DDP"):
    torch.compiler.reset()  # or DDP's model runs the code that was compiled without it
    model = Layers(nn.Linear(512, 512) for _ in range(8))  # 1 MiB each: DDP's first bucket
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: ready.append(time.perf_counter()))
    trained = ddp_sync(model).model if "DDP" in way else model
    if way != "eager":
        model.compile(backend="aot_eager")  # in place as in TorchStep, but it writes no kernels
    shares = []
    for _ in range(5):
        loss = trained(images).sum()
        model.zero_grad()
        ready.clear()
        begin = time.perf_counter()
        loss.backward()
        shares.append((ready[0] - begin) / (time.perf_counter() - begin))
    print(sorted(shares)[2])
distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_compiled_backward_pass_overlaps_with_ddp_alone() -> None:
    """So `best_comm` chooses DDP for a compiled run: Horovod's all-reduces start in these hooks."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST],
        env=clean_environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    eager, compiled, with_ddp = map(float, done.stdout.split())
    assert eager < 0.7 and with_ddp < 0.7 and compiled > 0.9


# --- memory ---------------------------------------------------------------------------------------


# The process may take 1 GB more than it has, and the batch wants 2.4 as float32.
FULL = """
import resource
import numpy as np
from pathlib import Path
from tests.backends.test_precision import build
from rn50lib.errors import UserError
from rn50lib.data import Batch

step = build("torch", batch_size=4096)
has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
images = np.zeros((4096, 224, 224, 3), np.uint8)
resource.setrlimit(resource.RLIMIT_AS, (has + images.nbytes + 2**30,) * 2)
for act in (lambda b: step.train_step(b, 0.1), step.eval_step, lambda b: step.predict(b.images)):
    try:
        act(Batch(images, np.zeros(4096, np.int32), 4096))
    except UserError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.needs("torch", "linux_x86_64")
def test_out_of_memory_is_one_line(tmp_path: Path) -> None:
    """This is for PyTorch: TensorFlow itself crashes at a memory limit of the process."""
    (tmp_path / "full.py").write_text(FULL)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "full.py")],
        env=clean_environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    training, scoring, predicting = done.stdout.splitlines()
    assert training.startswith("--batch-size 4096: the device's memory is full: use -b 2048; with")
    assert scoring == predicting == "--batch-size 4096: the device's memory is full: use -b 2048"


# --- on a GPU -------------------------------------------------------------------------------------


@pytest.mark.needs("gpu", "torch")
class TestGpu:
    def test_float32_and_tf32_differ(self) -> None:
        """Compare a convolution with the same one in float64."""
        import torch
        from torch.nn import functional as F

        from rn50lib.torch.optimizer import set_precision

        if torch.cuda.get_device_capability() < (8, 0):
            return
        x, w = torch.randn(8, 256, 14, 14), torch.randn(256, 256, 3, 3)
        exact = F.conv2d(x.double(), w.double(), padding=1)
        errors = {}
        for dtype in ("tf32", "float32"):
            set_precision("cuda", dtype)
            made = F.conv2d(x.cuda(), w.cuda(), padding=1).cpu().double()
            errors[dtype] = ((made - exact).norm() / exact.norm()).item()
        assert errors["float32"] < 1e-6 < 1e-5 < errors["tf32"] < 1e-2

    def test_too_large_batch_is_reported(self) -> None:
        import torch

        free, _ = torch.cuda.mem_get_info()
        step = build("torch", batch_size=2048)
        taken = torch.empty(int(0.97 * free), dtype=torch.uint8, device="cuda")
        with pytest.raises(UserError, match="--batch-size .* is full: use -b 1024"):
            step.train_step(batch(2048, size=224), 0.1)
        del taken

    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
    @pytest.mark.parametrize("ways", [("cuda_graph",), ("fused",), ("cuda_graph", "fused")])
    def test_graph_and_fused_step_train_as_the_plain_one(
        self, ways: tuple[str, ...], dtype: str
    ) -> None:
        """Two shapes: the second one comes too seldom for a graph.

        At a low rate, so that eight steps hardly amplify a rounding: with noise of its size after
        every layer the updates differ by 0.01, 0.04 and 0.12, and without one step by 0.27.
        """
        fields: dict[str, Any] = {"dtype": dtype, "batch_size": 16}
        # at 2^16, the default, gradients are just below the largest number: one may skip, one not
        fields |= {"loss_scale": "dynamic:1024"} if dtype == "float16" else {}
        plain, fast = (
            build("torch", **fields),
            build("torch", **fields, **dict.fromkeys(ways, True)),
        )
        start, sums = trained(plain), {}
        for step in (plain, fast):
            for number in range(8):
                step.train_step(batch(16, seed=number), 1e-4 * (1 + number))
            step.train_step(batch(8, seed=9), 1e-4)
            sums[step] = step.pop_metrics()
        limit = {"float32": 0.05, "float16": 0.1, "bfloat16": 0.2}[dtype]
        for part in ("velocity/", ""):
            names = [name for name in start if name.startswith("velocity/") == bool(part)]
            before, one, other = (
                np.concatenate([arrays[name].ravel() for name in names])
                for arrays in (start, trained(plain), trained(fast))
            )
            assert np.linalg.norm(one - other) < limit * np.linalg.norm(one - before), part
        np.testing.assert_allclose(sums[fast][0], sums[plain][0], rtol=limit / 10)
        assert sums[fast][-1] == sums[plain][-1] == 8 * 16 + 8

    def test_predictions_by_a_graph_have_the_present_weights(self) -> None:
        plain, fast = build("torch"), build("torch", cuda_graph=True)
        images = batch(4).images
        for lr in (0.0, 0.01, 0.01):
            for step in (plain, fast):
                step.train_step(batch(8), lr)
                step.eval_step(batch(8))
            for _ in range(6):  # the later ones are replays
                found = fast.predict(images)
            np.testing.assert_allclose(found, plain.predict(images), atol=1e-3)

    @pytest.mark.acceptance
    def test_compiled_engine_gives_the_same_probabilities(self) -> None:
        plain, fast = build("torch"), build("torch", engine="compile", only_inference=True)
        images = batch(4).images
        np.testing.assert_allclose(fast.predict(images), plain.predict(images), atol=1e-3)


# --- without a GPU --------------------------------------------------------------------------------


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", ["cuda_graph", "fused"])
def test_a_way_for_gpus_is_refused_without_one(name: str, monkeypatch: Any) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=f"--set {name}=true: .*; leave it out"):
        build("torch", **{name: True})


@pytest.mark.needs("torch")
def test_a_prediction_is_captured_again_when_the_weights_change(monkeypatch: Any) -> None:
    """A stand-in for a graph repeats its first answer, as a graph keeps its weights."""
    from rn50lib.torch import graphs

    class Frozen:
        def __init__(self, function: Callable[..., Any], *rest: Any) -> None:
            self.function, self.answer = function, ()

        def __call__(self, *inputs: Any) -> Any:
            self.answer = self.answer or self.function(*inputs)
            return self.answer

    monkeypatch.setattr(graphs, "check", lambda device, config: None)
    monkeypatch.setattr(graphs, "Replayed", Frozen)
    plain, fast = build("torch"), build("torch", cuda_graph=True)
    images = batch(4).images
    for validates in (False, True):
        for step in (plain, fast):
            step.train_step(batch(8), 0.1)
            if validates:  # which makes a copy of the weights for predictions
                step.eval_step(batch(8))
        np.testing.assert_allclose(fast.predict(images), plain.predict(images), atol=1e-5)


@pytest.mark.needs("torch")
def test_a_step_that_cannot_be_captured_is_refused_with_the_cause(monkeypatch: Any) -> None:
    import torch

    from rn50lib.torch.graphs import GRAPH_WARM_UP, Replayed

    def capture(self: Replayed, inputs: Any) -> Any:
        try:
            raise RuntimeError("a copy waits for the device")
        finally:
            raise RuntimeError("the capture was invalidated")

    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(Replayed, "warm_up", lambda self, inputs: self.function(*inputs))
    monkeypatch.setattr(Replayed, "capture", capture)
    step = Replayed(lambda x: (x,))
    for _ in range(GRAPH_WARM_UP):
        step(torch.zeros(1))
    with pytest.raises(UserError) as caught:
        step(torch.zeros(1))
    message = "--set cuda_graph=true: RuntimeError: a copy waits for the device; leave it out"
    assert str(caught.value) == message


@pytest.mark.slow
@pytest.mark.needs("torch", "triton")
def test_kernels_of_ours_need_a_c_compiler(monkeypatch: Any, tmp_path: Path) -> None:
    import torch

    from rn50lib.torch import fused

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    config = build("torch", fused=False).config
    fused.check("cuda", config)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(UserError, match="--set fused=true: Triton needs a C compiler; leave it"):
        fused.check("cuda", config)


@pytest.mark.acceptance
@pytest.mark.needs("torch")
def test_an_engine_without_a_compiler_is_one_line(monkeypatch: Any, tmp_path: Path) -> None:
    import torch
    from torch._inductor import config

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # there, Triton compiles
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    step = build("torch", engine="compile", only_inference=True)
    with (
        config.patch({"cpp.cxx": (str(tmp_path / "no-compiler"),)}),
        pytest.raises(UserError, match="--engine compile: .*: leave the flag out"),
    ):
        step.predict(batch(4).images)


@pytest.mark.acceptance
@pytest.mark.needs("torch", "compiler")
def test_the_compiled_engine_gives_the_same_probabilities() -> None:
    plain, fast = build("torch"), build("torch", engine="compile", only_inference=True)
    images = batch(4).images
    np.testing.assert_allclose(fast.predict(images), plain.predict(images), atol=1e-4)
