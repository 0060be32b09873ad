"""The verdict on what the recorders wrote down: which changes were found, each with evidence.

A change is "seen", "missing", or "not seen" if the recording does not decide it.
"""

from __future__ import annotations

import collections
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any, NamedTuple

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
CLOSE = 0.03  # relative: a factor this near to N is N; float16 on the way costs 0.001
IGNORED = ("/dev/", "/proc/", "/.cache/", "/.config/", "pycache", "torchinductor", "__autograph")


class Row(NamedTuple):
    """One change: its key in TITLES, its status, and the evidence in words."""

    change: str
    status: str
    evidence: str


@dataclass(repr=False)
class Result:
    """The verdict on a script; `unseen` lists what could not be observed."""

    ranks: int
    steps: int
    rows: list[Row]
    unseen: list[str]
    script: str = ""
    launcher: str = ""

    def __getitem__(self, change: str) -> Row:
        return next(row for row in self.rows if row.change == change)

    @property
    def missing(self) -> list[str]:
        return [row.change for row in self.rows if row.status == MISSING]

    @property
    def passed(self) -> bool:
        return not self.missing

    @property
    def heading(self) -> str:
        updates = f"{self.steps} update{'s' * (self.steps != 1)}"
        return f"{self.script} on {self.ranks} ranks ({self.launcher}), {updates} watched"

    @property
    def cells(self) -> list[list[str]]:
        rows = [[f"{MARKS[r.status]} {TITLES[r.change]}", r.status, r.evidence] for r in self.rows]
        return rows + [["○ not observed", "", text] for text in self.unseen]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as `--json` writes it."""
        found = asdict(self) | {"missing": self.missing, "np": self.ranks}
        return found | {"rows": [row._asdict() for row in self.rows]}

    def __repr__(self) -> str:
        lines = [f"{title:25}  {status:8}  {text}" for title, status, text in self.cells]
        return "\n".join([self.heading, *lines])

    def _repr_html_(self) -> str:
        columns = ["change", "", "what was seen"]
        return output.wrap(output.table_html(self.cells, columns, self.heading))


class Rank:
    """The events of one rank; `first` holds the updates that are judged."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.starts = [event for event in events if event["kind"] == "start"]
        self.updates = [event for event in events if event["kind"] == "update"]
        self.files = {event["path"] for event in events if event["kind"] == "file"}
        self.reads = [event["path"] for event in events if event["kind"] == "read"]
        self.first = self.updates

    @property
    def rates(self) -> list[float]:
        """Return the learning rate of the first group of parameters whose rate is not 0."""
        return [next(filter(None, rates), 0.0) for rates in self.all("rates")]

    @property
    def by_horovod(self) -> bool:
        return any(start["by"] == "Horovod" for start in self.starts)

    def all(self, key: str) -> list[Any]:
        """Return a property of each judged update."""
        return [update.get(key) for update in self.first]


def by_rank(events: list[dict[str, Any]]) -> list[Rank]:
    """Return the ranks in order, without processes that never had a rank."""
    found = collections.defaultdict(list)
    for event in sorted(events, key=lambda e: e.get("step", -1)):
        if event["rank"] is not None:
            found[event["rank"]].append(event)
    return [Rank(found[number]) for number in sorted(found)]


def judge(
    events: list[dict[str, Any]],
    single: list[dict[str, Any]],
    reseeded: list[dict[str, Any]],
    size: int,
    ended: bool,
) -> Result:
    """Judge the events of `size` ranks.

    `single` are those of a run on one rank, `reseeded` of one with a different seed on each rank.

    `ended` is False if the script was stopped before its own end.
    """
    ranks, alone = by_rank(events), by_rank(single)
    steps = min((len(r.updates) for r in ranks), default=0) if len(ranks) >= size else 0
    for rank in ranks:
        rank.first = rank.updates[:steps]
    found = {"start": start(ranks, size)}
    if found["start"][0] == MISSING:  # the calls of a rank by itself reach no other rank
        for update in (update for rank in ranks for update in rank.updates):
            update |= {"calls": [], "sent": False}
    unseen = [event["error"] for event in events if event["kind"] == "trouble"][:3]
    if steps:
        found["share"] = share(ranks, alone)
        found["rate"] = rate(ranks, alone)
        found["average"] = average(ranks)
        found["alike"] = alike(ranks, by_rank(reseeded))
    else:
        nothing = NOT_SEEN, f"no update of an optimizer was seen on {size} ranks"
        found |= dict.fromkeys(("share", "rate", "average", "alike"), nothing)
    found["writes"] = writes(ranks, ended)
    return Result(size, steps, [Row(change, *row) for change, row in found.items()], unseen)


