"""A default answer of fixed values, for requests that a model refuses or does not answer in time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isinf

import numpy as np

from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError, InvalidRequest, NotLoadable
from headrace.base.tensors import BY_DTYPE, Array, Tensors
from headrace.batching.request import Origin, Request, Timings
from headrace.batching.statistics import VersionStatistics
from headrace.config.checks import told
from headrace.model.servable import EXPLAIN_SIGNATURE, Signature, TensorSpec
from headrace.predictors.predictor import Attempt, Predictor, deadline_within, give_default


class DefaultValues:
    """Predictor that wraps another one, and answers with fixed values if the wrapped one does not answer."""

    def __init__(
        self,
        around: Predictor,
        rows: Mapping[str, Tensors],
        *,
        origin: Origin,
        statistics: VersionStatistics,
        clock: Clock,
        after_seconds: float = 0.0,
    ) -> None:
        """Wrap a Predictor.

        Args:
            around: The wrapped Predictor.
            rows: One row of each output, ``[1, *row shape]``, by signature; none for ``explain``.
            origin: The Origin of the default answers.
            statistics: Counts the default answers.
            clock: The serving thread's clock.
            after_seconds: Timeout of the model in seconds, if the request's deadline is later; 0 to use the
                deadline only.
        """
        self._around = around
        self._rows = rows
        self._origin = origin
        self._statistics = statistics
        self._clock = clock
        self._after_seconds = after_seconds

    def submit(self, request: Request) -> None:
        """Submit a request, or refuse it at once; see ``Predictor``. Explanations have no default."""
        if request.layout.signature == EXPLAIN_SIGNATURE:
            self._around.submit(request)
            return

        def refused(error: HeadraceError) -> None:
            self._answer(request)

        deadline = deadline_within(request, self._after_seconds, self._clock)
        self._around.submit(Attempt(request, deadline, refused))

    def _answer(self, request: Request) -> None:
        rows = request.rows
        repeated = {
            name: np.repeat(row, rows, axis=0) for name, row in self._rows[request.layout.signature].items()
        }
        give_default(request, repeated, self._origin, Timings(self._clock.now(), rows, 1))
        self._statistics.defaults += 1


def default_rows(
    values: Mapping[str, object], signatures: Mapping[str, Signature]
) -> dict[str, dict[str, Array]]:
    """Return the default's values as one row of each output, by signature; ``explain`` has no default.

    Args:
        values: For each output of any signature, its value in one row; a single number or text fills the
            row.
        signatures: The model's signatures, by name.

    Raises:
        NotLoadable: A value is missing, unknown, or does not fit its output.
    """
    signatures = {name: one for name, one in signatures.items() if name != EXPLAIN_SIGNATURE}
    known = {spec.name for signature in signatures.values() for spec in signature.outputs}
    unknown = sorted(set(values) - known)
    if unknown:
        raise NotLoadable(
            f"default.values: unknown output {unknown[0]!r}; the model gives {', '.join(sorted(known))}"
        )
    return {name: _rows_of(values, signature) for name, signature in signatures.items()}


def _rows_of(values: Mapping[str, object], signature: Signature) -> dict[str, Array]:
    missing = [spec for spec in signature.outputs if spec.name not in values]
    if missing:
        raise NotLoadable(f"default.values: expected a value for output {missing[0]}, got none")
    given = {}
    for spec in signature.outputs:
        value = values[spec.name]
        _check_range(value, spec)
        given[spec.name] = [value if isinstance(value, list) else _everywhere(value, spec)]
    try:
        checked = Signature("default", signature.outputs, ()).check(given)
    except InvalidRequest as error:
        raise NotLoadable(f"default.values.{error}") from error
    return {
        spec.name: np.asarray(column) for spec, column in zip(signature.outputs, checked.columns, strict=True)
    }


def _check_range(value: object, spec: TensorSpec) -> None:
    """Refuse numbers outside the range of the output's dtype, except infinity; the error names the range."""
    if spec.dtype.kind not in "iuf":
        return
    if spec.dtype.kind == "f":
        floats = np.finfo(spec.dtype)
        largest = floats.max.item()
        rounding = 1 + floats.eps.item() / 4  # allows values that round down to `largest`
        span = f"{-largest:.8g} … {largest:.8g}"
        wrong = [one for one in _numbers(value) if largest * rounding < abs(one) and not _is_infinite(one)]
    else:
        whole = np.iinfo(spec.dtype)
        span = f"{whole.min} … {whole.max}"
        # The check of dtypes reports fractions.
        wrong = [one for one in _numbers(value) if type(one) is int and not whole.min <= one <= whole.max]
    if wrong:
        wanted = BY_DTYPE[spec.dtype].oip
        raise NotLoadable(f"default.values.{spec.name}: {told(wrong[0])} does not fit in {wanted} ({span})")


def _is_infinite(number: int | float) -> bool:
    return isinstance(number, float) and isinf(number)


def _numbers(value: object) -> Iterator[int | float]:
    """Yield all numbers in a nested list, or the value itself if it is a number."""
    if isinstance(value, list):
        for one in value:
            yield from _numbers(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _everywhere(value: object, spec: TensorSpec) -> object:
    """Return a row filled with one value; an object array avoids a copy of a text for each element."""
    row = np.empty([size or 1 for size in spec.shape], object)
    row.fill(value)
    return row.tolist()
