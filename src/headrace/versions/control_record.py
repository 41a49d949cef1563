"""The control record: the pin and the holds of a model's versions, and the file that stores them.

It lies beside the version directories, which never change. Fields of the model (its pin) are at the top level
and refer to a version by its key. Fields of a version (its holds) are stored under that key. Unknown fields
are kept, so that newer releases can add some.

A record is changed by pure functions. It is stored by compare-and-swap, so that no decision is lost.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple, Protocol

import msgspec

from headrace.base.errors import ConfigError, Conflict, FailedPrecondition, InvalidRequest, shown
from headrace.base.files import let_read, open_file, read_file, saying, write_file
from headrace.base.format_numbers import check_number
from headrace.config import LARGEST_VERSION
from headrace.config.toml_reader import explained
from headrace.versions.layout import CONTROL_FILE, CONTROL_LOCK

FORMAT = 1
"""The format that is written; newer ones are refused."""

LARGEST_RECORD_BYTES = 2**20
"""Size limit for reading and writing a record."""

MOST_CHANGES = 100
"""Maximum number of changes in the history."""

MOST_HOLDS = 2000
"""Maximum number of holds on all versions of a model; with usual texts, far below the size limit."""

LONGEST_TEXT = 1000
"""Maximum length of a reason or a name, in characters."""

WAY_OUT = "correct it, or move it away and decide again with `headrace rollback`"
"""Advice for an operator whose record cannot be read."""

_LET_GO = "release some with `headrace hold DIR/NAME/N --holder NAME --release`"
_KEY = re.compile(r"sha256:[0-9a-f]{64}|number:(0|[1-9][0-9]{0,18})")
_LARGEST_REVISION = 2**53 - 1  # the largest integer that every JSON reader represents exactly

_Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_VERSION)]


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """The pin: the one version that the operator has chosen.

    Attributes:
        version: Its key.
        number: Its number.
        at: Time of the decision, as ISO 8601 in UTC.
        by: The user who decided.
        why: The reason, or "".
    """

    version: str
    number: _Number
    at: str = ""
    by: str = ""
    why: str = ""


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """A hold, which keeps a version from being deleted.

    Attributes:
        at: Time of the decision, as ISO 8601 in UTC.
        by: The user who decided.
        why: The reason, or "".
    """

    at: str = ""
    by: str = ""
    why: str = ""


class VersionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions about one version.

    Attributes:
        number: Its number.
        holds: Its holds, by the holder's name.
    """

    number: _Number
    holds: dict[str, Hold] = {}


