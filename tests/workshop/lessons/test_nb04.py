"""The checks of notebook 04: right versions in any style pass, usual mistakes get a diagnosis."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import numpy as np
import pytest

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
    assert nb04.check_read(yours) is yours
    assert nb04.judge_read(nb04.read, tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("<QI", ">QI", "little-endian"),
        ("head[:8]", "head", "of which bytes"),
        ("yield data\n", "yield data\n            return\n", "it yields [b'first']"),
        ("yield data", "yield head + data", "It should yield"),
        ("yield data", "yield data.decode()", "yields str"),
        ("yield data", "return data", "Use `yield`"),
        ("raise ValueError(\"data\")", "pass", "in the data raises no ValueError"),
        ("raise ValueError(\"length\")", "pass", "checksum of the length raises no"),
        ("while head := file.read(12):", "while True:\n            head = file.read(12)", "end of"),
        ("file.read(4))[0] != masked_crc(data)", "file.read(4))[0] < 0", "raises no"),
        ('if struct.unpack("<I", file.read(4))[0] != masked_crc(data)', "if False", "4 bytes"),
        ("yield data", "if not data: return\n            yield data", "It should yield"),
        (LATE, f"            yield data\n{LATE.replace(YIELD, '')}", "only after that"),
        ("raise ValueError(\"data\")", "raise AssertionError", "not with ValueError"),
        ("raise ValueError(\"data\")", "raise KeyError", "not with ValueError"),
        ("data = file.read(length)", "file.seek(-4, 1); yield file.read(length); return",
         "It should yield"),
        ("file.read(4))[0] != masked", "file.read(4)) != masked", "struct's tuple"),
        ('open(path, "rb")', "open(path)", 'with "rb"'),
    ],
)  # fmt: skip
def test_reader_that_is_wrong_gets_a_diagnosis(old: str, new: str, said: str, tmp_path, capsys):
    assert old in LOOP
    yours = defined(LOOP.replace(old, new), "read", **READER)
    assert nb04.check_read(yours) is nb04.read
    wrong = capsys.readouterr().out
    assert wrong[0] == "✗" and any(part in wrong for part in said.split("|")), wrong


def test_reader_that_is_not_written_is_not_attempted(capsys):
    assert nb04.check_read(lambda path: None) is nb04.read  # type: ignore[arg-type, return-value]
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
    assert nb04.check_my_shards(yours) is yours


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return shards[worker::workers]",
         "With 8 shards and 2 x 2 workers, worker 0 of rank 0 and worker 0 of rank 1 read the"),
        ("return shards[rank::size]", "worker 0 of rank 0 and worker 1 of rank 0 read the same"),
        ("return shards", "read the same"),
        ("return 2 * shards[rank::size][worker::workers]", "read the same"),
        ("return shards[rank * workers + worker :: size * workers]", "the ranks read [5, 3]"),
        ("return shards[rank::size][worker::workers][:1]", "shards are not read"),
        ("return shards[rank::2][worker::workers]", "shards are not read"),
        ("return shards[rank][worker:]", "It returns"),
        ("return [shards[rank::size]]", "It returns [["),
    ],
)  # fmt: skip
def test_split_that_is_wrong_gets_a_diagnosis(body: str, said: str, capsys):
    yours = defined(f"def my_shards(shards, rank, size, worker, workers):\n    {body}", "my_shards")
    assert nb04.check_my_shards(yours) is nb04.my_shards
    wrong = capsys.readouterr().out
    assert wrong.startswith("✗") and said in wrong, wrong


STAGES = """
def pipeline(shards, rank, size, batch, seed):
    files = tf.data.Dataset.from_tensor_slices(shards).shard(size, rank)
    records = files.interleave(tf.data.TFRecordDataset)
    images = records.shuffle(100, seed).map(prepare)
    return images.batch(batch, drop_remainder=True).prefetch(1)
