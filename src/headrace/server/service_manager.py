"""The service manager that started this process (systemd): inherited sockets, and notifications.

Both are small protocols: https://www.freedesktop.org/software/systemd/man/sd_notify.html and
sd_listen_fds.html. Without a service manager none of the environment variables is set, and nothing is done.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from headrace.base.errors import ConfigError
from headrace.base.terminal import counted
from headrace.config import ServerConfig
from headrace.frontends.transport.listening_sockets import Listeners, Ports, take_again
from headrace.lifecycle.version_states import State, VersionStatus

_log = logging.getLogger(__name__)

_FIRST_DESCRIPTOR = 3
_NAMES = ("http", "grpc")
_LOOK_SECONDS = 0.2
_TELL_SECONDS = 10.0
_EXTENSION_SECONDS = 30.0
_LONGEST_START_SECONDS = 600.0
_BEGIN_SECONDS = 30.0
"""Time in seconds that a successor gets in addition to ``handover_seconds``."""
_FIRST_PROCESS = 1
_OF_ONE_PROCESS = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID")

Statuses = Callable[[], Mapping[str, Sequence[VersionStatus]] | None]
"""Returns the states of all models' versions; None until each model has been tried."""


class ServiceManager:
    """The service manager that started this process, according to the environment."""

    def __init__(self) -> None:
        """Take the service manager's variables from the environment, where h2corn would also use them."""
        self._started_with = dict(os.environ)
        for name in (*_OF_ONE_PROCESS, "NOTIFY_SOCKET", "WATCHDOG_USEC"):
            os.environ.pop(name, None)
        self._address = self._started_with.get("NOTIFY_SOCKET", "")

    def notify(self, *words: str) -> None:
        """Send assignments such as ``READY=1`` to the service manager, if it wants notifications.

        Args:
            words: The assignments.
        """
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.setblocking(False)
            try:
                told.sendto("\n".join(words).encode(), address)
            except OSError as error:
                _log.warning("could not notify the service manager: %s", error)

    def watchdog_seconds(self) -> float | None:
        """Return the watchdog timeout in seconds; None without a watchdog."""
        own = str(os.getpid())
        if not self._address or self._started_with.get("WATCHDOG_PID", own) != own:
            return None
        try:
            return int(self._started_with["WATCHDOG_USEC"]) / 1e6
        except (KeyError, ValueError):
            return None

    def inherited(self, config: ServerConfig) -> Ports | None:
        """Return the listening sockets that this process inherited; None if there are none.

        Args:
            config: The server's settings.

        Raises:
            ConfigError: A server with these settings cannot use the sockets.
        """
        if self._started_with.get("LISTEN_PID") != str(os.getpid()):
            return None
        names = self._started_with.get("LISTEN_FDNAMES", "").split(":")
        return _ports(names, self._started_with.get("LISTEN_FDS", ""), config)

    @property
    def for_a_successor(self) -> dict[str, str]:
        """The environment of a process that takes over from this one."""
        return {name: value for name, value in self._started_with.items() if name not in _OF_ONE_PROCESS}


def _ports(names: Sequence[str], many: str, config: ServerConfig) -> Ports:
    if many != str(len(_NAMES)) or sorted(names) != sorted(_NAMES):
        raise ConfigError(
            f"LISTEN_FDNAMES: expected two sockets, named http and grpc, not {':'.join(names)!r}: give each "
            ".socket unit one ListenStream= and its FileDescriptorName="
        )
    if config.workers != 1 or (config.http_server, config.grpc_server) != ("h2corn", "h2corn"):
        raise ConfigError(
            "sockets of the service manager need --workers 1, and h2corn for both ports: remove the "
            ".socket units, so that this server opens its own"
        )
    sockets = {}
    for number, name in enumerate(names, _FIRST_DESCRIPTOR):
        os.set_inheritable(number, False)
        sockets[name] = one = socket.socket(fileno=number)
        is_tcp = one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM
        if not is_tcp or not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise ConfigError(f"LISTEN_FDS: expected {name} to be a socket that listens at a host and port")
        take_again(one)  # a server that was killed while it stopped may have closed it for new connections
    return Ports(Listeners([[sockets[name] for name in _NAMES]], may_join=False), is_lent=True)


