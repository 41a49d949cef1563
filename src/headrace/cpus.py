"""How many processors this process may use: its affinity mask or its cgroup's quota, whichever is less.

And how its threads take less of them than they could.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath

_CGROUP_FILE = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
_TIMES_FILE = Path("/proc/stat")
_KEPT_SECONDS = 10.0
_processes = 1

NICER_BY = 9
"""The weight of a thread is 1024 / 1.25 ** nice: beside one of the ordinary weight this leaves 12 %."""

_LOWEST = 19


def available() -> int:
    """How many threads can run at the same time without being throttled; at least one.

    A quota of 2.5 processors counts as two: a third thread would use it up before each period ends. What has
    been read counts for ten seconds: a load asks four times, and each reading takes half a millisecond.
    """
    return share(_available_in(int(time.monotonic() / _KEPT_SECONDS)), _processes)


def divide_by(processes: int) -> None:
    """From now on count only this process's part of the processors, of several that serve together.

    Args:
        processes: How many divide them.
    """
    global _processes  # noqa: PLW0603 - said once, at the start of a process
    _processes = processes


@lru_cache(maxsize=1)
def _available_in(_period: int) -> int:
    allowed = float(_in_mask())
    limit = quota(_CGROUP_FILE, _MOUNT)
    return max(1, math.floor(allowed if limit is None else min(allowed, limit)))


def share(total: int, instances: int) -> int:
    """Threads for each of several instances that run side by side; at least one.

    Args:
        total: The threads to divide.
        instances: How many divide them.
    """
    return max(1, total // max(1, instances))


def quota(cgroup_file: Path, mount: Path) -> float | None:
    """The smallest processor quota among this process's cgroup and those above it, in processors.

    Args:
        cgroup_file: ``/proc/self/cgroup``.
        mount: Where the cgroup file systems are mounted.

    Returns:
        The quota; None where there is none, or no cgroups.
    """
    try:
        memberships = cgroup_file.read_text()
    except OSError:
        return None
    found = [limit for folder in cgroup_folders(memberships) for limit in [_quota_of(mount / folder)]]
    return min((limit for limit in found if limit is not None), default=None)


def cgroup_folders(memberships: str, controller: str = "cpu") -> Iterator[PurePosixPath]:
    """The folders below the mount that may hold a limit, from the text of ``/proc/self/cgroup``.

    A container often sees its own group as the mount's root while the text names it from the host's: so every
    folder on the way up counts, and those that do not exist are no error.

    Args:
        memberships: Lines of ``hierarchy:controllers:path``; the hierarchy is 0 in version 2.
        controller: What is limited, in version 1's words.
    """
    for line in memberships.splitlines():
        hierarchy, controllers, path = (*line.split(":", 2), "", "")[:3]
        if hierarchy == "0" and not controllers:
            base = PurePosixPath()
        elif controller in controllers.split(","):
            base = PurePosixPath(controllers)
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        yield from (base / folder for folder in (group, *group.parents))


def parse_cpu_max(text: str) -> float | None:
    """The quota in a version 2 ``cpu.max``, for example ``150000 100000``; None for ``max``."""
    runtime, period = (*text.split(), "", "")[:2]
    return _ratio(runtime, period or "100000")


def parse_cfs(quota_text: str, period_text: str) -> float | None:
    """The quota in a version 1 ``cpu.cfs_quota_us`` and ``cpu.cfs_period_us``; None for -1."""
    return _ratio(quota_text.strip(), period_text.strip())


def idle_seconds() -> dict[int, float]:
    """How long each processor that this process may use has been idle; empty where that is not told."""
    try:
        text = _TIMES_FILE.read_text()
    except OSError:
        return {}
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    ticks = os.sysconf("SC_CLK_TCK")
    return {cpu: idle / ticks for cpu, idle in parse_idle(text).items() if cpu in allowed}


def parse_idle(text: str) -> dict[int, int]:
    """The ticks that each processor was idle, from the text of ``/proc/stat``."""
    found = (re.match(r"cpu(\d+)(?: \d+){3} (\d+)", line) for line in text.splitlines())
    return {int(match[1]): int(match[2]) for match in found if match}


def _ratio(runtime: str, period: str) -> float | None:
    if not runtime.isdigit() or not period.isdigit() or int(runtime) == 0 or int(period) == 0:
        return None
    return int(runtime) / int(period)


def _quota_of(folder: Path) -> float | None:
    try:
        return parse_cpu_max((folder / "cpu.max").read_text())
    except OSError:
        pass
    try:
        runtime, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return parse_cfs(runtime, period)
    except OSError:
        return None


def _in_mask() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux only
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def take_less() -> None:
    """Let this thread have a small share of the processor that nobody can take away, and interrupt nobody.

    Beside a thread that never sleeps, nice 9 is an eighth of a core. SCHED_IDLE would be what is left over:
    beside busy processes nothing, and whoever is put aside with Python's lock would keep it for seconds.
    """
    if sys.platform != "linux":  # elsewhere priorities belong to whole processes
        return
    with suppress(OSError):  # a sandbox may forbid it; all works all the same
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # 0: this thread
        os.setpriority(os.PRIO_PROCESS, 0, min(_LOWEST, os.getpriority(os.PRIO_PROCESS, 0) + NICER_BY))
