"""What notebook 06 measures with PyTorch; `workshop.worker` calls these functions in a process."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from rn50.diagnose.peak import matrix_product
from rn50.diagnose.peak import seconds as seconds_of
from rn50.predict import trained_as
from rn50lib import checkpoint
from rn50lib.config import TrainConfig
from rn50lib.data.decode import Pictures
from rn50lib.data.source import open_source
from rn50lib.errors import UserError
from rn50lib.recipe import MEAN, STD
from rn50lib.torch.amp import AUTOCAST
from rn50lib.torch.model import ResNet, load_arrays
from workshop.lessons.precision.gradients import FLOWING, HIGHEST, LOWEST, WEIGHTS, count
from workshop.lessons.precision.roofline import KINDS, REST
from workshop.pairs import random_step, step_seconds
from workshop.worker import tell, unpack

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")

# --- gradients ------------------------------------------------------------------------------------


def gradients(prefix: str, epoch: int) -> dict[str, Any]:
    """One training step of a checkpoint in float32: its loss, and its gradients counted by powers
    of two, by kind."""
    config = trained_as(prefix, epoch)
    torch.set_num_threads(config.threads)
    model = ResNet(config.to_network()).to(memory_format=torch.channels_last)
    load_arrays(model, checkpoint.load(prefix, epoch).arrays)
    counts = {kind: np.zeros(HIGHEST - LOWEST + 1, np.int64) for kind in (FLOWING, WEIGHTS)}

    def add(kind: str, gradient: torch.Tensor) -> None:
        counts[kind] += count(gradient.detach().numpy())

    def watch(module: torch.nn.Module, given: object, out: torch.Tensor) -> None:
        out.register_hook(lambda gradient: add(FLOWING, gradient))

    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    for module in convolutions:
        module.register_forward_hook(watch)
    images, labels = first_batch(config)
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    for module in convolutions:
        assert module.weight.grad is not None
        add(WEIGHTS, module.weight.grad)
    kinds = {kind: values.tolist() for kind, values in counts.items()}
    return {"kinds": kinds, "loss": loss.item()}


def first_batch(config: TrainConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of training pictures spread over the classes, cut and normalised as training does:
    float32 NCHW in channels_last memory, and int64 labels."""
    source = open_source(config.data_root, "train")
    pictures = Pictures(source, True, config)
    chosen = np.linspace(0, len(source) - 1, min(config.batch_size, len(source))).astype(int)
    pixels = np.stack([pictures.image(0, int(i)) for i in chosen])
    images = (torch.from_numpy(pixels).float() - torch.tensor(MEAN)) / torch.tensor(STD)
    labels = torch.from_numpy(np.asarray(source.labels)[chosen].astype(np.int64))
    return images.permute(0, 3, 1, 2), labels


# --- layers ---------------------------------------------------------------------------------------

COPIED = 2**30 if GPU else 2**28  # bytes: more than a cache holds
# by a part of an operation's name, the first that fits; an operation that calls others is
# counted without them
PARTS = (
    ("convolution", "convolution"), ("conv2d", "convolution"), ("batch_norm", "batch norm"),
    ("relu", "ReLU"), ("threshold", "ReLU"), ("clamp_min", "ReLU"),
    ("max_pool", "pooling"), ("mean", "pooling"), ("div", "pooling"),
    ("addmm", "last layer"), ("softmax", "last layer"), ("nll_loss", "last layer"),
    ("mm", "convolution"), ("linear", "convolution"), ("matmul", "convolution"),  # of 1 x 1
)  # fmt: skip
ADDITIONS = ("aten::add", "aten::add_")


