"""Access control of a server: the Gate, the key files that it follows, and their metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from headrace.access.gate import Gate
from headrace.access.keys import LOOK_SECONDS, Keys, Watched, WatchedKeys
from headrace.access.permissions import bits
from headrace.access.shared_meters import Meters
from headrace.frontends.metrics.engine_metrics import family
from headrace.frontends.metrics.metric_type import Metric

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from headrace.config.access import AccessConfig

_log = logging.getLogger(__name__)

CALLS = Metric("headrace_caller_calls", "counter", "Calls admitted, by the key's name.", ("caller",))
REFUSED = Metric("headrace_access_refused", "counter", "Calls refused at the gate, by error.", ("error",))
KEYS = Metric("headrace_access_keys", "gauge", "Valid keys, including those for tokens.", ())
READS = Metric("headrace_access_reads", "counter", "Reloads of the key file.", ())
BROKEN = Metric(
    "headrace_access_file_broken",
    "gauge",
    "1 while the key file is invalid or missing and the previous keys stay valid: alert on it.",
    (),
)
METRICS = (CALLS, REFUSED, KEYS, READS, BROKEN)


class Access:
    """The Gate of a server and the reloading of its key files; a Prometheus collector. Serving thread only.

    Attributes:
        gate: The Gate that calls pass.
    """

    def __init__(
        self,
        config: AccessConfig,
        counted_at: tuple[int, int, int] = (-1, 0, 1),
        tells: Callable[[str, str, str], None] | None = None,
    ) -> None:
        """Read the keys.

        Args:
            config: The access settings, which name one or several key files.
            counted_at: The arguments of ``Meters``.
            tells: Callback for each reload, with the action, the file and the result. Runs in a thread, since
                it may wait for a disk.

        Raises:
            ConfigError: A file cannot be read, or an entry is wrong.
        """
        self._tells = tells
        self._watched: list[tuple[Watched[Any], Callable[[Any], None]]] = []
        self.gate = Gate({}, bits(config.open), Meters(*counted_at))
        if config.file is not None:
            self._watch(WatchedKeys(config.file), self._take_keys)
        if config.jwt.keys is not None:
            from headrace.access.tokens import Tokens, read_token_keys  # noqa: PLC0415

            tokens = self.gate.tokens = Tokens(config.jwt, {})
            self._watch(Watched(config.jwt.keys, lambda file, _: read_token_keys(file)), tokens.take)
        self._reads = 0

    def _watch(self, watched: Watched[Any], take: Callable[[Any], None]) -> None:
        take(watched.keys)
        self._watched.append((watched, take))

    def _take_keys(self, keys: Keys) -> None:
        self.gate.keys = keys

    async def follow(self) -> None:
        """Reload the keys when their files change, until cancelled. Disk reads run in a thread."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                for watched, take in self._watched:
                    problem = watched.problem
                    if await asyncio.to_thread(watched.look):
                        take(watched.keys)
                        self._reads += 1
                        await self._tell(watched, "done")
                    elif watched.problem not in ("", problem):
                        await self._tell(watched, f"failed: {watched.problem}")
            except Exception:  # noqa: BLE001 - the current keys stay in force, and the next check retries
                _log.exception("cannot check the key files for changes")

    async def _tell(self, watched: Watched[Any], result: str) -> None:
        if self._tells is not None:
            await asyncio.to_thread(self._tells, "reload-keys", str(watched.file), result)

    def collect(self) -> Iterator[Family]:
        """Yield the current metrics."""
        for metric, counts in ((CALLS, self.gate.calls), (REFUSED, self.gate.refused)):
            counted = family(metric)
            for label, count in sorted(counts.items()):
                counted.add_metric([label], count)
            yield counted
        keys = sum(len(watched.keys) for watched, _ in self._watched)
        is_broken = any(watched.problem for watched, _ in self._watched)
        numbers = (KEYS, keys), (READS, self._reads), (BROKEN, is_broken)
        for metric, number in numbers:
            measured = family(metric)
            measured.add_metric([], number)
            yield measured
