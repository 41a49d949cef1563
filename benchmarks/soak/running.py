"""A whole soak: servers, clients, faults and watchers, side by side for as long as it lasts."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from benchmarks.soak.abuse import Abuse
from benchmarks.soak.asking import Asking
from benchmarks.soak.faults import Faults
from benchmarks.soak.judging import Episode
from benchmarks.soak.ledger import Ledger, Outcome, disagreements
from benchmarks.soak.memory import Sample, sample
from benchmarks.soak.plan import CHANGING, PLAIN, PROTOCOLS, RUDE, SERVERS, WORKERS, Step, planned
from benchmarks.soak.publishing import Library
from benchmarks.soak.servers import SoakServer
from benchmarks.soak.transports import SILENT_SECONDS, TRANSPORTS, Transport
from tests.faults.jumping_clock import JumpingClock

_OPTIONS = {PLAIN: (), WORKERS: ("--workers", "2")}
_CLIENTS = {"OIP stream": 3}
"""How many clients ask by a protocol; 2 if nothing is said. Those of a stream share it."""
_PROGRESS_SECONDS = 5.0
_BEAT_SECONDS = 0.1
_LAST_STEPS_SECONDS = 600.0
"""Steps wait for one another: the last of several may wait for the recovery of all before it."""


@dataclass
class Course:
    """What happened in a soak.

    Attributes:
        seed: Its seed.
        seconds: How long it was to last.
        clock: Whether a server's clock was made to jump.
        ledger: All requests.
        began: When it began, on the monotonic clock.
        episodes: What was done to the servers.
        done: How many steps of each other kind were done.
        samples: Memory, descriptors and threads.
        defects: What must not be.
        skipped: Steps that could not be done.
        settled_seconds: How long each change of versions took to arrive.
        held_up_seconds: How long the soak itself once stood still, because the machine had no time for it.
        logs: What each server wrote.
    """

    seed: int
    seconds: float
    clock: bool = False
    ledger: Ledger = field(default_factory=Ledger)
    began: float = 0.0
    episodes: list[Episode] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    settled_seconds: list[float] = field(default_factory=list)
    held_up_seconds: float = 0.0
    logs: dict[str, list[str]] = field(default_factory=dict)


Progress = Callable[[float, str], None]
"""Told how many seconds have passed, and how it goes."""


def soak(seed: int, seconds: float, progress: Progress, *, clock: bool = False) -> Course:
    """Run a soak.

    Args:
        seed: What is drawn and planned depends on it.
        seconds: How long it lasts, without starting and stopping the servers.
        progress: Told every few seconds how it goes.
        clock: Whether a server's clock is made to jump, by libfaketime.
    """
    course = Course(seed, seconds, clock)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, ExitStack() as stack:
        library = Library(Path(folder))
        clocks = {PLAIN: JumpingClock(Path(folder), seen_within_seconds=1)} if clock else {}
        servers = {
            name: SoakServer(name, library.models, *_OPTIONS[name], clock=clocks.get(name))
            for name in SERVERS
        }
        for name, server in servers.items():
            progress(0.0, f"{name} starts")
            server.start()
            stack.callback(_stop, course, server)
        library.serve(servers)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_Soak(course, library, servers, progress).run())
    for place, number in Counter(course.ledger.open_now.values()).items():
        course.defects.append(f"{number} requests to {' by '.join(place)} never ended")
    course.defects += [f"the table does not add up: {line}" for line in disagreements(course.ledger)]
    return course


def _stop(course: Course, server: SoakServer) -> None:
    """Ask a server to stop; whatever happens, nothing of it is left."""
    try:
        code = server.end(signal.SIGTERM) if server.running.process.poll() is None else "an end of its own"
        if code:
            course.defects.append(f"{server.name} ended with {code}")
    except (AssertionError, OSError) as error:
        course.defects.append(f"{server.name} did not stop: {error}")
    course.logs[server.name] = server.logs


class _Soak:
    """What goes on at the same time."""

    def __init__(
        self, course: Course, library: Library, servers: dict[str, SoakServer], progress: Progress
    ) -> None:
        self._course, self._library, self._servers, self._progress = course, library, servers, progress
        course.began = time.monotonic()
        self._faults = Faults(servers, library.shelves, course.began)
        self._asking = Asking(course.seed, library, self._faults, course.began)
        course.ledger, course.episodes = self._asking.ledger, self._faults.episodes
        self._abuse = Abuse(servers, self._asking)
        self._ended = asyncio.Event()

    async def run(self) -> None:
        transports, clients = self._clients()
        watchers = [asyncio.create_task(watch()) for watch in (self._watch, self._watch_itself, self._tell)]
        steps = [
            asyncio.create_task(self._step(step))
            for step in planned(self._course.seed, self._course.seconds, clock=self._course.clock)
        ]
        try:
            await asyncio.sleep(max(0.0, self._course.began + self._course.seconds - time.monotonic()))
            _, late = await asyncio.wait(steps, timeout=_LAST_STEPS_SECONDS)
            if late:
                self._course.defects.append(f"{len(late)} steps did not come to an end")
            for task in (*late, *(one for one in steps if one not in late and one.exception())):
                task.cancel()
            await self._recovered()
        finally:
            self._ended.set()
            await asyncio.wait([*clients, *watchers], timeout=SILENT_SECONDS + 10)
        await asyncio.gather(*(transport.close() for transport in transports))
        self._gather_up([*clients, *watchers, *steps])

    def _clients(self) -> tuple[list[Transport], list[asyncio.Task[None]]]:
        transports, clients = [], []
        for name, server in self._servers.items():
            for protocol in PROTOCOLS:
                kind, shared = TRANSPORTS[protocol], None
                port = server.grpc_port if protocol.endswith(("gRPC", "stream")) else server.http_port
                for number in range(_CLIENTS.get(protocol, 2)):
                    if shared is None or protocol != "OIP stream":
                        shared = kind(port, protocol)
                        transports.append(shared)
                    who = f"{name} {protocol} {number}"
                    client = self._asking.client(who, (name, protocol), shared, self._ended)
                    clients.append(asyncio.create_task(client))
        return transports, clients

    async def _step(self, step: Step) -> None:
        await asyncio.sleep(max(0.0, self._course.began + step.at_seconds - time.monotonic()))
        if step.kind not in (*CHANGING, *RUDE):
            await self._faults.do(step)
            return
        await (self._library if step.kind in CHANGING else self._abuse).do(step)
        self._course.done[step.kind] += 1

    async def _recovered(self) -> None:
        for name, server in self._servers.items():
            if not await server.recovered(self._library.shelves):
                self._course.defects.append(f"{name} is not as it was at the end")

    async def _watch(self) -> None:
        every = min(2.0, self._course.seconds / 60)
        while not self._ended.is_set():
            await asyncio.sleep(every)
            self._course.samples += await asyncio.to_thread(self._sampled)

    async def _watch_itself(self) -> None:
        while not self._ended.is_set():
            before = time.monotonic()
            await asyncio.sleep(_BEAT_SECONDS)
            late = time.monotonic() - before - _BEAT_SECONDS
            self._asking.held_up_seconds = max(self._asking.held_up_seconds, late)

    def _sampled(self) -> list[Sample]:
        at = time.monotonic() - self._course.began
        seen = [
            sample(at, name, process, role)
            for name, server in self._servers.items()
            for process, role in server.processes()
        ]
        return [one for one in seen if one is not None]

    async def _tell(self) -> None:
        while not self._ended.is_set():
            await asyncio.sleep(_PROGRESS_SECONDS)
            ledger = self._asking.ledger
            right = sum(one.outcome is Outcome.RIGHT for one in ledger.ended)
            others = len(ledger.ended) - right
            doing = ", ".join(
                f"{one.kind} ({one.server})" for one in self._faults.episodes if one.ended > 1e300
            )
            said = f"{ledger.latest:,} sent, {right:,} right, {others:,} otherwise"
            said += f", {len(self._asking.defects)} defects" + (f"; now: {doing}" if doing else "")
            self._progress(time.monotonic() - self._course.began, said)

    def _gather_up(self, tasks: list[asyncio.Task[None]]) -> None:
        course = self._course
        for task in tasks:
            if not task.done():
                task.cancel()
                course.defects.append(f"{task.get_coro()} did not end")
            elif not task.cancelled() and (error := task.exception()) is not None:
                course.defects.append(f"the soak itself failed: {error!r}")
        course.defects += [*self._asking.defects, *self._faults.problems, *self._library.late]
        course.skipped += self._faults.skipped
        course.held_up_seconds = self._asking.held_up_seconds
        course.settled_seconds += self._library.settled_seconds
