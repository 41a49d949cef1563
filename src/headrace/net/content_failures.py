"""The failure of one content: embedders raise ``Failing`` internally, and return its ``Failure``."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.base.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a content has no vector.

    Attributes:
        reason: Text for people, with the expected and the actual value; kept in dead letters.
        is_final: True if a retry cannot help (not found, not an image, too large), False if it might (no
            connection, a busy server).
    """

    reason: str
    is_final: bool


class Failing(HeadraceError):
    """A content has no vector.

    Attributes:
        failure: The reason.
    """

    def __init__(self, reason: str, *, is_final: bool) -> None:
        """Create the failure.

        Args:
            reason: Text for people, with the expected and the actual value.
            is_final: Whether a retry cannot help.
        """
        super().__init__(reason)
        self.failure = Failure(self.message, is_final)


def never(reason: str) -> Failing:
    """Return the error for a content that will never have a vector."""
    return Failing(reason, is_final=True)


def not_now(reason: str) -> Failing:
    """Return the error for a content that may have a vector later."""
    return Failing(reason, is_final=False)
