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
from headrace.isolation.description import Description
from headrace.isolation.process import ModelProcess
from headrace.isolation.replica import Recipe, Replica, Which
from headrace.isolation.restarts import Ending, Restarts
from headrace.isolation.slot import Limit
from tests.virtual_clock import VirtualClock
from tests.waiting import until

LIMIT_BYTES = 300_000_000
SECONDS = 20.0


class Told(ModelProcess):
    """One that takes as much memory as it is told, and ends when it is told."""

    memory_bytes = 0

    def start(self) -> None:
        self.retires = threading.Event()
        self.may_retire = threading.Event()
        self.may_retire.set()

    def call(self, *_: Any) -> Any:
        return Description("python", False, False, {}, ()), {}

    def grow(self) -> None:
        """Exceed the limit, and have the keeper look once."""
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
        self.made: list[Told] = []
        self.clock = VirtualClock()
        self.restarts = Restarts(60.0, self.clock.now)
        self.when_warm: Callable[[Told], object] = lambda _: None

        def make(*parameters: Any) -> Told:
            self.made.append(Told(*parameters))
            return self.made[-1]

        monkeypatch.setattr(replicas, "ModelProcess", make)
        limit, policy = Limit(SECONDS, ""), IsolationPolicy(memory_bytes=LIMIT_BYTES)
        which = Which("m", 1, Path("1"))
        recipe = Recipe(which, b"", policy, None, limit, limit, lambda _: self.when_warm(self.made[-1]))
        self.replica = Replica(recipe, self.restarts, lambda: None)
        self.replica.start()

    def awaits(self, number: int) -> Told:
        """Wait until a process serves, and return it."""
        until(lambda: len(self.made) > number and self.replica.process is self.made[number], SECONDS)
        return self.made[number]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    before = set(threading.enumerate())
    made = Bench(monkeypatch)
    yield made
    made.replica.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(SECONDS)


def test_a_crash_is_repaired_while_the_process_before_is_still_retired(bench: Bench) -> None:
    bench.replica.serve()
    first = bench.made[0]
    first.may_retire.clear()
    first.grow()
    second = bench.awaits(1)
    assert first.retires.wait(SECONDS)
    second.crash()
    bench.awaits(2)
    assert bench.restarts.counts == {"memory": 1, "crash": 1}
    first.may_retire.set()


def test_a_process_that_ended_while_it_was_warmed_up_never_serves(bench: Bench) -> None:
    def ends(process: Told) -> None:
        process.crash()
        bench.when_warm = lambda _: None

    bench.when_warm = ends
    bench.replica.serve()
    bench.made[0].grow()
    bench.awaits(2)
    assert bench.restarts.counts == {"memory": 1, "crash": 1}
