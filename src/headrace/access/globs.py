"""Shell patterns of names: ``*``, ``?`` and ``[…]``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate

_LONGEST_NAME = 128  # of models and spaces; longer ones cannot exist
_REMEMBERED = 256
_WILD = frozenset("*?[")


class Globs:
    """A set of patterns that names are matched against.

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
