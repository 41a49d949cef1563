"""Number of processors available to this process: its affinity mask or cgroup quota, whichever is less.

Also lowers the scheduling priority of threads.
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
_THREADS, _OUR_THREADS = "OMP_NUM_THREADS", "HEADRACE_OMP_NUM_THREADS"
_processes = 1

NICER_BY = 9
"""Nice value added to background threads. A thread's weight is 1024 / 1.25 ** nice: this one gets 12 %
beside a thread of normal weight."""

_LOWEST = 19


def available() -> int:
    """Return the number of threads that can run at once without being throttled; at least one.

    A quota of 2.5 processors counts as two: a third thread would exhaust it before each period ends. The
    result is cached for ten seconds: loading a model asks four times, and one reading takes half a
    millisecond.
    """
    return share(_available_in(int(time.monotonic() / _KEPT_SECONDS)), _processes)


def divide_by(processes: int) -> None:
    """From now on, count only this process's share of the processors.

    Args:
        processes: Number of processes that serve together and share the processors.
    """
    global _processes  # noqa: PLW0603 - set once, at the start of a process
    _processes = processes


@lru_cache(maxsize=1)
def _available_in(_period: int) -> int:
    allowed = float(_affinity_count())
    limit = quota(_CGROUP_FILE, _MOUNT)
    return max(1, math.floor(allowed if limit is None else min(allowed, limit)))


def share(total: int, instances: int) -> int:
    """Return the number of threads for each of several instances that run in parallel; at least one.

    Args:
        total: Number of threads to divide.
        instances: Number of instances that divide them.
    """
    return max(1, total // max(1, instances))


def environment(threads: int) -> dict[str, str]:
    """Return the environment for a child process whose numeric libraries start this many threads.

    OpenMP, OpenBLAS and MKL read ``OMP_NUM_THREADS``, and by default start one thread per processor. A value
    set by the user stays; one that this function set in a parent process is replaced.

    Args:
        threads: Number of threads.
    """
    given = os.environ.get(_THREADS)
    if given and given != os.environ.get(_OUR_THREADS):
        return dict(os.environ)
    return {**os.environ, _THREADS: str(threads), _OUR_THREADS: str(threads)}


def quota(cgroup_file: Path, mount: Path) -> float | None:
    """Return the smallest processor quota of this process's cgroup and its ancestors, in processors.

    Args:
        cgroup_file: ``/proc/self/cgroup``.
        mount: Mount point of the cgroup file systems.

    Returns:
        The quota; None if there is no quota, or no cgroups.
    """
    try:
        memberships = cgroup_file.read_text()
    except OSError:
        return None
    found = [limit for folder in cgroup_folders(memberships) for limit in [_quota_of(mount / folder)]]
    return min((limit for limit in found if limit is not None), default=None)


def cgroup_folders(memberships: str, controller: str = "cpu") -> Iterator[PurePosixPath]:
    """Yield the folders below the mount that may hold a limit, from the text of ``/proc/self/cgroup``.

    A container often sees its own cgroup as the mount's root, while the text names its path on the host. So
    every ancestor folder is included, and the caller must tolerate folders that do not exist.

    Args:
        memberships: Lines of ``hierarchy:controllers:path``; the hierarchy is 0 in version 2.
        controller: The limited resource, by its version 1 name.
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
    """Return the quota in a version 2 ``cpu.max``, for example ``150000 100000``; None for ``max``."""
    runtime, period = (*text.split(), "", "")[:2]
    return _ratio(runtime, period or "100000")


def parse_cfs(quota_text: str, period_text: str) -> float | None:
    """Return the quota in a version 1 ``cpu.cfs_quota_us`` and ``cpu.cfs_period_us``; None for -1."""
    return _ratio(quota_text.strip(), period_text.strip())


def idle_seconds() -> dict[int, float]:
    """Return the idle time of each allowed processor in seconds; empty if the system does not report it."""
    try:
        text = _TIMES_FILE.read_text()
    except OSError:
        return {}
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    ticks = os.sysconf("SC_CLK_TCK")
    return {cpu: idle / ticks for cpu, idle in parse_idle(text).items() if cpu in allowed}


def parse_idle(text: str) -> dict[int, int]:
    """Return the idle ticks of each processor, from the text of ``/proc/stat``."""
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


def _affinity_count() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux only
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def take_less() -> None:
    """Lower this thread's priority: it keeps a small guaranteed share, and preempts no other thread.

    Beside a thread that never sleeps, nice 9 gets an eighth of a core. SCHED_IDLE would get only idle time,
    so beside busy processes a thread that is preempted while it holds the GIL would keep it for seconds.
    """
    if sys.platform != "linux":  # elsewhere priorities apply to whole processes
        return
    with suppress(OSError):  # a sandbox may forbid it, and the priority is only an optimization
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # 0: this thread
        os.setpriority(os.PRIO_PROCESS, 0, min(_LOWEST, os.getpriority(os.PRIO_PROCESS, 0) + NICER_BY))
