"""A Pool on a stage: virtual time, and workers that are no processes but speak the real channel."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, cast

from headrace.config import ServerConfig
from headrace.workers import restart_rules
from headrace.workers.messages import (
    Beat,
    Begin,
    Channel,
    Finish,
    Message,
    Scrape,
    Scraped,
    Serving,
    States,
    View,
)
from headrace.workers.supervisor import Start, Supervisor
from headrace.workers.worker_processes import Processes
from tests.virtual_loop import VirtualLoop

START_SECONDS = 300.0
"""How long a worker that does not serve yet may be silent."""
_ROUNDING = 1e-6


class FakeWorker:
    """A worker's end of the channel, and what the supervisor sees of its process.

    Attributes:
        place: The number of its place.
        heard: What the supervisor has told it.
        signals: The signals that it got, and outlived.
        returncode: As of a process.
        pid: As of a process; 0, of which the system tells nothing.
        serves: Whether it has said that it takes connections.
        ready: Whether it has said that its models are ready.
        waits: Whether it is to take connections only then.
        stuck_since: Since when it answers nothing; None while it does.
        unstuck_at: When it last went on.
        awake: Set unless it is stuck.
        finish_seconds: How long it works after ``Finish``; None for ever.
    """

    def __init__(self, place: int, script: Script, stage: Stage) -> None:
        self.place = place
        self.heard: list[Message] = []
        self.signals: list[int] = []
        self.returncode: int | None = None
        self.pid = 0
        self.serves = self.ready = self.waits = False
        self.stuck_since: float | None = None
        self.unstuck_at = -math.inf
        self.awake = asyncio.Event()
        self.awake.set()
        self.finish_seconds: float | None = 0.0
        self._stage = stage
        self._script = script
        self._playing: asyncio.Future[None] | None = None
        self._unread: list[Message] = []
        self._channel = Channel()
        self._ended = asyncio.Event()

    async def connect(self, descriptor: int) -> None:
        await self._channel.open(socket.socket(fileno=os.dup(descriptor)), self._told)

    def _told(self, message: Message) -> None:
        if self.stuck_since is not None:
            self._unread.append(message)
            return
        self.heard.append(message)
        if isinstance(message, Beat):
            self._channel.send(message)
        elif isinstance(message, Scrape):
            self._channel.send(Scraped(message.number, b""))
        elif isinstance(message, Begin):
            self.waits = message.waits
            self._playing = asyncio.ensure_future(self._script(self))
        elif isinstance(message, Finish) and self.finish_seconds is not None:
            asyncio.get_running_loop().call_later(self.finish_seconds, self.exit, 0)

    # --- what it does ---

    def send(self, message: Message) -> None:
        self._channel.send(message)

    def say_serving(self) -> None:
        self.serves = True
        if self.stuck_since is not None:
            self.stuck_since = self._stage.now
        self.send(Serving())

    def say_ready(self) -> None:
        self.ready = True
        self.send(States({}, ready=True))

    def hang(self) -> None:
        self.stuck_since = self._stage.now
        self.awake.clear()

    def go_on(self) -> None:
        self.stuck_since, self.unstuck_at = None, self._stage.now
        self.awake.set()
        unread, self._unread = self._unread, []
        for message in unread:
            self._told(message)

    def exit(self, code: int) -> None:
        if self.returncode is None:
            self.returncode = code
            self._stage.has_ended(self.place, was_ready=self.ready)
            self._channel.close()
            self._ended.set()
            if self._playing is not None:
                self._playing.cancel()

    # --- as the supervisor sees it ---

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        if number != signal.SIGKILL:
            self.signals.append(number)
            return
        self._stage.is_killed(self)
        self.exit(-number)

    async def wait(self) -> int:
        await self._ended.wait()
        for _ in range(2):  # as asyncio takes: what a process has said before its end is read first
            await asyncio.sleep(0)
        assert self.returncode is not None
        return self.returncode


Script = Callable[[FakeWorker], Awaitable[None]]
"""What a worker does once it has begun."""


async def serves(worker: FakeWorker) -> None:
    """Takes connections, and has its models ready 0.1 s later; the other way round if it waits for them."""
    says = [worker.say_serving, worker.say_ready]
    for say in reversed(says) if worker.waits else says:
        await asyncio.sleep(0.1)
        say()


async def crashes(worker: FakeWorker) -> None:
    """Ends at once."""
    worker.exit(3)


async def loads(worker: FakeWorker) -> None:
    """Never comes to serve."""


class End(NamedTuple):
    """How a worker ended, or could not be started."""

    place: int
    at: float
    was_ready: bool


class FakeProcesses(Processes):
    """Starts workers on a stage."""

    def __init__(self, stage: Stage) -> None:
        super().__init__((), 1)
        self._stage = stage
        self.error: Exception | None = None

    async def worker(self, end: int, descriptors: Sequence[int]) -> FakeWorker:
        stage = self._stage
        place = stage.place_of(descriptors[0])
        stage.begins(place)
        if self.error is not None:
            raise self.error
        if stage.refusing:
            stage.has_ended(place, was_ready=False)
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        await asyncio.sleep(stage.spawn_seconds)
        worker = FakeWorker(place, stage.scripts.get(place, stage.script), stage)
        await worker.connect(end)
        stage.workers[place].append(worker)
        return worker

    def keeper(self, config: ServerConfig) -> None:
        """Each makes its own copies."""


class Stage:
    """A Pool whose promises are checked whenever time passes.

    Attributes:
        pool: The pool.
        workers: By place: those that were started there, the oldest first.
        starts: By place: when it was tried to start one.
        ends: How they ended.
        script: What those do that are started from now on.
        scripts: The same, for some places.
        refusing: Whether the system starts no process.
        spawn_seconds: How long it takes to start one.
        gives_up: Whether so many starts have failed that the server must give up.
    """

    def __init__(self, workers: int = 2, script: Script = serves, **settings: Any) -> None:
        self.loop = cast(VirtualLoop, asyncio.get_running_loop())
        self.script, self.scripts = script, dict[int, Script]()
        self.refusing, self.spawn_seconds = False, 0.0
        self.workers: list[list[FakeWorker]] = [[] for _ in range(workers)]
        self.starts: list[list[float]] = [[] for _ in range(workers)]
        self.ends: list[End] = []
        self._broken: list[str] = []
        self._stopping = self.gives_up = False
        self.config = ServerConfig(http_port=0, grpc_port=0, **settings)
        start = Start(None, self.config, json=False, begun=self.now, command=())
        self.processes = FakeProcesses(self)
        self.pool = Supervisor(start, workers, None, self.processes)

    async def __aenter__(self) -> Stage:
        self.loop.before_time_passes = self._check
        self.pool.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all of it; whatever has been stopped before has ended by itself."""
        self._stopping = True
        self.pool.end()
        await asyncio.sleep(0)
        assert not self.running

    @property
    def now(self) -> float:
        return self.loop.time()

    @property
    def running(self) -> list[FakeWorker]:
        return [one for several in self.workers for one in several if one.returncode is None]

    @property
    def leading(self) -> list[int]:
        """The places to which new connections are led."""
        return self.pool.listeners.leading

    def last(self, place: int) -> FakeWorker:
        return self.workers[place][-1]

    def pauses(self, place: int) -> list[float]:
        """How long after each end of a worker the next was started."""
        ends = [one.at for one in self.ends if one.place == place]
        return [after - before for before, after in zip(ends, self.starts[place][1:], strict=False)]

    def views(self, place: int) -> list[bool]:
        """Whether the server was ready, as its last worker at a place was told time after time."""
        return [one.ready for one in self.last(place).heard if isinstance(one, View)]

    async def stop(self, *, lead: bool = True) -> float:
        """Stop the pool, and say how long that took."""
        before = self.now
        self.is_stopping()
        await self.pool.stop(lead=lead)
        assert not self.running
        return self.now - before

    def is_stopping(self) -> None:
        """From now on no worker may be started."""
        self._stopping = True

    # --- what processes tell ---

    def place_of(self, descriptor: int) -> int:
        return next(one.number for one in self.pool.places if one.sockets[0].fileno() == descriptor)

    def begins(self, place: int) -> None:
        """A worker is started: not beside another, and not sooner than it has ended of late allows."""
        now = self.now
        ended = [one.at for one in self.ends if one.place == place]
        if self._stopping or any(one.returncode is None for one in self.workers[place]):
            self._broken.append(f"a worker is started at place {place} where none is wanted")
        if ended:
            often = sum(ended[-1] - one < restart_rules.COUNTED_SECONDS for one in ended)
            pause = min(
                restart_rules.LONGEST_PAUSE_SECONDS, restart_rules.FIRST_PAUSE_SECONDS * 2 ** (often - 1)
            )
            if now - ended[-1] < pause - _ROUNDING:
                self._broken.append(f"a worker is started {now - ended[-1]} s after its end, not {pause}")
        self.starts[place].append(now)

    def has_ended(self, place: int, *, was_ready: bool) -> None:
        self.ends.append(End(place, self.now, was_ready))
        failed = sum(
            not one.was_ready and self.now - one.at < restart_rules.COUNTED_SECONDS for one in self.ends
        )
        alive = any(one.ready for one in self.running)
        self.gives_up |= failed >= restart_rules.MOST_FAILED_STARTS and not alive and not self._stopping

    def is_killed(self, worker: FakeWorker) -> None:
        """Only for long silence, as long as the server is to go on."""
        if self._stopping or worker.unstuck_at == self.now:  # what it says now comes too late
            return
        silent = self._silent_seconds(worker)
        if silent < self._limit(worker) - _ROUNDING:
            self._broken.append(f"a worker is killed after {silent} s")

    def _limit(self, worker: FakeWorker) -> float:
        timeout = self.config.worker_timeout_seconds
        return timeout if worker.serves else max(timeout, START_SECONDS)

    # --- what holds whenever time passes ---

    def _check(self) -> None:
        assert not self._broken, self._broken
        running = self.running
        assert len({one.place for one in running}) == len(running) <= len(self.pool.places)
        if self._stopping:
            return
        assert self.pool.failed.done() or not self.gives_up
        beat = min(1.0, self.config.worker_timeout_seconds / 6)
        silent = {one.place: self._silent_seconds(one) for one in running}
        for one in running:
            assert silent[one.place] <= self._limit(one) + 2 * beat
        self._check_leading([one for one in running if one.serves], silent, beat)

    def _silent_seconds(self, worker: FakeWorker) -> float:
        return 0.0 if worker.stuck_since is None else self.now - worker.stuck_since

    def _check_leading(self, serving: list[FakeWorker], silent: dict[int, float], beat: float) -> None:
        """Connections are led to processes that serve and answer, and to all of them that are ready."""
        if not serving:
            assert self.leading == [one.number for one in self.pool.places], "connections wait"
            return
        assert set(self.leading) <= {one.place for one in serving}
        suspect = self.config.worker_timeout_seconds / 3
        well = [one for one in serving if not silent[one.place] and self.now - one.unstuck_at > 2 * beat]
        if well:
            assert all(silent[place] <= suspect + 2 * beat for place in self.leading)
        assert {one.place for one in well if one.ready} <= set(self.leading)
