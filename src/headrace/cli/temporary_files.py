"""Temporary directories of models, which the next server removes if a process was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from headrace.base.errors import ConfigError

_PREFIX = "headrace-serve-"


def draft_directory(undo: ExitStack) -> Path:
    """Make a temporary directory, and remove those of processes that no longer run.

    It is locked until this process ends, in whatever way. systemd-tmpfiles, which removes old files, skips
    directories that are locked.

    Args:
        undo: Gets the calls that remove the directory.

    Raises:
        ConfigError: No temporary directory can be made.
    """
    try:
        _sweep(Path(tempfile.gettempdir()))
        unlocked = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
        undo.callback(shutil.rmtree, unlocked, ignore_errors=True)
        descriptor = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY)
        undo.callback(os.close, descriptor)
        with suppress(OSError):  # a file system without locks: nobody sweeps there
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft = unlocked.rename(unlocked.with_name(unlocked.name.removeprefix(".")))
        undo.callback(shutil.rmtree, draft, ignore_errors=True)
    except OSError as error:
        raise ConfigError(
            f"temporary files: {error.strerror}; set TMPDIR to a directory that can be written to"
        ) from error
    return draft


def _sweep(folder: Path) -> None:
    """Remove the directories of this user whose lock nobody holds."""
    for one in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it is locked, another user's, or gone
            if one.lstat().st_uid != os.getuid():
                continue
            descriptor = os.open(one, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(one, ignore_errors=True)
            finally:
                os.close(descriptor)
