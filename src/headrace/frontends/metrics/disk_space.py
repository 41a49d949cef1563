"""Metrics of the free space on the disks that a server uses."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.config import ServerConfig
from headrace.config.telemetry import STDOUT
from headrace.frontends.metrics.metric_types import Metric, family

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

FREE = Metric(
    "headrace_disk_free_ratio",
    "gauge",
    "The free share of the file system, of bytes or of files, whichever is less: alert on it.",
    ("of",),
)
METRICS = (FREE,)

LOOK_SECONDS = 10.0
"""Interval between checks of the file systems."""
_BELIEVED_SECONDS = 6 * LOOK_SECONDS


def watched(
    models: Path | None, config: ServerConfig, archive: Mapping[str, object]
) -> dict[str, tuple[Path, ...]]:
    """Return the paths whose file systems are checked, by purpose.

    Args:
        models: The directory of models.
        config: The settings.
        archive: The settings of the archive's parts by name; those with a path are on a disk.
    """
    entries = (one.path for one in config.models.values())
    found = {"models": tuple(one for one in (models, *entries) if one is not None)}
    for name, settings in archive.items():
        if isinstance(path := getattr(settings, "path", None), Path):
            found[f"archive_{name}"] = (path,)
    if (log := config.access_log.path) is not None and log != STDOUT:
        found["access_log"] = (log.absolute().parent,)
    if config.audit.file is not None:
        found["audit_log"] = (config.audit.file.absolute().parent,)
    return {name: paths for name, paths in found.items() if paths}


def free_share(system: os.statvfs_result) -> float | None:
    """Return the smaller free share of bytes and files; None for a file system without a size."""
    parts = (system.f_bavail, system.f_blocks), (system.f_favail, system.f_files)
    return min((free / whole for free, whole in parts if whole > 0), default=None)


class _Look:
    """A thread that checks the file systems of some paths, so that one that hangs delays nothing else.

    Attributes:
        found: The smallest free share, and its time on the monotonic clock; None until known, and while no
            path exists.
    """

    def __init__(self, name: str, paths: Sequence[Path], ended: threading.Event) -> None:
        self._paths, self._ended = paths, ended
        self.found: tuple[float, float] | None = None
        threading.Thread(target=self._run, name=f"disk space of {name}", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.found = self._asked()
            if self._ended.wait(LOOK_SECONDS):
                return

    def _asked(self) -> tuple[float, float] | None:
        shares = []
        for path in self._paths:
            try:
                share = free_share(os.statvfs(path))
            except OSError:  # the path is missing or unreadable; whoever uses it reports that
                continue
            if share is not None:
                shares.append(share)
        return (min(shares), time.monotonic()) if shares else None


class DiskSpace:
    """A Prometheus collector. Checks start with the first scrape, so unscraped servers never check.

    A result older than a minute is not reported.
    """

    def __init__(self, paths: Mapping[str, Sequence[Path]]) -> None:
        """Store the paths; checks start later.

        Args:
            paths: The paths by purpose.
        """
        self._paths = paths
        self._ended = threading.Event()
        self._looks: dict[str, _Look] | None = None

    def collect(self) -> Iterator[Family]:
        """Yield the latest results."""
        if self._looks is None:
            self._looks = {name: _Look(name, paths, self._ended) for name, paths in self._paths.items()}
        free = family(FREE)
        for name, look in self._looks.items():
            if (found := look.found) is not None and found[1] > time.monotonic() - _BELIEVED_SECONDS:
                free.add_metric([name], found[0])
        yield free

    def close(self) -> None:
        """End the threads; one that waits for a file system is abandoned."""
        self._ended.set()
