"""One contestant of steps.py: our step or prediction, or that of a good user of PyTorch.

    python benchmarks/contestant_step.py predict FILE --how frozen --batch 1

From a batch of uint8 NHWC images in NumPy to class probabilities in NumPy, or to weights that were
updated once. FILE is a state dict, and for ours the prefix of a checkpoint.
"""

from __future__ import annotations

import argparse
import io

import numpy as np
import peers
import stopwatch
import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("job", choices=("train", "predict"))
parser.add_argument("weights")
parser.add_argument("--how", choices=("ours", "eager", "compile", "frozen", "onnx"))
parser.add_argument("--contiguous", action="store_true", help="NCHW instead of channels_last")
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
parser.add_argument("--threads", type=int, default=torch.get_num_threads())
args = parser.parse_args()

rng = np.random.default_rng(0)
images = rng.integers(0, 256, (args.batch, args.size, args.size, 3), np.uint8)
numbers = rng.integers(0, 1000, args.batch)


def ours():
    """Return the work of `rn50 run` and `rn50 predict`."""
    from rn50.autoconfig import resolve
    from rn50lib import checkpoint
    from rn50lib import distributed as comm
    from rn50lib.data import Batch
    from rn50lib.hardware import machine
    from rn50lib.train_step import build_step

    asked = dict(
        loader="synthetic", backend="torch", image_shape=args.size, batch_size=args.batch,
        dtype=args.dtype, threads=args.threads, num_classes=1000,
        only_inference=args.job == "predict",
    )  # fmt: skip
    config = resolve(asked, machine(), 1000).experiment
    net = config.to_network()
    step = build_step(config, net, comm.connect())
    arrays = checkpoint.load(args.weights, 0).arrays
    step.load({name: arrays[name] for name in net.arrays()})
    if args.job == "predict":
        return lambda: step.predict(images)
    batch = Batch(images, numbers, args.batch)

    def train():
        step.train_step(batch, 0.01)
        return step.pop_metrics()[0] / args.batch

    return train


class Normalised(nn.Module):
    """ResNet-50 from uint8 NHWC images on, as a user would export it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layout = torch.contiguous_format if args.contiguous else torch.channels_last
        self.model, self.dtype = peers.ResNet50(), dtype
        self.model.load_state_dict(torch.load(args.weights, weights_only=True))
        self.model.to(dtype, memory_format=self.layout)
        self.register_buffer("mean", torch.tensor([123.675, 116.28, 103.53]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([58.395, 57.12, 57.375]).view(1, 3, 1, 1))

    def forward(self, images_NHWC: torch.Tensor) -> torch.Tensor:
        """Return the logits (N, 1000)."""
        x = (images_NHWC.permute(0, 3, 1, 2).float() - self.mean) / self.std
        return self.model(x.to(self.dtype, memory_format=self.layout))


def predictor():
    """Return the prediction of PyTorch or ONNX Runtime."""
    whole = Normalised(getattr(torch, args.dtype)).eval()
    if args.how == "onnx":
        import onnxruntime

        file, options = io.BytesIO(), onnxruntime.SessionOptions()
        example = (torch.from_numpy(images),)
        torch.onnx.export(whole, example, file, dynamo=False, input_names=["images"])
        options.intra_op_num_threads = args.threads
        session = onnxruntime.InferenceSession(
            file.getvalue(), options, providers=["CPUExecutionProvider"]
        )
        return lambda: torch.from_numpy(session.run(None, {"images": images})[0]).softmax(1).numpy()
    if args.how == "frozen":  # as PyTorch's manual advises for processors
        torch._inductor.config.freezing = True
    function = whole if args.how == "eager" else torch.compile(whole)

    @torch.inference_mode() if args.how != "frozen" else torch.no_grad()
    def predict():
        return function(torch.from_numpy(images)).float().softmax(1).numpy()

    return predict


def trainer():
    """Return a training step of PyTorch, which returns the loss."""
    whole, labels = Normalised(torch.float32).train(), torch.from_numpy(numbers)
    optimizer = torch.optim.SGD(
        whole.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True
    )

    def loss_of(images: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bfloat16"):
            return F.cross_entropy(whole(images), labels)

    function = torch.compile(loss_of) if args.how == "compile" else loss_of

    def step():
        loss = function(torch.from_numpy(images))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


torch.set_num_threads(args.threads)
work = ours() if args.how == "ours" else predictor() if args.job == "predict" else trainer()
answer = work()
stopwatch.serve(work, answer[:4].tolist() if args.job == "predict" else answer)
