"""The names of things on disk: TensorFlow Serving's ``DIR/NAME/NUMBER/…``, and headrace's own files in it."""

from __future__ import annotations

import os
from pathlib import Path

PIN_FILE = "headrace.pin"
"""Beside a model's versions: the number of the version that the operator went back to."""

MANIFEST_FILE = "headrace-manifest.json"
"""In a version directory: what it consists of."""

_LARGEST_VERSION = 2**63 - 1  # what the protocols can say


def version_number(name: str) -> int | None:
    """Read a directory's name as a version; None if it is none. ``007`` is 7, as in TensorFlow Serving."""
    if not (name.isascii() and name.isdigit()):
        return None
    number = int(name)
    return number if number <= _LARGEST_VERSION else None


def version_directories(model_directory: Path) -> dict[int, Path]:
    """List a model's versions, ascending.

    Symbolic links are followed, wherever they lead. Where two names are one number, ``7`` and ``007``, the
    one without zeros counts.

    Raises:
        OSError: The directory cannot be listed.
    """
    found: dict[int, str] = {}
    with os.scandir(model_directory) as entries:
        for entry in entries:
            number = version_number(entry.name)
            if (
                number is not None
                and entry.is_dir()
                and len(entry.name) <= len(found.get(number, entry.name))
            ):
                found[number] = entry.name
    return {number: model_directory / found[number] for number in sorted(found)}


def sync_directory(directory: Path) -> None:
    """Make the names in a directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
