"""Who asks, as far as the server knows, and what it lets him do."""

from __future__ import annotations

from collections.abc import Collection
from contextvars import ContextVar
from datetime import UTC, datetime

from headrace.access.globs import Globs
from headrace.access.limits import CallerLimits
from headrace.access.verbs import ADMIN, ANY, named
from headrace.errors import PermissionDenied, shown

USUAL_PRIORITIES = (2, 3)
"""The classes that callers may give their requests unless their keys say otherwise; 1 is before all."""

NOBODY = ""
"""The name of a caller who need not say who he is, for what is open to everybody."""

OF_TOKENS = "jwt:"
"""What the names of callers with tokens begin with; those of keys cannot, so none is taken for another."""

_NO_NAMES = Globs(())


class Caller:
    """One who was let in. Not changed once made: a key that changes makes another.

    Attributes:
        name: What the operator calls him; several keys may be one caller's.
        verbs: What he may do, as bits.
        models: Of which models.
        spaces: Of which spaces of the archive.
        expires: When his key ends; None for never.
        proof: What he has shown, by which it can be asked later whether it still holds: the id of a key, or
            the digest of the one that a token is signed with.
        limits: How much he may ask; None for as much as he likes.
        priorities: The classes that he may give his requests.
        counted_as: What metrics call him: his name, unless there may be too many like him.
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
        """Describe a caller without limits; set those as attributes."""
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
        """Whether the time of his key has ended."""
        return self.expires is not None and datetime.now(UTC) >= self.expires

    def check_verbs(self, verbs: int) -> None:
        """Let him do what any of these verbs permits.

        Args:
            verbs: Bits; what is asked for permits one of them.

        Raises:
            PermissionDenied: He has none of them.
        """
        if not self.verbs & verbs:
            wanted = " or ".join(named(verbs)) if verbs != ANY else "any verb"
            has = ", ".join(named(self.verbs)) or "none"
            raise PermissionDenied(
                f"this needs a key that permits {wanted or 'a verb that no key has'}; "
                f"the key of {self.name!r} permits {has}; "
                "the operator of this server makes keys (headrace key new)"
            )

    def check_model(self, model: str) -> None:
        """Let him ask for a model; that says nothing of whether it is there.

        Raises:
            PermissionDenied: It is not among his.
        """
        if not self.models.match(model):
            raise self._denied("model", model, self.models)

    def check_space(self, space: str) -> None:
        """Let him ask for a space of the archive; as ``check_model``."""
        if not self.spaces.match(space):
            raise self._denied("space", space, self.spaces)

    def check_priority(self, priority: int) -> None:
        """Let him give a request a class.

        Raises:
            PermissionDenied: It is not among his.
        """
        if priority not in self.priorities:
            his = ", ".join(map(str, self.priorities)) or "none"
            raise PermissionDenied(f"the key of {self.name!r} permits the priorities {his}, not {priority}")

    def _denied(self, kind: str, name: str, his: Globs) -> PermissionDenied:
        which = ", ".join(his.texts) or "none"
        return PermissionDenied(
            f"the key of {self.name!r} permits no {kind} {shown(name)}; it permits {which:.500}; "
            "ask the operator of this server for another one"
        )


def as_permitted(told: str, whole: str) -> str:
    """What to tell the caller of the running task.

    Args:
        told: What everybody may know.
        whole: What only those may who may change what is served; "" for no more than that.
    """
    caller = ASKING.get()
    is_operator = AT_ADMINISTRATION.get() if caller is NOT_ADMITTED else caller.verbs & ADMIN
    return whole if whole and is_operator else told


NOT_ADMITTED = Caller(NOBODY, 0)
"""Who has not been looked at: he may do nothing."""

ASKING: ContextVar[Caller] = ContextVar("headrace_caller", default=NOT_ADMITTED)
"""Whose call this is; set where calls come in, for the task that answers it and those it starts.

Every call is answered in a task, which has a context of its own.
"""

AT_ADMINISTRATION: ContextVar[bool] = ContextVar("headrace_at_administration", default=False)
"""Whether the call came in where only administration does; where keys are asked for, they decide instead."""
