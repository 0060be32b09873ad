"""A training step on n GPUs as a sum: compute, stragglers, what is left of the exchange, input.

    step = max(slowest compute + exposed exchange, input)

- compute: measured on one GPU, so the step of one GPU is exactly what was measured.
- stragglers: all wait for the slowest. With normally distributed step times of relative standard
  deviation `noise`, the slowest of n takes 1 + noise * E[max of n normals] of the mean.
- exchange: gradients are summed in buckets. A bucket starts when the slowest worker has its last
  gradient and the previous bucket is done; what ends after the backward pass is exposed. An
  all-reduce in one host is a ring; over several it is hierarchical: a reduce-scatter in each host,
  rings between the hosts, an all-gather in each host.
- input: the workers of a host share its loaders, so n of them get a batch each no faster than in
  n * batch / input_ips.

Backward takes 2/3 of the step and spreads over the layers as their multiply-adds do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rn50.scaling.links import START_S, Link
from rn50lib.errors import UserError
from rn50lib.resnet import Network, resnet

BACKWARD = 2 / 3  # each convolution once for its input and once for its weights, forward once
# bucket_cap_mb of PyTorch's DistributedDataParallel, without its smaller first bucket. It counts
# float32 gradients, which are compressed afterwards. Horovod fuses whatever is ready at each cycle;
# the same buckets stand for it.
BUCKET_NUMBERS = 25 * 2**20 // 4
IMAGENET = 1_281_167


class Bucket(NamedTuple):
    """Gradients that are summed together, complete after the share `ready` of a step's compute."""

    ready: float
    size: int  # bytes


@dataclass(frozen=True)
class Training:
    """The work of one GPU: a batch at `compute_ips` images per second, measured.

    `gradient_bytes` is the size of one number of a gradient as it is sent.
    """

    compute_ips: float
    batch: int
    gradient_bytes: int = 4
    network: Network = resnet()
    image_size: int = 224

    @property
    def compute_s(self) -> float:
        return self.batch / self.compute_ips

    @functools.cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """The gradients in the order in which backward makes them."""
        made, numbers, ready = [], 0, 1 - BACKWARD
        for ready, parameters in gradients(self.network, self.image_size):
            numbers += parameters
            if numbers >= BUCKET_NUMBERS:
                made.append(Bucket(ready, numbers * self.gradient_bytes))
                numbers = 0
        last = Bucket(ready, numbers * self.gradient_bytes)
        return (*made, last) if numbers else tuple(made)


@dataclass(frozen=True)
class Cluster:
    """The hosts: their GPUs, the links, and what lengthens a step."""

    local: Link
    between: Link | None = None
    gpus_per_host: int = 8
    input_ips: float | None = None  # of the loaders of one host; None: as many as needed
    overlap: bool = True  # of the exchange with the backward pass
    noise: float = 0.0  # standard deviation of a worker's step time over its mean
    start_s: float = START_S

    def split(self, n: int) -> tuple[int, int]:
        """Return (hosts, GPUs on each) of n GPUs. Raise UserError if they do not fill the hosts."""
        if n <= self.gpus_per_host:
            return 1, n
        size, other = self.gpus_per_host, "or a different --gpus-per-host"
        if n % size:
            raise UserError(
                f"--gpus {n} does not fill hosts of {size}: use a multiple of {size}, {other}"
            )
        if self.between is None:
            raise UserError(
                f"--gpus {n}: more than the {size} of one host need a network between hosts: use"
                f" --network nvlink+100g, {other}"
            )
        return n // size, size


@dataclass(frozen=True)
class PredictedStep:
    """A predicted step of n GPUs; its parts, in seconds, add up to `step_s`."""

    gpus: int
    hosts: int
    batch: int
    compute_s: float
    stragglers_s: float
    exposed_s: float
    input_wait_s: float

    @property
    def lost(self) -> dict[str, float]:
        """The seconds that one GPU alone would not take, by their reason."""
        return {"stragglers": self.stragglers_s, "exchange": self.exposed_s,
                "input": self.input_wait_s}  # fmt: skip

    @property
    def step_s(self) -> float:
        return self.compute_s + sum(self.lost.values())

    @property
    def ips(self) -> float:
        return self.gpus * self.batch / self.step_s

    @property
    def efficiency(self) -> float:
        """Speed over n times the measured speed of one GPU: 1 is perfect."""
        return self.compute_s / self.step_s

    def hours(self, epochs: float = 90, images: int = IMAGENET) -> float:
        """Return the hours of training on `epochs` times `images` images, without validation."""
        return epochs * images / self.ips / 3600

    @property
    def limit(self) -> str:
        """The reason of the largest loss; "compute" if that is under 1% of the step."""
        seconds, name = max((seconds, name) for name, seconds in self.lost.items())
        return name if seconds > 0.01 * self.step_s else "compute"


def predict(training: Training, cluster: Cluster, n: int) -> PredictedStep:
    """Return the step of n GPUs. Raise UserError if n does not fit the hosts."""
    hosts, on_host = cluster.split(n)
    alone = training.compute_s
    slowest = alone * (1 + cluster.noise * expected_max(n))
    end = 0.0  # of the bucket before
    for bucket in training.buckets:
        end = max(end, slowest * (bucket.ready if cluster.overlap else 1))
        end += all_reduce_s(cluster, n, bucket.size)
    end = max(end, slowest)
    fed = on_host * training.batch / cluster.input_ips if cluster.input_ips else 0.0
    return PredictedStep(
        gpus=n, hosts=hosts, batch=training.batch, compute_s=alone, stragglers_s=slowest - alone,
        exposed_s=end - slowest, input_wait_s=max(0.0, fed - end),
    )  # fmt: skip


def all_reduce_s(cluster: Cluster, n: int, size: float) -> float:
    """Return the seconds in which n GPUs sum `size` bytes."""
    hosts, on_host = cluster.split(n)
    local, between = cluster.local, cluster.between
    if n == 1:
        return 0.0
    if hosts == 1 or between is None:
        return cluster.start_s + ring_s(n, size, local)
    # The rings between hosts share one adapter and carry 1 / on_host of the data each: together
    # they take as long as one ring with all of it.
    return cluster.start_s + ring_s(on_host, size, local) + ring_s(hosts, size, between)


def ring_s(n: int, size: float, link: Link) -> float:
    """Return the seconds of a ring: 2 (n - 1) steps in which every worker sends size / n bytes."""
    return 2 * (n - 1) * (link.latency_s + size / n / link.bytes_per_s)


@functools.cache
def expected_max(n: int) -> float:
    """Return the expected largest of n standard normal numbers: 0 for 1, 1.42 for 8."""
    # the integral of [z > 0] - P(z)^n, with P the normal distribution function
    z = np.arange(-1000, 1001) / 100
    below = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in z])
    return float((np.heaviside(z, 0.5) - below**n).sum() / 100)


def gradients(network: Network, image_size: int) -> Iterator[tuple[float, int]]:
    """Yield (share of the compute before it is ready, size) of each gradient, last layer first."""
    layers = list(network.layers(image_size))
    total, passed = sum(layer.macs for layer in layers), 0
    for layer in reversed(layers):
        passed += layer.macs
        if layer.parameters:
            yield 1 - BACKWARD + BACKWARD * passed / total, layer.parameters
