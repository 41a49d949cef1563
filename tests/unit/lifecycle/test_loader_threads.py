"""Loader threads: one a call, so that none waits for another; they give way while there are requests."""

from __future__ import annotations

import _thread
import asyncio
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import pytest

from headrace.base import cpus
from headrace.base.clock import LoopClock
from headrace.lifecycle.idle_time import stop_if_dropped
from headrace.lifecycle.loader_threads import NO_THREAD, LoaderThreads
from headrace.lifecycle.version_states import State
from tests.unit.lifecycle.stage import Loaded, Stage, wanted

T = TypeVar("T")
LIMIT_SECONDS = 120.0
linux = pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")


def threads(*, gives_way: bool = True) -> LoaderThreads:
    return LoaderThreads(LoopClock(), lambda: gives_way)


def result_of(started: LoaderThreads, call: Callable[[], T]) -> T:
    """What a call gives in a loader thread."""
    result: Future[T] = Future()
    started.submit(lambda: result.set_result(call()))
    return result.result(LIMIT_SECONDS)


def priority() -> tuple[int, int]:
    return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)


@linux
def test_its_threads_give_way_but_keep_a_share_and_the_others_keep_their_priority() -> None:
    policy, nice = before = priority()
    assert result_of(threads(), priority) == (os.SCHED_BATCH, min(19, nice + 9))
    assert priority() == before
    assert policy != os.SCHED_BATCH


@linux
def test_threads_keep_their_priority_while_there_are_no_requests() -> None:
    assert result_of(threads(gives_way=False), priority) == priority()


@linux
def test_a_thread_that_has_given_way_can_have_a_call_run_at_the_priority_of_the_serving_one() -> None:
    async def serve() -> tuple[int, int]:
        clock = LoopClock()
        clock.bind(asyncio.get_running_loop())
        loaders = LoaderThreads(clock, lambda: True)
        result: Future[tuple[int, int]] = Future()
        loaders.submit(lambda: result.set_result(loaders.at_serving_priority(priority)))
        return await asyncio.wait_for(asyncio.wrap_future(result), LIMIT_SECONDS)

    assert asyncio.run(serve()) == priority()


@linux
def test_a_call_in_parts_gives_way_in_those_parts_only() -> None:
    loaders, result = threads(), Future[list[tuple[int, int]]]()
    loaders.submit_in_parts(lambda: result.set_result([priority(), loaders.share(priority), priority()]))
    before, in_the_part, after = result.result(LIMIT_SECONDS)
    assert before == after == priority()
    assert in_the_part == (os.SCHED_BATCH, min(19, priority()[1] + 9))


def test_a_thread_that_cannot_be_started_is_an_error_where_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where a limit of processes is reached: the same error everywhere, and nobody hangs."""
    start = _thread.start_new_thread

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async def serve() -> object:
        clock = LoopClock()
        clock.bind(asyncio.get_running_loop())
        started = LoaderThreads(clock, lambda: True)
        found: Future[object] = Future()

        def load() -> None:
            try:
                started.at_serving_priority(priority)
            except NO_THREAD as error:
                found.set_result(error)

        start(load, ())
        return await asyncio.wait_for(asyncio.wrap_future(found), LIMIT_SECONDS)

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    for submit in (threads().submit, threads().submit_in_parts):
        with pytest.raises(OSError, match="no thread can be started"):
            submit(priority)
    assert "no thread can be started" in str(asyncio.run(serve()))


def test_a_call_that_hangs_holds_up_no_other() -> None:
    loaders, free = threads(), threading.Event()
    for _ in range(3):
        loaders.submit(free.wait)
    assert result_of(loaders, lambda: 7) == 7
    free.set()


def test_it_works_where_priorities_may_not_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    monkeypatch.setattr(os, "setpriority", refuse)
    assert result_of(threads(), lambda: 7) == 7


# ---- Native calls ----


class Idleness:
    """A stand-in for ``/proc/stat``: how idle the one processor of this process was is the test's choice."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, share: float) -> None:
        self._began = time.monotonic()
        self._share = share
        self._file = folder / "stat"
        self._cpu = min(os.sched_getaffinity(0))
        monkeypatch.setattr(cpus, "_TIMES_FILE", self)

    def read_text(self) -> str:
        ticks = round((time.monotonic() - self._began) * self._share * os.sysconf("SC_CLK_TCK"))
        return f"cpu  1 2 3 4 5\ncpu{self._cpu} 10 20 30 {ticks} 50\n"


def native(loaders: LoaderThreads, call: Callable[[], object]) -> object:
    """A native call from a loader thread, after the directories have been looked at a second ago."""
    result_of(loaders, lambda: None)
    time.sleep(0.6)  # idle time can be told from two moments only
    return result_of(loaders, lambda: loaders.when_idle(call))


@linux
def test_a_native_call_is_left_to_idle_time_where_there_is_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Idleness(monkeypatch, tmp_path, 0.4)
    monkeypatch.setattr(
        "headrace.lifecycle.idle_time.is_too_slow", lambda *_: False
    )  # as it is on a busy machine
    assert native(threads(), lambda: os.sched_getscheduler(0)) == os.SCHED_IDLE


