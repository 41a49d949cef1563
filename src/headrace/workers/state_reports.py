"""Report changed model states from a worker to its supervisor, at most once per event loop iteration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from headrace.base.errors import NotFound
from headrace.serving.engine import Engine
from headrace.workers.messages import ModelTold, States


class Telling:
    """Reports changed model states. Serving thread only."""

    def __init__(self, engine: Engine, send: Callable[[States], object]) -> None:
        """Report on an engine's models from now on.

        Args:
            engine: The engine.
            send: Sends a message to the supervisor.
        """
        self._engine = engine
        self._send = send
        self._changed: set[str] = set()
        self._told: dict[str, ModelTold] = {}
        self._troubles: dict[tuple[str, int], str] = {}
        self._ready = self._planned = False

    def changed(self, model: str) -> None:
        """Schedule a report on a model, one of whose versions has changed."""
        self._changed.add(model)
        self._plan()

    def wanted(self, models: Iterable[str]) -> None:
        """Schedule a report on these models and all reported before, after a change of the wanted state."""
        self._changed.update(models, self._told)
        self._plan()

    def look(self) -> None:
        """Poll whether isolated versions can answer, since the end of their processes causes no event."""
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
    """Return one process's state of a model; None if it does not know the model.

    Args:
        engine: The process's engine.
        model: The model's name.
    """
    manager = engine.manager
    try:
        statuses = manager.status(model)
        return ModelTold(
            # The number of requests changes all the time and matters only within the process.
            versions=tuple(replace(one, outstanding=0) for one in statuses),
            answers=any(one.answers for one in statuses),
            problems=tuple(manager.warnings(model)),
        )
    except NotFound:
        return None
