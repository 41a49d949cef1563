"""headrace's own click models: ``model.ctr`` and the arrays beside it.

The signature ``serving_default`` takes one input per field, with the stream's own values. ``rows`` is
faster: each input joins many fields, as bucket numbers, hashes of exact fields, or numbers. ``explain`` tells
what each field adds to the logit. An mdn also has ``interval``, which returns the uncertainty of an answer.
Context inputs may have one row for all candidates of a request, and are computed once. Needs the extra
``ctr``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import ConfigError, InvalidRequest, InvalidRows, LoadError, NotLoadable
from headrace.base.tensors import STRING, Array, Tensors
from headrace.ctr.click_model import Contribution, Weights
from headrace.ctr.factory import scorer
from headrace.ctr.files.model_files import MODEL_FILE, read_model
from headrace.ctr.model_settings import ModelSettings
from headrace.ctr.models.missing import LEVEL
from headrace.ctr.serving.context import GroupedScorer
from headrace.ctr.serving.explanations import FieldEffects
from headrace.model import packed_kernels
from headrace.model.packed_columns import PackedTensors
from headrace.model.servable import (
    DEFAULT_SIGNATURE,
    EXPECTED_VALUE,
    EXPLAIN_SIGNATURE,
    Kind,
    Servable,
    Signature,
    TensorSpec,
)
from headrace.runtimes import kernel_compiling
from headrace.runtimes.ctr_inputs import (
    is_text,
    join,
    join_numbers,
    packed,
    place_texts,
    places_of,
    transpose,
)
from headrace.runtimes.options import RuntimeOptions
from headrace.stream.block import Features
from headrace.stream.hashing import keys_of, place_integers, rows_of
from headrace.stream.schema import Field
from headrace.versions.layout import version_directories

ROWS_SIGNATURE = "rows"
"""The signature that takes joined inputs."""

INTERVAL_SIGNATURE = "interval"
"""The signature of an mdn that also returns a click rate's uncertainty; it takes the fields and a level."""

LEVEL_SAID = 0.9
"""Default level of an interval; a level is at least 0, and less than 1."""

PADDING = np.uint32(2**32 - 1)
"""In ``rows``: the bucket number of an empty slot."""

_FLOAT, _BUCKET, _INTEGER = np.dtype(np.float32), np.dtype(np.uint32), np.dtype(np.int64)
_KEY = np.dtype(np.uint64)
_OUTPUTS = (TensorSpec("probability", _FLOAT, ()),)
_join: Callable[[Iterable[Any]], bytes] = b"".join  # also accepts arrays

_ATTEMPTS = 10


def load(file: Path, options: RuntimeOptions) -> CtrServable:
    """Load a click model.

    Args:
        file: Its ``model.ctr``; the arrays lie beside it, or in the version that it patches.
        options: The operator's settings; this runtime has no options.

    Raises:
        LoadError: The model is damaged or inconsistent.
    """
    options.check_known({})
    kind: Kind = "regress" if options.signature.kind == "predict" else options.signature.kind
    servable = _servable(options.native(lambda: read_model(file.parent, options.checksums)), kind)
    make_ready(servable, file.parent)
    return servable


def servable_of(version: Path) -> CtrServable:
    """Load a version without its kernels, which are compiled or loaded at their first call.

    Args:
        version: Its directory.

    Raises:
        LoadError: The model is damaged or inconsistent.
    """
    return _servable(read_model(version), "regress")


def _servable(model: tuple[ModelSettings, Features, Weights], kind: Kind) -> CtrServable:
    settings, features, weights = model
    try:
        grouped = GroupedScorer(settings, features, weights)
    except ConfigError as error:
        raise NotLoadable(f"{MODEL_FILE}: {error.message}") from error
    return CtrServable((settings, features, weights), grouped, kind)


