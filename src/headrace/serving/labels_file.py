"""The names of a version's classes, read from a file in its directory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from msgspec import structs

from headrace.base.errors import NotLoadable
from headrace.base.files import read_file
from headrace.config import ModelConfig

_LARGEST_FILE_BYTES = 2**24


def with_labels(config: ModelConfig, path: Path, checksums: Mapping[str, str] | None) -> ModelConfig:
    """Return settings with the labels of ``signature.labels_file`` in them.

    A byte order mark and trailing whitespace are not part of the labels.

    Args:
        config: The model's settings.
        path: The version directory.
        checksums: SHA-256 of the version's files, by name, from its manifest; None without one.

    Raises:
        NotLoadable: The file is missing, is not UTF-8, or does not match the manifest.
    """
    name = config.signature.labels_file
    if not name:
        return config
    key = f"signature.labels_file: {name}"
    try:
        content = read_file(path / name, _LARGEST_FILE_BYTES)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise NotLoadable(f"{key} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise NotLoadable(f"{key} is not UTF-8: {error.reason} at byte {error.start}") from error
    if checksums is not None and checksums.get(name) != hashlib.sha256(content).hexdigest():
        raise NotLoadable(f"{key} does not match the version's manifest; publish the version again")
    labels = tuple(line.rstrip() for line in text.removesuffix("\n").split("\n"))
    return structs.replace(config, signature=structs.replace(config.signature, labels=labels, labels_file=""))