def start(ranks: list[Rank], size: int) -> tuple[str, str]:
    starts = [rank.starts[-1] for rank in ranks if rank.starts]
    if len(starts) < size:
        which = "no process" if not starts else f"only {len(starts)} of {size} processes"
        calls = "called hvd.init() or torch.distributed.init_process_group()"
        return MISSING, f"{which} {calls}: each trained by itself"
    sizes, numbers = {s["size"] for s in starts}, sorted(s["group_rank"] for s in starts)
    by = starts[0]["by"]
    if sizes != {size} or numbers != list(range(size)):
        return MISSING, f"{by}: ranks {numbers} in groups of {sorted(sizes)}, not {size} in one"
    devices = [rank.updates[0]["device"] for rank in ranks if rank.updates]
    text = f"{by}: ranks 0 to {size - 1} of {size}"
    if all(device.startswith("cpu") for device in devices):
        return SEEN, f"{text}, on the CPU"
    if len(set(devices)) < len(devices):
        return MISSING, f"{text}, but several ranks use one device: {devices[0]}"
    return SEEN, f"{text}, each on its own device"


def share(ranks: list[Rank], alone: list[Rank]) -> tuple[str, str]:
    """Compare the samples: their pixels, and their indices if a DataLoader reads them."""
    fed = [rank.all("inputs") for rank in ranks]
    if not all(any(batches) for batches in fed):
        return NOT_SEEN, "what went into the model could not be recorded"
    if all(batches == fed[0] for batches in fed):
        samples = [row for batch in fed[0] for row in batch]
        if len(set(samples)) == 1:
            return NOT_SEEN, "all samples were equal, on every rank"
        return MISSING, f"every rank was fed the same {len(samples)} samples in the same order"
    if found := planned(ranks, alone):
        return found
    status, text = overlap(fed)
    if status != SEEN:
        return status, text
    shards = [rank.first[0].get("shards", []) for rank in ranks]
    if all(
        any(shard[:2] == [len(ranks), number] for shard in taken)
        for number, taken in enumerate(shards)
    ):
        return SEEN, f"{text}; each rank took its own shard"
    whole = [{of for count, _, of in taken if count == 1 and of} for taken in shards]
    if whole[0] and all(read == whole[0] for read in whole):
        return MISSING, "every rank reads all of the data: its reader was given one shard of one"
    if all(len(rank.reads) > 8 for rank in ranks):
        status, files = overlap([[[path] for path in rank.reads] for rank in ranks])
        if status == SEEN:  # else a rank may have opened images that it does not train on
            return status, files.replace("samples", "files")
    if unchanged(fed, alone):
        return SEEN, f"{text}; samples recur unchanged, without augmentation"
    text += ", but augmentation changes pixels, so they may come from the same files"
    return (
        NOT_SEEN,
        f"{text}. To decide it, switch the augmentation off or use a DataLoader's sampler",
    )


def planned(ranks: list[Rank], alone: list[Rank]) -> tuple[str, str] | None:
    """Judge which indices of the data set each rank's DataLoader reads in its first epoch.

    Returns None if the data sets differ or if the script skips batches.
    """
    plans = [next(filter(None, rank.all("plan")), None) for rank in ranks]
    kinds = {(plan["data"], plan["size"]) for plan in plans if plan}
    if None in plans or len(kinds) > 1 or all(u["drawn"] > u["fed"] for u in ranks[-1].first):
        return None
    (_, size), read = kinds.pop(), [plan["indices"] for plan in plans if plan]
    smallest = min(len(set(indices)) for indices in read)
    common = sum(n > 1 for n in collections.Counter(i for r in read for i in set(r)).values())
    text = f"in an epoch each rank reads {smallest} of the {size} samples,"
    if common <= max(len(ranks), 0.02 * smallest):  # a few repeated ones fill the last batch
        return SEEN, f"{text} {common or 'none'} of them on another rank too"
    once = all(len(indices) == len(set(indices)) for indices in read)
    single = next((p["size"] for rank in alone for p in rank.all("plan") if p), None)
    if once and 4 * common > smallest:
        text += f" {common} of them on another rank too"
        if single == size:
            return MISSING, f"{text}: the ranks do not share them"
        return NOT_SEEN, f"{text}. A run on one rank decides it: leave out --no-single"
    return None


