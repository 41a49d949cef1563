"""Efficient check, at each change of a model, whether all models have settled."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Unsettled:
    """The models that had not settled at the last check.

    At start-up, each change of a model checks whether it was the last to settle. Checking all models each
    time would take quadratic time; here each model is checked a few times only.
    """

    def __init__(self, names: Callable[[], Iterable[str]], is_settled: Callable[[str], bool]) -> None:
        """Begin with an empty list.

        Args:
            names: Returns the current names of all models.
            is_settled: Returns whether a model has settled; True for a model that no longer exists.
        """
        self._names, self._is_settled = names, is_settled
        self._left: list[str] = []

    def is_none(self) -> bool:
        """Return whether all models have settled."""
        left = self._left
        while left and self._is_settled(left[-1]):
            left.pop()
        if not left:  # a settled model may have become unsettled again
            left.extend(name for name in self._names() if not self._is_settled(name))
        return not left
