"""What spans say where no server is needed to find out: routes, paths and defaults."""

from __future__ import annotations

import pytest

from headrace.base.status_codes import OK
from headrace.base.trace_context import TraceContext
from headrace.batching.request import Origin, Timings
from headrace.telemetry.outcomes import Channel, Outcome
from headrace.telemetry.tracing.batch_spans import BatchSpan
from headrace.telemetry.tracing.spans import Describer, Routes, parts

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


def test_what_callers_make_up_is_no_name_and_is_cut() -> None:
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
