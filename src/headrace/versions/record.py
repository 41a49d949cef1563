"""The control record: what was decided about a model's versions. Pure; ``store`` keeps it.

It lies beside the version directories, which never change. What a model has once (its pin) stands at the top
and names a version by its key; what each version has of its own (its holds) stands under that key. What this
headrace does not know in it is kept, so that newer ones can put more there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from headrace.config import LARGEST_VERSION
from headrace.config.reading import explained
from headrace.errors import ConfigError, FailedPrecondition, InvalidRequest, shown
from headrace.formats import check_number
from headrace.versions.layout import CONTROL_FILE

FORMAT = 1
"""The format that is written; newer ones are not read."""

LARGEST_RECORD_BYTES = 2**20
"""The largest record that is read or written."""

MOST_CHANGES = 100
"""How many of the last changes are kept."""

MOST_HOLDS = 2000
"""The most holds that a model's versions may have together: with usual texts they fit by far."""

LONGEST_TEXT = 1000
"""The most characters of a reason, or of a name."""

WAY_OUT = "correct it, or move it away and decide anew with `headrace rollback`"
"""What an operator can do about a record that cannot be read."""

_LET_GO = "let go of some with `headrace hold DIR/NAME/N --holder NAME --release`"
_KEY = re.compile(r"sha256:[0-9a-f]{64}|number:(0|[1-9][0-9]{0,18})")
_LARGEST_REVISION = 2**53 - 1  # as far as every reader of JSON counts

_Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_VERSION)]


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """The one version that the operator has put first.

    Attributes:
        version: Its key.
        number: Its number, under which it lies.
        at: When it was decided, as ISO 8601 in UTC.
        by: Who decided.
        why: For what reason, or "".
    """

    version: str
    number: _Number
    at: str = ""
    by: str = ""
    why: str = ""


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """One reason for which a version is not deleted.

    Attributes:
        at: When it was given, as ISO 8601 in UTC.
        by: Who gave it.
        why: For what reason, or "".
    """

    at: str = ""
    by: str = ""
    why: str = ""


class VersionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided about one version.

    Attributes:
        number: Its number, under which it lies.
        holds: Why it is not deleted, by the name of who holds it.
    """

    number: _Number
    holds: dict[str, Hold] = {}


class _Format(msgspec.Struct, frozen=True):
    format: Annotated[int, msgspec.Meta(ge=1, le=_LARGEST_REVISION)]


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that this headrace knows."""

    revision: Annotated[int, msgspec.Meta(ge=0, le=_LARGEST_REVISION)]
    pin: Pin | None = None
    versions: dict[str, VersionEntry] = {}
    history: list[dict[str, object]] = []


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """What was decided about a model's versions.

    Attributes:
        document: All of it as it is stored, what this headrace does not know included.
        revision: How often it has changed; 0 when there is none yet.
        pin: The version that is put first; None for none.
        versions: What was decided about each version, by its key.
        history: The last changes, the newest last: what, when, by whom, why.
    """

    document: Mapping[str, object]
    revision: int
    pin: Pin | None
    versions: Mapping[str, VersionEntry]
    history: tuple[Mapping[str, object], ...]

    def holders(self, number: int) -> frozenset[str]:
        """Who holds what lies under a number, or did."""
        return frozenset(
            name for entry in self.versions.values() if entry.number == number for name in entry.holds
        )

    def holds(self) -> int:
        """How many holds there are, of all versions."""
        return sum(len(entry.holds) for entry in self.versions.values())

    def named_numbers(self) -> frozenset[int]:
        """The numbers of the versions that stay: pinned or held, whether or not they are there."""
        held = {entry.number for entry in self.versions.values() if entry.holds}
        return frozenset(held if self.pin is None else held | {self.pin.number})


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who changes something, when and why.

    Attributes:
        at: When, as ISO 8601 in UTC.
        by: Who.
        why: For what reason, or "".
    """

    at: str
    by: str
    why: str = ""


def number_key(number: int) -> str:
    """The key of a version without a manifest, or of whatever lies under a number."""
    return f"number:{number}"


def digest_key(digest: str) -> str:
    """The key of the version whose manifest has this SHA-256."""
    return f"sha256:{digest}"


def parse_record(content: bytes | None) -> ControlRecord:
    """Read a record.

    Args:
        content: What is stored; None for nothing.

    Raises:
        ConfigError: It is not a record, or one of a newer format.
    """
    if content is None:
        return _EMPTY
    try:
        document = msgspec.json.decode(content)
    except (ValueError, RecursionError) as error:  # msgspec's own, and what is not UTF-8
        raise ConfigError(f"{CONTROL_FILE}: not JSON: {error}; {WAY_OUT}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{CONTROL_FILE}: expected a table, got {type(document).__name__}; {WAY_OUT}")
    return _of(document)


def encode_record(record: ControlRecord) -> bytes:
    """Write a record, for people to read, too.

    Raises:
        ConfigError: It cannot be written again.
        FailedPrecondition: It would be larger than what is read.
    """
    try:
        text = json.dumps(record.document, indent=2, ensure_ascii=False, allow_nan=False)
        content = f"{text}\n".encode()
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{CONTROL_FILE}: cannot be written again: {error}; {WAY_OUT}") from error
    if len(content) > LARGEST_RECORD_BYTES:
        raise FailedPrecondition(
            f"{CONTROL_FILE}: would have {len(content)} bytes, where {LARGEST_RECORD_BYTES} are read, with "
            f"{record.holds()} holds; {_LET_GO}, or say shorter why"
        )
    return content


def with_pin(record: ControlRecord, key: str, number: int, stamp: Stamp) -> ControlRecord:
    """Put a version first, in place of the one that is."""
    pin = {"version": key, "number": number, "at": stamp.at, "by": stamp.by, "why": stamp.why}
    return _changed(record, f"pinned to version {number}", stamp, pin=pin)


def without_pin(record: ControlRecord, stamp: Stamp) -> ControlRecord:
    """Put no version first; nothing changes when none is."""
    if record.pin is None:
        return record
    return _changed(record, f"released from version {record.pin.number}", stamp, pin=None)


def with_hold(record: ControlRecord, key: str, number: int, holder: str, stamp: Stamp) -> ControlRecord:
    """Have a version held in somebody's name, in place of the hold that this one has.

    Raises:
        InvalidRequest: That is no name, or a text is too long.
        FailedPrecondition: There are as many holds as there may be.
    """
    if not holder:
        raise InvalidRequest("expected a name, got none", field="holder")
    _check_text("holder", holder)
    stored = _entry(record, key)
    entry = record.versions.get(key)
    if (entry is None or holder not in entry.holds) and (there := record.holds()) >= MOST_HOLDS:
        raise FailedPrecondition(
            f"{CONTROL_FILE}: has {there} holds, and may have {MOST_HOLDS}; {_LET_GO} "
            "(`headrace versions` lists who holds what)"
        )
    hold = {"at": stamp.at, "by": stamp.by, "why": stamp.why}
    changed = {**stored, "number": number, "holds": {**_table(stored.get("holds")), holder: hold}}
    return _with_entry(record, key, changed, f"version {number} held by {shown(holder)}", stamp)


def without_hold(record: ControlRecord, key: str, holder: str, stamp: Stamp) -> ControlRecord:
    """Take away the hold that somebody has on a version; nothing changes when there is none."""
    entry = record.versions.get(key)
    if entry is None or holder not in entry.holds:
        return record
    stored = _entry(record, key)
    holds = {name: hold for name, hold in _table(stored.get("holds")).items() if name != holder}
    left = {**stored, "holds": holds}
    if not holds:
        del left["holds"]
    is_empty = left.keys() <= {"number"}  # what newer ones have decided stays
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
    """The record that a document is, checked."""
    try:
        found = msgspec.convert(document, _Format).format
        check_number(found, FORMAT, CONTROL_FILE, ConfigError)  # before the rest: nothing is known of it
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
