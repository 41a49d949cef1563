"""Change the pin and the holds of a model's versions in the control record beside them, and list versions.

Reading takes no lock and writes nothing: servers read the record at every scan. A pin of an earlier build, in
the file ``headrace.pin``, takes precedence over the record until the next change moves it into the record.
"""

from __future__ import annotations

import os
import pwd
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from headrace.base.errors import ConfigError, Conflict, LoadError, NotFound, listed, shown
from headrace.base.files import read_text, saying, sync_directory, visible_files
from headrace.versions.control_record import (
    LONGEST_TEXT,
    PATIENCE_SECONDS,
    ControlRecord,
    FileStore,
    NoLocks,
    Pin,
    RecordStore,
    Stamp,
    digest_key,
    encode_record,
    number_key,
    parse_record,
    with_hold,
    with_pin,
    without_hold,
    without_pin,
)
from headrace.versions.layout import PIN_FILE, version_directories, version_number
from headrace.versions.manifest import manifest_digest, read_manifest

Decide = Callable[[ControlRecord], ControlRecord]
"""Returns the new record for the current one; the same object for no change."""

_MOST_PIN_BYTES = 1024
_PAUSE_SECONDS = 0.005
_HOLDERS_TOLD = 5


@dataclass(frozen=True, slots=True)
class PinnedTo:
    """The version that a model is pinned to, as found on disk.

    Attributes:
        version: Its number.
        missing: The reason why it cannot be served, for the operator; "" if it can.
    """

    version: int
    missing: str = ""


def read_control(model_directory: Path) -> ControlRecord:
    """Read a model's control record; an empty one if there is none.

    Raises:
        ConfigError: It cannot be read, is not a record, or has a newer format.
    """
    old = _read_old_pin(
        model_directory
    )  # first: `_migrate_old_pin` writes the record before it removes the file
    record = parse_record(FileStore(model_directory).read().content)
    if old is None or _has_pin(record, old):
        return record
    return replace(record, pin=Pin(version=number_key(old), number=old, by=PIN_FILE))


def change(store: RecordStore, decide: Decide, patience_seconds: float = PATIENCE_SECONDS) -> ControlRecord:
    """Change a record by compare-and-swap, deciding again after each conflict.

    Args:
        store: The store that keeps the record.
        decide: Returns the new record; may be called more than once.
        patience_seconds: Timeout in seconds after which no further attempt is made.

    Returns:
        The record as it is stored now.

    Raises:
        ConfigError: The stored record cannot be read; it is never overwritten.
        Conflict: Concurrent changes went on until the timeout.
        FailedPrecondition: The record cannot be written.
    """
    deadline = time.monotonic() + patience_seconds
    while True:
        with store.alone():
            before = store.read()
            record = parse_record(before.content)
            wanted = decide(record)
            if wanted is record:
                return record
            try:
                store.swap(before, encode_record(wanted))
            except Conflict:
                if time.monotonic() >= deadline:
                    raise
            else:
                return wanted
        time.sleep(_PAUSE_SECONDS)


def pin(model_directory: Path, version: int, *, why: str = "", by: str = "") -> ControlRecord:
    """Serve no version above this one until ``unpin``.

    Args:
        model_directory: The directory of the model's versions.
        version: The version to pin.
        why: The reason.
        by: The user who decides; by default this process's user and host.

    Returns:
        The new record.

    Raises:
        NotFound: The version does not exist.
        HeadraceError: See ``change``.
    """
    stamp = _stamp(by, why)
    return _change(
        model_directory,
        lambda record: with_pin(record, _key(model_directory, version), version, stamp),
    )


def unpin(model_directory: Path, *, why: str = "", by: str = "") -> ControlRecord:
    """Follow the version policy again; no effect without a pin.

    Raises:
        HeadraceError: See ``change``.
    """
    stamp = _stamp(by, why)
    return _change(model_directory, lambda record: without_pin(record, stamp))


def hold(model_directory: Path, version: int, holder: str, *, why: str = "", by: str = "") -> ControlRecord:
    """Keep a version from being deleted until ``let_go``.

    Args:
        model_directory: The directory of the model's versions.
        version: The version to hold.
        holder: The name of the holder; each has a hold of its own.
        why: The reason.
        by: The user who decides; by default this process's user and host.

    Returns:
        The new record.

    Raises:
        NotFound: The version does not exist.
        HeadraceError: See ``change``.
    """
    stamp = _stamp(by, why)
    return _change(
        model_directory,
        lambda record: with_hold(record, _key(model_directory, version), version, holder, stamp),
    )


