"""A private copy of a version's files, for runtimes that read them again after they were checked.

Where versions must be signed, whoever may write to the model directory is not trusted. Between the check of a
file and its reading by a runtime's own library he could exchange it. So it is copied to a directory of this
process's own, the checksum is that of what was copied, and the runtime reads the copy.
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

from headrace.disk import is_abandoned, open_file
from headrace.errors import LoadError
from headrace.versions.manifest import FileRecord, Manifest

_PREFIX = "headrace-version-"
_PIECE_BYTES = 2**24


class StagedVersion:
    """A private copy; removed when it is closed, is dropped, or the process ends.

    Attributes:
        path: Its directory.
    """

    def __init__(self, directory: Path, manifest: Manifest, between: Callable[[], object]) -> None:
        """Copy the files that a manifest lists, and check them.

        Args:
            directory: The version directory.
            manifest: Its manifest, whose names are those of files below it.
            between: Called between the pieces that are read; what it raises ends the copying.

        Raises:
            LoadError: A file cannot be copied, or is not the one that is listed.
        """
        _sweep()
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise LoadError(f"no directory for a private copy can be made: {error.strerror}") from error
        self._remove = weakref.finalize(self, _removed, self.path, self._lock)
        try:
            with suppress(OSError):  # as in `is_abandoned`
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name, record in manifest.files.items():
                self._copy(directory, name, record, between)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove it."""
        self._remove()

    def _copy(self, directory: Path, name: str, record: FileRecord, between: Callable[[], object]) -> None:
        made, target, left = hashlib.sha256(), self.path / name, record.size_bytes
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open_file(directory / name) as opened, target.open("xb", buffering=0) as copied:
                piece = memoryview(bytearray(min(record.size_bytes + 1, _PIECE_BYTES)))
                while left >= 0 and (size := opened.readinto(piece)):  # no more than is listed
                    made.update(piece[:size])
                    done, left = 0, left - size
                    while done < size:
                        done += copied.write(piece[done:size]) or 0
                    between()
        except OSError as error:
            raise LoadError(f"{name} cannot be copied to be loaded: {error.strerror or error}") from error
        if left or made.hexdigest() != record.sha256:
            raise LoadError(f"corrupt: {name} was changed while it was loaded; publish the version again")


def _removed(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _sweep() -> None:
    """Remove what processes of this user that were killed have left."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if (
                entry.name.startswith(_PREFIX)
                and entry.is_dir(follow_symlinks=False)
                and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                and is_abandoned(Path(entry.path))
            ):
                shutil.rmtree(entry.path, ignore_errors=True)
