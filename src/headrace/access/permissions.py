"""The verbs that a key can permit; each is a bit, so that one operation checks a request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from headrace.base.errors import FailedPrecondition

Verb = Literal["predict", "feedback", "archive-read", "archive-write", "route", "admin", "metrics", "health"]
"""A kind of request. ``feedback`` and ``route`` so far permit only descriptions of models."""

VERBS: tuple[Verb, ...] = get_args(Verb)
"""All verbs; the index of each is its bit."""


def bits(verbs: Iterable[Verb]) -> int:
    """Return the bits of some verbs together."""
    return sum(1 << VERBS.index(verb) for verb in set(verbs))


PREDICT = bits(["predict"])
ARCHIVE_READ = bits(["archive-read"])
ARCHIVE_WRITE = bits(["archive-write"])
ADMIN = bits(["admin"])
METRICS = bits(["metrics"])
HEALTH = bits(["health"])
DESCRIBE = bits(["predict", "feedback", "route", "admin"])
"""Verbs for descriptions of a model, such as its inputs: permission to do anything with it suffices."""

DESCRIBE_ARCHIVE = bits(["archive-read", "archive-write", "admin"])
"""Verbs for descriptions of a space: permission to do anything with it suffices."""

ANY = bits(VERBS)
"""Verbs of routes that describe the server: every caller with a valid key may call them."""

UNDECLARED = 0
"""Verbs of a route that declares none: nobody may call it."""


def check_admin(what: str, *, is_on: bool) -> None:
    """Check that administration over the network is on.

    Args:
        what: The action, for the error.
        is_on: Whether it is on.

    Raises:
        FailedPrecondition: It is off.
    """
    if not is_on:
        raise FailedPrecondition(f"{what} over the network is off; start the server with --admin")


def named(mask: int) -> tuple[Verb, ...]:
    """Return the verbs of some bits."""
    return tuple(verb for place, verb in enumerate(VERBS) if mask >> place & 1)
