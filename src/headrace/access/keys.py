"""API keys: their form, the key file and its callers, its edits, and watching it for changes.

A key is 256 random bits with a public id in front; the server keeps only a digest. ``hrk_`` ID ``_`` SECRET:
the prefix lets scanners find keys that were published by mistake. The id finds the entry without comparing a
secret; then the digest of the whole key is compared in constant time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sized
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec

from headrace.access.caller import USUAL_PRIORITIES, Caller, CallerLimits, Globs
from headrace.access.permissions import Verb, bits
from headrace.base.errors import ConfigError, Conflict
from headrace.base.files import FileState, file_state, read_text
from headrace.base.format_numbers import check_number
from headrace.config.access import CallerSettings
from headrace.config.checks import wrong
from headrace.config.toml_reader import convert, parse

_log = logging.getLogger(__name__)

PREFIX = "hrk_"
_ID_BYTES, _SECRET_BYTES = 6, 32
_ID = rf"[0-9a-f]{{{2 * _ID_BYTES}}}"
_FORM = re.compile(rf"{PREFIX}({_ID})_[A-Za-z0-9_-]{{43}}".encode())
_IDS = re.compile(_ID)
_DIGESTS = re.compile(r"sha256:[0-9a-f]{64}")
KEY_BYTES = len(PREFIX) + 2 * _ID_BYTES + 1 + 43
"""Length of every key in bytes."""


class NewKey(NamedTuple):
    """A newly generated key, whose text cannot be recovered later.

    Attributes:
        id: Public id.
        text: The key itself, for its owner.
        digest: Digest kept by the server: ``sha256:`` and 64 hexadecimal digits.
    """

    id: str
    text: str
    digest: str


def draw() -> NewKey:
    """Generate a key."""
    public = secrets.token_hex(_ID_BYTES)
    secret = base64.urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).rstrip(b"=").decode()
    text = f"{PREFIX}{public}_{secret}"
    return NewKey(public, text, digest_of(text.encode()))


def digest_of(key: bytes) -> str:
    """Return the digest that is kept of a key.

    It is a plain SHA-256: 256 random bits cannot be guessed, so a slow hash would protect nothing, and every
    request would pay for it.
    """
    return f"sha256:{hashlib.sha256(key).hexdigest()}"


def id_of(key: bytes) -> str | None:
    """Return the public id of a key; None for bytes that do not have the form of a key."""
    if len(key) != KEY_BYTES:
        return None
    found = _FORM.fullmatch(key)
    return found[1].decode() if found else None


def is_key(key: bytes, digest: str) -> bool:
    """Return whether a digest is that of a key; the comparison takes constant time."""
    return hmac.compare_digest(digest_of(key), digest)


def is_id(text: str) -> bool:
    """Return whether a text has the form of a public id."""
    return _IDS.fullmatch(text) is not None


def is_digest(text: str) -> bool:
    """Return whether a text has the form of a key's digest."""
    return _DIGESTS.fullmatch(text) is not None


FORMAT = 1
"""Format of the file; newer ones are not read. Without a number, it is the first."""

MOST_KEYS = 10_000
"""Largest number of keys in a file."""

_LARGEST_FILE_BYTES = 2**24
_MOST_NAMES, _LONGEST_GLOB = 1000, 128
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
"""Form of callers' names, which appear in metrics and logs."""

A_NAME = "a letter or digit, then up to 63 letters, digits, dots, _, @ and -"
"""Description of that form, for errors."""


class KeyEntry(CallerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[key]]`` of the file.

    Attributes:
        name: Name of the caller; several keys may share it.
        id: Public id of the key.
        digest: Digest of the key.
        verbs: Permitted verbs.
        models: Patterns of the names of permitted models.
        spaces: Patterns of the names of permitted spaces of the archive.
        expires: Expiry of the key; None for never.
        priorities: Permitted priority classes, 1 to 3; class 1 is served first.
    """

    name: str
    id: str
    digest: str
    verbs: tuple[Verb, ...]
    models: tuple[str, ...] = ()
    spaces: tuple[str, ...] = ()
    expires: datetime | None = None
    priorities: tuple[int, ...] = USUAL_PRIORITIES

    def __post_init__(self) -> None:
        """Check the values."""
        if not NAME.fullmatch(self.name):
            raise wrong("name", A_NAME, self.name)
        if not is_id(self.id):
            raise wrong("id", "12 lower-case hexadecimal digits", self.id)
        if not is_digest(self.digest):
            raise wrong("digest", "'sha256:' and 64 hexadecimal digits", f"{self.digest[:12]}…")
        check_globs("models", self.models)
        check_globs("spaces", self.spaces)
        if self.expires is not None and self.expires.tzinfo is None:
            raise wrong("expires", "a time with a time zone, such as 2030-01-31T12:00:00Z", str(self.expires))
        self.check_limits()
        if not set(self.priorities) <= {1, 2, 3}:
            raise wrong("priorities", "some of 1, 2, 3", self.priorities)

    def caller(self) -> Caller:
        """Return a new Caller with the permissions and limits of this key."""
        made = Caller(
            self.name,
            bits(self.verbs),
            models=Globs(self.models),
            spaces=Globs(self.spaces),
            expires=self.expires,
            proof=self.id,
        )
        limits = CallerLimits.of(self)
        made.limits = limits if limits.any else None
        made.priorities = self.priorities
        return made


class KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file.

    Attributes:
        format: Number of the format.
        key: Keys in the file's order.
    """

    format: int = FORMAT
    key: tuple[KeyEntry, ...] = ()

    def __post_init__(self) -> None:
        """Check the number of keys, and that no id is given twice."""
        if len(self.key) > MOST_KEYS:
            raise wrong("key", f"at most {MOST_KEYS} keys", f"{len(self.key)}")
        seen: set[str] = set()
        for entry in self.key:
            if entry.id in seen:
                raise wrong("key", "each id once", f"{entry.id} twice")
            seen.add(entry.id)