class CtrServable:
    """A click model."""

    platform = "headrace_ctr"
    takes_packed = True
    """Whether ``predict`` takes ``PackedTensors``, too."""

    def __init__(
        self, model: tuple[ModelSettings, Features, Weights], grouped: GroupedScorer, kind: Kind
    ) -> None:
        """Precompute everything that all calls share.

        Args:
            model: Its settings, the layout of its rows, and its weights with the keys of exact fields.
            grouped: The scorer for predictions.
            kind: The method of TensorFlow Serving's API that it supports besides Predict.
        """
        settings, features, weights = self._model = model
        self._features, self._keys, self._scorer = features, weights.keys, grouped
        self._effects = FieldEffects(settings, features, weights, grouped.heads)
        by_field = Signature(DEFAULT_SIGNATURE, _field_inputs(features), _OUTPUTS, kind=kind)
        joined = Signature(ROWS_SIGNATURE, _joined_inputs(features), _OUTPUTS, kind=kind)
        self.signatures: Mapping[str, Signature] = {DEFAULT_SIGNATURE: by_field, ROWS_SIGNATURE: joined}
        if settings.kind == "mdn":
            self.signatures = {**self.signatures, INTERVAL_SIGNATURE: _interval_signature(features)}
        if EXPECTED_VALUE not in by_field.input_names:
            self.signatures = {**self.signatures, EXPLAIN_SIGNATURE: _explain_signature(by_field.inputs)}
        self._places = places_of(features)
        self._numeric = tuple(field.name for field in features.numeric)
        self._exact = np.array(features.exact_slots, np.int64)
        self._key_columns = {slot: number for number, slot in enumerate(features.exact_slots)}
        self._joined = [(field, slot) for field, slot in features.field_slots() if field.keys != "exact"]
        self._plain = np.array([slot for _, slot in self._joined], np.int64)
        starts = [features.tables[field.table_name][0] for field, _ in self._joined]
        self._buckets = np.array([field.buckets for field, _ in self._joined], np.int64)
        self._starts = np.array(starts, np.int64)

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Predict or explain a whole batch.

        Args:
            inputs: Every input of the signature, checked.
            signature: The name of the signature.

        Raises:
            InvalidRows: A bucket is not in its table, a number is not finite, or a level is out of range.
        """
        if signature == EXPLAIN_SIGNATURE:
            effects = self._effects.of(*self._place_fields(inputs))
            names = self.signatures[EXPLAIN_SIGNATURE].output_names
            return {name: effects[:, column] for column, name in enumerate(names)}
        place = self._place_rows if signature == ROWS_SIGNATURE else self._place_fields
        indices, dense = place(inputs)
        if signature == INTERVAL_SIGNATURE:
            return self._distribution(indices, dense, inputs)
        return {"probability": self._scorer.predict(indices, dense)}

    def explain(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> list[list[Contribution]]:
        """Return each row's contributions (bias, fields, interactions); they sum to the row's logit.

        Args:
            inputs: As for ``predict``.
            signature: The name of the signature.

        Raises:
            InvalidRows: As for ``predict``.
        """
        place = self._place_rows if signature == ROWS_SIGNATURE else self._place_fields
        return scorer(*self._model).explain(*place(inputs))

    def _distribution(self, indices: Array, dense: Array, inputs: Tensors) -> Tensors:
        """Return the click rates' mean and variance, and an interval of the requested level."""
        # Imported here because only an mdn needs it.
        from headrace.ctr.models.density import moments, quantiles  # noqa: PLC0415

        plain = inputs.numbers if isinstance(inputs, PackedTensors) else inputs
        levels = plain[LEVEL].astype(np.float64)
        bad = ~((levels >= 0) & (levels < 1))
        if bad.any():
            said = "expected a level of 0 or more, and less than 1, got"
            rows = np.flatnonzero(bad).tolist()
            raise InvalidRows.of({row: (LEVEL, f": {said} {plain[LEVEL][row]}") for row in rows})
        heads = self._scorer.heads(indices, dense)
        found = quantiles(heads, np.stack([0.5 - levels / 2, 0.5 + levels / 2], axis=1))
        # The same mean as from ``serving_default``, bit for bit.
        probabilities = self._scorer.predict(indices, dense)
        named = {"variance": moments(heads).variance, "lower": found[:, 0], "upper": found[:, 1]}
        return {"probability": probabilities} | {name: one.astype(np.float32) for name, one in named.items()}

    def close(self) -> None:
        """Release the tables."""
        del self._scorer, self._keys, self._model, self._effects

    def _place_fields(self, inputs: Tensors) -> tuple[Array, Array]:
        features, places = self._features, self._places
        if isinstance(inputs, PackedTensors):
            plain, rows = inputs.numbers, inputs.padded_rows
        else:
            plain, rows = inputs, len(next(iter(inputs.values())))
        indices = np.zeros((rows, features.slots), np.uint32)
        if places.names:
            values = _by_field([plain[name] for name in places.names], rows, _INTEGER)
            if place_integers(values, places.integers, indices) >= 0:
                raise self._wrong_fields(inputs)
        keys = np.zeros((rows, len(self._exact)), np.uint64)
        if places.text_names:
            self._place_texts(inputs, rows, indices, keys)
        for field, start, first in places.others:
            given = plain[field.name].reshape(rows, field.values)
            if field.keys == "exact":
                at = self._key_columns[first]
                keys[:, at : at + field.values] = keys_of(given, field)
            else:
                try:
                    indices[:, first : first + field.values] = rows_of(given, field, start)
                except InvalidRequest as error:
                    raise self._wrong_fields(inputs) from error
        self._look_up(keys, indices)
        return indices, self._numbers(plain, rows)

    def _place_texts(self, inputs: Tensors, rows: int, indices: Array, keys: Array) -> None:
        """Write the table rows of all texts to `indices`, and the keys of exact fields to `keys`."""
        places = self._places
        if isinstance(inputs, PackedTensors):
            came = inputs.rows
            place_texts(inputs.data, inputs.places, places.texts, indices, keys)
            indices[came:], keys[came:] = indices[came - 1], keys[came - 1]
        else:
            data, where = packed([inputs[name] for name in places.text_names], rows)
            place_texts(data, where, places.texts, indices, keys)

    def _look_up(self, keys: Array, indices: Array) -> None:
        """Look up the keys of exact fields, and write their table rows to `indices`."""
        if keys.shape[1]:
            # Imported here because only models with exact fields need it.
            from headrace.ctr.models.vocabulary import look_up  # noqa: PLC0415

            look_up(self._features, self._keys, keys, indices)

    def _numbers(self, inputs: Tensors, rows: int) -> Array:
        features = self._features
        if not features.dense_width:
            return np.empty((rows, 0), np.float32)
        columns = [inputs[name] for name in self._numeric]
        if features.dense_width == len(columns):
            dense = np.empty((rows, len(columns)), np.float32)
            finite = transpose(_by_field(columns, rows, _FLOAT), dense)
        else:
            dense = np.concatenate([column.reshape(rows, -1) for column in columns], axis=1)
            finite = np.isfinite(dense).all()
        if not finite:
            raise self._wrong_fields(inputs)
        return dense

    def _place_rows(self, inputs: Tensors) -> tuple[Array, Array]:
        features = self._features
        rows = len(next(iter(inputs.values())))
        joined = np.empty((rows, len(self._plain)), np.uint32)
        dense = np.empty((rows, features.dense_width), np.float32)
        context = _whole(inputs.get("context"), rows, _BUCKET)
        candidate = _whole(inputs.get("candidate"), rows, _BUCKET)
        good = join(context, candidate, self._starts, self._buckets, joined)
        if features.dense_width:
            context = _whole(inputs.get("context_dense"), rows, _FLOAT)
            candidate = _whole(inputs.get("candidate_dense"), rows, _FLOAT)
            good = join_numbers(context, candidate, dense) and good
        if not good:
            raise self._wrong_rows(inputs)
        if not len(self._exact):
            return joined, dense
        indices = np.empty((rows, features.slots), np.uint32)
        indices[:, self._plain] = joined
        parts = [inputs[name] for name in ("context_keys", "candidate_keys") if name in inputs]
        self._look_up(np.concatenate(parts, axis=1), indices)
        return indices, dense

    # --- which rows are wrong, and why: only called after an error ---

    def _wrong_fields(self, inputs: Tensors) -> InvalidRows:
        wrong: dict[int, tuple[str, str]] = {}
        for field in self._features.categorical:
            if field.keys == "bucket":
                values = _by_row(inputs[field.name])
                bad = (values != -1) & ((values < 0) | (values >= field.buckets))
                for row, column in _first_of_rows(bad):
                    wrong.setdefault(row, (field.name, _no_bucket(field, -1, values[row, column])))
        for name in self._numeric:
            _add_not_finite(wrong, name, inputs)
        return InvalidRows.of(wrong)

    def _wrong_rows(self, inputs: Tensors) -> InvalidRows:
        wrong: dict[int, tuple[str, str]] = {}
        split = _of_context(self._joined)
        for name, first, last in (("context", 0, split), ("candidate", split, len(self._joined))):
            if name in inputs:
                values = inputs[name]
                bad = (values >= self._buckets[first:last]) & (values != PADDING)
                for row, column in _first_of_rows(bad):
                    field, _ = self._joined[first + column]
                    reason = _no_bucket(field, PADDING, values[row, column])
                    wrong.setdefault(row, (name, f", column {column} ({field.name}){reason}"))
            _add_not_finite(wrong, f"{name}_dense", inputs)
        return InvalidRows.of(wrong)


