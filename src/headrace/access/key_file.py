"""Read the key file: its entries, and the callers that they describe by public id."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.access import keys
from headrace.access.caller import USUAL_PRIORITIES, Caller
from headrace.access.caller_limits import CallerLimits
from headrace.access.globs import Globs
from headrace.access.permissions import Verb, bits
from headrace.base.errors import ConfigError
from headrace.base.files import read_text
from headrace.base.format_numbers import check_number
from headrace.config.access import CallerSettings
from headrace.config.checks import wrong
from headrace.config.toml_reader import convert, parse

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
        if not keys.is_id(self.id):
            raise wrong("id", "12 lower-case hexadecimal digits", self.id)
        if not keys.is_digest(self.digest):
            raise wrong("digest", "'sha256:' and 64 hexadecimal digits", f"{self.digest[:12]}…")
        check_globs("models", self.models)
        check_globs("spaces", self.spaces)
        if self.expires is not None and self.expires.tzinfo is None:
            raise wrong("expires", "a time with a time zone, such as 2030-01-31T12:00:00Z", str(self.expires))
        self.check_limits()
        if not set(self.priorities) <= {1, 2, 3}:
            raise wrong("priorities", "some of 1, 2, 3", self.priorities)

    def caller(self) -> Caller:
        """Return the caller that has this key."""
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
    """A key as requests look it up.

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
    """Return the keys of a file, as requests look them up.

    Args:
        file: Parsed file.
        before: Keys of the file before; those whose entries have not changed stay the same objects.
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
