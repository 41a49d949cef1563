"""What earlier looks have read, for as long as its files look the same: most looks read no file again.

A file is what it was when the system says the same of it: which file it is, its size and its times. But times
are as coarse as the file system's clock, a tick of some milliseconds or up to two seconds: what is written
twice within one tick may look the same. So what was read counts only if the file had looked the same for
longer than that before it was read; then a later change has a later time. What that is measured by is the
clock of this process, not the times of files, which other machines may have given them. And it is read again
now and then all the same: what a network file system says of a file may be old.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

SETTLED_SECONDS = 3.0
"""How long a file must have looked the same before what is read of it is kept: FAT's times have 2 s."""

RENEWED_SECONDS = 10.0
"""How long that is kept at the least; at the most twice as long, by chance: not all in one look."""

_T = TypeVar("_T")


@dataclass(slots=True)
class _Kept:
    """What was read of something, and what that looked like.

    Attributes:
        looks: What the system says of it.
        since: Since when, on the monotonic clock.
        value: What was read after it had looked so for long enough.
        until: Until when that counts; never before it was read.
    """

    looks: Hashable
    since: float
    value: Any = None
    until: float = -math.inf


class Recall:
    """Remembers what was read, by model and part.

    Looks may use one at once: one that comes back after hanging goes on beside a newer one.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random
    ) -> None:
        """Remember nothing yet.

        Args:
            now: The time that passes for files, too: no virtual one beside real files.
            chance: From 0 to 1.
        """
        self._now = now
        self._chance = chance
        self._kept: dict[str, dict[str, _Kept]] = {}

    def read(
        self,
        model: str,
        part: str,
        looks: Hashable,
        read: Callable[[], _T],
        keep: Callable[[_T], bool] = lambda _: True,
    ) -> _T:
        """Give what was read of something that looks as it did then, or read it.

        Args:
            model: The model that it belongs to.
            part: What it is.
            looks: What the system says of it now; asked before it is read.
            read: Reads it; what it raises is not remembered.
            keep: Whether what it has read may be.
        """
        parts, now = self._kept.setdefault(model, {}), self._now()
        kept = parts.get(part)
        if kept is None or kept.looks != looks:
            parts[part] = _Kept(looks, now)
            return read()
        if now < kept.until:
            value: _T = kept.value
            return value
        value = read()
        if now - kept.since >= SETTLED_SECONDS and keep(value):
            kept.value, kept.until = value, now + RENEWED_SECONDS * (1 + self._chance())
        return value

    def forget_but(self, models: Collection[str]) -> None:
        """Forget all models but these."""
        for name in {*self._kept.copy()}.difference(models):
            self._kept.pop(name, None)


def looks_of(file: str | Path) -> Hashable:
    """What the system says of a file, or of what a link leads to: another when its content is another."""
    try:
        status = os.stat(file)
    except OSError as error:
        return error.errno
    return (
        status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )  # fmt: skip
