"""The file of keys: what it says, as callers by the public names of their keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.access import keys
from headrace.access.caller import USUAL_PRIORITIES, Caller
from headrace.access.globs import Globs
from headrace.access.limits import CallerLimits
from headrace.access.verbs import Verb, bits
from headrace.config.access import CallerSettings
from headrace.config.checks import wrong
from headrace.config.reading import convert, parse
from headrace.disk import read_text
from headrace.errors import ConfigError
from headrace.formats import check_number

FORMAT = 1
"""The format of the file; newer ones are not read. Without a number, it is the first."""

MOST_KEYS = 10_000
"""The most keys of one file."""

_LARGEST_FILE_BYTES = 2**24
_MOST_NAMES, _LONGEST_GLOB = 1000, 128
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
"""What callers may be called: names are in metrics and in logs."""

A_NAME = "a letter or digit, then up to 63 letters, digits, dots, _, @ and -"
"""The same in words."""


class KeyEntry(CallerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[key]]`` of the file.

    Attributes:
        name: Whose key it is; several keys may be one caller's.
        id: Its public name.
        digest: What is kept of it.
        verbs: What it permits.
        models: Patterns of the names of models that it permits.
        spaces: The same for spaces of the archive.
        expires: When it ends; None for never.
        priorities: The classes that requests may have, 1 to 3; 1 is before all.
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
        """Check each."""
        if not NAME.fullmatch(self.name):
            raise wrong("name", A_NAME, self.name)
        if not keys.is_id(self.id):
            raise wrong("id", "12 hexadecimal digits", self.id)
        if not keys.is_digest(self.digest):
            raise wrong("digest", "'sha256:' and 64 hexadecimal digits", f"{self.digest[:12]}…")
        check_globs("models", self.models)
        check_globs("spaces", self.spaces)
        if self.expires is not None and self.expires.tzinfo is None:
            raise wrong("expires", "a time with its zone, such as 2030-01-31T12:00:00Z", str(self.expires))
        self.check_limits()
        if not set(self.priorities) <= {1, 2, 3}:
            raise wrong("priorities", "some of 1, 2, 3", self.priorities)

    def caller(self) -> Caller:
        """Who has this key."""
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
        format: The version of this format.
        key: Its keys, in its order.
    """

    format: int = FORMAT
    key: tuple[KeyEntry, ...] = ()

    def __post_init__(self) -> None:
        """Check that no key is there twice."""
        if len(self.key) > MOST_KEYS:
            raise wrong("key", f"at most {MOST_KEYS} keys", f"{len(self.key)}")
        seen: set[str] = set()
        for entry in self.key:
            if entry.id in seen:
                raise wrong("key", "each id once", f"{entry.id} twice")
            seen.add(entry.id)


class Known(NamedTuple):
    """A key as requests find it.

    Attributes:
        digest: What it must have.
        caller: Whose it is; another one as soon as the file says anything else of the key.
        entry: What the file says.
    """

    digest: str
    caller: Caller
    entry: KeyEntry


Keys = Mapping[str, Known]
"""Keys by their public names."""


def check_globs(key: str, globs: tuple[str, ...], most: int = _MOST_NAMES) -> None:
    """Refuse what is no pattern of names.

    Args:
        key: The setting.
        globs: Its patterns.
        most: How many there can be.

    Raises:
        ConfigError: There are too many, or one is empty, too long, or holds what no name holds.
    """
    if len(globs) > most:
        raise wrong(key, f"at most {most} patterns", f"{len(globs)}")
    for glob in globs:
        if not 0 < len(glob) <= _LONGEST_GLOB or not glob.isprintable() or "/" in glob:
            raise wrong(key, f"patterns such as 'ctr*', of at most {_LONGEST_GLOB} letters", glob[:200])


def parse_keys(text: str, where: str) -> KeyFile:
    """Read what a file of keys says.

    Args:
        text: Its content.
        where: What to call it in errors.

    Raises:
        ConfigError: It is not TOML, of a newer format, or an entry is wrong.
    """
    if not text.strip():  # as a file is that is just being written
        raise ConfigError(f"{where}: it is empty; a comment will do where there shall be no keys")
    table = parse(text, where)
    check_number(table.get("format"), FORMAT, where, ConfigError)
    return convert(table, KeyFile, where)


def read_keys(file: Path) -> KeyFile:
    """Read a file of keys.

    Raises:
        ConfigError: It cannot be read, or an entry is wrong.
    """
    try:
        text = read_text(file, _LARGEST_FILE_BYTES)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}; headrace key new makes one") from error
    return parse_keys(text, str(file))


def as_keys(file: KeyFile, before: Keys | None = None) -> Keys:
    """The keys of a file, as requests find them.

    Args:
        file: What it says.
        before: What it said before: of what it still says, the callers stay the same objects.
    """
    before = before or {}
    made = {}
    for entry in file.key:
        known = before.get(entry.id)
        is_same = known is not None and known.entry == entry
        made[entry.id] = known if known and is_same else Known(entry.digest, entry.caller(), entry)
    return made


def states(entry: KeyEntry) -> str:
    """Whether a key can be used now: ``valid`` or ``expired``."""
    return "expired" if entry.expires is not None and datetime.now(UTC) >= entry.expires else "valid"
