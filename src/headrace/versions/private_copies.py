"""Private copies of a version's files, for runtimes that read files again after they were checked.

Where versions must be signed, users who may write to the model directory are not trusted. Such a user could
replace a file after headrace has checked it and before a runtime's own library reads it. So headrace copies
each file to a private directory and checks the copy, and the runtime reads the copy.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from headrace.base.errors import LoadError
from headrace.base.files import is_abandoned, open_file
from headrace.versions.manifest import FileRecord, Manifest

_PREFIX = "headrace-version-"
_PIECE_BYTES = 2**24


class StagedVersion:
    """A private copy of a version; removed when it is closed or collected, or when the process ends.

    Attributes:
        path: Its directory.
    """

    def __init__(self, directory: Path, manifest: Manifest, between: Callable[[], object]) -> None:
        """Copy the files that a manifest lists, and check them.

        Args:
            directory: The version directory.
            manifest: Its manifest, whose names must be paths below the directory.
            between: Called between the pieces that are read; an exception from it ends the copying.

        Raises:
            LoadError: A file cannot be copied, or differs from the manifest.
        """
        _sweep()
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise LoadError(f"cannot create a directory for a private copy: {error.strerror}") from error
        self._remove = weakref.finalize(self, _removed, self.path, self._lock)
        try:
            with suppress(OSError):  # the file system has no locks
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name, record in manifest.files.items():
                self._copy(directory, name, record, between)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the copy."""
        self._remove()

    def _copy(self, directory: Path, name: str, record: FileRecord, between: Callable[[], object]) -> None:
        made, target, left = hashlib.sha256(), self.path / name, record.size_bytes
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open_file(directory / name) as opened, target.open("xb", buffering=0) as copied:
                piece = memoryview(bytearray(min(record.size_bytes + 1, _PIECE_BYTES)))
                while left >= 0 and (size := opened.readinto(piece)):  # stop once it exceeds the listed size
                    made.update(piece[:size])
                    done, left = 0, left - size
                    while done < size:
                        done += copied.write(piece[done:size]) or 0
                    between()
        except OSError as error:
            raise LoadError(f"{name} cannot be copied for loading: {error.strerror or error}") from error
        if left or made.hexdigest() != record.sha256:
            raise LoadError(f"corrupt: {name} was changed while it was loaded; publish the version again")


def _removed(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _sweep() -> None:
    """Remove the copies that killed processes of this user have left."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if (
                entry.name.startswith(_PREFIX)
                and entry.is_dir(follow_symlinks=False)
                and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                and is_abandoned(Path(entry.path))
            ):
                shutil.rmtree(entry.path, ignore_errors=True)
