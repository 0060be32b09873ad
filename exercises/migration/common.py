"""Shared by the five scripts: data, initial weights, and the output file.

The network: a 3 x 3 convolution with stride 2, ReLU, the mean over the image, a linear layer.
"""

import sys

import numpy as np

STEPS, BATCH, LR, MOMENTUM = 50, 16, 0.1, 0.9  # BATCH: the global batch

random = np.random.default_rng(0)
labels = random.integers(2, size=STEPS * BATCH)
images = random.normal(size=(STEPS * BATCH, 16, 16, 3)).astype(np.float32)  # N, H, W, C
images[labels == 1, :, :, 0] += 1  # class 1 is redder


def first_weights(rank):
    """Return rank 0's weights in TensorFlow's order (H, W, in, out); other ranks get zeros."""
    shapes = {"kernel": (3, 3, 3, 8), "bias": (8,), "matrix": (8, 2), "offset": (2,)}
    if rank:
        return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return {name: random.normal(size=s).astype(np.float32) / 4 for name, s in shapes.items()}


def batch(step, rank, size):
    """Return the images and labels of a rank's part of a step."""
    rows = slice(step * BATCH + rank * BATCH // size, step * BATCH + (rank + 1) * BATCH // size)
    return images[rows], labels[rows]


def save(**weights):
    """Write weights, in TensorFlow's order, to the file named on the command line."""
    np.savez(sys.argv[1], **weights)
    print({name: round(float(array.sum()), 4) for name, array in weights.items()})


def to_torch(weights):
    """Return weights as PyTorch orders them: (out, in, H, W) and (out, in)."""
    return {
        "0.weight": weights["kernel"].transpose(3, 2, 0, 1), "0.bias": weights["bias"],
        "4.weight": weights["matrix"].T, "4.bias": weights["offset"],
    }  # fmt: skip


def from_torch(state):
    """Return PyTorch's weights in TensorFlow's order."""
    kernel, bias, matrix, offset = (
        state[f"{n}.{kind}"] for n in (0, 4) for kind in ("weight", "bias")
    )
    return {
        "kernel": kernel.transpose(2, 3, 1, 0),
        "bias": bias,
        "matrix": matrix.T,
        "offset": offset,
    }
