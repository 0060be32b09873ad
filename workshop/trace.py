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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from rn50 import plot
from rn50lib.errors import UserError
from workshop import output

Span = tuple[float, float, str]  # begin and end in ms, and the kind

# The kinds and their colours: those of the ladder mean the same here. If several kinds run at a
# time, the instant counts for the first of them.
KINDS = {
    "convolution": plot.MEANING["compute"],
    "normalisation": "#cc79a7",
    "pointwise": "#56b4e9",
    "optimizer": "#009e73",
    "copy": "#f0e442",
    "other": "#999999",
    "exchange": plot.MEANING["communication"],
    "waiting": "#dddddd",
}
RULES = (  # the first that matches the name of a kernel, an operator or a range gives its kind
    ("exchange", r"nccl|gloo|horovod|c10d::|all_?reduce|^exchange$"),
    ("optimizer", r"^Optimizer\.|^update$|multi_tensor|fused_sgd|_foreach_"),
    ("waiting", r"DataLoader|^input$|Synchronize"),
    ("normalisation", r"batch_?norm|bn_[fb]w|native_norm|^_\w+_kernel$"),  # also rn50lib's fused
    ("pointwise", r"^triton_(poi|red|per)_"),  # torch.compile's, named after what is fused
    ("convolution", r"conv(?!ert)|cudnn|implicit|fprop|dgrad|wgrad|winograd|nchwtonhwc|nhwctonchw"),
    ("copy", r"memcpy|memset|copy_kernel|catarray|aten::(copy_|_to_copy|to|clone|contiguous)$"),
    ("pointwise", r"elementwise|aten::(relu|threshold_backward|clamp_min|add|sub|mul|div"
                  r"|sqrt|fill|zero)_?$"),
)  # fmt: skip
WHOLE = re.compile(r"DataLoader|^update$|^exchange$|Optimizer\.")  # with all that runs inside
RANGES = ("input", "forward", "backward", "exchange", "update")
ROUNDING = 0.01  # ms by which an event may end after the one around it
BROKEN = (EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError)
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
ON_HOST = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")


@dataclass
class Lane:
    """A row of the timeline: a thread or a GPU stream, what it ran, and the named ranges there."""

    name: str
    spans: list[Span]
    ranges: list[Span]


@dataclass
class Steps:
    """The traced steps, and what ran from the first one's start to the end of the last one's work.

    `steps` are their times on the host.
    """

    steps: list[tuple[float, float]]
    window: tuple[float, float]
    host: list[Lane]
    gpu: list[Lane]


def trace(
    file: str | PathLike, show: bool = True, of: str = "step", about: str = ""
) -> dict[str, float]:
    """Show a figure of one step and a table of all; return the milliseconds per step by kind.

    The figure is a timeline or, if one thread did all, the mean time of each kind in parts of the
    step; if the step has no parts, there is only the table.
    Without `show`, only return them. `of` is what the figure and the table call a step; the title
    begins with the kind `about`, or with the longest.
    They add up to the step. If the trace has GPU kernels, they are times of the GPU: what runs at
    the same time counts once, computation before copies and exchange, and `waiting` is what is
    left. Without kernels, they are the times of operators on the host, without those that they
    call; `waiting` is loading data, and `other` includes Python.

    Raises:
        UserError: The file is not a trace with the steps of torch.profiler.
    """
    found = read(Path(file))
    count, order = len(found.steps), list(KINDS)
    lanes, idle = (found.gpu, "waiting") if found.gpu else (found.host, "other")
    spans = [span for lane in lanes for span in lane.spans]
    spans.sort(key=lambda span: -order.index(span[2]))
    timeline = painted([(*found.window, idle), *spans])
    ms = {kind: total(timeline, kind) / count for kind in KINDS}
    if not show:
        return ms
    exchange = total(painted([span for span in spans if span[2] == "exchange"])) / count
    if figure := draw(found, timeline, ms, of, about):
        output.Slot().update(figure)
    whole = sum(ms.values())
    where = "GPU" if found.gpu else "processor"
    longest = sorted(ms.items(), key=lambda item: -item[1])
    rows = [[kind, spent, round(100 * spent / whole, 1)] for kind, spent in longest]
    rows = [row for row in rows if row[2]]  # what rounds to 0% is left out
    output.table(
        [*rows, [f"the {of}", whole, 100.0]],
        ["kind", f"ms per {of}", "%"],
        f"Time of the {where}, mean of {count} {of}{'s' * (count != 1)}",
    )
    lines = []
    if (hidden := exchange - ms["exchange"]) > 0.001 * exchange > 0:
        lines.append(
            f"Exchange takes {short(exchange)} per {of}; {short(hidden)} of it is hidden behind"
            " other work and not in the table."
        )
    if found.gpu and found.host:
        during: dict[str, float] = defaultdict(float)
        for begin, end, name in found.host[0].ranges:
            during[name] += total(clipped(timeline, begin, end), "waiting") / count
        if parts := [f"{name} {short(spent)}" for name, spent in during.items() if spent > 0.01]:
            lines.append(f"The GPU waits while the host is in: {', '.join(parts)}.")
    if text := " ".join(lines):
        output.show(f"<p>{text}</p>", text)
    return ms


