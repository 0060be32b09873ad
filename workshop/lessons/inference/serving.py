"""A checkpoint as a server: real requests, JPEG in and answer out, timed in a process of its own.

    found = measure(prefix, epoch, requests=200, loads=((0.5, 1), (1.2, 8)), seconds=5)

Single requests one after the other, batches of several sizes in turns, and loads: requests that
arrive at random, as many a second as the server can answer alone times a factor, and wait in a
queue. The clients are made up, the time that it takes to answer them is not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from rn50 import launch
from rn50.predict import trained_as
from workshop.lessons.inference.queueing import Served, Service, play, poisson
from workshop.worker import ask, tell

BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32)
PICTURES = 64  # that the requests are about, in turn
PATIENCE = 3  # times the length of a load, after which it ends
LIMIT_S = 15.0  # single requests, and turns of batches, take no longer than this


@dataclass(frozen=True)
class Load:
    """One load: requests, `rate` a second, answered in batches of up to `limit`."""

    rate: float
    limit: int
    served: Served


@dataclass(frozen=True)
class ServerTimes:
    """Seconds: of single requests, decoding and answer apart; of batches, by their size, in turns;
    and the loads."""

    decode: np.ndarray
    answer: np.ndarray
    batches: dict[int, list[float]]
    loads: tuple[Load, ...]

    @property
    def requests(self) -> np.ndarray:
        """Of single requests, as a whole."""
        return self.decode + self.answer

    @property
    def service(self) -> Service:
        """The median time of a batch by its size."""
        sizes = sorted(self.batches)
        return Service(sizes, [median(self.batches[size]) for size in sizes])


def measure(
    prefix: str | Path,
    epoch: int,
    requests: int,
    loads: Sequence[tuple[float, int]],
    seconds: float,
) -> ServerTimes:
    """Time a checkpoint's answers to validation pictures; a load lasts `seconds`, or longer where
    the server cannot keep up. Raises UserError when the checkpoint or its data cannot be used."""
    found = ask(
        "workshop.lessons.inference.serving:serve",
        launch.rank_environment(trained_as(prefix, epoch)), "requests are answered",
        prefix=str(prefix), epoch=epoch, requests=requests, seconds=seconds, loads=list(loads),
    )  # fmt: skip
    played = tuple(
        Load(item["rate"], item["limit"],
             Served(np.array(item["arrived"]), np.array(item["answered"]), tuple(item["batches"]),
                    item["busy"]))
        for item in found["loads"]
    )  # fmt: skip
    batches = {int(size): values for size, values in found["batches"].items()}
    return ServerTimes(np.array(found["decode"]), np.array(found["answer"]), batches, played)


def load_rows(loads: Sequence[Load], service: Service) -> list[list[object]]:
    """(requests per second, batch limit, p50 measured, played; p99 measured, played; requests at
    once; per cent of the time at work), latencies in milliseconds."""
    rows: list[list[object]] = []
    for load in loads:
        real, played = load.served, play(load.served.arrived, service, load.limit)
        rows.append([
            load.rate, load.limit,
            *(1000 * one.percentile(p) for p in (50, 99) for one in (real, played)),
            real.mean_batch, 100 * real.utilisation,
        ])  # fmt: skip
    return rows


# --- in the process that measures -----------------------------------------------------------------


class Server:
    """A checkpoint that answers, and pictures to ask it about."""

    def __init__(self, prefix: str, epoch: int) -> None:
        from rn50.predict import prepare
        from rn50lib import checkpoint
        from rn50lib import distributed as comm
        from rn50lib.data.source import open_source
        from rn50lib.train_step import build_step

        self.config, self.prepare = trained_as(prefix, epoch), prepare
        net = self.config.to_network()
        self.step = build_step(self.config, net, comm.connect())
        arrays = checkpoint.load(prefix, epoch).arrays
        self.step.load({name: arrays[name] for name in net.arrays()})
        self.pictures = open_source(self.config.data_root, "val")
        self.count = min(PICTURES, len(self.pictures))

    def answer(self, numbers: Sequence[int]) -> tuple[float, float]:
        """Seconds of decoding and of the answer for these requests as a batch."""
        begin = time.perf_counter()
        images = [self.prepare(self.pictures, i % self.count, self.config) for i in numbers]
        decoded = time.perf_counter()
        self.step.predict(np.stack(images))
        return decoded - begin, time.perf_counter() - decoded

    def load(self, arrived: np.ndarray, limit: int) -> dict[str, Any]:
        """Answer requests that arrive at these seconds from now on; a server that is far behind
        leaves the rest unanswered."""
        answered, batches, busy = list[float](), list[int](), 0.0
        begin = said = time.perf_counter()
        while len(answered) < len(arrived):
            first = len(answered)
            if (early := begin + arrived[first] - time.perf_counter()) > 0:
                time.sleep(early)
            now = time.perf_counter()
            there = int(np.searchsorted(arrived, now - begin, side="right")) - first
            count = max(1, min(limit, there))
            self.answer(range(first, first + count))
            end = time.perf_counter()
            busy += end - now
            batches.append(count)
            answered += [end - begin] * count
            if end - begin > PATIENCE * arrived[-1]:
                arrived = arrived[: len(answered)]
            if end - said > 2:
                said = end
                tell(f"{len(answered):,} of {len(arrived):,} requests of this load")
        return {"arrived": arrived.tolist(), "answered": answered, "batches": batches, "busy": busy}


def single(server: Server, requests: int) -> tuple[list[float], list[float]]:
    """Seconds of decoding and of the answer of requests that come one after the other."""
    found, begin = [], time.monotonic()
    for i in range(requests):
        found.append(server.answer([i]))
        if i % 50 == 0:
            tell(f"single request {i + 1} of {requests}")
        if time.monotonic() - begin > LIMIT_S:
            break
    return [decode for decode, _ in found], [answer for _, answer in found]


def serve(
    prefix: str, epoch: int, requests: int, seconds: float, loads: list[tuple[float, int]]
) -> dict[str, Any]:
    """Times everything; the numbers of `ServerTimes`."""
    server = Server(prefix, epoch)
    rounds = 9 if requests >= 100 else 2
    for size in BATCHES:  # the first time a size is seen, kernels are chosen for it
        tell(f"warming up with {size} at a time")
        server.answer(range(size))
        server.answer(range(size))
    decode, answer = single(server, requests)
    batches: dict[int, list[float]] = {size: [] for size in BATCHES}
    begin = time.monotonic()
    for round_ in range(rounds):
        tell(f"batches of {BATCHES[0]} to {BATCHES[-1]}, round {round_ + 1} of {rounds}")
        for size in BATCHES:
            batches[size].append(sum(server.answer(range(size))))
        if time.monotonic() - begin > LIMIT_S:
            break
    alone, found = 1 / median(batches[1]), []
    for place, (factor, limit) in enumerate(loads):
        rate = factor * alone
        tell(f"load {place + 1}: {rate:.0f} requests a second")
        arrived = poisson(rate, max(8, round(rate * seconds)), seed=place)
        found.append({"rate": rate, "limit": limit, **server.load(arrived, limit)})
    return {"decode": decode, "answer": answer, "batches": batches, "loads": found}
