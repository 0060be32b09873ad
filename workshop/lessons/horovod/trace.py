"""Where a training step's time goes, read from the timeline that Horovod writes.

    steps = timeline.steps(timeline.read("timeline.json"))
    timeline.mean_parts(steps)     # seconds: compute, negotiation, copies, all-reduce

`rn50 run --timeline FILE` makes Horovod write the file (its own HOROVOD_TIMELINE): on rank 0, for
every tensor, when it waited for the others, was copied and was reduced. All times here are seconds
on that file's clock. While the backward pass still runs, an exchange costs nothing that one could
see: it is hidden. From the moment that a step has nothing left but to wait, it is exposed.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rn50lib.distributed.horovod import waits_path
from rn50lib.errors import UserError

NEGOTIATION, COPY, ALLREDUCE = "negotiation", "copy", "allreduce"
COMPUTE = "compute"
PARTS = (COMPUTE, NEGOTIATION, COPY, ALLREDUCE)  # they add up to the step

_WIDTH = {"float16": 2, "bfloat16": 2, "float64": 8, "int64": 8, "uint8": 1, "int8": 1, "bool": 1}
_REDUCES = re.compile(r"(GLOO|NCCL|MPI|CCL|ADASUM|DDL)_\w*(ALLREDUCE|REDUCESCATTER|ALLGATHER)")


@dataclass(frozen=True)
class Exchange:
    """One tensor's way through one exchange: `announced` (the first rank had reported it), `begin`
    (all had), `end`, and inside, as (begin, end), the copies and the all-reduce proper; `bytes` of
    it.
    """

    tensor: str
    announced: float
    begin: float
    end: float
    copies: tuple[tuple[float, float], ...]
    reduces: tuple[tuple[float, float], ...]
    bytes: int


@dataclass(frozen=True)
class Timeline:
    """A file that was read. `start` is the Unix time of its zero, None where the file does not say;
    `others` are the times at which something else than an all-reduce ended, such as a broadcast."""

    path: Path
    start: float | None
    exchanges: tuple[Exchange, ...]
    others: tuple[float, ...]


@dataclass(frozen=True)
class TimedStep:
    """One training step, from the end of the exchange before to the end of its own.

    From `wait` on it did nothing but wait. `parts` are the seconds of PARTS, which add up to
    `end - begin`; `hidden` are the seconds of NEGOTIATION, COPY and ALLREDUCE that went on while
    it still computed: they are within `parts[COMPUTE]`.
    """

    number: int
    begin: float
    wait: float
    end: float
    exchanges: tuple[Exchange, ...]
    parts: dict[str, float] = field(default_factory=dict)
    hidden: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.end - self.begin


# --- reading --------------------------------------------------------------------------------------


def read(path: str | Path) -> Timeline:
    """Read a timeline file, also one whose end was cut off when the run was killed.

    Raises UserError where it is not a timeline or shows no all-reduce.
    """
    path = Path(path)
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise UserError(f"{path}: the timeline cannot be read ({error.strerror})") from error
    names: dict[int, str] = {}
    start: float | None = None
    stacks: dict[int, list[tuple[str, float]]] = defaultdict(list)
    open_exchanges: dict[int, dict[str, Any]] = defaultdict(lambda: {"copies": [], "reduces": []})
    exchanges: list[Exchange] = []
    others: list[float] = []
    for event in _events(text, path):
        kind, tensor = event.get("ph"), event.get("pid", -1)
        if kind == "M":
            details = event.get("args", {})
            names[tensor] = details.get("name", names.get(tensor, str(tensor)))
            if "start_time_since_epoch_in_micros" in details:
                start = details["start_time_since_epoch_in_micros"] / 1e6
        elif kind == "B":
            stacks[tensor].append((event.get("name", ""), event["ts"] / 1e6))
        elif kind == "E" and stacks[tensor]:
            name, begin = stacks[tensor].pop()
            end = event["ts"] / 1e6
            found = open_exchanges[tensor]
            if name.startswith("NEGOTIATE_"):
                found["announced"] = begin
            elif name.startswith("MEMCPY_"):
                found["copies"].append((begin, end))
            elif _REDUCES.match(name):
                found["reduces"].append((begin, end))
            elif not stacks[tensor]:  # the outermost: this exchange is complete
                del open_exchanges[tensor]
                if name == "ALLREDUCE":
                    exchanges.append(
                        Exchange(
                            names.get(tensor, str(tensor)), found.get("announced", begin),
                            begin, end, tuple(found["copies"]), tuple(found["reduces"]),
                            _size(event.get("args", {})),
                        )
                    )  # fmt: skip
                else:
                    others.append(end)
    if not exchanges:
        raise UserError(
            f"{path}: no all-reduce in this timeline; it takes a run of at least two workers with"
            " --comm horovod (-n 2)"
        )
    return Timeline(path, start, tuple(sorted(exchanges, key=lambda x: x.end)), tuple(others))


def _events(text: str, path: Path) -> Iterator[dict[str, Any]]:
    """The events of the file; of one that is cut off, those before the cut."""
    try:
        whole = json.loads(text)
        if isinstance(whole, list):
            yield from whole
            return
    except ValueError:
        pass
    if not text.lstrip().startswith("["):
        raise UserError(f"{path} is not a timeline: it does not begin with a JSON list")
    decoder, at = json.JSONDecoder(), text.index("[") + 1
    while True:
        while at < len(text) and text[at] in ", \t\r\n":
            at += 1
        try:
            event, at = decoder.raw_decode(text, at)
        except ValueError:
            return
        yield event


def _size(args: dict[str, Any]) -> int:
    """Bytes of a tensor from its dtype and shape, such as "float32" and "[64, 3, 7, 7]"."""
    numbers = [int(n) for n in re.findall(r"\d+", str(args.get("shape", "")))]
    return int(np.prod(numbers, dtype=np.int64)) * _WIDTH.get(args.get("dtype", ""), 4)


# --- steps ----------------------------------------------------------------------------------------


def steps(timeline: Timeline, waits: Sequence[tuple[float, float]] = ()) -> list[TimedStep]:
    """The training steps of a timeline that can be told apart, in order.

    Every gradient is reduced once per step, so the k-th reduction of every gradient makes up step
    k; what is reduced less often, such as an epoch's metrics, is no gradient. The first step has
    no beginning here and is left out, and so is one before whose end something else was exchanged:
    validation or the start-up is in its time. `waits` are rank 0's own marks as `read_waits` gives
    them. Without them a step counts as waiting from the moment that Horovod took up its last
    gradient, which is a guess: its thread looks once a cycle, and another rank may have been first.
    """
    counts = Counter(exchange.tensor for exchange in timeline.exchanges)
    most = max(counts.values())
    least = most - 1 if most > 3 else most  # a run that was killed can lack some of its last step
    gradients = {tensor for tensor, count in counts.items() if count >= least}
    seen: Counter[str] = Counter()
    rounds: dict[int, list[Exchange]] = defaultdict(list)
    others = list(timeline.others)
    for exchange in timeline.exchanges:
        if exchange.tensor in gradients:
            rounds[seen[exchange.tensor]].append(exchange)
            seen[exchange.tensor] += 1
        else:
            others.append(exchange.end)
    complete = [rounds[k] for k in sorted(rounds) if len(rounds[k]) == len(gradients)]
    times = np.sort(np.asarray(others))
    marks = np.asarray(waits, np.float64).reshape(-1, 2) - (timeline.start or 0.0)
    found = []
    for number, (before, own) in enumerate(zip(complete, complete[1:], strict=False), start=1):
        begin, end = max(x.end for x in before), max(x.end for x in own)
        wait = max(x.announced for x in own)
        inside = marks[(marks[:, 0] > begin) & (marks[:, 0] < end)]
        if len(inside):
            wait = float(inside[-1, 0])
        if np.searchsorted(times, begin) < np.searchsorted(times, end):
            continue
        found.append(_step(number, begin, min(max(wait, begin), end), end, own))
    return found


def _step(number: int, begin: float, wait: float, end: float, own: Sequence[Exchange]) -> TimedStep:
    """A step with its seconds by part."""
    doing = {
        ALLREDUCE: [span for x in own for span in x.reduces],
        COPY: [span for x in own for span in x.copies],
        NEGOTIATION: [(x.announced, x.end) for x in own],
    }
    exposed = _exclusive(doing, wait, end)
    # what is left of the wait: the last gradient is done, or the next cycle has not begun yet
    exposed[NEGOTIATION] += (end - wait) - sum(exposed.values())
    return TimedStep(
        number, begin, wait, end, tuple(own),
        {COMPUTE: wait - begin, **{part: exposed[part] for part in PARTS[1:]}},
        _exclusive(doing, begin, wait),
    )  # fmt: skip


def _exclusive(
    doing: dict[str, list[tuple[float, float]]], begin: float, end: float
) -> dict[str, float]:
    """Seconds between `begin` and `end` by what was done; at any moment the first named counts."""
    seconds, covered, before = {}, [], 0.0
    for name, spans in doing.items():
        covered += spans
        total = length(covered, begin, end)
        seconds[name], before = total - before, total
    return seconds


def length(spans: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Seconds between `begin` and `end` that at least one of the spans covers."""
    return float(sum(b - a for a, b in union(spans, begin, end)))