def overlap(batches: list[list[list[str]]]) -> tuple[str, str]:
    """Judge how many samples several ranks had in common in their first pass over the data."""
    passes = []
    for rank in batches:
        seen: set[str] = set()
        for batch in rank:
            if seen & set(batch):
                break
            seen |= set(batch)
        passes.append(seen)
    common = sum(n > 1 for n in collections.Counter(x for seen in passes for x in seen).values())
    smallest = min(map(len, passes))
    text = f"{smallest} samples on each rank, {common or 'none'} of them on another too"
    if 4 * common > smallest:
        return MISSING, f"{text}: the ranks do not share the data"
    if common > max(2, 0.02 * smallest):
        return NOT_SEEN, f"{text}: drawn at random by each rank?"
    return SEEN, text


def unchanged(fed: list[list[list[str]]], alone: list[Rank]) -> bool:
    """Return True if samples of each rank recur, in a later epoch or in the run on one rank."""
    single = {row for rank in alone for batch in rank.all("inputs") for row in batch}
    for batches in fed:
        rows = [row for batch in batches for row in batch]
        if len(rows) == len(set(rows)) and 2 * len(single.intersection(rows)) < len(rows):
            return False
    return True


def rate(ranks: list[Rank], alone: list[Rank]) -> tuple[str, str]:
    """Compare the largest learning rate with that of a run on one rank."""
    rates, size = [rank.rates for rank in ranks], len(ranks)
    if not np.allclose(rates, rates[0], rtol=1e-4):
        return MISSING, f"the learning rate differs between the ranks: {rates}"
    if not alone or not alone[0].first:
        return NOT_SEEN, f"{rates[0][0]:.4g} on {size} ranks; it was not run on one, to compare"
    single = alone[0].rates[: len(rates[0])]
    top, one = max(rates[0]), max(single)
    text = f"{top:.4g} on {size} ranks, {one:.4g} on one"
    rising = any(values[-1] == max(values) > 1.0001 * values[0] for values in (rates[0], single))
    if not one or rising:
        return NOT_SEEN, f"{text}: still rising, so its peak is not known"
    if (factor := top / one) > 1 + CLOSE:
        twice = factor > (1 + CLOSE) * size
        text += f": {factor:.3g} times as much{' with so few ranks: scaled twice?' * twice}"
        return MISSING if twice else SEEN, text
    together, by_one = (
        sum(len(batch) for rank in group for batch in rank.all("inputs")[: len(single)])
        for group in (ranks, alone)
    )
    if together and together == by_one:
        return SEEN, f"{text}: right, since an update takes as many samples as on one rank"
    more = together / max(1, by_one)
    text += f": not scaled, while each update took {more:.3g} times as many samples"
    if ranks[0].by_horovod:
        return MISSING, text
    return NOT_SEEN, f"{text}. Horovod's recipe scales it, DDP leaves that to you"


def average(ranks: list[Rank]) -> tuple[str, str]:
    names = [set(rank.first[-1]["calls"]) for rank in ranks]
    calls = sorted(set.intersection(*names))
    by = f" ({', '.join(calls[:2])})" if calls else ""
    kinds = [exchange(ranks, step) for step in range(len(ranks[0].first))]
    if "averaged" in kinds:
        return SEEN, f"averaged{by}, in {kinds.count('averaged')} of {len(kinds)} updates"
    if "summed" in kinds:
        text = f"summed, not averaged{by}: the update got {len(ranks)} times the average"
        return MISSING, f"{text}, which is right only if the loss is divided by the ranks"
    if "other" in kinds:
        return SEEN, f"exchanged{by}: equal on all ranks, and not a plain average (clipped?)"
    if "own" in kinds:
        text = "not exchanged: each rank updated with its own gradients"
        return MISSING, text + (f", although there was {', '.join(calls[:2])}" if calls else "")
    if "same" in kinds and not calls:
        return MISSING, "not exchanged: they were equal only because all ranks did the same work"
    if "same" in kinds:
        return SEEN, f"exchanged{by}; they were equal before, so an average changes nothing"
    return NOT_SEEN, f"the gradients before the exchange could not be compared{by}"


