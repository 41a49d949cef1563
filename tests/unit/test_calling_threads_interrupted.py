"""Interrupts of threads that call, wherever they are: the others are answered, and the engine closes."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from headrace.base.errors import FailedPrecondition, HeadraceError, ModelError, Overloaded
from headrace.base.tensors import Array, Tensors
from headrace.batching import calling_threads
from headrace.batching.batcher import Batcher
from headrace.batching.calling_threads import Callers, WaitingRequest
from headrace.batching.request import Request
from headrace.config import BatchingPolicy
from headrace.serving.engine import Engine
from tests.calling import (
    PATIENCE_SECONDS,
    Asking,
    AskingItself,
    Gated,
    asleep,
    of,
    rows_of,
    serving,
    wait_for,
)
from tests.models import Doubling

BATCHING = str(Path(calling_threads.__file__).parent)
OWN = calling_threads.__file__
MOST_POINTS = 2000
NOT_POINTS = ("except ", "pass", "with ", "try:", "for _ in _ATTEMPTS")


class Point:
    """A point on a thread's way through the batching: a function's beginning; in `OWN`, a line, too.

    A line where a `try`, its handler, the loop around it or the end of a `with` begins is none: Python looks
    for signals after calls, and where functions and later turns of loops begin. An exception just there would
    confuse it.
    """

    def __init__(self, number: int) -> None:
        self.left = number
        self.where = ""

    @property
    def reached(self) -> bool:
        return bool(self.where)

    def trace(self, frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        file = frame.f_code.co_filename
        if not file.startswith(BATCHING):
            return None
        line = linecache.getline(file, frame.f_lineno)
        if event in {"call", "line"} and not line.lstrip().startswith(NOT_POINTS):
            self.left -= 1
            if self.left < 0:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {event}"
                raise KeyboardInterrupt
        return self.trace if file == OWN else None


def interrupted(point: Point, call: Callable[[], object]) -> None:
    """Call, and be interrupted at a point, if the call comes there."""
    sys.settrace(point.trace)
    try:
        call()
    except KeyboardInterrupt:
        assert point.reached
    else:
        assert not point.reached, f"an interrupt was lost: {point.where}"
    finally:
        sys.settrace(None)


class Noting(set[WaitingRequest]):
    """A set that knows whether something was put into it."""

    entered = False

    def add(self, request: WaitingRequest) -> None:
        self.entered = True
        super().add(request)


def callers_of(engine: Engine) -> Callers:
    found = of(engine).callers
    assert found is not None
    return found


@contextlib.contextmanager
def somebody_awake(engine: Engine) -> Iterator[None]:
    """As if another thread were inside, and awake: those who come leave their requests, and sleep."""
    inside = callers_of(engine)._inside
    checked = of(engine).signatures["serving_default"].check(rows_of(0.0))
    phantom = WaitingRequest(checked, float("inf"), 0.0)
    inside.add(phantom)
    yield
    inside.discard(phantom)


def sleepers(engine: Engine, count: int) -> list[Asking]:
    """Threads whose requests nobody has taken in yet."""
    with somebody_awake(engine), callers_of(engine)._turn:  # on a slow machine they would begin themselves
        waiting = [Asking(engine, float(number + 1)) for number in range(count)]
        asleep(engine, count)
    return waiting


@pytest.fixture(autouse=True)
def no_impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who left a request first waits until it is woken."""
    monkeypatch.setattr(calling_threads, "_GATHER_SECONDS", 1.0)


def each_point() -> Iterator[Point]:
    """One point after the other, until a call ends without coming to it."""
    for number in range(MOST_POINTS):
        point = Point(number)
        yield point
        if not point.reached:
            assert number > 10
            return
    raise AssertionError("there is no end to this call")


def test_a_lone_caller_may_be_interrupted_anywhere() -> None:
    idle: list[None] = []
    with serving() as (engine, _):
        assert engine.predict_blocking("m", rows_of(1.0))["y"][0, 0] == 2.0
        inside = callers_of(engine)._inside = Noting()
        callers_of(engine).on_idle = lambda: idle.append(None)
        for point in each_point():
            idle.clear()
            inside.entered = False
            interrupted(point, lambda: engine.predict_blocking("m", rows_of(2.0)))
            assert of(engine).outstanding == 0, point.where
            assert idle or not inside.entered, f"{point.where}: nobody heard that the last one has left"
            assert Asking(engine, 3.0).answered_right, point.where


