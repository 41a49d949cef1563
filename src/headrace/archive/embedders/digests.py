"""Fingerprints: one digest of all files and settings that vectors depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from headrace.disk import open_file
from headrace.errors import ConfigError


def fingerprint(kind: str, settings: Mapping[str, object], files: Iterable[Path]) -> str:
    """Digest what vectors depend on.

    Where files lie and what they are called does not count, their order does.

    Args:
        kind: The kind of embedder.
        settings: Those settings that change vectors; what JSON can hold.
        files: What it reads.

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