def exchange(ranks: list[Rank], step: int) -> str:
    """Return what happened to the gradients in an update.

    averaged, summed, own (each rank kept its own), same (equal before and after), other (equal
    after), or "" if that cannot be decided.
    """
    given, local = ([rank.first[step][key] for rank in ranks] for key in ("given", "local"))
    known = [
        index
        for index, tensors in enumerate(zip(*given, *local, strict=False))
        if all(numbers is not None for numbers in tensors)
    ]
    if not known:
        differ = len({tuple(rank.first[step]["inputs"]) for rank in ranks}) > 1
        return "other" if differ and any(given[0]) and all(g == given[0] for g in given) else ""
    before, now = (
        np.array([[x for index in known for x in rank[index]] for rank in side], dtype=float)
        for side in (local, given)
    )
    if not (np.isfinite([before, now]).all() and now.any() and before.any()):
        return ""
    if spread(now) > 1e-4:
        own = all(fit(mine, was)[1] < 0.02 for mine, was in zip(now, before, strict=True))
        return "own" if own else ""
    same = spread(before) < 1e-4
    factor, rest = fit(now[0], before.mean(axis=0))
    if rest < 0.05 and abs(factor / len(ranks) - 1) < CLOSE:
        return "summed"
    if rest < 0.05 and abs(factor - 1) < CLOSE:
        return "same" if same else "averaged"
    return "" if same else "other"


def spread(rows: Any) -> float:
    """Return how much rows differ, relative to their largest number."""
    return float(np.abs(rows - rows[0]).max() / max(np.abs(rows).max(), 1e-300))


def fit(vector: Any, to: Any) -> tuple[float, float]:
    """Return the factor that brings `to` nearest to `vector`, and the rest (0 to 1)."""
    factor = float(vector @ to / max(to @ to, 1e-300))
    rest = np.linalg.norm(vector - factor * to) / max(float(np.linalg.norm(vector)), 1e-300)
    return factor, float(rest)


def alike(ranks: list[Rank], reseeded: list[Rank]) -> tuple[str, str]:
    """Compare the weights; `reseeded` is a run in which the ranks have different seeds."""
    hashes = [rank.all("hash") for rank in ranks]
    same = [len(set(one)) == 1 for one in zip(*hashes, strict=True)]
    if same[0]:
        text = "the weights were equal, bit for bit, at the first update"
        text += " and at the last" if same[-1] else ", and differed later"
        if all(rank.first[-1]["sent"] for rank in ranks):
            return SEEN, f"{text}; they were broadcast"
        text += "; nothing was broadcast"
        first = {rank.first[0]["hash"] for rank in reseeded if rank.first}
        if len(first) < 2:
            stay = ", and they stay equal if rank 1 has a different seed" * len(first)
            return NOT_SEEN, f"{text}{stay}: they may come from a file, or from equal seeds"
        text += ". Equal seeds did that: in a run with a different seed on rank 1 they differed"
        return (MISSING if ranks[0].by_horovod else NOT_SEEN), text
    if any(same):
        when = same.index(True) + 1
        text = f"the weights differed at the first update and were equal from update {when} on"
        return SEEN, f"{text}: TensorFlow scripts broadcast after the first step"
    return MISSING, "the weights differed at the first update and at the last"


def writes(ranks: list[Rank], ended: bool) -> tuple[str, str]:
    files = [{p for p in rank.files if not any(part in p for part in IGNORED)} for rank in ranks]
    counts = collections.Counter(path for paths in files for path in paths)
    several = sorted(path for path, count in counts.items() if count > 1)
    if several:
        return MISSING, f"several ranks wrote {', '.join(several[:3])}"
    if not counts:
        return NOT_SEEN, "nothing was written" + " while it was watched" * (not ended)
    parts = []
    for number, paths in enumerate(files):
        if paths:
            names = sorted(PurePath(path).name for path in paths)
            parts.append(f"rank {number} wrote {', '.join(names[:3])}" + " …" * (len(names) > 3))
    return SEEN, "; ".join(parts) + "; no file was written by two ranks"
