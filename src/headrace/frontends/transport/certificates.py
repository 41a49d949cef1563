"""A server's certificate: read and checked, and reloaded when its files change."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError, HeadraceError, needs_extra
from headrace.base.files import FileState, file_state, open_file
from headrace.config import Tls
from headrace.frontends.metrics.metric_types import Metric, family

if TYPE_CHECKING:
    from cryptography import x509
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

_MOST_BYTES = 1024 * 1024
_NAMES_TOLD = 3


@dataclass(frozen=True, slots=True)
class Certificate:
    """A server's TLS certificate and key, and the authorities of client certificates.

    Attributes:
        chain: Server certificate, followed by its intermediates, as PEM.
        key: Private key, as PEM.
        client_ca: Authorities of client certificates, as PEM; None if clients need no certificate.
        names: Names that it was issued for, as text.
        begins: Start of its validity.
        expires: End of the validity of the chain.
    """

    chain: bytes
    key: bytes
    client_ca: bytes | None
    names: str
    begins: datetime
    expires: datetime


Signature = tuple[FileState | None, ...]
"""State of some files, which changes when one of them does."""


def _files(tls: Tls) -> dict[str, Path]:
    """Return the configured files, by setting."""
    named = {f"tls.{name}": getattr(tls, name) for name in tls.__struct_fields__}
    return {setting: file for setting, file in named.items() if file is not None}


def signature(tls: Tls) -> Signature:
    """Return the state of the files, which changes when one of them does; None for a missing file."""
    return tuple(map(file_state, _files(tls).values()))


def read(tls: Tls) -> Certificate:
    """Read the files and check their contents.

    Raises:
        ConfigError: One of them cannot be used; or the extra ``tls`` is not installed.
    """
    try:
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415 - as above
    except ImportError as error:
        raise needs_extra("tls", "tls", error) from error
    read = {setting: _read(setting, file) for setting, file in _files(tls).items()}
    where = {setting: f"{setting}: {file}" for setting, file in _files(tls).items()}
    chain = _certificates(where["tls.certificate"], read["tls.certificate"])
    try:
        key = load_pem_private_key(read["tls.key"], None)
    except TypeError:
        raise ConfigError(
            f"{where['tls.key']} is encrypted; expected a private key without a password: "
            "openssl pkey -in FILE -out NEW_FILE removes it"
        ) from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{where['tls.key']} contains no usable private key; expected one in PEM"
        ) from error
    if chain[0].public_key() != key.public_key():
        raise ConfigError(
            f"{where['tls.key']} is not the private key of the first certificate in "
            f"{tls.certificate} ({_names(chain[0])}); expected the server's key, and its certificate first"
        )
    client_ca = read.get("tls.client_ca")
    if client_ca is not None:
        _certificates(where["tls.client_ca"], client_ca)
    return Certificate(
        chain=read["tls.certificate"],
        key=read["tls.key"],
        client_ca=client_ca,
        names=_names(chain[0]),
        begins=chain[0].not_valid_before_utc,
        expires=min(one.not_valid_after_utc for one in chain),
    )


def _read(setting: str, file: Path) -> bytes:
    try:
        with open_file(file) as opened:
            content = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{setting}: {file} cannot be read: {error.strerror or error}") from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(
            f"{setting}: {file} has more than {_MOST_BYTES} bytes; expected certificates in PEM"
        )
    return content


def _certificates(where: str, content: bytes) -> list[x509.Certificate]:
    from cryptography import x509  # noqa: PLC0415 - the extra is installed

    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise ConfigError(
            f"{where} contains no usable certificate; expected -----BEGIN CERTIFICATE----- (PEM)"
        ) from error


def _names(certificate: x509.Certificate) -> str:
    """Return the names that clients compare with the server's, or else the certificate's subject."""
    from cryptography import x509  # noqa: PLC0415 - the extra is installed

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):  # ValueError for unreadable extensions
        return certificate.subject.rfc4514_string() or "nobody"
    names = [str(one.value) for one in found]
    return ", ".join([*names[:_NAMES_TOLD], *(["…"] if len(names) > _NAMES_TOLD else [])])


def doubts(certificate: Certificate, tls: Tls, now: datetime) -> Iterator[str]:
    """Yield warnings for the operator about a certificate that is served all the same.

    Args:
        certificate: Certificate read.
        tls: Paths of its files.
        now: Current time.
    """
    yield from _times(certificate, now)
    if tls.key is not None and _others_can_read(tls.key):
        yield f"the private key {tls.key} can be read by every user of this machine: chmod o-r {tls.key}"


def _times(certificate: Certificate, now: datetime) -> Iterable[str]:
    said = f"the certificate of {certificate.names}"
    if now >= certificate.expires:
        yield f"{said} expired on {certificate.expires:%Y-%m-%d %H:%M} UTC; clients refuse it"
    elif now < certificate.begins:
        yield f"{said} is not valid before {certificate.begins:%Y-%m-%d %H:%M} UTC; clients refuse it"


def _is_valid(certificate: Certificate, now: datetime) -> bool:
    """Return whether a certificate is valid at a time."""
    return certificate.begins <= now < certificate.expires


def _others_can_read(file: Path) -> bool:
    try:
        return os.name == "posix" and bool(file.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


@contextmanager
def pem_files(certificate: Certificate) -> Iterator[dict[str, Path]]:
    """Write a certificate to files for libraries that read only those, and yield them by part.

    They hold the checked contents, even if the original files have changed.

    Args:
        certificate: Certificate to write.
    """
    with ExitStack() as closing:
        contents = {part: getattr(certificate, part) for part in ("chain", "key", "client_ca")}
        yield {part: _file(content, closing) for part, content in contents.items() if content is not None}


def _file(content: bytes, closing: ExitStack) -> Path:
    if sys.platform == "linux":  # in memory only: a private key must not reach a disk
        descriptor = os.memfd_create("headrace-tls")
        closing.callback(os.close, descriptor)
        os.write(descriptor, content)
        return Path(f"/proc/self/fd/{descriptor}")
    import tempfile  # noqa: PLC0415 - used here only

    # Mode 0600: readable by its owner only.
    kept = closing.enter_context(tempfile.NamedTemporaryFile())  # noqa: SIM115 - `closing` closes it
    kept.write(content)
    kept.flush()
    return Path(kept.name)


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
        self._was_valid = _is_valid(certificate, now)
        for doubt in doubts(certificate, self._tls, now):
            (_log.warning if self._was_valid else _log.error)(doubt)

    def _tell_when_over(self) -> None:
        valid = _is_valid(self.current, datetime.now(UTC))
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
