"""Records of messages in a stream."""

from __future__ import annotations

from contextvars import copy_context

from headrace.frontends.calls import GrpcCall
from headrace.telemetry.outcomes import Outcome, Outcomes
from headrace.telemetry.tracing.tracer import ParentBased


def test_a_message_over_the_limit_on_traces_keeps_its_streams_trace_in_the_log() -> None:
    outcomes, seen, traced = Outcomes(), list[Outcome](), list[Outcome]()
    outcomes.observe(seen.append, names=True)
    outcomes.observe_sampled(traced.append, ParentBased(1.0, 2))

    def stream_of_two() -> None:
        stream = GrpcCall()
        outcomes.begin(stream, "POST", "/a.B/C", None)
        assert stream.outcome is not None
        for _ in range(2):
            message = stream.of_message()
            outcomes.begin_message(message, stream.outcome)
            outcomes.answered(message)
        outcomes.answered(stream)

    copy_context().run(stream_of_two)
    recorded, over, stream = [one.trace for one in seen]
    assert recorded is not None
    assert over is not None
    assert stream is not None
    assert recorded.trace_id == over.trace_id == stream.trace_id
    assert recorded.span_id != over.span_id == stream.span_id
    assert traced == [seen[0], seen[2]]
