"""Find a fitted estimator's inputs (numbers, documents, mixed columns), and prepare its parts for arrays."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline

from headrace.base.errors import InvalidRequest, NotLoadable
from headrace.base.tensors import STRING, Array, Tensors
from headrace.model.servable import TensorSpec
from headrace.runtimes.options import RuntimeOptions

_Value = float | str
_Values = tuple[_Value, ...]
_MOST_KNOWN = 4
"""Maximum number of sample values per column."""
_WRAPPED = ("best_estimator_", "estimator_", "regressor_", "estimator", "_preprocessor")
"""Attributes in which estimators keep a wrapped one that was fitted on the same columns."""
_WRAPPED_LISTS = ("estimators_", "calibrated_classifiers_")
NOT_FITTED = "the estimator is not fitted; call its fit() before it is saved or served"
_MOST_PROBED = 1024
"""Maximum number of zero columns to try with an estimator that does not state how many it takes."""
_NUMBERS = (int, float, np.number, np.bool_)

Estimator = Any  # scikit-learn ships no types

_PLAIN = (str, bytes, int, float, complex, type(None))


@dataclass(frozen=True, slots=True)
class Features:
    """The inputs, and their conversion to the estimator's argument.

    Attributes:
        specs: The inputs.
        sample: Rows that the estimator can answer, as varied as its categories allow.
        places: The position of each input in the estimator's matrix; empty if the only input is the whole
            matrix or the documents.
        width: Number of columns of that matrix; 0 if ``places`` is empty.
        missing: The value of a missing text for the estimator, NaN or None, by the input's name.
        documents: Whether the estimator takes a list of documents.
    """

    specs: tuple[TensorSpec, ...]
    sample: Tensors
    places: tuple[int, ...] = ()
    width: int = 0
    missing: Mapping[str, float | None] = field(default_factory=dict)
    documents: bool = False

    def join(self, inputs: Tensors) -> Array | list[str]:
        """Build a matrix, or a list of documents.

        Args:
            inputs: The inputs.

        Raises:
            InvalidRequest: A text is not UTF-8.
        """
        columns = [self._decoded(spec, inputs[spec.name]) for spec in self.specs]
        if self.documents:
            return list(columns[0])
        if not self.places:
            return columns[0]
        dtypes = {column.dtype for column in columns}
        dtype = dtypes.pop() if len(dtypes) == 1 else STRING
        # The estimator ignores the columns that are no inputs.
        matrix = np.full((len(columns[0]), self.width), np.nan, dtype)
        for place, column in zip(self.places, columns, strict=True):
            matrix[:, place] = column
        return matrix

    def _decoded(self, spec: TensorSpec, column: Array) -> Array:
        if spec.dtype != STRING:
            return column
        try:
            texts = [text.decode() for text in column.flat]
        except UnicodeDecodeError as error:
            wrong = error.object[:40]
            raise InvalidRequest(f"expected UTF-8 text, got {wrong!r}", field=spec.name) from error
        if spec.name in self.missing:
            texts = [text or self.missing[spec.name] for text in texts]
        return np.array(texts, dtype=object).reshape(column.shape)


def find_features(estimator: Estimator, options: RuntimeOptions) -> Features:
    """Find an estimator's inputs; to be called before ``prepare`` removes column names from its parts.

    Args:
        estimator: A fitted estimator.
        options: The operator's settings.

    Raises:
        NotLoadable: A setting is invalid, named columns are wanted and the columns have no names, or the
            estimator accepts no input that a request can carry.
    """
    floats = options.floats
    count = _count(estimator)
    if count is None:
        return _probed(estimator, floats)
    names = getattr(estimator, "feature_names_in_", None)
    if names is None and options.options.get("columns", False):
        raise NotLoadable(
            "runtime.options.columns: the estimator was fitted without column names (feature_names_in_); "
            "fit it on a data frame, or leave the option out and send 'features'"
        )
    known = _known(estimator)
    values = [known.get(index, (0.0,)) for index in range(count)]
    dtypes = [STRING if isinstance(some[0], str) else floats for some in values]
    rows = max((len(some) for some in values), default=1)
    if not options.options.get("columns", names is not None) and len(set(dtypes)) == 1:
        spec = TensorSpec("features", dtypes[0], (int(count),))
        columns = [_sample(some, rows, dtypes[0]) for some in values]
        return Features((spec,), {"features": np.stack(columns, axis=1)})
    if names is None:  # x0, x1, …: scikit-learn's own names for columns without one
        names = [f"x{index}" for index in range(count)]
    places = tuple(sorted(_used(estimator, count))) or tuple(range(count))
    specs = tuple(TensorSpec(str(names[place]), dtypes[place], ()) for place in places)
    sample = {
        spec.name: _sample(values[place], rows, spec.dtype) for spec, place in zip(specs, places, strict=True)
    }
    return Features(specs, sample, places, count)


def _takes_texts(transformer: Estimator, chosen: Any) -> bool:
    """Return whether a transformer of a ColumnTransformer takes texts.

    Args:
        transformer: The fitted transformer.
        chosen: Its columns; a transformer of one column by itself takes documents.
    """
    if isinstance(chosen, str | int | np.integer):
        return True
    return any(isinstance(one, str) for some in _known(transformer).values() for one in some)


def _used(part: Estimator, count: int) -> set[int]:
    """Return the positions of the columns that an estimator uses; a ColumnTransformer may drop some."""
    every = range(count)
    if isinstance(part, Pipeline):
        steps = [step for _, step in part.steps if step not in (None, "passthrough")]
        return _used(steps[0], count) if steps else set(every)
    if isinstance(part, ColumnTransformer):
        chosen = [
            np.atleast_1d(_indices(every, positions(part, columns)))
            for _, one, columns in part.transformers_
            if one != "drop"
        ]
        return {int(place) for places in chosen for place in places}
    inner = _wrapped(part)
    if not inner or getattr(part, "passthrough", False):  # stacking may pass its own columns on
        return set(every)
    return set[int]().union(*(_used(one, count) for one in inner))


def _wrapped(part: Estimator) -> list[Estimator]:
    """Return the estimators that an estimator wraps, and that were fitted on the same columns."""
    for name in _WRAPPED_LISTS:
        several = getattr(part, name, None)
        if isinstance(several, list) and several:
            return several
    found = (getattr(part, name, None) for name in _WRAPPED)
    return [one for one in found if one is not None][:1]


def _count(estimator: Estimator) -> int | None:
    """Return an estimator's number of columns, if needed from its first step or from a wrapped estimator."""
    count = getattr(estimator, "n_features_in_", None)
    if count is not None:
        return int(count)
    if isinstance(estimator, Pipeline):
        steps = [step for _, step in estimator.steps if step is not None and step != "passthrough"]
        return _count(steps[0]) if steps else None
    wrapped = _wrapped(estimator)
    return _count(wrapped[0]) if wrapped else None


