"""The supervisor process, which opens the ports and manages the workers but serves no requests itself."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.base.errors import ConfigError, HeadraceError
from headrace.batching.capacity import report_of_workers
from headrace.config import ServerConfig
from headrace.frontends.transport.listening_sockets import Listeners, Ports, until_none_waits
from headrace.lifecycle.version_states import VersionStatus
from headrace.server.lifetime_audit import ServerLife
from headrace.server.process import end_of, expect_signals, follower_of, service_manager, tells
from headrace.workers import restart_rules, worker_shares
from headrace.workers.messages import Alone, Beat, Begin, Channel, Drain, Failed, Finish, Message, Serving
from headrace.workers.shared_state import SharedState
from headrace.workers.worker_processes import Place, Process, Processes, how_ended, open_places, places_at
from headrace.workers.worker_shares import taking, weighted

if TYPE_CHECKING:
    from headrace.server.handover.startup import Handover
    from headrace.server.service_manager import ServiceManager

_log = logging.getLogger(__name__)

_LONGEST_BEAT_SECONDS = 1.0
_BEATS_OF_TIMEOUT = 6
_START_SECONDS = 300.0
_GRACE_SECONDS = 5.0


class Start(NamedTuple):
    """Parameters of the command.

    Attributes:
        models: The directory of models.
        config: The settings.
        json: Whether the served models are printed as JSON.
        begun: Start of the command on the monotonic clock.
        command: Command line that starts a worker; a descriptor's number and ``RELEASE`` are appended.
        shown: The path that is printed for the models; None for that of their directory.
    """

    models: Path | None
    config: ServerConfig
    json: bool
    begun: float
    command: Sequence[str]
    shown: Path | None = None


class Supervisor:
    """All workers of a server.

    Attributes:
        failed: Future of the error that makes the server give up.
        listeners: The listening sockets: one set per place, and sets left by earlier servers.
    """

    def __init__(
        self, start: Start, workers: int, ports: Ports | None = None, processes: Processes | None = None
    ) -> None:
        """Open the ports.

        Args:
            start: Parameters of the command.
            workers: Number of workers.
            ports: Listening sockets of a running server to take over; None to open new ones.
            processes: Starts processes; None to use ``start.command``.

        Raises:
            ConfigError: A port or an address is not available.
            Unavailable: Workers cannot take over the sockets; see ``places_at``.
        """
        self._start = start
        config = start.config
        self._config = worker_shares.of_server(config, workers)
        self._beat_seconds = min(_LONGEST_BEAT_SECONDS, config.worker_timeout_seconds / _BEATS_OF_TIMEOUT)
        if ports is None:
            self.places = open_places(config, workers)
            self.listeners = Listeners([one.sockets for one in self.places], may_join=True, free=())
        else:
            self.listeners = ports.listeners
            self.places = places_at(self.listeners, workers)
        self._shared = SharedState(start.models, config, self.places)
        loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[HeadraceError] = loop.create_future()
        self._time = loop.time  # asyncio's own loop: the monotonic clock, as in all workers
        self._ends: list[restart_rules.End] = []
        self._last_end = ""
        self._callers: tuple[int, ...] = ()
        if config.access.is_on:
            from headrace.access.shared_meters import shared_memory  # noqa: PLC0415 - needed with access keys only

            self._callers = (shared_memory(workers),)
        self._announced = self._was_tried = False
        self._stopping = asyncio.Event()
        self._keeping: list[asyncio.Task[None]] = []
        self._processes = Processes(start.command, workers) if processes is None else processes
        self._keeper = self._processes.keeper(config)

    @property
    def config(self) -> ServerConfig:
        """The server's settings."""
        return self._start.config

    @property
    def statuses(self) -> dict[str, Sequence[VersionStatus]] | None:
        """Merged status of all models' versions; None until all have been tried and all workers serve."""
        self._was_tried = self._was_tried or (
            self._shared.has_tried and all(one.serving for one in self.places)
        )
        return self._shared.statuses if self._was_tried else None

    # --- life ---

    def start(self) -> None:
        """Start the workers, and keep them running from now on."""
        self._steer()
        self._shared.start()
        tasks = [self._keep(place) for place in self.places]
        self._keeping = [asyncio.ensure_future(task) for task in (*tasks, self._measure(), self._beat())]
        for one in self._keeping:
            one.add_done_callback(self._kept)

    def _kept(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("the task that keeps the workers running has failed", exc_info=error)
            self._fail(HeadraceError(f"the task that keeps the workers running has failed: {error!r}"))

    async def stop(self, *, lead: bool) -> None:
        """Drain all workers, and end them.

        Args:
            lead: Whether to accept connections for another ``lead_seconds``.
        """
        config = self._start.config
        until = self._time() + config.drain_seconds
        self.drain()
        if lead:
            await asyncio.sleep(config.lead_seconds)
        await until_none_waits([one for several in self.listeners.sets for one in several])
        await self._finish(Finish(until, config.first_answer_seconds if lead else 0.0))

    async def leave(self) -> None:
        """Stop like ``stop``, while another server accepts new connections at the same ports."""
        config = self._start.config
        until = self._time() + config.drain_seconds
        self.drain(is_followed=True)
        await asyncio.sleep(config.lead_seconds)
        listeners = self.listeners
        await listeners.until_accepted(*listeners.used)
        await self._finish(Finish(until, config.first_answer_seconds))

    def drain(self, *, is_followed: bool = False) -> None:
        """Make the workers end each connection with its next answer; new connections are still accepted.

        Args:
            is_followed: Whether another server accepts new connections; the workers then
                keep reporting ready.
        """
        self._stopping.set()
        self._shared.stop()
        self._tell_all(Drain(is_followed))

    async def _finish(self, message: Finish) -> None:
        self._tell_all(message)
        for place in self.places:
            if not place.serving:  # it has accepted nothing
                place.kill()
        keeping = self._keeping[:-2]
        seconds = max(0.0, message.until - self._time()) + _GRACE_SECONDS
        _, late = await asyncio.wait(keeping, timeout=seconds)
        if late:
            _log.warning("workers did not finish before the timeout", extra={"workers": len(late)})
        self.end()
        await asyncio.gather(*self._keeping, return_exceptions=True)

    def end(self) -> None:
        """End all workers at once, and close the ports."""
        self._stopping.set()
        for task in self._keeping[-2:]:
            task.cancel()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
        for place in self.places:
            place.kill()
        for one in (*self.listeners.sets[0], *self.listeners.opened):
            one.close()
        for descriptor in self._callers:
            os.close(descriptor)
        self._callers = ()

    def _tell_all(self, message: Message) -> None:
        for place in self.places:
            place.send(message)

    def _fail(self, error: HeadraceError) -> None:
        if not self.failed.done():
            self.failed.set_result(error)

    # --- one worker ---

    async def _keep(self, place: Place) -> None:
        """Run a worker at a place, and restart it whenever it ends."""
        while not self._stopping.is_set():
            await self._run(place)
            if self._stopping.is_set():
                return
            now = self._time()
            ready = sum(map(self._shared.is_ready, self.places))
            if restart_rules.gives_up(self._ends, now, ready=ready):
                self._fail(
                    HeadraceError(
                        f"{restart_rules.MOST_FAILED_STARTS} workers have ended within a minute before "
                        f"they were ready (a model may end its process); the last one {self._last_end}"
                    )
                )
                return
            pause = restart_rules.pause_seconds(self._ends, place.number, now)
            _log.warning("a worker is started again", extra={"worker": place.number, "after_seconds": pause})
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
                return
            self._shared.restarts += 1

    async def _run(self, place: Place) -> None:
        """Start a worker, and wait until it ends."""
        place.missed, place.starts = 0, place.starts + 1
        try:
            process = place.process = await self._started(place)
        except OSError as error:
            _log.error("a worker cannot be started: %s", error, extra={"worker": place.number})
            self._ended(place, f"could not be started: {error.strerror}")
            return
        if self._stopping.is_set():
            place.kill()
        place.send(self._begin(place))
        self._shared.began(place)
        self._hurry()
        self._ended(place, how_ended(await process.wait()))

    async def _started(self, place: Place) -> Process:
        ours, theirs = socket.socketpair()
        with theirs:
            place.channel = Channel()
            await place.channel.open(ours, partial(self._told, place))
            keeper = [] if self._keeper is None else [self._keeper.descriptor]
            descriptors = (*(one.fileno() for one in place.sockets), *keeper, *self._callers)
            return await self._processes.worker(theirs.fileno(), descriptors)

    def _begin(self, place: Place) -> Begin:
        http, grpc = place.sockets
        return Begin(
            worker=place.number,
            models=self._start.models,
            config=self._config,
            sockets=(http.fileno(), grpc.fileno()),
            workers=len(self.places),
            announces=place.number == 0 and not self._announced,
            json=self._start.json,
            begun=self._start.begun,
            waits=self._shared.was_ready,
            fills=place.number == 0,
            keeper=None if self._keeper is None else self._keeper.descriptor,
            callers=self._callers[0] if self._callers else -1,
            shown=self._start.shown,
        )

    def _ended(self, place: Place, how: str) -> None:
        self._last_end = how
        if not self._stopping.is_set():
            now, ready = self._time(), self._shared.is_ready(place)
            lately = (one for one in self._ends if now - one.at < restart_rules.COUNTED_SECONDS)
            self._ends = [*lately, restart_rules.End(place.number, now, ready)]
            _log.error("a worker has ended: it %s", how, extra={"worker": place.number})
        place.leave()
        self._shared.ended(place)
        self._steer()

    def _told(self, place: Place, message: Message) -> None:
        if isinstance(message, Beat):
            place.missed, place.report = 0, message.report
            if place.suspect:
                place.suspect = False
                _log.info("a worker answers again", extra={"worker": place.number})
                self._shared.changed()
                self._steer()
        elif isinstance(message, Serving):
            place.serving, place.late = True, self._stopping.is_set()
            place.other_files = place.open_files
            place.missed = 0  # during the start a longer limit applied; count anew for the shorter one
            self._announced = self._announced or place.number == 0
            self._shared.changed()
            self._steer()
        elif isinstance(message, Failed):
            _log.error("a worker cannot start: %s", message.message, extra={"worker": place.number})
            if place.starts == 1:
                kind = ConfigError if message.wrong else HeadraceError
                self._fail(kind(message.message))
        else:
            was_ready = self._shared.is_ready(place)
            self._shared.told(place, message)
            if self._shared.is_ready(place) != was_ready:
                self._steer()

    # --- all workers ---

    def look_again(self) -> None:
        """Make the serving workers reload certificates and reopen log files now."""
        for place in self.places:
            if place.serving:
                place.send_signal(signal.SIGHUP)

    def _hurry(self) -> None:
        """Tell loading workers to accept connections soon if no worker answers."""
        starting = [one.process is not None and not one.serving for one in self.places]
        for number in restart_rules.alone(starting, [one.answers for one in self.places]):
            self.places[number].send(Alone())

    def _steer(self) -> None:
        found = taking(
            [one.serving for one in self.places],
            [one.late for one in self.places],
            [one.suspect for one in self.places],
            [self._shared.is_ready(one) for one in self.places],
        )
        most = self._config.limits.max_connections
        shares = weighted(found, [one.connections for one in self.places], most)
        self.listeners.lead_to([self.places[number].set for number in shares])
        self._hurry()

    async def _measure(self) -> None:
        while True:
            await asyncio.sleep(_LONGEST_BEAT_SECONDS)
            await self._shared.look_after()

    async def _beat(self) -> None:
        """Send beats to all workers periodically, and kill those that do not answer."""
        timeout = self._start.config.worker_timeout_seconds
        while True:
            await asyncio.sleep(self._beat_seconds)
            self._steer()  # the workers' shares of new connections depend on how many they have
            if self._keeper is not None:
                self._keeper.look_after()
            report = report_of_workers(one.report for one in self.places if one.answers)
            for place in self.places:
                if place.process is None:
                    continue
                limit = timeout if place.serving else max(timeout, _START_SECONDS)
                self._judge(place, restart_rules.silence(place.missed, self._beat_seconds, limit), limit)
                place.missed += 1
                place.send(Beat(report))

    def _judge(self, place: Place, silence: restart_rules.Silence, limit: float) -> None:
        if silence is restart_rules.Silence.TIMED_OUT:
            _log.error(
                "a worker has not answered for %g s; it is killed", limit, extra={"worker": place.number}
            )
            place.kill()
        elif silence is restart_rules.Silence.SUSPECT and not place.suspect:
            place.suspect = True
            _log.warning(
                "a worker does not answer; it gets no new connections", extra={"worker": place.number}
            )
            self._shared.silent(place)
            self._steer()


async def run(start: Start, workers: int) -> int:
    """Keep workers serving until a handover, SIGTERM or SIGINT, then drain; a second signal exits at once.

    Args:
        start: Parameters of the command.
        workers: Number of workers.

    Returns:
        The exit code.

    Raises:
        ConfigError: A port is not available, or a setting is wrong.
        HeadraceError: The workers cannot serve.
    """
    life = ServerLife(start.models, start.config)
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[signal.Signals] = loop.create_future()
    pools: list[Supervisor] = []

    def stop_or_end(number: signal.Signals) -> None:
        if stopping.done():
            for pool in pools:
                pool.end()
            os._exit(128 + number)
        stopping.set_result(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_or_end, number)

    expect_signals(loop)

    def begin(ports: Ports | None) -> Supervisor:
        pools.append(Supervisor(start, workers, ports))
        if start.config.looks_again:
            loop.add_signal_handler(signal.SIGHUP, pools[0].look_again)
        pools[0].start()
        return pools[0]

    manager = service_manager(start.config)
    if manager is not None:
        manager.inherited(start.config)  # raises if sockets were inherited: a pool opens its own
    handing: Handover | None = None

    async def started() -> bool:
        if handing is not None:
            return await handing.start(stopping)
        begin(None)
        return True

    if start.config.handover is not None:
        from headrace.workers.supervisor_handover import handover  # noqa: PLC0415 - needed for a handover only

        handing = handover(begin, start.config)
    try:
        serves = await life.record("start", started(), "the server was stopped before it was ready")
    except BaseException:
        for pool in pools:
            pool.end()
        raise
    return await _serve(pools[0], handing, manager, stopping, life) if serves else _given_up(pools)


def _given_up(pools: Sequence[Supervisor]) -> int:
    for pool in pools:
        pool.end()
    return 0


async def _serve(
    pool: Supervisor,
    handover: Handover | None,
    manager: ServiceManager | None,
    stopping: asyncio.Future[signal.Signals],
    life: ServerLife,
) -> int:
    if handover is not None and handover.has_taken:
        life.note("take-over")
    telling = tells(manager, lambda: pool.statuses, pool.config, life)
    taken = () if handover is None else (handover.taken,)
    await asyncio.wait((stopping, pool.failed, *taken), return_when=asyncio.FIRST_COMPLETED)
    if telling is not None:
        telling.stop(follower_of(handover))
    _log.info("draining", extra={"seconds": pool.config.drain_seconds})
    lead = stopping.done() and stopping.result() is signal.SIGTERM
    await life.record(end_of(handover), _stopped(pool, handover, lead=lead))
    if pool.failed.done():
        raise pool.failed.result()
    _log.info("stopped")
    return 0


async def _stopped(pool: Supervisor, handover: Handover | None, *, lead: bool) -> None:
    if handover is not None and handover.taken.done():
        await pool.leave()
        await handover.close()
        return
    if handover is not None:
        await handover.close()
    await pool.stop(lead=lead)
