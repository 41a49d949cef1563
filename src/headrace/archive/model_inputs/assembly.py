"""Build a model's inputs from stored values, by the same code in serving and in training.

Pure: lookups are passed in. Serving passes the present values (``Archive.lookup``), training those at the
time a row was served (``Archive.as_of``). All other code is shared, so that both see the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from headrace.archive.lookup.reports import Counted
from headrace.archive.lookup.space_reader import Lookup
from headrace.archive.model.catalog import SpaceVersion
from headrace.base.errors import ConfigError, InvalidRequest, InvalidRows
from headrace.base.tensors import BY_DTYPE, STRING, Array, Tensors
from headrace.batching.request import LookedUp
from headrace.config import InputSource
from headrace.model.casting import DoesNotFit, cast
from headrace.model.servable import TensorSpec

NO_KEY = -1
"""Value for no key in an integer input; in a text input it is the empty text."""

_MILLISECONDS = 1000
_ALL = slice(None)
_SEPARATOR = b"\x1f"  # unusual in keys; ASCII, so that it never occurs inside a multi-byte character


class Question(NamedTuple):
    """One lookup: the keys of a request's input in a space, for all model inputs that need it.

    Attributes:
        space: Name of the space or table.
        version: Version number; 0 for the default.
        key: Name of the request's input with the keys.
        inputs: Names of the model's inputs made of the result.
        keys: The keys, without rows that have none.
        rows: Their rows, ascending, int64 ``[len(keys)]``.
        written: Write times of the values that the rows were served with, uint64 ``[len(keys)]``, 0 for
            none; None if nothing was recorded.
    """

    space: str
    version: int
    key: str
    inputs: tuple[str, ...]
    keys: list[str]
    rows: Array
    written: Array | None = None


class Filled(NamedTuple):
    """A model's inputs from the archive, by name.

    Attributes:
        inputs: Their values, ``[rows, …]``.
        looked_up: Lookup result of each row.
        counts: Counts of the rows.
    """

    inputs: dict[str, Array]
    looked_up: dict[str, LookedUp]
    counts: dict[str, Counted]


@dataclass(frozen=True)
class ModelInputs:
    """The inputs of a model that come from the archive.

    Attributes:
        sources: Sources, by the input's name.
        versions: Space versions to look up; the default for other spaces.
        specs: Expected tensors, by the input's name. An input without one has the column's dtype, or is a
            float32 vector.
    """

    sources: Mapping[str, InputSource]
    versions: Mapping[str, int]
    specs: Mapping[str, TensorSpec]

    def questions(
        self, request: Tensors, recorded: Mapping[str, Array] | None = None
    ) -> tuple[Question, ...]:
        """Return the lookups to make: one question per space and key input.

        Args:
            request: Key inputs, ``[rows]`` or ``[rows, 1]``: integers, or ``bytes`` of UTF-8.
            recorded: By input of the model, write times of the values that rows were served with, uint64
                ``[rows]``, as recorded in answers; 0 for none.

        Raises:
            InvalidRows: A key is not UTF-8.
        """
        grouped: dict[tuple[str, str], list[str]] = {}
        for name, source in self.sources.items():
            grouped.setdefault((source.space, source.key), []).append(name)
        texts = {key: _texts(key, request[key]) for key in dict.fromkeys(key for _, key in grouped)}
        asked = []
        for (space, key), names in grouped.items():
            keys, rows = texts[key]
            written = None
            if known := [recorded[name] for name in names if name in recorded] if recorded else []:
                written = np.maximum.reduce(known)[rows]
            asked.append(Question(space, self.versions.get(space, 0), key, tuple(names), keys, rows, written))
        return tuple(asked)

    def filled(
        self,
        asked: Iterable[Question],
        answers: Iterable[Lookup],
        rows: int,
        now: int | Array,
        recorded: Mapping[str, Array] | None = None,
        real_rows: int | None = None,
    ) -> Filled:
        """Make the inputs from the answers to ``questions``.

        Args:
            asked: The questions.
            answers: The answers, in the same order.
            rows: Number of rows in the request.
            now: Time at which the rows are served, in milliseconds of Unix time: one, or one per row
                ``[rows]``. The age of values is measured from it.
            recorded: As in ``questions``; a value recorded with 0 counts as missing.
            real_rows: Number of leading rows to count; the others pad a batch. None for all.
        """
        real = rows if real_rows is None else real_rows
        made = Filled({}, {}, {})
        for question, answer in zip(asked, answers, strict=True):
            whole = _of_all_rows(question, answer, rows)
            for name in question.inputs:
                source = self.sources[name]
                too_old = _too_old(source, whole.written, now, (recorded or {}).get(name))
                written = whole.written
                if too_old is not None:
                    written = np.where(too_old, np.uint64(0), written)
                found = written != 0
                values = whole.part(source.column, _ALL) if source.column else whole.vectors
                if not found.all():
                    values = _with_missing(values, ~found, _missing(source, whole))
                made.inputs[name] = _as_input(values, self.specs.get(name))
                made.looked_up[name] = LookedUp(np.full(rows, whole.version), written)
                keys = int(np.searchsorted(question.rows, real))
                late = 0 if too_old is None else int(np.count_nonzero(too_old[:real]))
                made.counts[name] = Counted(keys, int(np.count_nonzero(found[:real])), late)
        return made


def len_of(request: Tensors) -> int:
    """Return the number of rows in a request."""
    return len(next(iter(request.values())))


def check_fits(name: str, source: InputSource, spec: TensorSpec, version: SpaceVersion) -> None:
    """Refuse an input that a space version cannot provide.

    Args:
        name: Name of the input.
        source: Source of the input.
        spec: Tensor that the model takes.
        version: The space version.

    Raises:
        ConfigError: There is no such column, the dtype or shape differs, or the default does not fit.
    """
    where, of = f"inputs.{name}", f"version {version.number} of the space {source.space!r}"
    columns = {column.name: column for column in version.columns}
    if columns and source.column not in columns:
        raise ConfigError(f"{where}.column: expected one of {', '.join(columns)}, got {source.column!r}")
    if source.column and not columns:
        raise ConfigError(f"{where}.column: {of} has vectors and no columns; leave it out")
    if columns:
        column = columns[source.column]
        given, size = STRING if column.dtype == "text" else np.dtype(column.dtype), 1
    else:
        given, size = version.form.answered, version.dimension
    if not _goes_into(given, spec.dtype):
        expected = f"{BY_DTYPE[spec.dtype].oip}, as the model takes it"
        raise ConfigError(f"{where}: expected {expected}, got {BY_DTYPE[given].oip} from {of}")
    if not _shape_fits(size, spec):
        raise ConfigError(f"{where}: expected {spec}, got {size} values per row from {of}")
    if not _can_be(source.default, given):
        expected = "a text" if given == STRING else f"a number of {BY_DTYPE[given].oip}"
        raise ConfigError(f"{where}.default: expected {expected}, got {source.default!r}")


def _can_be(default: float | str | None, given: np.dtype[np.generic]) -> bool:
    """Return whether a default can stand for values of a dtype."""
    if default is None or isinstance(default, str) or given == STRING:
        return default is None or isinstance(default, str) == (given == STRING)
    if given.kind == "f":
        return bool(abs(default) <= float(np.finfo(given.str).max))
    limits = np.iinfo(given.str)
    return isinstance(default, int) and limits.min <= default <= limits.max


def _goes_into(given: np.dtype[np.generic], wanted: np.dtype[np.generic]) -> bool:
    """Return whether values convert to another dtype, losing at most digits of floating-point numbers."""
    if STRING in (given, wanted):
        return given == wanted
    return np.can_cast(given, wanted, "same_kind" if wanted.kind == "f" else "safe")


def _shape_fits(size: int, spec: TensorSpec) -> bool:
    """Return whether that many values per row fit an input's shape; one dimension may be of any size."""
    known = math.prod(one for one in spec.shape if one is not None)
    unknown = spec.shape.count(None)
    return known == size if not unknown else unknown == 1 and known > 0 and size % known == 0


