"""Read a server's certificate from its files, and check it before clients see it."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError, needs_extra
from headrace.base.files import FileState, file_state, open_file
from headrace.config import Tls

if TYPE_CHECKING:
    from cryptography import x509

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


def files(tls: Tls) -> dict[str, Path]:
    """Return the configured files, by setting."""
    named = {f"tls.{name}": getattr(tls, name) for name in tls.__struct_fields__}
    return {setting: file for setting, file in named.items() if file is not None}


def signature(tls: Tls) -> Signature:
    """Return the state of the files, which changes when one of them does; None for a missing file."""
    return tuple(map(file_state, files(tls).values()))


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
    read = {setting: _read(setting, file) for setting, file in files(tls).items()}
    where = {setting: f"{setting}: {file}" for setting, file in files(tls).items()}
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


def is_valid(certificate: Certificate, now: datetime) -> bool:
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
