"""Each way in which a call can end is one Outcome with the right codes, by whichever door it came in."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from types import EllipsisType
from typing import NamedTuple

import pytest

from headrace.base.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    HeadraceError,
    InvalidRequest,
    ModelError,
    NotFound,
    Overloaded,
    TooLarge,
    Unsupported,
)
from headrace.base.status_codes import OK, WRONG_METHOD, codes
from headrace.batching.request import Origin
from headrace.config import CachePolicy
from headrace.telemetry.outcomes import Channel, Outcome, said
from tests.outcome_doors import ASGI_DOORS, CLIENT, DOORS, Ask, World, world
from tests.unit.frontends.transport.wire import GRPC, LEFT, body, message, part
from tests.waiting import until_in_loop

BROKEN = Ask(is_broken=True)
CACHE = CachePolicy(size_bytes=2**20)


class Way(NamedTuple):
    """One way to end, and the error that it is; None for an answer.

    Attributes:
        asked: What the call is handed to at every door; ``...`` where some find out earlier.
    """

    ask: Ask
    error: HeadraceError | None
    asked: Origin | EllipsisType | None = Origin("m", 1)
    source: Origin | None = None


WAYS = {
    "answered": Way(Ask(), None, source=Origin("m", 1)),
    "bad bytes": Way(BROKEN, InvalidRequest(""), None),
    "unknown model": Way(Ask("other"), NotFound(""), None),
    "too many rows": Way(Ask(rows=2), TooLarge(""), ...),
    "the model fails": Way(Ask(value=-1.0), ModelError("")),
    "too late": Way(Ask("slow", seconds=0.05), DeadlineExceeded(""), Origin("slow", 1)),
}


def run(
    scenario: Callable[[World], Coroutine[object, object, None]],
    *,
    by_grpcio: bool = False,
    is_observed: bool = True,
    cache: CachePolicy | None = None,
) -> None:
    async def within() -> None:
        made_so = world(by_grpcio=by_grpcio, is_observed=is_observed, cache=cache)
        async with asyncio.timeout(20), made_so as made:
            await scenario(made)
            assert made.codes() == (made.tally() if is_observed else Counter())
            assert len({one.id for one in made.given}) == len(made.given)

    asyncio.run(within())


def of(how: str, error: HeadraceError | None) -> tuple[Channel, str]:
    return DOORS[how], said(DOORS[how], OK if error is None else codes(error))


def expected(how: str, *ends: HeadraceError | None) -> Counter[tuple[Channel, str]]:
    """How the calls end, and the streams that they came in: those are answered unless their caller leaves."""
    found = Counter(of(how, end) for end in ends)
    if how == "gRPC stream":
        found.update(of(how, end if isinstance(end, Cancelled) else None) for end in ends)
    return found


@pytest.mark.parametrize("cache", [None, CACHE], ids=["", "cached"])
@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("how", DOORS)
def test_each_way_to_end_is_one_outcome(how: str, name: str, cache: CachePolicy | None) -> None:
    way = WAYS[name]
    if how == "callback" and way.asked is None:
        pytest.skip("what is not submitted is no call")

    async def scenario(made: World) -> None:
        began = time.monotonic()
        ask = way.ask
        if (how, name, cache) == ("thread", "too late", None):
            # A thread computes its own batch: it is late only if it was when it came.
            ask = ask._replace(seconds=0.0)
        elif (how, name) == ("grpcio", "too late"):
            ask = ask._replace(seconds=1.0)  # a call that expired before it was sent never arrives
        await made.ask(how, ask)
        await until_in_loop(lambda: made.given)
        ends = [expected(how, way.error)]
        if (how, name) == ("grpcio", "too late"):
            ends.append(
                expected(how, Cancelled(""))
            )  # its caller may give up a moment before its server does
        assert made.codes() in ends, made.given
        outcome = made.given[0]
        assert len(outcome.id) == 16
        assert way.asked in {outcome.asked, ...}
        assert outcome.source == way.source
        assert bool(outcome.error) == (way.error is not None)
        # Of a batch that failed, too; not through a cache, which asks for several callers at once.
        has_times = way.error is None or (name == "the model fails" and cache is None)
        assert (outcome.timings is not None) == has_times
        assert began <= outcome.arrived <= outcome.ended <= time.monotonic()
        host = outcome.caller.rpartition(":")[0]
        assert host == {"grpcio": "127.0.0.1"}.get(how, CLIENT[0] if how in ASGI_DOORS else "")

    run(scenario, by_grpcio=how == "grpcio", cache=cache)


@pytest.mark.parametrize("how", DOORS)
def test_an_answer_that_is_repeated_is_one_outcome(how: str) -> None:
    async def scenario(made: World) -> None:
        for _ in range(3):
            await made.ask(how, Ask())
        await until_in_loop(lambda: made.codes() == expected(how, None, None, None))
        calls = [one for one in made.given if one.asked is not None]
        assert [one.source for one in calls] == [
            Origin("m", 1),
            *[Origin("m", 1, is_cached=True)] * 2,
        ]
        for one in calls:
            assert one.timings is not None
            assert one.arrived <= one.timings.formed <= one.ended

    run(scenario, by_grpcio=how == "grpcio", cache=CACHE)


@pytest.mark.parametrize("how", [how for how in DOORS if how != "thread"])
def test_a_caller_who_leaves_is_one_outcome(how: str) -> None:
    async def scenario(made: World) -> None:
        asking = asyncio.create_task(made.ask(how, Ask("slow")))
        await made.until_taken(1)
        assert made.given == []
        asking.cancel()
        await asyncio.wait([asking])
        await until_in_loop(lambda: made.given)
        assert made.codes() == expected(how, Cancelled(""))
        made.gate.set()
        await made.until_taken(0)

    run(scenario, by_grpcio=how == "grpcio")


@pytest.mark.parametrize("how", [how for how in DOORS if how != "thread"])
def test_a_full_queue_is_one_outcome(how: str) -> None:
    async def scenario(made: World) -> None:
        waiting = []
        for taken in (1, 2):
            waiting.append(asyncio.create_task(made.ask(how, Ask("slow"))))
            await made.until_taken(taken)
        await made.ask(how, Ask("slow"))
        assert made.codes() == expected(how, Overloaded(""))
        made.gate.set()
        await asyncio.wait(waiting)
        assert made.codes() == expected(how, Overloaded(""), None, None)

    run(scenario, by_grpcio=how == "grpcio")


def test_a_callback_whose_waiter_leaves_is_one_outcome() -> None:
    async def scenario(made: World) -> None:
        waiting = asyncio.create_task(made.ask("callback", Ask("slow")))
        await made.until_taken(1)
        loaded, left = made.engine.loaded("slow"), asyncio.get_running_loop().create_future()
        checked = loaded.signatures["serving_default"].check({"x": [[1, 2]]})
        made.engine.submit(loaded, checked, lambda _: None, waiter=left)
        left.cancel()
        made.gate.set()
        await asyncio.wait([waiting])
        await made.until_taken(0)
        assert made.codes() == expected("callback", None, Cancelled(""))

    run(scenario)


def test_a_blocking_call_that_would_wait_for_ever_is_one_outcome() -> None:
    async def scenario(made: World) -> None:
        row = {"x": [[1, 2]]}
        with pytest.raises(FailedPrecondition, match="await"):
            made.engine.predict_blocking("m", row)
        slow = made.engine.loaded("slow").servable
        slow._before = lambda: made.engine.predict_blocking("slow", row)  # type: ignore[attr-defined]
        await made.ask("in process", Ask("slow"))
        await until_in_loop(lambda: len(made.given) == 3)
        refused = FailedPrecondition("")
        assert made.codes() == expected("in process", refused, refused, refused)
        assert "calls itself" in made.given[1].error

    run(scenario)


# --- at the transport's door ---


@pytest.mark.parametrize("how", ["REST", "gRPC"])
def test_a_body_over_the_budget_is_one_outcome(how: str) -> None:
    async def scenario(made: World) -> None:
        bodies = made.application.bodies
        bodies.hold_of_stream(bodies.limits.max_inflight_bytes)
        await made.ask(how, Ask())
        bodies.release(bodies.limits.max_inflight_bytes)
        assert made.codes() == expected(how, Overloaded(""))

    run(scenario)


@pytest.mark.parametrize("how", ["REST", "gRPC", "gRPC stream", "grpcio"])
def test_one_call_too_many_is_one_outcome(how: str) -> None:
    async def scenario(made: World) -> None:
        made.application.bodies.call_bytes = made.application.bodies.limits.max_inflight_bytes + 1
        made.application.bodies.hold_of_stream(1)
        await made.ask(how, Ask())
        made.application.bodies.release(1)
        assert made.codes() == Counter([of(how, Overloaded(""))])

    run(scenario, by_grpcio=how == "grpcio")


@pytest.mark.parametrize(
    ("path", "method", "headers", "code"),
    [
        ("/v1/nothing", "GET", [], (Channel.REST, "404")),
        ("/v2/models/m/infer", "GET", [], (Channel.REST, str(WRONG_METHOD.http))),
        ("/v2/health/live", "GET", [], (Channel.REST, "200")),
        ("/x.Y/Z", "POST", GRPC, of("gRPC", Unsupported(""))),
    ],
)
def test_what_no_model_sees_is_one_outcome(
    path: str, method: str, headers: list[tuple[bytes, bytes]], code: tuple[Channel, str]
) -> None:
    async def scenario(made: World) -> None:
        await made.send(path, body(b""), headers, method)
        assert made.codes() == Counter([code])

    run(scenario)


@pytest.mark.parametrize("how", ["REST", "gRPC", "gRPC stream"])
def test_a_body_that_never_comes_whole_is_one_outcome(how: str) -> None:
    paths = {"REST": "/v1/models/m:predict", "gRPC": "/inference.GRPCInferenceService/ModelInfer"}
    path = paths.get(how, "/inference.GRPCInferenceService/ModelStreamInfer")

    async def scenario(made: World) -> None:
        headers = [] if how == "REST" else GRPC
        await made.send(path, [part(message(b"begun")[:3]), LEFT], headers)
        assert made.codes() == Counter([of(how, Cancelled(""))])

    run(scenario)


def test_each_message_of_a_stream_is_a_call_and_so_is_the_stream() -> None:
    async def scenario(made: World) -> None:
        await made.ask("gRPC stream", Ask())
        first, stream = made.given
        assert (first.asked, stream.asked) == (Origin("m", 1), None)
        assert first.caller == stream.caller

    run(scenario)


# --- observers ---


def test_an_observer_that_fails_hurts_no_answer_and_no_other_observer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[Outcome] = []

    def failing(outcome: Outcome) -> None:
        told.append(outcome)
        raise ValueError("full disk")

    async def scenario(made: World) -> None:
        made.engine.outcomes.observe(failing)
        after: list[Outcome] = []
        made.engine.outcomes.observe(after.append)
        with caplog.at_level(logging.ERROR):
            wire = await made.send("/v1/models/m:predict", body(b'{"instances": [[1, 2]]}'), [])
            await made.ask("gRPC", Ask())
            await made.ask("in process", Ask(value=-1.0))
        assert wire.sent[0]["status"] == 200
        assert told == after == made.given
        assert len(told) == 3
        assert [record.message for record in caplog.records if "observer" in record.message] == [
            "an observer of outcomes failed; it still receives later outcomes"
        ], "once, and not at each call"

    run(scenario)


def test_an_observer_that_fails_again_after_it_has_worked_is_logged_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fails = iter([True, True, False, True])

    def observer(_: Outcome) -> None:
        if next(fails):
            raise ValueError("full disk")

    async def scenario(made: World) -> None:
        made.engine.outcomes.observe(observer)
        for _ in range(4):
            await made.ask("REST", Ask())
        assert sum("observer" in record.message for record in caplog.records) == 2

    run(scenario)


def test_an_observer_may_be_an_object_that_is_not_hashable() -> None:
    class Kept(list[Outcome]):
        def __call__(self, outcome: Outcome) -> None:
            self.append(outcome)

    async def scenario(made: World) -> None:
        kept = Kept()
        made.engine.outcomes.observe(kept)
        await made.ask("REST", Ask())
        assert made.tally() == Counter([of("REST", None)])
        assert kept == made.given

    run(scenario)


def test_without_observers_no_record_is_made_and_all_is_counted() -> None:
    async def scenario(made: World) -> None:
        await made.ask("REST", Ask())
        await made.ask("gRPC", Ask("other"))
        await made.ask("in process", Ask())
        assert made.tally() == Counter([of("REST", None), of("gRPC", NotFound("")), of("in process", None)])

    run(scenario, is_observed=False)
