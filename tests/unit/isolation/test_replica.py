"""When a replica replaces its process; no process is started, and each does what the test tells it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.config import IsolationPolicy
from headrace.isolation import replica as replicas
from headrace.isolation.call_slot import Limit
from headrace.isolation.model_description import ModelDescription
from headrace.isolation.model_process import ModelProcess
from headrace.isolation.replica import Recipe, Replica, Which
from headrace.isolation.replica_restarts import MOST_AT_ONCE, STEADY_SECONDS, Ending, Restarts
from tests.virtual_clock import VirtualClock
from tests.waiting import until

LIMIT_BYTES = 300_000_000
SECONDS = 120.0


class ProcessDouble(ModelProcess):
    """One that takes as much memory as it is told, and ends when it is told."""

    memory_bytes = 0

    def start(self) -> None:
        self.retires = threading.Event()
        self.may_retire = threading.Event()
        self.may_retire.set()

    def call(self, *_: Any) -> Any:
        return ModelDescription("python", False, True, {}, ()), {}

    def grow(self) -> None:
        """Exceed the limit, and have the watcher thread check once."""
        self.memory_bytes = LIMIT_BYTES + 1
        self.look()

    def look(self) -> None:
        self._look(time.monotonic())

    def crash(self) -> None:
        self.ending = Ending("crash", "was ended by SIGSEGV")
        self._on_end(self)

    def retire(self, most_seconds: float) -> None:
        self.retires.set()
        assert self.may_retire.wait(SECONDS)

    def close(self) -> None:
        pass


class Bench:
    """A replica on a virtual clock, and all processes that it has made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[ProcessDouble] = []
        self.clock = VirtualClock()
        self.restarts = Restarts(60.0, self.clock.now)
        self.when_warm: Callable[[ProcessDouble], object] = lambda _: None

        def make(*parameters: Any) -> ProcessDouble:
            self.made.append(ProcessDouble(*parameters))
            return self.made[-1]

        monkeypatch.setattr(replicas, "ModelProcess", make)
        limit, policy = Limit(SECONDS, ""), IsolationPolicy(memory_bytes=LIMIT_BYTES)
        which = Which("m", 1, Path("1"))
        recipe = Recipe(which, b"", policy, None, limit, limit, lambda _: self.when_warm(self.made[-1]), 1)
        self.replica = Replica(recipe, self.restarts, lambda: None)
        self.replica.start()

    def awaits(self, number: int) -> ProcessDouble:
        """Wait until a process serves, and the time since then is counted; return it."""

        def serves() -> bool:
            with self.replica._lock:
                return len(self.made) > number and self.replica.process is self.made[number]

        until(serves)
        return self.made[number]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    before = set(threading.enumerate())
    made = Bench(monkeypatch)
    yield made
    made.replica.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(SECONDS)


def test_a_process_that_grows_while_it_is_warmed_up_is_replaced_once_it_serves(bench: Bench) -> None:
    bench.made[0].grow()
    assert len(bench.made) == 1
    bench.replica.serve()
    bench.made[0].look()
    bench.awaits(1)
    bench.made[0].look()  # it has been replaced
    assert bench.restarts.counts == {"memory": 1}


def test_a_new_process_that_grows_while_it_is_warmed_up_is_replaced_later(bench: Bench) -> None:
    bench.when_warm = ProcessDouble.grow
    bench.replica.serve()
    bench.made[0].grow()
    second = bench.awaits(1)
    bench.when_warm = lambda _: None
    bench.clock.advance(STEADY_SECONDS)
    second.look()
    bench.awaits(2)
    assert bench.restarts.counts == {"memory": 2}


def test_a_leak_is_replaced_each_time_without_a_pause(bench: Bench) -> None:
    """The pauses of crashes would add up to more than the test waits."""
    bench.replica.serve()
    for number in range(6):
        process = bench.awaits(number)
        bench.clock.advance(STEADY_SECONDS)
        process.grow()
    bench.awaits(6)
    assert bench.restarts.counts == {"memory": 6}
    assert bench.restarts.lately == 0


def test_a_version_that_is_too_large_from_the_start_is_not_replaced_again_and_again(bench: Bench) -> None:
    bench.when_warm = ProcessDouble.grow
    for _ in range(MOST_AT_ONCE - 1):
        bench.restarts.count("crash")
    bench.replica.serve()
    bench.clock.advance(STEADY_SECONDS)
    bench.made[0].grow()
    bench.awaits(1).look()  # counts as the fifth end within five minutes: the next start waits for a minute
    until(lambda: bench.replica.back_at > time.monotonic())
    assert bench.replica.process is bench.made[1]
    assert bench.replica.is_ready, "it serves meanwhile"
    assert bench.restarts.counts == {"crash": MOST_AT_ONCE - 1, "memory": 2}


def test_a_crash_is_repaired_while_the_process_before_is_still_retired(bench: Bench) -> None:
    bench.replica.serve()
    first = bench.made[0]
    first.may_retire.clear()
    bench.clock.advance(STEADY_SECONDS)
    first.grow()
    second = bench.awaits(1)
    assert first.retires.wait(SECONDS)
    second.crash()
    bench.awaits(2)
    assert bench.restarts.counts == {"memory": 1, "crash": 1}
    first.may_retire.set()


def test_a_process_that_ended_while_it_was_warmed_up_never_serves(bench: Bench) -> None:
    def ends(process: ProcessDouble) -> None:
        process.crash()
        bench.when_warm = lambda _: None

    bench.when_warm = ends
    bench.replica.serve()
    bench.clock.advance(STEADY_SECONDS)
    bench.made[0].grow()
    bench.awaits(2)
    assert bench.restarts.counts == {"memory": 1, "crash": 1}
