"""Cache of the contents of model files between scans, valid while their metadata is unchanged.

A file is taken to be unchanged while ``stat`` reports the same inode, size and times. File times are coarse,
from some milliseconds up to two seconds, so two writes within one tick may leave them equal. Content is
therefore kept only if the metadata had been unchanged for longer than a tick before the file was read: a
later change then has a later time. This process's clock measures that time, because other machines may have
set the file times. Files are read again from time to time all the same, because a network file system may
report stale metadata.
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
"""Time for which metadata must be unchanged before content is kept; FAT's file times have 2 s resolution."""

RENEWED_SECONDS = 10.0
"""Shortest time to keep content; randomly up to twice as long, so not all expires in the same scan."""

_T = TypeVar("_T")


@dataclass(slots=True)
class _Kept:
    """Cached content and the metadata that it belongs to.

    Attributes:
        looks: The metadata.
        since: Time at which this metadata was first seen, on the monotonic clock.
        value: Content read after the metadata had been unchanged for long enough.
        until: Expiry time of ``value``; negative infinity before it was read.
    """

    looks: Hashable
    since: float
    value: Any = None
    until: float = -math.inf


class Recall:
    """Cache of file contents by model and part.

    Scans may use it concurrently: one that resumes after hanging runs beside a newer one.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random
    ) -> None:
        """Create an empty cache.

        Args:
            now: Monotonic clock; with real files it must be the real one.
            chance: Returns a random number from 0 to 1.
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
        """Return cached content if the metadata is unchanged; otherwise read it.

        Args:
            model: The model that the content belongs to.
            part: Name of the content within the model.
            looks: Current metadata, obtained before reading.
            read: Reads the content; its exceptions propagate and are not cached.
            keep: Returns whether the content may be cached.
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
        """Drop the content of all models except these."""
        for name in {*self._kept.copy()}.difference(models):
            self._kept.pop(name, None)


def looks_of(file: str | Path) -> Hashable:
    """Return the metadata of a file, following links, or the error number; it changes with the content."""
    try:
        status = os.stat(file)
    except OSError as error:
        return error.errno
    return (
        status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )  # fmt: skip
