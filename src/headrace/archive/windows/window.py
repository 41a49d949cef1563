"""What a windowed column counts, and how a table's stream is read for it."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.config.checks import YEAR, whole, wrong

LONGEST_BUCKETS = 10_000
"""How many buckets the longest window may have."""

MOST_WINDOWS = 256
"""How many windowed columns a table may have."""

Stored = Literal["float32", "float64", "int32", "int64"]
"""What a windowed column may be stored as."""

_MOST_CELLS = 2**31
_LONGEST_SECONDS = int(YEAR)


class Window(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A number by key, over the rows of the past so many seconds; exactly one of the first three is given.

    Attributes:
        count: Count the rows.
        sum: Add up this column of the stream. Signed numbers make a count of what is outstanding.
        mean: The mean of this column.
        seconds: How long the window is, in whole seconds; a multiple of the feed's ``every_seconds``.
        per_seconds: Give a count or a sum as a rate, per so many seconds; 0 for what it is.
        where: Only rows whose column has this value: a pair of the column and the value; None for all rows.
        dtype: What the column is stored as; "" for int64 where rows are counted, and float64 otherwise.
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
            raise wrong("per_seconds", "a count or a sum to make a rate of, no mean", self.per_seconds)
        if self.where is not None and not self.where[0]:
            raise wrong("where", 'a column and a value, as in ["status", "placed"]', self.where)
        if self.stored_as.startswith("int") and (self.per_seconds or not self.count):
            raise wrong("dtype", "float32 or float64, as only counts are whole numbers", self.dtype)

    @property
    def column(self) -> str:
        """The stream's column that is added up; "" where rows are counted."""
        return self.sum or self.mean

    @property
    def stored_as(self) -> Stored:
        """The dtype of the table's column."""
        return self.dtype or ("int64" if self.count and not self.per_seconds else "float64")


class FeedSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the rows of a stream are read for a table's windows.

    Attributes:
        key: The stream's column with the keys.
        time: Its column that says when a row happened: times, or microseconds since 1970.
        every_seconds: How long a bucket is. At the end of each, the rows that have changed are written: a
            value is of the events before that moment.
        ahead_seconds: How far beyond all before it the time of a row may lie. One further ahead is a clock
            that is wrong, until the rows after it agree.
        max_cells: For how many pairs of a key and a bucket there is room in memory.
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
        ConfigError: One is not, or there are too many, or one is too long for its buckets.
    """
    whole("windows", len(windows), least=1, most=MOST_WINDOWS)
    for name, one in windows.items():
        buckets, rest = divmod(one.seconds, every_seconds)
        if rest or not 1 <= buckets <= LONGEST_BUCKETS:
            expected = f"a multiple of every_seconds, {every_seconds}, and at most {LONGEST_BUCKETS} of it"
            raise wrong(f"windows.{name}.seconds", expected, one.seconds)
