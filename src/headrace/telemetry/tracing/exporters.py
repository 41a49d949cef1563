"""Send spans by OpenTelemetry's own exporters (the extra ``tracing``), set up by its variables and ours.

An exporter takes OpenTelemetry's own spans and encodes them. For gRPC, ``QuickExporter`` replaces its
encoding method by ``otlp_encoding``, which is faster. A later release without that method still works: it
reads ``Sent`` as spans.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload
from urllib.parse import urlsplit

from headrace.base.clock import unix_offset_nanoseconds
from headrace.base.errors import ConfigError, needs_extra
from headrace.base.trace_context import TraceContext
from headrace.config import Tracing
from headrace.telemetry.tracing.spans import SpanData

if TYPE_CHECKING:
    from headrace.telemetry.tracing.otlp_encoding import Encoder

try:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState
except ImportError as error:
    raise needs_extra("tracing", "tracing", error) from error

_log = logging.getLogger(__name__)

_SAMPLERS: Mapping[str, tuple[bool, float | None]] = {
    "always_on": (False, 1.0),
    "always_off": (False, 0.0),
    "traceidratio": (False, None),
    "parentbased_always_on": (True, 1.0),
    "parentbased_always_off": (True, 0.0),
    "parentbased_traceidratio": (True, None),
}
_PROTOCOLS: Mapping[str, Literal["grpc", "http"]] = {"grpc": "grpc", "http/protobuf": "http"}
_MOST_WAITING, _EVERY_MS, _LONGEST_PAUSE_MS = 4096, 1000.0, 60_000.0
_PROTOCOL_NAMES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


@dataclass(frozen=True, slots=True)
class Settings:
    """The effective settings of tracing.

    Attributes:
        endpoint: Endpoint of the collector; None if the exporter reads it from OpenTelemetry's variables.
        protocol: Protocol of the collector.
        rate: Share to record of the traces that begin here.
        follows_parent: Whether a caller's decision applies.
        most_per_second: Largest number of calls recorded per second.
        service_name: Name of the server; None if OpenTelemetry's variables give it.
        most_waiting: Largest number of calls waiting to be sent.
        every_seconds: Interval between sends in seconds.
    """

    endpoint: str | None
    protocol: Literal["grpc", "http"]
    rate: float
    follows_parent: bool
    most_per_second: int
    service_name: str | None
    most_waiting: int
    every_seconds: float


def combined(config: Tracing, environment: Mapping[str, str]) -> Settings | None:
    """Combine headrace's settings with OpenTelemetry's variables, which they override. Pure.

    Args:
        config: Settings of headrace.
        environment: Environment variables.

    Returns:
        The effective settings; None if OpenTelemetry's variables disable tracing.

    Raises:
        ConfigError: A variable is invalid.
    """
    said = {name: value.strip() for name, value in environment.items() if name.startswith("OTEL_")}
    if said.get("OTEL_SDK_DISABLED", "").lower() == "true" or said.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    follows_parent, rate = _sampler(said)
    is_named = said.get("OTEL_SERVICE_NAME") or _names_service(said.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    return Settings(
        endpoint=config.endpoint,
        protocol=config.protocol or _protocol(said),
        rate=rate if config.sample_rate is None else config.sample_rate,
        follows_parent=follows_parent or config.sample_rate is not None,
        most_per_second=config.max_traces_per_second,
        service_name=config.service_name or (None if is_named else "headrace"),
        most_waiting=int(_number(said, "OTEL_BSP_MAX_QUEUE_SIZE", _MOST_WAITING, 1, 2**20)),
        every_seconds=_number(said, "OTEL_BSP_SCHEDULE_DELAY", _EVERY_MS, 1, _LONGEST_PAUSE_MS) / 1000,
    )


def _names_service(attributes: str) -> bool:
    """Return whether OpenTelemetry's SDK finds the service's name in ``key=value`` pairs."""
    pairs = [pair.partition("=") for pair in attributes.split(",")]
    return any(key.strip() == "service.name" and value.strip() for key, _, value in pairs)


def _protocol(said: Mapping[str, str]) -> Literal["grpc", "http"]:
    name = next((one for one in _PROTOCOL_NAMES if said.get(one)), None)
    if name is None:
        return "grpc"
    if said[name] not in _PROTOCOLS:
        raise ConfigError(f"{name}: expected one of {', '.join(_PROTOCOLS)}, got {said[name]!r:.40}")
    return _PROTOCOLS[said[name]]


def _sampler(said: Mapping[str, str]) -> tuple[bool, float]:
    """Return whether callers' decisions are followed, and the rate."""
    name = said.get("OTEL_TRACES_SAMPLER") or "parentbased_always_on"
    if name not in _SAMPLERS:
        expected = ", ".join(_SAMPLERS)
        raise ConfigError(f"OTEL_TRACES_SAMPLER: expected one of {expected}, got {name!r:.40}")
    follows, rate = _SAMPLERS[name]
    return follows, _number(said, "OTEL_TRACES_SAMPLER_ARG", 1.0, 0.0, 1.0) if rate is None else rate