class Known(NamedTuple):
    """An entry of the key file, prepared for checking requests.

    Attributes:
        digest: Digest that the key must have.
        caller: Caller that has the key; a new object whenever the key's entry changes.
        entry: Entry in the file.
    """

    digest: str
    caller: Caller
    entry: KeyEntry


Keys = Mapping[str, Known]
"""Keys by public id."""


def check_globs(key: str, globs: tuple[str, ...], most: int = _MOST_NAMES) -> None:
    """Check patterns of names.

    Args:
        key: Name of the setting.
        globs: Patterns.
        most: Largest number of patterns.

    Raises:
        ConfigError: There are too many, or one is empty, too long, or has a slash or unprintable character.
    """
    if len(globs) > most:
        raise wrong(key, f"at most {most} patterns", f"{len(globs)}")
    for glob in globs:
        if not 0 < len(glob) <= _LONGEST_GLOB or not glob.isprintable() or "/" in glob:
            raise wrong(key, f"patterns such as 'ctr*', of at most {_LONGEST_GLOB} characters", glob[:200])


def parse_keys(text: str, where: str) -> KeyFile:
    """Parse the content of a key file.

    Args:
        text: Content of the file.
        where: Name of the file, for errors.

    Raises:
        ConfigError: It is empty, not TOML, of a newer format, or an entry is invalid.
    """
    if not text.strip():  # a file may be empty while it is being written
        raise ConfigError(f"{where}: the file is empty; if there are to be no keys, write a comment")
    table = parse(text, where)
    check_number(table.get("format"), FORMAT, where, ConfigError)
    return convert(table, KeyFile, where)


def read_keys(file: Path) -> KeyFile:
    """Read a key file.

    Raises:
        ConfigError: It cannot be read, or an entry is invalid.
    """
    try:
        text = read_text(file, _LARGEST_FILE_BYTES)
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}; create it with headrace key new"
        ) from error
    return parse_keys(text, str(file))


def as_keys(file: KeyFile, before: Keys | None = None) -> Keys:
    """Return the keys of a file by public id, prepared for checking requests.

    Args:
        file: Parsed file.
        before: Keys of the previous file; those whose entries have not changed stay the same objects.
    """
    before = before or {}
    made = {}
    for entry in file.key:
        known = before.get(entry.id)
        is_same = known is not None and known.entry == entry
        made[entry.id] = known if known and is_same else Known(entry.digest, entry.caller(), entry)
    return made


def states(entry: KeyEntry) -> str:
    """Return the state of a key: ``valid`` or ``expired``."""
    return "expired" if entry.expires is not None and datetime.now(UTC) >= entry.expires else "valid"


# Edits of a key file are checked by reading the result. Comments are kept, except those between the
# ``[[key]]`` line of a removed key and the next table.

NEW_FILE = """# Keys of this server's callers. `headrace key new` and `revoke` edit this file, and so may you.
# It contains only the digests of the keys, never the keys.
"""
_KEY_BEGINS = re.compile(r"^[ \t]*\[\[[ \t]*key[ \t]*\]\]", re.MULTILINE)
_TABLE_BEGINS = re.compile(r"^[ \t]*\[", re.MULTILINE)


def with_key(text: str, entry: KeyEntry, where: str) -> str:
    """Return a file with one more key, at its end.

    Args:
        text: Content of the file.
        entry: Key to add.
        where: Name of the file, for errors.

    Raises:
        ConfigError: The file is invalid already.
        Conflict: It is written in a way that does not allow adding a key.
    """
    before = parse_keys(text, where)
    made = f"{text.rstrip()}\n\n{_block(entry)}"
    return _read_back(made, (*before.key, entry), where)


