"""List the versions of a model on disk, with details for people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import LoadError
from headrace.base.files import visible_files
from headrace.versions.control_record import ControlRecord
from headrace.versions.layout import version_directories
from headrace.versions.manifest import read_manifest
from headrace.versions.pins_and_holds import version_keys


@dataclass(frozen=True, slots=True)
class VersionOnDisk:
    """One version directory.

    Attributes:
        version: Its number.
        path: The directory.
        pinned: Whether the model is pinned to it.
        holders: The names of its holders, who keep it from being deleted.
        created: Time of publication, from its manifest; "" without one.
        size_bytes: The size of its files.
        problem: The error in its manifest, or "".
    """

    version: int
    path: Path
    pinned: bool
    holders: tuple[str, ...]
    created: str
    size_bytes: int
    problem: str = ""


def list_versions(model_directory: Path, record: ControlRecord) -> list[VersionOnDisk]:
    """List the versions that a model has on disk, newest first.

    Args:
        model_directory: The directory of the model's versions.
        record: The model's control record.

    Raises:
        OSError: The directory cannot be listed.
    """
    found = version_directories(model_directory)
    return [_on_disk(number, found[number], record) for number in reversed(found)]


def _on_disk(number: int, path: Path, record: ControlRecord) -> VersionOnDisk:
    created, problem, names = "", "", tuple[str, ...]()
    try:
        manifest = read_manifest(path)
        created = manifest.created if manifest is not None else ""
        names = version_keys(number, path)
    except LoadError as error:
        problem = error.message
    holders = [one for name in names if name in record.versions for one in record.versions[name].holds]
    return VersionOnDisk(
        number,
        path,
        record.pin is not None and record.pin.number == number and record.pin.version in names,
        tuple(sorted({*holders})),
        created,
        sum(file.stat().st_size for file in visible_files(path)),
        problem,
    )
