"""How full the disks are that a server reads from and writes to, as metrics."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.config import ServerConfig
from headrace.config.observing import STDOUT
from headrace.frontends.metric import Metric
from headrace.frontends.metrics import family

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

FREE = Metric(
    "headrace_disk_free_ratio",
    "gauge",
    "The share of its file system that is free for what is there, of the bytes or of the files, whichever is "
    "less: alert on it.",
    ("of",),
)
METRICS = (FREE,)

LOOK_SECONDS = 10.0
"""How often file systems are asked."""
_BELIEVED_SECONDS = 6 * LOOK_SECONDS


def watched(
    models: Path | None, config: ServerConfig, archive: Mapping[str, object]
) -> dict[str, tuple[Path, ...]]:
    """What is asked of file systems, by what is there.

    Args:
        models: The directory of models.
        config: The settings.
        archive: The settings of the archive's parts, by their names; those that have a path are on a disk.
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
    """The share that is free of what a file system has least of; None for one that has no size."""
    parts = (system.f_bavail, system.f_blocks), (system.f_favail, system.f_files)
    return min((free / whole for free, whole in parts if whole > 0), default=None)


class _Look:
    """A thread that asks the file systems of some paths: one that does not answer holds up nothing else.

    Attributes:
        found: The least share that is free, and when that was; None before it is known, and where no path is
            there.
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
            except OSError:  # it is not there now; whoever needs it says so
                continue
            if share is not None:
                shares.append(share)
        return (min(shares), time.monotonic()) if shares else None


class DiskSpace:
    """A Prometheus collector. The first scrape begins to look, so who is never scraped never looks.

    What a file system said more than a minute ago, and nothing since, is not told any more.
    """

    def __init__(self, paths: Mapping[str, Sequence[Path]]) -> None:
        """Measure nothing yet.

        Args:
            paths: By what is there.
        """
        self._paths = paths
        self._ended = threading.Event()
        self._looks: dict[str, _Look] | None = None

    def collect(self) -> Iterator[Family]:
        """What was found last."""
        if self._looks is None:
            self._looks = {name: _Look(name, paths, self._ended) for name, paths in self._paths.items()}
        free = family(FREE)
        for name, look in self._looks.items():
            if (found := look.found) is not None and found[1] > time.monotonic() - _BELIEVED_SECONDS:
                free.add_metric([name], found[0])
        yield free

    def close(self) -> None:
        """End the threads; one that waits for a file system is left alone."""
        self._ended.set()
