"""The manifest of a version directory, and publishing: a version appears whole, or not at all.

``publish`` writes under a dotted name, which every Source ignores, then syncs and renames. The manifest lists
every file with its size and checksum, so that a damaged copy is not loaded. A directory without a manifest
can be loaded, too.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec

from headrace.base.errors import Conflict, FailedPrecondition, LoadError, NotLoadable
from headrace.base.files import (
    draft_directory,
    is_abandoned,
    is_visible,
    open_file,
    read_file,
    sync_directory,
    sync_tree,
)
from headrace.base.format_numbers import check_format
from headrace.config import LARGEST_VERSION
from headrace.sealed_memory.file_copying import NotCopied, kept_checksum
from headrace.versions.layout import MANIFEST_FILE, SIGNATURE_FILE, version_directories

FORMAT = 1
"""The manifest format that is written; newer ones are refused."""

LARGEST_MANIFEST_BYTES = 2**24
"""Size limit for reading a manifest."""

SPACES_KEY = "spaces"
"""Metadata key of the archive's space versions that the version was trained on."""

_PIECE_BYTES = 2**24
_ABOUT = frozenset({MANIFEST_FILE, SIGNATURE_FILE})

DRAFT_PREFIX = ".publishing-"
"""Prefix of the names of directories that are being written."""


class FileRecord(msgspec.Struct, frozen=True, kw_only=True, rename={"size_bytes": "bytes"}):
    """One file of a version.

    Attributes:
        size_bytes: Its size.
        sha256: Its checksum, in hexadecimal digits.
    """

    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a version, and how it was published.

    Attributes:
        format: The version of this format.
        files: Its files, by path below the version directory, with slashes.
        created: Time of creation, as ISO 8601 in UTC.
        signature: Its inputs and outputs, for people; or "".
        parent: The newest version when it was published; None if it was the first.
        metadata: Further data that its publisher stores with it.
    """

    format: int
    files: dict[str, FileRecord]
    created: str = ""
    signature: str = ""
    parent: int | None = None
    metadata: dict[str, object] = {}


Writer = Callable[[Path], object]
"""Writes a version's files into the given empty directory."""

Signer = Callable[[Path, str, int], object]
"""Signs a version directory with its manifest, for a model's name and a version number."""


def write_manifest(
    directory: Path,
    *,
    signature: str = "",
    parent: int | None = None,
    metadata: Mapping[str, object] | None = None,
) -> Manifest:
    """Write the manifest of a version directory, listing the files that it contains now.

    Args:
        directory: The version directory.
        signature: The version's inputs and outputs, for people.
        parent: The newest existing version.
        metadata: Further data to store with it; must be representable as JSON.

    Returns:
        The manifest.

    Raises:
        FailedPrecondition: It would exceed the size limit for reading.
        LoadError: A file changed while it was read.
    """
    manifest = Manifest(
        format=FORMAT,
        files={name: _record(directory, name) for name in _names(directory) if name not in _ABOUT},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        signature=signature,
        parent=parent,
        metadata=dict(metadata or {}),
    )
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    if len(text) >= LARGEST_MANIFEST_BYTES:  # no reader would accept it
        raise FailedPrecondition(
            f"{MANIFEST_FILE}: would have {len(text)} bytes, but at most {LARGEST_MANIFEST_BYTES} are read; "
            "keep fewer files, or less metadata, in it"
        )
    (directory / MANIFEST_FILE).write_bytes(text + b"\n")
    return manifest


def read_manifest(directory: Path) -> Manifest | None:
    """Read the manifest of a version directory; None if it has none.

    Raises:
        NewerFormat: It has a newer format.
        LoadError: It cannot be read, or is not a manifest.
    """
    content = manifest_content(directory)
    return None if content is None else _decoded(content)


def _decoded(content: bytes) -> Manifest:
    check_format(content, FORMAT, MANIFEST_FILE)
    try:
        return msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # a ValueError: not UTF-8
        raise LoadError(f"{MANIFEST_FILE}: not a manifest: {error}") from error


def manifest_digest(directory: Path) -> str | None:
    """Return a manifest's SHA-256 in hexadecimal digits, which identifies the version; None without one.

    Raises:
        LoadError: The manifest cannot be read.
    """
    content = manifest_content(directory)
    return None if content is None else hashlib.sha256(content).hexdigest()


