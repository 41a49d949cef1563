"""A worker: a complete server that the supervisor starts, provides with sockets, and ends."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial

from headrace.base import cpus
from headrace.base.errors import ConfigError, HeadraceError, InvalidRequest, NotFound, Unavailable
from headrace.sealed_memory.file_copying import use_keeper
from headrace.server.process import end_at_once, leave_at_work, tune_process
from headrace.server.server import Server
from headrace.serving.engine import Engine
from headrace.workers import worker_shares
from headrace.workers.messages import (
    RELEASE,
    Act,
    Alone,
    Beat,
    Begin,
    Channel,
    Count,
    Counted,
    Drain,
    Failed,
    Finish,
    Message,
    Scrape,
    Scraped,
    Serving,
    View,
    Wants,
)
from headrace.workers.restart_rules import ALONE_SECONDS
from headrace.workers.worker_service import StateReporter, WorkerService
from headrace.workers.worker_shares import ToldSource

_log = logging.getLogger(__name__)

# End a worker whose supervisor is gone and whose serving thread hangs: nobody else would end it.


GRACE_SECONDS = 15.0
"""Seconds after the drain in which a worker accepts waiting connections, unloads, and ends its threads."""


class Watch:
    """Watches in a thread of its own whether the supervisor is still there.

    Attributes:
        seconds: Time for this process to end by itself once the supervisor is gone.
    """

    def __init__(self, end: socket.socket, leave: Callable[[int], object] = os._exit) -> None:
        """Begin to watch.

        Args:
            end: This process's end of the channel, of which the watch keeps a duplicate.
            leave: Ends the process with an exit code, without waiting for any thread.
        """
        self.seconds = GRACE_SECONDS
        self._end = end.dup()
        self._leave = leave
        self._stopped = threading.Event()
        self._waking, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        poll = select.poll()
        for one in (self._end, self._woken):
            poll.register(one, 0)  # no events: the end of the other side (POLLHUP) is always reported
        poll.poll()
        if not self._stopped.wait(self.seconds):
            self._leave(1)

    def stop(self) -> None:
        """Stop watching: the process ends by itself."""
        self._stopped.set()
        self._waking.close()
        self._thread.join()
        self._woken.close()
        self._end.close()


ANOTHER_RELEASE = (
    "the installed headrace is not the release that this server started with: restart the server"
)

_BEGIN_SECONDS = 60.0
_TRY_SECONDS = 60.0
"""Longest time for which a replacement worker waits for its models before it accepts connections."""

Announce = Callable[[Server, Begin], Coroutine[object, object, None]]
"""Prints the served models."""


async def run(end: socket.socket, release: str, set_up: Callable[[Begin], object], announce: Announce) -> int:
    """Run a worker until the supervisor ends it, or is gone itself.

    Args:
        end: This process's end of the socket pair.
        release: The supervisor's release; it differs if the package was updated while the server ran.
        set_up: Sets up logging once the settings are known.
        announce: Prints the served models; called in one worker only.

    Returns:
        The exit code.
    """
    # These signals may reach the whole process group, but only the supervisor acts on them.
    # It forwards SIGHUP; from then on ``serve`` has a handler for it.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    channel, watch = Channel(), Watch(end)
    worker = Worker(channel, announce)
    try:
        await channel.open(end, worker.told)
        begin = await _begun(worker, channel, release)
        if begin is None:
            return 1
        watch.seconds += begin.config.drain_seconds
        _set_up_process(begin, set_up)
        return await worker.serve(begin)
    except HeadraceError as error:
        return await _fail(channel, error)
    finally:
        watch.stop()


async def _begun(worker: Worker, channel: Channel, release: str) -> Begin | None:
    if release != RELEASE:  # before any message is decoded: the format may differ
        raise ConfigError(ANOTHER_RELEASE)
    ends = worker.begun, channel.closed
    await asyncio.wait(ends, timeout=_BEGIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    if worker.begun.done():
        return worker.begun.result()
    if channel.closed.done():
        return None
    raise Unavailable(f"the supervisor has sent no settings for {_BEGIN_SECONDS:g} s")


def _set_up_process(begin: Begin, set_up: Callable[[Begin], object]) -> None:
    for descriptor in (*begin.sockets, begin.callers):
        if descriptor >= 0:  # programs started by a model must not inherit them
            os.set_inheritable(descriptor, False)
    set_up(begin)
    cpus.divide_by(begin.workers)
    if begin.keeper is not None:
        use_keeper(begin.keeper)
        os.close(begin.keeper)


async def _fail(channel: Channel, error: HeadraceError) -> int:
    wrong = isinstance(error, ConfigError | InvalidRequest | NotFound)
    channel.send(Failed(error.message, wrong))
    channel.close()
    await channel.closed
    return 2 if wrong else 1


class Worker:
    """Serves requests, and handles the supervisor's messages.

    Attributes:
        begun: Future of the ``Begin`` message, or of the error that prevents the start.
    """

    def __init__(self, channel: Channel, announce: Announce) -> None:
        """Create a worker that waits for ``Begin``.

        Args:
            channel: Channel to the supervisor.
            announce: Prints the served models.
        """
        self._channel = channel
        self._announce = announce
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[Begin] = loop.create_future()
        self._finish: asyncio.Future[Finish] = loop.create_future()
        self._server: Server | None = None
        self._drain: Drain | None = None
        self._draining_since = 0.0
        self._alone = asyncio.Event()
        self._silence: asyncio.TimerHandle | None = None
        self._is_silent = False
        self._service: WorkerService | None = None
        self._source = ToldSource()
        self._scrapers: set[asyncio.Task[None]] = set()

    def told(self, message: Message) -> None:
        """Handle a message of the supervisor."""
        if isinstance(message, Beat):
            self._channel.send(message if self._service is None else self._service.beat(message))
            self._heard()
            if self._server is not None:
                self._reporter.look()
        elif isinstance(message, Begin):
            self._begin(message)
        elif isinstance(message, Alone):
            self._alone.set()
        elif isinstance(message, Finish) and not self._finish.done():
            self._finish.set_result(message)
        elif self._service is not None:
            self._told_to_serve(message, self._service)

    def _begin(self, message: Begin) -> None:
        try:
            self._service = self._make_service(message)
        except Exception as error:  # noqa: BLE001 - raised where ``begun`` is awaited; the channel only logs it
            self.begun.set_exception(error)
        else:
            self.begun.set_result(message)

    def _heard(self) -> None:
        """Restart the timer that logs a supervisor silent for longer than ``worker_timeout_seconds``."""
        if self._is_silent:
            self._is_silent = False
            _log.info("the supervisor answers again")
        if self._silence is not None:
            self._silence.cancel()
        if self._service is not None:
            seconds = self.begun.result().config.worker_timeout_seconds
            self._silence = asyncio.get_running_loop().call_later(seconds, self._log_silence, seconds)

    def _log_silence(self, seconds: float) -> None:
        self._is_silent = True
        _log.error(
            "the supervisor has been silent for %g s: requests are answered, but no version is loaded or "
            "unloaded, no worker is replaced, and /metrics answers 503",
            seconds,
        )

    def _told_to_serve(self, message: Message, service: WorkerService) -> None:
        if isinstance(message, Wants):
            self._source.take(message)
            self._reporter.wanted(message.models)
        elif isinstance(message, View):
            service.see(message)
        elif isinstance(message, Act):
            service.act(message)
        elif isinstance(message, Scrape):
            task = asyncio.ensure_future(self._scraped(message.number, service))
            self._scrapers.add(task)
            task.add_done_callback(self._scrapers.discard)
        elif isinstance(message, Count):
            self._channel.send(service.counted(message))
        elif isinstance(message, Scraped | Counted):
            service.told(message)
        elif isinstance(message, Drain):
            self._drain = message
            self._draining_since = time.monotonic()
            self._drain_as_told()

    def _drain_as_told(self) -> None:
        """Drain if requested and if there is a server; the request may arrive while models load."""
        if self._drain is not None and self._server is not None:
            self._server.drain(is_followed=self._drain.is_followed)

    async def _scraped(self, number: int, service: WorkerService) -> None:
        self._channel.send(Scraped(number, await service.own_metrics()))

    def _make_service(self, begin: Begin) -> WorkerService:
        engine = Engine(begin.models, config=begin.config, source=self._source.made_for)
        self._reporter = StateReporter(engine, self._channel.send)
        engine.on_change = self._reporter.changed
        return WorkerService(engine, self._channel.send)

    async def serve(self, begin: Begin) -> int:
        """Serve until the supervisor ends this worker, or is gone.

        Args:
            begin: The worker's parameters.

        Returns:
            The exit code.

        Raises:
            HeadraceError: It cannot start.
        """
        server = self._server_of(begin)
        await server.prepare()
        if begin.waits:
            await self._until_tried(server.engine)
        if self._channel.closed.done():
            _log.error("the supervisor has ended; this worker has accepted no connection yet, and exits")
            end_at_once(1)  # do not wait for loading models: a restarted server needs the ports
        await server.serve()
        self._server = server
        self._drain_as_told()
        if begin.config.looks_again:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, server.look_again)
        tune_process()
        self._channel.send(Serving())
        if begin.announces:
            announced = asyncio.ensure_future(self._announce(server, begin))
            server.supervisor.allows("printing the served models", announced)
        ends = self._finish, self._channel.closed, server.supervisor.failed
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if begin.announces:
            announced.cancel()
        return await self._end(server)

    async def _until_tried(self, engine: Engine) -> None:
        """Wait until all models have been tried, only briefly if no other worker answers.

        The wait also ends with the supervisor.
        """
        tried = asyncio.ensure_future(engine.settle(_TRY_SECONDS))
        alone = asyncio.ensure_future(self._alone.wait())
        gone = self._channel.closed
        await asyncio.wait((tried, alone, gone), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((tried, gone), timeout=ALONE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not tried.done() and not gone.done():
            _log.warning("no other worker answers: connections are accepted while models are still loading")
        for one in (tried, alone):
            one.cancel()

    def _server_of(self, begin: Begin) -> Server:
        sockets = [socket.socket(fileno=one) for one in begin.sockets]
        share = partial(worker_shares.of_archive, workers=begin.workers, fills=begin.fills)
        service = self._service
        if service is None:
            raise RuntimeError("a worker serves before it has begun")
        server = Server(begin.models, begin.config, service.engine, sockets, lambda _: service, share)
        server.counted_at = begin.callers, begin.worker, begin.workers
        server.administers = begin.config.has_admin_ports and begin.worker == 0  # one worker has the ports
        return server

    async def _end(self, server: Server) -> int:
        code, since = 0, self._draining_since or time.monotonic()
        if self._silence is not None:
            self._silence.cancel()
        if self._finish.done():
            told = self._finish.result()
            await server.until_first_answers(told.first_seconds)
            ended = await server.finish(told.until)
        else:
            code = 1
            if self._channel.closed.done():
                _log.error("the supervisor has ended; this worker answers its open requests, and exits")
            ended = await server.stop(lead=False)
        if not ended:
            leave_at_work(code, time.monotonic() - since)
        return code
