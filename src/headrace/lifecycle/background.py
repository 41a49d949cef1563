"""Threads for loading, warming up, closing and listing, at the lowest priority: requests come first."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol


class Executor(Protocol):
    """Runs calls in threads of its own; ``concurrent.futures.Executor`` is one."""

    def submit(self, call: Callable[..., object], /, *args: object) -> object:
        """Run a call some time soon, in another thread."""


def background_executor(threads: int, name: str = "headrace-loader") -> ThreadPoolExecutor:
    """Make an executor whose threads give way to all others.

    On Linux a thread inherits the priority of the one that starts it: whatever starts threads of its own in
    here, a runtime's pool for example, has them at the lowest priority for good.

    Args:
        threads: How many calls run at the same time.
        name: What the threads' names begin with.
    """
    return ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=_give_way)


def _give_way() -> None:
    """Run only when nobody else wants the processor.

    SCHED_IDLE and not merely nice 19: a thread that serves preempts an idle one the moment it wakes, and a
    nice one only at the next tick, milliseconds later. On one core that is saturated, loading takes minutes.
    """
    if sys.platform != "linux":  # elsewhere priorities belong to whole processes
        return
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # 0: this thread
    except OSError:  # a sandbox may forbid it; loading works all the same
        return
