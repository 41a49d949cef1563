"""Control groups with little memory, or few processors, by either of Linux' versions of them."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.waiting import until

MOUNTED = Path("/sys/fs/cgroup")
ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
"""What a shell runs to go on as a command in a group: ``sh -c ENTER GROUP COMMAND``."""
_PERIOD_MICROSECONDS = 100_000


def entering(group: Path) -> tuple[str, ...]:
    """What is written before a command to run it in a group."""
    return ("sh", "-c", ENTER, str(group))


@contextmanager
def group_with_memory(limit_bytes: int) -> Iterator[Path]:
    """Make a group in which the system kills one of the processes when they want more; skips without.

    Args:
        limit_bytes: How much they may have, without a swap file.
    """
    # The last one is version 2's where there is swap; version 1 has other names, and none here.
    later = {"memory.max": str(limit_bytes), "memory.swap.max": "0"}
    with _group("memory", {"memory.limit_in_bytes": str(limit_bytes)}, later) as group:
        yield group


@contextmanager
def group_with_processors(processors: float) -> Iterator[Path]:
    """Make a group whose processes have a quota of processor time; skips without.

    Args:
        processors: How many processors' worth it is.
    """
    quota = round(processors * _PERIOD_MICROSECONDS)
    with _group(
        "cpu", {"cpu.cfs_quota_us": str(quota)}, {"cpu.max": f"{quota} {_PERIOD_MICROSECONDS}"}
    ) as group:
        yield group


@contextmanager
def _group(controller: str, first: dict[str, str], second: dict[str, str]) -> Iterator[Path]:
    """Make a group with limits.

    Args:
        controller: What is limited, in version 1's words.
        first: What version 1's files are to say; the limit is the first.
        second: The same of version 2.
    """
    places = [(MOUNTED / controller, first), *((place, second) for place in _places())]
    group = next(filter(None, (_made(place, limits) for place, limits in places)), None)
    if group is None:
        pytest.skip(
            f"no control group with a limit of {controller} can be made: needs root, or a group of one's own"
        )
    try:
        yield group
    finally:
        until(lambda: _is_removed(group))  # what a server had started may end a moment after it


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _made(place: Path, limits: dict[str, str]) -> Path | None:
    """A group in that place; None where it cannot be made, has no such limit, or cannot be entered."""
    group = place / f"headrace-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        return None
    limit, *others = limits
    if (group / limit).exists() and _may_enter(group):
        (group / limit).write_text(limits[limit])
        for other in others:
            with suppress(OSError):
                (group / other).write_text(limits[other])
        return group
    group.rmdir()
    return None


def _places() -> Iterator[Path]:
    """Where a group of version 2 may be made, innermost first."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::/"):
            own = MOUNTED / line.removeprefix("0::/")
            yield from (one for one in (own, *own.parents) if one.is_relative_to(MOUNTED))


def _may_enter(group: Path) -> bool:
    return (
        subprocess.run(["sh", "-c", ENTER, group, "true"], capture_output=True, check=False).returncode == 0
    )