def without_keys(text: str, ids: Collection[str], where: str) -> str:
    """Return a file without some keys.

    Args:
        text: Content of the file.
        ids: Public ids of the keys to remove.
        where: Name of the file, for errors.

    Raises:
        ConfigError: The file is invalid already.
        Conflict: It is written in a way that does not allow cutting them out.
    """
    before = parse_keys(text, where)
    pieces, last = [], 0
    for number, begins in enumerate(_KEY_BEGINS.finditer(text)):
        after = _TABLE_BEGINS.search(text, begins.end())
        ends = len(text) if after is None else after.start()
        if number < len(before.key) and before.key[number].id in ids:
            pieces.append(text[last : begins.start()])
            last = ends
    left = [entry for entry in before.key if entry.id not in ids]
    return _read_back("".join([*pieces, text[last:]]), left, where)


def _read_back(made: str, expected: Iterable[KeyEntry], where: str) -> str:
    if parse_keys(made, where) != KeyFile(key=tuple(expected)):
        raise Conflict(f"{where} has a form that cannot be changed automatically; change it with an editor")
    return made


def _block(entry: KeyEntry) -> str:
    lines = ["[[key]]", f'name = "{entry.name}"', f'id = "{entry.id}"', f'digest = "{entry.digest}"']
    lines += [f"{key} = {_list(getattr(entry, key))}" for key in ("verbs", "models", "spaces")]
    if entry.requests_per_second:
        lines.append(f"requests_per_second = {entry.requests_per_second!r}")
    if entry.rows_per_second:
        lines.append(f"rows_per_second = {entry.rows_per_second!r}")
    if entry.burst_seconds != 1.0:
        lines.append(f"burst_seconds = {entry.burst_seconds!r}")
    if entry.concurrent_requests:
        lines.append(f"concurrent_requests = {entry.concurrent_requests}")
    if entry.priorities != USUAL_PRIORITIES:
        lines.append(f"priorities = [{', '.join(map(str, entry.priorities))}]")
    if entry.expires is not None:
        lines.append(f"expires = {entry.expires:%Y-%m-%dT%H:%M:%SZ}")
    return "\n".join(lines) + "\n"


def _list(texts: Iterable[str]) -> str:
    quoted = ", ".join('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts)
    return f"[{quoted}]"


# Watching the key file: if it becomes invalid, the previous keys stay in force.

LOOK_SECONDS = 1.0
"""Interval in seconds between checks of the file."""


def is_to_be_read(taken: FileState | None, before: FileState | None, now: FileState) -> bool:
    """Return whether to read a file.

    A file that was renamed into place is complete. One that is written in place may be incomplete, and still
    be valid TOML. So it is read once it has not changed between two checks.

    Args:
        taken: State of the file when it was last read.
        before: State at the previous check.
        now: Current state.
    """
    if now == taken:
        return False
    return taken is None or now.inode != taken.inode or now == before


Found = TypeVar("Found", bound=Sized)


class Watched(Generic[Found]):
    """A watched file of keys of any kind. Used by one thread at a time.

    Attributes:
        file: Path of the file.
        problem: Current problem with the file; "" if there is none.
        keys: Keys in force, from the last valid file.
    """

    def __init__(self, file: Path, read: Callable[[Path, Found | None], Found]) -> None:
        """Read the file.

        Args:
            file: Path of the file.
            read: Function that reads it; also receives the keys in force, None at first.

        Raises:
            ConfigError: It cannot be read, or an entry is wrong.
        """
        self.file = file
        self._taken = file_state(file)
        self._before = self._taken
        self.problem = ""
        self._read = read
        self.keys: Found = read(file, None)

    def look(self) -> bool:
        """Read the file again if it has changed; may block on disk I/O.

        Returns:
            Whether there are new keys.
        """
        now = file_state(self.file)
        if now is None:
            self._taken = None  # so that the same file is read again when it is back
            return self._fails(f"{self.file} does not exist, or cannot be accessed")
        before, self._before = self._before, now
        if not is_to_be_read(self._taken, before, now):
            return False
        taken, self._taken = self._taken, now
        try:
            keys = self._read(self.file, self.keys)
        except ConfigError as error:
            if isinstance(error.__cause__, OSError):  # such as no free descriptor: retry
                self._taken = taken
            return self._fails(error.message)
        self.problem, self.keys = "", keys
        _log.info("the keys were reloaded", extra={"file": str(self.file), "keys": len(keys)})
        return True

    def _fails(self, problem: str) -> bool:
        if problem != self.problem:
            self.problem = problem
            _log.error("the keys cannot be reloaded; the previous keys stay valid: %s", problem)
        return False


class WatchedKeys(Watched[Keys]):
    """The watched key file."""

    def __init__(self, file: Path) -> None:
        """Read the file; as ``Watched``."""
        super().__init__(file, lambda file, before: as_keys(read_keys(file), before))
