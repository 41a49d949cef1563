"""A fitted estimator's parts: found however deeply they are nested, and made fit for arrays of few rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer

Estimator = Any  # scikit-learn ships no types

_PLAIN = (str, bytes, int, float, complex, type(None))


def prepare(estimator: Estimator) -> None:
    """Change a fitted estimator, so that it takes arrays, without a warning and without starting threads.

    The signature has checked names and order of the columns, so no part needs to know names: scikit-learn
    would warn of arrays in each prediction. Who selects columns by name selects them by position, and no part
    makes data frames of arrays. ``n_jobs`` of training is forgotten: starting threads for each request costs
    more than they save.

    Args:
        estimator: What was fitted; changed in place.
    """
    parts = list(_parts(estimator))
    for part in parts:
        if isinstance(part, ColumnTransformer) and hasattr(part, "transformers_"):
            part.transformers_ = [
                (name, one if isinstance(one, str) else _Numbers(one), positions(part, chosen))
                for name, one, chosen in part.transformers_
            ]
    for part in parts:
        settings = vars(part)
        settings.pop("feature_names_in_", None)
        settings.pop("_sklearn_output_config", None)
        if "n_jobs" in settings:
            settings["n_jobs"] = None


class _Numbers:
    """A fitted transformer that is given its columns as numbers, where they are numbers.

    A matrix of texts and numbers holds Python objects, of which NumPy's functions make nothing.
    """

    def __init__(self, transformer: Estimator) -> None:
        self._transformer = transformer

    def transform(self, given: Any, **parameters: Any) -> Any:
        # A column holds numbers or texts, not both, so one row tells for all.
        if given.dtype.hasobject and not any(isinstance(one, str) for one in given[:1].flat):
            given = given.astype(np.float64)
        return self._transformer.transform(given, **parameters)


def positions(transformer: Estimator, chosen: Any) -> Any:
    """Where the columns lie that a fitted ColumnTransformer chose for one of its transformers.

    Args:
        transformer: The ColumnTransformer.
        chosen: The columns, as its ``transformers_`` has them: by name or by position, one or several.

    Returns:
        One position for one column, which its transformer is given as a vector; else a list of them, or what
        was chosen if that has no names.
    """
    names = list(getattr(transformer, "feature_names_in_", ()))
    if isinstance(chosen, str):
        return names.index(chosen)
    if isinstance(chosen, slice) and isinstance(chosen.start or chosen.stop, str):
        # As in pandas, the last of a range of names is part of it.
        start = 0 if chosen.start is None else names.index(chosen.start)
        return list(range(start, len(names) if chosen.stop is None else names.index(chosen.stop) + 1))
    if isinstance(chosen, Iterable) and any(isinstance(name, str) for name in chosen):
        return [names.index(name) for name in chosen]
    return chosen


def _parts(estimator: Estimator) -> Iterator[Any]:
    """The estimator, and everything with attributes that it is made of.

    Parameters (``get_params``) are not all: what was fitted are copies of them, in lists, dictionaries and
    arrays that each estimator names as it likes (``transformers_``, ``best_estimator_``, ``estimators_``).
    """
    seen = {id(estimator)}
    waiting = [estimator]
    while waiting:
        part = waiting.pop()
        # Classes and functions are parameters, too (dtype=np.float64), and shared by the whole process.
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
