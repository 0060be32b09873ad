"""The verdict on what the recorders wrote down: which changes were found, each with evidence.

A change is "seen", "missing", or "not seen" if the recording does not decide it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

SEEN, MISSING, NOT_SEEN = "seen", "missing", "not seen"
MARKS = {SEEN: "✓", MISSING: "✗", NOT_SEEN: "○"}
TITLES = {
    "start": "one device per rank",
    "share": "share the samples",
    "rate": "scale the learning rate",
    "average": "average the gradients",
    "alike": "same initial weights",
    "writes": "rank 0 writes",
}
DDP_NAMES = "the saved names begin with `module.`, so that the model without DDP cannot load them"
CLOSE = 0.03  # relative: a factor this near to N is N; float16 on the way costs 0.001
IGNORED = ("/dev/", "/proc/", "/.cache/", "/.config/", "pycache", "torchinductor", "__autograph")

Events = list[dict[str, Any]]


@dataclass
class Row:
    """One change: its key in TITLES, its status, and the evidence in words."""

    change: str
    status: str
    evidence: str


@dataclass(repr=False)
class Result:
    """The verdict on a script, of which the first `steps` updates were recorded."""

    script: str
    launcher: str
    ranks: int
    steps: int
    rows: list[Row]

    def __getitem__(self, change: str) -> Row:
        return next(row for row in self.rows if row.change == change)

    @property
    def missing(self) -> list[str]:
        return [row.change for row in self.rows if row.status == MISSING]

    def __repr__(self) -> str:
        how = f"{self.ranks} ranks ({self.launcher}), {self.steps} updates recorded"
        return "\n".join([f"{self.script} on {how}"] + [
            f"{MARKS[row.status]} {TITLES[row.change]:23}  {row.status:8}  {row.evidence}"
            for row in self.rows
        ])  # fmt: skip


class Rank:
    def __init__(self, events: Events) -> None:
        self.updates = [event for event in events if event["kind"] == "update"]
        self.files = {event["path"] for event in events if event["kind"] == "file"}
        self.wrote_ddp_names = any(event["kind"] == "ddp names" for event in events)
        # the orders of its samplers, by the number of steps before
        self.orders = {e["steps"]: tuple(e["order"]) for e in events if e["kind"] == "order"}
        self.epoch_set = any(e.get("set") for e in events if e["kind"] == "order")
        starts = [event for event in events if event["kind"] == "start"]
        made = [event["hash"] for event in events if event["kind"] == "weights"]
        self.made = made[0] if made else ""  # the weights when the optimizer was made
        self.by = starts[-1]["by"] if starts else ""
        self.place = starts[-1]["place"] if starts else [0, 1]  # in its group: its rank, the size

    def all(self, key: str) -> list[Any]:
        return [update[key] for update in self.updates]


def by_rank(events: Events) -> list[Rank]:
    """Return the ranks in order, without processes that never had a rank."""
    found = defaultdict(list)
    for event in events:
        if event["rank"] is not None:
            found[event["rank"]].append(event)
    return [Rank(found[number]) for number in sorted(found)]


def judge(
    events: Events, single: Events, size: int, ended: bool, reseed: Callable[[], Events] | None
) -> tuple[list[Row], int]:
    """Return the rows for the events of `size` ranks, and how many updates all of them made.

    `single` are the events of a run on one rank; `reseed`, if there is one, starts a run with
    different seeds.
    """
    ranks, alone = by_rank(events), by_rank(single)
    steps = min(len(rank.updates) for rank in ranks) if len(ranks) == size else 0
    for rank in ranks:
        rank.updates = rank.updates[:steps]
    hangs = "" if ended else "; do the ranks wait for each other?"
    nothing = NOT_SEEN, f"no update of an optimizer was seen on {size} ranks{hangs}"
    if any(event["kind"] == "sharded" for event in events):
        nothing, steps = (NOT_SEEN, "FSDP is not supported: each rank has a part of the weights"), 0
    found = dict.fromkeys(TITLES, nothing) | {"start": start(ranks, size), "writes": writes(ranks)}
    if steps:
        found["share"], found["rate"] = share(ranks, alone), rate(ranks, alone)
        found["average"], found["alike"] = average(ranks), alike(ranks, reseed)
    return [Row(change, *row) for change, row in found.items()], steps


def start(ranks: list[Rank], size: int) -> tuple[str, str]:
    places = sorted(rank.place for rank in ranks if rank.by)
    if places != [[number, size] for number in range(size)]:
        calls = "hvd.init() or torch.distributed.init_process_group()"
        places_text = f": [rank, size] {places}" if places else ""
        return MISSING, f"{len(places)} of {size} processes called {calls}{places_text}"
    text = f"{ranks[0].by}: ranks 0 to {size - 1} of {size}"
    devices = [rank.updates[0]["device"] for rank in ranks if rank.updates]
    gpus = [device for device in devices if not device.startswith("cpu")]
    if len(set(gpus)) < len(gpus):
        return MISSING, f"{text}, but several ranks use one device: {gpus[0]}"
    return SEEN, f"{text}, {'each on its own device' if gpus else 'on the CPU'}"


def share(ranks: list[Rank], alone: list[Rank]) -> tuple[str, str]:
    """Compare the samples that went into the model, and the shards that its readers took."""
    fed = [rank.all("inputs") for rank in ranks]
    passes = [first_pass(batches) for batches in fed]
    smallest = min(map(len, passes))
    common = sum(n > 1 for n in Counter(sample for seen in passes for sample in seen).values())
    text = f"{smallest} samples on each rank, {common or 'none'} of them on more than one"
    if not smallest:
        return NOT_SEEN, "what went into the model could not be recorded"
    if len({sample for batch in fed[0] for sample in batch}) == 1:
        return NOT_SEEN, "all samples are equal"
    if all(batches == fed[0] for batches in fed):
        count = sum(map(len, fed[0]))
        return MISSING, f"every rank was fed the same {count} samples in the same order"
    if 4 * common > smallest:
        return MISSING, f"{text}: the ranks do not share the data"
    shards = [{(*shard,) for shard in rank.updates[0]["shards"]} for rank in ranks]
    own = [{shard[:2] for shard in taken} for taken in shards]
    few = common <= max(2, smallest // 50)  # some may be repeated to fill the last batch
    took = all((len(ranks), number) in taken for number, taken in enumerate(own))
    if few and took:
        return SEEN, f"{text}; each rank took its own shard{order_of(ranks[0])}"
    if not took and any(shard[0] == 1 and shard[2] for shard in set.intersection(*shards)):
        return (
            MISSING,
            "every rank reads all of the data: its reader or sampler was given one shard of one",
        )
    single = {sample for rank in alone for batch in rank.all("inputs") for sample in batch}
    if few and all(2 * len(single & seen) >= len(seen) for seen in passes):
        return SEEN, f"{text}; the run on one rank reads them too"
    if not took and draw_from_all(ranks, alone):
        return MISSING, f"each rank draws from all samples, in its own random order ({text})"
    if took:
        return NOT_SEEN, f"{text}: each took its own shard, perhaps of data in different orders"
    return NOT_SEEN, f"{text}: no shard was seen, and augmentation or chance may hide the rest"


def order_of(rank: Rank) -> str:
    """Return a remark on the order in which a rank's samplers pass on its data."""
    if rank.updates[0].get("fixed_order"):
        return "; the sampler has shuffle=False and keeps the order of the data"
    passes: dict[int, list[Any]] = defaultdict(list)
    for sampler, *order in rank.orders.values():
        passes[sampler].append(order)
    first = next(iter(passes.values()), [])  # of the sampler that was used first
    if len(first) > 1 and all(order == first[0] for order in first):
        return "; each epoch has the same order: call sampler.set_epoch(epoch) before it"
    if len(first) == 1:
        if not rank.epoch_set:
            return "; set_epoch was not called before the first epoch: without it, all are alike"
        return "; set_epoch was called, but no second epoch was run"
    return ""