class Event(NamedTuple):
    """An event on a thread or a stream, in milliseconds."""

    name: str
    cat: str
    begin: float
    end: float
    lane: tuple[Any, Any]
    external: Any


def read(file: Path) -> Steps:
    """Return the steps of a trace. Raises UserError if the file has none."""
    try:
        data = file.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        trace = json.loads(data)
        events = [
            Event(
                str(e["name"]), e["cat"], e["ts"] / 1000, (e["ts"] + e.get("dur", 0)) / 1000,
                (e["pid"], e["tid"]), e.get("args", {}).get("External id"),
            )
            for e in trace["traceEvents"] if e.get("ph") == "X" and "cat" in e
        ]  # fmt: skip
    except (OSError, *BROKEN) as wrong:
        reason = wrong.strerror if isinstance(wrong, OSError) else "damaged, or not of its form"
        raise UserError(
            f"{file} is not a trace of torch.profiler ({reason}): write one with --trace"
        ) from None
    marks = [e for e in events if e.cat == "user_annotation" and e.name.startswith("ProfilerStep#")]
    if not marks:
        raise UserError(
            f"{file} has no steps of torch.profiler: it needs a schedule, profile.step() after each"
            " step, and an export in on_trace_ready, as in the scripts' --trace"
        )
    if trace.get("deviceProperties") and not any(e.cat in ON_GPU for e in events):
        print(f"{file.name} has no GPU kernels. If this ran on the GPU, the profiler cannot see"
              " them (as in some WSL2), and these are the times to start them.")  # fmt: skip
    marks.sort(key=lambda event: event.begin)
    main = marks[0].lane
    last = max(e.end for e in [*marks, *(e for e in events if e.cat in ON_GPU)])
    window = marks[0].begin, last
    ops = {e.external: e.name for e in events if e.cat == "cpu_op" and e.external is not None}
    if any("GraphLaunch" in e.name for e in events):
        ops = {}  # a graph's kernels have no operator, and CUPTI 13.0 may give a wrong one
    lanes: dict[Any, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda e: (e.begin, -e.end)):  # what is inside comes later
        lanes[event.lane].append(event)
    host: list[Lane] = []
    gpu: list[Lane] = []
    for key, members in sorted(lanes.items(), key=lambda item: (item[0] != main, str(item[0]))):
        spans = [
            (e.begin, e.end, kind_of(e.name) or kind_of(ops.get(e.external, "")) or "other")
            for e in members if e.cat in ON_GPU
        ]  # fmt: skip
        if spans:
            found, name = gpu, f"GPU {key[0]}, stream {key[1]}"
        else:
            members = [event for event in members if event.cat in ON_HOST]
            kind = thread(members)
            same = sum(lane.name.startswith(kind) for lane in host)
            found, name = host, "main thread" if key == main else f"{kind} {same + 1}"
            spans = host_spans(members)
        if spans := clipped(painted(spans), *window):
            # of nested ranges the inner one, so that no time is in two parts
            ranges = painted([(e.begin, e.end, e.name) for e in members if e.name in RANGES])
            found.append(Lane(name, spans, clipped(ranges, *window)))
    gpu.sort(key=lambda lane: -total(lane.spans))  # the busiest first
    return Steps([(mark.begin, mark.end) for mark in marks], window, host, gpu)


@functools.cache
def kind_of(name: str) -> str | None:
    """Return the kind of a kernel, an operator or a range; None if its name does not say it."""
    return next((kind for kind, rule in RULES if re.search(rule, name, re.IGNORECASE)), None)


