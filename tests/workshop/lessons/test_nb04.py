"""The checks of notebook 04: right versions in any style pass, usual mistakes get a diagnosis."""

from __future__ import annotations

import itertools
import random
import struct
from pathlib import Path

import numpy as np
import pytest

from data_prep.tfrecordwriter import frame_record
from rn50lib.data.tfrecord import IMAGE, LABEL, masked_crc
from tests.workshop.checks.answers import defined
from workshop.checks.compare import Wrong
from workshop.lessons import nb04

LOOP = """
def read(path):
    with open(path, "rb") as file:
        while head := file.read(12):
            length, crc = struct.unpack("<QI", head)
            if crc != masked_crc(head[:8]):
                raise ValueError("length")
            data = file.read(length)
            if struct.unpack("<I", file.read(4))[0] != masked_crc(data):
                raise ValueError("data")
            yield data
"""
YIELD = "            yield data\n"
LATE = LOOP[LOOP.index("            if struct.unpack") :]
LIST = """
def read(path):
    all, at, found = open(path, "rb").read(), 0, []
    while at < len(all):
        size = int.from_bytes(all[at : at + 8], "little")
        a, b = (int.from_bytes(all[i : i + 4], "little") for i in (at + 8, at + 12 + size))
        data = all[at + 12 : at + 12 + size]
        if a != masked_crc(all[at : at + 8]) or b != masked_crc(data):
            raise ValueError
        found.append(data)
        at += 16 + size
    return found
"""


READER = {"struct": struct, "masked_crc": masked_crc}  # what the cell uses


@pytest.mark.parametrize("source", [LOOP, LIST])
def test_reader_that_is_right_passes(source: str, tmp_path: Path, capsys):
    yours = defined(source, "read", **READER)
    assert nb04.check("read", yours) is yours
    nb04.judge_read(nb04.read, tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("<QI", ">QI", "little-endian"),
        ("head[:8]", "head", "of which bytes"),
        ("file.read(4))[0] != masked", "file.read(4)) != masked", "struct's tuple"),
        ('open(path, "rb")', "open(path)", 'with "rb"'),
        ("while head := file.read(12):", "while head := file.read(12) or b'?':", "At the end"),
        ("while head := file.read(12):", "while head := file.read(12) or bytes(12):", "At the end"),
        ('if struct.unpack("<I", file.read(4))[0] != masked_crc(data)', "if False", "after 1 of"),
        ("yield data\n", "yield data\n            return\n", "It should yield"),
        ("yield data", "return data", "Use `yield`"),
        ("yield data", "yield head + data", "It should yield"),
        ("yield data", "yield data.decode()", "It should yield"),
        ("yield data", "if not data: return\n            yield data", "It should yield"),
        ("raise ValueError(\"data\")", "pass", "in the data of record 1, it yields 3"),
        ("raise ValueError(\"length\")", "file.read(0)", "in the length of record 1"),
        ("if crc != masked", "if length < 99 and crc != masked", "in the length of record 1"),
        ("crc != masked_crc(head[:8])", "file.tell() < 30 and crc != masked_crc(head[:8])",
         "in the length of record 3"),
        ("!= masked_crc(data)", "!= masked_crc(data) and file.tell() < 30", "data of record 3"),
        ("while head := file.read(12):", "while len(head := file.read(12)) == 12:",
         "Without its last 18 bytes"),
        (LATE, f"            yield data\n{LATE.replace(YIELD, '')}", "it yields 1 record and"),
        ("raise ValueError(\"data\")", "raise KeyError", "ends with KeyError"),
    ],
)  # fmt: skip
def test_reader_that_is_wrong_gets_a_diagnosis(old: str, new: str, said: str, tmp_path, capsys):
    assert old in LOOP
    yours = defined(LOOP.replace(old, new), "read", **READER)
    assert nb04.check("read", yours) is nb04.read
    wrong = capsys.readouterr().out
    assert wrong[0] == "✗" and any(part in wrong for part in said.split("|")), wrong


FRAME = """
def frame_record(data):
    size = struct.pack("<Q", len(data))
    ends = [struct.pack("<I", masked_crc(part)) for part in (size, data)]
    return size + ends[0] + data + ends[1]
"""


