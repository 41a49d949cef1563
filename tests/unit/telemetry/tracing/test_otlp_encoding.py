"""What is sent is what OpenTelemetry's own encoder makes of the same spans, to the last field."""

from __future__ import annotations

import itertools
import random

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from headrace.base.trace_context import Parent, TraceContext, new_span_id, new_trace_id
from headrace.config import Tracing
from headrace.telemetry.tracing.exporters import Export, Sent, combined
from headrace.telemetry.tracing.otlp_encoding import Encoder
from headrace.telemetry.tracing.spans import SpanData

RESOURCE = Resource.create({"service.name": "headrace", "service.version": "1"})
SCOPE = InstrumentationScope("headrace", "1")
OFFSET = 1_700_000_000_000_000_000


def parents() -> list[Parent | None]:
    return [None, *(Parent(new_trace_id(), new_span_id(), flags) for flags in (0, 1, 3))]


def span(
    parent: Parent | None, state: str, is_remote: bool, error: str | None, links: int, is_server: bool
) -> SpanData:
    attributes = {"text": "é", "": "", "whole": 2**40, "negative": -1, "yes": True, "no": False, "real": 0.5}
    return SpanData(
        "POST /v1/models/{name}:predict",
        TraceContext(parent, state, is_recorded=True, is_remote=is_remote),
        start := random.Random(links).uniform(0.0, 1e6),
        start + 0.001,
        attributes if is_server else {},
        is_server=is_server,
        error=error,
        links=[TraceContext(None, is_recorded=True) for _ in range(links)],
    )


def sent(*spans: SpanData) -> Sent:
    return Sent(spans, OFFSET, RESOURCE, SCOPE)


def test_messages_equal_those_of_the_sdk() -> None:
    cases = itertools.product(
        parents(), ("", "a=1,b=2", "a=1,a=2, c = 3"), (True, False), (None, "", "why"), (0, 3), (True, False)
    )
    spans = sent(*itertools.starmap(span, cases))
    made = Encoder(next(iter(sent(span(None, "", True, None, 0, True))))).message(spans.spans, OFFSET)
    theirs = encode_spans(list(spans))
    assert len(made.resource_spans[0].scope_spans[0].spans) == len(spans) == 288
    assert made == theirs


def test_messages_do_not_share_spans() -> None:
    one, two = (sent(span(None, "", True, None, 0, True)) for _ in range(2))
    encoder = Encoder(one[0])
    first, second = encoder.message(one.spans, OFFSET), encoder.message(two.spans, OFFSET)
    assert (first, second) == (encode_spans(list(one)), encode_spans(two[0:1]))


def test_the_exporter_takes_what_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release of it that asked for spans instead would take four times the processor time: see the page."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1")
    asked: list[object] = []
    monkeypatch.setattr(Sent, "__iter__", lambda self: asked.append(self) or iter(()))
    settings = combined(Tracing(endpoint="http://127.0.0.1:9"), {})
    assert settings is not None
    export = Export(settings, "1")
    assert not export.send([span(None, "", True, None, 0, True)])  # nobody listens there
    export.close()
    assert asked == []
