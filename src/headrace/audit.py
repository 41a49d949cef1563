"""The audit log: who changed what is served, when, and how it ended. Lines of JSON, whole, and on the disk.

An action is told twice: before it is done, and how it ended. What cannot be told is not done.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from headrace.errors import ConfigError, HeadraceError, Unavailable

_log = logging.getLogger(__name__)

_MODE = 0o640
_LOCK_SECONDS = 5.0
_PAUSE_SECONDS = 0.01
_LONGEST = 500
_WAY_OUT = "nothing was done; make room, or let the server write there"

By = Mapping[str, str | int]
"""Who: a caller's name and address, or a user of this machine."""


@dataclass
class Ending:
    """How an action ends.

    Attributes:
        result: ``done``, or why not.
    """

    result: str = "done"


class AuditLog:
    """A file that several processes append whole lines to. Any thread."""

    def __init__(self, file: Path) -> None:
        """Look whether it can be written.

        Args:
            file: A file, which is made if it is not there; its directory must be.

        Raises:
            ConfigError: It cannot be opened, or is no file.
        """
        self._file = file
        try:
            os.close(self._opened())
        except OSError as error:
            way_out = f"; make the directory {file.parent}" if isinstance(error, FileNotFoundError) else ""
            raise ConfigError(f"audit.file: {file} cannot be written: {error.strerror}{way_out}") from error

    def _opened(self) -> int:
        flags = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self._file, flags, _MODE)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ConfigError(f"audit.file: expected a file, got {self._file}, which is something else")
        return descriptor

    def append(self, line: Mapping[str, object]) -> None:
        """Append a line; it is on the disk when this returns. Opened anew each time: it may be moved away.

        Args:
            line: What it says.

        Raises:
            OSError: It is not there, nor any part of it.
            ConfigError: The same: there is something else than a file now.
        """
        content = json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
        descriptor = self._opened()
        try:
            _lock(descriptor)
            before = os.fstat(descriptor).st_size
            try:
                _write_whole(descriptor, content)
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, before)  # no half line for the next one to be joined to
                raise
        finally:
            os.close(descriptor)

    def begin(self, action: str, on: str, by: By) -> str:
        """Tell that an action is about to be done.

        Args:
            action: Which.
            on: What it is done to.
            by: Who asked for it.

        Returns:
            What ``end`` is told of it.

        Raises:
            Unavailable: It cannot be told; it must not be done.
        """
        name = secrets.token_hex(6)
        try:
            self.append(_line(name, "asked", action, on, by))
        except (OSError, ConfigError) as error:
            why = getattr(error, "strerror", None) or error
            said = f"the audit log {self._file} cannot be written: {why}; {_WAY_OUT}"
            told = f"the audit log cannot be written; {_WAY_OUT}"
            raise Unavailable(said, told=told) from error
        return name

    def end(self, name: str, action: str, on: str, by: By, result: str = "done") -> None:
        """Tell how an action ended. Where that fails, the log of the process says so: it has been done.

        Args:
            name: What ``begin`` returned; "" for what nobody asked for.
            action: As for ``begin``.
            on: As for ``begin``.
            by: As for ``begin``.
            result: ``done``, or why not.
        """
        try:
            self.append(_line(name, "ended", action, on, by) | {"result": result[:_LONGEST]})
        except (OSError, ConfigError) as error:
            _log.error(
                "the audit log does not say how an action ended: %s",
                getattr(error, "strerror", None) or error,
                extra={"action": action, "on": on, "result": result, "id": name},
            )

    def note(self, action: str, on: str, result: str = "done") -> None:
        """Tell of what the server did of its own accord, as a file had changed; as ``end``."""
        self.end("", action, on, {"process": "server"}, result)

    @contextmanager
    def telling(self, action: str, on: str, by: By) -> Iterator[Ending]:
        """Tell of an action before and after it.

        Args:
            action: Which.
            on: What it is done to.
            by: Who asked for it.

        Yields:
            How it ends; an error that goes through here is told anyway.

        Raises:
            Unavailable: It cannot be told, and is not done.
        """
        name, ending = self.begin(action, on, by), Ending()
        try:
            yield ending
        except BaseException as error:
            ending.result = result_of(error)
            raise
        finally:
            self.end(name, action, on, by, ending.result)


def result_of(error: BaseException) -> str:
    """How an action ended that did not go well."""
    said = error.message if isinstance(error, HeadraceError) else str(error)
    return f"failed: {type(error).__name__}" + (f": {said}" if said else "")


def _line(name: str, stage: str, action: str, on: str, by: By) -> dict[str, object]:
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    told = {"time": now, "id": name} if name else {"time": now}
    return {**told, "stage": stage, "action": action, "on": on[:_LONGEST], "by": dict(by), "pid": os.getpid()}


def _lock(descriptor: int) -> None:
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def _write_whole(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