def status(models: Mapping[str, Sequence[VersionStatus]]) -> str:
    """Return a status line about the served models.

    Args:
        models: The states of each model's versions.
    """
    versions = [one for many in models.values() for one in many]
    serving = sum(any(one.answers for one in many) for many in models.values())
    failed = sum(one.state is State.FAILED for one in versions)
    said = f"serves {counted(serving, 'model')}"
    return f"{said}; {counted(failed, 'version')} failed" if failed else said


class StatusReporter:
    """Reports this process's state to the service manager, from the serving loop."""

    def __init__(self, manager: ServiceManager, statuses: Statuses, handover_seconds: float) -> None:
        """Start reporting.

        Args:
            manager: The service manager.
            statuses: Returns the states to report.
            handover_seconds: Timeout in seconds for a successor to be ready.
        """
        self._handover_seconds = handover_seconds
        self._manager = manager
        self._notify = manager.notify
        self._statuses = statuses
        self._successor: subprocess.Popen[bytes] | None = None
        self._looking: asyncio.TimerHandle | None = None
        watchdog = manager.watchdog_seconds()
        self._beat_seconds = _TELL_SECONDS if watchdog is None else min(_TELL_SECONDS, watchdog / 2)
        self._has_watchdog = watchdog is not None
        self._task = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        await self._until_ready()
        while True:
            words = [f"STATUS={status(self._statuses() or {})}"]
            self._notify(*words, "WATCHDOG=1") if self._has_watchdog else self._notify(*words)
            await asyncio.sleep(self._beat_seconds)

    async def _until_ready(self) -> None:
        """Extend the start timeout while models load, then report that the server is ready."""
        until = time.monotonic() + _LONGEST_START_SECONDS
        told = 0.0
        while (now := self._statuses()) is None and time.monotonic() < until:
            if time.monotonic() > told + _TELL_SECONDS:
                told = time.monotonic()
                self._notify("STATUS=loading models", f"EXTEND_TIMEOUT_USEC={_EXTENSION_SECONDS * 1e6:.0f}")
            await asyncio.sleep(_LOOK_SECONDS)
        self._notify("READY=1", f"MAINPID={os.getpid()}", f"STATUS={status(now or {})}")

    def start_successor(self) -> bool:
        """Start this command again. The new process takes over and reports its process id to the manager.

        Returns:
            Whether the process was started.
        """
        if self._successor is not None and self._successor.poll() is None:
            _log.warning("a successor has already been started")
            return False
        if os.getpid() == _FIRST_PROCESS:
            _log.error(
                "SIGUSR2: ignored; this server is process 1 of its container, and when that ends, the kernel "
                "kills all other processes in it, including a successor: replace the container, as a rolling "
                "update does"
            )
            return False
        self._notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            self._successor = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]],
                stdin=subprocess.DEVNULL,
                env=self._manager.for_a_successor,
            )
        except OSError as error:
            _log.error("cannot start the successor: %s", error)
            self._notify("READY=1")
            return False
        _log.info("started a successor", extra={"successor": self._successor.pid})
        until = asyncio.get_running_loop().time() + self._handover_seconds + _BEGIN_SECONDS
        self._look_after(self._successor, until)
        return True

    def _look_after(self, successor: subprocess.Popen[bytes], until: float) -> None:
        code, loop = successor.poll(), asyncio.get_running_loop()
        if code is None:
            if loop.time() > until:  # it hung before its handover began; a begun one has its own timeout
                successor.kill()
            self._looking = loop.call_later(_LOOK_SECONDS, self._look_after, successor, until)
            return
        _log.error("the successor ended with code %d; this server keeps serving", code)
        self._notify("READY=1")

    def stop(self, follower: int | None) -> None:
        """Stop reporting, and end a successor that was started here but has not taken over.

        Args:
            follower: Process id of the server that has taken over, which reports its own state; None if none
                has.
        """
        self._task.cancel()
        if self._looking is not None:
            self._looking.cancel()
        if follower is None:
            self._notify("STOPPING=1")
        if self._successor is not None and self._successor.pid != follower:
            self._successor.terminate()
