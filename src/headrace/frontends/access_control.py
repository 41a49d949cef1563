"""Access control of a server: the Gate, the key files that it follows, and the Service behind the Gate.

The Service checks that the models of a call are permitted to the caller. The caller is read from a context
variable that the transport sets in the call's task. Without one, nothing is permitted.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from headrace.access.caller import ASKING, Caller
from headrace.access.gate import Gate
from headrace.access.keys import LOOK_SECONDS, Keys, Watched, WatchedKeys
from headrace.access.permissions import bits
from headrace.access.shared_meters import Meters
from headrace.base.errors import InvalidRequest, NotFound
from headrace.batching.part_streams import OnePart, PartStream
from headrace.batching.request import NO_DEADLINE, Answer
from headrace.frontends.calls import Call as ReceivedCall
from headrace.frontends.metrics.metric_types import Metric, family
from headrace.telemetry.outcomes import Call

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from headrace.config.access import AccessConfig
    from headrace.frontends.service import Service
    from headrace.model.servable import CheckedInputs
    from headrace.serving.loaded_version import LoadedVersion

_log = logging.getLogger(__name__)

CALLS = Metric("headrace_caller_calls", "counter", "Calls admitted, by the key's name.", ("caller",))
REFUSED = Metric("headrace_access_refused", "counter", "Calls refused at the gate, by error.", ("error",))
KEYS = Metric("headrace_access_keys", "gauge", "Valid keys, including those for tokens.", ())
READS = Metric("headrace_access_reads", "counter", "Reloads of the key file.", ())
BROKEN = Metric(
    "headrace_access_file_broken",
    "gauge",
    "1 while the key file is invalid or missing and the previous keys stay valid: alert on it.",
    (),
)
METRICS = (CALLS, REFUSED, KEYS, READS, BROKEN)

PRIORITY = b"headrace-priority"
"""The header, or the key of metadata, that holds a request's priority class."""

_PRIORITIES = (b"1", b"2", b"3")

Rest = ParamSpec("Rest")
Told = TypeVar("Told")


