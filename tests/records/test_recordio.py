"""Record files written and read: random access, labels, workers, and every way in which a file is
wrong.
"""

import math
import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.recordwriter import Writer, frame
from rn50lib.data.recordfile import RecordError
from rn50lib.data.recordio import Reader, join, locate
from tests.records import known


@pytest.fixture
def known_rec(tmp_path):
    (tmp_path / "known.rec").write_bytes(known.REC)
    (tmp_path / "known.idx").write_bytes(known.IDX)
    return tmp_path / "known.rec"


def write(prefix, count, size=100, seed=0):
    """Write records with keys 0, 7, 14, …, label number % 5; return their images."""
    rng = np.random.default_rng(seed)
    images = [rng.bytes(size + i) for i in range(count)]
    with Writer(prefix) as writer:
        for i, image in enumerate(images):
            writer.write(7 * i, known.pack(i % 5, 7 * i, image))
    return images


def test_writer_matches_mxnet(tmp_path):
    with Writer(tmp_path / "a") as writer:
        for key, label, image in known.RECORDS:
            writer.write(key, known.pack(label, key, image))
    assert (tmp_path / "a.rec").read_bytes() == known.REC
    assert (tmp_path / "a.idx").read_bytes() == known.IDX
    assert sorted(os.listdir(tmp_path)) == ["a.crc", "a.idx", "a.rec"]


def frame_by_the_rule(payload: bytes) -> bytes:
    """Frame a record exactly as the format's description says."""
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
def test_framing_follows_the_format_and_round_trips(payload):
    framed = frame(payload)
    assert framed == frame_by_the_rule(payload)
    span = locate(framed, 0, len(framed))
    assert span.end == len(framed)
    assert join(framed, span) == payload


def test_reader_reads_mxnets_files(known_rec):
    reader = Reader(known_rec)
    assert len(reader) == 5
    assert reader.keys.tolist() == [key for key, _, _ in known.RECORDS]
    for position, (key, label, image) in enumerate(known.RECORDS):
        got, data = reader[position]
        assert data == image
        assert got == label or isinstance(label, tuple) and math.isnan(got)
        assert reader.read(position) == known.pack(label, key, image)
    assert [data for _, data in reader.payloads()] == [
        known.pack(label, key, image) for key, label, image in known.RECORDS
    ]
    with pytest.raises(IndexError):
        reader[5]


def test_records_are_read_without_advice_to_the_kernel(known_rec, monkeypatch):
    """macOS has no `posix_fadvise`."""
    monkeypatch.delattr(os, "posix_fadvise")
    assert Reader(known_rec)[0][1] == known.RECORDS[0][2]


def test_a_missing_index_says_how_to_get_one(known_rec):
    known_rec.with_suffix(".idx").unlink()
    with pytest.raises(RecordError) as caught:
        len(Reader(known_rec))
    assert f"{known_rec.with_suffix('.idx')}: this list cannot be read" in str(caught.value)
    assert f"`python -m data_prep.im2rec --index {known_rec.with_suffix('')}`" in str(caught.value)


def test_labels(tmp_path):
    with Writer(tmp_path / "a") as writer:
        labels = [3.0, (5.0,), 0.0, 999.0, (1.0,)]
        for key, label in enumerate(labels):
            # The key of the fourth is the magic: its header is in two parts.
            key = 0xCED7230A if key == 3 else key
            writer.write(key, known.pack(label, key, b"image"))
    got = Reader(tmp_path / "a.rec").labels()
    assert got.dtype == np.int32
    assert got.tolist() == [3, 5, 0, 999, 1]


@pytest.mark.parametrize("label", [(1.0, 2.0), 0.5, -1.0, float("nan"), float("inf")])
def test_invalid_label_is_named(tmp_path, label):
    with Writer(tmp_path / "a") as writer:
        writer.write(4, known.pack(1, 4, b"image"))
        writer.write(8, known.pack(label, 8, b"image"))
    with pytest.raises(
        RecordError, match=r"record with key 8 at offset 40 .* a class is a whole number"
    ):
        Reader(tmp_path / "a.rec").labels()


# -- what is wrong, and how it is said -----------------------------------------------------------