def draw_from_all(ranks: list[Rank], alone: list[Rank]) -> bool:
    """Return True if all ranks, and one alone, shuffle the same data, but in different orders."""
    orders = [{(*each,) for each in rank.updates[0]["shuffled"]} for rank in ranks]
    data = [{name for name, _ in rank} for rank in orders]
    data += [{name for name, _ in rank.updates[0]["shuffled"]} for rank in alone if rank.updates]
    return bool(set.intersection(*data)) and not set.intersection(*orders)


def first_pass(batches: list[list[str]]) -> set[str]:
    """Return the samples of a rank's first pass over the data."""
    seen: set[str] = set()
    for batch in batches:
        if seen.intersection(batch):
            break
        seen.update(batch)
    return seen


def rate(ranks: list[Rank], alone: list[Rank]) -> tuple[str, str]:
    """Compare the largest learning rate with that of a run on one rank."""
    size, rates = len(ranks), [rank.all("rate") for rank in ranks]
    if not np.allclose(rates, rates[0], rtol=1e-4):
        return MISSING, f"the learning rate differs between the ranks: {rates}"
    single, top = [rate for rank in alone for rate in rank.all("rate")], max(rates[0])
    if not single:
        return NOT_SEEN, f"{top:.4g} on {size} ranks; there is no run on one to compare"
    one = max(single)
    text = f"{top:.4g} on {size} ranks, {one:.4g} on one"
    if not one or top > rates[0][0] or one > single[0]:
        return NOT_SEEN, f"{text}: the rate is still rising"
    together = sum(len(rank.updates[0]["inputs"]) for rank in ranks)
    more = together / max(1, len(alone[0].updates[0]["inputs"]))
    if top > (1 + CLOSE) * one:
        text += f": {top / one:.3g} times as much"
        # of a short shard, the ranks may take less than `size` batches
        if more <= 1 or top <= (1 + CLOSE) * max(more, size) * one:
            return SEEN, text
    elif more == 1:
        return SEEN, f"{text}: right, since an update takes as many samples as on one rank"
    else:
        text += ": not scaled"
    text += f", while each update took {more:.3g} times as many samples"
    if "SGD" not in (name := ranks[0].updates[0]["optimizer"]):
        return NOT_SEEN, f"{text}; the linear rule is for SGD, and for {name} there is no fixed one"
    return MISSING, text


