"""What tests of Predictors are made of: a Predictor that a test answers, and requests to it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from headrace.batching.request import Answer, BatchOutputs, Origin, Request, Settlement, Timings
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