def _probed(estimator: Estimator, dtype: np.dtype[Any]) -> Features:
    """Find, by trial calls, the inputs of an estimator that does not state its number of columns.

    Raises:
        NotLoadable: It is not fitted, or accepts no input that a request can carry.
    """

    def answers(rows: object) -> bool:
        try:
            estimator.predict(rows)
        except NotFittedError:
            raise NotLoadable(NOT_FITTED) from None
        except Exception:  # noqa: BLE001 - the boundary to the estimator's own code, asked about made-up data
            return False
        return True

    def takes(width: int) -> bool:
        return answers(np.zeros((1, width), dtype))

    widths = (width for width in range(1, _MOST_PROBED + 1) if takes(width))
    width = next(widths, None)
    if width is not None:
        any_width = takes(width + 1)
        spec = TensorSpec("features", dtype, (None if any_width else width,))
        return Features((spec,), {"features": np.zeros((1, width), dtype)})
    if answers(["a text"]):
        sample = {"text": _sample(_words(estimator), _MOST_KNOWN, STRING)}
        return Features((TensorSpec("text", STRING, ()),), sample, documents=True)
    if answers([{}]):
        got = "it takes dictionaries, as DictVectorizer does"
    else:
        got = f"it accepts neither a text nor a row of 1 to {_MOST_PROBED} zeros, and has no n_features_in_"
    raise NotLoadable(
        f"{got}, but no request can hold what it was fitted on; fit it on columns, with a "
        "ColumnTransformer, or serve it by a model.py that prepares its rows"
    )