def _by_field(columns: Sequence[Array], rows: int, dtype: np.dtype[np.generic]) -> Array:
    """Concatenate arrays of ``[rows]`` into one read-only array ``[columns, rows]``."""
    try:
        joined = _join(columns)  # takes half of NumPy's time
    except (BufferError, ValueError):  # one is a view with gaps
        joined = np.concatenate(columns).tobytes()
    return np.ndarray((len(columns), rows), dtype, joined)


def _by_row(values: Array) -> Array:
    return values.reshape(len(values), -1)


def _first_of_rows(bad: Array) -> Iterator[tuple[int, int]]:
    """Yield each row with a bad value, and its first bad column."""
    rows = np.flatnonzero(bad.any(axis=1))
    return zip(rows.tolist(), bad[rows].argmax(axis=1).tolist(), strict=True)


def _no_bucket(field: Field, nothing: object, value: object) -> str:
    return f": expected a bucket from 0 to {field.buckets - 1}, or {nothing} for no value, got {value}"


def _add_not_finite(wrong: dict[int, tuple[str, str]], name: str, inputs: Tensors) -> None:
    if name in inputs:
        values = _by_row(inputs[name])
        for row, column in _first_of_rows(~np.isfinite(values)):
            wrong.setdefault(row, (name, f": expected a finite number, got {values[row, column]}"))


