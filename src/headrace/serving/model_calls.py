"""Calls that models' own code makes to other models, within the caller's deadline and without cycles."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from headrace.base.errors import NotLoadable
from headrace.base.tensors import Tensors
from headrace.model.servable import DEADLINE


class ModelCalls:
    """Makes the calls, and refuses cycles of declared calls, in which each model would wait for itself."""

    def __init__(
        self,
        predict: Callable[..., Coroutine[Any, Any, Tensors]],
        predict_blocking: Callable[..., Tensors],
        loop: Callable[[], asyncio.AbstractEventLoop],
    ) -> None:
        """Call the models of an engine.

        Args:
            predict: The engine's ``predict``.
            predict_blocking: The engine's ``predict_blocking``.
            loop: Returns the engine's event loop.
        """
        self._predict = predict
        self._predict_blocking = predict_blocking
        self._loop = loop
        self._calls: dict[tuple[str, int], frozenset[str]] = {}
        self._lock = threading.Lock()

    def call(self, model: str, inputs: Tensors) -> Tensors:
        """Call a model from a thread that may block.

        Raises:
            HeadraceError: There is no answer, for example because the deadline of the running batch passed.
        """
        return self._predict_blocking(model, inputs, timeout_seconds=_seconds_left())

    async def call_async(self, model: str, inputs: Tensors) -> Tensors:
        """Call a model from any event loop; otherwise as ``call``."""
        predicting = self._predict(model, inputs, timeout_seconds=_seconds_left())
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(predicting, self._loop()))

    def add(self, model: str, version: int, calls: Collection[str]) -> None:
        """Record the calls that a version declares. Any thread may call this.

        Args:
            model: The model's name.
            version: The version's number.
            calls: Names of the models that it calls.

        Raises:
            NotLoadable: The model would call itself, directly or through others.
        """
        if not calls:
            return
        with self._lock:
            path = self._path(calls, model)
            if path:
                said = " -> ".join([model, *path])
                raise NotLoadable(f"Model.calls: expected no cycle, got {said}")
            self._calls[model, version] = frozenset(calls)

    def remove(self, model: str, version: int) -> None:
        """Remove a version, if it is there."""
        with self._lock:
            self._calls.pop((model, version), None)

    def _path(self, calls: Collection[str], target: str) -> list[str]:
        """Return a path of calls that ends with ``target``; empty if there is none."""
        came_from = dict.fromkeys(calls, "")
        following = list(calls)
        while following:
            name = following.pop()
            if name == target:
                path = [name]
                while name := came_from[name]:
                    path.insert(0, name)
                return path
            for (caller, _), called in self._calls.items():
                if caller == name:
                    new = called - came_from.keys()
                    came_from |= dict.fromkeys(new, name)
                    following += new
        return []


def _seconds_left() -> float | None:
    deadline = DEADLINE.get()
    return None if deadline == math.inf else deadline - time.monotonic()
