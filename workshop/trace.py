"""A timeline and a table of the time of a step, from a trace of torch.profiler.

The file is the Chrome trace of `profile.export_chrome_trace`; ui.perfetto.dev opens it too.
"""

from __future__ import annotations

import functools
import gzip
import json
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from workshop import output

Span = tuple[float, float, str]  # begin and end in ms, and the kind

# The kinds and their colours. If several run at a time, the instant counts for the first of them.
KINDS = {
    "convolution": "#0072b2",
    "normalisation": "#e69f00",
    "pointwise": "#56b4e9",
    "optimizer": "#009e73",
    "copy": "#f0e442",
    "other": "#999999",
    "exchange": "#d55e00",
    "waiting": "#dddddd",
}
RULES = (  # the first that matches the name of a kernel, an operator or a range gives its kind
    ("exchange", r"nccl|gloo|horovod|c10d::|all_?reduce|^exchange$"),
    ("optimizer", r"^Optimizer\.|^update$|multi_tensor|fused_sgd|_foreach_"),
    ("waiting", r"DataLoader|^input$|Synchronize"),
    ("normalisation", r"batch_?norm|bn_[fb]w|native_norm|^_\w+_kernel$"),  # also rn50lib's fused
    ("convolution", r"conv(?!ert)|cudnn|implicit|fprop|dgrad|wgrad|winograd|nchwtonhwc|nhwctonchw"),
    ("copy", r"memcpy|memset|copy_kernel|catarray|aten::(copy_|_to_copy|to|clone|contiguous)$"),
    ("pointwise", r"elementwise|triton_poi|aten::(relu|threshold_backward|clamp_min|add|sub|mul|div"
                  r"|sqrt|fill|zero)_?$"),
)  # fmt: skip
WHOLE = re.compile(r"DataLoader|^update$|^exchange$|Optimizer\.")  # with all that runs inside
RANGES = ("input", "forward", "backward", "exchange", "update")
BROKEN = (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError)
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
ON_HOST = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")


@dataclass
class Lane:
    """A row of the timeline: a thread or a GPU stream, what it ran, and the named ranges there."""

    name: str
    spans: list[Span] = field(default_factory=list)
    ranges: list[Span] = field(default_factory=list)


@dataclass
class Steps:
    """The traced steps: their spans on the host, and the lanes of the device that trains."""

    steps: list[tuple[float, float]]
    host: list[Lane]
    gpu: list[Lane]

    @property
    def window(self) -> tuple[float, float]:
        """The time from the start of the first step to the end of the last one's work."""
        ends = [span[1] for lane in self.gpu for span in lane.spans]
        return self.steps[0][0], max([self.steps[-1][1], *ends])

    def timeline(self) -> list[Span]:
        """Return what the device does at every instant of the window."""
        lanes, idle = (self.gpu, "waiting") if self.gpu else (self.host, "other")
        return occupied([span for lane in lanes for span in lane.spans], *self.window, idle)


def trace(file: str | PathLike, show: bool = True) -> dict[str, float]:
    """Show a timeline of one step and a table of all; return the milliseconds per step by kind.

    Without `show`, only return them.
    They add up to the step. If the trace has GPU kernels, they are times of the GPU: what runs at
    the same time counts once, computation before copies and exchange, and `waiting` is what is
    left. Without kernels, they are the times of operators on the host, without those that they
    call; `waiting` is loading data, and `other` includes Python.

    Raises:
        UserError: The file is not a trace with the steps of torch.profiler.
    """
    found = read(Path(file))
    (begin, end), steps, timeline = found.window, len(found.steps), found.timeline()
    ms = dict.fromkeys(KINDS, 0.0)
    for first, last, kind in timeline:
        ms[kind] += (last - first) / steps
    if not show:
        return ms
    output.Slot().update(draw(found))
    whole = (end - begin) / steps
    where = "GPU" if found.gpu else "processor"
    longest = sorted(ms.items(), key=lambda item: -item[1])
    rows = [[kind, spent, 100 * spent / whole] for kind, spent in longest if spent]
    output.table(
        [*rows, ["the step", whole, 100.0]],
        ["kind", "ms per step", "%"],
        f"Time of the {where}, mean of {steps} steps; the profiler adds some",
    )
    if text := remarks(found, timeline, ms, steps):
        output.show(f"<p>{text}</p>", text)
    return ms


