"""Find the parts of a fitted estimator at any depth, and adapt them to small arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer

Estimator = Any  # scikit-learn ships no types

_PLAIN = (str, bytes, int, float, complex, type(None))


def prepare(estimator: Estimator, takes_texts: Callable[[Any, Any], bool]) -> None:
    """Change a fitted estimator so that it takes arrays without warnings and without starting threads.

    The signature has checked the columns' names and order, so no part needs names: with them, scikit-learn
    would warn about arrays in each prediction. Selections of columns by name become selections by position,
    and no part converts arrays to data frames. ``n_jobs`` from training is removed: starting threads for each
    request costs more than they save.

    Args:
        estimator: The fitted estimator; changed in place.
        takes_texts: Whether a transformer of a ColumnTransformer, with its chosen columns, takes texts.
    """
    parts = list(_parts(estimator))
    for part in parts:
        if isinstance(part, ColumnTransformer) and hasattr(part, "transformers_"):
            part.transformers_ = [
                (name, _of_numbers(one, chosen, takes_texts), positions(part, chosen))
                for name, one, chosen in part.transformers_
            ]
    for part in parts:
        settings = vars(part)
        settings.pop("feature_names_in_", None)
        settings.pop("_sklearn_output_config", None)
        if "n_jobs" in settings:
            settings["n_jobs"] = None


def _of_numbers(transformer: Any, chosen: Any, takes_texts: Callable[[Any, Any], bool]) -> Any:
    if isinstance(transformer, str) or takes_texts(transformer, chosen):
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