@pytest.mark.parametrize("old", ['struct.pack("<Q", len(data))', "size + ends[0] + data + ends[1]"])
def test_record_that_is_right_passes(old: str):
    other = {
        "str": 'len(data).to_bytes(8, "little")',
        "siz": 'b"".join([size, ends[0], data, ends[1]])',
    }
    for source in (FRAME, FRAME.replace(old, other[old[:3]])):
        yours = defined(source, "frame_record", **READER)
        assert nb04.check("frame_record", yours) is yours


def test_finished_record_is_the_library_s():
    for (data,) in nb04.RECORDS:
        assert nb04.frame_record(data) == frame_record(data)


def test_record_that_is_wrong_gets_a_diagnosis(capsys):
    for wrong, diagnosis, _ in nb04.FRAME_MISTAKES:
        nb04.check("frame_record", wrong)
        assert diagnosis in capsys.readouterr().out
    for old, new, said in (
        ("masked_crc(part)", "masked_crc(part) ^ 1", "It should be"),
        ("masked_crc(part)", "masked_crc(part) >> 32", "It should be"),
        ("    return size", "    size", "is a `return` missing?"),
        ("    return size", "    return str(size)", "TypeError"),
    ):
        yours = defined(FRAME.replace(old, new), "frame_record", **READER)
        assert nb04.check("frame_record", yours) is nb04.frame_record
        assert said in capsys.readouterr().out


def test_reader_that_is_not_written_is_not_attempted(capsys):
    assert nb04.check("read", lambda path: None) is nb04.read  # type: ignore[arg-type, return-value]
    assert capsys.readouterr().out.startswith("○ `read` is not written yet")


RIGHT_SPLITS = (
    "return shards[rank::size][worker::workers]",
    "return shards[rank + size * worker :: size * workers]",
    "return np.array_split(np.array_split(shards, size)[rank], workers)[worker]",
    "return islice(islice(shards, rank, None, size), worker, None, workers)",
    "yield from shards[rank::size][worker::workers]",
)


@pytest.mark.parametrize("body", RIGHT_SPLITS)
def test_split_that_is_right_passes(body: str):
    yours = defined(f"def my_shards(shards, rank, size, worker, workers):\n    {body}", "my_shards",
                    np=np, islice=itertools.islice)  # fmt: skip
    assert nb04.check("my_shards", yours) is yours


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return shards[worker::workers]",
         "With 8 shards and 2 x 2 workers, worker 0 of rank 0 and worker 0 of rank 1 read the"),
        ("return shards[rank::size]", "worker 0 of rank 0 and worker 1 of rank 0 read the same"),
        ("return random.Random(rank + 9 * worker).sample(shards, 2)", "a random split overlaps"),
        ("return shards[rank * workers + worker :: size * workers]", "the ranks read [5, 3]"),
        ("return shards[rank::size][worker::workers][:1]", "shards are not read"),
        ("n = len(shards) // (size * workers); return shards[(rank * workers + worker) * n :][:n]",
         "2 shards are not read. An equal share by `//` drops the rest"),
        ("return [s for i, s in enumerate(shards) if i % size == rank and i % workers == worker]",
         "With 8 shards and 2 x 2 workers, the workers of rank 0 read [4, 0] shards"),
        ("return [shards[rank::size]]", "It returns [["),
    ],
)  # fmt: skip
def test_split_that_is_wrong_gets_a_diagnosis(body: str, said: str, capsys):
    yours = defined(f"def my_shards(shards, rank, size, worker, workers):\n    {body}", "my_shards",
                    random=random)  # fmt: skip
    assert nb04.check("my_shards", yours) is nb04.my_shards
    wrong = capsys.readouterr().out
    assert wrong.startswith("✗") and said in wrong, wrong


STAGES = """
def pipeline(shards, rank, size, batch, seed):
    files = tf.data.Dataset.from_tensor_slices(shards).shard(size, rank)
    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=2)
    images = records.shuffle(100, seed).map(prepare, num_parallel_calls=2)
    return images.batch(batch, drop_remainder=True).prefetch(1)
"""
SHARD = ".shard(size, rank)"
INTERLEAVE = "\n    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=2)"
MAP = ".map(prepare, num_parallel_calls=2)"
BATCHES = "\n    return images.batch(batch, drop_remainder=True)"
OWN_FILES = (  # other ways to give each rank its files
    (f"(shards){SHARD}", "(shards[rank::size])"),
    (f"(shards){SHARD}", "(np.split(np.array(shards), size)[rank])"),
    (f"tf.data.Dataset.from_tensor_slices(shards){SHARD}",
     f"tf.data.Dataset.list_files(shards, shuffle=False){SHARD}"),
    (f"from_tensor_slices(shards){SHARD}{INTERLEAVE}",
     "from_tensor_slices(shards[rank::size])\n    records = tf.data.TFRecordDataset(files)"),
)  # fmt: skip


