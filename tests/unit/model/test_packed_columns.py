"""Packed inputs cut into parts: the rows that they stand for, and no object for any of their texts."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.tensors import STRING
from headrace.batching.concatenation import cut, join
from headrace.batching.request import Request
from headrace.batching.request_parts import parts_within, split
from headrace.model.packed_columns import HEAD, PackedColumns, PackedTensors
from headrace.model.servable import Signature, TensorSpec
from headrace.runtimes.ctr_inputs import TextFields, place_texts
from headrace.runtimes.ctr_inputs import packed as packed_objects
from headrace.stream.schema import Field
from tests.unit.model.columns import packed_columns

FLOAT = np.dtype(np.float32)
BY_FIELD = Signature(
    "by_field",
    (
        TensorSpec("price", FLOAT, (2,)),
        TensorSpec("user", STRING, ()),
        TensorSpec("place", FLOAT, ()),
        TensorSpec("tags", STRING, (3,)),
    ),
    (),
)
ROWS = 7


def packed(once: tuple[int, ...]) -> PackedColumns:
    """All inputs with their own rows, but for some that came with one for all."""
    random = np.random.default_rng(3)
    inputs = {}
    for spec in BY_FIELD.inputs:
        values = random.integers(0, 10**6, (ROWS, *(size or 1 for size in spec.shape)))
        if spec.dtype == STRING:
            texts = [b"%d" % value * (value % 4) for value in values.ravel()]
            inputs[spec.name] = np.array([*texts, None], STRING)[:-1].reshape(values.shape)
        else:
            inputs[spec.name] = values.astype(FLOAT)
    columns = packed_columns(BY_FIELD, inputs)
    places, found = columns.places.copy(), list(columns.inputs)
    for index in once:
        one = found[index]
        found[index] = one._replace(size=one.size // ROWS, came=1)
        if one.is_text:
            places[HEAD + [spec.name for spec in BY_FIELD.inputs if spec.dtype == STRING].index(
                BY_FIELD.inputs[index].name
            )] = 1  # fmt: skip
        else:
            places[one.first + 1] = places[one.first] + one.size // ROWS
    return PackedColumns(columns.message, places, tuple(found), 0)


@pytest.mark.parametrize("once", [(), (0,), (1,), (0, 1, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize(("start", "stop"), [(0, 7), (0, 1), (6, 7), (2, 5)])
def test_a_part_has_the_rows_of_the_whole(once: tuple[int, ...], start: int, stop: int) -> None:
    whole = packed(once)
    layout = BY_FIELD.layout(tuple(one.shape[1:] for one in whole.inputs))
    part = cut(layout, whole, start, stop)
    assert type(part) is PackedColumns
    again = cut(layout, part, 0, stop - start)  # a part is like any other request
    for made in (part, again):
        for one, other in zip(made, cut(layout, tuple(whole), start, stop), strict=True):
            if isinstance(one, np.ndarray):
                assert one.tolist() == np.asarray(other).tolist()
            else:
                assert bytes(one) == bytes(other)
    texts = [np.asarray(part[index]).ravel().tolist() for index in (1, 3)]
    assert part.text_bytes == sum(map(len, [one for several in texts for one in several]))


def test_a_large_request_is_cut_without_taking_its_texts_apart() -> None:
    whole = packed(())
    layout = BY_FIELD.layout(tuple(one.shape[1:] for one in whole.inputs))
    parts = split(Request(layout, whole, ROWS, lambda _: None), parts_within(ROWS, 2))
    # Else each part takes apart the whole: 12 s for 4,000 rows of one text, one by one.
    assert [type(part.columns) for part in parts] == [PackedColumns] * 4


@pytest.mark.parametrize("once", [(), (1,), (3,)])
def test_a_part_has_the_hashes_of_its_rows(once: tuple[int, ...]) -> None:
    fields = [Field(name="user", role="categorical", text=True)]
    fields += [Field(name="tags", role="categorical", text=True, values=3)]
    hashes = TextFields.of(fields, (1, 2**18 + 1), (0, 1))
    whole = packed(once)
    layout = BY_FIELD.layout(tuple(one.shape[1:] for one in whole.inputs))
    tensors = join(layout, [cut(layout, whole, 2, 5)], 3, 3, packed=True)
    assert isinstance(tensors, PackedTensors)
    objects = [np.asarray(whole[index])[2:5] for index in (1, 3)]
    found = []
    for data, places in ((tensors.data, tensors.places), packed_objects(objects, 3)):
        found.append(np.full((3, 4), 9, np.uint32))
        place_texts(data, places, hashes, found[-1], np.empty((3, 0), np.uint64))
    assert found[0].tolist() == found[1].tolist()
