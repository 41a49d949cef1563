"""A server as a process: its start, its signals, and its tuning for even latency."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from headrace.base.errors import HeadraceError
from headrace.config import ServerConfig
from headrace.server.lifetime_audit import ServerLife
from headrace.server.server import Server

if TYPE_CHECKING:
    from headrace.server.handover.startup import Handover
    from headrace.server.service_manager import ServiceManager, Statuses, StatusReporter

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

# Less than a slice of the time slicer; see _shorten_switch_interval.
_SWITCH_SECONDS = 0.0005
_LOADS_END_SECONDS = 10.0
"""Longest wait of a failed start for loads in progress, in seconds."""
_THREADS_END_SECONDS = 5.0
"""Timeout in seconds for a stopped server's threads; a thread that reads a file may hang with its disk."""
# Longest time for which connections wait at a service manager's sockets while models load.
_LONGEST_WAIT_SECONDS = 600.0


async def run(
    models: Path | None, config: ServerConfig, announce: Callable[[Server], Coroutine[object, object, None]]
) -> int:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends the process at once.

    The process also ends if it can accept no more requests, so that a process manager restarts it, and if a
    successor has taken over.

    After SIGINT there is no lead time for callers to learn of the shutdown: a user waits at a terminal.

    Args:
        models: The directory of models.
        config: The settings.
        announce: Run once the server accepts connections.

    Returns:
        The exit code: 0, or 1 if no more requests could be accepted.
    """
    life = ServerLife(models, config)
    server = Server(models, config)
    stopping: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_or_end, stopping, number)
    expect_signals(loop)
    manager = service_manager(config)
    handover = _handover(server, config)
    start = _start(server, handover, manager, stopping)
    if not await life.record(
        "start", _start_or_end_loads(server, start), "the server was stopped before it was ready"
    ):
        return 0
    if handover is not None and handover.has_taken:
        life.note("take-over")
    if config.looks_again:
        loop.add_signal_handler(signal.SIGHUP, server.look_again)
    tune_process()
    announced = loop.create_task(announce(server))
    server.supervisor.allows("printing the served models", announced)
    reporter = tells(manager, lambda: server.statuses, config, life)
    failed = server.supervisor.failed
    taken = () if handover is None else (handover.taken,)
    await asyncio.wait((stopping, failed, *taken), return_when=asyncio.FIRST_COMPLETED)
    announced.cancel()
    code = int(failed.done())
    if reporter is not None:
        reporter.stop(follower_of(handover))
    _log.info("draining", extra={"seconds": config.drain_seconds})
    began = time.monotonic()
    lead = stopping.done() and stopping.result() is signal.SIGTERM
    stopped = _stop(server, handover, lead=lead)
    if await life.record(end_of(handover), stopped, "a model was still at work"):
        _log.info("stopped")
        return code
    leave_at_work(code, time.monotonic() - began)


def expect_signals(loop: asyncio.AbstractEventLoop) -> None:
    """Ignore SIGHUP and SIGUSR2 until the server handles them, or for ever if it does not.

    SIGHUP is also sent when a terminal closes. A server that was started in one, and has no other use for
    SIGHUP, then ends as after Ctrl-C.

    Args:
        loop: The event loop that handles the signals.
    """
    if not sys.stdin.isatty():
        loop.add_signal_handler(
            signal.SIGHUP,
            _log.warning,
            "SIGHUP: ignored; there is nothing to reload, or the server is still starting",
        )
    elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, os.kill, os.getpid(), signal.SIGINT)
    asks = "SIGUSR2: ignored; only a server with --handover starts a successor, and only while it serves"
    loop.add_signal_handler(signal.SIGUSR2, _log.warning, asks)


async def _start_or_end_loads(server: Server, start: Awaitable[_T]) -> _T:
    """Start; on failure, wait for loads in progress: Python aborts if it exits while native code runs."""
    try:
        return await start
    except HeadraceError:
        with suppress(TimeoutError):
            await asyncio.wait_for(server.engine.close(), _LOADS_END_SECONDS)
        raise


def _handover(server: Server, config: ServerConfig) -> Handover | None:
    if config.handover is None:
        return None
    from headrace.server.handover.single_process import handover  # noqa: PLC0415 - only if enabled

    return handover(server, config)


async def _start(
    server: Server,
    handover: Handover | None,
    manager: ServiceManager | None,
    stopping: asyncio.Future[signal.Signals],
) -> bool:
    """Start in the configured way; return False if a signal stopped the process first."""
    if manager is not None:
        server.ports = manager.inherited(server.engine.config)
    if handover is not None:
        return await handover.start(stopping)
    if server.ports is not None:
        return await _start_when_tried(server, stopping)
    await server.start()
    return True


async def _start_when_tried(server: Server, stopping: asyncio.Future[signal.Signals]) -> bool:
    """Start on inherited sockets once each model has been tried; connections wait there meanwhile.

    Args:
        server: The server, not started.
        stopping: Completes when the server is to stop.

    Returns:
        Whether the server serves.
    """
    await server.prepare()
    tried = asyncio.ensure_future(server.engine.settle(_LONGEST_WAIT_SECONDS))
    waits: tuple[asyncio.Future[Any], ...] = (tried, stopping)
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    tried.cancel()
    if not stopping.done():
        await server.serve()
    return not stopping.done()


def service_manager(config: ServerConfig) -> ServiceManager | None:
    """Return the ServiceManager if one started this process, or if a successor may be requested.

    Args:
        config: The server's settings.
    """
    if config.handover is None and not {"NOTIFY_SOCKET", "LISTEN_PID"} & os.environ.keys():
        return None
    from headrace.server.service_manager import ServiceManager  # noqa: PLC0415 - only under a service manager

    return ServiceManager()


def tells(
    manager: ServiceManager | None, statuses: Statuses, config: ServerConfig, life: ServerLife
) -> StatusReporter | None:
    """Report this process's state to the service manager, and let SIGUSR2 start a successor.

    Args:
        manager: The service manager, if there is one.
        statuses: Returns the states of all models' versions; None until each model has been tried.
        config: The server's settings.
        life: Records that a successor was started.
    """
    if manager is None:
        return None
    from headrace.server.service_manager import StatusReporter  # noqa: PLC0415 - as above

    reporter = StatusReporter(manager, statuses, config.handover_seconds)

    def start_successor() -> None:
        if reporter.start_successor():
            life.note("start-successor")

    if config.handover is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, start_successor)
    return reporter


def end_of(handover: Handover | None) -> str:
    """Return the name under which the audit log records the end of the server.

    Args:
        handover: The Handover, if the server has one.
    """
    return "stop" if handover is None or not handover.taken.done() else "hand-over"


def follower_of(handover: Handover | None) -> int | None:
    """Return the process id of the server that has taken over; None if none has.

    Args:
        handover: The Handover, if the server has one.
    """
    return None if handover is None or not handover.taken.done() else handover.taken.result()


async def _stop(server: Server, handover: Handover | None, *, lead: bool) -> bool:
    if handover is None:
        return await server.stop(lead=lead)
    if handover.taken.done():
        done = await server.leave()
        await handover.close()
        return done
    await handover.close()
    return await server.stop(lead=lead)


def leave_at_work(code: int, seconds: float) -> NoReturn:
    """End the process although a model still computes: its thread cannot be stopped.

    Args:
        code: The exit code.
        seconds: Time waited for the model, in seconds.
    """
    _log.warning("stopped while a model was still at work", extra={"after_seconds": round(seconds, 1)})
    end_at_once(code)


async def ends_in_time(running: Awaitable[int]) -> int:
    """Run a server, and end the process within seconds of its end, even if a thread hangs.

    Args:
        running: The server; returns the exit code.
    """
    code = 1
    try:
        code = await running
    finally:
        ending = threading.Timer(_THREADS_END_SECONDS, _end_without_threads, (code,))
        ending.daemon = True
        ending.start()
    return code


def _end_without_threads(code: int) -> NoReturn:
    _log.warning("a thread did not end in time; exiting without it")
    end_at_once(code)


def end_at_once(code: int) -> NoReturn:
    """End the process without waiting for any thread; output that cannot be flushed is lost."""
    logging.shutdown()
    with suppress(OSError, ValueError, AttributeError):  # a full disk; closed; None, as after `>&-`
        sys.stdout.flush()
    os._exit(code)


def tune_process() -> None:
    """Tune this process for even latency; call it once everything is imported."""
    _tune_garbage_collector()
    _shorten_switch_interval()


def _tune_garbage_collector() -> None:
    """Run the garbage collector less often, and never over objects that are permanent.

    By default Python looks for cycles after every 700 new objects (3.11), which is every few dozen requests.
    Serving creates no cycles, and the search took 5 to 8 % of a small request's time. The thresholds keep
    each collection small: a large body creates hundreds of thousands of objects, and a search takes 0.2 µs
    for each while all requests wait.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 1, 500)


def _shorten_switch_interval() -> None:
    """Lower the GIL switch interval from 5 to 0.5 ms, for the thread that reads the sockets.

    A thread that waits for the GIL forces a switch only if no thread has released it for that interval. The
    serving thread releases it after each turn, and reacquires it before the other thread wakes up. With
    successive turns of one to four milliseconds, arrived requests remained unread for up to half a second.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)


def _stop_or_end(stopping: asyncio.Future[signal.Signals], number: signal.Signals) -> None:
    if stopping.done():
        os._exit(128 + number)
    stopping.set_result(number)