@linux
def test_a_native_call_keeps_the_share_where_there_is_no_idle_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Idleness(monkeypatch, tmp_path, 0.0)
    assert native(threads(), lambda: os.sched_getscheduler(0)) == os.SCHED_BATCH


@linux
def test_a_native_call_fails_with_its_own_error_wherever_it_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail() -> None:
        raise ValueError("its own")

    for share in (0.4, 0.0):
        Idleness(monkeypatch, tmp_path, share)
        loaders = threads()

        def told() -> str:
            with pytest.raises(ValueError, match="its own") as caught:
                loaders.when_idle(fail)  # noqa: B023  # It runs within this turn.
            return str(caught.value)

        assert result_of(loaders, told) == "its own"


@pytest.fixture
def busy_core() -> Iterator[None]:
    """This thread, and those that it starts, on one core where another process computes for ever."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    command = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as loop:
        try:
            assert loop.stdout is not None
            assert loop.stdout.readline() == b"\n", "the loop did not start"
            yield
        finally:
            loop.kill()
            os.sched_setaffinity(0, before)


def compute() -> None:
    """Compute for 0.1 s without the GIL."""
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 100_000)


@pytest.mark.rest
@linux
@pytest.mark.usefixtures("busy_core")
def test_a_native_call_that_starves_is_made_again_with_a_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Idleness(monkeypatch, tmp_path, 0.4)  # so it was before
    policies = []

    def call() -> int:
        policy = os.sched_getscheduler(0)
        policies.append(policy)
        compute()
        while policy == os.SCHED_IDLE and len(policies) < 2:
            compute()
        return policy

    assert native(threads(), call) == os.SCHED_BATCH
    assert policies == [os.SCHED_IDLE, os.SCHED_BATCH]


@pytest.mark.rest
@linux
@pytest.mark.usefixtures("busy_core")
def test_a_call_that_was_made_again_elsewhere_stops_at_its_next_piece(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Idleness(monkeypatch, tmp_path, 0.4)
    pieces: dict[int, int] = {}

    def call() -> None:
        me = threading.get_ident()
        for piece in range(1, 4):
            pieces[me] = piece
            compute()
            while os.sched_getscheduler(0) == os.SCHED_IDLE and len(pieces) < 2:
                compute()
            stop_if_dropped()

    native(threads(), call)
    idle, with_share = pieces.values()
    assert (idle, with_share) == (1, 3)


# Closes that hang, and moments without a thread: what waits for them goes on all the same.

LOAD_LIMIT_SECONDS = 60.0
TOML = f'[versions]\ntransition = "resource"\nload_timeout_seconds = {LOAD_LIMIT_SECONDS:g}'


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.want(m=wanted(1, toml=TOML))
    stage.run()
    return stage


def test_a_close_that_hangs_is_waited_for_no_longer_than_the_limit(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.want(m=wanted(2, toml=TOML))
    come_back = stage.executor.put_aside()
    stage.advance(LOAD_LIMIT_SECONDS - 0.1)
    assert stage.states() == {1: State.DRAINING, 2: State.NEW}
    stage.advance(0.1)
    assert stage.states() == {2: State.READY}
    assert "m version 1: closing took longer than versions.load_timeout_seconds = 60" in caplog.text
    changes = list(stage.changes)
    come_back()
    stage.run()
    assert (stage.loader.open, stage.changes) == ({"m/2"}, changes)


def test_a_close_that_ends_in_time_leaves_no_timer(stage: Stage) -> None:
    stage.want(m=wanted(2, toml=TOML))
    stage.run()
    assert (stage.ready(), stage.clock.timers) == ({2}, 0)


def test_a_close_that_finds_no_thread_is_made_as_soon_as_there_is_one(stage: Stage) -> None:
    stage.executor.no_thread = 2
    stage.want(m=wanted(2, toml=TOML))
    stage.run()
    assert stage.states() == {1: State.DRAINING, 2: State.NEW}
    stage.advance(1.0)
    assert stage.loader.open == {"m/1"}
    stage.advance(1.0)
    assert (stage.states(), stage.loader.open) == ({2: State.READY}, {"m/2"})


def test_a_request_that_lets_go_when_there_is_no_thread_notices_nothing(stage: Stage) -> None:
    held: Loaded = stage.manager.get("m")
    held.acquire()
    stage.want(m=wanted(2, toml=TOML))
    stage.executor.no_thread = 1
    held.release()
    stage.advance(1.0)
    assert held.closed


def test_the_end_comes_when_there_was_no_thread_to_close_in(stage: Stage) -> None:
    closed: list[bool] = []
    stage.executor.no_thread = 1
    stage.manager.close(lambda: closed.append(True))
    stage.run()
    assert closed == []
    stage.advance(1.0)
    assert (closed, stage.loader.open) == ([True], set())