def average(ranks: list[Rank]) -> tuple[str, str]:
    kinds = [exchange(ranks, step) for step in range(len(ranks[0].updates))]
    often = Counter(kinds)
    if often["summed"]:
        return MISSING, f"summed, not averaged: the update got {len(ranks)} times the average"
    few = max(1, len(kinds) // 20) if often["averaged"] else 0  # such as the first
    if often["own"] > few:
        many = f" in {often['own']} of {len(kinds)} updates" if often["averaged"] else ""
        return MISSING, f"not exchanged{many}: each rank updated with its own gradients"
    if often["divided"] > often["averaged"]:
        return MISSING, f"divided twice: the update got 1/{len(ranks)} of the average"
    if often["one"] > few:
        return MISSING, f"one rank's gradients, in {often['one']} updates: others are not used"
    if often["other"] > few:  # Adasum, PowerSGD, clipping of each value
        return NOT_SEEN, f"equal on all ranks, and not the mean, in {often['other']} updates"
    if often["averaged"]:
        return SEEN, f"averaged, in {often['averaged']} of {len(kinds)} updates"
    given = [values for rank in ranks for values in rank.all("given")[0] if values is not None]
    if given and not any(map(np.any, given)):
        return NOT_SEEN, "all gradients were zero"
    return NOT_SEEN, "the gradients were equal on all ranks, or could not be compared"


def exchange(ranks: list[Rank], step: int) -> str:
    """Return how the ranks' gradients entered an update.

    "averaged", "summed", "divided" (twice), "own", "one" (rank's for all), "other" (equal on all
    ranks), or "" if it cannot be decided.
    """
    given, local = ([rank.updates[step][key] for rank in ranks] for key in ("given", "local"))
    known = [i for i, values in enumerate(zip(*given, *local, strict=False)) if None not in values]
    before, now = (
        np.array([[x for i in known for x in rank[i]] for rank in side]) for side in (local, given)
    )
    if not (np.isfinite([before, now]).all() and now.any() and before.any()):
        return ""
    same, were_same = (
        np.allclose(rows, rows[0], atol=1e-4 * np.abs(rows).max()) for rows in (now, before)
    )
    if ranks[0].place[1] == 1 or not same:
        return "own" if all(factor(*pair) for pair in zip(now, before, strict=True)) else ""
    times = factor(now[0], before.mean(axis=0))
    if abs(times / len(ranks) - 1) < CLOSE:
        return "summed"
    if were_same:
        return ""
    if abs(times * len(ranks) - 1) < CLOSE:
        return "divided"
    if not times and any(factor(now[0], gradients) for gradients in before):
        return "one"
    return "averaged" if times else "other"  # clipping changes the factor


def factor(vector: Any, of: Any) -> float:
    """Return how many times `of` the vector is, or 0 if it is not a multiple of it."""
    times = float(vector @ of / max(of @ of, 1e-300))
    rest = np.linalg.norm(vector - times * of)
    return times if rest < CLOSE * np.linalg.norm(vector) else 0.0


def alike(ranks: list[Rank], reseed: Callable[[], Events] | None) -> tuple[str, str]:
    """Compare the weights, also in a run with different seeds if they are equal."""
    same = equal(ranks)
    if not any(same):
        return MISSING, "the weights differed at the first update and at the last"
    if not same[0]:
        return SEEN, "the weights differed at the first update, and became equal later"
    if len({rank.made for rank in ranks}) > 1:
        return SEEN, "the weights differed at first, and were equal at the first update"
    if reseed is None:
        return NOT_SEEN, "the weights were equal at the first update, perhaps by equal seeds"
    again = equal(by_rank(reseed()))
    if any(again):
        return SEEN, "the weights were equal at the first update, even with different seeds"
    if not again:
        return NOT_SEEN, "the weights were equal; with different seeds, the script did not run"
    text = "the weights were equal because of equal seeds: with different seeds, they differed"
    return (MISSING if ranks[0].by == "Horovod" else NOT_SEEN), text  # it may be intended


def equal(ranks: list[Rank]) -> list[bool]:
    """Return for each update whether the ranks had equal weights before it."""
    return [len(set(row)) == 1 for row in zip(*(rank.all("hash") for rank in ranks), strict=False)]


def writes(ranks: list[Rank]) -> tuple[str, str]:
    files = [{p for p in rank.files if not any(part in p for part in IGNORED)} for rank in ranks]
    counts = Counter(path for paths in files for path in paths)
    several = sorted(path for path, count in counts.items() if count > 1)
    if several:
        return MISSING, f"several ranks wrote {', '.join(several[:3])}"
    if not counts:
        return NOT_SEEN, "no file was seen to be written"
    names = [f"rank {n} wrote {', '.join(sorted(f)[:3])}" for n, f in enumerate(files) if f]
    names += [DDP_NAMES] if any(rank.wrote_ddp_names for rank in ranks) else []
    return SEEN, "; ".join(names)