def numbered():
    """Return the names that a learner's pipeline uses."""
    import tensorflow as tf

    def prepare(record):
        kinds = {IMAGE: tf.io.FixedLenFeature([], tf.string),
                 LABEL: tf.io.FixedLenFeature([], tf.int64)}  # fmt: skip
        example = tf.io.parse_single_example(record, kinds)
        image = tf.io.decode_jpeg(example[IMAGE], channels=3)
        return tf.image.random_crop(image, [32, 32, 3]), example[LABEL] - 1

    return {"tf": tf, "np": np, "prepare": prepare}


MAPPED = "records.map(prepare, num_parallel_calls=2).batch(16)"


def stage(name: str, body: str):
    return defined(f"def {name}(records):\n    return {body}", name, **numbered())


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_stage_that_is_right_passes(capsys):
    for name, body in (
        ("parallel_map", MAPPED),
        ("parallel_map", MAPPED.replace("num_parallel_calls=2", "tf.data.AUTOTUNE")),
        ("parallel_map", MAPPED.replace("num_parallel_calls=2", "2")),
        ("parallel_map", MAPPED.replace("(16)", "(16, drop_remainder=True)")),
        ("prefetch", f"{MAPPED}.prefetch(2)"),
        ("prefetch", f"{MAPPED}.prefetch(tf.data.AUTOTUNE)"),
        ("prefetch", f"(lambda made: made.prefetch(1))({MAPPED})"),
    ):
        yours = stage(name, body)
        assert nb04.check(name, yours, numbered()["prepare"], 2, 16) is yours, capsys.readouterr()
        ours = nb04.check(name, stage(name, "None"), numbered()["prepare"], 2, 16)
        assert "not written yet" in capsys.readouterr().out
        nb04.judge_stage(ours, 16, 2, name == "prefetch")
    one = stage("parallel_map", MAPPED.replace("=2", "=1"))
    nb04.judge_stage(one, 16, 1, False)
    unnamed = defined(f"own = lambda records: {MAPPED}.prefetch(2)", "own", **numbered())
    assert nb04.check("prefetch", unnamed, numbered()["prepare"], 2, 16) is unnamed


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("parallel_map", MAPPED.replace(", num_parallel_calls=2", ""), "`cores` crops at once"),
        ("parallel_map", MAPPED.replace("=2", "=1"), "`cores` crops at once"),
        ("parallel_map", MAPPED.replace("num_parallel_calls=2", "deterministic=False"),
         "`cores` crops at once"),
        ("parallel_map", MAPPED.replace("=2", "=2, deterministic=False"), "no fixed order"),
        ("prefetch", f"{MAPPED}.prefetch(32)", "prepares 32 batches ahead"),
        ("parallel_map", MAPPED.replace("records", "records.prefetch(2)"), "It prefetches, too"),
        ("prefetch", MAPPED.replace("records", "records.prefetch(2)"), "no batches ahead"),
        ("parallel_map", MAPPED.replace(".batch(16)", ""), "batches have 1 images"),
        ("parallel_map", MAPPED.replace("16", "32"), "batches have 32 images"),
        ("parallel_map", f"{MAPPED}.prefetch(2)", "It prefetches, too"),
        ("parallel_map", f"{MAPPED}.repeat()", "never ends"),
        ("parallel_map", MAPPED.replace(".batch", ".shuffle(9).batch"), "in order"),
        ("parallel_map", "records.batch(16)", "not a pair"),
        ("prefetch", MAPPED, "no batches ahead"),
        ("prefetch", f"iter({MAPPED})", "Return a tf.data.Dataset"),
        ("prefetch", MAPPED.replace(".batch", ".prefetch(2).batch"), "no batches ahead"),
    ],
)  # fmt: skip
def test_stage_that_is_wrong_gets_a_diagnosis(name: str, body: str, said: str):
    with pytest.raises(Wrong) as wrong:
        nb04.judge_stage(stage(name, body), 16, 2, name == "prefetch")
    assert said in f"{wrong.value.diagnosis} {wrong.value.remedy}"


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_pipeline_that_is_right_passes(capsys):
    names = numbered()
    yours = defined(STAGES, "pipeline", **names)
    assert nb04.check("pipeline", yours, names["prepare"]) is yours
    ours = nb04.check("pipeline", lambda *given: None, names["prepare"])
    said = capsys.readouterr().out  # the finished version has the learner's arguments
    assert "not written yet" in said and "\ndef pipeline(shards," in said and "prepare" not in said
    assert nb04.judge_pipeline(ours)
    for old, new in OWN_FILES:
        assert old in STAGES
        yours = defined(STAGES.replace(old, new), "pipeline", **names)
        assert nb04.check("pipeline", yours, names["prepare"]) is yours, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_pipeline_that_is_right_but_slow_or_large_passes_with_a_note(capsys):
    names = numbered()
    shuffled, decoded = ".shuffle(100, seed)", ".map(prepare, num_parallel_calls=2)"
    changes = {
        "": (".prefetch(1)", ".prefetch(2)"),
        "Slow: without `prefetch`": (".prefetch(1)", ""),
        "Slow: without `num_parallel_calls`, `map`": ("prepare, num_parallel_calls=2", "prepare"),
        "Slow over a network": (
            ".interleave(tf.data.TFRecordDataset, num_parallel_calls=2)",
            ".flat_map(tf.data.TFRecordDataset)",
        ),
        "Slow over a network: `interleave`": ("Dataset, num_parallel_calls=2", "Dataset"),
        "Weak: no image comes more than": ("shuffle(100", "shuffle(2"),
        "Large: `map` comes before": (shuffled + decoded, decoded + shuffled),
        "Large: `map` comes": (decoded, decoded + shuffled),
    }
    for note, (old, new) in changes.items():
        yours = defined(STAGES.replace(old, new), "pipeline", **names)
        assert nb04.check("pipeline", yours, names["prepare"]) is yours
        said = capsys.readouterr().out
        assert said.startswith("✓") and note in said
        assert ("Slow" in said, "Large" in said) == ("Slow" in note, "Large" in note)


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (SHARD, "", "read twice"),
        (SHARD, f".shuffle(4, seed + rank){SHARD}", "before you shuffle"),
        ("records.shuffle", "records.shard(size, rank).shuffle", "instead of 3 each"),
        ("size, rank", "size, 0", "read twice"),
        (f"{SHARD}{INTERLEAVE}", f"{INTERLEAVE}{SHARD}", "opens files of other ranks"),
        ("records.shuffle", "records.take(16).shuffle", "return 2, 2 full batches instead of 3"),
        (", drop_remainder=True).prefetch(1)", ").repeat()", "never ends"),
        (", drop_remainder=True", "", "drop_remainder"),
        (".shuffle(100, seed)", "", "stay in their order"),
        ("seed)", "seed, reshuffle_each_iteration=False)", "same order"),
        (".prefetch(1)", ".cache()", "after any `cache`"),
        (f".shuffle(100, seed){MAP}", f"{MAP}.cache().shuffle(100, seed)", "the same crop"),
        (f".shuffle(100, seed){MAP}{BATCHES}", f"{MAP}{BATCHES}.shuffle(9, seed + 1)",
         "Shuffle before `batch`"),
        ("batch(batch, ", "batch(2 * batch, ", "with 8 as the batch size"),
        ("batch(batch, ", "batch(32, ", "instead of 3 each"),
        (".batch(batch, drop_remainder=True)", "", "Batch the images"),
        (".prefetch(1)", ".as_numpy_iterator()", "Return a tf.data.Dataset"),
        (MAP, f"{MAP}.map(lambda image, label: (image, label - 1))", "Labels are -1 to 46"),
        (MAP, f"{MAP}.map(lambda image, label: (image, label + 1))", "Labels are 1 to 48"),
        (MAP, ".map(lambda record: prepare(record)[0])", "not a pair"),
        (INTERLEAVE, "\n    records = files", "gets a file name"),
        (f"{MAP}{BATCHES}", f"{BATCHES.replace('images', 'records')}{MAP}", "`map` before"),
    ],
)  # fmt: skip
def test_pipeline_that_is_wrong_gets_a_diagnosis(old: str, new: str, said: str):
    assert old in STAGES
    yours = defined(STAGES.replace(old, new), "pipeline", **numbered())
    with pytest.raises(Wrong) as wrong:
        nb04.judge_pipeline(yours)
    assert said in f"{wrong.value.diagnosis} {wrong.value.remedy}"
