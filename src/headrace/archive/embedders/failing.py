"""How one content fails: raised within an embedder, which makes a ``Failure`` of it."""

from __future__ import annotations

from headrace.archive.embedders.embedder import Failure
from headrace.errors import HeadraceError


class Failing(HeadraceError):
    """There is no vector of one content.

    Attributes:
        failure: Why.
    """

    def __init__(self, reason: str, *, is_final: bool) -> None:
        """Say why.

        Args:
            reason: For people: what was expected, what came.
            is_final: Whether trying again cannot help.
        """
        super().__init__(reason)
        self.failure = Failure(self.message, is_final)


def never(reason: str) -> Failing:
    """A content that will not have a vector however often it is tried."""
    return Failing(reason, is_final=True)


def not_now(reason: str) -> Failing:
    """A content that may have one later."""
    return Failing(reason, is_final=False)
