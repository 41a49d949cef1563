"""The service manager that started this process (systemd): sockets that it has opened, and what it is told.

Both are a few bytes of protocol: https://www.freedesktop.org/software/systemd/man/sd_notify.html and
sd_listen_fds.html. Whoever starts this process otherwise sets none of the variables, and nothing is done.
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

from headrace.config import ServerConfig
from headrace.errors import ConfigError
from headrace.frontends.transport.listeners import Listeners, Ports
from headrace.frontends.transport.listening import take_again
from headrace.lifecycle.state import State, VersionStatus
from headrace.terminal import counted

_log = logging.getLogger(__name__)

_FIRST_DESCRIPTOR = 3
_NAMES = ("http", "grpc")
_LOOK_SECONDS = 0.2
_TELL_SECONDS = 10.0
_EXTENSION_SECONDS = 30.0
_LONGEST_START_SECONDS = 600.0
_BEGIN_SECONDS = 30.0
"""How long a successor may take until it asks for the place, beside what its models may take."""
_OF_ONE_PROCESS = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID")

Statuses = Callable[[], Mapping[str, Sequence[VersionStatus]] | None]
"""What can be told about the versions of all models; None as long as they have not been tried."""


class ServiceManager:
    """What started this process, as its environment tells."""

    def __init__(self) -> None:
        """Take what is meant for this process out of the environment: h2corn would use it, too."""
        self._started_with = dict(os.environ)
        for name in (*_OF_ONE_PROCESS, "NOTIFY_SOCKET", "WATCHDOG_USEC"):
            os.environ.pop(name, None)
        self._address = self._started_with.get("NOTIFY_SOCKET", "")

    def notify(self, *words: str) -> None:
        """Tell it something, such as ``READY=1``, if it wants to be told.

        Args:
            words: Assignments.
        """
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.setblocking(False)
            try:
                told.sendto("\n".join(words).encode(), address)
            except OSError as error:
                _log.warning("the service manager was not told: %s", error)

    def watchdog_seconds(self) -> float | None:
        """How long this process may say nothing before it is ended; None for as long as it likes."""
        own = str(os.getpid())
        if not self._address or self._started_with.get("WATCHDOG_PID", own) != own:
            return None
        try:
            return int(self._started_with["WATCHDOG_USEC"]) / 1e6
        except (KeyError, ValueError):
            return None

    def inherited(self, config: ServerConfig) -> Ports | None:
        """The listening sockets that this process was started with; None if there are none.

        Args:
            config: The server's settings.

        Raises:
            ConfigError: They are not what a server of these settings can use.
        """
        if self._started_with.get("LISTEN_PID") != str(os.getpid()):
            return None
        names = self._started_with.get("LISTEN_FDNAMES", "").split(":")
        return _ports(names, self._started_with.get("LISTEN_FDS", ""), config)

    @property
    def for_a_successor(self) -> dict[str, str]:
        """The environment of a process that takes the place of this one."""
        return {name: value for name, value in self._started_with.items() if name not in _OF_ONE_PROCESS}


def _ports(names: Sequence[str], many: str, config: ServerConfig) -> Ports:
    if many != str(len(_NAMES)) or sorted(names) != sorted(_NAMES):
        raise ConfigError(
            f"LISTEN_FDNAMES: expected two sockets, named http and grpc, not {':'.join(names)!r}: give each "
            ".socket unit one ListenStream= and its FileDescriptorName="
        )
    if config.workers != 1 or (config.http_server, config.grpc_server) != ("h2corn", "h2corn"):
        raise ConfigError(
            "sockets of the service manager need --workers 1, and h2corn for both ports: leave the .socket "
            "units out, and this server opens its own"
        )
    sockets = {}
    for number, name in enumerate(names, _FIRST_DESCRIPTOR):
        os.set_inheritable(number, False)
        sockets[name] = one = socket.socket(fileno=number)
        is_tcp = one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM
        if not is_tcp or not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise ConfigError(f"LISTEN_FDS: expected {name} to be a socket that listens at a host and port")
        take_again(one)  # a server that was killed while it stopped may have left it closed
    return Ports(Listeners([[sockets[name] for name in _NAMES]], may_join=False), is_lent=True)


def status(models: Mapping[str, Sequence[VersionStatus]]) -> str:
    """A line about what is served.

    Args:
        models: What can be told about the versions of each.
    """
    versions = [one for many in models.values() for one in many]
    serving = sum(any(one.answers for one in many) for many in models.values())
    failed = sum(one.state is State.FAILED for one in versions)
    said = f"serves {counted(serving, 'model')}"
    return f"{said}; {counted(failed, 'version')} failed" if failed else said


class Telling:
    """Tells the service manager how this process fares, from the loop that serves."""

    def __init__(self, manager: ServiceManager, statuses: Statuses, handover_seconds: float) -> None:
        """Begin to tell.

        Args:
            manager: Who is told.
            statuses: What is told of.
            handover_seconds: How long a successor may take to be ready.
        """
        self._handover_seconds = handover_seconds
        self._manager = manager
        self._notify = manager.notify
        self._statuses = statuses
        self._successor: subprocess.Popen[bytes] | None = None
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
        """A start takes as long as its models: the service manager is asked for more time meanwhile."""
        until = time.monotonic() + _LONGEST_START_SECONDS
        told = 0.0
        while (now := self._statuses()) is None and time.monotonic() < until:
            if time.monotonic() > told + _TELL_SECONDS:
                told = time.monotonic()
                self._notify("STATUS=loads its models", f"EXTEND_TIMEOUT_USEC={_EXTENSION_SECONDS * 1e6:.0f}")
            await asyncio.sleep(_LOOK_SECONDS)
        self._notify("READY=1", f"MAINPID={os.getpid()}", f"STATUS={status(now or {})}")

    def start_successor(self) -> bool:
        """Start this command again; the new process takes the place of this one, and says so when it has.

        Returns:
            Whether it was started.
        """
        if self._successor is not None and self._successor.poll() is None:
            _log.warning("a server that is to take over is on its way already")
            return False
        self._notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            self._successor = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]],
                stdin=subprocess.DEVNULL,
                env=self._manager.for_a_successor,
            )
        except OSError as error:
            _log.error("the server that is to take over cannot be started: %s", error)
            self._notify("READY=1")
            return False
        _log.info("a server that is to take over is started", extra={"successor": self._successor.pid})
        self._look_after(self._successor, time.monotonic() + self._handover_seconds + _BEGIN_SECONDS)
        return True

    def _look_after(self, successor: subprocess.Popen[bytes], until: float) -> None:
        code = successor.poll()
        if code is None:
            if time.monotonic() > until:  # it hangs before it has begun: it would give up by itself otherwise
                successor.kill()
            asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look_after, successor, until)
            return
        _log.error("the server that was to take over has ended with code %d; this one goes on", code)
        self._notify("READY=1")

    def stop(self, *, is_followed: bool) -> None:
        """Tell nothing any more.

        Args:
            is_followed: Whether another server goes on, which tells of itself.
        """
        self._task.cancel()
        if not is_followed:
            self._notify("STOPPING=1")
            if self._successor is not None:
                self._successor.terminate()