def _texts(name: str, values: Array) -> tuple[list[str], Array]:
    """Return the keys of an input as texts, without rows that have none, and their rows."""
    values = values.reshape(len(values))
    if values.dtype != STRING:
        rows = np.flatnonzero(values != NO_KEY)
        return list(map(str, values[rows].tolist())), rows
    given = values.tolist()
    try:
        texts = _SEPARATOR.join(given).decode().split(_SEPARATOR.decode())  # twice as fast as one by one
        if len(texts) != len(given):
            texts = [key.decode() for key in given]
    except UnicodeDecodeError:
        raise _not_utf8(name, given) from None
    if "" not in texts:
        return texts, np.arange(len(texts))
    rows = np.array([row for row, text in enumerate(texts) if text], np.int64)
    return [text for text in texts if text], rows


def _not_utf8(name: str, given: list[bytes]) -> InvalidRows:
    wrong = {}
    for row, key in enumerate(given):
        try:
            key.decode()
        except UnicodeDecodeError as error:
            wrong[row] = (name, f": expected a key in UTF-8, got {error.reason} at byte {error.start}")
    return InvalidRows.of(wrong)


def _of_all_rows(question: Question, answer: Lookup, rows: int) -> Lookup:
    """Extend an answer to all rows; those without a key get the OOV vector."""
    if len(question.keys) == rows:
        return answer
    vectors = np.empty((rows, *answer.oov.shape), answer.oov.dtype)
    vectors[:] = answer.oov
    vectors[question.rows] = answer.vectors
    written = np.zeros(rows, np.uint64)
    written[question.rows] = answer.written
    return replace(answer, vectors=vectors, written=written)


def _too_old(source: InputSource, written: Array, now: int | Array, recorded: Array | None) -> Array | None:
    """Return which values are too old and count as missing, bool ``[rows]``; None if none can be."""
    if recorded is not None:
        old: Array = (written != 0) & (recorded == 0)
    elif source.max_age_seconds:
        oldest = np.asarray(now, np.int64) - int(source.max_age_seconds * _MILLISECONDS)
        old = (written != 0) & (written.astype(np.int64) < oldest)
    else:
        return None
    return old


def _missing(source: InputSource, answer: Lookup) -> Array | bytes | float:
    """Return the value that stands for a missing one."""
    if source.default is not None:
        return source.default.encode() if isinstance(source.default, str) else source.default
    if not source.column:
        return answer.oov
    value: bytes | float = replace(answer, vectors=answer.oov[None]).part(source.column, _ALL)[0]
    return value


def _with_missing(values: Array, missing: Array, value: Array | bytes | float) -> Array:
    """Return a copy of the values, as other inputs may share them, with missing ones replaced."""
    values = values.copy()
    values[missing] = value
    return values


def _as_input(values: Array, spec: TensorSpec | None) -> Array:
    """Return the values in the dtype and shape that the model takes."""
    if spec is None:
        return values if values.ndim == 1 else values.astype(np.float32, copy=False)
    if len(spec.shape) != values.ndim - 1:
        shape = [-1 if size is None else size for size in spec.shape]
        values = values.reshape(len(values), *shape)
    try:
        return np.ascontiguousarray(cast(values, spec.dtype))
    except DoesNotFit as error:
        raise InvalidRequest(str(error), field=spec.name) from None
