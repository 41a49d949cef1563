"""TensorFlow Serving's own metrics, so that existing dashboards and alerts keep working.

Names, labels, values and buckets are those of its source: ``servables/tensorflow/util.cc`` declares and
counts them, ``util/prometheus_exporter.cc`` writes them. As there, only requests of its own API are counted,
and only the latencies of answered ones. Unlike there, requests for unknown models are not counted. The
metrics are off unless the operator enables them.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from headrace.base.errors import HeadraceError
from headrace.base.status_codes import OK, codes
from headrace.batching.request import NO_DEADLINE, Answer
from headrace.frontends.metrics.prometheus_formats import escaped

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from headrace.frontends.metrics.engine_metrics import Families
    from headrace.model.servable import CheckedInputs
    from headrace.serving.loaded_version import LoadedVersion
    from headrace.telemetry.outcomes import Call

ReplyT = TypeVar("ReplyT")


class Predicts(Protocol):
    """The part of a Service whose calls are measured: its predictions."""

    @property
    def predict(self) -> Callable[..., Awaitable[Answer]]:
        """See ``Service.predict``."""


ServiceT = TypeVar("ServiceT", bound=Predicts)

BUCKETS = tuple(10 * 1.8**power for power in range(33))
"""Bucket limits in microseconds; as in TensorFlow Serving, a latency equal to one is in the next bucket."""

_LIMITS = (*(f"{limit:g}" for limit in BUCKETS), "+Inf")
_RUNTIME = "TF1"  # TensorFlow Serving's own value, whichever Runtime is used here
_MICROSECONDS = 1e6


class _Latencies:
    """One histogram."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0

    def add(self, seconds: float) -> None:
        microseconds = int(seconds * _MICROSECONDS)
        self.counts[bisect_right(BUCKETS, microseconds)] += 1
        self.sum += microseconds


class TensorFlowMetrics:
    """The counters, kept for as long as the server runs, also when versions are unloaded."""

    def __init__(self, known: Callable[[str], bool]) -> None:
        """Start with all counters at zero.

        Args:
            known: Returns whether a model of this name exists.
        """
        self._known = known
        self._requests: dict[tuple[str, str], int] = {}
        self._request_latency: dict[tuple[str, str, str], _Latencies] = {}
        self._runtime_latency: dict[tuple[str, str, str], _Latencies] = {}

    def measured(
        self,
        handler: Callable[..., Awaitable[ReplyT]],
        model_of: Callable[[Any], str],
        api: str,
        entrypoint: str,
    ) -> Callable[..., Awaitable[ReplyT]]:
        """Return a handler that counts the requests it passes to ``handler``.

        Args:
            handler: Answers the requests.
            model_of: Reads the model's name from the handler's first argument.
            api: ``Predict``, or ``predict`` as in REST's paths.
            entrypoint: ``GRPC`` or ``REST``.
        """

        async def handle(given: object, *more: object) -> ReplyT:
            started = time.monotonic()
            status = "INTERNAL"
            try:
                reply = await handler(given, *more)
                status = OK.name
            except HeadraceError as error:
                status = codes(error).name
                raise
            except asyncio.CancelledError:
                status = "CANCELLED"
                raise
            finally:
                self._count(model_of(given), api, entrypoint, status, time.monotonic() - started)
            return reply

        return handle

    def _count(self, model: str, api: str, entrypoint: str, status: str, seconds: float) -> None:
        if (model, status) not in self._requests and not self._known(model):
            return
        self._requests[model, status] = self._requests.get((model, status), 0) + 1
        if status == OK.name:
            self._request_latency.setdefault((model, api, entrypoint), _Latencies()).add(seconds)

    def watching(self, service: ServiceT, api: str) -> ServiceT:
        """Return the service with the duration of its predictions measured.

        Args:
            service: The service that predicts.
            api: ``Predict``, ``Classify`` or ``Regress``.
        """
        return cast("ServiceT", _Watched(service, api, self._runtime_latency))

    def pieces(self) -> Iterator[str]:
        """Yield the metrics as its exporter writes them, in short pieces; counts may change in between."""
        yield "# TYPE :tensorflow:serving:request_count counter\n"
        for (model, status), count in list(self._requests.items()):
            labels = f'model_name="{escaped(model)}",status="{status}"'
            yield f":tensorflow:serving:request_count{{{labels}}} {count}\n"
        for name, last, measured in self._histograms():
            yield from _histogram(name, last, measured)

    def families(self) -> Families:
        """Yield the metrics as families, with None where other work may run."""
        counted = _family("request_count", "untyped")  # a counter's name would get _total at its end
        for (model, status), count in list(self._requests.items()):
            counted.add_sample(counted.name, {"model_name": model, "status": status}, count)
        yield counted
        for name, last, measured in self._histograms():
            made = _family(name, "histogram")
            for (model, api, value), latencies in list(measured.items()):
                labels = {"model_name": model, "API": api, last: value}
                totals = list(accumulate(latencies.counts))
                for limit, total in zip(_LIMITS, totals, strict=True):
                    made.add_sample(f"{made.name}_bucket", {**labels, "le": limit}, total)
                made.add_sample(f"{made.name}_sum", labels, latencies.sum)
                made.add_sample(f"{made.name}_count", labels, totals[-1])
                yield None
            yield made

    def _histograms(self) -> Iterator[tuple[str, str, dict[tuple[str, str, str], _Latencies]]]:
        """Yield each histogram's name, the name of its last label, and its latencies."""
        yield "request_latency", "entrypoint", self._request_latency
        yield "runtime_latency", "runtime", self._runtime_latency


