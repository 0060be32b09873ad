"""Our prediction or training step, and ResNet-50 as a good user of PyTorch runs it; in turns.

    python benchmarks/steps.py predict --batches 1 8 32 --dtypes float32 bfloat16
    python benchmarks/steps.py train --batches 16

From a batch of uint8 NHWC images in NumPy to class probabilities in NumPy, or to weights that were
updated once. The peers run torchvision's ResNet-50 in channels_last (ONNX Runtime in its own
layout). All have the same weights, images and threads, and the same setting of the allocator.
Before anything is timed their answers are compared: the probabilities, or the loss of the first
step. In training, "kernels" is no peer but a floor: see `floor`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
from pathlib import Path

import measure
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from rn50lib.config import ENGINES

PEERS = {
    "train": ["eager", "compile", "kernels"],
    "predict": ["eager", "compile", "ONNX Runtime", "OpenVINO"],
}
# how much answers may differ, as a share of the loss, or of the logits about their mean
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.1}
started: dict = {}  # in a contestant's process: its work


# --- the contestants: each function returns the work, a function of no arguments ------------------


def ours(args: argparse.Namespace, images: np.ndarray, numbers: np.ndarray):
    """Return the work of `rn50 run` and `rn50 predict`."""
    from rn50.autoconfig import resolve
    from rn50lib import checkpoint
    from rn50lib import distributed as comm
    from rn50lib.data import Batch
    from rn50lib.hardware import machine
    from rn50lib.run_setup import build_step

    asked = dict(
        loader="synthetic", backend="torch", image_shape=args.size, batch_size=len(images),
        dtype=args.dtype, threads=args.threads, num_classes=1000,
        only_inference=args.job == "predict",
    )  # fmt: skip
    config = resolve(asked, machine(), 1000).config
    net = config.to_network()
    step = build_step(config, net, comm.connect())
    arrays = checkpoint.load(args.weights, 0).arrays
    step.load({name: arrays[name] for name in net.arrays()})
    if args.job == "predict":
        return lambda: step.predict(images)
    batch = Batch(images, numbers, len(images))

    def train():
        step.train_step(batch, 0.01)
        return step.pop_metrics()[0] / len(images)

    return train


class Normalised(nn.Module):
    """ResNet-50 from uint8 NHWC images on, as a user would export it."""

    def __init__(self, weights: Path, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = resnet50(), dtype
        self.model.load_state_dict(torch.load(weights, weights_only=True))
        self.model.to(dtype, memory_format=torch.channels_last)
        self.register_buffer("mean", torch.tensor([123.675, 116.28, 103.53]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([58.395, 57.12, 57.375]).view(1, 3, 1, 1))

    def forward(self, images_NHWC: torch.Tensor) -> torch.Tensor:
        """Return the logits (N, 1000)."""
        x = (images_NHWC.permute(0, 3, 1, 2).float() - self.mean) / self.std
        return self.model(x.to(self.dtype, memory_format=torch.channels_last))


def resnet50() -> nn.Module:
    """Return torchvision's ResNet-50, which is v1.5."""
    return measure.import_torchvision().models.resnet50()


def predictor(args: argparse.Namespace, images: np.ndarray):
    """Return the prediction of PyTorch."""
    dtype = getattr(torch, args.dtype)
    whole = Normalised(args.weights, dtype).eval()
    compiled = args.name == "compile"
    if compiled:  # as PyTorch's manual advises for processors
        torch._inductor.config.freezing = True
    function = torch.compile(whole) if compiled else whole

    @torch.no_grad() if compiled else torch.inference_mode()
    def predict():
        return function(torch.from_numpy(images)).float().softmax(1).numpy()

    return predict


