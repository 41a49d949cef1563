"""The merged model states of all workers, updated incrementally by the supervisor."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.workers import state_merge
from headrace.workers.messages import ModelTold, States, View
from headrace.workers.state_merge import Standing


class Together:
    """States of all models in all workers.

    Attributes:
        view: Merged state of each model.
        ready: Whether the server is ready.
    """

    def __init__(self) -> None:
        """Begin without states."""
        self.view: dict[str, ModelTold] = {}
        self.ready = False
        self._told: dict[int, dict[str, ModelTold]] = {}
        self._ready: dict[int, bool] = {}
        self._counted: list[int] = []
        self._changed: set[str] = set()

    def begin(self, worker: int) -> None:
        """Reset a worker's states when a new process begins at its place."""
        self._changed |= self._told.get(worker, {}).keys()
        self._told[worker], self._ready[worker] = {}, False

    def end(self, worker: int) -> None:
        """Drop a worker's states when its process has ended."""
        self._told.pop(worker, None)
        self._ready.pop(worker, None)

    def take(self, worker: int, states: States) -> None:
        """Apply a worker's changes."""
        told = self._told.setdefault(worker, {})
        for name, model in states.models.items():
            if model is None:
                told.pop(name, None)
            else:
                told[name] = model
        self._changed |= states.models.keys()
        self._ready[worker] = states.ready

    def is_ready(self, worker: int) -> bool:
        """Return whether a worker has reported that its models have been tried and one is ready."""
        return self._ready.get(worker, False)

    def changes(self, standings: Mapping[int, Standing]) -> View | None:
        """Merge the changed states and return the changes of the view; None if there are none.

        Args:
            standings: States of the running workers.
        """
        counted = [number for number, one in standings.items() if state_merge.is_counted(one)]
        if counted != self._counted:
            self._changed |= self.view.keys() | {name for told in self._told.values() for name in told}
        self._counted = counted
        changed: dict[str, ModelTold | None] = {}
        for name in self._changed:
            model = state_merge.model([self._told.get(number, {}).get(name) for number in counted])
            if model == self.view.get(name):
                continue
            changed[name] = model
            if model is None:
                del self.view[name]
            else:
                self.view[name] = model
        self._changed.clear()
        ready = state_merge.ready(standings.values())
        if not changed and ready == self.ready:
            return None
        self.ready = ready
        return View(changed, ready)

    def whole(self) -> View:
        """Return the whole view, for a new worker."""
        return View(dict(self.view), self.ready)
