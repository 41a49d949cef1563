"""Inputs of a model that come from the archive by keys: what serving and training make of what is stored.

Pure: what looks keys up is given. Serving gives what is there now (``Archive.lookup``), training what was
there when a row was served (``Archive.as_of``); everything else is one code, so that both see the same.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from headrace.archive.catalog import SpaceVersion
from headrace.archive.looking import Lookup
from headrace.batching.request import LookedUp
from headrace.casting import DoesNotFit, cast
from headrace.config import InputSource
from headrace.errors import ConfigError, InvalidRequest, InvalidRows
from headrace.servable import TensorSpec
from headrace.tensors import BY_DTYPE, STRING, Array, Tensors

NO_KEY = -1
"""What stands for no key where keys are integers; of texts, the empty one does."""

_MILLISECONDS = 1000
_ALL = slice(None)
_SEPARATOR = b"\x1f"  # in no usual key; ASCII, so that it is within no letter


class Question(NamedTuple):
    """One lookup: the keys of an input of the request in a space, for all inputs of the model that need it.

    Attributes:
        space: The space or table.
        version: Its version; 0 for the default one.
        key: The request's input that holds the keys.
        inputs: The model's inputs that are made of it.
        keys: The keys, rows without one left out.
        rows: Which rows they are of, ascending, int64 ``[len(keys)]``.
        written: When the values were written that these rows were served with, uint64 ``[len(keys)]``, 0
            where there was none; None where nothing was recorded.
    """

    space: str
    version: int
    key: str
    inputs: tuple[str, ...]
    keys: list[str]
    rows: Array
    written: Array | None = None


Look = Callable[[Question], Lookup]
"""Answers a question, a row a key; it is asked with no keys, too, as its answer says what stands for none."""


@dataclass(frozen=True)
class Counted:
    """What the rows of one input came to.

    Attributes:
        keys: How many had a key.
        found: How many of those got a value.
        too_old: How many did not because it was older than it may be.
    """

    keys: int
    found: int
    too_old: int


class InputTotals:
    """What one input of a model came to since the process began, in all versions of the model.

    Attributes:
        keys: How many rows had a key.
        found: How many of those got a value.
        too_old: How many did not because it was older than it may be.
    """

    __slots__ = ("_turn", "found", "keys", "too_old")

    def __init__(self) -> None:
        """Begin with none."""
        self.keys = self.found = self.too_old = 0
        self._turn = threading.Lock()

    def add(self, counted: Counted) -> None:
        """Count a batch, in any thread."""
        with self._turn:
            self.keys += counted.keys
            self.found += counted.found
            self.too_old += counted.too_old


class Filled(NamedTuple):
    """The inputs of a model that come from the archive, by name.

    Attributes:
        inputs: Their values, ``[rows, …]``.
        looked_up: What was found for each row.
        counts: The same in numbers.
    """

    inputs: dict[str, Array]
    looked_up: dict[str, LookedUp]
    counts: dict[str, Counted]


@dataclass(frozen=True)
class ModelInputs:
    """Which inputs of a model come from the archive, and as what.

    Attributes:
        sources: Where each comes from, by the input's name.
        versions: The versions of spaces that are asked; of others it is the default one.
        specs: What the model takes, by the input's name. One that is left out has the column's dtype, or is a
            vector of float32.
    """

    sources: Mapping[str, InputSource]
    versions: Mapping[str, int]
    specs: Mapping[str, TensorSpec]

    def questions(
        self, request: Tensors, recorded: Mapping[str, Array] | None = None
    ) -> tuple[Question, ...]:
        """What to look up: one question a space and key input.

        Args:
            request: The key inputs, ``[rows]`` or ``[rows, 1]``: integers, or ``bytes`` of UTF-8.
            recorded: By input of the model, when the values were written that rows were served with, uint64
                ``[rows]``, as answers say; 0 where there was none.

        Raises:
            InvalidRows: A key is no UTF-8.
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

    def fill(
        self, request: Tensors, look: Look, now: int | Array, recorded: Mapping[str, Array] | None = None
    ) -> Filled:
        """Look up what the model needs beside the request.

        Args:
            request: As in ``questions``.
            look: Answers each question.
            now: When the request was, in milliseconds of Unix time: one time, or uint64 ``[rows]``.
            recorded: As in ``questions``; then what was recorded says which values were too old.

        Raises:
            InvalidRows: A key is no UTF-8.
        """
        asked = self.questions(request, recorded)
        return self.filled(asked, [look(question) for question in asked], len_of(request), now, recorded)

    def filled(
        self,
        asked: Iterable[Question],
        answers: Iterable[Lookup],
        rows: int,
        now: int | Array,
        recorded: Mapping[str, Array] | None = None,
        real_rows: int | None = None,
    ) -> Filled:
        """Make the inputs of the answers to questions; the second half of ``fill``.

        Args:
            asked: The questions.
            answers: The answers, in the same order.
            rows: How many rows the request has.
            now: As in ``fill``.
            recorded: As in ``fill``.
            real_rows: How many of the rows are counted, from the first one on; the others pad a batch. None
                for all.
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
    """How many rows a request has."""
    return len(next(iter(request.values())))


def check_fits(name: str, source: InputSource, spec: TensorSpec, version: SpaceVersion) -> None:
    """Refuse an input that a space version cannot give.

    Args:
        name: The input.
        source: Where it comes from.
        spec: What the model takes.
        version: Of the space.

    Raises:
        ConfigError: There is no such column, or dtype or shape are others, or the default is none of them.
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
        raise ConfigError(f"{where}: expected {spec}, got {size} values a row from {of}")
    if not _can_be(source.default, given):
        expected = "a text" if given == STRING else f"a number of {BY_DTYPE[given].oip}"
        raise ConfigError(f"{where}.default: expected {expected}, got {source.default!r}")