def onnx_predictor(args: argparse.Namespace, images: np.ndarray):
    """Return the prediction of ONNX Runtime or OpenVINO."""
    whole = Normalised(args.weights, torch.float32).eval()
    program = torch.onnx.export(whole, (torch.from_numpy(images),), dynamo=True, verbose=False,
                                input_names=["images"])  # fmt: skip
    content = program.model_proto.SerializeToString()
    if args.name == "OpenVINO":
        import openvino

        precision = "f32" if args.dtype == "float32" else "bf16"
        settings = {"INFERENCE_NUM_THREADS": args.threads, "PERFORMANCE_HINT": "LATENCY",
                    "INFERENCE_PRECISION_HINT": precision}  # fmt: skip
        core = openvino.Core()
        network = core.compile_model(core.read_model(content), "CPU", settings)
        return lambda: torch.from_numpy(network(images)[0]).softmax(1).numpy()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda: torch.from_numpy(session.run(None, {"images": images})[0]).softmax(1).numpy()


def trainer(args: argparse.Namespace, images: np.ndarray, numbers: np.ndarray):
    """Return a training step of PyTorch, which returns the loss."""
    whole = Normalised(args.weights, torch.float32).train()
    labels, half = torch.from_numpy(numbers), args.dtype == "bfloat16"
    optimizer = torch.optim.SGD(
        whole.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True
    )

    def loss_of(images: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return F.cross_entropy(whole(images), labels)

    function = torch.compile(loss_of) if args.name == "compile" else loss_of

    def step():
        loss = function(torch.from_numpy(images))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def floor(args: argparse.Namespace, images: np.ndarray):
    """Return what a training step cannot do without: its convolutions, memory traffic and update.

    Every convolution runs forward and backward, for its weights and (except the first) its input.
    Batch norm, ReLU and the addition, fused as far as possible, pass over each convolution's output
    eight times: read for the statistics, read and written to normalise, and on the way back two
    tensors read for the sums and again for the gradient, which is written. Four copies move as
    many bytes.
    """
    model, dtype = resnet50(), getattr(torch, args.dtype)
    kernels: list = []

    def note(conv: nn.Conv2d, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        x, weight, gradient = (
            t.detach().to(dtype, memory_format=torch.channels_last)
            for t in (inputs[0], conv.weight, torch.ones_like(output))
        )
        sizes = conv.stride, conv.padding, conv.dilation
        wanted = [len(kernels) > 0, True, False]

        def kernel() -> None:
            y = torch.convolution(x, weight, None, *sizes, False, (0, 0), 1)
            for _ in range(4):
                gradient.copy_(y)
            torch.ops.aten.convolution_backward(
                gradient, x, weight, None, *sizes, False, (0, 0), 1, wanted
            )

        kernels.append(kernel)

    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(note)
    with torch.no_grad():
        model(torch.from_numpy(images).permute(0, 3, 1, 2).float())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def step() -> float:
        with torch.no_grad():
            for kernel in kernels:
                kernel()
        optimizer.step()
        return float("nan")

    return step


def start(args: argparse.Namespace, name: str, weights: Path, batch: int, dtype: str):
    """Make the work of a contestant, for `turn`, in its process; return its first answer."""
    args.name, args.weights, args.dtype = name, weights, dtype
    torch.set_num_threads(args.threads)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (batch, args.size, args.size, 3), np.uint8)
    numbers = rng.integers(0, 1000, batch)
    if name == "ours":
        started["work"] = ours(args, images, numbers)
    elif name == "kernels":
        started["work"] = floor(args, images)
    elif args.job == "train":
        started["work"] = trainer(args, images, numbers)
    else:
        make = onnx_predictor if name in ("ONNX Runtime", "OpenVINO") else predictor
        started["work"] = make(args, images)
    return np.asarray(started["work"](), np.float64)


def turn(seconds: float, cpu: bool) -> float:
    """Return the seconds of one call, from as many as fill `seconds`."""
    # the first fetches into the caches what another contestant has pushed out of them
    calls = max(2, round(seconds / measure.timed(started["work"], cpu=False)))
    return measure.timed(started["work"], cpu, calls)


# --- the comparison -------------------------------------------------------------------------------


def make_weights(folder: Path, size: int) -> tuple[Path, Path]:
    """Make random weights with fitting statistics of batch norm.

    Returns a state dict for the peers, and the prefix of a checkpoint that `rn50 import` makes.
    """
    torch.manual_seed(0)
    model = resnet50()
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the mean of all batches so far
            if name.endswith("bn3"):  # as in a trained network, which amplifies no rounding
                nn.init.constant_(module.weight, 0.2)
    with torch.no_grad():
        model((torch.rand(8, 3, size, size) - 0.45) / 0.226)
    file, prefix = folder / "weights.pth", folder / "weights"
    torch.save(model.state_dict(), file)
    measure.output([sys.executable, "-m", "rn50", "import", "torchvision", file, "-o", prefix])
    return file, prefix


def check_agreement(wanted: np.ndarray, name: str, found: np.ndarray, dtype: str) -> None:
    """End the program if a contestant's answer is not ours."""
    if wanted.ndim:  # probabilities: the logits but for a constant
        wanted, found = (x - x.mean(-1, keepdims=True) for x in (np.log(wanted), np.log(found)))
    off = float(np.linalg.norm(wanted - found) / np.linalg.norm(wanted))
    if not off <= TOLERANCES[dtype]:
        sys.exit(f"error: {name}: its answers differ from ours by {off:.2g} of their size")


def compare(args: argparse.Namespace, weights: tuple[Path, Path], batch: int, dtype: str) -> None:
    """Compare one batch size in one precision."""
    from rn50lib.hardware import machine

    what = f"{args.job}, {args.size} px, batch {batch}, {dtype}, {args.threads} threads"
    if dtype == "bfloat16" and not machine().bfloat16:
        print(f"{what}: left out: this processor only emulates bfloat16")
        return
    print(what, flush=True)
    names = [*PEERS[args.job]]
    if dtype == "bfloat16":  # ONNX Runtime has no convolutions in bfloat16 for these processors
        names = [name for name in names if name != "ONNX Runtime"]
    names = ["ours", *measure.chosen(names, args)]
    answers, work = {}, {}
    with contextlib.ExitStack() as stack:
        for name in names:
            pool = stack.enter_context(measure.new_process())
            file = weights[name == "ours"]
            answers[name] = pool.submit(start, args, name, file, batch, dtype).result()
            if name != "kernels":
                check_agreement(answers["ours"], name, answers[name], dtype)
            work[name] = lambda pool=pool: pool.submit(turn, args.seconds, args.cpu).result()
        seconds = measure.run_rounds(work, args.rounds)
    measure.print_table(seconds, [("ours", name) for name in names[1:]], what, batch)


def main() -> None:
    """Run the comparison."""
    parser = measure.arguments(__doc__)
    parser.add_argument("job", choices=("train", "predict"))
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batches", type=int, nargs="+", help="default: 1 8 32, in training 16")
    parser.add_argument("--dtypes", nargs="+", choices=tuple(TOLERANCES), default=list(TOLERANCES))
    parser.add_argument("--threads", type=int, default=len(measure.CORES))
    parser.add_argument("--seconds", type=float, default=1.0, help="of work in each turn")
    parser.add_argument("--engine", choices=ENGINES, default="torch", help="of ours, in predict")
    parser.add_argument("--cpu", action="store_true", help="compare processor seconds")
    args = parser.parse_args()
    measure.set_environment(args.threads)
    batches = args.batches or ([1, 8, 32] if args.job == "predict" else [16])
    with tempfile.TemporaryDirectory() as folder:
        weights = make_weights(Path(folder), args.size)
        for batch, dtype in itertools.product(batches, args.dtypes):
            compare(args, weights, batch, dtype)


if __name__ == "__main__":
    main()