def manifest_content(directory: Path) -> bytes | None:
    """Return the bytes of a version's manifest; None without one.

    Raises:
        LoadError: It cannot be read, or exceeds the size limit.
    """
    try:
        return read_file(directory / MANIFEST_FILE, LARGEST_MANIFEST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LoadError(f"{MANIFEST_FILE} cannot be read: {error.strerror}") from error


def space_versions(manifest: Manifest | None) -> dict[str, int]:
    """Return the archive's space versions that a version was trained on, by space; empty for none.

    Raises:
        NotLoadable: The manifest's entry has another type.
    """
    said = {} if manifest is None else manifest.metadata.get(SPACES_KEY, {})
    try:
        return msgspec.convert(said, dict[str, Annotated[int, msgspec.Meta(ge=1)]])
    except msgspec.ValidationError as error:
        expected = "expected versions by the names of spaces"
        raise NotLoadable(f"{MANIFEST_FILE}: metadata.{SPACES_KEY}: {expected}, got {said!r}") from error


def published(directory: Path) -> datetime | None:
    """Return the time when a version was published; None without a readable manifest that states it."""
    try:
        manifest = read_manifest(directory)
        moment = datetime.fromisoformat(manifest.created) if manifest else None
    except (LoadError, OSError, ValueError):
        return None
    return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=UTC)


def check_manifest(
    directory: Path,
    but: Callable[[str], bool] = lambda _: False,
    between: Callable[[], object] = lambda: None,
    vouch: Callable[[bytes], object] | None = None,
) -> Manifest | None:
    """Check a version directory against its manifest; a missing manifest and unlisted files are accepted.

    Args:
        directory: The version directory.
        but: Selects the files whose checksums the caller checks; their sizes are checked here.
        between: Called between the pieces that are read; an exception from it ends the check.
        vouch: Called with the content of the manifest; raises if it is not trusted. With it, a version
            without a manifest is refused.

    Raises:
        NewerFormat: The manifest has a newer format.
        LoadError: A file is missing, cannot be read, or has another size or checksum.
    """
    content = manifest_content(directory)
    if content is None:
        if vouch is not None:
            raise LoadError(
                f"not signed: it has no {MANIFEST_FILE}, and only signed versions are served here; publish "
                "it again, with `headrace publish --signing-key`"
            )
        return None
    if vouch is not None:
        vouch(content)
    manifest = _decoded(content)
    for name, record in manifest.files.items():  # all sizes before any checksum, because they are cheap
        _check_size(directory, name, record)
    for name, record in manifest.files.items():
        if but(name):
            continue
        try:
            found = _checksum(directory, name, between)
        except OSError as error:
            raise _unreadable(name, error) from error
        if found != record.sha256:
            raise _corrupt(f"{name} does not have the checksum that {MANIFEST_FILE} lists")
    return manifest


def publish(
    source: Path | Writer,
    model_directory: Path,
    version: int | None = None,
    *,
    signature: str = "",
    metadata: Mapping[str, object] | None = None,
    sign: Signer | None = None,
) -> Path:
    """Publish a version in a model's directory, whole and synced to disk, or not at all.

    Drafts of killed publishers in the directory are removed first.

    Args:
        source: A directory to copy, or a function that writes the files.
        model_directory: The directory of the model's versions; created if it is missing.
        version: The number; None for the next one.
        signature: The version's inputs and outputs, for people.
        metadata: Further data to store with it; must be representable as JSON.
        sign: Signs the directory; see ``headrace.versions.signatures.signer``.

    Returns:
        The version directory.

    Raises:
        Conflict: The number exists.
        LoadError: There is nothing to publish, or a file changed while it was read.
        FailedPrecondition: The manifest would exceed the size limit for reading, or the number the largest
            possible one.
        OSError: The version cannot be written; nothing is left behind.
    """
    with _made(model_directory):
        existing = version_directories(model_directory)
        if version is not None and version in existing:
            raise _exists(model_directory, version)
        sweep_drafts(model_directory)
        with draft_directory(model_directory, DRAFT_PREFIX) as draft:
            _fill(draft, source)
            parent = max(existing, default=None)
            write_manifest(draft, signature=signature, parent=parent, metadata=metadata)
            sync_tree(draft)
            published = _rename(draft, model_directory, version, sign)
    sync_directory(model_directory)
    return published


@contextmanager
def _made(directory: Path) -> Iterator[None]:
    """Create a directory and its parents; if the context fails, remove those that it created, if empty."""
    missing = [one for one in (directory, *directory.parents) if not one.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):  # no longer empty
            for one in missing:
                one.rmdir()
        raise


def sweep_drafts(model_directory: Path) -> None:
    """Remove abandoned drafts, so that publishers killed repeatedly do not fill the disk.

    Args:
        model_directory: The directory of the model's versions; must exist.

    Raises:
        OSError: It cannot be listed.
    """
    with os.scandir(model_directory) as entries:
        drafts = [one.name for one in entries if one.name.startswith(DRAFT_PREFIX)]
    for name in drafts:
        path = model_directory / name
        if path.is_dir() and not path.is_symlink() and is_abandoned(path):
            shutil.rmtree(path, ignore_errors=True)


