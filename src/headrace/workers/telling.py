"""What a worker tells its supervisor of its models: what has changed, once a turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from headrace.engine import Engine
from headrace.errors import NotFound
from headrace.workers.messages import ModelTold, States


class Telling:
    """Tells. Serving thread only."""

    def __init__(self, engine: Engine, send: Callable[[States], object]) -> None:
        """Tell what becomes of an engine's models from now on.

        Args:
            engine: The engine.
            send: Sends it.
        """
        self._engine = engine
        self._send = send
        self._changed: set[str] = set()
        self._told: dict[str, ModelTold] = {}
        self._troubles: dict[tuple[str, int], str] = {}
        self._ready = self._planned = False

    def changed(self, model: str) -> None:
        """A version of a model has changed; what follows from that is about to be done."""
        self._changed.add(model)
        self._plan()

    def wanted(self, models: Iterable[str]) -> None:
        """What is wanted has changed: of these models, and of those that were told of."""
        self._changed.update(models, self._told)
        self._plan()

    def look(self) -> None:
        """Look whether a process of an isolated version has ended, or is back: nobody calls when it does."""
        troubles = {
            (loaded.name, loaded.version): loaded.trouble
            for loaded in self._engine.manager.all_loaded()
            if loaded.trouble
        }
        if troubles != self._troubles:
            for (name, _), _ in troubles.items() ^ self._troubles.items():
                self.changed(name)
            self._troubles = troubles

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._planned = False
        news: dict[str, ModelTold | None] = {}
        for name in self._changed:
            told = model_told(self._engine, name)
            if told == self._told.get(name):
                continue
            news[name] = told
            if told is None:
                del self._told[name]
            else:
                self._told[name] = told
        self._changed.clear()
        ready = self._engine.manager.ready()
        if news or ready != self._ready:
            self._ready = ready
            self._send(States(news, ready))


def model_told(engine: Engine, model: str) -> ModelTold | None:
    """What one process says of a model; None if it does not know it.

    Args:
        engine: Its engine.
        model: The model's name.
    """
    manager = engine.manager
    try:
        statuses = manager.status(model)
        return ModelTold(
            # How many requests hold a version changes all the time, and concerns its process only.
            versions=tuple(replace(one, outstanding=0) for one in statuses),
            answers=any(one.answers for one in statuses),
            problems=tuple(manager.warnings(model)),
        )
    except NotFound:
        return None
