"""The spans of batches wait for their requests, and not for ever."""

from __future__ import annotations

from headrace.base.trace_context import TraceContext
from headrace.batching.request import Origin, Timings
from headrace.telemetry.tracing.batch_spans import MOST_LINKS, Batches

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
