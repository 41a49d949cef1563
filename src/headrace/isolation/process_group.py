"""End a model's process together with the programs that it has started.

A model's process leads a process group, which programs that it starts belong to as well. The process is
reaped last: until then no other group can get its id.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress

_POLL_SECONDS = 0.01


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended; unlike ``poll``, do not reap it."""
    if process.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:  # the system reaps it: SIGCHLD is ignored
        return True


def wait_for_end(process: subprocess.Popen[bytes], most_seconds: float) -> None:
    """Wait at most so many seconds until a process has ended, without reaping it."""
    until = time.monotonic() + most_seconds
    while not has_ended(process) and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process unless it was reaped; unlike its own ``kill``, do not reap it."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a process and the programs that it has started, unless it was reaped."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):  # all that are left run as other users
            os.killpg(process.pid, number)
