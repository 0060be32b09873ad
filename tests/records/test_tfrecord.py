"""TFRecord shards against bytes that TensorFlow wrote, and every way in which a shard is wrong."""

import gzip
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.tfrecordwriter import format_index, frame_record, serialize_example, write_records
from rn50lib.data.recordfile import RecordError
from rn50lib.data.tfrecord import (
    TFRecordReader,
    find_shards,
    parse_example,
)

# TFRecordWriter of TensorFlow 2.21: three records.
RECORDS = [b"abc", b"", bytes.fromhex("0a130a110a056c6162656c120812060a040000803f")]
SHARD = bytes.fromhex(
    "0300000000000000b099490e6162636e57f121"
    "000000000000000029039807d8ea82a2"
    "1500000000000000d6ab6b2b0a130a110a056c6162656c120812060a040000803f850ac59e"
)
INDEX = b"0 19\n19 16\n35 37\n"  # offset, size with the framing


@pytest.fixture
def shard(tmp_path):
    (tmp_path / "train-00000-of-00001").write_bytes(SHARD)
    return find_shards(tmp_path, "train")[0]


def test_known_bytes(tmp_path):
    assert b"".join(map(frame_record, RECORDS)) == SHARD
    with open(tmp_path / "x", "wb") as file:
        entries = write_records(file, RECORDS)
    assert (tmp_path / "x").read_bytes() == SHARD
    assert format_index(entries) == INDEX


def test_reading(shard):
    reader = TFRecordReader(shard)
    assert [start - 12 for start, _ in reader.spans()] == [0, 19, 35]
    assert [data for _, data in reader.records()] == RECORDS
    assert pickle.loads(pickle.dumps(reader)).read(35) == RECORDS[2]


def test_every_changed_byte_is_detected(shard):
    for at in range(len(SHARD)):
        damaged = bytearray(SHARD)
        damaged[at] ^= 0x10
        shard.write_bytes(damaged)
        found = 0 if at < 19 else 1 if at < 35 else 2
        got = []
        with pytest.raises(RecordError) as caught:
            for _, record in TFRecordReader(shard).records():
                got.append(record)
        assert got == RECORDS[:found] and caught.value.offset == [0, 19, 35][found]
        reader = TFRecordReader(shard)
        for position, offset in enumerate([0, 19, 35]):
            if position != found:
                assert reader.read(offset) == RECORDS[position]


def test_a_shard_compressed_with_gzip_is_named(shard):
    shard.write_bytes(gzip.compress(SHARD))
    with pytest.raises(RecordError, match="compressed with gzip.*gunzip"):
        list(TFRecordReader(shard).records())


# -- examples -------------------------------------------------------------------------------------

# SerializeToString() of tf.train.Example, TensorFlow 2.21.
KNOWN = [
    ({"a": [1, -1, 300]}, "0a180a160a016112111a0f0a0d01ffffffffffffffffff01ac02"),
    ({"b": [b"xy", b""]}, "0a0f0a0d0a016212080a060a0278790a00"),
    ({"label": 1.0}, "0a130a110a056c6162656c120812060a040000803f"),
]

kinds = st.one_of(
    st.binary(max_size=3000),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(width=32, allow_nan=False),
    st.lists(st.binary(max_size=20), min_size=1, max_size=4),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=4),
)
features = st.dictionaries(st.text(max_size=20), kinds, max_size=5)


@pytest.mark.parametrize(("example", "hexed"), KNOWN)
def test_examples_match_tensorflows(example, hexed):
    assert serialize_example(example).hex() == hexed


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
@settings(max_examples=50, deadline=None)
@given(features)
def test_tensorflow_reads_the_same_and_we_read_tensorflows(example):
    import tensorflow as tf

    theirs = tf.train.Example.FromString(serialize_example(example))
    got = {}
    for key, feature in theirs.features.feature.items():
        got[key] = list(getattr(feature, feature.WhichOneof("kind")).value)
    assert got == {k: v if isinstance(v, list) else [v] for k, v in example.items()}
    assert parse_example(theirs.SerializeToString()) == got


def test_unpacked_numbers_are_read():
    """Old writers do not pack lists: every number is a separate field."""
    body = bytes.fromhex("080108ac02")
    feature = bytes([0x1A, len(body)]) + body
    entry = bytes([0x0A, 1]) + b"a" + bytes([0x12, len(feature)]) + feature
    features_ = bytes([0x0A, len(entry)]) + entry
    assert parse_example(bytes([0x0A, len(features_)]) + features_) == {"a": [1, 300]}
