"""Fingerprints: one digest of all files and settings that determine vectors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from headrace.base.errors import ConfigError
from headrace.base.files import open_file


def fingerprint(kind: str, settings: Mapping[str, object], files: Iterable[Path]) -> str:
    """Return a digest of everything that determines vectors.

    The digest depends on the order of files, not on their location or names.

    Args:
        kind: Kind of embedder.
        settings: JSON-compatible settings that change vectors.
        files: Files that the embedder reads.

    Returns:
        64 hexadecimal digits.

    Raises:
        ConfigError: A file cannot be read.
    """
    told = {"kind": kind, "settings": settings, "files": [_digest(file) for file in files]}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _digest(file: Path) -> str:
    try:
        with open_file(file) as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
