"""The exception for a content that fails. Raised within an embedder, which turns it into a ``Failure``."""

from __future__ import annotations

from headrace.archive.embedders.embedder import Failure
from headrace.errors import HeadraceError


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
