"""headrace's own click models: ``model.ctr``, the arrays beside it, and kernels that share contexts.

Two signatures. ``serving_default`` takes one input for each field, with values as they were in the stream.
``rows`` is for clients in a hurry: all values joined, as bucket numbers, and as hashes where they have rows
of their own. Inputs of the context may come with one row for all candidates of a request. Needs the extra
``ctr``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from headrace.ctr.context import GroupedScorer
from headrace.ctr.files import read_model
from headrace.ctr.joined_inputs import Joined, join
from headrace.ctr.model import Weights
from headrace.errors import ConfigError, InvalidRequest, LoadError
from headrace.runtimes.options import RuntimeOptions
from headrace.servable import DEFAULT_SIGNATURE, Kind, Signature, TensorSpec
from headrace.stream.features import Features
from headrace.stream.hashing import keys_of, rows_of
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
        scorer = GroupedScorer(settings, features, weights)
    except ConfigError as error:
        raise LoadError(f"{file.name}: {error.message}") from error
    kind: Kind = "regress" if options.signature.kind == "predict" else options.signature.kind
    return CtrServable(features, weights, scorer, kind)


class CtrServable:
    """A click model."""

    platform = "headrace_ctr"

    def __init__(self, features: Features, weights: Weights, scorer: GroupedScorer, kind: Kind) -> None:
        """Prepare what each call would otherwise do again.

        Args:
            features: The layout of its rows.
            weights: Its weights; the keys of exact fields are among them.
            scorer: What predicts.
            kind: What TensorFlow Serving's API may call it for.
        """
        self._features, self._keys, self._scorer = features, weights.keys, scorer
        by_field = Signature(DEFAULT_SIGNATURE, _field_inputs(features), _OUTPUTS, kind=kind)
        joined = Signature(ROWS_SIGNATURE, _joined_inputs(features), _OUTPUTS, kind=kind)
        self.signatures: Mapping[str, Signature] = {DEFAULT_SIGNATURE: by_field, ROWS_SIGNATURE: joined}
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

    def close(self) -> None:
        """Let go of the mapped files."""
        del self._scorer, self._keys

    def _place_fields(self, inputs: Tensors) -> tuple[Array, Array]:
        features = self._features
        rows = len(next(iter(inputs.values())))
        indices = np.zeros((rows, features.slots), np.uint32)
        keys = np.zeros((rows, len(self._exact)), np.uint64)
        for number, field in enumerate(features.categorical):
            values = inputs[field.name].reshape(rows, field.values)
            first, last = features.slot_starts[number], features.slot_starts[number + 1]
            if field.keys == "exact":
                at = self._key_columns[int(first)]
                keys[:, at : at + field.values] = keys_of(values, field)
            else:
                indices[:, first:last] = rows_of(values, field, int(features.table_starts[number]))
        self._look_up(keys, indices)
        return indices, self._numbers(inputs, rows)

    def _look_up(self, keys: Array, indices: Array) -> None:
        """Fill in the rows of exact fields."""
        if keys.shape[1]:
            # Only such models need it: they have vocabularies.
            from headrace.ctr.vocabulary import look_up  # noqa: PLC0415

            look_up(self._features, self._keys, keys, indices)

    def _numbers(self, inputs: Tensors, rows: int) -> Array:
        dense = np.empty((rows, self._features.dense_width), np.float32)
        at = 0
        for field in self._features.numeric:
            values = inputs[field.name].reshape(rows, field.size)
            if not np.isfinite(values).all():
                row, column = (int(axis[0]) for axis in np.nonzero(~np.isfinite(values)))
                raise _not_finite(field.name, row, values[row, column])
            dense[:, at : at + field.size] = values
            at += field.size
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
