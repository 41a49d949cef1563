"""A Batcher on a stage: a clock turned by hand, a scripted Servable, and every settlement written down.

Batches run in real threads, but each waits within the Servable until the test lets it pass: what runs when is
the test's to say, and every wait is bounded.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.base.errors import HeadraceError
from headrace.base.tensors import Array, Tensors
from headrace.batching.batch_queue import BatchQueue
from headrace.batching.batcher import Batcher
from headrace.batching.request import NO_DEADLINE, Answer, Origin, Request, Settlement
from headrace.config import BatchingPolicy
from headrace.model.servable import DEFAULT_SIGNATURE, RowLayout, Signature, TensorSpec
from tests.virtual_clock import VirtualClock

PATIENCE_SECONDS = 120.0
FLOAT = np.dtype(np.float32)
SUMS = Signature(
    DEFAULT_SIGNATURE, (TensorSpec("x", FLOAT, (None,)),), (TensorSpec("y", np.dtype(np.float32), ()),)
)
"""Rows of any length, whose sums are wanted."""

_names = itertools.count()


class StageClock(VirtualClock):
    """A VirtualClock that knows what came from other threads, and on which a model can spend time."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = threading.Semaphore(0)
        self.before_arrival: Callable[[], None] = lambda: None

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> None:
        self.before_arrival()
        self.call_soon(callback, *args)
        self.arrived.release()

    def spend(self, seconds: float) -> None:
        """Let time pass without running anything: somebody is busy in this thread."""
        self._now += seconds


class Model:
    """Sums each row, keeps a log of its calls, and does what the test scripts."""

    platform = "test"

    def __init__(
        self, signature: Signature = SUMS, answer: Callable[[Tensors], Tensors] | None = None
    ) -> None:
        self.signatures: Mapping[str, Signature] = {signature.name: signature}
        self.calls: list[Array] = []
        self.answer = answer or (lambda inputs: {"y": inputs["x"].sum(axis=1, dtype=np.float32)})
        self.spend: Callable[[int], None] = lambda rows: None
        self.gated = False
        self.closed = 0
        self._entered = threading.Semaphore(0)
        self._gate = threading.Semaphore(0)
        self._passing: set[int] = set()

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        first = inputs[next(iter(inputs))]
        self.calls.append(first.copy())
        if self.gated and threading.get_ident() not in self._passing:
            self._entered.release()
            assert self._gate.acquire(timeout=PATIENCE_SECONDS), "the test never let this batch pass"
            self._passing.add(threading.get_ident())
        self.spend(len(first))
        return self.answer(inputs)

    def close(self) -> None:
        self.closed += 1

    @property
    def rows(self) -> list[int]:
        """How many rows each call had."""
        return [len(call) for call in self.calls]

    def ran(self, value: float) -> bool:
        """Whether a row that begins with a value was ever computed."""
        return any((call[:, 0] == value).any() for call in self.calls)

    def await_entered(self) -> None:
        assert self._entered.acquire(timeout=PATIENCE_SECONDS), "no batch reached the model"

    def let_pass(self, batches: int = 1) -> None:
        self._gate.release(batches)

    def end_pass(self) -> None:
        self._passing.discard(threading.get_ident())


@dataclass
class Asked:
    """One request, and what became of it; a Waiter that can leave."""

    values: Array
    settlements: list[Settlement] = field(default_factory=list)
    gone: bool = False
    then: Callable[[], object] = lambda: None
    request: Request | None = None

    def done(self) -> bool:
        return self.gone

    def respond(self, settlement: Settlement) -> None:
        self.settlements.append(settlement)
        self.then()

    @property
    def settlement(self) -> Settlement:
        """The one and only settlement."""
        (settlement,) = self.settlements
        return settlement

    @property
    def sums(self) -> list[float]:
        assert isinstance(self.settlement, Answer), self.settlement
        return self.settlement.tensor("y").tolist()

    @property
    def error(self) -> HeadraceError:
        assert isinstance(self.settlement, HeadraceError), self.settlement
        return self.settlement

    @property
    def answered_right(self) -> bool:
        return self.sums == self.values.sum(axis=1, dtype=np.float32).tolist()


class Stage:
    """A Batcher over a scripted Model; a context manager that leaves no thread behind."""

    def __init__(
        self,
        policy: BatchingPolicy | None = None,
        *,
        model: Model | None = None,
        instances: int = 1,
        inline: bool = False,
    ) -> None:
        self.clock = StageClock()
        self.model = model or Model()
        self.model.gated = not inline
        self.clock.before_arrival = self.model.end_pass
        self.name = f"stage-{next(_names)}"
        self.batcher = Batcher(
            self.model,
            policy or BatchingPolicy(),
            self.clock,
            instances=instances,
            inline_seconds=1e9 if inline else 0.0,
            origin=Origin(self.name, 1),
        )
        if inline:
            self.knows_cost(0.0, 0.0)
            self._prove_lanes()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.model.let_pass(1000)
        self.batcher.close()
        for thread in self.threads():
            thread.join(PATIENCE_SECONDS)
        assert not self.threads(), "an instance's thread did not end"

    def threads(self) -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith(f"{self.name}/1")]

    def _prove_lanes(self) -> None:
        """Let rows of any length be known to be quick: their lanes need no first batch in a thread."""
        open_lane = self.batcher._open_lane

        def open_proven(layout: RowLayout) -> BatchQueue:
            lane = open_lane(layout)
            lane.proven_rows = sys.maxsize
            return lane

        self.batcher._open_lane = open_proven

    def knows_cost(self, call_seconds: float, row_seconds: float) -> None:
        """Teach the Batcher what batches cost: two sizes are enough, and the lie is exact."""
        for rows in (1, 256):
            self.batcher.cost.observe(rows, call_seconds + row_seconds * rows)

    def ask(
        self,
        values: Sequence[float] | Array,
        *,
        within: float = NO_DEADLINE,
        then: Callable[[], object] = lambda: None,
    ) -> Asked:
        """Submit rows: each of one value, or a whole array of them."""
        array = np.asarray(values, np.float32)
        array = array.reshape(-1, 1) if array.ndim == 1 else array
        asked = Asked(array, then=then)
        (signature,) = self.model.signatures.values()
        layout, columns, rows = signature.check({"x": array})
        asked.request = Request(
            layout, columns, rows, asked.respond, deadline=self.clock.now() + within, waiter=asked
        )
        self.batcher.submit(asked.request)
        return asked

    def turn(self, *, enter: int = 0) -> None:
        """One turn of the serving thread; ``enter`` batches reach the model in it."""
        self.clock.run_ready()
        for _ in range(enter):
            self.model.await_entered()

    def finish(self, batches: int = 1, *, enter: int = 0) -> None:
        """Let batches that wait in the model pass, and the serving thread take them back."""
        self.model.let_pass(batches)
        for _ in range(batches):
            assert self.clock.arrived.acquire(timeout=PATIENCE_SECONDS), "a batch never came back"
        self.turn(enter=enter)

    def occupy(self, instances: int = 1) -> list[Asked]:
        """Keep instances busy: with one row each, of the value -1."""
        busy = []
        for _ in range(instances):
            busy.append(self.ask([-1.0]))
            self.turn(enter=1)
        return busy

    def idle(self) -> bool:
        """Whether nothing is left of anything."""
        return self.batcher.outstanding == 0 and self.batcher.queued_rows == 0
