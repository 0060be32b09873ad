"""Answers to the exercises: the solution, and its variations.

A wrong answer is a row with one or more changes to the solution, each a text and its replacement,
and at its end a part of the diagnosis. A right one has changes only. The tables of the checks hold
more mistakes; these are the ones that a check recognises by a property of the results.
"""

from __future__ import annotations

import functools
import linecache
from fractions import Fraction
from typing import Any

from tests.conftest import ROOT
from workshop import catalogue, masters
from workshop.checks import ex04


@functools.cache
def cell_of(name: str, tag: str) -> str:
    """Return the answer cell or the check cell of an exercise."""
    (master,) = (ROOT / "exercises" / "source").glob(f"{name[:4]}_*.py")
    (cell,) = [c for c in masters.read_master(master) if {tag, name} <= set(c["tags"])]
    return cell["source"]


def answered(name: str, source: str) -> Any:
    """Return the answer that a cell defines, with its source available as in a notebook."""
    return defined(source, catalogue.find(name).answer)


def defined(source: str, name: str, **names: Any) -> Any:
    """Return what a notebook's cell, which may use other `names`, defines under a name."""
    file = f"<cell {name} {hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space: dict[str, Any] = {"__name__": "cell", **names}
    exec(compile(source, file, "exec"), space)
    return space[name]


def changed(name: str, *texts: str) -> Any:
    """Return the solution with each even text replaced by the one after it."""
    source = masters.solved(cell_of(name, "answer"))
    for right, instead in zip(texts[::2], texts[1::2], strict=True):
        assert right in source, right
        source = source.replace(right, instead)
    return answered(name, source)


SHARD, FLOOR = "(shards).shard(size, rank)", "(len(shards) // size)"
CEIL = "-(-len(shards) // size)"
LINES = {19, 23, 25, 27, 34, 52, 56, 61}
FORWARD = "torch.nn.functional.mse_loss(model(images), targets)"
BACKWARD = f"    scaler.scale({FORWARD}).backward()"
UNSCALE, STEP = "    scaler.unscale_(optimizer)", "scaler.step(optimizer)"
CLIP = "    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)\n"
OWN = "mine = (rank + 1) * images // size - rank * images // size"
COUNTS = "[min(batch, mine - step * batch) for step in range(steps)]"
TOPK = "values, classes = torch.topk(probabilities, k, dim=1)"
SOFTMAX = "torch.softmax(logits, dim=1)"
BOTH = "return classes, values"
RATE = "return sum(images[warmup:]) / took if took else None"
HOROVOD = (  # changes that turn the solution of ex03.recipe, which uses DDP, into one with Horovod
    "from torch import distributed as dist", "import horovod.torch as hvd",
    "dist.init_process_group()", "hvd.init()",
    "dist.get_rank(), dist.get_world_size()", "hvd.rank(), hvd.size()",
    "    net = nn.parallel.DistributedDataParallel(net)  # changes 4 and 5\n", "",
    "lr=rate, momentum=0.9)\n", "lr=rate, momentum=0.9)\n    optimizer = hvd.DistributedOptimizer("
    "optimizer, net.named_parameters())\n"
    "    hvd.broadcast_parameters(net.state_dict(), root_rank=0)\n",
    "net.module.", "net.", "    dist.destroy_process_group()", "",
)  # fmt: skip