def let_go(model_directory: Path, version: int, holder: str, *, why: str = "", by: str = "") -> ControlRecord:
    """Remove a hold, even if the version no longer exists.

    Raises:
        NotFound: The version has no hold under this name; the error lists its holders.
        HeadraceError: See ``change``.
    """
    stamp = _stamp(by, why)

    def decide(record: ControlRecord) -> ControlRecord:
        holders = record.holders(version)
        if holder not in holders:
            raise NotFound(_not_held(model_directory.name, version, holder, holders))
        for key in [key for key, entry in record.versions.items() if entry.number == version]:
            record = without_hold(record, key, holder, stamp)
        return record

    return _change(model_directory, decide)


@contextmanager
def undisturbed(model_directory: Path) -> Iterator[None]:
    """Hold the control record's lock in this context; where there are no file locks, nobody can change it.

    Raises:
        Conflict: Others held the lock until the timeout.
        FailedPrecondition: The lock file cannot be locked.
    """
    with ExitStack() as stack:
        with suppress(NoLocks):
            stack.enter_context(FileStore(model_directory).alone())
        yield


def find_pin(record: ControlRecord, versions: Mapping[int, Path]) -> PinnedTo | None:
    """Return the pinned version of a model as found on disk; None without a pin.

    Args:
        record: The model's control record.
        versions: The model's version directories.
    """
    if record.pin is None:
        return None
    number = record.pin.number
    if number not in versions:
        return PinnedTo(number, f"it is pinned to version {number}, which does not exist")
    try:
        is_same = record.pin.version in _version_keys(number, versions[number])
    except LoadError as error:
        return PinnedTo(number, f"it is pinned to version {number}: {error.message}")
    if is_same:
        return PinnedTo(number)
    return PinnedTo(
        number,
        f"it is pinned to a version {number} that had another manifest; the present one is not served: "
        "publish it under a new number, or decide again with `headrace rollback`",
    )


def _version_keys(number: int, directory: Path) -> tuple[str, ...]:
    """Return the keys that a version may have in a record: by its manifest, if it has one, and by its number.

    Raises:
        LoadError: Its manifest cannot be read.
    """
    digest = manifest_digest(directory)
    by_number = number_key(number)
    return (by_number,) if digest is None else (digest_key(digest), by_number)


def _key(model_directory: Path, version: int) -> str:
    known = version_directories(model_directory)
    if version not in known:
        have = ", ".join(map(str, known)) or "none"
        raise NotFound(f"{model_directory.name} has no version {version}; it has: {have}")
    return _version_keys(version, known[version])[0]


def _not_held(model: str, version: int, holder: str, holders: Collection[str]) -> str:
    told = listed(map(shown, sorted(holders)), _HOLDERS_TOLD)
    return f"{model}: version {version} is not held by {shown(holder)}, but by {told or 'nobody'}"


def _change(model_directory: Path, decide: Decide) -> ControlRecord:
    store = FileStore(model_directory)
    with store.alone():
        _migrate_old_pin(store, model_directory)
        return change(store, decide)


def _migrate_old_pin(store: RecordStore, model_directory: Path) -> None:
    """Move an earlier build's pin into the record. A crash in between leaves both, with the same content."""
    old = _read_old_pin(model_directory)
    if old is None:
        return

    def decide(record: ControlRecord) -> ControlRecord:
        if _has_pin(record, old):
            return record
        return with_pin(record, number_key(old), old, _stamp(PIN_FILE, ""))

    change(store, decide)
    with saying(f"{PIN_FILE} cannot be removed"):
        (model_directory / PIN_FILE).unlink(missing_ok=True)
        sync_directory(model_directory)


def _has_pin(record: ControlRecord, old: int) -> bool:
    """Return whether a record already has the pin of an earlier build."""
    return record.pin is not None and record.pin.number == old


def _read_old_pin(model_directory: Path) -> int | None:
    """Return the version that an earlier build has pinned; None if there is none."""
    try:
        text = read_text(model_directory / PIN_FILE, _MOST_PIN_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{PIN_FILE} cannot be read: {error.strerror}") from error
    number = version_number(text.strip())
    if number is None:
        raise ConfigError(
            f"{PIN_FILE}: expected the number of a version, got {text[:40]!r}; remove it, and decide again "
            "with `headrace rollback`"
        )
    return number


def _stamp(by: str, why: str) -> Stamp:
    return Stamp(datetime.now(UTC).isoformat(timespec="seconds"), by or _user(), why)


def _user() -> str:
    """Return the user and the host of this process, for people."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    name = f"{user}@{socket.gethostname()}"
    return "".join(one if one.isprintable() else "?" for one in name)[:LONGEST_TEXT]


# ---- Versions on disk ----


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
        names = _version_keys(number, path)
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
