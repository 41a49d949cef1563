"""What a server has where callers need keys: the gate, the file that it follows, their metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from headrace.access.gate import Gate
from headrace.access.key_file import Keys
from headrace.access.meters import Meters
from headrace.access.verbs import bits
from headrace.access.watching import LOOK_SECONDS, Watched, WatchedKeys
from headrace.frontends.metric import Metric
from headrace.frontends.metrics import family

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from headrace.config.access import AccessConfig

_log = logging.getLogger(__name__)

CALLS = Metric("headrace_caller_calls", "counter", "Calls that were let in, by whose key.", ("caller",))
REFUSED = Metric(
    "headrace_access_refused", "counter", "Calls that were refused at the gate, by the error.", ("error",)
)
KEYS = Metric("headrace_access_keys", "gauge", "Keys that are in force, those for tokens included.", ())
READS = Metric("headrace_access_reads", "counter", "How often the file of keys was read again.", ())
BROKEN = Metric(
    "headrace_access_file_broken",
    "gauge",
    "1 while the file of keys is wrong or away, and older keys are in force: alert on it.",
    (),
)
METRICS = (CALLS, REFUSED, KEYS, READS, BROKEN)


class Access:
    """Who may ask a server, as a Prometheus collector, too. Serving thread only.

    Attributes:
        gate: What calls pass.
    """

    def __init__(
        self,
        config: AccessConfig,
        counted_at: tuple[int, int, int] = (-1, 0, 1),
        tells: Callable[[str, str, str], None] | None = None,
    ) -> None:
        """Read the keys.

        Args:
            config: The settings; they name a file, or several.
            counted_at: The arguments of ``Meters``.
            tells: Is told when keys have been read again: that, of which file, and how it went. Takes as long
                as the disk does.

        Raises:
            ConfigError: The file cannot be read, or an entry is wrong.
        """
        self._tells = tells
        self._watched: list[tuple[Watched[Any], Callable[[Any], None]]] = []
        self.gate = Gate({}, bits(config.open), Meters(*counted_at))
        if config.file is not None:
            self._watch(WatchedKeys(config.file), self._take_keys)
        if config.jwt.keys is not None:
            from headrace.access.token_keys import read_token_keys  # noqa: PLC0415 - only where tokens are taken
            from headrace.access.tokens import Tokens  # noqa: PLC0415 - as above

            tokens = self.gate.tokens = Tokens(config.jwt, {})
            self._watch(Watched(config.jwt.keys, lambda file, _: read_token_keys(file)), tokens.take)
        self._reads = 0

    def _watch(self, watched: Watched[Any], take: Callable[[Any], None]) -> None:
        take(watched.keys)
        self._watched.append((watched, take))

    def _take_keys(self, keys: Keys) -> None:
        self.gate.keys = keys

    async def follow(self) -> None:
        """Take keys as their file changes, until cancelled; disks are read in a thread."""
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
            except Exception:  # noqa: BLE001 - the keys in force stay so, and are looked at again
                _log.exception("the keys could not be looked at")

    async def _tell(self, watched: Watched[Any], result: str) -> None:
        if self._tells is not None:
            await asyncio.to_thread(self._tells, "reload-keys", str(watched.file), result)

    def collect(self) -> Iterator[Family]:
        """All of them, as they are now."""
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