def union(
    spans: Sequence[tuple[float, float]], begin: float, end: float
) -> list[tuple[float, float]]:
    """The spans, cut to `begin` … `end`, with overlapping ones joined, in order."""
    joined: list[tuple[float, float]] = []
    for a, b in sorted((max(a, begin), min(b, end)) for a, b in spans):
        if a >= b:
            continue
        if joined and a <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(b, joined[-1][1]))
        else:
            joined.append((a, b))
    return joined


def mean_parts(found: Sequence[TimedStep]) -> dict[str, float]:
    """Mean seconds per step of PARTS, then `hidden`: the exchange beneath the computation.

    The first four add up to the mean step. Raises UserError where there is no step.
    """
    if not found:
        raise UserError("the timeline shows no whole training step: run at least three steps")
    parts = {part: float(np.mean([step.parts[part] for step in found])) for part in PARTS}
    return parts | {"hidden": float(np.mean([sum(step.hidden.values()) for step in found]))}


def groups(step: TimedStep) -> list[list[Exchange]]:
    """The tensors of a step by the all-reduce that took them: small ones are fused into one."""
    found: list[list[Exchange]] = []
    until = -1.0
    for exchange in sorted(step.exchanges, key=lambda x: x.begin):
        if found and exchange.begin < until:
            found[-1].append(exchange)
        else:
            found.append([exchange])
        until = max(until, exchange.end)
    return found


# --- the marks of the training loop ---------------------------------------------------------------


def read_waits(path: str | Path) -> list[tuple[float, float]]:
    """The marks that belong to the timeline at `path`, as Unix times; none where none were
    written. A last line that was cut off is left out."""
    try:
        lines = waits_path(path).read_text().splitlines(keepends=True)
    except OSError:
        return []
    pairs = (line.split() for line in lines if line.endswith("\n"))
    return [(float(pair[0]), float(pair[1])) for pair in pairs if len(pair) == 2]


def load(path: str | Path) -> list[TimedStep]:
    """The steps of a timeline file, with the marks beside it where there are any."""
    return steps(read(path), read_waits(path))
