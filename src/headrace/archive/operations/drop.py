"""Dropping a space version that no model needs: its vectors, its past, its dead letters."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.archive.history.history import past_partition
from headrace.archive.lookup.archive import Archive
from headrace.archive.model.catalog import partition, without, without_rest
from headrace.base.errors import ConfigError, FailedPrecondition, LoadError, listed
from headrace.versions.layout import MANIFEST_FILE
from headrace.versions.manifest import read_manifest, space_versions

_DEPTH = 3  # DIR/NAME/NUMBER, and one level more
_NAMED = 10
_LETTERS = 1000


def check_unneeded(space: str, number: int, directories: Sequence[Path]) -> int:
    """Refuse to drop a space version that versions of models were trained on.

    Args:
        space: Name of the space.
        number: Version number.
        directories: Directories of models; all versions below them count.

    Returns:
        Number of model versions checked.

    Raises:
        FailedPrecondition: Some model versions need it, or cannot be read; the error names them.
        ConfigError: A directory does not exist, or is not empty and contains no models.
    """
    looked_at, needing, unclear = 0, list[str](), list[str]()
    for directory in directories:
        if not directory.is_dir():
            raise ConfigError(f"--models: {directory} is not a directory")
        before = looked_at
        for version in _with_manifest(directory, _DEPTH):
            looked_at += 1
            try:
                if space_versions(read_manifest(version)).get(space) == number:
                    needing.append(str(version))
            except LoadError as error:
                unclear.append(f"{version}: {error.message}")
        if looked_at == before and any(directory.iterdir()):
            raise ConfigError(
                f"--models: expected models published by headrace, found none below {directory}; name the "
                "directory that they are served from, or an empty directory if there are none"
            )
    if needing:
        raise FailedPrecondition(
            f"version {number} of the space {space!r} is needed: {listed(needing, _NAMED)} "
            f"{'was' if len(needing) == 1 else 'were'} trained on it; remove these first"
        )
    if unclear:
        raise FailedPrecondition(
            f"cannot determine whether version {number} of the space {space!r} is needed: "
            f"{listed(unclear, _NAMED)}; repair or remove the models that cannot be read"
        )
    return looked_at


def drop_version(archive: Archive, space: str, number: int) -> None:
    """Remove a space version with everything kept of it.

    The version is first removed from the catalog, so that lookups no longer find it, and then from the store.
    After a crash, call it again. Fillers acknowledge messages that ask for the version.

    Args:
        archive: The archive.
        space: Name of the space.
        number: Version number.

    Raises:
        NotFound: There is no such space or version.
        FailedPrecondition: It is the default.
        Unavailable: The store does not answer; try again.
    """
    archive.record(space)  # raises if there is no such space
    archive.catalog.change(space, lambda record: without(record, number))
    for where in (partition(space, number), past_partition(space, number)):
        archive.store.drop(where)
    letters = []
    for letter in archive.dead_letters.all(space):
        if letter.version == number:
            letters.append(letter)
        if len(letters) == _LETTERS:
            archive.dead_letters.remove(letters)
            letters = []
    archive.dead_letters.remove(letters)
    archive.catalog.change(space, lambda record: without_rest(record, number))


def _with_manifest(directory: Path, depth: int) -> Iterator[Path]:
    """Yield directories that have a manifest, up to ``depth`` levels down; also unfinished versions."""
    try:
        with os.scandir(directory) as entries:
            names = sorted((one.name, one.is_dir()) for one in entries)
    except OSError as error:
        raise FailedPrecondition(f"--models: {directory} cannot be read: {error.strerror}") from error
    if (MANIFEST_FILE, False) in names:
        yield directory
    elif depth:
        for name, is_directory in names:
            if is_directory:
                yield from _with_manifest(directory / name, depth - 1)
