"""The file of keys as it changes: what is wrong with it keeps the old keys in force."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Generic, TypeVar

from headrace.access.key_file import Keys, as_keys, read_keys
from headrace.disk import FileState, file_state
from headrace.errors import ConfigError

_log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often it is looked at."""


def is_to_be_read(taken: FileState | None, before: FileState | None, now: FileState) -> bool:
    """Whether to read a file.

    One that was renamed into place is whole. One that is written in place may be half there, and half a file
    may be right TOML: it is read when it has been left alone from one look to the next.

    Args:
        taken: What it was like when it was read last.
        before: What it was like at the look before.
        now: What it is like.
    """
    if now == taken:
        return False
    return taken is None or now.inode != taken.inode or now == before


Found = TypeVar("Found", bound=Sized)


class Watched(Generic[Found]):
    """A file of keys of any kind. One thread at a time.

    Attributes:
        file: Where it is.
        problem: What is wrong with it now; "" if nothing is.
        keys: Those in force: of the last file that was right.
    """

    def __init__(self, file: Path, read: Callable[[Path, Found | None], Found]) -> None:
        """Read it.

        Args:
            file: The file.
            read: Reads it; is given the keys in force, too.

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
        """Read the file again if it has changed; takes as long as the disk does.

        Returns:
            Whether there are new keys.
        """
        now = file_state(self.file)
        if now is None:
            self._taken = None  # also the same one, when it is back
            return self._fails(f"{self.file} is not there")
        before, self._before = self._before, now
        if not is_to_be_read(self._taken, before, now):
            return False
        taken, self._taken = self._taken, now
        try:
            keys = self._read(self.file, self.keys)
        except ConfigError as error:
            if isinstance(error.__cause__, OSError):  # as when no descriptor is left: it is tried again
                self._taken = taken
            return self._fails(error.message)
        self.problem, self.keys = "", keys
        _log.info("the keys were read again", extra={"file": str(self.file), "keys": len(keys)})
        return True

    def _fails(self, problem: str) -> bool:
        if problem != self.problem:
            self.problem = problem
            _log.error("the keys that were read before stay in force: %s", problem)
        return False


class WatchedKeys(Watched[Keys]):
    """The file of keys."""

    def __init__(self, file: Path) -> None:
        """Read it; as ``Watched``."""
        super().__init__(file, lambda file, before: as_keys(read_keys(file), before))