def layers(config: dict[str, Any], dtypes: list[str], rounds: int) -> dict[str, Any]:
    """Training steps under PyTorch's profiler, the precisions in turns; the fields of `LayerTimes`
    but the experiment."""
    done = unpack(config)
    steps = {}
    for dtype in dtypes:
        tell(f"the network in {dtype} takes its first step")
        scale = "dynamic" if dtype == "float16" else None
        steps[dtype], batch = random_step(replace(done, dtype=dtype, loss_scale=scale))
        step_seconds(steps[dtype], batch)
    seconds: dict[str, list[float]] = {dtype: [] for dtype in dtypes}
    parts: dict[str, dict[str, list[float]]] = {
        dtype: {kind: [] for kind in (*KINDS, REST)} for dtype in dtypes
    }
    peaks: dict[str, list[float]] = {dtype: [] for dtype in dtypes}
    bandwidths = []
    for round_ in range(rounds + 1):  # the first one is left out
        for dtype in dtypes:
            tell(f"round {round_} of {rounds}, {dtype}")
            whole, by_kind = step_seconds(steps[dtype], batch), profiled(steps[dtype], batch)
            peak = matrix_product(DEVICE, AUTOCAST[dtype], turn_s=0.2)
            if round_:
                seconds[dtype].append(whole)
                peaks[dtype].append(peak)
                for kind, values in parts[dtype].items():
                    values.append(by_kind[kind])
        bandwidths.append(bandwidth())
    most = {dtype: max(values) for dtype, values in peaks.items()}
    return {"parts": parts, "steps": seconds, "peaks": most, "bandwidth": max(bandwidths)}


def profiled(step: Any, batch: Any) -> dict[str, float]:
    """Seconds of a training step by kind of layer."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if GPU:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        step_seconds(step, batch)
    found = dict.fromkeys((*KINDS, REST), 0.0)
    classes = step.net.num_classes
    for event in profile.key_averages(group_by_input_shape=True):
        if event.device_type != torch.autograd.DeviceType.CPU:
            continue  # a kernel, whose time stands with the operation that launched it too
        own = event.self_device_time_total if GPU else event.self_cpu_time_total
        found[part_of(event.key, event.input_shapes, classes)] += own / 1e6
    return found


def part_of(operation: str, shapes: Sequence[Sequence[int]], classes: int) -> str:
    """The kind of layer that an operation of the profiler belongs to, by its name and by what it
    reads: of all matrix products only those of the last layer have a side of `classes`."""
    if operation in ADDITIONS:
        return "addition"
    if operation == "aten::mm" and any(classes in shape for shape in shapes):
        return "last layer"
    if operation.startswith(("aten::", "autograd::")):
        for part, kind in PARTS:
            if part in operation:
                return kind
    return REST


def bandwidth() -> float:
    """Bytes per second, read and written, of a copy in memory."""
    source = torch.ones(COPIED // 4, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * COPIED / seconds_of(lambda: target.copy_(source), DEVICE, turn_s=0.1)


# --- memory ---------------------------------------------------------------------------------------


def memory(config: dict[str, Any], points: list[tuple[str, int]]) -> list[int]:
    """The most bytes that a training step had at once, for each (dtype, batch)."""
    done, found = unpack(config), []
    for dtype, batch in points:
        tell(f"a step in {dtype} with {batch} images")
        this = replace(done, dtype=dtype, batch_size=batch)
        found.append(on_gpu(this) if GPU else in_a_child(this))
    return found


def on_gpu(config: TrainConfig) -> int:
    """Bytes that were allocated at once, at most, in the second step: in the first one cuDNN tries
    its algorithms with all the memory that each of them would like."""
    gc.collect()  # the step before this one
    step, batch = random_step(config)
    step_seconds(step, batch)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step_seconds(step, batch)
    return int(torch.cuda.max_memory_allocated())


def in_a_child(config: TrainConfig) -> int:
    """Bytes that a copy of this process had in memory at once, at most.

    The copy spares the seconds of importing PyTorch again; no thread has computed here yet, so that
    it is safe to make one.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            step_seconds(*random_step(config))  # momentum is there from the beginning
            status = 0
        finally:
            os._exit(status)
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        raise UserError(f"the step in {config.dtype} with {config.batch_size} images did not end")
    return usage.ru_maxrss * 1024