# ---- Signatures ----


def _field_inputs(features: Features) -> tuple[TensorSpec, ...]:
    return tuple(_spec(field) for field in (*features.categorical, *features.numeric))


def _interval_signature(features: Features) -> Signature:
    level = TensorSpec(LEVEL, _FLOAT, (), context=True, absent=LEVEL_SAID)
    outputs = tuple(TensorSpec(name, _FLOAT, ()) for name in ("variance", "lower", "upper"))
    inputs = (*_field_inputs(features), level)
    return Signature(INTERVAL_SIGNATURE, inputs, (*_OUTPUTS, *outputs))


def _explain_signature(inputs: Sequence[TensorSpec]) -> Signature:
    """Return the signature with an output per field, and ``expected_value`` for the rest of the logit."""
    names = [*(spec.name for spec in inputs), EXPECTED_VALUE]
    outputs = tuple(TensorSpec(name, np.dtype(np.float64), ()) for name in names)
    return Signature(EXPLAIN_SIGNATURE, tuple(inputs), outputs)


def _spec(field: Field) -> TensorSpec:
    if field.role == "categorical":
        dtype = STRING if is_text(field) else _INTEGER
        several = field.values > 1
        return TensorSpec(
            field.name,
            dtype,
            (field.values,) if several else (),
            field.context,
            absent="" if dtype == STRING else -1,
            shorter=several,
        )
    shape = (field.size,) if field.role == "vector" else ()
    # Training, too, uses 0 where the stream has no number.
    return TensorSpec(field.name, _FLOAT, shape, field.context, absent=0.0)


def _joined_inputs(features: Features) -> tuple[TensorSpec, ...]:
    """Return the joined inputs that have columns, those of the context first."""
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
    array.flags.writeable = False  # the kernel is compiled for one array type only
    return array


# ---- Kernels ----


def make_ready(servable: Servable, version: Path) -> None:
    """Load the kernels that a version needs; a child process compiles them first if they are not cached.

    Args:
        servable: The loaded version.
        version: Its directory.
    """
    child = "headrace.runtimes.ctr", str(version)
    about = {"model": version.parent.name, "version": version.name}
    kernel_compiling.make_ready(lambda: run_once(servable), child, about)


def run_once(servable: Servable) -> None:
    """Predict a row of zeros and empty texts with each signature, to compile or load every kernel.

    Raises:
        NotKept: A kernel is not cached, and compiling is not allowed.
    """
    for name, signature in servable.signatures.items():
        inputs = {}
        for spec in signature.inputs:
            shape = (1, *(size or 1 for size in spec.shape))
            inputs[spec.name] = np.full(shape, b"" if spec.dtype == STRING else 0, spec.dtype)
        servable.predict(inputs, name)
        if any(spec.dtype == STRING for spec in signature.inputs):
            packed_kernels.run_once()  # codecs use them to locate texts in messages


def main() -> None:
    """Compile and cache the kernels that a version needs, as the child process of ``make_ready``."""
    kernel_compiling.compile_as_child(lambda: run_once(servable_like(Path(sys.argv[1]))))


def servable_like(version: Path) -> CtrServable:
    """Load a version; if a trainer has deleted it meanwhile, load its model's newest one.

    Raises:
        LoadError: It is damaged, or no version is left.
    """
    for _ in range(_ATTEMPTS):
        try:
            return servable_of(version)
        except LoadError:
            others = {} if version.exists() else _versions_beside(version)
            if not others:
                raise
            version = others[max(others)]
    return servable_of(version)


def _versions_beside(version: Path) -> dict[int, Path]:
    try:
        return version_directories(version.parent)
    except OSError:
        return {}


if __name__ == "__main__":
    main()