class _Format(msgspec.Struct, frozen=True):
    format: Annotated[int, msgspec.Meta(ge=1, le=_LARGEST_REVISION)]


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that this release knows."""

    revision: Annotated[int, msgspec.Meta(ge=0, le=_LARGEST_REVISION)]
    pin: Pin | None = None
    versions: dict[str, VersionEntry] = {}
    history: list[dict[str, object]] = []


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """The decisions about a model's versions.

    Attributes:
        document: The whole document as stored, unknown fields included.
        revision: Number of changes so far; 0 without a record.
        pin: The pinned version; None for none.
        versions: The decisions about each version, by its key.
        history: The last changes, oldest first: what, when, by whom, why.
    """

    document: Mapping[str, object]
    revision: int
    pin: Pin | None
    versions: Mapping[str, VersionEntry]
    history: tuple[Mapping[str, object], ...]

    def holders(self, number: int) -> frozenset[str]:
        """Return the names that hold a version of this number, whether or not it still exists."""
        return frozenset(
            name for entry in self.versions.values() if entry.number == number for name in entry.holds
        )

    def holds(self) -> int:
        """Return the number of holds on all versions."""
        return sum(len(entry.holds) for entry in self.versions.values())

    def named_numbers(self) -> frozenset[int]:
        """Return the numbers of the versions that are pinned or held, whether or not they exist."""
        held = {entry.number for entry in self.versions.values() if entry.holds}
        return frozenset(held if self.pin is None else held | {self.pin.number})


@dataclass(frozen=True, slots=True)
class Stamp:
    """The author, time and reason of a change.

    Attributes:
        at: The time, as ISO 8601 in UTC.
        by: The user.
        why: The reason, or "".
    """

    at: str
    by: str
    why: str = ""


def number_key(number: int) -> str:
    """Return the key of a version without a manifest, or of any version with this number."""
    return f"number:{number}"


def digest_key(digest: str) -> str:
    """Return the key of the version whose manifest has this SHA-256."""
    return f"sha256:{digest}"


def parse_record(content: bytes | None) -> ControlRecord:
    """Parse a record.

    Args:
        content: The stored content; None for nothing.

    Raises:
        ConfigError: It is not a record, or has a newer format.
    """
    if content is None:
        return _EMPTY
    try:
        document = msgspec.json.decode(content)
    except (ValueError, RecursionError) as error:  # msgspec's own errors, and invalid UTF-8
        raise ConfigError(f"{CONTROL_FILE}: not JSON: {error}; {WAY_OUT}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{CONTROL_FILE}: expected a table, got {type(document).__name__}; {WAY_OUT}")
    return _of(document)


def encode_record(record: ControlRecord) -> bytes:
    """Encode a record as indented JSON, so that people can read it, too.

    Raises:
        ConfigError: It cannot be encoded.
        FailedPrecondition: It would exceed the size limit for reading.
    """
    try:
        text = json.dumps(record.document, indent=2, ensure_ascii=False, allow_nan=False)
        content = f"{text}\n".encode()
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{CONTROL_FILE}: cannot be written again: {error}; {WAY_OUT}") from error
    if len(content) > LARGEST_RECORD_BYTES:
        raise FailedPrecondition(
            f"{CONTROL_FILE}: would have {len(content)} bytes, but at most {LARGEST_RECORD_BYTES} are read, "
            f"with {record.holds()} holds; {_LET_GO}, or give shorter reasons"
        )
    return content


def with_pin(record: ControlRecord, key: str, number: int, stamp: Stamp) -> ControlRecord:
    """Return the record with a version pinned, in place of the current pin."""
    pin = {"version": key, "number": number, "at": stamp.at, "by": stamp.by, "why": stamp.why}
    return _changed(record, f"pinned to version {number}", stamp, pin=pin)


def without_pin(record: ControlRecord, stamp: Stamp) -> ControlRecord:
    """Return the record without a pin; the same record if there is none."""
    if record.pin is None:
        return record
    return _changed(record, f"released from version {record.pin.number}", stamp, pin=None)


def with_hold(record: ControlRecord, key: str, number: int, holder: str, stamp: Stamp) -> ControlRecord:
    """Return the record with a hold on a version, in place of an earlier hold of the same holder.

    Raises:
        InvalidRequest: The name is empty, or a text is too long or not printable.
        FailedPrecondition: The maximum number of holds is reached.
    """
    if not holder:
        raise InvalidRequest("expected a name, got none", field="holder")
    _check_text("holder", holder)
    stored = _entry(record, key)
    entry = record.versions.get(key)
    if (entry is None or holder not in entry.holds) and (there := record.holds()) >= MOST_HOLDS:
        raise FailedPrecondition(
            f"{CONTROL_FILE}: has {there} holds, but may have at most {MOST_HOLDS}; {_LET_GO} (`headrace "
            "versions` lists who holds what)"
        )
    hold = {"at": stamp.at, "by": stamp.by, "why": stamp.why}
    changed = {**stored, "number": number, "holds": {**_table(stored.get("holds")), holder: hold}}
    return _with_entry(record, key, changed, f"version {number} held by {shown(holder)}", stamp)


def without_hold(record: ControlRecord, key: str, holder: str, stamp: Stamp) -> ControlRecord:
    """Return the record without a holder's hold on a version; the same record if there is none."""
    entry = record.versions.get(key)
    if entry is None or holder not in entry.holds:
        return record
    stored = _entry(record, key)
    holds = {name: hold for name, hold in _table(stored.get("holds")).items() if name != holder}
    left = {**stored, "holds": holds}
    if not holds:
        del left["holds"]
    is_empty = left.keys() <= {"number"}  # fields of newer releases stay
    what = f"version {entry.number} let go by {shown(holder)}"
    return _with_entry(record, key, None if is_empty else left, what, stamp)


def _with_entry(
    record: ControlRecord, key: str, entry: Mapping[str, object] | None, what: str, stamp: Stamp
) -> ControlRecord:
    versions = {name: one for name, one in _table(record.document.get("versions")).items() if name != key}
    if entry is not None:
        versions[key] = entry
    return _changed(record, what, stamp, versions=versions)


def _entry(record: ControlRecord, key: str) -> Mapping[str, object]:
    return _table(_table(record.document.get("versions")).get(key))


def _table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _changed(record: ControlRecord, what: str, stamp: Stamp, **fields: object) -> ControlRecord:
    _check_text("by", stamp.by)
    _check_text("why", stamp.why)
    revision = record.revision + 1
    change = {"revision": revision, "at": stamp.at, "by": stamp.by, "what": what, "why": stamp.why}
    history = [*record.history, change][-MOST_CHANGES:]
    return _of({**record.document, "revision": revision, **fields, "history": history})


def _of(document: Mapping[str, object]) -> ControlRecord:
    """Return the validated record of a document."""
    try:
        found = msgspec.convert(document, _Format).format
        check_number(found, FORMAT, CONTROL_FILE, ConfigError)  # first: a newer format may differ in anything
        known = msgspec.convert(document, _Known)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{CONTROL_FILE}: {explained(error, _Known)}; {WAY_OUT}") from error
    if known.pin is not None:
        _check_key("pin.version", known.pin.version, known.pin.number)
    return ControlRecord(document, known.revision, known.pin, known.versions, tuple(known.history))


def _check_key(field: str, key: str, number: int) -> None:
    found = _KEY.fullmatch(key)
    if found is None or found[1] not in (None, str(number)):
        raise ConfigError(
            f"{CONTROL_FILE}: {field}: expected the SHA-256 of a manifest, sha256:…, or number:{number}, "
            f"got {shown(key)}; {WAY_OUT}"
        )


