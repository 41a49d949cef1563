"""Watch the key file for changes; if it becomes invalid, the previous keys stay in force."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Generic, TypeVar

from headrace.access.key_file import Keys, as_keys, read_keys
from headrace.base.errors import ConfigError
from headrace.base.files import FileState, file_state

_log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Interval in seconds between checks of the file."""


def is_to_be_read(taken: FileState | None, before: FileState | None, now: FileState) -> bool:
    """Return whether to read a file.

    A file that was renamed into place is complete. One that is written in place may be incomplete, and still
    be valid TOML. So it is read once it has not changed between two checks.

    Args:
        taken: State of the file when it was last read.
        before: State at the previous check.
        now: Current state.
    """
    if now == taken:
        return False
    return taken is None or now.inode != taken.inode or now == before


Found = TypeVar("Found", bound=Sized)


class Watched(Generic[Found]):
    """A watched file of keys of any kind. Used by one thread at a time.

    Attributes:
        file: Path of the file.
        problem: Current problem with the file; "" if there is none.
        keys: Keys in force, from the last valid file.
    """

    def __init__(self, file: Path, read: Callable[[Path, Found | None], Found]) -> None:
        """Read the file.

        Args:
            file: Path of the file.
            read: Function that reads it; also receives the keys in force, None at first.

        Raises:
            ConfigError: It cannot be read, or an entry is wrong.
        """
        self.file = file
        self._taken = file_state(file)
        self._before = self._taken
        self.problem = ""
        self._read = read
        self.keys: Found = read(file, None)

    def look(self) -> bool:
        """Read the file again if it has changed; may block on disk I/O.

        Returns:
            Whether there are new keys.
        """
        now = file_state(self.file)
        if now is None:
            self._taken = None  # so that the same file is read again when it is back
            return self._fails(f"{self.file} does not exist, or cannot be accessed")
        before, self._before = self._before, now
        if not is_to_be_read(self._taken, before, now):
            return False
        taken, self._taken = self._taken, now
        try:
            keys = self._read(self.file, self.keys)
        except ConfigError as error:
            if isinstance(error.__cause__, OSError):  # such as no free descriptor: retry
                self._taken = taken
            return self._fails(error.message)
        self.problem, self.keys = "", keys
        _log.info("the keys were reloaded", extra={"file": str(self.file), "keys": len(keys)})
        return True

    def _fails(self, problem: str) -> bool:
        if problem != self.problem:
            self.problem = problem
            _log.error("the keys cannot be reloaded; the previous keys stay valid: %s", problem)
        return False


class WatchedKeys(Watched[Keys]):
    """The watched key file."""

    def __init__(self, file: Path) -> None:
        """Read the file; as ``Watched``."""
        super().__init__(file, lambda file, before: as_keys(read_keys(file), before))
