"""What tests of Predictors are made of: a Predictor that a test answers, and requests to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from headrace.access.caller import ASKING, Caller
from headrace.batching.fair_queue import FairQueue
from headrace.batching.request import Answer, BatchOutputs, Origin, Request, Settlement, Timings
from headrace.frontends.calls import GrpcCall
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec

FLOAT = np.dtype(np.float32)
ONE = Signature(DEFAULT_SIGNATURE, (TensorSpec("x", FLOAT, (2,)),), (TensorSpec("y", FLOAT, ()),))


class Around:
    """A Predictor that keeps what it gets; a test answers it."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.requests: list[Request] = []
        self.refusal = refusal

    def submit(self, request: Request) -> None:
        self.requests.append(request)
        if self.refusal is not None:
            request.settle(self.refusal)  # type: ignore[arg-type]


@dataclass
class Told:
    """A call, which notes who answered."""

    origins: list[Origin] = field(default_factory=list)

    def header(self, name: bytes) -> bytes | None:
        return None

    def answered_by(self, origin: Origin) -> None:
        self.origins.append(origin)


def asked(
    settlements: list[Settlement], rows: int = 3, deadline: float = 1001.0, signature: Signature = ONE
) -> Request:
    inputs = signature.check({"x": np.zeros((rows, 2))})
    request = Request(*inputs, settlements.append, deadline=deadline)
    request.call = Told()
    return request


def answer_of(request: Request, value: float) -> Answer:
    outputs = BatchOutputs({"y": np.full(request.rows, value, FLOAT)}, Origin("m", 3))
    return Answer(outputs, 0, request.rows, Timings(0.0, request.rows, 1))


def of_priority(priority: int) -> GrpcCall:
    """A call that names a priority class."""
    call = GrpcCall()
    call.priority = priority
    return call


@contextmanager
def asked_by(name: str) -> Iterator[None]:
    """The context of a caller's request."""
    token = ASKING.set(Caller(name, 0))
    try:
        yield
    finally:
        ASKING.reset(token)


def turns(requests: Sequence[Request]) -> list[tuple[int, str]]:
    """Priority and caller of requests, in the order of a fair queue."""
    queue = FairQueue()
    for request in requests:
        request.enqueued = 0.0
        queue.append(request)
    return [(request.turn.priority, request.turn.caller) for request in queue]
