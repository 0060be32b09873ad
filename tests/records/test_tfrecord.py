"""TFRecord shards against bytes that TensorFlow wrote, and every way in which a shard is wrong."""

import gzip
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.tfrecordwriter import format_index, frame_record, write_records
from rn50lib.data.framing import RecordError
from rn50lib.data.tfrecord import TFRecordReader, find_shards, masked_crc
from rn50lib.errors import UserError

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
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "train-00000-of-00001.idx").write_bytes(INDEX)
    return find_shards(tmp_path, "train")[0]


def test_checksum_is_crc32c_masked():
    """The check value of CRC32C is 0xe3069283; the mask is spelt out here."""
    crc = 0xE3069283
    rotated = (crc >> 15) | ((crc << 17) & 0xFFFFFFFF)
    assert masked_crc(b"123456789") == (rotated + 0xA282EAD8) % 2**32


def test_known_bytes(tmp_path):
    assert b"".join(map(frame_record, RECORDS)) == SHARD
    with open(tmp_path / "x", "wb", buffering=0) as file:
        entries = write_records(file, ([record[:1], record[1:]] for record in RECORDS))
    assert (tmp_path / "x").read_bytes() == SHARD
    assert format_index(entries) == INDEX


@pytest.mark.parametrize("with_index", [True, False])
def test_reading(shard, with_index):
    reader = TFRecordReader(shard.path, shard.index if with_index else None)
    assert len(reader) == 3
    assert [reader.read(i) for i in (2, 0, 1)] == [RECORDS[2], RECORDS[0], RECORDS[1]]
    assert list(reader) == RECORDS
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.read(2) == RECORDS[2]
    with pytest.raises(IndexError):
        reader.read(3)


def test_cut_at_any_byte(shard):
    starts = [0, 19, 35]
    for cut in range(1, len(SHARD)):
        shard.path.write_bytes(SHARD[:cut])
        good = sum(end <= cut for end in starts[1:])
        if cut in starts:
            assert len(list(TFRecordReader(shard.path))) == good  # nothing says there was more
            continue
        for attempt in (lambda: list(TFRecordReader(shard.path)),
                        lambda: TFRecordReader(shard.path).offsets):  # fmt: skip
            with pytest.raises(RecordError, match=f"^{shard.path}: damaged at offset") as caught:
                attempt()
            assert caught.value.offset == starts[good]


def test_every_changed_byte_is_seen(shard):
    for at in range(len(SHARD)):
        damaged = bytearray(SHARD)
        damaged[at] ^= 0x10
        shard.path.write_bytes(damaged)
        found = 0 if at < 19 else 1 if at < 35 else 2
        got = []
        with pytest.raises(RecordError) as caught:
            for record in TFRecordReader(shard.path):
                got.append(record)
        assert got == RECORDS[:found] and caught.value.offset == [0, 19, 35][found]
        reader = TFRecordReader(shard.path, shard.index)
        for position in range(3):
            if position != found:
                assert reader.read(position) == RECORDS[position]
        with pytest.raises(RecordError):
            reader.read(found)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_random_damage_is_told(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damage") / "x"
    at = data.draw(st.integers(0, len(SHARD)))
    new = data.draw(st.binary(max_size=20))
    damaged = SHARD[:at] + new + SHARD[at + data.draw(st.integers(0, 20)) :]
    path.write_bytes(damaged)
    got = []
    try:
        got.extend(data for _, data in TFRecordReader(path).records())
    except RecordError as error:
        assert error.offset is not None
        return
    # Without an index, a whole record that is gone, or a whole one more, cannot be told.
    whole = iter(RECORDS)
    assert all(record in whole for record in got)


@pytest.mark.parametrize("text", ["", "0 19\nx 16\n35 37\n", "0\t19\t3\n"])
def test_index_that_cannot_be_read(shard, text):
    shard.index.write_text(text)
    with pytest.raises(RecordError, match=f"^{shard.index}: the index ") as caught:
        len(TFRecordReader(shard.path, shard.index))
    assert f"`python -m data_prep.tfrecord --index {shard.path.parent}`" in str(caught.value)


def test_index_with_other_borders(shard):
    shard.index.write_text("0 16\n16 19\n35 37\n")
    with pytest.raises(RecordError, match="damaged at offset 16"):
        TFRecordReader(shard.path, shard.index).read(1)


def test_missing_shards(tmp_path):
    with pytest.raises(UserError, match=r"no shards validation-NNNNN-of-NNNNN here"):
        find_shards(tmp_path, "val")
    for name in ("train-00000-of-00003", "train-00002-of-00003"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(UserError, match=r"train-00001-of-00003 is missing \(2 of 3"):
        find_shards(tmp_path, "train")
    (tmp_path / "train-00000-of-00001").write_bytes(b"")
    with pytest.raises(UserError, match="there are shards of 1 and of 3"):
        find_shards(tmp_path, "train")


def test_empty_file(tmp_path):
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(RecordError, match="the file is empty"):
        list(TFRecordReader(tmp_path / "x"))


def test_a_shard_compressed_with_gzip_is_named(shard):
    shard.path.write_bytes(gzip.compress(SHARD))
    for index in (None, shard.index):
        with pytest.raises(RecordError, match="compressed with gzip.*gunzip") as caught:
            list(TFRecordReader(shard.path, index))
        assert "damaged" not in str(caught.value)
