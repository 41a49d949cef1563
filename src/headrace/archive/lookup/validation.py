"""Checks of values that callers pass to an archive, before anything is done with them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.archive.model.catalog import SpaceVersion
from headrace.archive.model.columns import renumbered, row_dtype, rows_of
from headrace.base.errors import InvalidRequest
from headrace.base.tensors import Array

_PACKED_AT_ONCE_BYTES = 4 * 1024 * 1024


def size_of(key: object, longest: int) -> int:
    """Return a key's bytes of UTF-8; any number above ``longest`` if it is longer; 0 if it is not text."""
    if isinstance(key, str) and len(key) > longest:
        return len(key)
    try:
        return len(key.encode()) if isinstance(key, str) else 0
    except UnicodeEncodeError:
        return 0


def check_out(out: Array, keys: int, version: SpaceVersion) -> None:
    """Refuse an array that an answer cannot be written to.

    Raises:
        InvalidRequest: Its shape, dtype or flags are wrong.
    """
    form = version.form
    is_one = out.flags.c_contiguous and out.flags.writeable
    if out.shape != (keys, form.dimension) or out.dtype != form.answered or not is_one:
        expected = f"a writable C-contiguous array of {form.answered}, {[keys, form.dimension]}"
        raise InvalidRequest(f"expected {expected}, got {out.dtype}, {list(out.shape)}", field="out")


def checked_vectors(vectors: Array, keys: int, version: SpaceVersion) -> Array:
    """Return vectors as float32.

    Args:
        vectors: Numbers ``[keys, dimension]``.
        keys: Expected number of vectors.
        version: Space version to store them in.

    Raises:
        InvalidRequest: The numbers are not finite or of the wrong shape, or the space is a feature table.
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
    """Return the values of columns as rows, uint8 ``[keys, row bytes]``.

    Args:
        values: By column, each ``[keys]``.
        keys: Expected number of rows.
        version: Space version to store them in.

    Raises:
        InvalidRequest: The values do not fit the columns or the number of keys, or there are no columns.
    """
    if not version.columns:
        raise InvalidRequest(
            "expected vectors, as for any space that is not a feature table", field="columns"
        )
    step = max(1, _PACKED_AT_ONCE_BYTES // version.dimension)
    if keys <= step or {len(one) for one in values.values()} != {keys}:
        rows = rows_of(version.columns, values)
    else:  # in parts, so that wide rows and a copy of each column are not in memory together
        rows = np.empty(keys, row_dtype(version.columns))
        for start in range(0, keys, step):
            part = {name: one[start : start + step] for name, one in values.items()}
            try:
                rows[start : start + step] = rows_of(version.columns, part)
            except InvalidRequest as error:
                raise renumbered(error, start) from None
    if len(rows) != keys:
        raise InvalidRequest(
            f"expected {keys} values per column, one per key, got {len(rows)}", field="columns"
        )
    return rows.view(np.uint8).reshape(keys, version.dimension)


def check_not_fed(table: str, version: SpaceVersion) -> None:
    """Refuse a table whose rows are counted from a stream; a stored value would not be such a count.

    Raises:
        InvalidRequest: The table has windows.
    """
    if any(column.window for column in version.columns):
        problem = f"expected none, as {table!r} has windows; headrace archive feed counts them from a stream"
        raise InvalidRequest(problem, field="columns")


def checked_written(written: Array | None, keys: int) -> Array | None:
    """Return write times in milliseconds of Unix time, uint64 ``[keys]``; None for now.

    Raises:
        InvalidRequest: They are not such times.
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