def thread(events: Sequence[Event]) -> str:
    """Return the name of a host thread by what it does."""
    if any(kind_of(event.name) == "exchange" for event in events):
        return "exchange thread"
    return "autograd thread" if any("autograd" in e.name for e in events) else "another thread"


def host_spans(events: Sequence[Event]) -> list[Span]:
    """Return the kinds of the events of a thread, which are in the order of their start.

    An operator that has no kind takes that of the event around it, and a few ranges give theirs to
    everything inside.
    """
    spans: list[Span] = []
    stack: list[tuple[float, str | None, bool]] = []  # end, kind, and whether it is for all inside
    for event in events:
        while stack and stack[-1][0] <= event.begin:
            stack.pop()
        # a hook may begin a range, or a step, that ends after the event around the hook
        around = [outer for outer in stack if event.end <= outer[0] + ROUNDING]
        _, kind, whole = around[-1] if around else (0.0, None, False)
        if not whole or event.name in RANGES:  # the innermost range decides, if it has a kind
            kind = kind_of(event.name) or kind or ("other" if event.cat == "cpu_op" else None)
        if kind:
            spans.append((event.begin, event.end, kind))
        stack.append((event.end, kind, whole or bool(WHOLE.search(event.name))))
    return spans


def painted(spans: Sequence[Span]) -> list[Span]:
    """Return spans that do not overlap: each of those given covers the ones before it."""
    edges = sorted({time for span in spans for time in span[:2]})
    place = {time: i for i, time in enumerate(edges)}
    kinds = [""] * len(edges)  # from each edge to the next
    for begin, end, kind in spans:
        first, last = place[begin], place[end]
        kinds[first:last] = [kind] * (last - first)
    found: list[Span] = []
    for begin, end, kind in zip(edges, edges[1:], kinds, strict=False):
        if kind and found and found[-1][1:] == (begin, kind):
            found[-1] = (found[-1][0], end, kind)
        elif kind:
            found.append((begin, end, kind))
    return found


def clipped(spans: Iterable[Span], begin: float, end: float) -> list[Span]:
    """Return the parts of spans from `begin` to `end`."""
    return [(max(b, begin), min(e, end), kind) for b, e, kind in spans if e > begin and b < end]


def total(spans: Iterable[Span], kind: str = "") -> float:
    """Return the milliseconds of spans, of all or of one kind."""
    return sum(end - begin for begin, end, its in spans if kind in ("", its))