def with_missing(features: Features, predict: Callable[[Any], Any]) -> Features:
    """Mark the inputs whose values may be missing: those for which the estimator accepts a missing value.

    The estimator's attributes do not say: some impute, some split by missing values, and most refuse them.
    In a column of texts an empty one stands for a missing one, unless the estimator knows it as a category.

    Args:
        features: The estimator's inputs.
        predict: The method to try.
    """
    if features.documents:
        return features
    numbers = [spec for spec in features.specs if spec.dtype != STRING]
    able = set(numbers if _answers(features, numbers, predict) else [])
    able |= {spec for spec in numbers if spec not in able and _answers(features, [spec], predict)}
    missing: dict[str, float | None] = {}
    for spec in features.specs:
        if spec.dtype == STRING and not spec.shape and b"" not in features.sample[spec.name]:
            for marker in (np.nan, None):
                tried = replace(features, missing={spec.name: marker})
                if spec.name not in missing and _answers(tried, [spec], predict):
                    missing[spec.name] = marker
    specs = (
        replace(spec, absent="" if spec.dtype == STRING else np.nan)
        if spec in able or spec.name in missing
        else spec
        for spec in features.specs
    )
    return replace(features, specs=tuple(specs), missing=missing)


def _answers(features: Features, specs: Sequence[TensorSpec], predict: Callable[[Any], Any]) -> bool:
    """Return whether an estimator answers rows in which the values of some inputs are missing."""
    tried = {
        spec.name: np.full_like(features.sample[spec.name], b"" if spec.dtype == STRING else np.nan)
        for spec in specs
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # encoders warn about unknown categories
            answer = np.asarray(predict(features.join({**features.sample, **tried})))
    except Exception:  # noqa: BLE001 - the boundary to the estimator's own code, asked about made-up data
        return False
    return answer.dtype.kind != "f" or bool(np.isfinite(answer).all())


def _words(part: Estimator) -> _Values:
    """Return some words that a vectorizer knows; "a text" if none are known."""
    if isinstance(part, Pipeline):
        return _words(part.steps[0][1])
    if isinstance(part, FeatureUnion):
        return _words(part.transformer_list[0][1])
    known = getattr(part, "vocabulary_", None)
    return tuple(islice(map(str, known), _MOST_KNOWN)) if isinstance(known, dict) and known else ("a text",)


def _sample(values: _Values, rows: int, dtype: np.dtype[Any]) -> Array:
    """Return a column of ``rows`` values that cycles through ``values``."""
    known = [value.encode() if isinstance(value, str) else value for value in values]
    return np.array([known[row % len(known)] for row in range(rows)], dtype=dtype)


def _known(part: Estimator) -> Mapping[int, _Values]:
    """Return sample values for the columns with known categories or known to hold texts, by position.

    An encoder may refuse values that it was not fitted on, so zeros would not do. Only its categories tell
    whether a column holds texts.
    """
    if isinstance(part, Pipeline):
        steps = [step for _, step in part.steps if step not in (None, "passthrough")]
        # Imputers do not move columns, so the step after them may know more.
        kept = [step for step in steps if isinstance(step, SimpleImputer)]
        first = next((step for step in steps if not isinstance(step, SimpleImputer)), None)
        return {**(_known(kept[0]) if kept else {}), **({} if first is None else _known(first))}
    if isinstance(part, FeatureUnion):
        return _merged([(range(part.n_features_in_), one) for _, one in part.transformer_list])
    if isinstance(part, ColumnTransformer):
        every = range(part.n_features_in_)
        return _merged(
            [(_indices(every, positions(part, chosen)), one) for _, one, chosen in part.transformers_]
        )
    categories = getattr(part, "categories_", None)
    if isinstance(categories, list):
        return {index: _values(one) for index, one in enumerate(categories)}
    if isinstance(part, SimpleImputer):
        return {index: (one,) for index, one in enumerate(part.statistics_) if isinstance(one, str)}
    return _known(inner[0]) if (inner := _wrapped(part)) else {}


def _merged(parts: list[tuple[Any, Estimator]]) -> dict[int, _Values]:
    merged: dict[int, _Values] = {}
    for columns, part in parts:
        if isinstance(columns, int | np.integer):
            # A transformer that is given a vector takes documents, unless its values are known.
            merged[int(columns)] = _known(part).get(0, ("",))
        elif not isinstance(part, str):
            merged.update({int(columns[index]): some for index, some in _known(part).items()})
    return merged


def _indices(every: range, chosen: Any) -> Any:
    """Return positions for a slice, a mask, or indices, which may count from the end."""
    if isinstance(chosen, int | np.integer):
        return every[chosen]
    return np.asarray(every)[
        chosen if isinstance(chosen, slice) else np.asarray(chosen, dtype=_index_type(chosen))
    ]


def _index_type(chosen: Any) -> type:
    return bool if len(chosen) and isinstance(chosen[0], bool | np.bool_) else int


def _values(categories: Any) -> _Values:
    """Return some categories, without the missing one: texts if there are any, the empty one first.

    Otherwise return numbers.
    """
    texts = sorted((str(one) for one in categories if isinstance(one, str)), key=bool)
    # A missing category is None or NaN, which is not equal to itself.
    numbers = (float(one) for one in categories if isinstance(one, _NUMBERS) and one == one)  # noqa: PLR0124
    return tuple(texts[:_MOST_KNOWN]) or tuple(islice(numbers, _MOST_KNOWN)) or (0.0,)


# ---- The parts of an estimator ----


def prepare(estimator: Estimator) -> None:
    """Change a fitted estimator so that it takes arrays without warnings and without starting threads.

    The signature has checked the columns' names and order, so no part needs names: with them, scikit-learn
    would warn about arrays in each prediction. Selections of columns by name become selections by position,
    and no part converts arrays to data frames. ``n_jobs`` from training is removed: starting threads for each
    request costs more than they save.

    Args:
        estimator: The fitted estimator; changed in place.
    """
    parts = list(_parts(estimator))
    for part in parts:
        if isinstance(part, ColumnTransformer) and hasattr(part, "transformers_"):
            part.transformers_ = [
                (name, _of_numbers(one, chosen), positions(part, chosen))
                for name, one, chosen in part.transformers_
            ]
    for part in parts:
        settings = vars(part)
        settings.pop("feature_names_in_", None)
        settings.pop("_sklearn_output_config", None)
        if "n_jobs" in settings:
            settings["n_jobs"] = None


def _of_numbers(transformer: Any, chosen: Any) -> Any:
    if isinstance(transformer, str) or _takes_texts(transformer, chosen):
        return transformer
    return _Numbers(transformer)


class _Numbers:
    """A fitted transformer of numeric columns, which receives them as numbers.

    A matrix of texts and numbers holds Python objects, which NumPy's functions cannot process.
    """

    def __init__(self, transformer: Estimator) -> None:
        self._transformer = transformer

    def transform(self, given: Any, **parameters: Any) -> Any:
        if given.dtype.hasobject:
            given = given.astype(np.float64)
        return self._transformer.transform(given, **parameters)


def positions(transformer: Estimator, chosen: Any) -> Any:
    """Return the positions of the columns that a fitted ColumnTransformer selected for a transformer.

    Args:
        transformer: The ColumnTransformer.
        chosen: The columns from its ``transformers_``: by name or by position, one or several.

    Returns:
        One position for one column, which its transformer receives as a vector; else a list of them, or
        ``chosen`` itself if it contains no names.
    """
    names = list(getattr(transformer, "feature_names_in_", ()))
    if isinstance(chosen, str):
        return names.index(chosen)
    if isinstance(chosen, slice) and isinstance(chosen.start or chosen.stop, str):
        # As in pandas, a range of names includes its last name.
        start = 0 if chosen.start is None else names.index(chosen.start)
        return list(range(start, len(names) if chosen.stop is None else names.index(chosen.stop) + 1))
    if isinstance(chosen, Iterable) and any(isinstance(name, str) for name in chosen):
        return [names.index(name) for name in chosen]
    return chosen


def _parts(estimator: Estimator) -> Iterator[Any]:
    """Yield the estimator, and everything with attributes that it consists of.

    Parameters (``get_params``) do not suffice: the fitted parts are copies of them, in lists, dictionaries
    and arrays whose names differ between estimators (``transformers_``, ``best_estimator_``,
    ``estimators_``).
    """
    seen = {id(estimator)}
    waiting = [estimator]
    while waiting:
        part = waiting.pop()
        # Classes and functions can be parameters (dtype=np.float64), and are shared by the whole process.
        if isinstance(part, type | FunctionType | ModuleType):
            continue
        if hasattr(part, "__dict__"):
            yield part
        for held in _held(part):
            if id(held) not in seen and not isinstance(held, _PLAIN):
                seen.add(id(held))
                waiting.append(held)


def _held(part: Any) -> Sequence[Any]:
    held = list(vars(part).values()) if hasattr(part, "__dict__") else []
    if isinstance(part, Mapping):
        return [*held, *part.values()]
    if isinstance(part, list | tuple | set | frozenset):
        return [*held, *part]
    if isinstance(part, np.ndarray) and part.dtype == object:
        return part.ravel().tolist()
    return held
