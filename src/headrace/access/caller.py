"""The caller of a request, as far as it is known, and what it may do."""

from __future__ import annotations

from collections.abc import Collection
from contextvars import ContextVar
from datetime import UTC, datetime

from headrace.access.caller_limits import CallerLimits
from headrace.access.globs import Globs
from headrace.access.permissions import ADMIN, ANY, named
from headrace.base.errors import PermissionDenied, shown

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
            his = ", ".join(map(str, self.priorities)) or "none"
            raise PermissionDenied(f"the key of {self.name!r} permits the priorities {his}, not {priority}")

    def _denied(self, kind: str, name: str, his: Globs) -> PermissionDenied:
        which = ", ".join(his.texts) or "none"
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