def draw(
    found: Steps, timeline: Sequence[Span], ms: Mapping[str, float], of: str, about: str
) -> dict[str, Any] | None:
    """Return the figure of a step as a display bundle, None for a step of one thread without parts.

    It is the step with the median exposed exchange, or, if the exchange takes under 1% of all the
    steps, with the median time; of one thread, the mean of all. `timeline` is what counts when,
    `ms` its mean per step.
    """
    import matplotlib.pyplot as plt

    rows, whole = [*found.host, *found.gpu], sum(ms.values())
    exchange = painted([span for lane in rows for span in lane.spans if span[2] == "exchange"])
    exchanges = total(exchange) > 0.01 * whole * len(found.steps)

    def exposed_and_length(step: tuple[float, float]) -> tuple[float, float]:
        exposed = total(clipped(timeline, *step), "exchange") if exchanges else 0.0
        return exposed, step[1] - step[0]

    begin, end = sorted(found.steps, key=exposed_and_length)[len(found.steps) // 2]
    length = end - begin
    order = sorted(ms, key=lambda kind: -ms[kind])
    first, second = sorted(order, key=lambda kind: kind != about)[:2]
    title = f"{first.capitalize()} takes {ms[first] / whole:.0%} of a {of}"
    title += f", {second} {ms[second] / whole:.0%}"
    lanes = [
        Lane(lane.name, clipped(lane.spans, begin, end), clipped(lane.ranges, begin, end))
        for lane in rows
    ]
    lanes = [lane for lane in lanes if total(lane.spans) > 0.001 * (end - begin)]
    exposed: list[Span] = []  # only the exchange runs
    which = f"in the {of} with the median time"
    if len(lanes) == 1 and not found.gpu:
        lanes, length = stacked(found, lanes[0].name, order, of), whole
        which = f"mean of {len(found.steps)} {of}{'s' * (len(found.steps) != 1)}"
        begin, end = 0.0, 1.02 * max(total(lane.spans) for lane in lanes)
    elif exchanges:
        exposed = [span for span in clipped(timeline, begin, end) if span[2] == "exchange"]
        spent_on_it = total(clipped(exchange, begin, end))
        title = f"Of {short(spent_on_it)} of exchange, {short(total(exposed))} are exposed"
        which = f"in the {of} with the median exposed time"
    if len(lanes) < 2 and not found.gpu:  # the table says it all
        return None
    texts, nothing = [], 1e-4 * length  # a residue of rounding is less
    with plot.style():
        fig, axes = plt.subplots(figsize=(9, 1.5 + 0.6 * len(lanes)))
        for row, lane in enumerate(lanes):
            spent = Counter({kind: total(lane.spans, kind) for kind in KINDS})
            for kind in +spent:
                bars = [(b - begin, e - b) for b, e, k in lane.spans if k == kind]
                axes.broken_barh(bars, (row - 0.2, 0.5), **look(kind))
            for b, e, name in lane.ranges:
                shade = "#dde6ee" if RANGES.index(name) % 2 else "#eeeeee"
                axes.broken_barh([(b - begin, e - b)], (row - 0.45, 0.8), facecolor=shade, zorder=0)
                room = (e - b) / (end - begin) / 0.0115  # in characters
                label = f"{name} {short(e - b)}" if len(name) + 8 < room else name
                if len(label) < room:
                    axes.text((b + e) / 2 - begin, row - 0.32, label, ha="center", va="center")
            top = [f"{kind} {short(time)}" for kind, time in spent.most_common(4) if time > nothing]
            texts.append(f"{lane.name}: {', '.join(top)}")
        band = {"fc": KINDS["exchange"], "alpha": 0.2, "zorder": 0, "label": "exposed"}
        wide = [span for span in exposed if total([span]) > 0.005 * (end - begin)]
        bands = [axes.axvspan(b - begin, e - begin, **band) for b, e, _ in wide]
        axes.set_yticks(range(len(lanes)), [lane.name for lane in lanes])
        axes.set(xlim=(0, end - begin), ylim=(len(lanes) - 0.45, -0.55), title=title)
        axes.set_xlabel(f"ms, {which}")
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.grid(visible=False, axis="y")
        least = 0.002 * (end - begin)  # a narrower bar is not visible, unless there are many
        every = [span for lane in lanes for span in lane.spans]
        broad = {kind for b, e, kind in every if e - b > least}
        shown = [kind for kind in KINDS if kind in broad or total(every, kind) > 5 * least]
        keys = [plt.Rectangle((0, 0), 1, 1, label=kind, **look(kind)) for kind in shown]
        keys += bands[:1]
        columns = len(keys) if len(keys) <= 6 else (len(keys) + 1) // 2
        fig.legend(handles=keys, ncols=columns, loc="outside lower left")
    return output.figure_bundle(fig, f"One {of} of {short(length)}. {'; '.join(texts)}.")


def stacked(found: Steps, thread: str, order: Sequence[str], of: str) -> list[Lane]:
    """Return the parts of a step: the mean time of each kind in it, one after the other."""
    (lane,) = (lane for lane in found.host if lane.name == thread)
    parts: dict[str, list[Span]] = defaultdict(list)
    for part in lane.ranges or [(begin, end, of) for begin, end in found.steps]:
        parts[part[2]].append(part)
    lanes, count = [], len(found.steps)
    for name, times in parts.items():
        inside = [span for begin, end, _ in times for span in clipped(lane.spans, begin, end)]
        spent = {kind: total(inside, kind) / count for kind in order}
        whole = total(times) / count
        spent["other"] += whole - sum(spent.values())  # Python, between the operators
        spans, now = [], 0.0
        for kind, ms in spent.items():
            spans.append((now, now + ms, kind))
            now += ms
        lanes.append(Lane(f"{name} {short(whole)}", spans, []))
    longest = max(total(lane.spans) for lane in lanes)
    return [lane for lane in lanes if total(lane.spans) > 0.005 * longest]


def look(kind: str) -> dict[str, Any]:
    """Return how bars of a kind are filled."""
    hatch = "///" if kind == "waiting" else ""
    return {"facecolor": KINDS[kind], "edgecolor": "#777777", "lw": 0, "hatch": hatch}


def short(ms: float) -> str:
    return f"{output.cell_text(float(ms))} ms"
