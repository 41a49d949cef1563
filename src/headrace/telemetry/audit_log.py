"""The audit log: administrative actions with actor, time and result, as synced lines of JSON.

Each action is logged twice: before it is performed, and with its result. If the first line cannot be
written, the action is not performed. Actions of the server itself are never refused, and some have one line
only (``note``).
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from headrace.base.errors import ConfigError, HeadraceError, Unavailable

_log = logging.getLogger(__name__)

_MODE = 0o640
_LOCK_SECONDS = 5.0
_PAUSE_SECONDS = 0.01
_LONGEST = 500
_REFUSED = "the action was refused: "
_WAY_OUT = "free disk space, or make the file writable"
_LOCKED = "another process holds its lock"

By = Mapping[str, str | int]
"""The actor: a caller's name and address, a user of this machine, or the server's process."""


@dataclass
class Ending:
    """The result of an action.

    Attributes:
        result: ``done``, or the reason for the failure.
    """

    result: str = "done"


class AuditLog:
    """An append-only file of whole lines, shared by several processes. Thread-safe."""

    def __init__(self, file: Path) -> None:
        """Check that the file can be written.

        Args:
            file: The log file. It is created if missing; its directory must exist.

        Raises:
            ConfigError: The file cannot be opened, or is not an ordinary file.
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
            raise ConfigError(f"audit.file: expected a file, got {self._file}, which is not an ordinary file")
        return descriptor

    def append(self, line: Mapping[str, object]) -> None:
        """Append a line and sync it to disk. The file is reopened each time, so it may be rotated.

        Args:
            line: The fields of the line.

        Raises:
            OSError: The line could not be written. No part of it remains in the file, unless the file is
                append-only (``chattr +a``). The next line then begins after that part, on a line of its own.
            ConfigError: The path no longer names an ordinary file; nothing was written.
        """
        content = json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
        descriptor = self._opened()
        try:
            _lock(descriptor)
            before = os.fstat(descriptor).st_size
            is_torn = before and os.pread(descriptor, 1, before - 1) != b"\n"
            try:
                _write_whole(descriptor, b"\n" + content if is_torn else content)
                os.fsync(descriptor)
            except OSError:
                with suppress(OSError):  # an append-only file keeps the partial line
                    os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)

    def begin(self, action: str, on: str, by: By, *, is_refused: bool = True) -> str:
        """Log that an action is about to be performed.

        Args:
            action: Name of the action.
            on: Object of the action.
            by: The actor.
            is_refused: Whether an action that cannot be logged is refused; the error says so.

        Returns:
            The action's id, to be passed to ``end``.

        Raises:
            Unavailable: The log cannot be written; if ``is_refused``, the action must not be performed.
        """
        name = secrets.token_hex(6)
        try:
            self.append(_line(name, "asked", action, on, by))
        except (OSError, ConfigError) as error:
            before = _REFUSED if is_refused else ""
            said = f"{before}the audit log {self._file} cannot be written: {_why(error)}"
            told = f"{before}the audit log cannot be written"
            way_out = "" if isinstance(error, BlockingIOError) else f"; {_WAY_OUT}"
            raise Unavailable(said + way_out, told=told + way_out) from error
        return name

    def end(self, name: str, action: str, on: str, by: By, result: str = "done") -> None:
        """Record how an action ended. A failure to do so is only logged: the action has already ended.

        Args:
            name: The id that ``begin`` returned; "" for an action without a ``begin``.
            action: As for ``begin``.
            on: As for ``begin``.
            by: As for ``begin``.
            result: ``done``, or the reason for the failure.
        """
        try:
            self.append(_line(name, "ended", action, on, by) | {"result": result[:_LONGEST]})
        except (OSError, ConfigError) as error:
            _log.error(
                "could not write the end of an action to the audit log: %s",
                _why(error),
                extra={"action": action, "on": on, "result": result, "id": name},
            )

    def note(self, action: str, on: str, result: str = "done") -> None:
        """Log an action of the server itself, such as a reload after a file changed. See ``end``."""
        self.end("", action, on, {"process": "server", "uid": os.getuid()}, result)

    @contextmanager
    def telling(self, action: str, on: str, by: By) -> Iterator[Ending]:
        """Log an action before and after it.

        Args:
            action: Name of the action.
            on: Object of the action.
            by: The actor.

        Yields:
            The result to log, set automatically by an exception.

        Raises:
            Unavailable: The log cannot be written; the action is not performed.
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
    """Return the logged result of an action that raised an exception."""
    said = error.message if isinstance(error, HeadraceError) else str(error)
    return f"failed: {type(error).__name__}" + (f": {said}" if said else "")


def _why(error: OSError | ConfigError) -> object:
    if isinstance(error, BlockingIOError):
        return _LOCKED
    return getattr(error, "strerror", None) or error


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