WRONG_VALUES: list[tuple[str, Any, str]] = [
    ("ex01.frame", [b""], "of type list, not a function"),
    ("ex02.work", 300, "is too high"),
    ("ex02.work", 5.654, "the share of v1.5's"),
    ("ex02.work", 5.7, "the share of v1.5's"),
    ("ex02.work", 5.75, "is too low"),
    ("ex02.work", 231, "these are the millions"),
    ("ex02.tune", (0.1, 0.9), "does not settle across the valley"),
    ("ex02.tune", (0.02, 0.9), "4.1e-02 across it"),
    ("ex02.tune", (0.019, 0.0), "e-01 along the valley"),
    ("ex02.tune", (0.0338, 0.7), "e-02 across it"),
    ("ex02.tune", (0.01, 1e200), "along the valley"),
    ("ex02.tune", (0.03, 0.6), "5.0e-03 along the valley"),  # almost
    ("ex02.tune", (0.72, 0.03), "does not settle across the valley"),
    ("ex02.tune", (0.03, 0.72, 60), "momentum) is (0.03, 0.72, 60)"),
    ("ex04.hunt", {19, 23}, "you found 2 of 8 bugs, and named no line without one"),
    *(("ex04.hunt", LINES | {ex04.line_of(text)}, f"is right: {why}")
      for text, why in ex04.RIGHT.items()),
    ("ex04.hunt", "19, 23", "of type str, not a set"),
    ("ex04.hunt", LINES | {99}, "there is no line 99"),
    ("ex04.hunt", LINES | {0}, "there is no line 0"),
    ("ex06.memory", {"float32": 393, "float16": 401}, "float32 is of type int, not a pair"),
    ("ex06.memory", {"float32": [495.6, 8665.6], "float16": [401.4, 4486.4]}, "495.6 is too high"),
    ("ex06.memory", {"float32": [0.3932, 8.5632], "float16": [0.4014, 4.4864]},
     "every number is 10^-3 times"),
    ("ex08.ring", {2: 0, 8: 0, 512: 0}, "2: 0 is too low"),
    ("ex08.ring", {2: 8.04, 8: 14.28, 512: 30.0}, "512: 30 is too low"),
]  # fmt: skip

