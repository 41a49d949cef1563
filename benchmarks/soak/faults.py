"""Does to the servers what the plan says, and keeps when each was harmed, and by what."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from benchmarks.soak.judging import Episode, Harm
from benchmarks.soak.plan import ISOLATED, PLAIN, WORKERS, Step
from benchmarks.soak.servers import (
    CHILD,
    KEEPER,
    RECOVERY_SECONDS,
    WORKER,
    SoakServer,
    come_true,
    is_alive,
)
from benchmarks.soak.versions import Shelf

_ENDED_SECONDS = 30.0
_JUMPS_SECONDS = (86_400, -86_400, 3600, -3600, 60, -1)


class Faults:
    """What is done to the servers.

    Attributes:
        episodes: What was done so far, and what is being done.
        problems: Servers that did not become what they were.
        skipped: Steps for which there was no process to do it to, or no time.
    """

    def __init__(self, servers: Mapping[str, SoakServer], shelves: dict[str, Shelf], began: float) -> None:
        """Keep what it is done to.

        Args:
            servers: By name.
            shelves: What is on disk, by model; read anew each time.
            began: When the soak began, on the monotonic clock.
        """
        self._servers = servers
        self._began = began
        self._shelves = shelves
        self.episodes: list[Episode] = []
        self.problems: list[str] = []
        self.skipped: list[str] = []

    async def do(self, step: Step) -> None:
        """Do one of them, when the server has recovered from those before."""
        act: Callable[[SoakServer, Step], Awaitable[None]] = {
            "stop": self._stop,
            "kill worker": self._kill_worker,
            "kill server": self._kill_server,
            "kill isolated": self._kill_isolated,
            "kill keeper": self._kill_keeper,
            "restart": self._restart,
            "clock jump": self._jump,
        }[step.kind]
        server = self._servers[step.target]
        async with server.turn:
            if time.monotonic() > self._began + step.until_seconds:
                self._skip(step, "recoveries before it took too long")
            else:
                await act(server, step)

    async def _stop(self, server: SoakServer, step: Step) -> None:
        """One of its processes is stopped for a while, mostly one that answers callers; then it goes on."""
        processes = server.processes()
        answering = [one for one in processes if one[1] in (PLAIN, WORKER)]
        among = processes if step.choice % 3 == 0 else answering
        process, role = among[step.choice % len(among)]
        episode = self._begin(f"stop ({role})", server, ())
        os.kill(process, signal.SIGSTOP)
        try:
            await asyncio.sleep(step.seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
        await self._recovery(server, episode)

    async def _jump(self, server: SoakServer, step: Step) -> None:
        """Its clock is set, forward or back, and later set right: that may harm no request."""
        assert server.clock is not None, "it was planned without a clock"
        jump = _JUMPS_SECONDS[step.choice % len(_JUMPS_SECONDS)]
        episode = self._begin(step.kind, server, ())
        try:
            await asyncio.to_thread(server.clock.jump, jump)
            await asyncio.sleep(step.seconds)
        finally:
            await asyncio.to_thread(server.clock.jump, 0)
        await self._recovery(server, episode)

    async def _kill_worker(self, server: SoakServer, step: Step) -> None:
        workers = server.of_role(WORKER)
        await self._kill(server, workers[step.choice % len(workers)], step, ("lost",))

    async def _kill_isolated(self, server: SoakServer, step: Step) -> None:
        children = server.of_role(CHILD)
        if not children:
            self._skip(step, "there is none")
            return
        process = children[step.choice % len(children)]
        await self._kill(server, process, step, ("refused",), ISOLATED)

    async def _kill_keeper(self, server: SoakServer, step: Step) -> None:
        for process in server.of_role(KEEPER):
            await self._kill(server, process, step, ())

    async def _kill(
        self, server: SoakServer, process: int, step: Step, harms: tuple[Harm, ...], model: str = ""
    ) -> None:
        episode = self._begin(step.kind, server, harms, model)
        os.kill(process, signal.SIGKILL)

        async def is_gone() -> bool:
            return not is_alive(process)

        await come_true(is_gone, _ENDED_SECONDS)
        await self._recovery(server, episode)

    async def _kill_server(self, server: SoakServer, step: Step) -> None:
        episode = self._begin(step.kind, server, ("lost", "refused", "unsent"))
        await asyncio.to_thread(server.end, signal.SIGKILL)
        await self._start_again(server, episode)

    async def _restart(self, server: SoakServer, step: Step) -> None:
        """It is asked to stop, which may lose nothing, and started again."""
        episode = self._begin(step.kind, server, ("refused", "unsent"))
        code = await asyncio.to_thread(server.end, signal.SIGTERM)
        if code:
            self.problems.append(f"{server.name} ended with {code} when it was asked to stop")
        await self._start_again(server, episode)

    async def _start_again(self, server: SoakServer, episode: Episode) -> None:
        try:
            failures = await asyncio.to_thread(server.start_again)
        except AssertionError as error:
            self.problems.append(f"{server.name} did not start again after: {episode.kind}: {error!s:.500}")
            return
        if failures:
            self.problems.append(f"{server.name} started again only at attempt {failures + 1}")
        await self._recovery(server, episode)

    def _skip(self, step: Step, why: str) -> None:
        self.skipped.append(f"{step.kind} in {step.target} at {step.at_seconds:.0f} s: {why}")

    def _begin(self, kind: str, server: SoakServer, harms: tuple[Harm, ...], model: str = "") -> Episode:
        episode = Episode(kind, server.name, time.monotonic(), harms, model)
        self.episodes.append(episode)
        return episode

    async def _recovery(self, server: SoakServer, episode: Episode) -> None:
        if not await server.recovered(self._shelves):
            self.problems.append(f"{server.name} did not recover from: {episode.kind}")
        if server.name == WORKERS and not await come_true(partial(_has_both, server), RECOVERY_SECONDS):
            self.problems.append(
                f"{server.name} has {len(server.of_role(WORKER))} workers after: {episode.kind}"
            )
        episode.ended = time.monotonic()


async def _has_both(server: SoakServer) -> bool:
    """Whether it has its two workers: the other one is ready before one that was killed is back."""
    return len(server.of_role(WORKER)) == 2  # as it was started
