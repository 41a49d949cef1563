"""Changes the models' versions while they are served, and says when the servers have followed."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.soak.plan import MODELS, Step
from benchmarks.soak.servers import RECOVERY_SECONDS, SoakServer, come_true
from benchmarks.soak.subjects import SUBJECTS
from benchmarks.soak.versions import Shelf, Standing, is_at_rest
from headrace.versions.manifest import publish
from headrace.versions.pins_and_holds import pin, unpin

_STORM = 6
_STORM_SECONDS = 0.1
_KEPT = 5


class Library:
    """The models' directory, and what each server is known to serve of it.

    Attributes:
        models: The served directory.
        shelves: What is in it, by model.
        standings: What is known of each server and model.
        late: What did not arrive in time.
        settled_seconds: How long each change took to arrive, the longest of the servers.
    """

    def __init__(self, folder: Path) -> None:
        """Publish the first versions.

        Args:
            folder: Where to; there is room for drafts beside the models.
        """
        self.models, self._drafts = folder / "models", folder / "drafts"
        self.shelves: dict[str, Shelf] = {}
        self.standings: dict[tuple[str, str], Standing] = {}
        self.late: list[str] = []
        self.settled_seconds: list[float] = []
        self._next = dict.fromkeys(MODELS, 1)
        self._turns = {model: asyncio.Lock() for model in MODELS}
        for model in MODELS:
            (self.models / model).mkdir(parents=True)
            (self.models / model / "headrace.toml").write_text(SUBJECTS[model].settings, "utf-8")
            self.shelves[model] = Shelf()
            SUBJECTS[model].expected(np.arange(1), 1)  # the first time takes seconds
            for _ in range(3):
                self._publish(model)

    def serve(self, servers: Mapping[str, SoakServer]) -> None:
        """Take servers that serve what is there now."""
        self._servers = servers
        for name in servers:
            for model in MODELS:
                standing = self.standings[name, model] = Standing()
                standing.change([self.shelves[model].default])
                standing.settle(self.shelves[model], time.monotonic())

    async def do(self, step: Step) -> None:
        """Do one change of versions, when those before it have arrived."""
        act: Callable[[Step], Awaitable[None]] = {
            "publish": self._one,
            "storm": self._several,
            "rollback": self._back_and_forth,
            "retire": self._retire,
            "damage": self._damage,
        }[step.kind]
        async with self._turns[step.target]:
            await act(step)

    # ---- Changes ----

    async def _one(self, step: Step) -> None:
        await self._publish_changing(step.target)
        await self._arrival(step)

    async def _several(self, step: Step) -> None:
        for _ in range(_STORM):
            await self._publish_changing(step.target)
            await asyncio.sleep(_STORM_SECONDS)
        await self._arrival(step)

    async def _back_and_forth(self, step: Step) -> None:
        directory, shelf = self.models / step.target, self.shelves[step.target]
        choices = sorted(shelf.good)[:-1]
        self._changing(step.target, replace(shelf, pin=choices[step.choice % len(choices)]))
        await asyncio.to_thread(pin, directory, choices[step.choice % len(choices)])
        await self._arrival(step)
        await asyncio.sleep(step.seconds)
        self._changing(step.target, replace(shelf, pin=None))
        await asyncio.to_thread(unpin, directory)
        await self._arrival(step)

    async def _retire(self, step: Step) -> None:
        """Remove the newest version, as somebody who goes back without a pin, and all but some old ones."""
        shelf = self.shelves[step.target]
        keep = frozenset(sorted(shelf.good)[-_KEPT:-1])
        self._changing(step.target, replace(shelf, good=keep))
        for version in shelf.good - keep:
            await asyncio.to_thread(self._remove, step.target, version)
        await self._arrival(step)

    async def _damage(self, step: Step) -> None:
        version, shelf = self._number(step.target), self.shelves[step.target]
        draft = await asyncio.to_thread(self._damaged, step.target, version, step.choice)
        self._changing(step.target, replace(shelf, damaged=frozenset([version])))
        draft.rename(self.models / step.target / str(version))
        await self._arrival(step)
        await asyncio.sleep(step.seconds)
        self._changing(step.target, shelf)
        await asyncio.to_thread(self._remove, step.target, version)
        await self._arrival(step)

    # ---- What they are made of ----

    def _changing(self, model: str, shelf: Shelf) -> None:
        """Note what is about to be done, before it is done."""
        self.shelves[model] = shelf
        for server in self._servers:
            self.standings[server, model].change([shelf.default])

    async def _publish_changing(self, model: str) -> None:
        shelf, version = self.shelves[model], self._next[model]
        self._changing(model, replace(shelf, good=shelf.good | {version}))
        await asyncio.to_thread(self._publish, model)

    async def _arrival(self, step: Step) -> None:
        began = time.monotonic()
        arrived = await asyncio.gather(*(self._arrived(name, step.target) for name in self._servers))
        self.settled_seconds.append(time.monotonic() - began)
        for name, has_arrived in zip(self._servers, arrived, strict=True):
            if not has_arrived:
                shelf = self.shelves[step.target]
                self.late.append(f"{step.kind} of {step.target} did not arrive in {name}: {shelf}")

    async def _arrived(self, server: str, model: str) -> bool:
        async def is_there() -> bool:
            return is_at_rest(await self._servers[server].states(model), self.shelves[model])

        if not await come_true(is_there, RECOVERY_SECONDS):
            return False
        self.standings[server, model].settle(self.shelves[model], time.monotonic())
        return True

    def _number(self, model: str) -> int:
        number = self._next[model]
        self._next[model] += 1
        return number

    def _publish(self, model: str) -> None:
        version = self._number(model)
        publish(lambda path: SUBJECTS[model].write(path, version), self.models / model, version)
        shelf = self.shelves[model]
        self.shelves[model] = replace(shelf, good=shelf.good | {version})

    def _remove(self, model: str, version: int) -> None:
        self._drafts.mkdir(exist_ok=True)
        gone = (self.models / model / str(version)).rename(self._drafts / f"{model}-{version}")
        shutil.rmtree(gone)

    def _damaged(self, model: str, version: int, choice: int) -> Path:
        """A version that was published whole, and then damaged: in one of four ways."""
        draft = publish(lambda path: SUBJECTS[model].write(path, version), self._drafts / model, version)
        file = next(path for path in sorted(draft.iterdir()) if path.name.startswith("model."))
        content = file.read_bytes()
        match choice % 4:
            case 0:
                file.write_bytes(content[: len(content) // 2])
            case 1:
                file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
            case 2:
                file.unlink()
            case 3:
                file.write_bytes(b"nonsense")
                (draft / "headrace-manifest.json").unlink()
        return draft