WRONG: dict[str, list[tuple[str, ...]]] = {
    "ex01.frame": [
        ("if payload[offset :",  # gives up if the first magic is at an odd offset
         "if payload.find(MAGIC) % 4 == 0 and payload[offset :", "is written unchanged"),
        ("3 if number == len(cuts) else 2", "2", "gives 20 bytes"),
        ("0 if not cuts else 1", "1", "gives 8 bytes"),
        ("flag << 29", "flag << 28", "gives 20 bytes"),
        ('"<I", flag', '">I", flag', "gives 12 bytes"),
    ],
    "ex01.order": [
        ("random.sample(range(records), records)", "random.choices(range(records), k=records)",
         "more often than others"),
        ("random.sample(range(records), records)", "list(range(records))", "0 of 10 passes"),
        ("list(range(records))", "random.sample(range(records), records)", "10 of 10 passes"),
        ("    ratios =", "    mixed = random.sample(range(records), records)\n    ratios =",
         "random.sample(range(records), records)):", "mixed):", "the same in every turn"),
        ("read(i)", "read(i + 1)", "you read record 200"),
        ("(list(range(records)), random.sample(range(records), records))", "(zip(range(records), "
         "random.sample(range(records), records)), ())", "read(i)", "read(i[0]), read(i[1])",
         "the two orders are mixed"),
        ("(list(range(records)), random.sample(range(records), records))",
         "(random.sample(range(records), records) if len(ratios) % 2 else range(records),) * 2",
         "4 of 10 passes over the records are in a random order, and they do not take turns"),
        ("median(ratios)", "median(ratios) + 1", "slowdown(a disk that gets slower"),
        ("statistics.median", "statistics.mean", "slowdown(a disk that gets slower"),
        ("statistics.median", "max", "slowdown(a disk that gets slower"),
        ("(seconds[1] / seconds[0])\n    return statistics.median(ratios)",
         "(seconds)\n    a, b = map(statistics.median, zip(*ratios))\n    return b / a",
         "slowdown(a disk that gets slower"),
        ("seconds[1] / seconds[0]", "seconds[0] / seconds[1]", "in order divided by the time at"),
        ("clock()", "__import__('time').perf_counter()", "not taken from `clock`"),
        ("range(5)", "range(3)", "you take 3 turns"),
        ("    ratios =", "    return 4.0\n    ratios =", "nothing is read"),
    ],
    "ex01.leak": [
        ('assert train and val, "a list is empty"', "assert train == sorted(train)",
         "rejects a correct split (In test_split, line 10: `assert train == sorted(train)`)."),
        ("    assert train and val,",
         "    if not train:\n        raise ValueError\n    assert val,",
         "raises ValueError, not AssertionError, for a split in which the training list is empty"),
        ("assert train and val,", "assert len(val) == 30,", "rejects a correct split"),
        ("range(41)", "range(1)", "rejects a correct split (a list is empty)"),
        ("range(41)", "range(4)", '"abc"', '"ab"', "accepts 12 of 100 random splits"),
        ("sorted(train + val) == sorted(names)", "len(train + val) == len(names)",
         "one photo is missing and another one appears twice"),
        ("    assert not shared,", "    return not shared,\n    assert", "no AssertionError"),
        ('"abc"', '"a"', "for a split in which photos of one object"),
    ],
    "ex02.stride": [
        ("1, projection", "1", "the result is (1, 1, 1)"),
        ("else None", "else 0", "strides(0, 1) gives (1, 1, 1, 0)"),
        ("1, stride, 1,", "stride, 1, 1,", "strides(1, 0) gives (2, 1, 1, 2)"),
        ("stride if", "1 if", "strides(1, 0) gives (1, 2, 1, 1)"),
    ],
    "ex02.schedule": [
        ("return peak * progress", "return recipe.lr * progress",
         "schedule(1, 1664, Recipe 'reference') gives"),
        (" / recipe.lr_batch", " / 256", "lr 0.4 at 128, warm-up 0.5, half at 3 and 6') gives 0.1"),
        (">= epoch", "> epoch", "schedule(30, 256, Recipe 'reference') gives 0.1"),
        ("peak * progress /", "peak * int(progress) /", "schedule(2.75, 256, "),
        ("**reached", "**min(reached, 1)", "schedule(60, 256, Recipe 'reference') gives 0.01"),
    ],
    "ex02.profile": [
        ("found = dict.fromkeys(dataset.parts, 0.0)", "found = {'crop': 0.0}",
         "the value for decode is missing"),
        ("range(len(dataset))", "range(len(dataset) - 1)", "'crop': 1.75"),
        ("range(len(dataset))", "range(1)", "only one image is counted"),
        ("1000 * total", "total", "'crop': 0.002"),
        ("_own, total", "total, _own", "'decode': 1,"),
        ("if name in found:\n            found[name] +=", "found[name] = found.get(name, 0) +",
         "is not in dataset.parts"),
    ],
    "ex03.shard": [
        ("    steps =", "    order[:] = order[::-1].copy()\n    steps =", "`order` is changed"),
        ("table[:, rank]", "table[:, rank].ravel()", "the shape (3,)"),
        ("table[:, rank]", "table[:, rank, 1:]", "gives [["),
        ("table[:, rank]", "table[:, rank] * 1.0", "are not integers"),
        ("table[:, rank]", "order[rank::size][: -(-(len(order) - rank) // size) // batch * batch]"
         ".reshape(-1, batch)", "0, 2, 3) gives [[7, 10, 4], [1, 2, 0]]"),
    ],
    "ex03.sums": [
        ("sums.clone()", "sums / sums[3]", "'top1': 50"),
        ("sums.clone()", "sums", "`sums` is changed"),
        ("    dist.all_reduce", "    if not sums[3]:\n        return {}\n    dist.all_reduce",
         "wait for each other forever"),
        ("dist.all_reduce(total)", "pass", "'top1': 75"),
        ("if not images:", "images = float(sums[3])\n    if not images:",
         "'loss': 2.5"),
        ("dist.all_reduce(total)", "dist.reduce(total, 0)", "on rank 1 of 2) gives"),
        ('"loss": None', '"loss": 0.0', "gives {'loss': 0,"),
        ("if not images:", "if dist.get_rank():", "on rank 1 of 2): the result's loss is None"),
        ('{"loss": None, "top1": None, "top5": None}', "None", "on rank 0 of 2) returns nothing"),
    ],
    "ex03.exposed": [
        ("total / 1000", "total / 1000 + 1", "gives (9, 4)"),
        ("return total", "return [total", "alone / 1000", "alone / 1000][:1]", "the result is [8]"),
        ('event["dur"]', 'event.pop("dur")', "`events` is changed"),
        ("running[sends] += change", "running[sends] = change > 0", "gives (5, 2)"),
        ("sorted(edges)", "edges", "gives (10, 10)"),
        ("return total / 1000, alone / 1000", """spans = []
    for begin, end in [(e["ts"], e["ts"] + e["dur"]) for e in events if "nccl" in e["name"]]:
        if spans and begin <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], end)
        else:
            spans.append([begin, end])
    return sum(end - begin for begin, end in spans) / 1000, alone / 1000""",
         "gives (4, 1.5)"),
        ('library in event["name"]', 'event["name"].startswith(library)', "gives (1.3, 0.5)"),
    ],
    "ex03.recipe": [
        ("order[rank::size]", "order", "the same 96 samples in the same order"),
        (*HOROVOD, "net.named_parameters())", "net.named_parameters(), op=hvd.Sum)", "summed"),
        ("loss.backward()\n", "loss.backward()\n        for p in net.parameters():\n"
         "            p.grad /= size\n", "divided twice"),
        ("DistributedDataParallel(net)", "net", "loss.backward()\n", "loss.backward()\n"
         "        for p in net.parameters():\n            dist.broadcast(p.grad, 0)\n",
         "one rank's gradients"),
        ("    dist.init_process_group()  # change 1\n", "", "has not been initialized"),
        ("manual_seed(0)", "manual_seed(rank)", "of them on more than one"),
        ("0.02 * size", "0.02", "not scaled, while each update took 2 times as many"),
        ("DistributedDataParallel(net)", "DataParallel(net)", "updated with its own gradients"),
        ("Parallel(net)", "Parallel(net, init_sync=False)",
         "the weights differed at the first update"),
        ("    if rank == 0:  # change 6", "    if True:", "several ranks wrote out/net.pt"),
        ("net.module.state_dict()", '{"weights": net.state_dict()}', "begin with `module.`"),
    ],
    "ex04.index": [
        ("offset < len(shard):", "offset < len(shard) and shard[offset]:", "gives []"),
        ("<Q", ">Q", "gives [(0, 360"),
        ("offset += length + 16", "offset += length + 20", "gives [(0, 16), (20, "),
        ("(offset, length + 16)", "offset", "is of type int, not a pair"),
        ("((offset, length + 16))", "(f'{offset} {length}')", "a value in the result is '0 5'"),
    ],
    "ex04.recipe": [
        (".shard(size, rank)", ".shard(size, rank).shuffle(9, 1)", ".shuffle(1000, seed=seed)", "",
         "the images of each file stay in their order"),
        (".shard(size, rank)", ".shard(size, rank).shuffle(9, 1)", "shuffle(1000", "shuffle(10",
         "the shuffle buffer is small"),
        ("shuffle(1000", "shuffle(20", "the shuffle buffer is small"),
        ("seed=seed", "seed=seed, reshuffle_each_iteration=False", "both epochs have the same"),
        (".shuffle(1000, seed=seed)", "", "drop_remainder=True)", "drop_remainder=True)"
         ".shuffle(99, seed=seed)", "whole batches are shuffled"),
        ("from_tensor_slices(shards)", "list_files(shards)", "an image is read twice in an epoch"),
        (".shard(size, rank)", "", "an image is read twice in an epoch"),
        (".shard(size, rank)", "", "images = records", "images = records.shard(size, rank)",
         "every rank opens every file"),
        (".take(steps)", "", "the ranks return 10, 10, 6, 6 full batches"),
        (".batch(", ".take(3 * batch).batch(", "the ranks return 3, 3 full batches"),
        ("records.shuffle", "records.take(steps * batch).shuffle",
         "interleave(tf.data.TFRecordDataset, ", "interleave(tf.data.TFRecordDataset, 9, ",
         "the same images are left out in both"),
        ("slices(shards)", "slices(shards[:2])", "the ranks return 10, 10 full batches"),
        (SHARD, f"(shards[rank * {FLOOR} : (rank + 1) * {FLOOR}])",
         "no rank returns an image of file 9 of 10"),
        (SHARD, f"(shards[rank * {CEIL} : (rank + 1) * {CEIL}])", "images of 3, 3, 3, 1 files"),
        ("tf.cast(image, tf.float32) / 255", "image", "the images are uint8, up to"),
        ("tf.float32) / 255", "tf.float64) / 255", "the images are float64, up to"),
        ("/ 255", "/ 256", "not their bytes divided by 255"),
        ("tf.reshape(pixels", "tf.reshape(pixels // 255", " / 255", "",
         "the images, up to 0, are not their bytes divided by 255"),
        ('[example["height"], example["width"], 3]', '[example["width"], example["height"], 3]',
         "height and width are swapped"),
        (", drop_remainder=True).take(steps)", ")", "a batch of images is (2, 4, 6, 3)"),
        ('["label"], tf.int32)', '["label"], tf.int32) - 1', "come with ["),
        ('tf.cast(example["label"], tf.int32)', 'example["label"]', "of a batch are float32"),
        (".take(steps)", ".take(steps).repeat()", "never ends"),
        ("tf.int64", "tf.float32", "the check cannot use this answer (InvalidArgumentError: "),
        ("    files =", "    return shards\n    files =", "returns a list"),
        ("    files =", "    shards.pop()\n    files =", "`shards` is changed"),
    ],
    "ex05.headroom": [
        ("return rates", "return list(rates.values())", "of type list, not a dictionary"),
        ("clock()", "__import__('time').perf_counter()", "not taken from `clock`"),
        ("train(load())", "(load(), train(batch))", "an old batch is trained on"),
        ("train(load())", "train(batch)", "'both': 1066"),
        ("    train(batch)\n", "", "the first training step is timed"),
        ("train(load())", "train(None)", "train is called without a batch"),
        ("    wait()\n    works", "    works", "the rest of the warm-up"),
        ("        wait()\n", "", "only *starting* the steps is timed"),
        ("        wait()\n", "        if name != 'device':\n            wait()\n",
         "is done, after `device`: only *starting* the steps"),
        ("        wait()\n", "        if name == 'device':\n            wait()\n",
         "is done, after `both`: only *starting* the steps"),
        ("        begin = clock()\n", "", "    rates = {}", "    rates, begin = {}, clock()",
         "the clock is started once for all three"),
        ("images * steps", "steps", "these are batches per second"),
        ("images * steps / (clock() - begin)", "(clock() - begin) / images / steps",
         "these are seconds per image"),
    ],
    "ex05.exact": [
        (OWN, "mine = images / size", "should be a whole number"),
        (COUNTS, "mine", "of type int, not a list"),
        (COUNTS, f"{COUNTS}[::-1]", "gives [5, 8]"),
        (OWN, "mine = images // size + (rank < images % size)", "valid(27, 0, 2, 8) gives [8, 6]"),
        ("-(-images // size)", "mine", "valid(33, 0, 4, 4) gives [4, 4]"),
    ],
    "ex06.casts": [
        ("        work()", "        pass", "`work` is never called"),
        ("        work()", "        work(), work()", "`work` is called 2 times"),
        ("return sum", "found = sum", "is a `return` missing?"),
        ("row.count for", "7 * row.count for", "(three calls of x.half()) gives 21"),
        (" if row.key", " or row.key", "gives "),
        ('"aten::_to_copy"', '"_to_copy"', "counts no conversion at all"),
        ('"aten::_to_copy")', '"aten::_to_copy") or None', "y.copy_(x)) returns nothing"),
    ],
    "ex06.step": [
        (UNSCALE, "    pass", STEP, f"scaler.unscale_(optimizer), {STEP}", "update is 0.0"),
        (UNSCALE, "    pass", STEP, f"scaler.unscale_(optimizer), {STEP}, optimizer.step()",
         "update is 0.0"),
        (STEP, f"{STEP}, optimizer.step()", "the update is 2 times as large"),
        (BACKWARD, f"    loss = {FORWARD}\n    scaler.scale(loss).backward()",
         STEP, "loss.isfinite() and optimizer.step()", "overflow: the weights are nan"),
        (UNSCALE, "    pass", CLIP, "", STEP, "optimizer.step()", "scaler.update()", "pass",
         "the update is 1.02e+03 times as large"),
        (STEP, f"scaler.update(), {STEP}", "scaler.update()  #", "pass  #",
         "the update is 0.000"),
        (CLIP, "", "large gradient: the weights"),
        (STEP, "optimizer.step()", "overflow: the weights are nan"),
        ("optimizer.zero_grad()", "pass", "two steps: the weights are"),
        (STEP, "pass", "the weights have not moved"),
        (BACKWARD, f"{BACKWARD}\n    optimizer.zero_grad()", "there are no gradients"),
        ("scaler.update()", "pass", "the scale has not changed"),
        ("scaler.update()", "scaler.update(scaler.get_scale() / 2)", "enough to double it"),
        ("max_norm=1.0", "max_norm=0.5", "large gradient: the weights are"),
        (BACKWARD, f"    images *= 0.5\n{BACKWARD}", "`images` is changed"),
    ],
    "ex06.layout": [
        ("c * h * w, h * w, w, 1", "h * w, w, 1", "the result is (20, 5, 1)"),
        ("h * w * c, 1, w * c, c", "h * w * c, w * c, c, 1", "'NHWC', 1) gives (60, 15, 3, 1)"),
        ("-(-c //", "(c //", "gives ("),
        ("// multiple) * multiple", "// multiple + 1) * multiple", "gives ("),
        ("    c = -(-c", "    if order == 'NHWC':\n        c = -(-c", "gives (7840, 392, 28, 1)"),
    ],
    "ex07.percentile": [
        ("max(0, rank - 1)", "rank", "gives 0.04"),
        ("sorted(seconds)", "sorted(set(seconds))", "gives 5"),
        ("len(seconds) *", "(len(seconds) - 1) *", "gives 0.02"),
        ("    rank =", "    seconds.sort()\n    rank =", "`seconds` is changed"),
    ],
    "ex07.temperature": [
        ("return log_t.exp().item()", "return logits / log_t.exp()",
         "of type Tensor, not a number"),
        ("return log_t.exp().item()", "return 1.1 * log_t.exp().item()", "T = 2.69"),
        ("return log_t.exp().item()", "return float('nan')", "T is nan"),
        ("return log_t.exp().item()", "right = (logits.argmax(1) == labels).double().mean()\n"
         "    return min(torch.linspace(0.1, 10, 991).tolist(), key=lambda t: abs((logits / t)"
         ".softmax(1).amax(1).mean() - right))", "T = 2.58"),
        ("        optimizer.zero_grad()\n", "", "T is nan"),
        ("torch.zeros(()", "torch.ones(()", "log_t.exp()", "log_t", "is not above 0"),
        ("return log_t", "logits /= log_t.exp().detach()\n    return log_t",
         "`logits` is changed"),
        ("return log_t", "best = log_t", "is a `return` missing?"),
        ("logits / log_t.exp()", "logits * log_t.exp()", "this is 1 / T"),
        ("logits / log_t.exp()", "torch.softmax(logits / log_t.exp(), 1)", "softmax is computed"),
    ],
    "ex07.likeliest": [
        (SOFTMAX, "logits.exp() / logits.exp().sum(1, keepdim=True)", "is nan"),
        (SOFTMAX, "(logits - logits.max()).exp()", TOPK, "probabilities /= probabilities.sum(1, "
         f"keepdim=True)\n    {TOPK}", "is nan"),
        (BOTH, "return values, classes", "not whole numbers"),
        (BOTH, "return values", "the result is Tensor ["),
        (BOTH, "return classes[:, :1], values", "gives ([[1], [1], [3]], "),
        (SOFTMAX, "torch.sigmoid(logits)", "gives ([[1, 3], [1, 2], [3, 0]], [[0.95"),
        ("    probabilities =", "    logits -= 1\n    probabilities =", "`logits` is changed"),
    ],
    "ex08.rate": [
        ("    took =", "    del images[:warmup], seconds[:warmup]\n    took =", "is changed"),
        ("[warmup:]", "[warmup:-1]", "gives 85.3"),
        ("[warmup:]", "[warmup - 1 :]", "the warm-up is counted"),
        ("took if took else None", "took if took else float('nan')", "[1, 1], 2) gives nan"),
        ("else None", "else 0", "[1, 1], 2) gives 0."),
    ],
    "ex08.overlap": [
        ("filled += size", "filled += ready.sort(reverse=True) or size", "`ready` is changed"),
        ("latency + filled", "filled", "gives 0.8333"),
        ("return compute / max(compute, free)", "return max(compute, free) / compute",
         "gives 1.32"),
    ],
}  # fmt: skip

