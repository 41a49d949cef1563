"""Threads that call an engine in process, and models that hold them up."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest

from headrace.base import cpus
from headrace.base.tensors import Array, Tensors
from headrace.batching import calling_threads
from headrace.config import BatchingPolicy
from headrace.serving.engine import Engine
from headrace.serving.loaded_version import LoadedVersion
from tests.models import Doubling
from tests.waiting import seconds_left

PATIENCE_SECONDS = 120.0
POISON = -1.0


class Gated(Doubling):
    """A Doubling that says when a batch reaches it, and waits to be let pass once it is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.shut = False
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.interrupt = False

    def predict(self, inputs: Tensors, signature: str = "serving_default") -> dict[str, Array]:
        if self.shut:
            self.entered.release()
            assert self.gate.acquire(timeout=PATIENCE_SECONDS), "nobody let this batch pass"
            if self.interrupt:
                self.interrupt = False
                raise KeyboardInterrupt
        return super().predict(inputs, signature)

    def await_entered(self) -> None:
        assert self.entered.acquire(timeout=PATIENCE_SECONDS), "no batch reached the model"

    def open(self) -> None:
        self.shut = False
        self.gate.release(1000)


class AskingItself(Doubling):
    """A Doubling that asks the engine for another prediction of its own, for values above 1.

    Attributes:
        engine: Where it is served as ``m``; set it once there is one.
    """

    engine: Engine

    def predict(self, inputs: Tensors, signature: str = "serving_default") -> dict[str, Array]:
        if inputs["x"][0, 0] > 1:
            self.engine.predict_blocking("m", rows_of(1.0))
        return super().predict(inputs, signature)


class Asking(threading.Thread):
    """A thread that asks once, and keeps what came of it."""

    def __init__(self, engine: Engine, value: float, timeout_seconds: float | None = None) -> None:
        super().__init__(daemon=True)
        self.value = value
        self.given: list[list[float]] = []
        self.error: BaseException | None = None
        self._ask = lambda: engine.predict_blocking("m", rows_of(value), timeout_seconds=timeout_seconds)
        self.start()

    def run(self) -> None:
        try:
            self.given = self._ask()["y"].tolist()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    @property
    def answered_right(self) -> bool:
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive(), "this thread waits for ever"
        return self.given == [[2 * self.value] * 2]


def rows_of(value: float, rows: int = 1) -> dict[str, Array]:
    return {"x": np.full((rows, 2), value, np.float32)}


def of(engine: Engine) -> LoadedVersion:
    loaded = engine.manager.ready_now("m")
    assert loaded is not None
    return loaded


def wait_for(come_true: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds_left()
    while not come_true():
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.001)


def clock_of_callers(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that moves the clock of the callers' deadlines ahead."""
    ahead = 0.0

    def now() -> float:
        return time.monotonic() + ahead

    def pass_by(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds

    monkeypatch.setattr(calling_threads, "time", SimpleNamespace(monotonic=now))
    monkeypatch.setattr(calling_threads.Turns, "now", staticmethod(now))
    return pass_by


@contextlib.contextmanager
def serving(
    model: Doubling | None = None, *, aside: bool = False, **policy: object
) -> Iterator[tuple[Engine, Doubling]]:
    """An engine whose batches are computed with the turn held, or, ``aside``, without it.

    It has its instances because the machine has so many cores: an object with ``instances = 1`` is called by
    one thread at a time, and not by its callers.
    """
    model = model or Doubling()
    cores = policy.pop("instances", cpus.available())
    batching = BatchingPolicy(inline_seconds=0.0 if aside else 1.0, **policy)  # type: ignore[arg-type]
    with (
        patch.object(cpus, "available", lambda: cores),
        Engine.in_thread(objects={"m": model}, batching=batching) as engine,
    ):
        model.batches.clear()
        yield engine, model
        wait_for(lambda: of(engine).outstanding == 0)


def occupied(engine: Engine, model: Gated) -> Asking:
    """A thread that computes, and is held in the model."""
    model.shut = True
    busy = Asking(engine, 100.0)
    model.await_entered()
    return busy


def asleep(engine: Engine, threads: int) -> None:
    inside = of(engine).callers
    assert inside is not None
    wait_for(lambda: len(inside._sleeping) == threads)
