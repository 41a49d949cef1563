"""What a key can permit: a few verbs, each a bit, so that a request is checked by one operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

Verb = Literal["predict", "feedback", "archive-read", "archive-write", "route", "admin", "metrics", "health"]
"""A kind of request. ``feedback`` and ``route`` can be permitted already; nothing asks for them yet."""

VERBS: tuple[Verb, ...] = get_args(Verb)
"""All of them; the place of each is its bit."""


def bits(verbs: Iterable[Verb]) -> int:
    """The bits of some verbs together."""
    return sum(1 << VERBS.index(verb) for verb in set(verbs))


PREDICT = bits(["predict"])
ARCHIVE_READ = bits(["archive-read"])
ARCHIVE_WRITE = bits(["archive-write"])
ADMIN = bits(["admin"])
METRICS = bits(["metrics"])
HEALTH = bits(["health"])
DESCRIBE = bits(["predict", "feedback", "route", "admin"])
"""What tells of a model, such as its inputs: for everybody who may do something with it."""

DESCRIBE_ARCHIVE = bits(["archive-read", "archive-write", "admin"])
"""The same for a space."""

ANY = bits(VERBS)
"""Routes that describe the server: every caller with a valid key may ask for them."""

UNDECLARED = 0
"""A route that declares no verbs: nobody may call it."""


def named(mask: int) -> tuple[Verb, ...]:
    """The verbs of some bits."""
    return tuple(verb for place, verb in enumerate(VERBS) if mask >> place & 1)
