"""What the recorders wrote down, judged: which changes are there, with the evidence in words.

A change is "seen", "missing", or "not seen" where what passed by does not decide it.
"""

from __future__ import annotations

import collections
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import PurePath
from typing import Any

import numpy as np

from workshop import output

SEEN, MISSING, NOT_SEEN = "seen", "missing", "not seen"
MARKS = {SEEN: "✓", MISSING: "✗", NOT_SEEN: "○"}
TITLES = {
    "start": "start, a device each",
    "share": "share the samples",
    "rate": "scale the learning rate",
    "average": "average the gradients",
    "alike": "start alike",
    "writes": "rank 0 writes",
}
CLOSE = 0.03  # a factor this near (relative) to N is N; float16 on the way costs 0.001
IGNORED = ("/dev/", "/proc/", "/sys/", "/.cache/", "/.config/", "/__pycache__/", "torchinductor")
BROADCASTS = ("broadcast", "DistributedDataParallel", "Broadcast")
EXCHANGES = (
    "allreduce",
    "all_reduce",
    "all_gather",
    "allgather",
    "reduce_scatter",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "DistributedGradientTape",
)


@dataclass(frozen=True)
class Row:
    """One change: its key in TITLES, seen, missing or not seen, and the evidence."""

    change: str
    status: str
    evidence: str


@dataclass(repr=False)
class Result:
    """What a script did on `np` ranks. `result["average"]` is a row; `unseen` says what the
    recorders could not look at; `output` holds the last lines that the script printed."""

    np: int
    steps: int
    rows: list[Row]
    unseen: list[str]
    script: str = ""
    launcher: str = ""
    why: str = ""
    output: list[str] = field(default_factory=list)

    def __getitem__(self, change: str) -> Row:
        return next(row for row in self.rows if row.change == change)

    @property
    def missing(self) -> list[str]:
        """The changes that are missing; empty where none is."""
        return [row.change for row in self.rows if row.status == MISSING]

    @property
    def heading(self) -> str:
        updates = f"{self.steps} update{'s' * (self.steps != 1)}"
        return f"{self.script} on {self.np} ranks ({self.launcher}), {updates} watched"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"missing": self.missing}

    def __str__(self) -> str:
        import shutil
        import textwrap

        width = max(60, min(100, shutil.get_terminal_size().columns))
        lines = [self.heading]
        for row in self.rows:
            head = f"{MARKS[row.status]} {TITLES[row.change]:24} {row.status:9} "
            lines += textwrap.wrap(row.evidence, width, initial_indent=head,
                                   subsequent_indent=" " * len(head))  # fmt: skip
        for note in self.unseen:
            lines += textwrap.wrap(note, width, initial_indent="Could not be seen: ",
                                   subsequent_indent="    ")  # fmt: skip
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [
            [f"{MARKS[row.status]} {TITLES[row.change]}", row.status, row.evidence]
            for row in self.rows
        ]
        table = output.table_html(rows, ["change", "", "what was seen"], self.heading)
        notes = "".join(f'<p class="dim">Could not be seen: {escape(n)}</p>' for n in self.unseen)
        return output.wrap(table + notes)


@dataclass
class Rank:
    """What one rank did."""

    starts: list[dict[str, Any]]
    updates: list[dict[str, Any]]
    files: set[str]


def judge(
    events: list[dict[str, Any]], single: list[dict[str, Any]], np: int, ended: bool
) -> Result:
    """The rows for what `np` ranks did; `single` is what the script did on one rank. `ended` says
    whether it has come to its own end."""
    ranks = by_rank(events)
    steps = min((len(rank.updates) for rank in ranks), default=0) if len(ranks) >= np else 0
    unseen = [e["error"] + f" (in {e['place']})" for e in events if e["kind"] == "trouble"][:3]
    found = {"start": start(ranks, np)}
    if found["start"][0] == MISSING:  # what they call reaches nobody else
        for update in (update for rank in ranks for update in rank.updates):
            update |= {"calls": {}, "sent": False}
    if steps:
        found |= {
            "share": share(ranks, by_rank(single), np, steps),
            "rate": rate(ranks, by_rank(single), np, steps),
            "average": average(ranks, np, steps),
            "alike": alike(ranks, steps),
        }
        unseen.append("whether each rank augments its samples with different random numbers")
        unseen.append("whether validation results are averaged over the ranks")
        unseen.append(f"whatever comes after the first {plural(steps, 'update')}, but for files")
    else:
        nothing = "no update of an optimizer of PyTorch, Keras or TensorFlow was seen on each rank"
        found |= dict.fromkeys(("share", "rate", "average", "alike"), (NOT_SEEN, nothing))
        if found["start"][0] == MISSING:
            found["start"] = (NOT_SEEN, found["start"][1])
    found["writes"] = writes(ranks, ended)
    if not ended:
        unseen.append("files that it would have written later: it was ended (--seconds S waits)")
    return Result(np, steps, [Row(change, *row) for change, row in found.items()], unseen)


