"""The peer of our step and of our prediction: PyTorch or ONNX Runtime as a good user runs them.

    python benchmarks/peer_step.py predict FILE.pth --how frozen --batch 1

Started by steps.py, which says when to work. From a batch of uint8 NHWC images, which NumPy holds,
to class probabilities, which NumPy gets; or to weights that were updated once.
"""

from __future__ import annotations

import argparse
import io

import numpy as np
import peers
import stopwatch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("job", choices=("train", "predict"))
parser.add_argument("weights", help="a state dict")
parser.add_argument("--how", choices=("eager", "compile", "frozen", "jit", "onnx"), default="eager")
parser.add_argument("--contiguous", action="store_true", help="NCHW instead of channels_last")
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
parser.add_argument("--threads", type=int, default=torch.get_num_threads())
args = parser.parse_args()

torch.set_num_threads(args.threads)
dtype = getattr(torch, args.dtype)
layout = torch.contiguous_format if args.contiguous else torch.channels_last
model = peers.ResNet50()
model.load_state_dict(torch.load(args.weights, weights_only=True))
model = model.to(memory_format=layout)
rng = np.random.default_rng(0)
images = rng.integers(0, 256, (args.batch, args.size, args.size, 3), np.uint8)
labels = torch.from_numpy(rng.integers(0, 1000, args.batch))


class Normalised(nn.Module):
    """The model from uint8 NHWC images on, as a user would export it."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype
        mean = torch.tensor([123.675, 116.28, 103.53]).view(1, 3, 1, 1)
        std = torch.tensor([58.395, 57.12, 57.375]).view(1, 3, 1, 1)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, images_NHWC: Tensor) -> Tensor:
        x = (images_NHWC.permute(0, 3, 1, 2).float() - self.mean) / self.std
        return self.model(x.to(self.dtype, memory_format=layout))


def predictor():
    """From uint8 images to probabilities, NumPy to NumPy."""
    whole = Normalised(model.to(dtype), dtype).eval()
    example = torch.from_numpy(images)
    if args.how == "onnx":
        import onnxruntime

        file = io.BytesIO()
        torch.onnx.export(whole, (example,), file, dynamo=False, input_names=["images"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = args.threads
        session = onnxruntime.InferenceSession(
            file.getvalue(), options, providers=["CPUExecutionProvider"]
        )

        def logits(images):
            return torch.from_numpy(session.run(None, {"images": images})[0])
    else:
        if args.how == "jit":
            traced = torch.jit.freeze(torch.jit.trace(whole, example))
            function = torch.jit.optimize_for_inference(traced)
        elif args.how == "eager":
            function = whole
        else:
            if args.how == "frozen":  # as PyTorch's manual advises for processors
                torch._inductor.config.freezing = True
            function = torch.compile(whole)

        def logits(images):
            return function(torch.from_numpy(images))

    @torch.inference_mode() if args.how != "frozen" else torch.no_grad()
    def predict():
        return logits(images).float().softmax(1).numpy()

    return predict


def trainer():
    """One step, from uint8 images to new weights; returns the loss."""
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True
    )
    whole = Normalised(model, torch.float32).train()

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bfloat16"):
            return F.cross_entropy(whole(images), labels)

    function = torch.compile(loss_of) if args.how == "compile" else loss_of

    def step():
        loss = function(torch.from_numpy(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


work = predictor() if args.job == "predict" else trainer()
for _ in range(3):  # compiling, and jit's profiling, take the first two calls
    result = work()
    if args.job == "train":
        answer = float(result)
        break
    answer = result[:4].tolist()
stopwatch.serve(work, answer)
