"""Names on disk: TensorFlow Serving's ``DIR/NAME/NUMBER/…``, and headrace's own files in it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from headrace.config import LARGEST_VERSION

CONTROL_FILE = "headrace-control.json"
"""Control record, beside a model's versions."""

CONTROL_LOCK = ".headrace-control.lock"
"""Empty lock file beside a model's versions, for changes of the control record; it is never removed."""

PIN_FILE = "headrace.pin"
"""File beside a model's versions in which earlier builds store the pin, as a version number."""

MANIFEST_FILE = "headrace-manifest.json"
"""Manifest in a version directory: the list of its files."""

SIGNATURE_FILE = "headrace-signature.json"
"""Signatures of the manifest, beside it."""

_MOST_DIGITS = 255  # the longest file name; Python parses at most 4,300 digits


def version_number(name: str) -> int | None:
    """Parse a directory's name as a version, or return None. ``007`` is 7, as in TensorFlow Serving."""
    if not (name.isascii() and name.isdigit() and len(name) <= _MOST_DIGITS):
        return None
    number = int(name)
    return number if number <= LARGEST_VERSION else None


def version_directories(model_directory: Path) -> dict[int, Path]:
    """Return a model's versions with their directories, ascending.

    Symbolic links are followed, wherever they lead. Of several names for one number, such as ``7`` and
    ``007``, the shortest is used.

    Raises:
        OSError: The directory cannot be listed.
    """
    with os.scandir(model_directory) as entries:
        return {number: model_directory / name for number, name in version_names(entries)}


def version_names(entries: Iterable[os.DirEntry[str]]) -> tuple[tuple[int, str], ...]:
    """Return the versions among directory entries, with their names, ascending; see ``version_directories``.

    Raises:
        OSError: An entry cannot be inspected.
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
    """Return whether an entry is a directory or a link to one; circular links are not."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise


def holds_versions(directory: Path) -> bool:
    """Return whether a directory contains versions; False if it cannot be listed (the next reader fails)."""
    try:
        return bool(version_directories(directory))
    except OSError:
        return False


def model_directories(directory: Path) -> list[str]:
    """Return the sorted names of the subdirectories that contain versions, except for versions themselves."""
    try:
        names = sorted(name for name in os.listdir(directory) if name[0] != ".")
    except OSError:
        return []
    return [name for name in names if version_number(name) is None and holds_versions(directory / name)]
