"""The certificate in force, reloaded when its files change: checked every few seconds, and on request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.base.errors import HeadraceError
from headrace.config import Tls
from headrace.frontends.metrics.metric_families import Metric, family
from headrace.frontends.transport.certificates import (
    Certificate,
    Signature,
    doubts,
    is_valid,
    read,
    signature,
)

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

_log = logging.getLogger(__name__)

EXPIRES = Metric(
    "headrace_tls_certificate_expires_seconds",
    "gauge",
    "Time until the certificate in use, or one of its chain, expires: alert on it.",
    (),
)
RELOADS = Metric(
    "headrace_tls_certificate_reloads",
    "counter",
    "Reloads of certificates: loaded, or failed, which keeps the previous one.",
    ("result",),
)

METRICS = (EXPIRES, RELOADS)

LOOK_SECONDS = 5.0
"""Interval in seconds between checks of the files."""

_MOST_PASSES = 63
"""Largest number of checks skipped before files that the system could not read are retried: five minutes."""


class ServedCertificate:
    """The certificate that new connections get. Event loop only.

    Attributes:
        current: Certificate in force.
        reloads: Number of new certificates loaded.
        failures: Number of new certificates that could not be loaded.
        uses: Functions that apply a new certificate, called in turn; an exception rejects it for all.
        tells: Function notified of each certificate loaded or rejected; it may block on disk I/O.
    """

    def __init__(self, tls: Tls) -> None:
        """Read the certificate.

        Args:
            tls: Paths of its files.

        Raises:
            ConfigError: The certificate cannot be used.
        """
        self._tls = tls
        self._seen = signature(tls)
        self._doubted: Signature | None = None
        self._refused = ""
        self._passes = self._passes_next = 0
        self.current = read(tls)
        self.reloads = self.failures = 0
        self.tells: Callable[[str, str, str], None] | None = None
        self.uses: list[Callable[[Certificate], Awaitable[None]]] = []
        self._now = asyncio.Event()
        self._was_valid = True
        self._tell(self.current)

    def look(self) -> None:
        """Check the files at once, and reload them even if they seem unchanged."""
        self._now.set()

    async def follow(self, seconds: float = LOOK_SECONDS) -> None:
        """Check the files repeatedly.

        Args:
            seconds: Interval in seconds.
        """
        while True:
            try:
                async with asyncio.timeout(seconds):
                    await self._now.wait()
            except TimeoutError:
                pass
            was_told = self._now.is_set()
            self._now.clear()
            try:
                await self._look(was_told=was_told)
                self._tell_when_over()
            except Exception:  # noqa: BLE001 - the current one stays in force and the files are rechecked
                _log.exception("cannot check the certificate for changes")

    async def _look(self, *, was_told: bool) -> None:
        found = await asyncio.to_thread(signature, self._tls)
        if (found == self._seen or self._passes) and not was_told:
            self._passes = max(0, self._passes - 1)
            return
        try:
            certificate = await asyncio.to_thread(read, self._tls)
        except HeadraceError as error:
            # A writer that replaces the certificate and then the key is between the two for a moment.
            if was_told or found == self._doubted:
                await self._refuse(found, error.message, error.__cause__)
            self._doubted = found
            return
        if certificate == self.current:
            self._take_note(found)
            return
        before = self.current
        self.current = certificate
        try:
            for use in self.uses:
                await use(certificate)
        except Exception as error:  # noqa: BLE001 - boundary to three libraries, each with errors of its own
            self.current = before
            await self._refuse(found, str(error), error)
            return
        self._take_note(found)
        self.reloads += 1
        _log.info(
            "new connections use the new certificate",
            extra={"names": certificate.names, "expires": certificate.expires.isoformat()},
        )
        self._tell(certificate)
        await self._told("done")

    async def _told(self, result: str) -> None:
        if self.tells is not None:
            await asyncio.to_thread(self.tells, "reload-certificate", str(self._tls.certificate), result)

    def _take_note(self, found: Signature) -> None:
        self._seen, self._refused, self._passes_next = found, "", 0

    async def _refuse(self, found: Signature, why: str, cause: BaseException | None) -> None:
        """Keep the current certificate; retry files that the system could not read, and report them once."""
        if not isinstance(cause, OSError):
            self._seen = found
        else:  # perhaps out of descriptors; back off: an attempt may already have moved connections
            self._passes = self._passes_next = min(2 * self._passes_next + 1, _MOST_PASSES)
            if why == self._refused:
                return
        self._refused = why
        self.failures += 1
        _log.error("the new certificate cannot be used; the previous one stays in use: %s", why)
        await self._told(f"failed: {why}")

    def _tell(self, certificate: Certificate) -> None:
        now = datetime.now(UTC)
        self._was_valid = is_valid(certificate, now)
        for doubt in doubts(certificate, self._tls, now):
            (_log.warning if self._was_valid else _log.error)(doubt)

    def _tell_when_over(self) -> None:
        valid = is_valid(self.current, datetime.now(UTC))
        if self._was_valid and not valid:
            self._tell(self.current)
        self._was_valid = valid


class TlsMetrics:
    """A Prometheus collector of a certificate."""

    def __init__(self, certificate: ServedCertificate) -> None:
        """Measure this certificate."""
        self._certificate = certificate

    def collect(self) -> Iterator[Family]:
        """Yield the time until it expires, and the number of reloads."""
        expires, reloads = family(EXPIRES), family(RELOADS)
        expires.add_metric([], (self._certificate.current.expires - datetime.now(UTC)).total_seconds())
        reloads.add_metric(["loaded"], self._certificate.reloads)
        reloads.add_metric(["failed"], self._certificate.failures)
        yield from (expires, reloads)