"""
SHARD, INTERLEAVE = (
    ".shard(size, rank)",
    "\n    records = files.interleave(tf.data.TFRecordDataset)",
)
OWN_FILES = (  # other ways to give each rank its files
    (f"(shards){SHARD}", "(shards[rank::size])"),
    (f"(shards){SHARD}", "(np.split(np.array(shards), size)[rank])"),
    (f"tf.data.Dataset.from_tensor_slices(shards){SHARD}",
     f"tf.data.Dataset.list_files(shards, shuffle=False){SHARD}"),
    (f"from_tensor_slices(shards){SHARD}{INTERLEAVE}",
     "from_tensor_slices(shards[rank::size])\n    records = tf.data.TFRecordDataset(files)"),
)  # fmt: skip


def numbered(**more):
    """Return the names that a learner's pipeline uses."""
    import tensorflow as tf

    def prepare(record):
        kinds = {IMAGE: tf.io.FixedLenFeature([], tf.string),
                 LABEL: tf.io.FixedLenFeature([], tf.int64)}  # fmt: skip
        example = tf.io.parse_single_example(record, kinds)
        return tf.io.decode_jpeg(example[IMAGE], channels=3), example[LABEL] - 1

    return {"tf": tf, "np": np, "prepare": prepare}


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_pipeline_that_is_right_passes(tmp_path: Path, capsys):
    names = numbered()
    yours = defined(STAGES, "pipeline", **names)
    assert nb04.check_pipeline(yours, names["prepare"]) is yours
    ours = nb04.check_pipeline(lambda *given: None, names["prepare"])
    said = capsys.readouterr().out  # the finished version has the learner's arguments
    assert "not written yet" in said and "\ndef pipeline(shards: " in said and "prepare" not in said
    assert nb04.judge_pipeline(ours, tmp_path)
    for old, new in OWN_FILES:
        assert old in STAGES
        yours = defined(STAGES.replace(old, new), "pipeline", **names)
        assert nb04.check_pipeline(yours, names["prepare"]) is yours, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_pipeline_that_is_right_but_slow_or_large_passes_with_a_note(capsys):
    names = numbered()
    shuffled, decoded = ".shuffle(100, seed)", ".map(prepare)"
    changes = {
        "": (".prefetch(1)", ".prefetch(2)"),
        "Slow: without `prefetch`": (".prefetch(1)", ""),
        "Large: `map` comes before": (shuffled + decoded, decoded + shuffled),
        "Large: `map` comes": (decoded, decoded + shuffled),
    }
    for note, (old, new) in changes.items():
        yours = defined(STAGES.replace(old, new), "pipeline", **names)
        assert nb04.check_pipeline(yours, names["prepare"]) is yours
        said = capsys.readouterr().out
        assert said.startswith("✓") and note in said
        assert ("Slow" in said, "Large" in said) == ("Slow" in note, "Large" in note)


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (".shard(size, rank)", "", "48 of 48 images are read by both ranks"),
        ("records.shuffle", "records.shard(size, rank).shuffle", "different images|opens files"),
        (f"{SHARD}{INTERLEAVE}", f"{INTERLEAVE}{SHARD}", "opens files of other ranks"),
        (SHARD, f".shuffle(4, seed + rank){SHARD}", "before anything shuffles"),
        (SHARD, ".shard(rank, size)", "The number comes first"),
        (".prefetch(1)", ".as_numpy_iterator()", "Return the dataset itself"),
        (".shuffle(100, seed)", "", "same order"),
        ("seed)", "seed, reshuffle_each_iteration=False)", "same order"),
        (", drop_remainder=True).prefetch(1)", ").repeat()", "does not end"),
        ("batch(batch, ", "batch(2 * batch, ", "instead of 8"),
        ("batch(batch, ", "batch(32, ", "Pass `batch`"),
        (".shuffle(100, seed).map(prepare)\n    return images.batch(batch, drop_remainder=True)",
         ".map(prepare)\n    return images.batch(batch, drop_remainder=True).shuffle(9, seed + 1)",
         "Whole batches"),
        (".batch(batch, drop_remainder=True)", "", "instead of 8|shapes|Batch the images"),
        (", drop_remainder=True", "", "is not full"),
        (".prefetch(1)", ".cache()", "after any `cache`"),
        (".shuffle(100, seed)", ".cache().shuffle(100, seed, reshuffle_each_iteration=False)",
         "same order"),
        (INTERLEAVE, "\n    records = files", "interleave"),
        (".map(prepare)\n    return images.batch(batch, drop_remainder=True)",
         ".batch(batch, drop_remainder=True)\n    return images.map(prepare)", "`map` before"),
        ("map(prepare)", "map(lambda record: prepare(record)[0])", "a pair"),
        ("records.shuffle", "records.take(16).shuffle", "Rank 0 reads"),
        ("size, rank", "size, 0", "opens files|both ranks"),
    ],
)  # fmt: skip
def test_pipeline_that_is_wrong_gets_a_diagnosis(old: str, new: str, said: str, tmp_path: Path):
    assert old in STAGES
    yours = defined(STAGES.replace(old, new), "pipeline", **numbered())
    with pytest.raises(Wrong) as wrong:
        nb04.judge_pipeline(yours, tmp_path)
    told = f"{wrong.value.diagnosis} {wrong.value.remedy}"
    assert any(part in told for part in said.split("|")), told


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_pipeline_with_a_vector_as_buffer_size_gets_tensorflow_s_error(tmp_path: Path):
    yours = defined(STAGES.replace("(100, seed)", "([100], seed)"), "pipeline", **numbered())
    with pytest.raises(Exception, match="buffer_size must be a scalar") as error:
        nb04.judge_pipeline(yours, tmp_path)
    assert not isinstance(error.value, Wrong)
