"""A Manager on a stage: virtual time, loads run by hand, and a Loader that notes what it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from headrace.base.errors import LoadError
from headrace.config import ModelConfig, parse_model_config
from headrace.lifecycle.desired_state import Wanted
from headrace.lifecycle.manager import Manager
from headrace.lifecycle.version_states import State, VersionStatus
from tests.manual_executor import ManualExecutor
from tests.virtual_clock import VirtualClock


class Loaded:
    """What the stage's Loader makes of a version: counts the requests that a test lets hold it."""

    def __init__(self, model: str, version: int, config: ModelConfig) -> None:
        self.model = model
        self.version = version
        self.config = config
        self.closed = False
        self.outstanding = 0
        self.on_idle: Callable[[], object] | None = None

    def __repr__(self) -> str:
        return f"{self.model}/{self.version}"

    def acquire(self) -> None:
        self.outstanding += 1

    def release(self) -> None:
        self.outstanding -= 1
        if self.outstanding == 0 and self.on_idle is not None:
            on_idle, self.on_idle = self.on_idle, None
            on_idle()


class NotingLoader:
    """Loads anything; fails where it is told to, with an error or as long as a count lasts."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.failures: dict[tuple[str, str, int], list[BaseException]] = {}
        self.open: set[str] = set()

    def fail(
        self, step: str, model: str, version: int, times: int = 1, error: BaseException | None = None
    ) -> None:
        self.failures[step, model, version] = [error or LoadError("it is broken")] * times

    def load(self, model: str, version: int, path: Path, config: ModelConfig) -> Loaded:
        self._note("load", model, version)
        loaded = Loaded(model, version, config)
        self.open.add(repr(loaded))
        return loaded

    def warm_up(self, loaded: Loaded) -> None:
        self._note("warm_up", loaded.model, loaded.version)

    def attach(self, loaded: Loaded) -> None:
        self._note("attach", loaded.model, loaded.version)

    def close(self, loaded: Loaded) -> None:
        loaded.closed = True
        self.open.discard(repr(loaded))
        self._note("close", loaded.model, loaded.version)

    def _note(self, step: str, model: str, version: int) -> None:
        self.notes.append(f"{step} {model}/{version}")
        left = self.failures.get((step, model, version))
        if left:
            raise left.pop()


class Stage:
    """All that a test of the Manager needs."""

    def __init__(self, load_threads: int = 1) -> None:
        self.clock = VirtualClock()
        self.executor = ManualExecutor()
        self.loader = NotingLoader()
        self.changes: list[str] = []
        self.manager: Manager[Loaded] = Manager(
            self.loader, self.clock, self.executor, load_threads=load_threads, on_change=self._on_change
        )

    def _on_change(self, model: str, status: VersionStatus) -> None:
        self.changes.append(f"{model}/{status.version} {status.state.value}")

    def want(self, **models: Wanted) -> None:
        self.manager.want(models)

    def run(self) -> None:
        """Run loads and what they bring about, until nothing is ready; no time passes."""
        self.clock.run_ready()
        while len(self.executor):
            self.step()

    def step(self) -> None:
        """Run one call of the loader threads, and what it brings about."""
        self.executor.run_one()
        self.clock.run_ready()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.run()

    def states(self, model: str = "m") -> dict[int, State]:
        return {status.version: status.state for status in self.manager.status(model)}

    def ready(self, model: str = "m") -> set[int]:
        return {number for number, state in self.states(model).items() if state is State.READY}


def wanted(
    *versions: int,
    toml: str = "",
    labels: Mapping[str, int] | None = None,
    fingerprint: int = 0,
    problem: str = "",
) -> Wanted:
    """What a Source would say of a model with these versions."""
    config = parse_model_config(toml)
    return Wanted(
        versions={version: Path(f"/nowhere/{version}") for version in versions},
        config=config,
        labels=config.versions.labels if labels is None else labels,
        fingerprints=dict.fromkeys(versions, fingerprint),
        problem=problem,
    )