def test_damage_is_reported_with_offset_and_other_records_are_read(tmp_path):
    write(tmp_path / "a", 50)
    data = bytearray((tmp_path / "a.rec").read_bytes())
    offset = int(Reader(tmp_path / "a.rec").offsets[37])
    data[offset] ^= 1
    (tmp_path / "a.rec").write_bytes(data)
    reader = Reader(tmp_path / "a.rec")
    assert reader[36][1] and reader[38][1]
    for attempt in (lambda: reader[37], lambda: list(reader.payloads()), reader.labels):
        with pytest.raises(RecordError, match=f"a.rec: damaged at offset {offset:,}: ") as caught:
            attempt()
        assert caught.value.offset == offset
        assert f"`python -m data_prep.verify {tmp_path}/a.rec`" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "0\t0\n7\n14\t272\n",
        "0\t0\n7\tx\n",
        "0\t0\n7\t-136\n",
        "0\t0\n7\t99999999999999999999\n",
        "0\t0\n0\t132\n14\t268\n",  # a key twice
        "0\t0\n7\t0\n14\t268\n",  # an offset twice
        "0\t0\n7\t4\n",
        "0\t0\n7\t1000000\n",
        "7\t1000000\n0\t0\n",
        "7\t132\n14\t268\n",  # a record is missing: the first, one, the last
        "0\t0\n14\t268\n",
        "0\t0\n7\t132\n",
        "version https://git-lfs.github.com/spec/v1\noid sha256:1\n",
    ],
)
def test_broken_index(tmp_path, text):
    write(tmp_path / "a", 3)
    assert (tmp_path / "a.idx").read_text() == "0\t0\n7\t132\n14\t268\n"
    (tmp_path / "a.crc").unlink()  # other programs write none
    (tmp_path / "a.idx").write_text(text)
    with pytest.raises(RecordError, match=r"a\.idx.*data_prep\.im2rec --index .*/a`"):
        Reader(tmp_path / "a.rec").labels()


def test_an_index_may_list_the_records_in_any_order(tmp_path):
    """Each record is compared with its own checksum."""
    write(tmp_path / "a", 3)
    images = [image for _, image in Reader(tmp_path / "a.rec")]
    lines = (tmp_path / "a.idx").read_text().splitlines()
    (tmp_path / "a.idx").write_text("\n".join(lines[::-1]))
    assert [image for _, image in Reader(tmp_path / "a.rec")] == images[::-1]


@pytest.mark.parametrize("offset", [2**62, 2**63 - 1])
def test_an_index_far_beyond_the_file_needs_no_memory(tmp_path, offset):
    write(tmp_path / "a", 2)
    (tmp_path / "a.idx").write_text(f"0\t0\n7\t{offset}\n")
    (tmp_path / "a.crc").unlink()
    with pytest.raises(RecordError, match=r"a\.idx does not belong to it"):
        Reader(tmp_path / "a.rec").labels()


# -- checksums -----------------------------------------------------------------------------------


def changed(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("position", range(len(known.RECORDS)))
def test_a_changed_record_is_refused(tmp_path, position):
    """This includes records in several parts, with several labels, and with a changed label."""
    with Writer(tmp_path / "a") as writer:
        for key, label, image in known.RECORDS:
            writer.write(key, known.pack(label, key, image))
    offset = int(Reader(tmp_path / "a.rec").offsets[position])
    for at in (8 + 4, 8 + 17):  # the label, and a number that nothing reads
        changed(tmp_path / "a.rec", offset + at)
        reader = pickle.loads(pickle.dumps(Reader(tmp_path / "a.rec")))
        with pytest.raises(RecordError, match="is not as it was packed") as caught:
            reader.read(position)
        assert caught.value.offset == offset
        with pytest.raises(RecordError):
            reader[position]
        changed(tmp_path / "a.rec", offset + at)
    assert Reader(tmp_path / "a.rec")[position]


def test_checksums_of_another_file_are_refused(tmp_path):
    images = write(tmp_path / "a", 3)
    write(tmp_path / "b", 2)
    os.replace(tmp_path / "b.crc", tmp_path / "a.crc")
    with pytest.raises(
        RecordError, match=r"a\.crc: .* lists other records .*im2rec --checksums .*/a`"
    ):
        Reader(tmp_path / "a.rec")[2]
    (tmp_path / "a.crc").unlink()
    assert Reader(tmp_path / "a.rec")[2][1] == images[2]


# -- writing -------------------------------------------------------------------------------------


def test_records_beyond_4_gib_are_read(tmp_path):
    """A sparse file contains nine records of 500 MB of zeros and a small one after them."""
    with open(tmp_path / "a.rec", "wb") as rec, open(tmp_path / "a.idx", "w") as idx:
        for key in range(10):
            size = 500_000_000 if key < 9 else 32
            idx.write(f"{key}\t{rec.tell()}\n")
            rec.write(struct.pack("<IIIfQQ", 0xCED7230A, size, 0, key, key, 0))
            rec.seek(size - 24 - 8, os.SEEK_CUR)
            rec.write(b"record %d" % key)
    reader = Reader(tmp_path / "a.rec")
    assert reader.offsets[9] > 1 << 32
    assert reader.labels().tolist() == list(range(10))
    assert reader[9] == (9, b"record 9")