def _check_text(field: str, text: str) -> None:
    if len(text) > LONGEST_TEXT:
        raise InvalidRequest(f"expected at most {LONGEST_TEXT} characters, got {len(text)}", field=field)
    if not text.isprintable():  # it is shown in terminals
        raise InvalidRequest(f"expected one line of printable text, got {shown(text)}", field=field)


_EMPTY = ControlRecord({"format": FORMAT, "revision": 0}, 0, None, {}, ())


# A store returns its content with a tag, and accepts new content only together with the current tag. So a
# concurrent change is read, not overwritten. The only store is a file beside the versions. An object store
# with conditional writes (an ETag, a generation) could be another.

PATIENCE_SECONDS = 10.0
"""Timeout of a change while it waits for concurrent changes."""

_PAUSE_SECONDS = 0.005
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Stored(NamedTuple):
    """The content of a store.

    Attributes:
        content: The record; None for none.
        tag: A tag that changes with the content.
    """

    content: bytes | None
    tag: str


class RecordStore(Protocol):
    """Stores one control record."""

    def read(self) -> Stored:
        """Return the whole stored content.

        Raises:
            ConfigError: It cannot be read.
        """
        ...

    def swap(self, before: Stored, content: bytes) -> Stored:
        """Store new content if the content that was read is unchanged.

        Args:
            before: The content that was read.
            content: The new content.

        Returns:
            The content that is stored now.

        Raises:
            Conflict: The content has changed meanwhile; read it again.
            FailedPrecondition: It cannot be written; the old content remains.
        """
        ...

    def alone(self) -> AbstractContextManager[object]:
        """Hold the store's lock in this context, so that nobody else swaps; a no-op without locks.

        Raises:
            Conflict: Others held the lock for ``PATIENCE_SECONDS``.
        """
        ...


class NoLocks(FailedPrecondition):
    """The file system has no locks, so one of two concurrent changes could be lost."""


class FileStore:
    """Stores the record in a file: under a lock on a second file, a synced draft is renamed into place.

    Readers take no lock, and see either the old content or the new, never a part. A killed process leaves the
    old content, and the system releases its lock. An object of this class must not be shared between threads.
    """

    def __init__(self, model_directory: Path, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Prepare; nothing is read or written yet.

        Args:
            model_directory: The directory of the model's versions.
            patience_seconds: Timeout for the lock.
        """
        self._file = model_directory / CONTROL_FILE
        self._lock = model_directory / CONTROL_LOCK
        self._patience_seconds = patience_seconds
        self._is_alone = False

    def read(self) -> Stored:
        """Return the stored content; see ``RecordStore``."""
        try:
            content = self._content()
        except OSError as error:
            raise ConfigError(f"{CONTROL_FILE} cannot be read: {error.strerror or error}") from error
        return Stored(content, "" if content is None else hashlib.sha256(content).hexdigest())

    def _content(self) -> bytes | None:
        for is_last in (False, True):
            try:
                return read_file(self._file, LARGEST_RECORD_BYTES)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno != errno.ESTALE or is_last:  # NFS: the file was replaced while it was read
                    raise
        return None

    def swap(self, before: Stored, content: bytes) -> Stored:
        """Store new content if the content that was read is unchanged; see ``RecordStore``."""
        with self.alone(), saying(f"{CONTROL_FILE} cannot be changed"):
            if self.read().tag != before.tag:
                raise Conflict(f"{CONTROL_FILE} was changed by another process meanwhile; read it again")
            write_file(self._file, content)
        return Stored(content, hashlib.sha256(content).hexdigest())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock in this context; see ``RecordStore``. Contexts may be nested.

        Raises:
            NoLocks: The file system has no locks.
            FailedPrecondition: The lock file cannot be created or locked.
        """
        if self._is_alone:
            yield
            return
        with saying(f"{CONTROL_LOCK}, the lock of {CONTROL_FILE}, cannot be opened"):
            descriptor = _open_lock(self._lock)
        try:
            self._wait_for(descriptor)
            self._is_alone = True
            yield
        finally:
            self._is_alone = False
            os.close(descriptor)

    def _wait_for(self, descriptor: int) -> None:
        deadline = time.monotonic() + self._patience_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise Conflict(
                        f"other processes have been changing {CONTROL_FILE} for {self._patience_seconds:g} "
                        f"s; try again (`fuser {CONTROL_LOCK}` lists them)"
                    ) from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise FailedPrecondition(f"{CONTROL_LOCK} cannot be locked: {error.strerror}") from error
                raise NoLocks(
                    f"{CONTROL_FILE} cannot be changed, because its file system has no locks "
                    f"({error.strerror}); mount it with locks, or change the file on a machine where it has "
                    "them"
                ) from error
            time.sleep(_PAUSE_SECONDS)


def _open_lock(file: Path) -> int:
    """Open the lock file, creating it if it is missing; for writing where possible, as NFS requires."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | flags, 0o666)
    except PermissionError:  # another user has created it
        descriptor = os.open(file, os.O_RDONLY | flags)
    try:
        open_file(file).close()  # refuses anything but a regular file, such as a pipe
        let_read(descriptor, file.parent)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