def read(file: Path) -> Steps:
    """Return the steps of a trace. Raises UserError if the file has none."""
    try:
        data = file.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        events = json.loads(data)["traceEvents"]
        events = [Event.of(event) for event in events if event["ph"] == "X" and "cat" in event]
    except BROKEN as wrong:
        reason = wrong.strerror if isinstance(wrong, OSError) and wrong.strerror else str(wrong)
        raise UserError(
            f"{file} is not a Chrome trace ({reason or 'damaged'}): write one with --trace"
        ) from None
    marks = [e for e in events if e.cat == "user_annotation" and e.name.startswith("ProfilerStep#")]
    if not marks:
        raise UserError(
            f"{file} has no steps: the profiler needs a schedule, and profile.step() after each"
            " step, as in the scripts' --trace"
        )
    marks.sort(key=lambda event: event.begin)
    main = marks[0].lane
    ops = {e.external: e.name for e in events if e.cat == "cpu_op"}
    lanes: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        if event.cat in (*ON_GPU, *ON_HOST, "gpu_user_annotation"):
            lanes[event.lane].append(event)
    host, gpu = [], []
    for key, members in sorted(lanes.items(), key=lambda item: (item[0] != main, str(item[0]))):
        work = [e for e in members if e.cat in ON_GPU]
        ranges = [(e.begin, e.end, e.name) for e in members if e.name in RANGES]
        if work:
            for event in work:
                event.kind = kind_of(event.name) or kind_of(ops.get(event.external, "")) or "other"
            gpu.append(Lane(f"GPU {key[0]}, stream {key[1]}", innermost(work), ranges))
        elif spans := innermost([e for e in members if e.cat in ON_HOST], inherit=True):
            host.append(Lane("main thread" if key == main else thread(members), spans, ranges))
    gpu.sort(key=lambda lane: sum(begin - end for begin, end, _ in lane.spans))  # the busiest first
    steps = [(mark.begin, mark.end) for mark in marks]
    found = Steps(steps, host, gpu)
    for lane in [*host, *gpu]:
        lane.spans = clipped(lane.spans, *found.window)
    return Steps(steps, [lane for lane in host if lane.spans], [lane for lane in gpu if lane.spans])


@dataclass
class Event:
    """An event on a thread or a stream, in milliseconds."""

    name: str
    cat: str
    begin: float
    end: float
    lane: tuple[Any, Any]
    external: Any
    kind: str | None = None

    @classmethod
    def of(cls, event: dict[str, Any]) -> Event:
        """Return an event of the file, whose times are in microseconds."""
        begin = event["ts"] / 1000
        args = event.get("args", {})
        lane, name = (event["pid"], event["tid"]), str(event["name"])
        end = begin + event.get("dur", 0) / 1000
        return cls(name, event["cat"], begin, end, lane, args.get("External id"))


@functools.cache
def kind_of(name: str) -> str | None:
    """Return the kind of a kernel, an operator or a range; None if its name does not say it."""
    return next((kind for kind, rule in RULES if re.search(rule, name, re.IGNORECASE)), None)


def thread(events: Sequence[Event]) -> str:
    """Return the name of a host thread by what it does."""
    if any(kind_of(event.name) == "exchange" for event in events):
        return "exchange thread"
    return "autograd thread" if any("autograd" in e.name for e in events) else "another thread"


def innermost(events: Iterable[Event], inherit: bool = False) -> list[Span]:
    """Return the spans of one lane by its innermost events, which do not overlap.

    With `inherit`, the kinds are those of the host: an operator that has none takes that of the
    event around it, and a few ranges give theirs to everything inside.
    """
    spans: list[Span] = []
    stack: list[tuple[float, str | None, bool]] = []  # end, kind, and whether it is for all inside
    at = 0.0

    def until(time: float) -> None:
        nonlocal at
        while stack:
            end, kind, _ = stack[-1]
            stop = min(end, time)
            if kind and stop > at:
                if spans and spans[-1][1:] == (at, kind):
                    spans[-1] = (spans[-1][0], stop, kind)
                else:
                    spans.append((at, stop, kind))
            at = max(at, stop)
            if end > time:
                break
            stack.pop()
        at = time

    for event in sorted(events, key=lambda e: (e.begin, -e.end)):
        until(event.begin)
        kind, whole = event.kind, False
        if inherit:
            _, around, whole = stack[-1] if stack else (0.0, None, False)
            kind = around if whole else kind_of(event.name) or around
            if kind is None and event.cat == "cpu_op":
                kind = "other"
            whole = whole or bool(WHOLE.search(event.name))
        stack.append((event.end, kind, whole))
    until(float("inf"))
    return spans


def clipped(spans: Iterable[Span], begin: float, end: float) -> list[Span]:
    """Return the parts of spans from `begin` to `end`."""
    return [(max(b, begin), min(e, end), kind) for b, e, kind in spans if e > begin and b < end]


