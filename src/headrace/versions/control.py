"""Deciding about a model's versions: pins and holds, in the control record beside them.

Reading takes no lock and writes nothing: servers do it at every look. What an earlier build has pinned by a
file, ``headrace.pin``, counts before the record, until the next change takes it over.
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

from headrace.disk import read_text, saying, sync_directory
from headrace.errors import ConfigError, Conflict, LoadError, NotFound, listed, shown
from headrace.versions.layout import PIN_FILE, version_directories, version_number
from headrace.versions.manifest import manifest_digest
from headrace.versions.record import (
    LONGEST_TEXT,
    ControlRecord,
    Pin,
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
from headrace.versions.store import PATIENCE_SECONDS, FileStore, NoLocks, RecordStore

Decide = Callable[[ControlRecord], ControlRecord]
"""Makes of what was decided what is to be; the record itself for no change."""

_MOST_PIN_BYTES = 1024
_PAUSE_SECONDS = 0.005
_HOLDERS_TOLD = 5


@dataclass(frozen=True, slots=True)
class PinnedTo:
    """The version that a model is pinned to, as it is found on disk.

    Attributes:
        version: Its number.
        missing: Why it cannot be served, for the operator; "" if it is there.
    """

    version: int
    missing: str = ""


def read_control(model_directory: Path) -> ControlRecord:
    """Read what was decided about a model's versions; an empty record if nothing was.

    Raises:
        ConfigError: It cannot be read, is not a record, or one of a newer format.
    """
    old = _read_old_pin(model_directory)  # first: who takes it over writes the record before it removes this
    record = parse_record(FileStore(model_directory).read().content)
    if old is None or _says(record, old):
        return record
    return replace(record, pin=Pin(version=number_key(old), number=old, by=PIN_FILE))


def change(store: RecordStore, decide: Decide, patience_seconds: float = PATIENCE_SECONDS) -> ControlRecord:
    """Change a record by compare-and-swap: decide again whenever somebody else was quicker.

    Args:
        store: Where it is kept.
        decide: Told what is there; may be asked more than once.
        patience_seconds: After how long no further attempt is made.

    Returns:
        What is there now.

    Raises:
        ConfigError: What is there cannot be read: it is never overwritten.
        Conflict: Others were quicker for as long as there was patience.
        FailedPrecondition: It cannot be written.
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
        model_directory: Where the model's versions are.
        version: The version to go back to.
        why: For what reason.
        by: Who decides; this process's user and host if left out.

    Returns:
        The record.

    Raises:
        NotFound: There is no such version.
        HeadraceError: See ``change``.
    """
    stamp = _stamp(by, why)
    return _change(
        model_directory,
        lambda record: with_pin(record, _key(model_directory, version), version, stamp),
    )


def unpin(model_directory: Path, *, why: str = "", by: str = "") -> ControlRecord:
    """Follow the version policy again; nothing changes if there is no pin.

    Raises:
        HeadraceError: See ``change``.
    """
    stamp = _stamp(by, why)
    return _change(model_directory, lambda record: without_pin(record, stamp))


def hold(model_directory: Path, version: int, holder: str, *, why: str = "", by: str = "") -> ControlRecord:
    """Keep a version from being deleted until ``let_go``.

    Args:
        model_directory: Where the model's versions are.
        version: The version.
        holder: In whose name: each has a hold of its own.
        why: For what reason.
        by: Who decides; this process's user and host if left out.

    Returns:
        The record.

    Raises:
        NotFound: There is no such version.
        HeadraceError: See ``change``.
    """
    stamp = _stamp(by, why)
    return _change(
        model_directory,
        lambda record: with_hold(record, _key(model_directory, version), version, holder, stamp),
    )


def let_go(model_directory: Path, version: int, holder: str, *, why: str = "", by: str = "") -> ControlRecord:
    """Take a hold away, also from a version that is not there any more.

    Raises:
        NotFound: It has no hold in this name; the error says who has one.
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
    """While this lasts, nothing is decided about its versions; where there are no locks, nothing can be.

    Raises:
        Conflict: Others were at it for too long.
        FailedPrecondition: It cannot be locked.
    """
    with ExitStack() as stack:
        with suppress(NoLocks):
            stack.enter_context(FileStore(model_directory).alone())
        yield


def find_pin(record: ControlRecord, versions: Mapping[int, Path]) -> PinnedTo | None:
    """Find on disk what a model is pinned to; None if to nothing.

    Args:
        record: What was decided.
        versions: The model's version directories.
    """
    if record.pin is None:
        return None
    number = record.pin.number
    if number not in versions:
        return PinnedTo(number, f"it is pinned to version {number}, which is not there")
    try:
        is_same = record.pin.version in version_keys(number, versions[number])
    except LoadError as error:
        return PinnedTo(number, f"it is pinned to version {number}: {error.message}")
    if is_same:
        return PinnedTo(number)
    return PinnedTo(
        number,
        f"it is pinned to a version {number} that had another manifest; what lies there now is not served: "
        "publish it under a new number, or decide anew with `headrace rollback`",
    )


def version_keys(number: int, directory: Path) -> tuple[str, ...]:
    """What a version may be called in a record: by its manifest, if it has one, or by its number.

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
    return version_keys(version, known[version])[0]


def _not_held(model: str, version: int, holder: str, holders: Collection[str]) -> str:
    told = listed(map(shown, sorted(holders)), _HOLDERS_TOLD)
    return f"{model}: version {version} is not held by {shown(holder)}, but by {told or 'nobody'}"


def _change(model_directory: Path, decide: Decide) -> ControlRecord:
    store = FileStore(model_directory)
    with store.alone():
        _take_over(store, model_directory)
        return change(store, decide)


def _take_over(store: RecordStore, model_directory: Path) -> None:
    """Move an old pin into the record. Whoever is killed in between leaves both, and they say the same."""
    old = _read_old_pin(model_directory)
    if old is None:
        return

    def decide(record: ControlRecord) -> ControlRecord:
        if _says(record, old):
            return record
        return with_pin(record, number_key(old), old, _stamp(PIN_FILE, ""))

    change(store, decide)
    with saying(f"{PIN_FILE} cannot be removed"):
        (model_directory / PIN_FILE).unlink(missing_ok=True)
        sync_directory(model_directory)


def _says(record: ControlRecord, old: int) -> bool:
    """Whether a record pins what an earlier build has pinned."""
    return record.pin is not None and record.pin.number == old


def _read_old_pin(model_directory: Path) -> int | None:
    """The version that an earlier build has pinned the model to; None if to none."""
    try:
        text = read_text(model_directory / PIN_FILE, _MOST_PIN_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{PIN_FILE} cannot be read: {error.strerror}") from error
    number = version_number(text.strip())
    if number is None:
        raise ConfigError(
            f"{PIN_FILE}: expected the number of a version, got {text[:40]!r}; remove it, and decide anew "
            "with `headrace rollback`"
        )
    return number


def _stamp(by: str, why: str) -> Stamp:
    return Stamp(datetime.now(UTC).isoformat(timespec="seconds"), by or _user(), why)


def _user() -> str:
    """The user and the host of this process, for people."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    name = f"{user}@{socket.gethostname()}"
    return "".join(one if one.isprintable() else "?" for one in name)[:LONGEST_TEXT]
