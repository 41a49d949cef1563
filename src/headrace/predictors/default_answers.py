"""Default answers, for requests that a model refuses or does not answer in time.

``DefaultValues`` answers with fixed values. ``DefaultModel`` answers by another model, which is called early
enough to answer before the deadline.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from math import isinf
from typing import Protocol

import numpy as np

from headrace.access.caller import ASKING
from headrace.base.clock import Clock, Timer
from headrace.base.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    HeadraceError,
    InvalidRequest,
    NotLoadable,
    Refused,
)
from headrace.base.tensors import BY_DTYPE, Array, Tensors
from headrace.batching.batcher import Batcher
from headrace.batching.request import NO_DEADLINE, Answer, Origin, Request, Settlement, Timings
from headrace.batching.statistics import VersionStatistics
from headrace.config import DefaultPolicy
from headrace.config.checks import told
from headrace.model.servable import EXPLAIN_SIGNATURE, CheckedInputs, Signature, TensorSpec, signature_named
from headrace.predictors.predictor import Attempt, Predictor, PriorityOnly, deadline_within, give_default

_log = logging.getLogger(__name__)


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
        given[spec.name] = [value if isinstance(value, list) else _filled_row(value, spec)]
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


def _filled_row(value: object, spec: TensorSpec) -> object:
    """Return a row filled with one value; an object array avoids a copy of a text for each element."""
    row = np.empty([size or 1 for size in spec.shape], object)
    row.fill(value)
    return row.tolist()


# Lead time for the other model: twice its predicted duration, 1 ms, and a tenth of the time left, as a margin
# for a busy machine.
_COSTS_AHEAD = 2.0
_SECONDS_AHEAD = 0.001
_PART_AHEAD = 0.1
# Without a request deadline, the other model (which may hang) gets the first one's timeout, and at least this
# long.
_LEAST_SECONDS_MORE = 1.0
# Least time between two warnings. Clients could flood the log: the texts contain their numbers and shapes.
_SILENT_SECONDS = 60.0


class OtherVersion(Protocol):
    """A loaded version of the other model.

    Attributes:
        signatures: Its signatures, by name.
        batcher: Its Batcher, without its own default: two models may be each other's default.
    """

    signatures: Mapping[str, Signature]
    batcher: Batcher


class DefaultModel:
    """Predictor that wraps another one, and answers with another model if the wrapped one does not answer.

    The other model is called as soon as the first one refuses, or shortly before the deadline: earlier by a
    tenth of the time left, a millisecond, and twice its predicted duration. Its answer is held until needed.
    """

    def __init__(
        self,
        around: Predictor,
        signatures: Mapping[str, Signature],
        policy: DefaultPolicy,
        find: Callable[[str], OtherVersion],
        *,
        statistics: VersionStatistics,
        clock: Clock,
    ) -> None:
        """Wrap a Predictor.

        Args:
            around: The wrapped Predictor.
            signatures: The first model's signatures, by name.
            policy: The other model's name, and the first one's timeout.
            find: Returns the other model's default version, or raises a HeadraceError.
            statistics: Counts the default answers.
            clock: The serving thread's clock.
        """
        self.around = around
        self.signatures = signatures
        self.model = policy.model
        self.find = find
        self.statistics = statistics
        self.clock = clock
        self._after_seconds = policy.after_seconds
        self._complaint = ""
        self._silent_until = -math.inf

    def submit(self, request: Request) -> None:
        """Submit a request, or refuse it at once; see ``Predictor``. Explanations have no default."""
        if request.layout.signature == EXPLAIN_SIGNATURE:
            self.around.submit(request)
            return
        deadline = deadline_within(request, self._after_seconds, self.clock)
        second = _Second(self, request, self._other_deadline(request, deadline))
        self.around.submit(_First(request, deadline, second))
        if deadline != math.inf and request.wanted:
            second.ask_before(deadline)

    def _other_deadline(self, request: Request, deadline: float) -> float:
        """Return the other model's deadline, given the first one's."""
        if request.deadline != NO_DEADLINE:
            return request.deadline
        return deadline + max(self._after_seconds, _LEAST_SECONDS_MORE)

    def seconds_ahead(self, rows: int) -> float:
        """Return the predicted duration of the other model, with a margin, in seconds."""
        try:
            cost = self.find(self.model).batcher.cost
        except HeadraceError:
            return _SECONDS_AHEAD  # it may be loaded by then
        return _SECONDS_AHEAD + _COSTS_AHEAD * cost.seconds(rows)

    def inputs_for(self, other: OtherVersion, request: Request) -> CheckedInputs:
        """Return a request's inputs in the other model's order.

        Raises:
            HeadraceError: They do not fit the other model's signature.
        """
        layout = request.layout
        signature = signature_named(other.signatures, layout.signature)
        places = {spec.name: index for index, spec in enumerate(layout.specs)}
        order = []
        for spec in signature.inputs:
            index = places.get(spec.name)
            if index is None or layout.specs[index].dtype != spec.dtype:
                raise FailedPrecondition(f"it takes {spec}, which the request does not have")
            if not spec.accepts(shape := layout.shapes[index]):
                raise FailedPrecondition(f"it takes {spec}, and the request has rows of {shape}")
            order.append(index)
        shapes = tuple(layout.shapes[index] for index in order)
        columns = tuple(request.columns[index] for index in order)
        return CheckedInputs(signature.layout(shapes), columns, request.rows)

    def outputs_of(self, answer: Answer, signature_name: str) -> Tensors:
        """Return the first model's outputs from the other model's answer.

        Raises:
            FailedPrecondition: The answer lacks an output, or it does not fit.
        """
        outputs = {}
        for spec in self.signatures[signature_name].outputs:
            tensor = answer.outputs.tensors.get(spec.name)
            if tensor is None or tensor.dtype != spec.dtype or not spec.accepts(tensor.shape[1:]):
                raise FailedPrecondition(f"it does not give {spec}")
            outputs[spec.name] = answer.tensor(spec.name)
        return outputs

    def complain(self, error: HeadraceError) -> None:
        """Log why there is no default answer, if the reason is new; at most once a minute."""
        now = self.clock.now()
        if error.message != self._complaint and now >= self._silent_until:
            self._complaint, self._silent_until = error.message, now + _SILENT_SECONDS
            _log.warning("the default model %r cannot stand in: %s", self.model, error.message)


class _First(Attempt):
    """The request to the first model."""

    __slots__ = ("_second",)

    def __init__(self, asked: Request, deadline: float, second: _Second) -> None:
        super().__init__(asked, deadline, second.needed)
        self._second = second

    def settle(self, settlement: Settlement) -> bool:
        is_refusal = isinstance(settlement, DeadlineExceeded | Refused)
        if not self.settled and not (is_refusal and self.wanted):
            self._second.forget()  # cancels the timer, which would keep the request in memory
        return super().settle(settlement)


class _Second:
    """Sends a second request to the other model, if needed; it is also that request's Waiter."""

    __slots__ = (
        "_answer", "_asked", "_asker", "_deadline", "_default", "_is_over", "_refusal", "_request", "_timer",
    )  # fmt: skip

    def __init__(self, default: DefaultModel, request: Request, deadline: float) -> None:
        self._default = default
        self._request = request
        self._deadline = deadline
        self._asker = ASKING.get().name  # the refusal may come in the context of another caller's request
        self._timer: Timer | None = None
        self._asked = False
        self._is_over = False
        self._answer: Answer | None = None
        self._refusal: HeadraceError | None = None

    def done(self) -> bool:
        """Return whether the other model's answer is no longer needed."""
        return self._is_over or not self._request.wanted

    def ask_before(self, deadline: float) -> None:
        """Call the other model shortly before the first one's deadline."""
        if not self._asked:
            left = deadline - self._default.clock.now()
            wait = left * (1 - _PART_AHEAD) - self._default.seconds_ahead(self._request.rows)
            self._timer = self._default.clock.call_later(max(wait, 0.0), self._ask)

    def forget(self) -> None:
        """Drop the request: the first model has answered, or the caller no longer waits."""
        self._is_over = True
        self._cancel_timer()

    def needed(self, refusal: HeadraceError) -> None:
        """Use the other model: the first one has refused or exceeded its deadline."""
        self._refusal = refusal
        if not self._asked:
            self._cancel_timer()
            self._ask()
        else:
            self._settle_if_decided()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ask(self) -> None:
        self._timer, self._asked = None, True
        request, default = self._request, self._default
        if self.done():
            return
        try:
            other = default.find(default.model)
            inputs = default.inputs_for(other, request)
        except HeadraceError as error:
            self._receive(error)
            return
        again = Request(
            inputs.layout, inputs.columns, inputs.rows, self._receive,
            deadline=self._deadline, waiter=self,
        )  # fmt: skip
        again.asker, again.call = self._asker, PriorityOnly.of(request.call)
        other.batcher.submit(again)

    def _receive(self, settlement: Settlement) -> None:
        if isinstance(settlement, Answer):
            self._answer = settlement
        else:
            self._is_over = True
            self._default.complain(settlement)
        self._settle_if_decided()

    def _settle_if_decided(self) -> None:
        """Settle the request if the first model has failed and the other one has answered or failed."""
        if self._refusal is None:
            return
        if self._is_over:
            self._request.settle(self._refusal)
        elif self._answer is not None:
            self._give(self._answer)

    def _give(self, answer: Answer) -> None:
        request, origin = self._request, answer.origin
        try:
            outputs = self._default.outputs_of(answer, request.layout.signature)
        except HeadraceError as error:
            self._default.complain(error)
            request.settle(self._refusal or error)
            return
        stands_in = Origin(origin.model, origin.version, is_default=True)
        give_default(request, outputs, stands_in, answer.timings)
        self._default.statistics.defaults += 1
