"""tf.train.Example without TensorFlow, against bytes that TensorFlow wrote and reads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.tfrecordwriter import example_pieces, serialize_example
from rn50lib.data.example import find_numbers, parse_example

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
def test_known_bytes(example, hexed):
    assert serialize_example(example).hex() == hexed


@settings(max_examples=50, deadline=None)
@given(features)
def test_comes_back(example):
    expected = {k: v if isinstance(v, list) else [v] for k, v in example.items()}
    assert parse_example(serialize_example(example)) == expected


def test_text_is_utf8_and_equal_numbers_of_other_types_stay_apart():
    got = parse_example(serialize_example({"a": "ä", "b": 1, "c": 1.0}))
    assert got == {"a": ["ä".encode()], "b": [1], "c": [1.0]}
    assert [type(got[key][0]) for key in "bc"] == [int, float]
    assert "ä" * 200 in parse_example(serialize_example({"ä" * 200: 1}))  # a key of many bytes
    # The same key, first with one type and then with the other.
    assert [parse_example(serialize_example({"k": v}))["k"] for v in (1, 1.0, True)] == [[1]] * 3
    assert type(parse_example(serialize_example({"k": 1.0}))["k"][0]) is float


def test_long_values_are_not_copied():
    image = b"x" * 5000
    assert any(piece is image for piece in example_pieces({"image": image, "label": 3}))


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


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    try:
        parse_example(data)
    except ValueError as error:
        assert str(error)


@given(features, st.data())
def test_damage_is_read_or_refused(example, data):
    damaged = bytearray(serialize_example(example) or b"\0")
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = parse_example(bytes(damaged))
    except ValueError:
        return
    size = sum(len(v) for vs in found.values() for v in vs if isinstance(v, bytes))
    assert size <= len(damaged)  # nothing is made up


def test_numbers_one_by_one_are_read_too():
    """Old writers do not pack lists: every number is a field of its own."""
    body = bytes.fromhex("080108ac02")
    feature = bytes([0x1A, len(body)]) + body
    entry = bytes([0x0A, 1]) + b"a" + bytes([0x12, len(feature)]) + feature
    features_ = bytes([0x0A, len(entry)]) + entry
    assert parse_example(bytes([0x0A, len(features_)]) + features_) == {"a": [1, 300]}


LABEL = "image/class/label"
labelled = st.fixed_dictionaries(
    {LABEL: kinds}, optional={"image/encoded": st.binary(max_size=300), "ä": kinds}
)


def side_by_side(records):
    """The label of each record; -1 if it is left to `parse_example`."""
    ends = np.cumsum([0, *map(len, records)])
    data = np.frombuffer(b"".join(records), np.uint8)
    return find_numbers(data, ends[:-1], ends[1:], LABEL).tolist()


@settings(deadline=None)
@given(st.lists(st.one_of(labelled, features), min_size=1, max_size=5))
def test_many_at_once_are_read_as_one_by_one_or_left_to_it(examples):
    records = [serialize_example(example) for example in examples]
    for record, label in zip(records, side_by_side(records), strict=True):
        if label >= 0:
            assert parse_example(record)[LABEL] == [label]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=300)), min_size=1))
def test_the_usual_ones_are_all_read_at_once(pairs):
    records = [serialize_example({"a": b, "x": b"y" * 200, LABEL: a}) for a, b in pairs]
    assert side_by_side(records) == [a for a, _ in pairs]


@given(st.lists(st.binary(max_size=60), min_size=1))
def test_many_bytes_that_are_no_example_are_left(records):
    side_by_side([*records, b"\0"])  # raises nothing
