"""Whatever bytes come, a stream gives its blocks or a StreamError; and how bytes are cut never matters."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import StreamError
from headrace.stream.arrow_ipc_parser import StreamParser
from headrace.stream.block import Block
from headrace.stream.block_reader import BackgroundReader, Reader, ReadSettings
from headrace.stream.hashing import hash_texts
from headrace.stream.text_files import WholeRows
from tests.examples import examples
from tests.streams import CLICKS, clicks, stream_of

STREAMS = [
    stream_of(clicks(60), CLICKS, rows=25, emit_dictionary_deltas=True),
    stream_of(clicks(60), CLICKS, rows=25, compression="lz4"),
    stream_of(clicks(60), CLICKS, rows=25, compression="zstd"),
]

Outcome = tuple[list[bytes], str]


def mixed(block: Block) -> bytes:
    return b"".join(one.tobytes() for one in (block.indices, block.dense, block.labels))


def outcome(data: bytes, kind: type[Reader] = Reader) -> Outcome:
    """The blocks that are given, and the error in the end."""
    blocks: list[bytes] = []
    try:
        with kind(io.BytesIO(data), ReadSettings(batch_rows=10, slices=("site",))) as reader:
            blocks.extend(mixed(block) for block in reader)
    except StreamError as error:
        return blocks, str(error)
    return blocks, ""


def fed(data: bytes, cuts: list[int]) -> tuple[list[pa.RecordBatch], str]:
    """What the parser gives of data that comes in pieces, until it fails."""
    parser, found, start = StreamParser(), [], 0
    try:
        for cut in [*sorted(cuts), len(data)]:
            found += parser.feed(data[start:cut])
            start = cut
        parser.finish()
    except StreamError as error:
        return found, str(error)
    return found, ""


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A stream with some bytes changed, cut out, put in twice, or cut off."""
    data = bytearray(draw(st.sampled_from(STREAMS)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 2)))
        count = draw(st.integers(1, 16))
        match draw(st.sampled_from(["change", "number", "remove", "repeat", "cut"])):
            case "change":
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "number":
                number = draw(st.sampled_from([-1, 0, 1, 2**31 - 1, 2**31, 2**63 - 1, -(2**63)]))
                data[at : at + 8] = (number % 2**64).to_bytes(8, "little")
            case "remove":
                del data[at : at + count]
            case "repeat":
                data[at:at] = data[at : at + count]
            case "cut":
                del data[at + 1 :]
    return bytes(data)


@given(damaged())
@settings(max_examples=examples(600), deadline=None)
def test_a_damaged_stream_gives_blocks_or_a_stream_error(data: bytes) -> None:
    blocks, error = outcome(data)
    assert len(blocks) < 1000
    assert not error or error.startswith("stream, row ")


@given(damaged())
@settings(max_examples=60, deadline=None)
def test_in_the_background_the_same_is_given(data: bytes) -> None:
    assert outcome(data, BackgroundReader) == outcome(data)


@given(st.sampled_from(STREAMS), st.data())
@settings(max_examples=100, deadline=None)
def test_how_a_stream_is_cut_into_pieces_never_matters(stream: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    found, error = fed(stream, cuts)
    whole, _ = fed(stream, [])
    assert not error
    assert all(one.equals(other) for one, other in zip(found, whole, strict=True))


@given(damaged(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_damaged_stream_fails_alike_in_pieces(stream: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    assert fed(stream, cuts)[1] == fed(stream, [])[1]


@given(st.lists(st.binary(max_size=80), max_size=20), st.integers(0, 2**64 - 1))
@settings(max_examples=200, deadline=None)
def test_hashes_are_xxh64(values: list[bytes], seed: int) -> None:
    texts = np.empty(len(values), object)
    texts[:] = values
    wanted = [xxhash.xxh64_intdigest(value, seed) for value in values]
    assert hash_texts(texts, np.uint64(seed)).tolist() == wanted


@given(st.text(alphabet='a,"\n', max_size=60))
@settings(max_examples=examples(400), deadline=None)
def test_rows_of_a_csv_that_is_cut_between_whole_ones_are_those_of_the_whole(text: str) -> None:
    content = text.encode()
    cut = WholeRows(",")(bytearray(content))
    # Closed and ended, so that Arrow takes what is left, too.
    rest = content[cut:]
    assert cells(content[:cut] + rest + b'"\n') == sorted(cells(content[:cut]) + cells(rest + b'"\n'))


def cells(content: bytes) -> list[list[str]]:
    """The rows of a CSV that may have any number of cells."""
    wide: list[list[str]] = []

    def kept(row: arrow_csv.InvalidRow) -> str:
        wide.append([row.text])
        return "skip"

    parse = arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=kept)
    read = arrow_csv.ReadOptions(column_names=["one"], use_threads=False)
    try:
        convert = arrow_csv.ConvertOptions(column_types={"one": pa.string()})
        table = arrow_csv.read_csv(io.BytesIO(content), read, parse, convert)
    except pa.ArrowInvalid as error:
        if "Empty CSV file" not in str(error):
            raise
        return sorted(wide)
    return sorted([*wide, *([str(value)] for value in table["one"].to_pylist())])