def by_rank(events: list[dict[str, Any]]) -> list[Rank]:
    """The ranks in order; a process that never had a rank is left out."""
    found: dict[int, Rank] = {}
    for event in sorted(events, key=lambda e: e.get("step", -1)):
        if event["rank"] is None:
            continue
        rank = found.setdefault(event["rank"], Rank([], [], set()))
        if event["kind"] == "start":
            rank.starts.append(event)
        elif event["kind"] == "update":
            rank.updates.append(event)
        elif event["kind"] == "file":
            rank.files.add(event["path"])
    return [found[number] for number in sorted(found)]


def called(ranks: list[Rank], words: tuple[str, ...]) -> list[str]:
    """The names of the calls, on every rank, that hold one of `words`."""
    names = [{n for u in rank.updates[-1:] for n in u["calls"]} for rank in ranks]
    both = set.intersection(*names) if names else set()
    found = sorted(n for n in both if any(word in n for word in words))
    # what the script calls, rather than what that calls in turn
    return [name for name in found if not name.endswith("_") and "async" not in name] or found


def plural(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def start(ranks: list[Rank], np: int) -> tuple[str, str]:
    starts = [rank.starts[-1] for rank in ranks if rank.starts]
    if len(starts) < np:
        which = "no process" if not starts else f"only {len(starts)} of {np} processes"
        calls = "called hvd.init() or torch.distributed.init_process_group()"
        return MISSING, f"{which} {calls}: each trained by itself"
    sizes = sorted({s["size"] for s in starts})
    numbers = sorted(s["group_rank"] for s in starts)
    by = " and ".join(sorted({s["by"] for s in starts}))
    if sizes != [np] or numbers != list(range(np)):
        return MISSING, f"{by}: the ranks {numbers} in groups of {sizes}, where {np} were started"
    devices = [rank.updates[0]["device"] for rank in ranks if rank.updates]
    text = f"{by}: ranks 0 to {np - 1} of {np}"
    if all(device.startswith("cpu") for device in devices):
        return SEEN, f"{text}; on the CPU, where there is no device to take"
    if len(set(devices)) < len(devices):
        return MISSING, f"{text}, but several ranks on one device: {devices[0]}"
    return SEEN, f"{text}, each on a device of its own"


def share(ranks: list[Rank], alone: list[Rank], size: int, steps: int) -> tuple[str, str]:
    fed = [[u["inputs"] for u in rank.updates[:steps]] for rank in ranks]
    if not all(any(batches) for batches in fed):
        return NOT_SEEN, "what went into the model could not be looked at"
    if all(batches == fed[0] for batches in fed):
        samples = [row for batch in fed[0] for row in batch]
        if len(set(samples)) == 1:
            return NOT_SEEN, "all samples were one and the same, on every rank"
        return MISSING, f"every rank was fed the same {len(samples)} samples in the same order"
    drawn = [[u["indices"] for u in rank.updates[:steps]] for rank in ranks]
    known = all(all(batches) for batches in drawn)
    data = [rank.updates[steps - 1]["data"] for rank in ranks]
    equal = known and data[0]["sign"] and all(d["sign"] == data[0]["sign"] for d in data)
    # a script may also take only every second batch of a loader that goes through everything
    whole = known and all(d["planned"] == d["size"] and d["skipped"] < steps - 1 for d in data)
    if equal and whole:
        return MISSING, f"each rank goes through all {data[0]['size']} samples of the data"
    status, text = overlap(drawn if equal else fed)
    if equal or status != SEEN:
        return status, text
    if known and not whole and overlap(drawn)[0] == SEEN:
        return SEEN, f"{text}, by their indices in the data set"
    shards = [{tuple(shard) for u in rank.updates[:1] for shard in u["shards"]} for rank in ranks]
    if all(any(n == size and index == r for n, index in s) for r, s in enumerate(shards)):
        return SEEN, f"{text}; each rank took its own shard (Dataset.shard)"
    if unchanged(fed, alone):
        return SEEN, f"{text}; samples recur bit for bit, so none is changed at random"
    return NOT_SEEN, f"{text}, which random changes of each sample (augmentation) would explain too"


def overlap(batches: list[list[list[Any]]]) -> tuple[str, str]:
    """Return a status and how many samples several ranks had in common, given each rank's batches.

    An epoch may end among them, so only the first pass over the data is compared.
    """
    sets = [set(first_pass(rank)) for rank in batches]
    common = sum(count > 1 for count in collections.Counter(r for s in sets for r in s).values())
    smallest = min(len(first_pass(rank)) for rank in batches)
    text = f"{plural(smallest, 'sample')} on each rank, {common or 'none'} of them on another too"
    if 4 * common > smallest:
        return MISSING, f"{text}: the data were not shared out"
    if common > max(2, 0.02 * smallest):
        return NOT_SEEN, f"{text}: drawn at random by each rank?"
    return SEEN, text


def unchanged(fed: list[list[list[str]]], alone: list[Rank]) -> bool:
    """Return True if samples on every rank recur unchanged, so that no augmentation is at work.

    They recur in a second epoch, or in the run on one rank.
    """
    single = {row for rank in alone for update in rank.updates for row in update["inputs"]}
    for batches in fed:
        rows = [row for batch in batches for row in batch]
        again = len(rows) - len(set(rows))
        if not again and 2 * len(single.intersection(rows)) < len(rows):
            return False
    return True


def first_pass(batches: list[list[Any]]) -> list[Any]:
    """The samples of a rank's batches up to the first one that it has seen before."""
    seen: list[Any] = []
    for batch in batches:
        if seen and set(batch) & set(seen):
            break
        seen += batch
    return seen


def rate(ranks: list[Rank], alone: list[Rank], size: int, steps: int) -> tuple[str, str]:
    rates = [[first(u["rates"]) for u in rank.updates[:steps]] for rank in ranks]
    if np.isnan(rates).any():
        return NOT_SEEN, "the optimizer did not show its learning rate"
    if not np.allclose(rates, rates[0], rtol=1e-4):
        return MISSING, f"another learning rate on each rank: {', '.join(map(shown, rates))}"
    group = f"{shown(rates[0])} on {size} ranks"
    if not alone or not alone[0].updates:
        return NOT_SEEN, f"{group}; it was not run on one rank, to compare"
    single = [first(u["rates"]) for u in alone[0].updates[:steps]]
    text = f"{group}, {shown(single)} on one"
    top, one = max(rates[0]), max(single)
    peaks = [rank.updates[0]["peak"] for rank in (ranks[0], alone[0])]
    if all(peaks):
        top, one = peaks
        if any(map(is_rising, (rates[0], single))):
            text += f", on the way to {top:.4g} and {one:.4g} (warm-up)"
    elif any(map(is_rising, (rates[0], single))):
        return NOT_SEEN, f"{text}: still rising (warm-up); the peak decides, and it was not reached"
    if not one:
        return NOT_SEEN, text
    if abs(top / one / size - 1) < CLOSE:
        return SEEN, f"{text}: {size} times as much"
    if top / one > 1 + CLOSE:
        return SEEN, f"{text}: {top / one:.2f} times as much"
    both = min(steps, len(single))
    batches = [
        sum(len(u["inputs"]) for rank in group for u in rank.updates[:both])
        for group in (ranks, alone)
    ]
    if batches[0] and batches[0] == batches[1]:
        return SEEN, f"{text}: rightly, as all ranks together took as many samples as one alone"
    text += ": not scaled"
    if all(batches):
        text += f", while each update took {batches[0] / batches[1]:.3g} times as many samples"
    if any(s["by"] == "Horovod" for rank in ranks for s in rank.starts):
        return MISSING, text
    return NOT_SEEN, f"{text}. Horovod's recipe scales it, DDP leaves that to you"


def is_rising(values: list[float]) -> bool:
    """Return True if a learning rate still rises at the end."""
    return len(values) > 1 and values[-1] == max(values) > 1.0001 * values[0]


def first(values: list[float]) -> float:
    """The learning rate of the first group of parameters that has one; NaN for none."""
    return next((value for value in values if value), values[0] if values else float("nan"))


def shown(values: list[float]) -> str:
    """A learning rate over some steps, in short."""
    if np.allclose(values, values[0], rtol=1e-4):
        return f"{values[0]:.4g}"
    return f"{values[0]:.4g} … {values[-1]:.4g}"


def average(ranks: list[Rank], size: int, steps: int) -> tuple[str, str]:
    if any(rank.updates[0]["sharded"] for rank in ranks):
        return NOT_SEEN, "each rank holds a part of the weights (FSDP): not compared"
    exchanges = called(ranks, EXCHANGES)
    by = f" ({', '.join(exchanges[:3])})" if exchanges else ""
    kinds = [compare(ranks, size, step) for step in range(steps)]
    if "averaged" in kinds:
        return SEEN, f"averaged{by}, in {kinds.count('averaged')} of {plural(steps, 'step')}"
    if "summed" in kinds:
        text = f"summed, not averaged{by}: {size} times the average went into the update"
        return MISSING, text + ", which is right only where the loss is divided by the ranks"
    if "scaled" in kinds:
        return SEEN, f"exchanged{by}; a part of the average went into the update (clipped?)"
    if "other" in kinds:
        return SEEN, f"exchanged{by}: the same on every rank, not a plain average"
    if "own" in kinds:
        text = "not exchanged: each rank updated with its own gradients"
        return MISSING, text + (f" although there was {', '.join(exchanges[:2])}" * bool(exchanges))
    if "same" in kinds and not exchanges:
        return MISSING, "not exchanged: they were alike only because every rank did the same work"
    if "same" in kinds:
        return SEEN, f"exchanged{by}; all ranks had the same gradients, so the average changes none"
    return NOT_SEEN, f"the gradients before the exchange could not be compared{by}"


def compare(ranks: list[Rank], size: int, step: int) -> str:
    """What became of the gradients in one step: averaged, summed, scaled, own (each rank's own),
    same (alike before and after), other (alike after), or nothing that can be told."""
    local, given = [], []
    every = [rank.updates[step] for rank in ranks]
    if len({len(u["given"]) for u in every}) != 1:
        return ""
    for index in range(len(every[0]["given"])):
        pairs = [(u["local"][index], u["given"][index]) for u in every]
        if all(a is not None and b is not None and len(a) == len(b) for a, b in pairs):
            local.append([a for a, _ in pairs])
            given.append([b for _, b in pairs])
    after = [u["given"] for u in every]
    if not local:
        alike = all(one == after[0] for one in after) and any(after[0])
        return "other" if alike and len({tuple(u["inputs"]) for u in every}) > 1 else ""
    before = np.concatenate([np.array(x, dtype=float) for x in local], axis=1)
    now = np.concatenate([np.array(x, dtype=float) for x in given], axis=1)
    if not (np.isfinite([before, now]).all() and now.any() and before.any()):
        return ""
    same_before, same_after = spread(before) < 1e-4, spread(now) < 1e-4
    mean = before.mean(axis=0)
    if not same_after:
        own = all(fit(now[r], before[r])[1] < 0.02 for r in range(len(ranks)))
        return "own" if own else ""
    factor, left = fit(now[0], mean)
    if left > 0.05:
        return "other" if not same_before else ""
    if abs(factor / size - 1) < CLOSE:
        return "summed"
    if abs(factor - 1) < CLOSE:
        return "same" if same_before else "averaged"
    return "" if same_before else "scaled"


def spread(vectors: Any) -> float:
    """How far rows are apart, relative to their size."""
    return float(np.abs(vectors - vectors[0]).max() / max(np.abs(vectors).max(), 1e-300))


def fit(vector: Any, to: Any) -> tuple[float, float]:
    """The factor with which `to` comes nearest to `vector`, and what is left then (0 to 1)."""
    factor = float(vector @ to / max(to @ to, 1e-300))
    left = float(np.linalg.norm(vector - factor * to))
    return factor, left / max(float(np.linalg.norm(vector)), 1e-300)


def alike(ranks: list[Rank], steps: int) -> tuple[str, str]:
    if any(rank.updates[0]["sharded"] for rank in ranks):
        return NOT_SEEN, "each rank holds a part of the weights (FSDP): not compared"
    same = [len({rank.updates[step]["hash"] for rank in ranks}) == 1 for step in range(steps)]
    sent = all(rank.updates[steps - 1]["sent"] for rank in ranks)
    calls = called(ranks, BROADCASTS)
    by = f" ({', '.join(calls[:3])})" if calls else ""
    text = "the weights were the same, bit for bit, at the first update"
    if same[0]:
        text += " and at the last" if same[-1] else f", apart by update {same.index(False) + 1}"
        if sent:
            return SEEN, text + by
        return NOT_SEEN, f"{text}; they were not broadcast, so equal seeds (or a file) did that"
    if any(same):
        when = same.index(True) + 1
        text = f"the weights differed at the first update and were the same from update {when} on"
        return SEEN, f"{text}{by}: with TensorFlow one broadcasts after the first step"
    text = "the weights differed at the first update and at the last"
    return MISSING, text + (f", although there was {', '.join(calls[:2])}" if calls else "")


def writes(ranks: list[Rank], ended: bool) -> tuple[str, str]:
    files = [{p for p in rank.files if not any(part in p for part in IGNORED)} for rank in ranks]
    counts = collections.Counter(path for one in files for path in one)
    several = sorted(path for path, count in counts.items() if count > 1)
    if several:
        text = f"{', '.join(several[:3])}{' and more' * (len(several) > 3)}"
        return MISSING, f"several ranks wrote {text}"
    if not counts:
        return NOT_SEEN, "nothing was written" + " while it was watched" * (not ended)
    parts = []
    for number, one in enumerate(files):
        if one:
            names = sorted(PurePath(path).name for path in one)
            parts.append(f"rank {number} wrote {', '.join(names[:3])}" + " …" * (len(names) > 3))
    return SEEN, "; ".join(parts) + "; no file was written by two ranks"
