"""Threads for loading, warming up, closing and listing, at the lowest priority: requests come first."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

_LOWEST_PRIORITY = 19


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
    if sys.platform != "linux":  # elsewhere priorities belong to whole processes
        return
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
    except OSError:  # a sandbox may forbid it; loading works all the same
        return