def _fill(draft: Path, source: Path | Writer) -> None:
    if callable(source):
        source(draft)
    elif source.is_dir():
        # The signature belongs to the old manifest.
        stale = shutil.ignore_patterns(SIGNATURE_FILE, ".*")
        shutil.copytree(source, draft, dirs_exist_ok=True, ignore=stale)
    else:
        raise LoadError(f"nothing to publish: {source} is not a directory")
    if not any(name not in _ABOUT for name in _names(draft)):
        raise LoadError("nothing to publish: there are no files")


def _rename(draft: Path, model_directory: Path, version: int | None, sign: Signer | None) -> Path:
    """Rename a draft to its number; if another publisher takes the next number first, try the one after."""
    model = model_directory.resolve().name
    while True:
        taken = version_directories(model_directory)
        number = max(taken, default=0) + 1 if version is None else version
        target = model_directory / str(number)
        if number in taken:
            raise _exists(model_directory, number)
        if number > LARGEST_VERSION:  # servers would ignore it
            raise FailedPrecondition(
                f"{model}: expected a version of at most {LARGEST_VERSION}, got {number}; give a number that "
                "is free, or delete the largest version"
            )
        if sign is not None:
            sign(draft, model, number)
        _forbid_others(draft)
        try:
            draft.rename(target)
        except OSError as error:
            if not target.exists():
                raise
            if not target.is_dir():  # trying again would never end
                raise NotADirectoryError(errno.ENOTDIR, f"{target} is a file; remove it") from error
            if version is not None:
                raise _exists(model_directory, number) from error
        else:
            return target


def _forbid_others(directory: Path) -> None:
    """Remove others' write permission, which a umask of 0 or copied modes give: servers refuse such files."""
    for folder, _, files in os.walk(directory):
        for path in (folder, *(os.path.join(folder, name) for name in files)):
            mode = os.lstat(path).st_mode
            if mode & stat.S_IWOTH and not stat.S_ISLNK(mode):
                with suppress(OSError):  # the file system has no permissions
                    os.chmod(path, stat.S_IMODE(mode) & ~stat.S_IWOTH)


def _exists(model_directory: Path, version: int) -> Conflict:
    name = model_directory.name
    return Conflict(f"{name} has a version {version} already; leave the number out for the next one")


def _names(directory: Path) -> Iterator[str]:
    for folder, directories, files in os.walk(directory):
        directories[:] = filter(is_visible, directories)
        for name in sorted(filter(is_visible, files)):
            yield (Path(folder) / name).relative_to(directory).as_posix()


def _record(directory: Path, name: str) -> FileRecord:
    return FileRecord(size_bytes=(directory / name).stat().st_size, sha256=_checksum(directory, name))


def _checksum(directory: Path, name: str, between: Callable[[], object] = lambda: None) -> str:
    """Return a file's SHA-256 in hexadecimal digits.

    Raises:
        LoadError: The file changed while a keeper read it.
        OSError: It cannot be read.
    """
    made = hashlib.sha256()
    with open_file(directory / name) as stream:
        size = os.fstat(stream.fileno()).st_size
        try:
            kept = kept_checksum(stream, size, between)
        except NotCopied as error:
            raise LoadError(f"{name} changed while it was read; publish the version again") from error
        if kept is not None:
            return kept
        # In long pieces: each acquisition of the GIL pauses the serving thread.
        piece = memoryview(bytearray(max(1, min(size, _PIECE_BYTES))))
        while size := stream.readinto(piece):
            made.update(piece[:size])
            between()
    return made.hexdigest()


def _check_size(directory: Path, name: str, record: FileRecord) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise LoadError(f"{MANIFEST_FILE}: {name!r} is not a path below the version directory")
    try:
        with open_file(directory / name) as stream:
            size = os.fstat(stream.fileno()).st_size
    except FileNotFoundError:
        raise _corrupt(f"{name}, which {MANIFEST_FILE} lists, is missing") from None
    except OSError as error:
        raise _unreadable(name, error) from error
    if size != record.size_bytes:
        raise _corrupt(f"{name} has {size} bytes, but {MANIFEST_FILE} lists {record.size_bytes}")


def _unreadable(name: str, error: OSError) -> LoadError:
    return LoadError(f"{name}, which {MANIFEST_FILE} lists, cannot be read: {error.strerror or error}")


def _corrupt(what: str) -> LoadError:
    return LoadError(f"corrupt: {what}; publish the version again")
