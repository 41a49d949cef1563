"""A server as a process: started, told to stop by signals, and made to serve evenly."""

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

from headrace.config import ServerConfig
from headrace.errors import HeadraceError
from headrace.server import Server
from headrace.server_life import ServerLife

if TYPE_CHECKING:
    from headrace.handover.place import Handover
    from headrace.service_manager import ServiceManager, Statuses, Telling

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

# Less than a slice of the lane: see _hand_over_soon.
_SWITCH_SECONDS = 0.0005
_LOADS_END_SECONDS = 10.0
"""How long a start that has failed waits for loads that have begun."""
_THREADS_END_SECONDS = 5.0
"""How long a stopped server's process waits for threads: one that reads a file may hang with its disk."""
# How long connections wait at a service manager's sockets for models that load.
_LONGEST_WAIT_SECONDS = 600.0


async def run(
    models: Path | None, config: ServerConfig, announce: Callable[[Server], Coroutine[object, object, None]]
) -> int:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends the process at once.

    A server that can take no more requests ends, so that whoever watches processes starts it again. So does
    one whose place another server has taken.

    SIGINT is somebody at a terminal, who does not want to wait for callers to learn that the server goes.

    Args:
        models: The directory of models.
        config: The settings.
        announce: Run once the ports are open.

    Returns:
        The exit code: 0, or 1 when no more requests could be taken.
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
    start = _started(server, handover, manager, stopping)
    if not await life.told("start", _ending_loads(server, start), "it was told to stop first"):
        return 0
    if handover is not None and handover.has_taken:
        life.note("take-over")
    if config.looks_again:
        loop.add_signal_handler(signal.SIGHUP, server.look_again)
    tune_process()
    announced = loop.create_task(announce(server))
    server.supervisor.allows("printing what is served", announced)
    telling = tells(manager, lambda: server.statuses, config, life)
    failed = server.supervisor.failed
    taken = () if handover is None else (handover.taken,)
    await asyncio.wait((stopping, failed, *taken), return_when=asyncio.FIRST_COMPLETED)
    announced.cancel()
    code = int(failed.done())
    if telling is not None:
        telling.stop(is_followed=handover is not None and handover.taken.done())
    _log.info("draining", extra={"seconds": config.drain_seconds})
    began = time.monotonic()
    lead = stopping.done() and stopping.result() is signal.SIGTERM
    stopped = _stopped(server, handover, lead=lead)
    if await life.told(end_of(handover), stopped, "a model was still at work"):
        _log.info("stopped")
        return code
    leave_at_work(code, time.monotonic() - began)


def expect_signals(loop: asyncio.AbstractEventLoop) -> None:
    """Have signals that ask for something end no server that cannot do it, or not yet.

    A terminal that is closed sends SIGHUP, too: a server that was started there, and has no other use for it,
    ends as after Ctrl-C.

    Args:
        loop: Where signals are handled.
    """
    if not sys.stdin.isatty():
        loop.add_signal_handler(signal.SIGHUP, _log.warning, "SIGHUP: nothing is read again, or not yet")
    elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, os.kill, os.getpid(), signal.SIGINT)
    asks = "SIGUSR2: a server with --handover that serves starts a successor; nothing is done"
    loop.add_signal_handler(signal.SIGUSR2, _log.warning, asks)


async def _ending_loads(server: Server, start: Awaitable[_T]) -> _T:
    """Start; where that fails, wait for loads: native code that is at work when Python ends aborts."""
    try:
        return await start
    except HeadraceError:
        with suppress(TimeoutError):
            await asyncio.wait_for(server.engine.close(), _LOADS_END_SECONDS)
        raise


def _handover(server: Server, config: ServerConfig) -> Handover | None:
    if config.handover is None:
        return None
    from headrace.server_handover import handover  # noqa: PLC0415 - only where it is wanted

    return handover(server, config)


