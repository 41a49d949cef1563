"""Columns of every type become one array a kind; what cannot be learnt from is told by row and field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.base.errors import ConfigError, StreamError
from headrace.stream import record_batches
from headrace.stream.block import Block, Features
from headrace.stream.block_joining import OTHER, Joiner
from headrace.stream.hashing import keys_of, rows_of
from headrace.stream.schema import Schema
from tests.streams import CLICKS, batch_of, clicks, schema_of

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
TEXTS = ("string", "large_string", "binary", "large_binary")


def joined(schema: Schema, batch: pa.RecordBatch, slices: tuple[str, ...] = ()) -> Block:
    batch.validate(full=True)
    return Joiner(Features.of(schema), slices).join(batch)


@pytest.mark.parametrize("keys", ["hash", "bucket", "exact"])
@pytest.mark.parametrize("type_", INTEGERS)
def test_integers_of_every_type_and_offset(type_: str, keys: str) -> None:
    schema = schema_of(a={"keys": keys, "buckets": 128})
    (field,) = schema.fields
    values = [*range(100), None, 127] * 3
    whole = batch_of(a=pa.array(values, type_))
    for start, count in ((0, 306), (3, 250), (100, 5)):
        block = joined(schema, whole.slice(start, count))
        wanted = np.array([-1 if one is None else one for one in values[start : start + count]])
        if keys == "exact":
            assert block.keys is not None
            assert block.keys[:, 0].tolist() == keys_of(wanted, field).tolist()
            assert not block.indices.any()
        else:
            assert block.indices[:, 0].tolist() == rows_of(wanted, field, 1).tolist()
            assert block.keys is None


@pytest.mark.parametrize("in_dictionary", [False, True])
@pytest.mark.parametrize("type_", TEXTS)
def test_texts_of_every_type(type_: str, in_dictionary: bool) -> None:
    schema = schema_of(a={"text": True, "buckets": 1000})
    values = ["x", None, "", "yy", "ünïcode", "z" * 100] * 50
    column = pa.array(values).cast(type_)
    batch = batch_of(a=column.dictionary_encode() if in_dictionary else column).slice(7, 200)
    plain = np.array([(one or "").encode() for one in values[7:207]], object)
    assert joined(schema, batch).indices[:, 0].tolist() == rows_of(plain, schema.fields[0], 1).tolist()


def test_a_dictionary_far_longer_than_the_batch() -> None:
    schema = schema_of(a={"text": True})
    batch = batch_of(a=pa.array([str(one) for one in range(1000)]).dictionary_encode()).slice(990, 3)
    plain = np.array([b"990", b"991", b"992"], object)
    assert joined(schema, batch).indices[:, 0].tolist() == rows_of(plain, schema.fields[0], 1).tolist()


@pytest.mark.parametrize("list_", [pa.list_, pa.large_list, lambda one: pa.list_(one, 2)])
def test_lists_fill_slots_side_by_side(list_: Any) -> None:
    schema = schema_of(a={"keys": "bucket", "buckets": 10, "values": 2}, b={"keys": "bucket", "buckets": 5})
    lists = [[1, 2], None, [3, None], [None, 4], [None, None]]
    batch = batch_of(a=pa.array(lists, list_(pa.int16())), b=[0, 1, 2, 3, 4])
    wanted = [[2, 3, 11], [1, 0, 12], [4, 0, 13], [0, 5, 14], [1, 0, 15]]
    assert joined(schema, batch).indices.tolist() == wanted
    assert joined(schema, batch.slice(2, 2)).indices.tolist() == wanted[2:4]


def test_lists_of_texts_in_dictionaries_are_cut_at_the_most_values() -> None:
    schema = schema_of(tags={"text": True, "values": 2, "keys": "exact"})
    values = pa.array(["a", "b", "c", "a"]).dictionary_encode()
    batch = batch_of(tags=pa.ListArray.from_arrays(pa.array([0, 3, 3, 4], pa.int32()), values))
    a, b = keys_of(np.array([b"a", b"b"], object), schema.fields[0]).tolist()
    block = joined(schema, batch)
    assert block.keys is not None
    assert block.keys.tolist() == [[a, b], [0, 0], [a, 0]]


@pytest.mark.parametrize("type_", [*INTEGERS, "float16", "float32", "float64"])
def test_numbers_of_every_type(type_: str) -> None:
    values: list[float | None] = [0, 1, 100, None, 7] * 60
    column = pa.array(
        values if not type_.startswith("float") else [one and one + 0.5 for one in values], type_
    )
    wanted = [0.0 if one is None else float(one) for one in column.to_pylist()]
    block = joined(schema_of(a={"role": "dense"}), batch_of(a=column).slice(3, 200))
    assert block.dense[:, 0].tolist() == wanted[3:203]


def test_every_float16_is_itself() -> None:
    values = np.arange(2**16, dtype=np.uint16).view(np.float16)
    values = values[np.isfinite(values)]
    block = joined(schema_of(a={"role": "dense"}), batch_of(a=pa.array(values)))
    assert np.array_equal(block.dense[:, 0], values.astype(np.float32))


@pytest.mark.parametrize("type_", ["float16", "float32", "float64", "int8"])
def test_vectors_lie_beside_dense_fields(type_: str) -> None:
    schema = schema_of(a={"role": "dense"}, v={"role": "vector", "size": 2})
    batch = batch_of(
        a=[7, 8, 9], v=pa.array([[1, 2], None, [3, None]], pa.list_(pa.type_for_alias(type_), 2))
    )
    assert joined(schema, batch).dense.tolist() == [[7, 1, 2], [8, 0, 0], [9, 3, 0]]
    assert joined(schema, batch.slice(1)).dense.tolist() == [[8, 0, 0], [9, 3, 0]]


@pytest.mark.parametrize("type_", ["bool", "int8", "uint64", "float64"])
def test_labels_weights_and_truth(type_: str) -> None:
    schema = schema_of(y={"role": "label"}, w={"role": "weight"}, p={"role": "truth"}, a={})
    batch = batch_of(y=pa.array([0, 1, 1]).cast(type_), w=[0.5, 0, 2], p=[0.25, 0, 1], a=[1, 2, 3])
    block = joined(schema, batch)
    assert block.labels.tolist() == [0, 1, 1]
    assert block.weights is not None
    assert block.weights.tolist() == [0.5, 0, 2]
    assert block.truth is not None
    assert block.truth.tolist() == [0.25, 0, 1]


@pytest.mark.parametrize(("unit", "one"), [("s", 2_000_000), ("ms", 2000), ("us", 2), ("ns", 0)])
def test_times_are_microseconds(unit: str, one: int) -> None:
    schema = schema_of(t={"role": "timestamp"}, a={})
    block = joined(schema, batch_of(t=pa.array([2, 2], pa.timestamp(unit)), a=[1, 2]))
    assert block.timestamps is not None
    assert block.timestamps.tolist() == [one, one]
    assert not len(block.labels)


WRONG = [
    ({"y": [0, 1, 2]}, "y", 2, "expected 0 or 1, got 2"),
    ({"y": [0, None, 2]}, "y", 1, "expected 0 or 1, got null"),
    ({"y": [0.0, 1.0, np.nan]}, "y", 2, "got nan"),
    ({"w": [1, -1, 1]}, "w", 1, "0 or more, got -1"),
    ({"w": [1, 1, np.inf]}, "w", 2, "got inf"),
    ({"a": [0, 10, -7]}, "a", 1, "bucket from 0 to 9, or none, got 10"),
    ({"b": [[0], [9, 10], []]}, "b", 1, r"bucket from 0 to 9, or none, got \[9, 10\]"),
    ({"d": [0.0, np.nan, np.inf]}, "d", 1, "finite number, or none, got nan"),
    ({"d": [0.0, 0.0, 1e300]}, "d", 2, "finite number, or none, got 1e.300"),
    ({"v": pa.array([[0.0], [0.0], [np.inf]], pa.list_(pa.float32(), 1))}, "v", 2, "got .inf"),
    ({"t": [1, None, 2]}, "t", 1, "expected a time, got null"),
    ({"t": pa.array([1, 2**60, 2], pa.timestamp("s"))}, "t", 1, "within 146,000 years of 1970"),
    ({"y": [0, 1, 2], "a": [0, 0, 10], "d": [0.0, np.nan, 0.0]}, "d", 1, "finite"),
]


@pytest.mark.parametrize(("columns", "field", "row", "said"), WRONG)
def test_errors_name_row_and_field(columns: dict[str, Any], field: str, row: int, said: str) -> None:
    """The first wrong row of all fields, wherever its batch begins."""
    schema = schema_of(
        y={"role": "label"},
        w={"role": "weight"},
        t={"role": "timestamp"},
        a={"keys": "bucket", "buckets": 10},
        b={"keys": "bucket", "buckets": 10, "values": 2},
        d={"role": "dense"},
        v={"role": "vector", "size": 1},
    )
    good = {
        "y": [0, 1, 0],
        "w": [1, 1, 1],
        "t": [1, 2, 3],
        "a": [1, 2, 3],
        "b": [[1], [], [2]],
        "d": [1, 2, 3],
    }
    vectors = pa.array([[1.0]] * 3, pa.list_(pa.float32(), 1))
    with pytest.raises(StreamError, match=said) as error:
        Joiner(Features.of(schema)).join(batch_of(**{**good, "v": vectors, **columns}), 1000)
    assert (error.value.row, error.value.field) == (1000 + row, field)


@pytest.mark.parametrize(
    ("schema", "column", "said"),
    [
        (schema_of(a={}), pa.array([1.5]), "integers .*text = false.*got a column of type double"),
        (schema_of(a={}), pa.array(["x"]), "integers .*text = false"),
        (schema_of(a={"text": True}), pa.array([1]), "text or bytes .*text = true"),
        (schema_of(a={"keys": "bucket"}), pa.array(["x"]).dictionary_encode(), "expected integers"),
        (schema_of(a={}), pa.array([[1]]), "values. above 1"),
        (schema_of(a={"role": "dense"}), pa.array(["x"]), "a number"),
        (schema_of(a={"role": "vector", "size": 2}), pa.array([[1.0]]), "fixed size 2"),
        (
            schema_of(a={"role": "vector", "size": 2}),
            pa.array([[1.0]], pa.list_(pa.float32(), 1)),
            "fixed size 2",
        ),
        (schema_of(a={"role": "label"}, b={}), pa.array([[1]]), "a number"),
        (schema_of(a={"role": "timestamp"}, b={}), pa.array([1.5]), "timestamps"),
    ],
)
def test_a_column_of_a_wrong_type_is_refused_up_front(schema: Schema, column: pa.Array, said: str) -> None:
    with pytest.raises(StreamError, match=said) as error:
        Joiner(Features.of(schema)).check(batch_of(a=column, b=[1]).schema)
    assert error.value.field == "a"


def test_a_missing_column_is_refused_up_front() -> None:
    with pytest.raises(StreamError, match="no such column; the stream has x, y"):
        Joiner(Features.of(schema_of(a={}))).check(batch_of(x=[1], y=[2]).schema)


def test_batches_are_joined_into_one_block() -> None:
    batch, joiner = clicks(500), Joiner(Features.of(CLICKS))
    whole = joiner.join(batch, 7)
    parts = joiner.join_all([batch.slice(0, 100), batch.slice(100, 0), batch.slice(100)], 7)
    assert parts.first_row == 7
    for name in ("indices", "dense", "labels"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name))
        assert getattr(parts, name).flags.c_contiguous


def test_unaligned_buffers_are_read_as_they_are() -> None:
    memory = pa.py_buffer(b"x" + np.arange(100).tobytes())
    column = pa.Array.from_buffers(pa.int64(), 100, [None, memory.slice(1)])
    block = joined(schema_of(a={"keys": "bucket"}), batch_of(a=column))
    assert block.indices[:, 0].tolist() == list(range(1, 101))


def test_slices_keep_their_numbers_from_block_to_block() -> None:
    joiner = Joiner(Features.of(schema_of(a={})), ("site", "tags"))
    one = joiner.join(batch_of(a=[1, 2, 3], site=["x", None, "y"], tags=[["p"], None, []]))
    two = joiner.join(batch_of(a=[1, 2], site=["z", "x"], tags=[["p"], ["q"]]))
    assert one.slices["site"].codes.tolist() == [0, -1, 1]
    assert one.slices["site"].values == ("x", "y")
    assert two.slices["site"].codes.tolist() == [2, 0]
    assert two.slices["site"].values == ("x", "y", "z")
    assert two.slices["tags"].codes.tolist() == [0, 2]


def test_slices_of_too_many_values_have_the_rest_together() -> None:
    joiner = Joiner(Features.of(schema_of(a={})), ("a",))
    cut = joiner.join(batch_of(a=list(range(1500)))).slices["a"]
    assert cut.values[1000:] == (OTHER,)
    assert cut.codes[998:1003].tolist() == [998, 999, 1000, 1000, 1000]


def test_slices_of_a_dictionary_as_large_as_its_indices_allow() -> None:
    values = [f"v{number}" for number in range(128)]
    column = pa.DictionaryArray.from_arrays(pa.array([127, None, 0] * 50, pa.int8()), pa.array(values))
    cut = Joiner(Features.of(schema_of(a={})), ("site",)).join(batch_of(a=[1, 2, 3] * 50, site=column))
    assert cut.slices["site"].codes.tolist() == [0, -1, 1] * 50
    assert cut.slices["site"].values == ("v127", "v0")


def test_slices_of_a_few_rows_of_a_large_dictionary_know_only_their_values() -> None:
    column = pa.DictionaryArray.from_arrays(
        pa.array([900, None, 0]), pa.array([str(one) for one in range(1000)])
    )
    cut = Joiner(Features.of(schema_of(a={})), ("site",)).join(batch_of(a=[1, 2, 3], site=column))
    assert cut.slices["site"].codes.tolist() == [0, -1, 1]
    assert cut.slices["site"].values == ("900", "0")


@pytest.mark.parametrize("type_", ["string", "string_view"])
def test_unused_entries_of_a_dictionary_leave_room_for_used_ones(type_: str) -> None:
    entries = pa.array([str(one) for one in range(1500)]).cast(type_)
    column = pa.DictionaryArray.from_arrays(pa.array([1400, 1200, None, 1400] * 500), entries)
    cut = Joiner(Features.of(schema_of(a={})), ("site",)).join(batch_of(a=[1] * 2000, site=column))
    assert cut.slices["site"].codes[:4].tolist() == [0, 1, -1, 0]
    assert cut.slices["site"].values == ("1400", "1200")


def test_texts_that_somebody_was_to_cut_are_not_taken_for_one_value() -> None:
    schema = schema_of(a={"text": True, "values": 3, "separator": "|"})
    with pytest.raises(
        StreamError, match=r"a list, because the schema has a separator.*headrace stream encode"
    ):
        Joiner(Features.of(schema)).join(batch_of(a=["x|y"]))
    assert Joiner(Features.of(schema)).join(batch_of(a=[["x", "y"]])).indices.all(axis=1).tolist() == [False]


def test_a_slice_whose_values_take_too_much_is_the_stream_s_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batches, "MOST_BYTES", 100)
    texts = pa.array(["x" * 60, "y" * 60], pa.string_view())
    codes = pa.DictionaryArray.from_arrays(pa.array([0] * 300, pa.int32()), texts)
    joiner = Joiner(Features.of(schema_of(a={})), ("site",))
    with pytest.raises(StreamError, match="would take 120 bytes") as caught:
        joiner.join(batch_of(a=[1] * 300, site=codes), 7)
    assert (caught.value.row, caught.value.field) == (7, "site")


def test_times_that_python_has_not_are_slices_too() -> None:
    times = pa.array([1, 2**62, None], pa.int64()).cast(pa.timestamp("ns"))
    cut = Joiner(Features.of(schema_of(a={})), ("at",)).join(batch_of(a=[1, 2, 3], at=times))
    assert cut.slices["at"].codes.tolist() == [0, 1, -1]
    assert cut.slices["at"].values[0] == "1970-01-01 00:00:00.000000001"


def test_a_column_that_cannot_be_a_slice_is_refused_before_the_first_row() -> None:
    joiner = Joiner(Features.of(schema_of(a={})), ("who",))
    with pytest.raises(StreamError, match=r"field 'who'.* cannot be split by a column of type .*uuid"):
        joiner.check(pa.schema([("a", pa.int64()), ("who", pa.uuid())]))


def test_a_slice_that_is_no_column_is_the_option_s_error() -> None:
    joiner = Joiner(Features.of(schema_of(a={})), ("nope",))
    with pytest.raises(ConfigError, match="slice: the stream has no column 'nope'; it has a, site"):
        joiner.check(pa.schema([("a", pa.int64()), ("site", pa.string())]))
