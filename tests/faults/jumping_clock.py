"""A wall clock that a test sets, for the processes that it starts: the machine's own is never touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DAY_SECONDS = 86_400
_PLACES = ("/usr/lib", "/usr/local/lib")
# Python sleeps until a time of the monotonic clock, and libfaketime 0.9.10 makes an error of that (EINVAL)
# even where it is told to leave that clock alone.
_SLEEP = """
import select
import time

time.sleep = lambda seconds: select.select((), (), (), seconds) and None
"""


class JumpingClock:
    """What ``libfaketime`` tells processes the time is, by a file.

    The monotonic clock goes on, as it does where somebody sets the machine's clock.

    Attributes:
        environment: What to start processes with.
    """

    def __init__(self, directory: Path, *, seen_within_seconds: int = 0) -> None:
        """Begin with the time that it is.

        Args:
            directory: Where the file is kept.
            seen_within_seconds: How old what a process has read of it may be. At 0 each look at a clock reads
                the file, which keeps a server from much else: for one that is asked little.
        """
        (customized := directory / "python").mkdir()
        (customized / "sitecustomize.py").write_text(_SLEEP)
        self._file = directory / "clock"
        self.jump(0)
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(customized), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "LD_PRELOAD": str(_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            **(
                {"FAKETIME_CACHE_DURATION": str(seen_within_seconds)}
                if seen_within_seconds
                else {"FAKETIME_NO_CACHE": "1"}
            ),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def jump(self, seconds: int) -> None:
        """Set the clock to the true time and so many seconds."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.rename(self._file)


def library() -> Path | None:
    """Where ``libfaketime`` is; None if it is not installed."""
    found = (one for place in _PLACES for one in Path(place).glob("**/faketime/libfaketimeMT.so.1"))
    return next(found, None)


def _library() -> Path:
    if (found := library()) is None:
        pytest.fail("libfaketime is not installed: tools/system_packages.sh faketime")
    return found
