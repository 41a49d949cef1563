"""Small Servables of real arithmetic for tests of what stands above them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator

import numpy as np

from headrace.base.tensors import Array, Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec


class Doubling:
    """``y = 2 x`` on rows of two numbers; raises on negative ones, and keeps the sizes of its batches."""

    platform = "test"

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        """Make one.

        Args:
            before: Called in the model's thread before each batch.
        """
        float32 = np.dtype(np.float32)
        self.signatures = {
            DEFAULT_SIGNATURE: Signature(
                DEFAULT_SIGNATURE, (TensorSpec("x", float32, (2,)),), (TensorSpec("y", float32, (2,)),)
            )
        }
        self.batches: list[int] = []
        self.closed = threading.Event()
        self._before = before

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> dict[str, Array]:
        """Answer a batch."""
        self._before()
        x = inputs["x"]
        self.batches.append(len(x))
        if (x < 0).any():
            raise ValueError("negative")
        return {"y": x * np.float32(2)}

    def close(self) -> None:
        """Note that it was closed."""
        self.closed.set()


class DoublingInParts:
    """Streams: the rows, doubled, one by one."""

    platform = "test"
    streams = True
    loop = None

    def __init__(self) -> None:
        self.signatures = Doubling().signatures

    def parts(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Generator[Tensors, None, None]:
        for row in inputs["x"]:
            yield {"y": 2 * row[None]}

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        raise AssertionError("it is never asked for a whole answer")

    def close(self) -> None:
        pass