@pytest.mark.parametrize("aside", [False, True], ids=["with the turn", "aside"])
@pytest.mark.parametrize("rows", [1, 5], ids=["whole", "cut"])
def test_who_computes_for_others_may_be_interrupted_anywhere(aside: bool, rows: int) -> None:
    with serving(aside=aside, instances=1, max_batch_rows=4) as (engine, _):
        inside = callers_of(engine)._inside = Noting()
        for point in each_point():
            waiting = sleepers(engine, 2)
            inside.entered = False
            interrupted(point, lambda: engine.predict_blocking("m", rows_of(9.0, rows)))
            if not inside.entered:  # then it was not this thread's to see to them
                callers_of(engine)._see_that_somebody_works()
            for one in waiting:
                assert one.answered_right, (point.where, one.error)
            wait_for(lambda: of(engine).outstanding == 0)
            assert Asking(engine, 3.0).answered_right, point.where


class Interrupted(Doubling):
    """Interrupts the main thread."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[Point] = []

    def predict(self, inputs: Tensors, signature: str = "serving_default") -> dict[str, Array]:
        if threading.current_thread() is threading.main_thread():
            if self.points:
                trace_from_here(self.points.pop())
            raise KeyboardInterrupt
        return super().predict(inputs, signature)


def trace_from_here(point: Point) -> None:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == OWN:
            frame.f_trace = point.trace
        frame = frame.f_back
    sys.settrace(point.trace)


@pytest.mark.parametrize("aside", [False, True], ids=["with the turn", "aside"])
def test_a_second_interrupt_may_come_anywhere_after_the_first(aside: bool) -> None:
    model = Interrupted()
    with serving(model, aside=aside, instances=1) as (engine, _):
        for point in each_point():
            waiting = sleepers(engine, 2)
            model.points.append(point)
            with pytest.raises(KeyboardInterrupt):
                engine.predict_blocking("m", rows_of(9.0))
            sys.settrace(None)
            for one in waiting:
                assert one.answered_right, (point.where, one.error)
            wait_for(lambda: of(engine).outstanding == 0)


def test_what_another_thread_computes_is_not_computed_again_after_an_interrupt() -> None:
    model = Gated()
    with serving(model, aside=True, instances=2) as (engine, _):
        model.shut = True
        first = Asking(engine, 1.0)
        model.await_entered()
        second = Asking(engine, 2.0)
        model.await_entered()
        third = Asking(engine, 3.0)
        asleep(engine, 1)
        model.interrupt = True
        model.gate.release()
        model.await_entered()  # the third, because one of both was interrupted
        assert len(callers_of(engine)._apart) == 2
        model.open()
        assert third.answered_right
        assert [first.answered_right, second.answered_right].count(True) == 1
        assert model.batches == [1, 1]


def test_who_was_admitted_is_not_refused_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> HeadraceError:
        return Overloaded("too late")

    model = Gated()
    with serving(model, instances=1) as (engine, _):
        model.shut = True
        busy = Asking(engine, 100.0)
        model.await_entered()
        waiting = [Asking(engine, float(number), timeout_seconds=60.0) for number in range(3)]
        asleep(engine, 3)
        model.gate.release()
        model.await_entered()  # one of them computes for all: they were admitted
        monkeypatch.setattr(Batcher, "_refusal", refuse)
        model.interrupt = True
        model.open()
        assert busy.answered_right
        right = [one.answered_right for one in waiting]
        assert right.count(True) == 2
        assert isinstance(waiting[right.index(False)].error, KeyboardInterrupt)


def test_a_request_that_cannot_be_taken_in_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    guilty = 2.0
    submit, columns_of_guilty = Batcher.submit, rows_of(guilty)["x"].tobytes()

    def submit_or_fail(self: Batcher, request: Request) -> None:
        submit(self, request)
        if bytes(request.columns[0]) == columns_of_guilty:
            self.queued_rows -= 7  # as if that had not come to its end
            raise MemoryError

    monkeypatch.setattr(Batcher, "submit", submit_or_fail)
    with serving() as (engine, _):
        waiting = sleepers(engine, 3)
        assert engine.predict_blocking("m", rows_of(9.0))["y"][0, 0] == 18.0
        assert [one.answered_right for one in waiting] == [True, False, True]
        assert isinstance(waiting[1].error, ModelError)
        counted = of(engine).statistics
        assert (counted.requests, counted.failures) == (3, 1)


class Named(Gated):
    """Keeps which thread computes whose rows, and lets each batch pass by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.computed: list[tuple[float, list[float]]] = []
        self.gates: dict[float, threading.Event] = {float(value): threading.Event() for value in range(10)}

    def predict(self, inputs: Tensors, signature: str = "serving_default") -> dict[str, Array]:
        thread = threading.current_thread()
        if isinstance(thread, Asking):
            values = inputs["x"][:, 0].tolist()
            self.computed.append((thread.value, values))
            self.entered.release()
            assert self.gates[values[0]].wait(PATIENCE_SECONDS)
        return super().predict(inputs, signature)


