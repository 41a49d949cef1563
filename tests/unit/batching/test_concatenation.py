"""Many columns become one batch: equal to what NumPy's concatenation gives, and not copied twice."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.tensors import DATATYPES, STRING, Array, Buffer
from headrace.batching.concatenation import as_array, cut, join, join_padding_rows, padded_size
from headrace.model.servable import RowLayout, Shape, TensorSpec

CHANCE = np.random.default_rng(3)
every_datatype = pytest.mark.parametrize("dtype", [known.dtype for known in DATATYPES], ids=str)


def values(dtype: np.dtype, shape: Shape) -> Array:
    if dtype == STRING:
        flat = [b"\x00" * (index % 3) + str(index).encode() for index in range(int(np.prod(shape)))]
        return np.array([*flat, None], object)[:-1].reshape(shape)
    return CHANCE.integers(0, 2 if dtype == np.bool_ else 100, shape).astype(dtype)


def layout_of(dtype: np.dtype, *shapes: Shape) -> RowLayout:
    specs = tuple(TensorSpec(f"x{index}", dtype, (None,) * len(shape)) for index, shape in enumerate(shapes))
    return RowLayout("serving_default", specs, shapes)


def forms(array: Array) -> dict[str, Buffer]:
    """The same values in all the forms in which codecs hand them over."""
    if array.dtype == STRING:
        return {"array": array}
    raw = array.tobytes()
    askew = memoryview(b"\x01" + raw)[1:]
    frozen = array.copy()
    frozen.flags.writeable = False
    return {
        "array": array,
        "frozen array": frozen,
        "bytes": raw,
        "bytearray": bytearray(raw),
        "memoryview": memoryview(raw),
        "memoryview askew": askew,
        "memoryview of an array": memoryview(array),
        "array askew": np.ndarray(array.shape, array.dtype, askew),
    }


def assert_joined(joined: Array, expected: Array) -> None:
    assert joined.dtype == expected.dtype
    assert joined.flags.c_contiguous
    assert joined.flags.aligned
    np.testing.assert_array_equal(joined, expected)


@every_datatype
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize("padded", [6, 9])
def test_requests_in_all_forms_join_as_in_numpy(dtype: np.dtype, shape: Shape, padded: int) -> None:
    first, second = values(dtype, (2, *shape)), values(dtype, (4, *shape))
    expected = np.concatenate([first, second, *[second[-1:]] * (padded - 6)])
    seconds = forms(second)
    for form, column in forms(first).items():
        joined = join(layout_of(dtype, shape), [(column,), (seconds[form],)], 6, padded)
        assert_joined(joined["x0"], expected)


@every_datatype
@pytest.mark.parametrize("padded", [3, 4])
def test_a_single_request_in_any_form_joins_as_it_is(dtype: np.dtype, padded: int) -> None:
    alone = values(dtype, (3, 2))
    expected = np.concatenate([alone, *[alone[-1:]] * (padded - 3)])
    for column in forms(alone).values():
        assert_joined(join(layout_of(dtype, (2,)), [(column,)], 3, padded)["x0"], expected)


@every_datatype
def test_a_single_request_is_not_copied(dtype: np.dtype) -> None:
    alone = values(dtype, (3, 2))
    for form, column in forms(alone).items():
        joined = join(layout_of(dtype, (2,)), [(column,)], 3, 3)["x0"]
        if "askew" not in form or dtype.itemsize == 1:
            source = column if isinstance(column, np.ndarray) else np.frombuffer(column, np.uint8)
            assert np.shares_memory(joined, source), form


@pytest.mark.parametrize("dtype", [np.dtype(np.uint8), np.dtype(np.float32)], ids=str)
@pytest.mark.parametrize("padded", [9, 12])
def test_large_requests_in_all_forms_join_as_in_numpy(dtype: np.dtype, padded: int) -> None:
    """Parts below and above the size from which other threads go on while a part is copied."""
    shape = (150_000,)
    arrays = [values(dtype, (rows, *shape)) for rows in (1, 7, 1)]
    expected = np.concatenate([*arrays, *[arrays[-1][-1:]] * (padded - 9)])
    for name in forms(arrays[0]):
        columns = [[forms(array)[name]] for array in arrays]
        joined = join(layout_of(dtype, shape), columns, 9, padded)["x0"]
        assert_joined(joined, expected)


def test_every_input_is_joined_by_itself() -> None:
    layout = layout_of(np.dtype(np.int32), (2,), ())
    first = (np.array([[1, 2]], np.int32), np.array([10], np.int32).tobytes())
    second = (np.array([[3, 4], [5, 6]], np.int32), np.array([20, 30], np.int32).tobytes())
    joined = join(layout, [first, second], 3, 3)
    assert joined["x0"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert joined["x1"].tolist() == [10, 20, 30]


@every_datatype
def test_rows_without_values_are_still_rows(dtype: np.dtype) -> None:
    empty = np.zeros((2, 0, 3), dtype)
    columns: list[tuple[Buffer]] = [(empty,), (empty if dtype == STRING else b"",)]
    joined = join(layout_of(dtype, (0, 3)), columns, 4, 5)["x0"]
    assert joined.shape == (5, 0, 3)
    assert joined.dtype == dtype


@every_datatype
def test_rows_of_different_lengths_are_filled_up(dtype: np.dtype) -> None:
    short, long = values(dtype, (2, 1, 3)), values(dtype, (1, 4, 2))
    nothing = b"" if dtype == STRING else 0
    expected = np.full((4, 4, 3), nothing, dtype)
    expected[:2, :1, :3] = short
    expected[2:3, :4, :2] = long
    layouts = [layout_of(dtype, (1, 3)), layout_of(dtype, (4, 2))]
    longs = forms(long)
    for form, column in forms(short).items():
        joined = join_padding_rows(layouts, [(column,), (longs[form],)], [2, 1], 4)
        assert_joined(joined["x0"], expected)


def test_rows_without_values_are_filled_up_too() -> None:
    dtype = np.dtype(np.int64)
    layouts = [layout_of(dtype, (0,)), layout_of(dtype, (2,))]
    joined = join_padding_rows(layouts, [(b"",), (np.array([[7, 8]], dtype),)], [2, 1], 3)
    assert joined["x0"].tolist() == [[0, 0], [0, 0], [7, 8]]


@every_datatype
def test_a_cut_is_the_rows_and_no_copy(dtype: np.dtype) -> None:
    layout, whole = layout_of(dtype, (2,)), values(dtype, (5, 2))
    for column in forms(whole).values():
        (part,) = cut(layout, (column,), 1, 4)
        array = as_array(layout.specs[0], part, 3, (2,))
        np.testing.assert_array_equal(array, whole[1:4])
        source = column if isinstance(column, np.ndarray) else np.frombuffer(column, np.uint8)
        assert np.shares_memory(array, source)


@pytest.mark.parametrize(
    ("rows", "allowed", "padded"),
    [(5, (), 5), (5, (8,), 8), (8, (4, 8, 16), 8), (9, (4, 8, 16), 16), (1, (4, 8), 4), (16, (16,), 16)],
)
def test_a_batch_is_padded_to_the_next_allowed_size(rows: int, allowed: tuple[int, ...], padded: int) -> None:
    assert padded_size(rows, allowed) == padded
