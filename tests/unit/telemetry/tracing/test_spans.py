"""What spans say where no server is needed to find out: routes, paths and defaults."""

from __future__ import annotations

import pytest

from headrace.base.status_codes import OK
from headrace.base.trace_context import TraceContext
from headrace.batching.request import Origin, Timings
from headrace.telemetry.outcomes import Channel, Outcome
from headrace.telemetry.tracing.spans import MOST_LINKS, Batches, BatchSpan, Describer, Routes, parts

ROUTES = Routes(["/v1/models/{model}:predict", "/v1/models/{model}/versions/{version}", "/metrics"])
CONTEXT = TraceContext(None, is_recorded=True)


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/models/m:predict", "/v1/models/{model}:predict"),
        ("/V1/models/m:predict", "/v1/models/{model}:predict"),
        ("/v1/models/m/versions/3", "/v1/models/{model}/versions/{version}"),
        ("/metrics", "/metrics"),
        ("/metrics/", ""),
        ("/v1/models/a/b:predict", ""),
        ("/v1/models/" + "m" * 300 + ":predict", ""),
    ],
)
def test_a_path_has_the_name_of_its_route(path: str, route: str) -> None:
    assert ROUTES.of(path) == route


def ended(method: str = "POST", path: str = "/metrics", peer: tuple[str, int] | None = None) -> Outcome:
    outcome = Outcome(Channel.REST, peer, method, path)
    outcome.end(OK, None)
    return outcome


def test_invented_methods_and_paths_do_not_name_spans_and_are_cut() -> None:
    span = Describer(ROUTES, []).call(ended("BREW", "/" + "x" * 1000), CONTEXT)
    assert span.name == "HTTP"
    assert span.attributes["http.request.method"] == "_OTHER"
    assert len(str(span.attributes["url.path"])) == 256
    assert "client.address" not in span.attributes


def test_an_address_of_ipv6_has_no_brackets() -> None:
    span = Describer(ROUTES, []).call(ended(peer=("::1", 5)), CONTEXT)
    assert (span.attributes["client.address"], span.attributes["client.port"]) == ("::1", 5)


def test_a_default_of_another_model_is_named_beside_the_one_that_was_asked() -> None:
    outcome = Outcome(Channel.REST, None, "POST", "/metrics")
    outcome.handed_to(Origin("m", 2))
    outcome.source = Origin("small", 7, is_default=True)
    outcome.end(OK, None)
    found = Describer(ROUTES, []).call(outcome, CONTEXT).attributes
    assert (found["headrace.model.name"], found["headrace.model.version"]) == ("m", 2)
    assert (found["headrace.default.model.name"], found["headrace.default.model.version"]) == ("small", 7)
    assert found["headrace.answered_by"] == "default"


def test_parts_of_a_call_that_joined_an_equal_one_begin_with_itself() -> None:
    outcome = Outcome(Channel.REST)
    outcome.handed = 12.0
    timings = Timings(10.0, 1, 1)
    timings.started, timings.finished = 11.0, 14.0
    found = parts(outcome, CONTEXT, BatchSpan(Origin("m", 1), timings, 0.0))
    assert [(part.start, part.end) for part in found] == [(12.0, 12.0), (12.0, 12.0), (12.0, 14.0)]


# The spans of batches wait for their requests, and not for ever.

ORIGIN = Origin("m", 1)


def request() -> TraceContext:
    return TraceContext(None, is_recorded=True)


def test_a_batch_whose_requests_are_all_there_waits_no_longer() -> None:
    batches, timings = Batches(2.0), Timings(1.0, 6, 2)
    first, second = request(), request()
    batch = batches.join(ORIGIN, timings, first, 10.0)
    assert batches.due(10.0) == []
    assert batches.join(ORIGIN, timings, second, 10.5) is batch
    assert batches.due(10.5) == [batch]
    assert batch.links == [first, second]
    assert batches.due(100.0) == [], "once"


def test_a_late_request_refers_to_the_span_of_its_batch_which_is_sent_once() -> None:
    """As a call that joined an equal one, which the batch does not count."""
    batches, timings = Batches(2.0), Timings(1.0, 1, 1)
    batch = batches.join(ORIGIN, timings, request(), 10.0)
    assert batches.due(10.0) == [batch]
    late = batches.join(ORIGIN, timings, request(), 15.0)
    assert late.context is batch.context
    assert batches.due(100.0, is_last=True) == []


def test_batches_that_were_sent_are_forgotten_in_the_end() -> None:
    batches, timings = Batches(2.0), Timings(1.0, 1, 1)
    batch = batches.join(ORIGIN, timings, request(), 0.0)
    for _ in range(4096):
        batches.join(ORIGIN, Timings(1.0, 1, 1), request(), 0.0)
    assert len(batches.due(0.0)) == 4097
    assert batches.join(ORIGIN, timings, request(), 1.0).context is not batch.context


def test_one_whose_other_requests_are_not_recorded_waits_a_while() -> None:
    batches = Batches(2.0)
    batch = batches.join(ORIGIN, Timings(1.0, 6, 5), request(), 10.0)
    assert batches.due(11.9) == []
    assert batches.due(12.0) == [batch]


def test_the_last_look_takes_them_all() -> None:
    batches = Batches(2.0)
    found = [batches.join(ORIGIN, Timings(1.0, 6, 5), request(), 10.0) for _ in range(3)]
    assert batches.due(10.0, is_last=True) == found


def test_links_and_batches_that_wait_are_limited() -> None:
    batches, timings = Batches(2.0), Timings(1.0, 1, 1000)
    for _ in range(MOST_LINKS + 10):
        batch = batches.join(ORIGIN, timings, request(), 0.0)
    assert len(batch.links) == MOST_LINKS
    for _ in range(5000):
        batches.join(ORIGIN, Timings(1.0, 1, 2), request(), 0.0)
    assert len(batches.due(0.0)) == 5001 - 4096
