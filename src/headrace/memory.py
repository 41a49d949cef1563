"""How much memory this process may still take: the machine's, or its cgroup's, whichever is less."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.cpus import cgroup_folders

_PROC = Path("/proc")
_MOUNT = Path("/sys/fs/cgroup")
_VERSIONS = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)


def available_bytes(proc: Path = _PROC, mount: Path = _MOUNT) -> int | None:
    """How much can be taken before something must be ended for it, cached files not counted.

    Args:
        proc: Where the kernel tells about processes.
        mount: Where the cgroup file systems are mounted.

    Returns:
        Bytes; None if that cannot be told.
    """
    found = [_of_machine(proc / "meminfo")]
    try:
        memberships = (proc / "self/cgroup").read_text()
    except OSError:
        memberships = ""
    found += [_of_cgroup(mount / folder) for folder in cgroup_folders(memberships, "memory")]
    return min((one for one in found if one is not None), default=None)


def _of_machine(meminfo: Path) -> int | None:
    try:
        told = re.search(r"^MemAvailable:\s+([0-9]+) kB$", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(told[1]) * 1024 if told else None


def _of_cgroup(folder: Path) -> int | None:
    for limit_file, used_file, prefix in _VERSIONS:
        try:
            limit, used = (folder / limit_file).read_text().strip(), (folder / used_file).read_text().strip()
            told = (folder / "memory.stat").read_text()
        except OSError:
            continue
        if not limit.isdigit() or not used.isdigit():
            return None  # "max"
        cached = re.findall(rf"^{prefix}(?:in)?active_file ([0-9]+)$", told, re.MULTILINE)
        return max(0, int(limit) - int(used) + sum(map(int, cached)))
    return None
