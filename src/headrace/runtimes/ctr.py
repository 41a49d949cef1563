"""headrace's own click models: ``model.ctr``, the arrays beside it, and kernels that share contexts.

Two signatures. ``serving_default`` takes one input for each field, with values as they were in the stream.
``rows`` is for clients in a hurry: all values joined, as bucket numbers, and as hashes where they have rows
of their own. Inputs of the context may come with one row for all candidates of a request. Needs the extra
``ctr``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.ctr.context import GroupedScorer
from headrace.ctr.files import read_model
from headrace.ctr.joined_inputs import Joined, join
from headrace.ctr.model import Contribution, Weights
from headrace.ctr.settings import ModelSettings
from headrace.ctr.zoo import scorer
from headrace.errors import ConfigError, InvalidRequest, LoadError
from headrace.runtimes.options import RuntimeOptions
from headrace.servable import DEFAULT_SIGNATURE, Kind, Signature, TensorSpec
from headrace.stream.features import Features
from headrace.stream.hashing import IntegerFields, keys_of, place_integers, rows_of
from headrace.stream.schema import Field
from headrace.tensors import STRING, Array, Tensors

ROWS_SIGNATURE = "rows"
"""The signature that takes joined inputs."""

PADDING = np.uint32(2**32 - 1)
"""In ``rows``: the bucket number of a place without a value."""

_FLOAT, _BUCKET, _INTEGER = np.dtype(np.float32), np.dtype(np.uint32), np.dtype(np.int64)
_KEY = np.dtype(np.uint64)
_OUTPUTS = (TensorSpec("probability", _FLOAT, ()),)


def load(file: Path, options: RuntimeOptions) -> CtrServable:
    """Load a click model.

    Args:
        file: Its ``model.ctr``; the arrays lie beside it, or in the version that it is a patch of.
        options: The operator's settings; there are no options.

    Raises:
        LoadError: It is damaged, or does not fit together.
    """
    options.check_known({})
    settings, features, weights = read_model(file.parent)
    try:
        grouped = GroupedScorer(settings, features, weights)
    except ConfigError as error:
        raise LoadError(f"{file.name}: {error.message}") from error
    kind: Kind = "regress" if options.signature.kind == "predict" else options.signature.kind
    return CtrServable((settings, features, weights), grouped, kind)


class CtrServable:
    """A click model."""

    platform = "headrace_ctr"

    def __init__(
        self, model: tuple[ModelSettings, Features, Weights], grouped: GroupedScorer, kind: Kind
    ) -> None:
        """Prepare what each call would otherwise do again.

        Args:
            model: What it is, the layout of its rows, and its weights with the keys of exact fields.
            grouped: What predicts.
            kind: What TensorFlow Serving's API may call it for.
        """
        _, features, weights = self._model = model
        self._features, self._keys, self._scorer = features, weights.keys, grouped
        by_field = Signature(DEFAULT_SIGNATURE, _field_inputs(features), _OUTPUTS, kind=kind)
        joined = Signature(ROWS_SIGNATURE, _joined_inputs(features), _OUTPUTS, kind=kind)
        self.signatures: Mapping[str, Signature] = {DEFAULT_SIGNATURE: by_field, ROWS_SIGNATURE: joined}
        self._places = _places(features)
        self._numeric = tuple(field.name for field in features.numeric)
        self._exact = np.array(features.exact_slots, np.int64)
        self._key_columns = {slot: number for number, slot in enumerate(features.exact_slots)}
        self._joined = [(field, slot) for field, slot in features.field_slots() if field.keys != "exact"]
        self._plain = np.array([slot for _, slot in self._joined], np.int64)
        starts = [features.tables[field.table_name][0] for field, _ in self._joined]
        self._starts = np.array(starts, np.int64)
        self._buckets = np.array([field.buckets for field, _ in self._joined], np.int64)

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Answer a whole batch.

        Args:
            inputs: Every input of the signature, checked.
            signature: Which way to call it.

        Raises:
            InvalidRequest: A bucket is not one of its table's, or a number is not finite.
        """
        place = self._place_rows if signature == ROWS_SIGNATURE else self._place_fields
        indices, dense = place(inputs)
        return {"probability": self._scorer.predict(indices, dense)}

    def explain(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> list[list[Contribution]]:
        """What each field adds to each row's logit; a row's contributions add up to its logit.

        Args:
            inputs: As for ``predict``; the context with as many rows as the others.
            signature: Which way to call it.

        Raises:
            InvalidRequest: As for ``predict``.
        """
        place = self._place_rows if signature == ROWS_SIGNATURE else self._place_fields
        return scorer(*self._model).explain(*place(inputs))

    def close(self) -> None:
        """Let go of the mapped files."""
        del self._scorer, self._keys, self._model

    def _place_fields(self, inputs: Tensors) -> tuple[Array, Array]:
        features, places = self._features, self._places
        rows = len(next(iter(inputs.values())))
        indices = np.zeros((rows, features.slots), np.uint32)
        if places.names:
            values = np.concatenate([inputs[name] for name in places.names]).reshape(-1, rows)
            wrong = place_integers(values, places.integers, indices)
            if wrong >= 0:  # the slow way says which value it is
                field, start, _ = places.fields[wrong]
                rows_of(inputs[field.name], field, start)
        keys = np.zeros((rows, len(self._exact)), np.uint64)
        for field, start, first in places.others:
            given = inputs[field.name].reshape(rows, field.values)
            if field.keys == "exact":
                at = self._key_columns[first]
                keys[:, at : at + field.values] = keys_of(given, field)
            else:
                indices[:, first : first + field.values] = rows_of(given, field, start)
        self._look_up(keys, indices)
        return indices, self._numbers(inputs, rows)

    def _look_up(self, keys: Array, indices: Array) -> None:
        """Fill in the rows of exact fields."""
        if keys.shape[1]:
            # Only such models need it: they have vocabularies.
            from headrace.ctr.vocabulary import look_up  # noqa: PLC0415

            look_up(self._features, self._keys, keys, indices)

    def _numbers(self, inputs: Tensors, rows: int) -> Array:
        features = self._features
        if not features.dense_width:
            return np.empty((rows, 0), np.float32)
        columns = [inputs[name].reshape(rows, -1) for name in self._numeric]
        dense = np.concatenate(columns, axis=1)
        if not np.isfinite(dense).all():
            for name, values in zip(self._numeric, columns, strict=True):
                for row, column in np.argwhere(~np.isfinite(values)):
                    raise _not_finite(name, int(row), values[row, column])
        return dense

    def _place_rows(self, inputs: Tensors) -> tuple[Array, Array]:
        features = self._features
        rows = len(next(iter(inputs.values())))
        joined = np.empty((rows, len(self._plain)), np.uint32)
        dense = np.empty((rows, features.dense_width), np.float32)
        wrong = join(
            Joined(
                _whole(inputs.get("context"), rows, _BUCKET),
                _whole(inputs.get("candidate"), rows, _BUCKET),
                _whole(inputs.get("context_dense"), rows, _FLOAT),
                _whole(inputs.get("candidate_dense"), rows, _FLOAT),
            ),
            self._starts,
            self._buckets,
            joined,
            dense,
        )
        if wrong >= 0:
            raise self._wrong_place(inputs, wrong)
        if not len(self._exact):
            return joined, dense
        indices = np.empty((rows, features.slots), np.uint32)
        indices[:, self._plain] = joined
        parts = [inputs[name] for name in ("context_keys", "candidate_keys") if name in inputs]
        self._look_up(np.concatenate(parts, axis=1), indices)
        return indices, dense

    def _wrong_place(self, inputs: Tensors, wrong: int) -> InvalidRequest:
        features = self._features
        slots = len(self._joined)
        row, place = divmod(wrong, slots + features.dense_width)
        is_bucket = place < slots
        column, split = (
            (place, _of_context(self._joined)) if is_bucket else (place - slots, features.context_dense)
        )
        name = ("context" if column < split else "candidate") + ("" if is_bucket else "_dense")
        column -= split if column >= split else 0
        value = inputs[name][row, column]
        if not is_bucket:
            return _not_finite(name, row, value)
        field, _ = self._joined[place]
        return InvalidRequest(
            f"row {row}, column {column} ({field.name}): expected a bucket from 0 to {field.buckets - 1}, "
            f"or {PADDING} for no value, got {value}",
            field=name,
        )


class _Places(NamedTuple):
    """Where the values of fields go: each field with its table's first row and its first slot.

    Attributes:
        fields: Those of one integer, which are placed together.
        names: Their names.
        integers: The same for the kernel.
        others: Those of text, of several values, and with rows of their own.
    """

    fields: tuple[tuple[Field, int, int], ...]
    names: tuple[str, ...]
    integers: IntegerFields
    others: tuple[tuple[Field, int, int], ...]


def _places(features: Features) -> _Places:
    starts, slots = features.table_starts.tolist(), features.slot_starts.tolist()[:-1]
    every = list(zip(features.categorical, starts, slots, strict=True))
    plain = tuple(one for one in every if _is_one_integer(one[0]))
    fields = [field for field, _, _ in plain]
    integers = IntegerFields.of(fields, [start for _, start, _ in plain], [slot for _, _, slot in plain])
    others = tuple(one for one in every if not _is_one_integer(one[0]))
    return _Places(plain, tuple(field.name for field in fields), integers, others)


def _is_one_integer(field: Field) -> bool:
    return field.values == 1 and field.keys != "exact" and (field.keys == "bucket" or not field.text)


def _not_finite(name: str, row: int, value: object) -> InvalidRequest:
    return InvalidRequest(f"row {row}: expected a finite number, got {value}", field=name)


# ---- Signatures ----


def _field_inputs(features: Features) -> tuple[TensorSpec, ...]:
    return tuple(_spec(field) for field in (*features.categorical, *features.numeric))


def _spec(field: Field) -> TensorSpec:
    if field.role == "categorical":
        dtype = STRING if field.text and field.keys != "bucket" else _INTEGER
        return TensorSpec(field.name, dtype, (field.values,) if field.values > 1 else (), field.context)
    shape = (field.size,) if field.role == "vector" else ()
    return TensorSpec(field.name, _FLOAT, shape, field.context)


def _joined_inputs(features: Features) -> tuple[TensorSpec, ...]:
    """The joined inputs that have columns: those of the context first."""
    parts = []
    for name, context in (("context", True), ("candidate", False)):
        slots = [field for field, _ in features.field_slots() if field.context == context]
        exact = sum(field.keys == "exact" for field in slots)
        numbers = sum(field.size for field in features.numeric if field.context == context)
        parts += [
            TensorSpec(name, _BUCKET, (len(slots) - exact,), context),
            TensorSpec(f"{name}_keys", _KEY, (exact,), context),
            TensorSpec(f"{name}_dense", _FLOAT, (numbers,), context),
        ]
    return tuple(spec for spec in parts if spec.shape != (0,))


def _of_context(slots: Sequence[tuple[Field, int]]) -> int:
    return sum(field.context for field, _ in slots)


def _whole(array: Array | None, rows: int, dtype: np.dtype[np.generic]) -> Array:
    if array is None:
        array = np.empty((rows, 0), dtype)
    array = array.view()
    array.flags.writeable = False  # the kernel is compiled for one type of array only
    return array
