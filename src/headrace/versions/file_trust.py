"""Decide which files of a version may be loaded, by links, owners and permissions; copy them where needed.

The directories of models and versions may be links, because whoever can create them decides what is served
anyway. A link *inside* a version could lead to files that the server can read and the link's author cannot.
Anyone who may write a version's files decides what the model answers, and code runs with the server's rights.
So files that others may write are refused, and so are files of untrusted users (``docs/decisions/0052``).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError, LoadError
from headrace.base.files import is_abandoned, is_directory, open_file
from headrace.config import ServerConfig
from headrace.versions.manifest import FileRecord, Manifest, check_manifest

if TYPE_CHECKING:
    from headrace.versions.signatures import Verifier

_ROOT = 0
_KUBERNETES_LINK = "..data"


@dataclass(frozen=True, slots=True)
class TrustedFiles:
    """The rules for files that may be loaded.

    Attributes:
        served: Directories named by the operator: the served one, and those of models elsewhere. Files of
            their owners may be loaded, unless they are code.
        owners: Ids of further users whose files may be loaded, beside root and this process's user.
        follow_links: Whether links inside a version may leave it.
    """

    served: Sequence[Path] = ()
    owners: frozenset[int] = frozenset()
    follow_links: bool = False

    def check(self, version: Path, *, is_code: bool) -> None:
        """Refuse a version with files that may not be loaded.

        Args:
            version: Its directory, or a link to it.
            is_code: Whether the version is code that will be run.

        Raises:
            LoadError: A link leads out of the version; a file's owner is not trusted, others may write it, or
                it cannot be inspected.
        """
        owners = {_ROOT, os.geteuid(), *self.owners}
        if not is_code:
            owners |= self._owners_of_served(version)
        try:
            root = os.path.realpath(version)
            for path in _below(version):
                name = "its directory" if path == str(version) else os.path.relpath(path, version)
                if not self.follow_links:
                    _check_link(path, name, root)
                if not os.path.exists(path):
                    continue  # a dangling or circular link: opening it fails with a clear error
                status = os.stat(path)
                _check_owner(status, f"{name}, which is code," if is_code else name, owners)
                if status.st_mode & stat.S_IWOTH and not _is_kubernetes_volume(path):
                    raise _writable(status, name)
        except OSError as error:
            raise LoadError(f"its files cannot be inspected: {error.strerror}") from error

    def _owners_of_served(self, version: Path) -> set[int]:
        """Return the owners of the served directories that contain the version.

        Their data files are trusted, because they can replace versions there anyway.
        """
        found = set[int]()
        for directory in self.served:
            if version.is_relative_to(directory):
                with suppress(OSError):  # inspecting the version's files then fails, too
                    found.add(os.stat(directory).st_uid)
        return found

    def check_again(self, version: Path, manifest: Manifest | None, *, is_code: bool) -> None:
        """Check, before a version is loaded again, that it is unchanged since its first check.

        Args:
            version: Its directory.
            manifest: Its manifest at the first check; None if it had none.
            is_code: Whether the version is code that will be run.

        Raises:
            LoadError: It has changed, or has files that may not be loaded.
        """
        self.check(version, is_code=is_code)
        if check_manifest(version) != manifest:
            raise LoadError("its manifest was changed; publish the version again")


def trusted_files(models: Path | None, config: ServerConfig) -> TrustedFiles:
    """Return the rules for a server or an engine.

    Args:
        models: The served directory, if there is one.
        config: The settings.

    Raises:
        ConfigError: A trusted user does not exist.
    """
    elsewhere = [entry.path for entry in config.models.values() if entry.path is not None]
    served = elsewhere if models is None else [models, *elsewhere]
    return TrustedFiles(served, owners_named(config.trusted_owners), config.follow_links)


def owners_named(names: Collection[str]) -> frozenset[int]:
    """Return the ids of users.

    Args:
        names: Their names or numbers.

    Raises:
        ConfigError: A user does not exist.
    """
    return frozenset(map(_user, names))


def _user(name: str) -> int:
    if name.isascii() and name.isdigit() and len(name) <= 10:
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        raise ConfigError(
            f"trusted_owners: expected users of this machine, by name or number, got {name!r}"
        ) from None


def _below(version: Path) -> Iterator[str]:
    """Yield the directory, and all files and directories below it; linked directories are entered once."""
    seen, folders = set[tuple[int, int]](), [str(version)]
    while folders:
        folder = folders.pop()
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        yield folder
        with os.scandir(folder) as listed:
            entries = list(listed)
        for entry in entries:
            if is_directory(entry):
                folders.append(entry.path)
            else:
                yield entry.path


def _check_link(path: str, name: str, root: str) -> None:
    if os.path.commonpath((os.path.realpath(path), root)) != root:
        raise LoadError(
            f"{name} is a link that leads out of the version's directory; put the files themselves there, or "
            "start the server with --follow-links"
        )


def _check_owner(status: os.stat_result, what: str, owners: Collection[int]) -> None:
    user = status.st_uid
    if user not in owners:
        raise LoadError(
            f"{what} belongs to user {user}, who is not trusted here; change its owner, or start the server "
            f"with --trusted-owners {user} (trusted_owners, HEADRACE_SERVE_TRUSTED_OWNERS)"
        )


def _writable(status: os.stat_result, name: str) -> LoadError:
    mode = stat.S_IMODE(status.st_mode)
    return LoadError(
        f"others may write {name} (mode {mode:04o}, owner {status.st_uid}); run `chmod -R o-w` on "
        "the version's directory, then `touch` one of its files"
    )


def _is_kubernetes_volume(path: str) -> bool:
    """Return whether a directory is the volume of a ConfigMap or Secret.

    Its mode is 0777 and cannot be changed, but root owns its parent directory, and it is mounted read-only.
    Its link ``..data`` identifies it: root owns that link, and other users cannot create one that root owns.
    """
    with suppress(OSError):
        status = os.lstat(f"{path}/{_KUBERNETES_LINK}")
        return stat.S_ISLNK(status.st_mode) and status.st_uid == _ROOT
    return False


def verifier(keys: Path | None) -> Verifier | None:
    """Return a verifier of signatures; None if signatures are not required.

    Args:
        keys: A PEM file with the public keys; None if signatures are not required.

    Raises:
        ConfigError: The keys cannot be read, or an extra is missing.
    """
    if keys is None:
        return None
    from headrace.versions.signatures import Verifier  # noqa: PLC0415 - an extra

    return Verifier(keys)


# Private copies are for runtimes that read files again after they were checked. Where versions must be
# signed, users who may write to the model directory are not trusted. Such a user could replace a file after
# headrace has checked it and before a runtime's own library reads it. So headrace copies each file to a
# private directory and checks the copy, and the runtime reads the copy.

_PREFIX = "headrace-version-"
_PIECE_BYTES = 2**24


class StagedVersion:
    """A private copy of a version; removed when it is closed or collected, or when the process ends.

    Attributes:
        path: Its directory.
    """

    def __init__(self, directory: Path, manifest: Manifest, between: Callable[[], object]) -> None:
        """Copy the files that a manifest lists, and check them.

        Args:
            directory: The version directory.
            manifest: Its manifest, whose names must be paths below the directory.
            between: Called between the pieces that are read; an exception from it ends the copying.

        Raises:
            LoadError: A file cannot be copied, or differs from the manifest.
        """
        _sweep()
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise LoadError(f"cannot create a directory for a private copy: {error.strerror}") from error
        self._remove = weakref.finalize(self, _removed, self.path, self._lock)
        try:
            with suppress(OSError):  # the file system has no locks
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name, record in manifest.files.items():
                self._copy(directory, name, record, between)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the copy."""
        self._remove()

    def _copy(self, directory: Path, name: str, record: FileRecord, between: Callable[[], object]) -> None:
        made, target, left = hashlib.sha256(), self.path / name, record.size_bytes
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open_file(directory / name) as opened, target.open("xb", buffering=0) as copied:
                piece = memoryview(bytearray(min(record.size_bytes + 1, _PIECE_BYTES)))
                while left >= 0 and (size := opened.readinto(piece)):  # stop once it exceeds the listed size
                    made.update(piece[:size])
                    done, left = 0, left - size
                    while done < size:
                        done += copied.write(piece[done:size]) or 0
                    between()
        except OSError as error:
            raise LoadError(f"{name} cannot be copied for loading: {error.strerror or error}") from error
        if left or made.hexdigest() != record.sha256:
            raise LoadError(f"corrupt: {name} was changed while it was loaded; publish the version again")


def _removed(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _sweep() -> None:
    """Remove the copies that killed processes of this user have left."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if (
                entry.name.startswith(_PREFIX)
                and entry.is_dir(follow_symlinks=False)
                and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                and is_abandoned(Path(entry.path))
            ):
                shutil.rmtree(entry.path, ignore_errors=True)
