"""Memory that this process may use, and may still allocate: the least by machine and cgroups."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.base.cpus import cgroup_folders

_PROC = Path("/proc")
_MOUNT = Path("/sys/fs/cgroup")
_VERSIONS = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)


def available_bytes(proc: Path = _PROC, mount: Path = _MOUNT) -> int | None:
    """Return the memory that can still be allocated; file cache counts as free.

    Args:
        proc: Mount point of procfs.
        mount: Mount point of the cgroup file systems.

    Returns:
        Bytes; None if unknown.
    """
    found = [_of_machine(proc / "meminfo", "MemAvailable")]
    found += [_of_cgroup(folder) for folder in _cgroups(proc, mount)]
    return min((one for one in found if one is not None), default=None)


def allowed_bytes(proc: Path = _PROC, mount: Path = _MOUNT) -> int | None:
    """Return the memory limit: the smallest of this process's cgroups and the machine's memory.

    Args:
        proc: Mount point of procfs.
        mount: Mount point of the cgroup file systems.

    Returns:
        Bytes; None if unknown.
    """
    found = [_of_machine(proc / "meminfo", "MemTotal")]
    found += [_limit_of_cgroup(folder) for folder in _cgroups(proc, mount)]
    return min((one for one in found if one is not None), default=None)


def at_most(wanted: int, allowed: int | None, part: int, least: int) -> int:
    """Return a memory budget: the wanted size, capped at a fraction of the allowed memory.

    Args:
        wanted: Size in bytes if memory is plentiful.
        allowed: Result of ``allowed_bytes``.
        part: The budget is at most ``allowed`` divided by this.
        least: Minimum in bytes, however little memory is allowed.
    """
    return wanted if allowed is None else max(least, min(wanted, allowed // part))


def _cgroups(proc: Path, mount: Path) -> list[Path]:
    try:
        memberships = (proc / "self/cgroup").read_text()
    except OSError:
        return []
    return [mount / folder for folder in cgroup_folders(memberships, "memory")]


def _of_machine(meminfo: Path, name: str) -> int | None:
    try:
        told = re.search(rf"^{name}:\s+([0-9]+) kB$", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(told[1]) * 1024 if told else None


def _limit_of_cgroup(folder: Path) -> int | None:
    for limit_file, _, _ in _VERSIONS:
        try:
            limit = (folder / limit_file).read_text().strip()
        except OSError:
            continue
        return int(limit) if limit.isdigit() else None  # "max"
    return None


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