def _number(said: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    word = said.get(name, "")
    if not word:
        return default
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise ConfigError(f"{name}: expected a number from {least:g} to {most:g}, got {word!r:.40}")
    return number


_PATH = "/v1/traces"
_UNSET, _ERROR = Status(StatusCode.UNSET), StatusCode.ERROR


class Export:
    """Sends spans; logs once that sending fails, and once that it works again.

    Attributes:
        endpoint: Endpoint for log messages; "" if OpenTelemetry's own variables or defaults determine it.
    """

    def __init__(self, settings: Settings, version: str) -> None:
        """Create the exporter; nothing is sent yet.

        Args:
            settings: Settings of tracing.
            version: Version of headrace.

        Raises:
            ConfigError: A package or a file is missing, or one of OpenTelemetry's variables is invalid.
        """
        attributes = {"service.version": version}
        if settings.service_name:
            attributes[SERVICE_NAME] = settings.service_name
        self._resource = Resource.create(attributes)
        self._scope = InstrumentationScope("headrace", version)
        self.endpoint = settings.endpoint or ""
        self._why = _Remembered()
        try:
            self._exporter = _exporter(settings, self._sender())
        except (ValueError, OSError, RuntimeError) as error:
            raise ConfigError(f"tracing: cannot create the exporter: {error}") from error
        self._works = True
        self._is_closing = False

    def _sender(self) -> ReadableSpan:
        context = SpanContext(1, 1, is_remote=False)
        return ReadableSpan(
            name="", context=context, resource=self._resource, instrumentation_scope=self._scope
        )

    def send(self, spans: Sequence[SpanData]) -> bool:
        """Send spans; takes up to the exporter's timeout.

        Returns:
            Whether the collector has accepted them.
        """
        sent = Sent(spans, unix_offset_nanoseconds(), self._resource, self._scope)
        is_sent = self._exporter.export(sent) is SpanExportResult.SUCCESS
        if is_sent is not self._works and not self._is_closing:
            self._works = is_sent
            where = {"endpoint": self.endpoint} if self.endpoint else {}
            if is_sent:
                _log.info("traces are sent again", extra=where)
            else:
                why = {"why": self._why.last} if self._why.last else {}
                _log.warning(
                    "traces cannot be sent; until they can, they are dropped and counted", extra=where | why
                )
        return is_sent

    def close(self) -> None:
        """Abort sending; called from another thread."""
        self._is_closing = True
        self._exporter.shutdown()


class Sent(Sequence[ReadableSpan]):
    """Spans that are sent together, converted to OpenTelemetry's on demand.

    Attributes:
        spans: Spans to convert.
        offset: Offset from the monotonic clock to Unix time in nanoseconds.
    """

    def __init__(
        self, spans: Sequence[SpanData], offset: int, resource: Resource, scope: InstrumentationScope
    ) -> None:
        """Start without converting anything."""
        self.spans, self.offset = spans, offset
        self._resource, self._scope = resource, scope

    def __len__(self) -> int:
        return len(self.spans)

    def __iter__(self) -> Iterator[ReadableSpan]:
        return map(self._made, self.spans)

    @overload
    def __getitem__(self, place: int) -> ReadableSpan: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[ReadableSpan]: ...
    def __getitem__(self, place: int | slice) -> ReadableSpan | Sequence[ReadableSpan]:
        if isinstance(place, slice):
            return [self._made(one) for one in self.spans[place]]
        return self._made(self.spans[place])

    def _made(self, span: SpanData) -> ReadableSpan:
        context = span.context
        parent = None
        if context.parent_id:
            parent = _context(context, context.parent_id, is_remote=context.is_remote)
        return ReadableSpan(
            name=span.name,
            context=_context(context, context.span_id, is_remote=False),
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            links=[Link(_context(one, one.span_id, is_remote=False)) for one in span.links],
            kind=SpanKind.SERVER if span.is_server else SpanKind.INTERNAL,
            status=_UNSET if span.error is None else Status(_ERROR, span.error),
            start_time=self.offset + int(span.start * 1e9),
            end_time=self.offset + int(span.end * 1e9),
            instrumentation_scope=self._scope,
        )


def _context(one: TraceContext, span_id: str, *, is_remote: bool) -> SpanContext:
    return SpanContext(
        int(one.trace_id, 16),
        int(span_id, 16),
        is_remote,
        TraceFlags(one.flags | TraceFlags.SAMPLED),
        TraceState.from_header([one.state]) if one.state else None,
    )


def _exporter(settings: Settings, sender: ReadableSpan) -> SpanExporter:
    endpoint = settings.endpoint
    try:
        if settings.protocol == "http":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

            if endpoint and urlsplit(endpoint).path in {"", "/"}:
                endpoint = endpoint.rstrip("/") + _PATH
            return OTLPSpanExporter(endpoint=endpoint)
        from headrace.telemetry.tracing.otlp_encoding import Encoder  # noqa: PLC0415 - as above

        return _quick_exporter(Encoder(sender), endpoint)
    except ImportError as error:
        raise needs_extra("tracing", "tracing", error) from error


def _quick_exporter(encoder: Encoder, endpoint: str | None) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - as above

    class QuickExporter(OTLPSpanExporter):
        def _translate_data(self, data: Sequence[ReadableSpan]) -> Any:
            if isinstance(data, Sent):
                return encoder.message(data.spans, data.offset)
            return super()._translate_data(data)

    return QuickExporter(endpoint=endpoint)


class _Remembered(logging.Handler):
    """Keeps the exporters' last log message, to log it once instead of at each attempt.

    Attributes:
        last: Last message.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last = ""
        theirs = logging.getLogger("opentelemetry")
        theirs.propagate = False
        theirs.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.last = f"{record.getMessage():.300}"
