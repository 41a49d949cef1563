"""Whether all of many models have come to something, asked at each change of one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Unsettled:
    """The models that had come to nothing when they were looked at last.

    While a server starts, each change asks whether that was the last one. To look at all models each time
    would take the square of their number; here each is looked at a few times, however many there are.
    """

    def __init__(self, names: Callable[[], Iterable[str]], is_settled: Callable[[str], bool]) -> None:
        """Begin with none.

        Args:
            names: The names of all models, now.
            is_settled: Whether a model has come to something; so has one that is not there any more.
        """
        self._names, self._is_settled = names, is_settled
        self._left: list[str] = []

    def is_none(self) -> bool:
        """Whether all models have come to something now."""
        left = self._left
        while left and self._is_settled(left[-1]):
            left.pop()
        if not left:  # those that have come to something may have lost it again
            left.extend(name for name in self._names() if not self._is_settled(name))
        return not left
