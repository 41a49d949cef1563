"""What callers give an archive: checked before anything is done with it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.archive.catalog import SpaceVersion
from headrace.archive.columns import renumbered, row_dtype, rows_of
from headrace.errors import InvalidRequest
from headrace.tensors import Array

_PACKED_AT_ONCE_BYTES = 4 * 1024 * 1024


def size_of(key: object, longest: int) -> int:
    """How many bytes of UTF-8 a key has, or more than ``longest``; 0 for what is no Unicode text."""
    if isinstance(key, str) and len(key) > longest:
        return len(key)
    try:
        return len(key.encode()) if isinstance(key, str) else 0
    except UnicodeEncodeError:
        return 0


def check_out(out: Array, keys: int, version: SpaceVersion) -> None:
    """Refuse an array that an answer cannot be written to.

    Raises:
        InvalidRequest: It cannot.
    """
    form = version.form
    is_one = out.flags.c_contiguous and out.flags.writeable
    if out.shape != (keys, form.dimension) or out.dtype != form.answered or not is_one:
        expected = f"a C-contiguous array of {form.answered}, {[keys, form.dimension]}, to be written to"
        raise InvalidRequest(f"expected {expected}, got {out.dtype}, {list(out.shape)}", field="out")


def checked_vectors(vectors: Array, keys: int, version: SpaceVersion) -> Array:
    """Vectors as float32.

    Args:
        vectors: Numbers ``[keys, dimension]``.
        keys: How many there should be.
        version: Where they are to be stored.

    Raises:
        InvalidRequest: They are no finite numbers, or not as many as they should be.
    """
    if version.columns:
        raise InvalidRequest(
            "expected rows of columns, as for any feature table, got vectors", field="vectors"
        )
    vectors = np.asarray(vectors)
    if vectors.shape != (keys, version.dimension) or vectors.dtype.kind not in "fiu":
        expected = f"numbers {[keys, version.dimension]}"
        raise InvalidRequest(
            f"expected {expected}, got {vectors.dtype}, {list(vectors.shape)}", field="vectors"
        )
    with np.errstate(over="ignore"):
        vectors = vectors.astype(np.float32)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise InvalidRequest("expected finite numbers of float32", field=f"vectors[{int(np.argmin(finite))}]")
    return vectors


def checked_rows(values: Mapping[str, Array], keys: int, version: SpaceVersion) -> Array:
    """Values of columns as rows, uint8 ``[keys, row bytes]``.

    Args:
        values: By column, each ``[keys]``.
        keys: How many there should be.
        version: Where they are to be stored.

    Raises:
        InvalidRequest: They are not what the table's columns are, or not as many as they should be.
    """
    if not version.columns:
        raise InvalidRequest("expected vectors, as for any space that is no feature table", field="columns")
    step = max(1, _PACKED_AT_ONCE_BYTES // version.dimension)
    if keys <= step or {len(one) for one in values.values()} != {keys}:
        rows = rows_of(version.columns, values)
    else:  # beside wide rows there is no room for each column once more
        rows = np.empty(keys, row_dtype(version.columns))
        for start in range(0, keys, step):
            part = {name: one[start : start + step] for name, one in values.items()}
            try:
                rows[start : start + step] = rows_of(version.columns, part)
            except InvalidRequest as error:
                raise renumbered(error, start) from None
    if len(rows) != keys:
        raise InvalidRequest(f"expected {keys} values a column, one a key, got {len(rows)}", field="columns")
    return rows.view(np.uint8).reshape(keys, version.dimension)


def check_not_fed(table: str, version: SpaceVersion) -> None:
    """Refuse a table whose rows are counted from a stream: what is stored there would be no count.

    Raises:
        InvalidRequest: It is one.
    """
    if any(column.window for column in version.columns):
        problem = f"expected none, as {table!r} has windows; headrace archive feed counts them from a stream"
        raise InvalidRequest(problem, field="columns")


def checked_written(written: Array | None, keys: int) -> Array | None:
    """When values were written: milliseconds of Unix time, uint64 ``[keys]``, or None for now.

    Raises:
        InvalidRequest: They are no such times.
    """
    if written is None:
        return None
    written = np.asarray(written)
    if written.shape != (keys,) or written.dtype.kind not in "iu" or (written <= 0).any():
        expected = f"milliseconds of Unix time, above 0, uint64 {[keys]}"
        raise InvalidRequest(
            f"expected {expected}, got {written.dtype} {list(written.shape)}", field="written"
        )
    return written.astype(np.uint64)
