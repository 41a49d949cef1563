"""Decide which files of a version may be loaded, by links and by ownership.

A link out of the served directory could make the server read files that the link's author cannot read. Links
within that directory are followed, because Kubernetes volumes and releases by link need them. A model that is
code runs with the server's rights. So only root, the server's own user, or users that the operator names may
own it, and it must not be writable by everybody.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError, LoadError
from headrace.config import ServerConfig
from headrace.versions.manifest import Manifest, check_manifest

if TYPE_CHECKING:
    from headrace.versions.signatures import Verifier

_OTHERS = stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class TrustedFiles:
    """The rules for files that may be loaded.

    Attributes:
        roots: Directories that links must not leave: the served one, and those of models elsewhere.
        owners: Ids of users whose files may be loaded; None to accept data of any user, and code of root and
            of this process's user.
        follow_links: Whether links may lead anywhere.
    """

    roots: Sequence[Path]
    owners: frozenset[int] | None = None
    follow_links: bool = False

    def check(self, version: Path, *, is_code: bool) -> None:
        """Refuse a version with files that may not be loaded.

        Args:
            version: Its directory.
            is_code: Whether the version is code that will be run.

        Raises:
            LoadError: A link leads out of the roots, a file has another owner or is writable by everybody,
                or a file cannot be inspected.
        """
        owners = self.owners
        if owners is None and is_code:
            owners = frozenset({0, os.geteuid()})
        roots = [] if self.follow_links else [os.path.realpath(root) for root in self.roots]
        try:
            for path in _below(version):
                name = "its directory" if path == str(version) else os.path.relpath(path, version)
                if roots:
                    _check_link(path, name, roots)
                if owners is not None:
                    _check_owner(os.stat(path), name, owners, is_code)
        except OSError as error:
            raise LoadError(f"its files cannot be inspected: {error.strerror}") from error

    def check_again(self, version: Path, manifest: Manifest | None, *, is_code: bool) -> None:
        """Check that a version which is loaded again is unchanged since its first check.

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
    roots = elsewhere if models is None else [models, *elsewhere]
    return TrustedFiles(roots, owners_named(config.trusted_owners), config.follow_links)


def owners_named(names: Collection[str]) -> frozenset[int] | None:
    """Return the ids of users.

    Args:
        names: Their names or numbers; if empty, None is returned.

    Raises:
        ConfigError: A user does not exist.
    """
    return frozenset(map(_user, names)) if names else None


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
            if _is_directory(entry):
                folders.append(entry.path)
            elif entry.is_symlink() and not os.path.exists(entry.path):
                continue  # dangling or circular: opening it fails with a clear error
            else:
                yield entry.path


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a circular link
        return False


def _check_link(path: str, name: str, roots: Sequence[str]) -> None:
    real = os.path.realpath(path)
    if not any(os.path.commonpath((real, root)) == root for root in roots):
        raise LoadError(
            f"{name} is a link that leads out of the model directory; put the files themselves there, or "
            "start the server with --follow-links"
        )


def _check_owner(status: os.stat_result, name: str, owners: frozenset[int], is_code: bool) -> None:
    why = "is code, which" if is_code else ""
    if status.st_uid not in owners:
        raise LoadError(
            f"{name} {why or 'is a file that'} belongs to user {status.st_uid}, who is not trusted here; "
            "change its owner, or add the user to trusted_owners"
        )
    if status.st_mode & _OTHERS:
        raise LoadError(f"{name} {why or 'is a file that'} everybody may write; run chmod o-w on it")


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
