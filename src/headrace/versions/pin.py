"""Rolling back: a file beside a model's versions names the one to go back to, and the Source follows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.disk import read_text, sync_directory, write_file
from headrace.errors import ConfigError, LoadError, NotFound
from headrace.versions.layout import PIN_FILE, version_directories, version_number
from headrace.versions.manifest import read_manifest

_MOST_PIN_BYTES = 1024


@dataclass(frozen=True, slots=True)
class VersionOnDisk:
    """One version directory.

    Attributes:
        version: Its number.
        path: Where it lies.
        pinned: Whether the model is pinned to it.
        created: When it was published, as its manifest says; "" without one.
        size_bytes: The size of its files.
        problem: What is wrong with its manifest, or "".
    """

    version: int
    path: Path
    pinned: bool
    created: str
    size_bytes: int
    problem: str = ""


def pin(model_directory: Path, version: int) -> None:
    """Serve no version above this one until ``unpin``.

    Args:
        model_directory: Where the model's versions are.
        version: The version to go back to.

    Raises:
        NotFound: There is no such version.
    """
    known = version_directories(model_directory)
    if version not in known:
        have = ", ".join(map(str, known)) or "none"
        raise NotFound(f"{model_directory.name} has no version {version} to go back to; it has: {have}")
    write_file(model_directory / PIN_FILE, b"%d\n" % version)


def unpin(model_directory: Path) -> bool:
    """Follow the version policy again.

    Returns:
        Whether there was a pin.
    """
    try:
        (model_directory / PIN_FILE).unlink()
    except FileNotFoundError:
        return False
    sync_directory(model_directory)
    return True


def read_pin(model_directory: Path) -> int | None:
    """Read which version a model is pinned to; None if to none.

    Raises:
        ConfigError: The file cannot be read, or holds something else than a number.
    """
    try:
        text = read_text(model_directory / PIN_FILE, _MOST_PIN_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{PIN_FILE} cannot be read: {error.strerror}") from error
    number = version_number(text.strip())
    if number is None:
        raise ConfigError(f"{PIN_FILE}: expected the number of a version, got {text[:40]!r}")
    return number


def list_versions(model_directory: Path) -> list[VersionOnDisk]:
    """List the versions that a model has on disk, newest first.

    Raises:
        ConfigError: The pin cannot be read.
        OSError: The directory cannot be listed.
    """
    pinned = read_pin(model_directory)
    found = version_directories(model_directory)
    return [_on_disk(number, found[number], number == pinned) for number in reversed(found)]


def _on_disk(number: int, path: Path, pinned: bool) -> VersionOnDisk:
    created, problem = "", ""
    try:
        manifest = read_manifest(path)
        created = manifest.created if manifest is not None else ""
    except LoadError as error:
        problem = error.message
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return VersionOnDisk(number, path, pinned, created, size, problem)
