"""Threads that wait for their answers: they run the batches themselves, and nobody is left waiting."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import (
    DeadlineExceeded,
    HeadraceError,
    ModelError,
    NotFound,
    Overloaded,
    Unavailable,
)
from headrace.base.event_loop import run_in
from headrace.base.tensors import Array, Tensors
from headrace.batching import calling_threads
from headrace.batching.calling_threads import Callers, WaitingRequest
from headrace.config import BatchingPolicy, ServerConfig
from headrace.serving.engine import Engine
from headrace.telemetry.outcomes import Channel, Outcome
from tests.calling import (
    PATIENCE_SECONDS,
    POISON,
    Asking,
    AskingItself,
    Gated,
    asleep,
    clock_of_callers,
    occupied,
    of,
    rows_of,
    serving,
    wait_for,
)
from tests.model_directories import affine, write
from tests.models import Doubling


class Refusing(Doubling):
    """A Doubling whose errors are not worth a line in the log."""

    def predict(self, inputs: Tensors, signature: str = "serving_default") -> dict[str, Array]:
        if (inputs["x"] < 0).any():
            raise ModelError("poison")
        return super().predict(inputs, signature)


both_ways = pytest.mark.parametrize("aside", [False, True], ids=["with the turn", "aside"])


@both_ways
def test_who_finds_nobody_at_work_computes_for_all_who_wait(aside: bool) -> None:
    model = Gated()
    with serving(model, aside=aside, instances=1) as (engine, _):
        busy = occupied(engine, model)
        waiting = [Asking(engine, float(number)) for number in range(8)]
        asleep(engine, 8)
        model.open()
        assert busy.answered_right
        assert all(one.answered_right for one in waiting)
        assert model.batches == [1, 8]
        counted = of(engine).statistics
        assert (counted.requests, counted.rows, counted.batches) == (9, 9, 2)
        assert counted.batch_rows.keys() == {1, 8}
        assert of(engine).batcher.statistics.batches == 0  # in no instance's thread


def test_what_takes_long_runs_side_by_side() -> None:
    model = Gated()
    with serving(model, aside=True, instances=2) as (engine, _):
        model.shut = True
        first = []
        for number in range(2):  # one by one: requests that arrive at once share a batch
            first.append(Asking(engine, float(number)))
            model.await_entered()
        third = Asking(engine, 2.0)
        asleep(engine, 1)
        model.open()
        assert all(one.answered_right for one in (*first, third))


@pytest.mark.parametrize("may_block", [False, True], ids=["an object", "a model.py"])
def test_code_with_one_instance_is_never_called_twice_at_once(may_block: bool) -> None:
    """Threads and tasks have a Batcher each, and each had an instance."""
    model = Gated()
    model.may_block = may_block  # type: ignore[attr-defined]
    policy = BatchingPolicy(inline_seconds=0.0, instances=1)
    with Engine.in_thread(objects={"m": model}, batching=policy) as engine:
        model.shut = True
        first = Asking(engine, 1.0)
        model.await_entered()
        second = Asking(engine, 2.0)
        task = asyncio.run_coroutine_threadsafe(engine.predict("m", rows_of(3.0)), engine._loop)
        wait_for(lambda: of(engine).outstanding == 3)
        assert not model.entered.acquire(timeout=0.1)
        model.open()
        assert first.answered_right
        assert second.answered_right
        assert task.result(PATIENCE_SECONDS)["y"].tolist() == [[6.0, 6.0]]


@both_ways
def test_one_bad_request_fails_alone(aside: bool, caplog: pytest.LogCaptureFixture) -> None:
    model = Gated()
    with serving(model, aside=aside, instances=1) as (engine, _):
        busy = occupied(engine, model)
        waiting = [Asking(engine, value) for value in (1.0, POISON, 2.0)]
        asleep(engine, 3)
        model.open()
        assert [one.answered_right for one in (busy, *waiting)] == [True, True, False, True]
        assert isinstance(waiting[1].error, ModelError)
        lone = Asking(engine, POISON)
        assert not lone.answered_right
        assert isinstance(lone.error, ModelError)
        counted = of(engine).statistics
        assert (counted.requests, counted.failures) == (3, 2)
    assert "an unexpected error" in caplog.text


@both_ways
def test_an_interrupt_of_who_computes_ends_its_own_call_only(aside: bool) -> None:
    model = Gated()
    with serving(model, aside=aside, instances=1) as (engine, _):
        busy = occupied(engine, model)
        waiting = [Asking(engine, float(number)) for number in range(4)]
        asleep(engine, 4)
        model.interrupt = True
        model.open()
        assert not busy.answered_right
        assert isinstance(busy.error, KeyboardInterrupt)
        assert all(one.answered_right for one in waiting)
        assert Asking(engine, 7.0).answered_right


@both_ways
def test_an_interrupt_of_who_computes_for_others_leaves_them_their_answers(aside: bool) -> None:
    """The one who is interrupted computes a batch in which others wait."""
    model = Gated()
    with serving(model, aside=aside, instances=1) as (engine, _):
        busy = occupied(engine, model)
        waiting = [Asking(engine, float(number)) for number in range(5)]
        asleep(engine, 5)
        model.gate.release()
        model.await_entered()  # now one of them computes for all
        model.interrupt = True
        model.open()
        assert busy.answered_right
        right = [one.answered_right for one in waiting]
        assert right.count(False) == 1
        assert isinstance(waiting[right.index(False)].error, KeyboardInterrupt)


def test_an_interrupt_of_who_sleeps_ends_its_own_call_only() -> None:
    model = Gated()
    with serving(model) as (engine, _):
        busy = occupied(engine, model)
        other = Asking(engine, 1.0)
        asleep(engine, 1)

        def interrupt() -> None:
            asleep(engine, 2)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            engine.predict_blocking("m", rows_of(2.0))
        interrupting.join()
        model.open()
        assert busy.answered_right
        assert other.answered_right
        assert model.batches == [1, 1]
        assert of(engine).statistics.cancelled == 1


def test_interrupts_at_any_point_leave_nobody_waiting() -> None:
    """The main thread is interrupted wherever it is, many times, while others call."""

    class Interrupted(KeyboardInterrupt):
        pass

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    done, wrong, interrupts = threading.Event(), [], 0

    def call() -> None:
        value = threading.get_ident() % 97
        while not done.is_set():
            if engine.predict_blocking("m", rows_of(value))["y"].tolist() != [[2.0 * value] * 2]:
                wrong.append(value)

    with serving() as (engine, _):
        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        before = signal.signal(signal.SIGALRM, interrupt)
        draw = random.Random(5)
        try:
            until = time.monotonic() + 1.0
            while time.monotonic() < until or interrupts <= 20:
                with contextlib.suppress(Interrupted):
                    signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 2e-3))
                    while True:
                        engine.predict_blocking("m", rows_of(3.0))
                interrupts += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            done.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert not any(thread.is_alive() for thread in threads)
        assert not wrong
        assert engine.predict_blocking("m", rows_of(1.0))["y"].tolist() == [[2.0, 2.0]]


def test_who_waits_is_told_at_its_deadline() -> None:
    model = Gated()
    with serving(model) as (engine, _):
        busy = occupied(engine, model)
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            engine.predict_blocking("m", rows_of(1.0), timeout_seconds=0.05)
        assert time.monotonic() - began >= 0.05
        assert model.batches == [], "the model still holds the first"
        model.open()
        assert busy.answered_right
        assert engine.predict_blocking("m", rows_of(2.0))["y"].tolist() == [[4.0, 4.0]]
        assert model.batches == [1, 1], "what nobody waits for is not computed"


def test_more_rows_than_may_wait_are_refused() -> None:
    model = Gated()
    with serving(model, max_batch_rows=4, max_queue_rows=8) as (engine, _):
        busy = occupied(engine, model)
        waiting = [Asking(engine, float(number)) for number in range(9)]
        asleep(engine, 9)
        model.open()
        right = [one.answered_right for one in (busy, *waiting)]
        assert right.count(True) == 9
        assert sum(isinstance(one.error, Overloaded) for one in waiting) == 1
        assert max(model.batches) <= 4


def test_a_large_request_is_cut_and_joined() -> None:
    with serving(max_batch_rows=4) as (engine, model):
        answer = engine.predict_blocking("m", rows_of(1.0, rows=11))["y"]
        assert answer.tolist() == [[2.0, 2.0]] * 11
        assert model.batches == [4, 4, 3]


def test_closing_answers_who_waits_and_refuses_who_comes() -> None:
    model = Gated()
    waiting: list[Asking] = []

    def open_when_closing() -> None:
        wait_for(lambda: engine.manager.ready_now("m") is None)
        late.append(Asking(engine, 9.0))
        late[0].join(PATIENCE_SECONDS)
        model.open()

    late: list[Asking] = []
    with Engine.in_thread(objects={"m": model}, batching=BatchingPolicy(inline_seconds=1.0)) as engine:
        waiting = [occupied(engine, model), *(Asking(engine, float(number)) for number in range(4))]
        asleep(engine, 4)
        opening = threading.Thread(target=open_when_closing)
        opening.start()
    opening.join()
    assert all(one.answered_right for one in waiting)
    assert isinstance(late[0].error, Unavailable)
    assert model.closed.is_set()
    with pytest.raises(Unavailable, match="stopping"):
        engine.predict_blocking("m", rows_of(1.0))


def test_versions_change_under_threads_that_call(tmp_path: Path) -> None:
    write(tmp_path, "m", 1, affine(1.0, 1.0))
    stop, failed = threading.Event(), []

    def call() -> None:
        while not stop.is_set():
            try:
                answers.add(engine.predict_blocking("m", {"x": [1.0]})["y"].item())
            except HeadraceError as error:
                failed.append(error)

    answers: set[float] = set()
    with Engine.in_thread(tmp_path, config=ServerConfig(poll_seconds=0.02)) as engine:
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in (2, 3):
            write(tmp_path, "m", number, affine(1.0, float(number)))
            wait_for(lambda number=number: 1.0 + number in answers)
        wait_for(lambda: len(engine.manager.all_loaded()) == 1)
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert not failed
    assert answers == {2.0, 3.0, 4.0}


def test_a_version_that_goes_before_the_call_is_inside_is_not_asked() -> None:
    model = Doubling()

    class Late:
        """Inputs that are read once the model was found; meanwhile it is unloaded."""

        def __array__(self, dtype: object = None, copy: object = None) -> Array:
            async def unload() -> None:
                engine.manager.unload("m")

            run_in(engine._loop, unload())
            assert model.closed.wait(PATIENCE_SECONDS)
            return rows_of(1.0)["x"]

    with Engine.in_thread(objects={"m": model}) as engine:
        model.batches.clear()
        with pytest.raises(NotFound):
            engine.predict_blocking("m", {"x": Late()})
        assert model.batches == []


def test_a_model_that_asks_itself_is_answered() -> None:
    model = AskingItself()
    with serving(model) as (engine, _):
        model.engine = engine
        assert engine.predict_blocking("m", rows_of(2.0))["y"].tolist() == [[4.0, 4.0]]


def test_requests_that_are_held_back_for_others_wait_in_the_serving_thread() -> None:
    with serving(max_wait_seconds=0.05, max_batch_rows=4) as (engine, _):
        assert of(engine).callers is None
        threads = [Asking(engine, float(number)) for number in range(4)]
        assert all(one.answered_right for one in threads)
        assert of(engine).statistics.requests == 4


def test_calls_of_threads_end_in_outcomes() -> None:
    ended, told_in = list[Outcome](), set[int]()
    with serving() as (engine, _):
        engine.outcomes.observe(ended.append)
        engine.outcomes.observe(lambda _: told_in.add(threading.get_ident()))
        engine.predict_blocking("m", rows_of(1.0))
        with pytest.raises(ModelError):
            engine.predict_blocking("m", rows_of(POISON))
        wait_for(lambda: len(ended) == 2)
        assert [one.code.name for one in ended] == ["OK", "INTERNAL"]
        assert told_in == {engine._serving_thread}
        assert ended[0].source == ended[0].asked == of(engine).origin
        assert ended[0].timings is not None
        tally = engine.outcomes.tallies[Channel.IN_PROCESS]
        assert (tally.answered, sum(tally.failed.values())) == (1, 1)


@settings(max_examples=6, deadline=None)
@given(
    threads=st.integers(2, 12),
    aside=st.booleans(),
    instances=st.integers(1, 2),
    most=st.sampled_from([3, 8, 64]),
    seed=st.integers(0, 1000),
)
def test_whatever_threads_do_each_call_ends_once_and_right(
    threads: int, aside: bool, instances: int, most: int, seed: int
) -> None:
    calls_each, wrong = 25, []

    def call(number: int) -> None:
        draw = random.Random(seed * 100 + number)
        for index in range(calls_each):
            value = POISON if draw.random() < 0.05 else float(1 + number * calls_each + index)
            rows = draw.randint(1, 3)
            within = draw.choice([None, None, 60.0, 1e-4])
            try:
                answer = engine.predict_blocking("m", rows_of(value, rows), timeout_seconds=within)
            except HeadraceError as error:
                fine = within == 1e-4 or (value == POISON and isinstance(error, ModelError))
            else:
                fine = answer["y"].tolist() == [[2 * value] * 2] * rows
            if not fine:
                wrong.append((value, rows))
            if draw.random() < 0.1:
                time.sleep(draw.uniform(0, 1e-3))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # change threads wherever that can happen
    try:
        with serving(Refusing(), aside=aside, instances=instances, max_batch_rows=most) as (engine, _):
            running = [threading.Thread(target=call, args=(number,)) for number in range(threads)]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join(PATIENCE_SECONDS)
            assert not any(thread.is_alive() for thread in running)
            engine.predict_blocking("m", rows_of(1.0))  # what expired in the queue is counted when it is met
            counted = of(engine).statistics
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    ended = counted.requests + counted.failures + counted.refused + counted.cancelled
    assert ended == threads * calls_each + 1


@pytest.mark.parametrize("number", range(1, 12))
def test_an_interrupt_where_a_function_begins_leaves_the_turn_to_others(number: int) -> None:
    """That is where a signal's exception is raised: before the function's first line."""
    began = 0

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        nonlocal began
        if event == "call" and frame.f_code.co_filename == calling_threads.__file__:
            began += 1
            if began == number:
                raise KeyboardInterrupt

    with serving() as (engine, _):
        assert engine.predict_blocking("m", rows_of(1.0))["y"][0, 0] == 2.0
        sys.settrace(interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            engine.predict_blocking("m", rows_of(2.0))
        sys.settrace(None)
        assert Asking(engine, 3.0).answered_right


@pytest.mark.parametrize("queue_rows", [8, 1000], ids=["a full queue", "a long one"])
def test_callers_whose_deadlines_passed_stand_in_nobodys_way(
    queue_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of them had left, so nobody dropped their rows, and all calls after them were refused."""
    model, later = Gated(), clock_of_callers(monkeypatch)
    with serving(model, max_batch_rows=4, max_queue_rows=queue_rows) as (engine, _):
        busy = occupied(engine, model)
        waiting = []
        for number in range(8):
            waiting.append(Asking(engine, float(number), timeout_seconds=60))
            asleep(engine, number + 1)
        model.gate.release()  # the first is answered; one of the others computes some of them
        model.await_entered()
        later(100.0)  # all deadlines have passed
        wait_for(lambda: sum(one.is_alive() for one in waiting) == 1)
        model.open()
        for one in (busy, *waiting):
            one.join()
        late = [type(one.error) for one in waiting].count(DeadlineExceeded)
        assert 4 <= late < 8, "who computes is answered late, and perhaps others of its batch"
        assert (of(engine).queued_rows, of(engine).outstanding) == (0, 0)
        assert of(engine).statistics.failures == late
        assert engine.predict_blocking("m", rows_of(1.0, 8), timeout_seconds=200)["y"][0, 0] == 2.0


def test_a_batch_whose_callers_left_before_it_was_computed_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model, work, later = Gated(), Callers._work, clock_of_callers(monkeypatch)
    busy: Asking | None = None

    def late(self: Callers, own: WaitingRequest) -> None:
        """Whoever gave the batch is put aside before it wakes its caller."""
        work(self, own)
        if threading.current_thread() is busy:
            put_aside.set()
            late_until.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(Callers, "_work", late)
    put_aside, late_until = threading.Event(), threading.Event()
    with serving(model, aside=True, max_batch_rows=4, instances=2) as (engine, _):
        engine.predict_blocking("m", rows_of(1.0, 4))
        others = [occupied(engine, model), occupied(engine, model)]
        busy = others[0]
        gone = Asking(engine, 3.0, timeout_seconds=60)
        asleep(engine, 1)
        model.open()
        assert put_aside.wait(PATIENCE_SECONDS)
        later(100.0)
        gone.join()
        late_until.set()
        for one in others:
            assert one.answered_right
        before = len(model.batches)
        assert engine.predict_blocking("m", rows_of(1.0), timeout_seconds=200)["y"][0, 0] == 2.0
        assert len(model.batches) <= before + 1
        assert of(engine).outstanding == 0
