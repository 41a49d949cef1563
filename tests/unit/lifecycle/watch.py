"""A Source over a directory, for tests: virtual time, looks run by hand, and what it has said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.config import ServerConfig
from headrace.lifecycle.desired_state import Wanted
from headrace.lifecycle.source import DirectorySource
from tests.manual_executor import ManualExecutor
from tests.virtual_clock import VirtualClock

POLL_SECONDS = 1.0


class Watch:
    """A Source over a directory, and what it has said."""

    def __init__(self, root: Path | None, config: ServerConfig | None = None) -> None:
        self.root = root
        self.clock = VirtualClock()
        self.executor = ManualExecutor()
        self.said: list[Mapping[str, Wanted]] = []
        self.unusable: Mapping[str, str] = {}
        self.source = DirectorySource(
            root,
            self._want,
            self.clock,
            self.executor,
            config or ServerConfig(poll_seconds=POLL_SECONDS),
        )

    def _want(self, wanted: Mapping[str, Wanted], unusable: Mapping[str, str]) -> None:
        self.said.append(wanted)
        self.unusable = unusable

    def start(self) -> None:
        self.source.start()
        self._run()

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(POLL_SECONDS)
            self._run()

    def _run(self) -> None:
        self.executor.run_all()
        self.clock.run_ready()

    @property
    def now(self) -> dict[str, list[int]]:
        return {name: sorted(model.versions) for name, model in self.said[-1].items()}

    def problem(self, model: str) -> str:
        return self.said[-1][model].problem


def put(directory: Path, content: str = "weights") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.onnx").write_text(content)
    return directory
