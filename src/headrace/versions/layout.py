"""The names of things on disk: TensorFlow Serving's ``DIR/NAME/NUMBER/…``, and headrace's own files in it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from headrace.config import LARGEST_VERSION

CONTROL_FILE = "headrace-control.json"
"""Beside a model's versions: what was decided about them."""

CONTROL_LOCK = ".headrace-control.lock"
"""Beside a model's versions: locked by whoever changes what was decided; it is empty, and stays."""

PIN_FILE = "headrace.pin"
"""Beside a model's versions, from earlier builds: the number of the version that it is pinned to."""

MANIFEST_FILE = "headrace-manifest.json"
"""In a version directory: what it consists of."""

SIGNATURE_FILE = "headrace-signature.json"
"""Beside the manifest: who vouches for it."""

_MOST_DIGITS = 255  # as long as a name can be; Python reads no number of more than 4,300


def version_number(name: str) -> int | None:
    """Read a directory's name as a version; None if it is none. ``007`` is 7, as in TensorFlow Serving."""
    if not (name.isascii() and name.isdigit() and len(name) <= _MOST_DIGITS):
        return None
    number = int(name)
    return number if number <= LARGEST_VERSION else None


def version_directories(model_directory: Path) -> dict[int, Path]:
    """List a model's versions, ascending.

    Symbolic links are followed, wherever they lead. Where two names are one number, ``7`` and ``007``, the
    one without zeros counts.

    Raises:
        OSError: The directory cannot be listed.
    """
    with os.scandir(model_directory) as entries:
        return {number: model_directory / name for number, name in version_names(entries)}


def version_names(entries: Iterable[os.DirEntry[str]]) -> tuple[tuple[int, str], ...]:
    """The versions among a directory's entries, with their names, ascending; see ``version_directories``.

    Raises:
        OSError: It cannot be told whether one is a directory.
    """
    found: dict[int, str] = {}
    for entry in entries:
        number = version_number(entry.name)
        if (
            number is not None
            and _is_directory(entry)
            and len(entry.name) <= len(found.get(number, entry.name))
        ):
            found[number] = entry.name
    return tuple(sorted(found.items()))


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a directory, or a link to one; what leads in a circle leads nowhere."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise


def holds_versions(directory: Path) -> bool:
    """Whether a directory has versions in it; not if it cannot be listed: whoever reads it next says why."""
    try:
        return bool(version_directories(directory))
    except OSError:
        return False


def model_directories(directory: Path) -> list[str]:
    """The names, in order, of the directories in it that hold versions; numbers are versions themselves."""
    try:
        names = sorted(name for name in os.listdir(directory) if name[0] != ".")
    except OSError:
        return []
    return [name for name in names if version_number(name) is None and holds_versions(directory / name)]
