"""Groups of numbers that are joined by pairs, directly or through others."""

from __future__ import annotations

import numpy as np

from headrace.similarity.stored_rows import Numbers


class Grouping:
    """Joins numbers by pairs as they arrive, in memory proportional to the numbers, not the pairs."""

    def __init__(self, count: int) -> None:
        """Start with each number in a group of its own.

        Args:
            count: Number of numbers.
        """
        self._root = np.arange(count, dtype=np.int64)
        self._waiting: list[tuple[Numbers, Numbers]] = []
        self._pairs = 0

    def join(self, left: Numbers, right: Numbers) -> None:
        """Put the two numbers of each pair into one group."""
        apart = self._root[left] != self._root[right]
        self._waiting.append((left[apart], right[apart]))
        self._pairs += int(np.count_nonzero(apart))
        # Joining takes a pass over all numbers, so wait for as many pairs.
        if self._pairs >= len(self._root):
            self._settle()

    def roots(self) -> Numbers:
        """Return the smallest number of each number's group, ``[count]``."""
        self._settle()
        return self._root

    def _settle(self) -> None:
        if not self._pairs:
            self._waiting = []
            return
        left = np.concatenate([pair[0] for pair in self._waiting])
        right = np.concatenate([pair[1] for pair in self._waiting])
        self._waiting, self._pairs = [], 0
        root = self._root
        while True:
            one, other = root[left], root[right]
            apart = one != other
            if not apart.any():
                break
            left, right, one, other = left[apart], right[apart], one[apart], other[apart]
            # Attach each root to the smallest root it is paired with, which cannot create a cycle.
            np.minimum.at(root, np.maximum(one, other), np.minimum(one, other))
            while not np.array_equal(above := root[root], root):
                root[:] = above
