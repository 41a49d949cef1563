"""The caller of a request, as far as it is known, its limits, and what it may do."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextvars import ContextVar
from datetime import UTC, datetime
from fnmatch import translate
from typing import NamedTuple

from headrace.access.permissions import ADMIN, ANY, named
from headrace.base.errors import PermissionDenied, shown
from headrace.config.access import CallerSettings

# Limits apply to a caller over all processes of a server. They are pure functions of a few numbers.


class CallerLimits(NamedTuple):
    """Limits on a caller, set by its key, or by the settings for tokens; 0 for no limit.

    Attributes:
        requests_per_second: Calls, and messages of streams, per second.
        rows_per_second: Rows of predictions per second.
        burst_seconds: Size of a burst, in seconds' worth of the rate.
        concurrent_requests: Calls being answered at a time.
    """

    requests_per_second: float = 0.0
    rows_per_second: float = 0.0
    burst_seconds: float = 1.0
    concurrent_requests: int = 0

    @classmethod
    def of(cls, settings: CallerSettings) -> CallerLimits:
        """Return the limits in some settings."""
        return cls(*(getattr(settings, name) for name in cls._fields))

    @property
    def any(self) -> bool:
        """Whether any limit is set."""
        return bool(self.requests_per_second or self.rows_per_second or self.concurrent_requests)


def taken(due: float, now: float, amount: float, rate: float) -> float:
    """Return the time at which all that was taken, including ``amount``, will have been earned (GCRA).

    Args:
        due: Time at which what was taken before will have been earned, on the monotonic clock.
        now: Current time on that clock.
        amount: Amount to take.
        rate: Amount earned per second.
    """
    return max(due, now) + amount / rate


def wait(due: float, now: float, burst_seconds: float) -> float:
    """Return the seconds until something may be taken; 0.0 if it may be taken now.

    Taking is allowed while at most a burst is owed, whatever the amount. An amount that is known only later,
    or is larger than a burst, is therefore admitted, and delays what the caller takes next.

    Args:
        due: Time at which what was taken before will have been earned, on the monotonic clock.
        now: Current time on that clock.
        burst_seconds: Largest debt in seconds.
    """
    return max(0.0, due - now - burst_seconds)


_LONGEST_NAME = 128  # of models and spaces; longer ones cannot exist
_REMEMBERED = 256
_WILD = frozenset("*?[")


class Globs:
    """A set of shell patterns (``*``, ``?`` and ``[…]``) that names are matched against.

    Attributes:
        texts: The patterns.
        everything: Whether every name matches.
    """

    __slots__ = ("_known", "_names", "_patterns", "everything", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        """Compile patterns.

        Args:
            texts: Patterns such as ``ctr*``; none to match no name at all.
        """
        self.texts = tuple(texts)
        self.everything = "*" in self.texts
        self._names = frozenset(text for text in self.texts if not _WILD.intersection(text))
        self._patterns = tuple(re.compile(translate(text)) for text in self.texts if text not in self._names)
        self._known: dict[str, bool] = {}

    def match(self, name: str) -> bool:
        """Return whether a name matches; results are cached for a bounded number of names."""
        if self.everything:
            return True
        found = self._known.get(name)
        if found is None:
            if not 0 < len(name) <= _LONGEST_NAME:
                return False
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            found = self._known[name] = name in self._names or any(
                one.match(name) is not None for one in self._patterns
            )
        return found


USUAL_PRIORITIES = (2, 3)
"""Priority classes that callers may use unless their keys say otherwise; class 1 is served first."""

NOBODY = ""
"""Name of a caller without credentials, for requests that are open to everybody."""

OF_TOKENS = "jwt:"
"""Prefix of the names of callers with tokens. Names of keys cannot have it, so the two never collide."""

_NO_NAMES = Globs(())


class Caller:
    """A caller that was admitted. Not changed once set up: a changed key makes a new one.

    Attributes:
        name: Name given by the operator, which several keys may share, or derived from the token.
        verbs: Permitted verbs, as bits.
        models: Permitted models.
        spaces: Permitted spaces of the archive.
        expires: Expiry of the key or token; None for never.
        proof: Evidence that is checked again later: the id of the key, or the thumbprint of the key that
            signed the token.
        limits: Limits on the caller; None for none.
        priorities: Permitted priority classes.
        counted_as: Name in metrics: ``name``, unless there may be too many such callers.
    """

    __slots__ = (
        "counted_as",
        "expires",
        "limits",
        "models",
        "name",
        "priorities",
        "proof",
        "spaces",
        "verbs",
    )

    def __init__(
        self,
        name: str,
        verbs: int,
        *,
        models: Globs = _NO_NAMES,
        spaces: Globs = _NO_NAMES,
        expires: datetime | None = None,
        proof: str = "",
    ) -> None:
        """Create a caller without limits; set ``limits`` and ``priorities`` afterwards."""
        self.name = name
        self.verbs = verbs
        self.models = models
        self.spaces = spaces
        self.expires = expires
        self.proof = proof
        self.limits: CallerLimits | None = None
        self.counted_as = name
        self.priorities: Collection[int] = USUAL_PRIORITIES

    def is_over(self) -> bool:
        """Return whether the key or token has expired."""
        return self.expires is not None and datetime.now(UTC) >= self.expires

    def check_verbs(self, verbs: int) -> None:
        """Check that the caller has one of some verbs.

        Args:
            verbs: Verbs as bits, any of which suffices.

        Raises:
            PermissionDenied: The caller has none of them.
        """
        if not self.verbs & verbs:
            wanted = " or ".join(named(verbs)) if verbs != ANY else "any verb"
            has = ", ".join(named(self.verbs)) or "none"
            raise PermissionDenied(
                f"this call requires a key that permits {wanted or 'a verb that no key has'}; "
                f"the key of {self.name!r} permits {has}; "
                "ask the operator of this server for another key (headrace key new)"
            )

    def check_model(self, model: str) -> None:
        """Check that the caller may use a model, whether or not it exists.

        Raises:
            PermissionDenied: The model is not permitted.
        """
        if not self.models.match(model):
            raise self._denied("model", model, self.models)

    def check_space(self, space: str) -> None:
        """Check that the caller may use a space of the archive; as ``check_model``."""
        if not self.spaces.match(space):
            raise self._denied("space", space, self.spaces)

    def check_priority(self, priority: int) -> None:
        """Check that the caller may use a priority class.

        Raises:
            PermissionDenied: The class is not permitted.
        """
        if priority not in self.priorities:
            own = ", ".join(map(str, self.priorities)) or "none"
            raise PermissionDenied(f"the key of {self.name!r} permits the priorities {own}, not {priority}")

    def _denied(self, kind: str, name: str, own: Globs) -> PermissionDenied:
        which = ", ".join(own.texts) or "none"
        return PermissionDenied(
            f"the key of {self.name!r} does not permit {kind} {shown(name)}; it permits {which:.500}; "
            "ask the operator of this server for another key"
        )


def as_permitted(told: str, whole: str) -> str:
    """Return as much of a text as the caller of the running task may see.

    Args:
        told: Text for every caller.
        whole: Text for callers who may administer the server; "" if it is the same.
    """
    caller = ASKING.get()
    is_operator = AT_ADMINISTRATION.get() if caller is NOT_ADMITTED else caller.verbs & ADMIN
    return whole if whole and is_operator else told


NOT_ADMITTED = Caller(NOBODY, 0)
"""Caller of a call that no gate has checked; it has no permissions."""

ASKING: ContextVar[Caller] = ContextVar("headrace_caller", default=NOT_ADMITTED)
"""Caller of the current call; set where calls arrive, for the task that handles it and those it starts.

Every call is handled in a task, which has a context of its own.
"""

AT_ADMINISTRATION: ContextVar[bool] = ContextVar("headrace_at_administration", default=False)
"""Whether the call arrived on an administration listener; behind a gate, verbs decide instead."""
