"""Dropping a space version that no model needs any more: its vectors, its past, its dead letters."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.archive.archive import Archive
from headrace.archive.catalog import partition, without, without_rest
from headrace.archive.past import past_partition
from headrace.errors import ConfigError, FailedPrecondition, LoadError, listed
from headrace.versions.layout import MANIFEST_FILE
from headrace.versions.manifest import read_manifest, space_versions

_DEPTH = 3  # DIR/NAME/NUMBER, and one more
_NAMED = 10
_LETTERS = 1000


def check_unneeded(space: str, number: int, directories: Sequence[Path]) -> int:
    """Refuse to drop a space version that versions of models were trained on.

    Args:
        space: Which space.
        number: Which version of it.
        directories: Where models are: all versions below them count, however they are kept.

    Returns:
        How many versions of models were looked at.

    Raises:
        FailedPrecondition: Some need it, or cannot be read; they are named.
        ConfigError: A directory is not there, or has no models in it but something else.
    """
    looked_at, needing, unclear = 0, list[str](), list[str]()
    for directory in directories:
        if not directory.is_dir():
            raise ConfigError(f"--models: {directory} is no directory")
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
                f"--models: expected models that headrace has published, and found none below {directory}; "
                "name the directory that they are served from, or an empty one if there are none"
            )
    if needing:
        raise FailedPrecondition(
            f"version {number} of the space {space!r} is needed: {listed(needing, _NAMED)} "
            f"{'was' if len(needing) == 1 else 'were'} trained on it; drop it when these are gone"
        )
    if unclear:
        raise FailedPrecondition(
            f"it is unknown whether version {number} of the space {space!r} is needed: "
            f"{listed(unclear, _NAMED)}; mend or remove what cannot be read"
        )
    return looked_at


def drop_version(archive: Archive, space: str, number: int) -> None:
    """Remove a space version with everything that was kept of it.

    From then on nobody finds it; what it took is given back after that. Whoever is killed in between calls it
    again. Messages that ask for it are acknowledged by fillers.

    Args:
        archive: Whose.
        space: Which space.
        number: Which version of it.

    Raises:
        NotFound: There is no such space, or version.
        FailedPrecondition: It is the default.
        Unavailable: The store does not answer; ask again.
    """
    archive.record(space)  # which there is
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
    """The directories with a manifest, at most so deep below one; what is being published, too."""
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
