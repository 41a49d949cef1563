"""Processes that are stopped (SIGSTOP), and stand still before the test goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.waiting import seconds_left


def stop(process: int) -> None:
    """Stop a process and wait until all of its threads stand still: the signal alone returns before that."""
    os.kill(process, signal.SIGSTOP)
    until = time.monotonic() + seconds_left()
    while not stands_still(process):
        assert time.monotonic() < until, f"process {process} does not stop"
        time.sleep(0.002)


@contextmanager
def stopped(process: int) -> Iterator[None]:
    """Have a process stand still; it goes on at the end, if it is still there."""
    stop(process)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


def stands_still(process: int) -> bool:
    """Whether all threads of a process are stopped."""
    return all(
        task.read_text().rpartition(")")[2].split()[0] == "T"
        for task in Path(f"/proc/{process}/task").glob("*/stat")
    )
