"""The parser turns bytes into validated batches, however they are cut, or says what they are instead."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from headrace.base.errors import StreamError
from headrace.stream.arrow_ipc_parser import FREE_EXPANSION_BYTES, StreamParser
from tests.streams import CLICKS, batch_of, clicks, stream_of

ROWS = clicks(300)


def parsed(data: bytes, step: int = 2**20) -> list[pa.RecordBatch]:
    parser = StreamParser()
    found = [batch for at in range(0, len(data), step) for batch in parser.feed(data[at : at + step])]
    parser.finish()
    assert parser.position.bytes == len(data)
    return found


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("step", [1, 7, 1000, 2**20])
def test_a_stream_may_come_in_pieces_of_any_size(compression: str | None, step: int) -> None:
    data = stream_of(ROWS, CLICKS, rows=100, compression=compression, emit_dictionary_deltas=True)
    found = parsed(data, step)
    assert [batch.num_rows for batch in found] == [100, 100, 100]
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches([ROWS]))


def test_dictionaries_may_grow_or_change_from_batch_to_batch() -> None:
    one, two = (batch_of(a=pa.array(list(text)).dictionary_encode()) for text in ("xyx", "zzx"))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, one.schema.with_metadata({b"headrace": CLICKS.encode()})) as writer:
        writer.write_batch(one)
        writer.write_batch(two)
    found = parsed(sink.getvalue().to_pybytes())
    assert [batch.column(0).to_pylist() for batch in found] == [["x", "y", "x"], ["z", "z", "x"]]


def test_a_dictionary_ends_with_its_stream() -> None:
    batch = batch_of(a=pa.array(["x", "y"]).dictionary_encode())
    schema, dictionary, rows = (
        one.serialize().to_pybytes() for one in pa.ipc.MessageReader.open_stream(stream_of(batch, CLICKS))
    )
    end = struct.pack("<Ii", 0xFFFFFFFF, 0)
    with pytest.raises(StreamError, match=r"expected number \(1\) of dictionaries"):
        parsed(schema + dictionary + end + schema + rows)


def test_the_schema_is_the_stream_s_unless_one_is_given() -> None:
    parser = StreamParser()
    parser.feed(stream_of(ROWS, CLICKS))
    assert parser.schema == CLICKS
    given = StreamParser(CLICKS)
    assert len(given.feed(stream_of(ROWS))) == 1


def test_without_any_schema_it_says_how_to_give_one() -> None:
    with pytest.raises(StreamError, match=r"--schema FILE\.toml"):
        parsed(stream_of(ROWS))


def test_streams_may_follow_one_another() -> None:
    data = stream_of(ROWS, CLICKS)
    assert len(parsed(data + data)) == 2


def test_a_second_stream_of_other_columns_is_refused_with_the_row() -> None:
    other = stream_of(batch_of(a=[1]), CLICKS)
    with pytest.raises(StreamError, match="other columns") as error:
        parsed(stream_of(ROWS, CLICKS) + other)
    assert error.value.row == 300


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b"label,c1,c2\n1,2,3\n", "got text .*headrace stream encode"),
        (b"a,b", "got text"),
        (b"ARROW1\0\0\0\0\0\0", "Arrow file"),
        (b"PAR1\x15\x04\x15\x10", "Parquet.*headrace stream encode"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "gzip"),
        (b"\x01\x02\x03\x04\x05\x06\x07\x08", "ff ff ff ff"),
    ],
)
def test_input_that_is_not_a_stream_is_named(data: bytes, said: str) -> None:
    with pytest.raises(StreamError, match=said):
        parsed(data)


def test_a_cut_stream_says_behind_which_row() -> None:
    data = stream_of(ROWS, CLICKS, rows=100)
    with pytest.raises(StreamError, match="cut within a message") as error:
        parsed(data[:-100])
    assert error.value.row == 200


def test_a_stream_may_end_without_saying_so() -> None:
    """Arrow's format allows it; what was written is whole."""
    assert len(parsed(stream_of(ROWS, CLICKS)[:-8])) == 1


def test_absurd_lengths_are_refused_before_memory_is_taken() -> None:
    prefix = struct.pack("<Ii", 0xFFFFFFFF, 2**31 - 1)
    with pytest.raises(StreamError, match="2147483647 bytes; expected at most"):
        StreamParser(most_bytes=2**20).feed(prefix)
    with pytest.raises(StreamError, match="expected at most 1000"):
        StreamParser(most_bytes=1000).feed(stream_of(ROWS, CLICKS))


def test_a_column_s_name_that_is_no_text_is_found_at_once() -> None:
    with pytest.raises(StreamError, match="corrupt"):
        parsed(stream_of(batch_of(abcdefgh=[1]), CLICKS).replace(b"abcdefgh", b"abcd\xffefg"))


def test_an_invalid_dictionary_index_is_found_before_anybody_reads_it() -> None:
    batch = batch_of(a=pa.array(["x", "y"] * 50).dictionary_encode())
    data = bytearray(stream_of(batch, CLICKS))
    at = data.rindex(struct.pack("<4i", 0, 1, 0, 1))
    data[at : at + 4] = struct.pack("<i", 1_000_000)
    with pytest.raises(StreamError, match="corrupt"):
        parsed(bytes(data))


@pytest.mark.parametrize("compression", ["zstd", None])
def test_the_decompressed_size_of_a_message_is_bounded_before_decompression(compression: str | None) -> None:
    batch = batch_of(a=["x" * (FREE_EXPANSION_BYTES + 2**20)])
    data = stream_of(batch, CLICKS, compression=compression)
    if compression is None:
        assert len(parsed(data)) == 1
        return
    assert len(data) < 100_000
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(StreamError, match=r"would expand to 68157\d+ bytes.* compress it less"):
            parsed(data)
        assert pool.max_memory() < 2**20
    finally:
        pa.set_memory_pool(before)


def test_the_decompressed_size_of_a_stream_is_bounded_by_the_bytes_received() -> None:
    """Each of them is small enough by itself."""
    batch = batch_of(a=["x" * 2**20] * 40)
    with pytest.raises(StreamError, match=r"the stream 256 times the bytes received"):
        parsed(stream_of(batch, CLICKS, rows=10, compression="zstd") * 4)


def test_small_batches_of_a_large_dictionary_are_checked_like_others() -> None:
    texts = pa.array([f"text {number}" for number in range(1000)])
    codes = pa.DictionaryArray.from_arrays(pa.array([1, 2, 3, None], pa.int32()), texts)
    lists = pa.ListArray.from_arrays([0, 2, 2, 4], codes)
    fixed = pa.FixedSizeListArray.from_arrays(codes, 2).take([0, 1, 1])
    batch = batch_of(a=codes.slice(0, 3), b=lists, c=fixed)
    data = stream_of(batch, CLICKS, rows=1)
    assert pa.Table.from_batches(parsed(data)).equals(pa.Table.from_batches([batch]))
    at = data.rindex(struct.pack("<q", 3))  # The third batch's index of the first column, and its padding.
    bad = data[:at] + struct.pack("<i", 1000) + data[at + 4 :]
    with pytest.raises(
        StreamError, match="the indices of a dictionary of 1000 values range from 1000 to 1000"
    ):
        parsed(bad)
