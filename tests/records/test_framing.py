"""The bytes of a record, against bytes that MXNet wrote and the format's rule."""

import pickle
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rn50lib.data import framing
from rn50lib.errors import UserError
from tests.records import known


@pytest.mark.parametrize("number", range(len(known.RECORDS)))
def test_bytes_are_those_of_mxnet(number):
    key, label, image = known.RECORDS[number]
    framed = framing.frame(framing.pack_header(label, key, image))
    assert framed.hex() == known.FRAMED[number].replace(" ", "")


def frame_by_the_rule(payload: bytes) -> bytes:
    """The format's description, read word by word."""
    parts, start = [], 0
    for at in range(0, len(payload) // 4 * 4, 4):
        if payload[at : at + 4] == known.MAGIC:
            parts.append(payload[start:at])
            start = at + 4
    parts.append(payload[start:])
    out = b""
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        flag = (0 if last else 1) if number == 0 else (3 if last else 2)
        out += known.MAGIC + struct.pack("<I", flag << 29 | len(part)) + part
    return out + b"\0" * (-len(out) % 4)


# Payloads in which the magic, whole, cut and shifted, is frequent.
payloads = st.lists(
    st.one_of(
        st.sampled_from([known.MAGIC, known.MAGIC[:2], known.MAGIC[2:], known.MAGIC * 2]),
        st.binary(max_size=9),
    ),
    max_size=12,
).map(b"".join)


@given(payloads)
def test_framing_follows_the_rule_and_comes_back(payload):
    framed = framing.frame(payload)
    assert framed == frame_by_the_rule(payload)
    span = framing.locate(framed, 0, len(framed))
    assert span.end == len(framed)
    assert framing.join(framed, span) == payload


@given(
    label=st.one_of(
        st.floats(width=32, allow_nan=False),
        st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5).map(tuple),
    ),
    index=st.integers(0, 2**64 - 1),
    image=payloads,
)
def test_header_comes_back(label, index, image):
    header, back = framing.unpack_header(framing.pack_header(label, index, image))
    flag = len(label) if isinstance(label, tuple) else 0
    assert (header, back) == ((flag, label, index, 0), image)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"", "0 bytes is too short"),
        (b"x" * 23, "23 bytes is too short"),
        (struct.pack("<IfQQ", 2, 0, 1, 0) + b"1234", "of 28 bytes announces 2 labels"),
    ],
)
def test_short_records_are_refused(record, message):
    with pytest.raises(framing.RecordError, match=message):
        framing.unpack_header(record)


def test_payload_beyond_the_length_field_is_refused():
    class Huge(bytes):
        def __len__(self):
            return 1 << 29

    with pytest.raises(UserError, match=r"536,870,912 bytes does not fit .* 536,870,911"):
        framing.frame(Huge())


@pytest.mark.parametrize(
    ("hexed", "reason"),
    [
        ("0a23d7", "only 3 of the 8 bytes"),
        ("0a23d7cf 00000000", "but 0xcfd7230a is there"),
        ("0a23d7ce 05000000 61626364", "says 5 bytes, but the file ends after 4"),
        ("0a23d7ce 00000060", "part 1 of a record cannot have the flag 3"),
        ("0a23d7ce 00000080", "part 1 of a record cannot have the flag 4"),
        ("0a23d7ce 04000020 61626364", "only 0 of the 8 bytes of part 2 are there"),
        ("0a23d7ce 03000020 61626300 0a23d7ce 00000060", "part 1 of the record has an odd length"),
        ("0a23d7ce 00000020 0a23d7ce 00000000", "part 2 of a record cannot have the flag 0"),
        ("0a23d7ce 00000020 0a23d7ce 04000060 6162", "the record says 4 bytes"),
    ],
)
def test_damage_is_told_with_its_reason(hexed, reason):
    data = bytes.fromhex(hexed)
    with pytest.raises(framing.Damage, match=reason):
        framing.locate(data, 0, len(data))


def test_the_error_survives_the_way_from_a_worker():
    error = framing.RecordError("what happened", "train.rec", 12)
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.path, back.offset) == ("what happened", "train.rec", 12)