def _can_be(default: float | str | None, given: np.dtype[np.generic]) -> bool:
    """Whether a default can stand for values of a dtype."""
    if default is None or isinstance(default, str) or given == STRING:
        return default is None or isinstance(default, str) == (given == STRING)
    if given.kind == "f":
        return bool(abs(default) <= float(np.finfo(given.str).max))
    limits = np.iinfo(given.str)
    return isinstance(default, int) and limits.min <= default <= limits.max


def _goes_into(given: np.dtype[np.generic], wanted: np.dtype[np.generic]) -> bool:
    """Whether values may become those of another dtype: what is lost is digits of a float, at the most."""
    if STRING in (given, wanted):
        return given == wanted
    return np.can_cast(given, wanted, "same_kind" if wanted.kind == "f" else "safe")


def _shape_fits(size: int, spec: TensorSpec) -> bool:
    """Whether so many values a row can lie as an input wants them: one dimension may be of any size."""
    known = math.prod(one for one in spec.shape if one is not None)
    unknown = spec.shape.count(None)
    return known == size if not unknown else unknown == 1 and known > 0 and size % known == 0


def _texts(name: str, values: Array) -> tuple[list[str], Array]:
    """The keys of an input as texts, those of rows that have one, and which rows these are."""
    values = values.reshape(len(values))
    if values.dtype != STRING:
        rows = np.flatnonzero(values != NO_KEY)
        return list(map(str, values[rows].tolist())), rows
    given = values.tolist()
    try:
        texts = _SEPARATOR.join(given).decode().split(_SEPARATOR.decode())  # half the time of one by one
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
    """The answer as if all rows had asked: those without a key get what stands for a missing value."""
    if len(question.keys) == rows:
        return answer
    vectors = np.empty((rows, *answer.oov.shape), answer.oov.dtype)
    vectors[:] = answer.oov
    vectors[question.rows] = answer.vectors
    written = np.zeros(rows, np.uint64)
    written[question.rows] = answer.written
    return replace(answer, vectors=vectors, written=written)


def _too_old(source: InputSource, written: Array, now: int | Array, recorded: Array | None) -> Array | None:
    """Which values are there and count as missing all the same, bool ``[rows]``; None for none."""
    if recorded is not None:
        old: Array = (written != 0) & (recorded == 0)
    elif source.max_age_seconds:
        oldest = np.asarray(now, np.int64) - int(source.max_age_seconds * _MILLISECONDS)
        old = (written != 0) & (written.astype(np.int64) < oldest)
    else:
        return None
    return old


def _missing(source: InputSource, answer: Lookup) -> Array | bytes | float:
    """What stands for a value that is not there."""
    if source.default is not None:
        return source.default.encode() if isinstance(source.default, str) else source.default
    if not source.column:
        return answer.oov
    value: bytes | float = replace(answer, vectors=answer.oov[None]).part(source.column, _ALL)[0]
    return value


def _with_missing(values: Array, missing: Array, value: Array | bytes | float) -> Array:
    """Values with what stands for missing ones; a copy, as other inputs may be made of the same."""
    values = values.copy()
    values[missing] = value
    return values


def _as_input(values: Array, spec: TensorSpec | None) -> Array:
    """Values as the model takes them."""
    if spec is None:
        return values if values.ndim == 1 else values.astype(np.float32, copy=False)
    if len(spec.shape) != values.ndim - 1:
        shape = [-1 if size is None else size for size in spec.shape]
        values = values.reshape(len(values), *shape)
    try:
        return np.ascontiguousarray(cast(values, spec.dtype))
    except DoesNotFit as error:
        raise InvalidRequest(str(error), field=spec.name) from None