async def _started(
    server: Server,
    handover: Handover | None,
    manager: ServiceManager | None,
    stopping: asyncio.Future[signal.Signals],
) -> bool:
    """Start, by whatever way; returns whether it serves: not if it was told to stop before."""
    if manager is not None:
        server.ports = manager.inherited(server.engine.config)
    if handover is not None:
        return await handover.start(stopping)
    if server.ports is not None:
        return await _start_when_tried(server, stopping)
    await server.start()
    return True


async def _start_when_tried(server: Server, stopping: asyncio.Future[signal.Signals]) -> bool:
    """Start at sockets that somebody else has opened: connections can wait there until models are tried.

    Args:
        server: Not started.
        stopping: Has a result when it is to stop.

    Returns:
        Whether it serves.
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
    """What started this process, if it is a service manager, or might be asked for a successor.

    Args:
        config: The server's settings.
    """
    if config.handover is None and not {"NOTIFY_SOCKET", "LISTEN_PID"} & os.environ.keys():
        return None
    from headrace.service_manager import ServiceManager  # noqa: PLC0415 - only where there is one

    return ServiceManager()


def tells(
    manager: ServiceManager | None, statuses: Statuses, config: ServerConfig, life: ServerLife
) -> Telling | None:
    """Tell the service manager how this process fares; SIGUSR2 starts a successor.

    Args:
        manager: Who is told, if anybody.
        statuses: What can be told about the versions of all models; None as long as they have not been tried.
        config: The server's settings.
        life: Where it is told that a successor is started.
    """
    if manager is None:
        return None
    from headrace.service_manager import Telling  # noqa: PLC0415 - as above

    telling = Telling(manager, statuses, config.handover_seconds)

    def start_successor() -> None:
        if telling.start_successor():
            life.note("start-successor")

    if config.handover is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, start_successor)
    return telling


def end_of(handover: Handover | None) -> str:
    """What the end of a server is called in its audit log.

    Args:
        handover: What gives its place away, if anything.
    """
    return "stop" if handover is None or not handover.taken.done() else "hand-over"


async def _stopped(server: Server, handover: Handover | None, *, lead: bool) -> bool:
    if handover is None:
        return await server.stop(lead=lead)
    if handover.taken.done():
        done = await server.leave()
        await handover.close()
        return done
    await handover.close()
    return await server.stop(lead=lead)


def leave_at_work(code: int, seconds: float) -> NoReturn:
    """End the process though a model is still at work: its thread cannot be ended, and would keep it.

    Args:
        code: The exit code.
        seconds: How long it was waited for.
    """
    _log.warning("stopped while a model was still at work", extra={"after_seconds": round(seconds, 1)})
    end_at_once(code)


async def ends_in_time(running: Awaitable[int]) -> int:
    """Run a server, and see that its process ends within seconds of it, also where a thread does not.

    Args:
        running: The server; it returns the exit code.
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
    _log.warning("a thread did not end, and is left behind")
    end_at_once(code)


def end_at_once(code: int) -> NoReturn:
    """End the process without waiting for any thread; what cannot be written out is lost."""
    logging.shutdown()
    with suppress(OSError):  # a full disk
        sys.stdout.flush()
    os._exit(code)


def tune_process() -> None:
    """Let this process serve as evenly as it can; once everything is imported."""
    _calm_garbage_collector()
    _hand_over_soon()


def _calm_garbage_collector() -> None:
    """Collect less often, and never what is there for good.

    Python looks for cycles after every 700 new objects, which is every few dozen requests, and serving makes
    none: that was 5 to 8 % of a small request's time. What is looked at in one go is small: a large body is
    hundreds of thousands of objects, and everybody waits meanwhile (0.2 µs an object).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 1, 500)


def _hand_over_soon() -> None:
    """Let the thread that reads the sockets have Python's lock after half a millisecond, not after five.

    Who waits for the lock insists on it only if nobody has let go of it for that long. The serving thread
    lets go after each turn and has it back before the other one is awake: so beside turns of one to four
    milliseconds, one after another, requests that had come lay there for up to half a second.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)


def _stop_or_end(stopping: asyncio.Future[signal.Signals], number: signal.Signals) -> None:
    if stopping.done():
        os._exit(128 + number)
    stopping.set_result(number)