class Access:
    """The Gate of a server and the reloading of its key files; a Prometheus collector. Serving thread only.

    Attributes:
        gate: The Gate that calls pass.
    """

    def __init__(
        self,
        config: AccessConfig,
        counted_at: tuple[int, int, int] = (-1, 0, 1),
        tells: Callable[[str, str, str], None] | None = None,
    ) -> None:
        """Read the keys.

        Args:
            config: The access settings, which name one or several key files.
            counted_at: The arguments of ``Meters``.
            tells: Callback for each reload, with the action, the file and the result. Runs in a thread, since
                it may wait for a disk.

        Raises:
            ConfigError: A file cannot be read, or an entry is wrong.
        """
        self._tells = tells
        self._watched: list[tuple[Watched[Any], Callable[[Any], None]]] = []
        self.gate = Gate({}, bits(config.open), Meters(*counted_at))
        if config.file is not None:
            self._watch(WatchedKeys(config.file), self._take_keys)
        if config.jwt.keys is not None:
            from headrace.access.tokens import Tokens, read_token_keys  # noqa: PLC0415

            tokens = self.gate.tokens = Tokens(config.jwt, {})
            self._watch(Watched(config.jwt.keys, lambda file, _: read_token_keys(file)), tokens.take)
        self._reads = 0

    def _watch(self, watched: Watched[Any], take: Callable[[Any], None]) -> None:
        take(watched.keys)
        self._watched.append((watched, take))

    def _take_keys(self, keys: Keys) -> None:
        self.gate.keys = keys

    async def follow(self) -> None:
        """Reload the keys when their files change, until cancelled. Disk reads run in a thread."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                for watched, take in self._watched:
                    problem = watched.problem
                    if await asyncio.to_thread(watched.look):
                        take(watched.keys)
                        self._reads += 1
                        await self._tell(watched, "done")
                    elif watched.problem not in ("", problem):
                        await self._tell(watched, f"failed: {watched.problem}")
            except Exception:  # noqa: BLE001 - the current keys stay in force, and the next check retries
                _log.exception("cannot check the key files for changes")

    async def _tell(self, watched: Watched[Any], result: str) -> None:
        if self._tells is not None:
            await asyncio.to_thread(self._tells, "reload-keys", str(watched.file), result)

    def collect(self) -> Iterator[Family]:
        """Yield the current metrics."""
        for metric, counts in ((CALLS, self.gate.calls), (REFUSED, self.gate.refused)):
            counted = family(metric)
            for label, count in sorted(counts.items()):
                counted.add_metric([label], count)
            yield counted
        keys = sum(len(watched.keys) for watched, _ in self._watched)
        is_broken = any(watched.problem for watched, _ in self._watched)
        numbers = (KEYS, keys), (READS, self._reads), (BROKEN, is_broken)
        for metric, number in numbers:
            measured = family(metric)
            measured.add_metric([], number)
            yield measured


def guard(service: Service, gate: Gate) -> None:
    """Restrict callers to their own models; call this before any codec is given the service.

    Args:
        service: A Service of any class; each method whose parameters include a model is guarded.
        gate: Counts the rows that callers request.
    """
    for name in questions(type(service)):
        ask = getattr(service, name)
        setattr(service, name, _awaited_first(ask) if iscoroutinefunction(ask) else _asked_first(ask))
    predict, models, loaded_of = service.predict, service.models, service.loaded

    def his_loaded(model: str, version: int | None = None, label: str | None = None) -> LoadedVersion:
        caller = ASKING.get()
        if not caller.models.match(model):
            caller.check_model(model)
        try:
            return loaded_of(model, version, label)
        except NotFound as error:
            raise _told_to(caller, error) from None

    def predict_his(
        loaded: LoadedVersion,
        inputs: CheckedInputs,
        deadline: float = NO_DEADLINE,
        call: Call | None = None,
    ) -> asyncio.Future[Answer]:
        caller = ASKING.get()
        if not caller.models.match(loaded.name):
            caller.check_model(loaded.name)
        if isinstance(call, ReceivedCall):
            priority = call.header(PRIORITY)
            if priority is not None:
                call.priority = _checked_priority(priority, caller)
        if caller.limits is not None:
            gate.take_rows(caller, inputs.rows)
        return predict(loaded, inputs, deadline, call)

    def his_models() -> list[str]:
        his = ASKING.get().models
        return [model for model in models() if his.match(model)]

    service.loaded = his_loaded
    service.predict = predict_his
    service.parts = _his_parts(service.parts, predict_his, gate)
    service.models = his_models  # type: ignore[method-assign]  # set on the instance, of any class
    service.guarded = True


def _his_parts(
    parts: Callable[..., PartStream | OnePart], predict_his: Callable[..., asyncio.Future[Answer]], gate: Gate
) -> Callable[..., PartStream | OnePart]:
    def parts_his(
        loaded: LoadedVersion,
        inputs: CheckedInputs,
        deadline: float = NO_DEADLINE,
        call: Call | None = None,
    ) -> PartStream | OnePart:
        if loaded.streams is None:
            return OnePart(predict_his(loaded, inputs, deadline, call))
        caller = ASKING.get()
        caller.check_model(loaded.name)
        if caller.limits is not None:
            gate.take_rows(caller, inputs.rows)
        return parts(loaded, inputs, deadline, call)

    return parts_his


def _checked_priority(text: bytes, caller: Caller) -> int:
    if text not in _PRIORITIES:
        came = text[:40].decode("latin-1")
        raise InvalidRequest(f"expected 1, 2 or 3, got {came!r}; 1 is served first", field=PRIORITY.decode())
    priority = int(text)
    caller.check_priority(priority)
    return priority


def questions(kind: type[Service]) -> list[str]:
    """Return the names of a Service's methods that take a model."""
    return [
        name
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and "model" in inspect.signature(member).parameters
    ]


def _awaited_first(ask: Callable[..., Awaitable[Told]]) -> Callable[..., Awaitable[Told]]:
    """Check the model before awaiting ``ask``; an empty name means all models of the caller."""

    async def checked(model: str = "", *args: object) -> Told:
        caller = ASKING.get()
        if model:
            caller.check_model(model)
        try:
            return await ask(model, *args)
        except NotFound as error:
            raise _told_to(caller, error) from None

    return checked


def _asked_first(ask: Callable[Concatenate[str, Rest], Told]) -> Callable[Concatenate[str, Rest], Told]:
    def checked(model: str, /, *args: Rest.args, **named: Rest.kwargs) -> Told:
        caller = ASKING.get()
        caller.check_model(model)
        try:
            return ask(model, *args, **named)
        except NotFound as error:
            raise _told_to(caller, error) from None

    return checked


def _told_to(caller: Caller, error: NotFound) -> NotFound:
    """Return the error without the names of other models, unless the caller may use all of them."""
    return error if caller.models.everything else error.without_others()
