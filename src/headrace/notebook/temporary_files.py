"""Temporary directories of servers in a process, which the next server removes if the process was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from headrace.base.errors import ConfigError

_PREFIX, _LOCK = "headrace-serve-", ".lock"


def draft_directory(undo: ExitStack) -> Path:
    """Make a temporary directory, and remove those of processes that no longer run.

    Its lock belongs to this process, and ends with it in whatever way that ends.

    Args:
        undo: Gets the calls that remove the directory.

    Raises:
        ConfigError: No temporary directory can be made.
    """
    try:
        _sweep(Path(tempfile.gettempdir()))
        draft = Path(tempfile.mkdtemp(prefix=_PREFIX))
        undo.callback(shutil.rmtree, draft, ignore_errors=True)
        with suppress(OSError):  # a file system without locks: nobody sweeps there
            undo.callback(os.close, _lock(draft))
    except OSError as error:
        raise ConfigError(
            f"temporary files: {error.strerror}; set TMPDIR to a directory that can be written to"
        ) from error
    return draft


def _lock(draft: Path) -> int:
    """Lock a new directory; it gets the name that ``_sweep`` looks for only when it is locked."""
    unlocked = draft / f"{_LOCK}.new"
    file = os.open(unlocked, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unlocked.rename(draft / _LOCK)
    except BaseException:
        os.close(file)
        raise
    return file


def _sweep(folder: Path) -> None:
    """Remove the directories of this user whose lock nobody holds."""
    for one in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it is locked, has no lock yet, or is another user's
            if one.lstat().st_uid != os.getuid():
                continue
            file = os.open(one / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(one, ignore_errors=True)
            finally:
                os.close(file)