RIGHT_VALUES: list[tuple[str, Any]] = [
    ("ex02.work", Fraction(6)),
    ("ex02.work", 5.9),
    ("ex02.tune", (0.0354736, 0.9)),  # one of few rates that suffice with this momentum
    ("ex04.hunt", sorted(LINES)),
    ("ex04.hunt", LINES - {23} | {24}),  # either half of "softmax twice"
]
RIGHT: dict[str, list[tuple[str, ...]]] = {
    "ex01.frame": [("return record", "return bytearray(record)")],
    "ex01.order": [
        ("    ratios =", "    [read(i) for i in 2 * [*range(records)]]\n    ratios ="),
        ("random.sample(range(records), records)",
         "__import__('numpy').random.permutation(records)"),
    ],
    "ex01.leak": [("assert train and val,", "if not train or not val:\n        raise AssertionError"
                   "\n   "),
                  ("range(41)", "range(40)")],
    "ex02.profile": [
        ("    for i in range(len(dataset)):\n        profile.runcall(dataset.__getitem__, i)",
         "    with profile:\n        for i in range(len(dataset)):\n            dataset[i]"),
        ("    for i in range(len(dataset)):\n        profile.runcall(dataset.__getitem__, i)",
         "    profile.runcall(list, dataset)"),
    ],
    "ex03.exposed": [
        ("sorted(edges)", "sorted(edges, key=lambda edge: edge[0])"),
        ("return total / 1000, alone / 1000", """names = ("nccl", "gloo", "c10d")
    times = sorted({t for e in events for t in (e["ts"], e["ts"] + e["dur"])})
    sums = [0, 0]
    for begin, end in zip(times, times[1:]):
        running = [e for e in events if e["ts"] <= begin and end <= e["ts"] + e["dur"]]
        sent = [any(name in e["name"] for name in names) for e in running]
        sums[0] += (end - begin) * any(sent) / 1000
        sums[1] += (end - begin) * (any(sent) and all(sent)) / 1000
    return sums"""),
    ],
    "ex03.shard": [("table[:, rank]", "table[:, rank].tolist()")],
    "ex03.sums": [
        ("total.tolist()", "total"),
        ("dist.all_reduce(total)", "rows = [sums.clone() for _ in range(dist.get_world_size())]\n"
         "    dist.all_gather(rows, sums)\n    total = sum(rows)"),
    ],
    "ex03.recipe": [
        HOROVOD,
        (*HOROVOD, "hvd.broadcast_parameters(net.state_dict(), root_rank=0)",
         "for t in net.state_dict().values():\n        t.copy_(hvd.broadcast(t, root_rank=0))"),
    ],
    "ex04.index": [("return entries", "return ([at, size * 1.0] for at, size in entries)")],
    "ex04.recipe": [
        (SHARD, "(shards[rank::size])"),
        (SHARD, "(shards[rank * len(shards) // size : (rank + 1) * len(shards) // size])"),
    ],
    "ex05.headroom": [
        ("in works.items():", "in reversed(works.items()):\n        wait()"),
        ("    wait()\n    works", "    wait()\n    train(load())\n    wait()\n    works",
         "return rates", "return {name: float(rate) for name, rate in rates.items()}"),
    ],
    "ex05.exact": [(COUNTS, "(max(0, min(batch, mine - step * batch)) for step in range(steps))")],
    "ex06.casts": [
        ("activities=[torch.profiler.ProfilerActivity.CPU]", "record_shapes=True"),
        ('row.count for row in profile.key_averages() if row.key == "aten::_to_copy"',
         'event.name == "aten::_to_copy" for event in profile.events()'),
    ],
    "ex06.step": [
        (UNSCALE, "    pass", "max_norm=1.0", "max_norm=scaler.get_scale()"),
        ("optimizer.zero_grad()", "pass", "scaler.update()",
         "scaler.update(), optimizer.zero_grad()"),
        (CLIP, "    norm = torch.cat([p.grad.ravel() for p in model.parameters()]).norm()\n"
         "    for p in model.parameters():\n        p.grad /= norm.clamp(min=1.0)\n"),
    ],
    "ex07.percentile": [("sorted(seconds)[max(0, rank - 1)]", "__import__('numpy').percentile("
                         "seconds, per_cent, method='inverted_cdf')")],
    "ex07.temperature": [
        ("return log_t", "grid = torch.logspace(-1.3, 1.3, 400)\n    losses = [torch.nn.functional."
         "cross_entropy(logits / t, labels) for t in grid]\n    return grid[torch.stack(losses)."
         "argmin()]\n    return log_t"),
        ("return log_t.exp().item()", """t = torch.nn.Parameter(torch.ones(1))
    adam = torch.optim.Adam([t], lr=0.02)
    for _ in range(500):
        adam.zero_grad()
        torch.nn.functional.cross_entropy(logits / t, labels).backward()
        adam.step()
    return t"""),
    ],
    "ex07.likeliest": [
        (TOPK, "values, classes = probabilities.sort(dim=1, descending=True)",
         BOTH, "return classes[:, :k].tolist(), values[:, :k].tolist()"),
    ],
    "ex08.rate": [
        ("sum(seconds[warmup:])", "__import__('numpy').sum(seconds[warmup:])"),
        (RATE, "rates = [n / s for n, s in zip(images, seconds)][warmup:]\n    return "
         "statistics.harmonic_mean(rates, images[warmup:]) if rates else None",
         "    took =", "    import statistics\n    took ="),
    ],
    "ex08.overlap": [
        ("i == len(ready) - 1", "at == ready[-1]"),
        ("free = filled = 0.0", "left, free, filled = sum(nbytes), 0.0, 0.0",
         "filled += size", "filled, left = filled + size, left - size",
         "i == len(ready) - 1", "left == 0"),
    ],
}  # fmt: skip