def occupied(spans: Sequence[Span], begin: float, end: float, idle: str) -> list[Span]:
    """Return the kind of every instant: the first of KINDS that runs, or `idle` if none does."""
    edges = [(b, 1, kind) for b, _, kind in spans] + [(e, -1, kind) for _, e, kind in spans]
    running: Counter[str] = Counter()
    found: list[Span] = []
    at = begin
    for time, change, kind in [*sorted(edges), (end, 0, idle)]:
        if time > at:
            found.append((at, time, next((k for k in KINDS if running[k]), idle)))
            at = time
        running[kind] += change
    return found


def remarks(found: Steps, timeline: list[Span], ms: dict[str, float], steps: int) -> str:
    """Return what the table does not show: hidden exchange, and what a waiting GPU waits for."""
    lines = []
    spans = [s for lane in found.gpu or found.host for s in lane.spans if s[2] == "exchange"]
    busy = occupied(spans, *found.window, "idle")
    whole = sum(e - b for b, e, kind in busy if kind == "exchange") / steps
    if (hidden := whole - ms["exchange"]) > 0.001 * whole > 0:
        lines.append(
            f"Exchange takes {short(whole)} per step; {short(hidden)} of it are hidden behind"
            " other work and not in the table."
        )
    if found.gpu and ms["waiting"]:
        gaps = [span for span in timeline if span[2] == "waiting"]
        during: dict[str, float] = defaultdict(float)
        for begin, end, name in found.host[0].ranges if found.host else []:
            during[name] += sum(e - b for b, e, _ in clipped(gaps, begin, end)) / steps
        parts = [f"{name} {short(spent)}" for name, spent in during.items() if spent > 0.01]
        if parts:
            lines.append(f"The GPU waits while the host is in: {', '.join(parts)}.")
    return " ".join(lines)


def draw(found: Steps) -> dict[str, Any]:
    """Return the timeline of the step with the median duration as a display bundle."""
    import matplotlib.pyplot as plt

    from rn50 import plot

    begin, end = sorted(found.steps, key=lambda step: step[1] - step[0])[len(found.steps) // 2]
    rows = [(lane, clipped(lane.spans, begin, end)) for lane in [*found.host, *found.gpu]]
    rows = [(lane, spans) for lane, spans in rows if spans]
    texts = []
    with plot.style():
        fig, axes = plt.subplots(figsize=(10, 1.3 + 0.75 * len(rows)))
        for row, (lane, spans) in enumerate(rows):
            spent: dict[str, float] = defaultdict(float)
            for b, e, kind in spans:
                spent[kind] += e - b
            for kind in spent:
                bars = [(b - begin, e - b) for b, e, k in spans if k == kind]
                hatch = {"hatch": "///", "edgecolor": "#777777"} if kind == "waiting" else {}
                axes.broken_barh(bars, (row - 0.2, 0.5), facecolor=KINDS[kind], lw=0, **hatch)
            for i, (b, e, name) in enumerate(clipped(lane.ranges, begin, end)):
                shade = "#eeeeee" if i % 2 else "#dde6ee"
                axes.broken_barh([(b - begin, e - b)], (row - 0.45, 0.8), facecolor=shade, zorder=0)
                if e - b > 0.07 * (end - begin):
                    axes.text((b + e) / 2 - begin, row - 0.32, f"{name} {short(e - b)}",
                              ha="center", va="center", fontsize="small")  # fmt: skip
            longest = sorted(spent.items(), key=lambda item: -item[1])[:3]
            top = ", ".join(f"{kind} {short(ms)}" for kind, ms in longest)
            texts.append(f"{lane.name}: {top}")
        axes.set_yticks(range(len(rows)), [lane.name for lane, _ in rows])
        axes.set(xlim=(0, end - begin), ylim=(len(rows) - 0.45, -0.55), xlabel="time (ms)")
        axes.set(title="One step by thread and stream; blank: nothing runs", axisbelow=True)
        keys = [plt.Rectangle((0, 0), 1, 1, fc=c, hatch="///" if k == "waiting" else None,
                              ec="#777777", lw=0, label=k) for k, c in KINDS.items()]  # fmt: skip
        fig.legend(handles=keys, ncols=8, fontsize="small", loc="outside lower center")
    alt = f"Timeline of a step of {short(end - begin)}; {'; '.join(texts)}."
    return output.figure_bundle(fig, alt)


def short(ms: float) -> str:
    return f"{output.cell_text(float(ms))} ms"
