"""Join the columns of many requests into one batch's Tensors, once per batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from headrace.base.tensors import STRING, Array, Buffer, Tensors
from headrace.model.packed_columns import PackedColumns, PackedTensors
from headrace.model.servable import RowLayout, Shape, TensorSpec

if TYPE_CHECKING:
    from headrace.batching.request import Request

_LARGE_BYTES = 1024 * 1024


def join(
    layout: RowLayout,
    columns: Sequence[Sequence[Buffer]],
    rows: int,
    padded_rows: int,
    *,
    packed: bool = False,
) -> Tensors:
    """Join requests of one layout.

    A single request that needs no padding is not copied.

    Args:
        layout: Memory layout of a row, the same for all requests.
        columns: For each request, one buffer per input.
        rows: Total number of rows of the requests.
        padded_rows: Number of rows of the batch, ``>= rows``; the last row is repeated as padding.
        packed: Whether to keep texts packed, provided that those of all requests are.

    Returns:
        One array ``[padded_rows, *row shape]`` per input, possibly read-only.
    """
    if packed and all(type(request) is PackedColumns for request in columns):
        return _join_packed(layout, cast("Sequence[PackedColumns]", columns), rows, padded_rows)
    tensors = {}
    for index, spec in enumerate(layout.specs):
        parts = [request[index] for request in columns]
        if spec.dtype == STRING:
            tensors[spec.name] = _join_strings(parts, padded_rows - rows)
        else:
            tensors[spec.name] = _join_numbers(parts, layout, index, rows, padded_rows)
    return tensors


def join_one(layout: RowLayout, columns: Sequence[Buffer], rows: int) -> Tensors:
    """Return what ``join`` returns for one numeric request without padding; aligned arrays are not copied.

    Args:
        layout: Memory layout of a row.
        columns: One buffer per input.
        rows: Number of rows of the request.
    """
    return {
        spec.name: column
        if type(column) is np.ndarray and column.flags.aligned
        else _join_numbers([column], layout, index, rows, rows)
        for index, (spec, column) in enumerate(zip(layout.specs, columns, strict=True))
    }


def _join_packed(
    layout: RowLayout, requests: Sequence[PackedColumns], rows: int, padded_rows: int
) -> PackedTensors:
    numbers = {}
    for index, spec in enumerate(layout.specs):
        if spec.dtype != STRING:
            parts = [request[index] for request in requests]
            numbers[spec.name] = _join_numbers(parts, layout, index, rows, padded_rows)
    names = [spec.name for spec in layout.specs]
    return PackedTensors(names, requests, (rows, padded_rows), numbers)


def _join_numbers(parts: list[Buffer], layout: RowLayout, index: int, rows: int, padded_rows: int) -> Array:
    if layout.row_bytes[index] == 0:  # memoryview cannot cast rows without values
        return np.zeros((padded_rows, *layout.shapes[index]), layout.specs[index].dtype)
    if padded_rows > rows:
        last = memoryview(cast("bytes", parts[-1])).cast("B")
        parts = [*parts, bytes(last[len(last) - layout.row_bytes[index] :]) * (padded_rows - rows)]
    size = padded_rows * layout.row_bytes[index]
    if len(parts) == 1:
        buffer = parts[0]
    elif size >= _LARGE_BYTES and not all(type(part) is bytes for part in parts):
        buffer = _join_views(parts, size)
    else:
        buffer = b"".join(cast("list[bytes]", parts))
    array = as_array(layout.specs[index], buffer, padded_rows, layout.shapes[index])
    # A view into the middle of a message may be misaligned; kernels need aligned elements.
    return array if array.flags.aligned else array.copy()


def _join_views(parts: list[Buffer], size: int) -> memoryview:
    """Join buffers that are not all bytes objects.

    ``bytes.join`` releases the GIL only if all parts are bytes objects. This function lets other threads run
    between parts, and while a large part is copied.
    """
    whole = np.empty(size, np.uint8)
    target, start = whole.data, 0
    for part in parts:
        view = memoryview(cast("bytes", part)).cast("B")
        stop = start + len(view)
        if len(view) < _LARGE_BYTES:  # releasing and reacquiring the GIL would cost more than the copy
            target[start:stop] = view
        else:
            whole[start:stop] = np.frombuffer(view, np.uint8)
        start = stop
    return target


def _join_strings(parts: list[Buffer], extra_rows: int) -> Array:
    arrays = [part if isinstance(part, np.ndarray) else np.asarray(part, STRING) for part in parts]
    if extra_rows:
        arrays.append(np.repeat(arrays[-1][-1:], extra_rows, axis=0))
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


MOST_FILLED_BYTES = 16 * 1024 * 1024
"""Bytes that a batch of requests padded to the longest may always take, padding included."""

MOST_FILLED_TIMES = 4
"""Larger limit for large requests: a multiple of their unpadded size."""


class FilledRoom:
    """A ``Room`` that limits the memory taken by padding rows of different shapes."""

    __slots__ = ("_allowed", "_came", "_longest", "_rows")

    def __init__(self, allowed: Sequence[int]) -> None:
        """Begin an empty batch.

        Args:
            allowed: Allowed batch sizes; empty for any.
        """
        self._allowed = allowed
        self._rows = self._came = 0
        self._longest: tuple[Shape, ...] = ()

    def takes(self, request: Request) -> bool:
        """Add a request if the padded batch stays within the limit, and return whether it does.

        Args:
            request: A request of the same signature as those before it.
        """
        layout, rows = request.layout, self._rows + request.rows
        came = self._came + request.rows * _row_size(layout, layout.shapes)
        longest = layout.shapes
        if self._rows and longest != self._longest:
            longest = tuple(tuple(map(max, *pair)) for pair in zip(longest, self._longest, strict=True))
            padded = padded_size(rows, self._allowed)
            filled = padded * _row_size(layout, longest)
            if filled > max(MOST_FILLED_BYTES, MOST_FILLED_TIMES * came * padded // rows):
                return False
        self._rows, self._came, self._longest = rows, came, longest
        return True


def _row_size(layout: RowLayout, shapes: Sequence[Shape]) -> int:
    """Return the size in bytes of a row of these shapes, excluding the bytes that texts refer to."""
    return sum(
        spec.dtype.itemsize * math.prod(shape) for spec, shape in zip(layout.specs, shapes, strict=True)
    )


def join_padding_rows(
    layouts: Sequence[RowLayout],
    columns: Sequence[Sequence[Buffer]],
    request_rows: Sequence[int],
    padded_rows: int,
) -> Tensors:
    """Join requests whose rows differ in shape; pad them to the longest with zeros or empty strings.

    For models that accept variable lengths and mask the padding themselves (``pad_variable_length``).

    Args:
        layouts: The requests' layouts, all of one signature and therefore of equal ranks.
        columns: For each request, one buffer per input.
        request_rows: Number of rows of each request.
        padded_rows: Number of rows of the batch; further rows are zeros or empty strings as well.
    """
    tensors = {}
    for index, spec in enumerate(layouts[0].specs):
        shape = tuple(max(sizes) for sizes in zip(*(layout.shapes[index] for layout in layouts), strict=True))
        batch = np.full((padded_rows, *shape), b"" if spec.dtype == STRING else 0, spec.dtype)
        start = 0
        for layout, request, rows in zip(layouts, columns, request_rows, strict=True):
            part = as_array(spec, request[index], rows, layout.shapes[index])
            batch[(slice(start, start + rows), *map(slice, layout.shapes[index]))] = part
            start += rows
        tensors[spec.name] = batch
    return tensors


def as_array(spec: TensorSpec, column: Buffer, rows: int, shape: Shape) -> Array:
    """View one request's column as ``[rows, *row shape]``."""
    if isinstance(column, np.ndarray):
        return column
    array: Array = np.ndarray((rows, *shape), spec.dtype, column)
    return array


def cut(layout: RowLayout, columns: Sequence[Buffer], start: int, stop: int) -> Sequence[Buffer]:
    """Return the rows ``start:stop`` of a request's columns, without copying."""
    if type(columns) is PackedColumns:  # otherwise each part would unpack the whole request
        return columns.part(start, stop)
    return tuple(
        column[start:stop]
        if isinstance(column, np.ndarray)
        else memoryview(column).cast("B")[start * row_bytes : stop * row_bytes]
        for column, row_bytes in zip(columns, layout.row_bytes, strict=True)
    )


def padded_size(rows: int, allowed: Sequence[int]) -> int:
    """Return the number of rows to which a batch is padded.

    Args:
        rows: Number of rows of the batch.
        allowed: Allowed batch sizes, ascending, the last one at least ``rows``; empty for any.
    """
    for size in allowed:
        if size >= rows:
            return size
    return rows