def test_nobody_who_sleeps_is_woken_for_a_batch_of_strangers() -> None:
    model = Named()
    with serving(model, aside=True, instances=2, max_batch_rows=2) as (engine, _):
        busy = []
        for value in (1.0, 2.0):
            busy.append(Asking(engine, value))
            model.await_entered()
        waiting = []
        for number in range(4):
            waiting.append(Asking(engine, 3.0 + number))
            asleep(engine, number + 1)
        for value in (1.0, 2.0):  # the one lets 3 and 4 be computed; the other 5 and 6, while 4 sleeps
            model.gates[value].set()
            model.await_entered()
        for gate in model.gates.values():
            gate.set()
        assert all(one.answered_right for one in (*busy, *waiting))
        assert [values for _, values in model.computed[2:]] == [[3.0, 4.0], [5.0, 6.0]]
        assert all(thread in values for thread, values in model.computed)


def test_a_model_that_asks_itself_is_answered_where_it_is_computed_aside() -> None:
    model = AskingItself()
    with serving(model, aside=True, instances=1) as (engine, _):
        model.engine = engine
        assert Asking(engine, 2.0).answered_right


def test_a_model_that_asks_itself_and_has_one_instance_is_told_so() -> None:
    """Its call waited for itself, for ever."""
    model = AskingItself()
    policy = BatchingPolicy(inline_seconds=0.0, instances=1)
    with Engine.in_thread(objects={"m": model}, batching=policy) as engine:
        model.engine = engine
        asking = Asking(engine, 2.0)
        assert not asking.answered_right
        assert isinstance(asking.error, FailedPrecondition)
        assert Asking(engine, 1.0).answered_right


IN_A_CHILD = """
import os, signal, sys, threading
from headrace.config import BatchingPolicy
from headrace.serving.engine import Engine
from headrace.base.errors import FailedPrecondition
from tests.calling import Gated, occupied, rows_of

model = Gated()
with Engine.in_thread(objects={"m": model}) as engine:
    busy = occupied(engine, model)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            engine.predict_blocking("m", rows_of(1.0))
        except FailedPrecondition:
            sys.exit(7)  # by way of the engine's end
        os._exit(1)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    model.open()
    assert busy.answered_right
sys.exit(ended)
"""


def test_a_child_of_a_fork_is_told_that_the_engine_is_its_parents() -> None:
    """Somebody had the turn in the parent; in the child nobody ever gave it back."""
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IN_A_CHILD],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 7, ran.stderr


def test_where_python_has_no_frames_left_the_turn_is_given_back() -> None:
    def deeper(levels: int, call: Callable[[], object]) -> object:
        return call() if levels == 0 else deeper(levels - 1, call)

    with serving(instances=2) as (engine, _):
        ended = set[type[BaseException] | None]()
        left = sys.getrecursionlimit() - len(inspect.stack(0))
        for levels in range(left - 60, left):
            try:
                deeper(levels, lambda: engine.predict_blocking("m", rows_of(9.0)))
                ended.add(None)
            except RecursionError:
                ended.add(RecursionError)
            assert Asking(engine, 1.0).answered_right
        assert ended == {None, RecursionError}
