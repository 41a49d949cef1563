"""Settings of windowed columns, and of the stream that fills a table."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.config.checks import YEAR, whole, wrong

LONGEST_BUCKETS = 10_000
"""Maximum number of buckets of a window."""

MOST_WINDOWS = 256
"""Maximum number of windowed columns of a table."""

Stored = Literal["float32", "float64", "int32", "int64"]
"""Dtypes of windowed columns."""

_MOST_CELLS = 2**31
_LONGEST_SECONDS = int(YEAR)


class Window(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A number by key over recent rows; exactly one of ``count``, ``sum`` and ``mean`` is set.

    Attributes:
        count: Whether to count the rows.
        sum: Column of the stream to add up. With signed numbers, the sum is an outstanding amount.
        mean: Column of the stream to average.
        seconds: Length of the window in whole seconds; a multiple of the feed's ``every_seconds``.
        per_seconds: Seconds that a count or a sum is scaled to as a rate; 0 for no rate.
        where: Column and value that a row must have to count; None for all rows.
        dtype: Dtype of the column; "" for int64 for counts, and float64 otherwise.
    """

    seconds: int
    count: bool = False
    sum: str = ""
    mean: str = ""
    per_seconds: int = 0
    where: tuple[str, int | str] | None = None
    dtype: Stored | Literal[""] = ""

    def __post_init__(self) -> None:
        """Check the settings."""
        whole("seconds", self.seconds, least=1, most=_LONGEST_SECONDS)
        whole("per_seconds", self.per_seconds, most=_LONGEST_SECONDS)
        if self.count + bool(self.sum) + bool(self.mean) != 1:
            raise wrong("count", "exactly one of count = true, sum = COLUMN and mean = COLUMN", self.count)
        if self.mean and self.per_seconds:
            raise wrong(
                "per_seconds", "0 with mean, as only a count or a sum can be a rate", self.per_seconds
            )
        if self.where is not None and not self.where[0]:
            raise wrong("where", 'a column and a value, as in ["status", "placed"]', self.where)
        if self.stored_as.startswith("int") and (self.per_seconds or not self.count):
            raise wrong("dtype", "float32 or float64, as only counts are whole numbers", self.dtype)

    @property
    def column(self) -> str:
        """Column of the stream that is added up; "" for counts."""
        return self.sum or self.mean

    @property
    def stored_as(self) -> Stored:
        """Dtype of the table's column."""
        return self.dtype or ("int64" if self.count and not self.per_seconds else "float64")


class FeedSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for reading a stream into a table's windows.

    Attributes:
        key: Column of the stream with the keys.
        time: Column of the stream with the time of each row: times, or microseconds since 1970.
        every_seconds: Length of a bucket in seconds. At the end of each, changed rows are written; their
            values cover the events before that moment.
        ahead_seconds: Maximum time that a row may be ahead of all earlier ones. A row further ahead is held
            until the next rows agree, as its clock may be wrong.
        max_cells: Maximum number of pairs of a key and a bucket in memory.
    """

    key: str
    time: str = "timestamp"
    every_seconds: int = 60
    ahead_seconds: int = 86_400
    max_cells: int = 20_000_000

    def __post_init__(self) -> None:
        """Check the settings."""
        if not self.key:
            raise wrong("feed.key", "the stream's column with the keys", self.key)
        if not self.time:
            raise wrong("feed.time", "the stream's column that says when a row happened", self.time)
        whole("feed.every_seconds", self.every_seconds, least=1, most=_LONGEST_SECONDS)
        whole("feed.ahead_seconds", self.ahead_seconds, least=1, most=_LONGEST_SECONDS)
        whole("feed.max_cells", self.max_cells, least=1, most=_MOST_CELLS)


def check_windows(windows: dict[str, Window], every_seconds: int) -> None:
    """Check that windows are made of whole buckets.

    Raises:
        ConfigError: A window is not, or has too many buckets; or there are no windows, or too many.
    """
    whole("windows", len(windows), least=1, most=MOST_WINDOWS)
    for name, one in windows.items():
        buckets, rest = divmod(one.seconds, every_seconds)
        if rest or not 1 <= buckets <= LONGEST_BUCKETS:
            expected = f"a multiple of every_seconds, {every_seconds}, and at most {LONGEST_BUCKETS} of it"
            raise wrong(f"windows.{name}.seconds", expected, one.seconds)