def _family(name: str, kind: str) -> Family:
    from prometheus_client.core import Metric  # noqa: PLC0415 - imported at the first scrape

    return Metric(f":tensorflow:serving:{name}", "", kind)


def _histogram(name: str, last: str, measured: dict[tuple[str, str, str], _Latencies]) -> Iterator[str]:
    name = f":tensorflow:serving:{name}"
    yield f"# TYPE {name} histogram\n"
    for (model, api, value), latencies in list(measured.items()):
        labels = f'model_name="{escaped(model)}",API="{api}",{last}="{value}"'
        totals = list(accumulate(latencies.counts))
        buckets = [
            f'{name}_bucket{{{labels},le="{limit}"}} {total}\n'
            for limit, total in zip(_LIMITS, totals, strict=True)
        ]
        yield f"{''.join(buckets)}{name}_sum{{{labels}}} {latencies.sum}\n"
        yield f"{name}_count{{{labels}}} {totals[-1]}\n"


class _Watched:
    """A Service whose predictions are measured; everything else is passed through."""

    def __init__(self, service: Predicts, api: str, measured: dict[tuple[str, str, str], _Latencies]) -> None:
        self._service = service
        self._api = api
        self._measured = measured

    def __getattr__(self, name: str) -> object:
        return getattr(self._service, name)

    def predict(
        self,
        loaded: LoadedVersion,
        inputs: CheckedInputs,
        deadline: float = NO_DEADLINE,
        call: Call | None = None,
    ) -> asyncio.Future[Answer]:
        """Call the service at once, as its own ``predict`` does; measure when the answer arrives."""
        answer = asyncio.ensure_future(self._service.predict(loaded, inputs, deadline, call))
        answer.add_done_callback(partial(self._measure, loaded.name, time.monotonic()))
        return answer

    def _measure(self, model: str, started: float, answer: asyncio.Future[Answer]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            key = model, self._api, _RUNTIME
            self._measured.setdefault(key, _Latencies()).add(time.monotonic() - started)


_MODEL_SPEC = _NAME = b"\x0a"  # field 1 of each measured request, and field 1 of that field
_VARINT = 0x80


def model_name(message: bytes | memoryview) -> str:
    """Return the model's name if ``model_spec`` is the message's first field, else ""."""
    spec = _embedded(message, _MODEL_SPEC)
    name = _embedded(spec, _NAME)
    return str(name, errors="replace")


def _embedded(message: bytes | memoryview, tag: bytes) -> bytes | memoryview:
    """Return the contents of the first field; empty if it is another field, or has 16 KiB or more."""
    if len(message) < 2 or message[:1] != tag:
        return b""
    size, start = message[1], 2
    if size & _VARINT:
        if len(message) < 3 or message[2] & _VARINT:
            return b""
        size, start = size & 0x7F | message[2] << 7, 3
    return message[start : start + size]
