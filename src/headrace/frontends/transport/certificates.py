"""A server's certificate as its files say it: read, and checked before anybody meets it."""

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

from headrace.config import Tls
from headrace.disk import FileState, file_state, open_file
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509

_MOST_BYTES = 1024 * 1024
_NAMES_TOLD = 3


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a server proves itself with, and what it asks of clients.

    Attributes:
        chain: Its certificate, then those that lead to its authority, as PEM.
        key: The private key, as PEM.
        client_ca: The authorities of which clients need a certificate, as PEM; None if clients need none.
        names: For whom it was made, in words.
        begins: From when on it is valid.
        expires: Until when all of the chain is valid.
    """

    chain: bytes
    key: bytes
    client_ca: bytes | None
    names: str
    begins: datetime
    expires: datetime


Signature = tuple[FileState | None, ...]
"""Of some files: what changes when one of them does."""


def files(tls: Tls) -> dict[str, Path]:
    """The files that are set, by setting."""
    named = {f"tls.{name}": getattr(tls, name) for name in tls.__struct_fields__}
    return {setting: file for setting, file in named.items() if file is not None}


def signature(tls: Tls) -> Signature:
    """What changes when one of the files does; a file that is not there has None."""
    return tuple(map(file_state, files(tls).values()))


def read(tls: Tls) -> Certificate:
    """Read the files and check what they say.

    Raises:
        ConfigError: Something is wrong with one of them; or the extra ``tls`` is not installed.
    """
    try:
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415 - as above
    except ImportError as error:
        raise ConfigError("encrypted connections need an extra: pip install 'headrace[tls]'") from error
    read = {setting: _read(setting, file) for setting, file in files(tls).items()}
    where = {setting: f"{setting}: {file}" for setting, file in files(tls).items()}
    chain = _certificates(where["tls.certificate"], read["tls.certificate"])
    try:
        key = load_pem_private_key(read["tls.key"], None)
    except TypeError:
        raise ConfigError(
            f"{where['tls.key']} is encrypted; expected a private key without a password: "
            "openssl pkey -in FILE -out NEW_FILE takes it off"
        ) from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{where['tls.key']} holds no private key that can be used; expected one in PEM"
        ) from error
    if chain[0].public_key() != key.public_key():
        raise ConfigError(
            f"{where['tls.key']} is not the private key of the first certificate in "
            f"{tls.certificate} ({_names(chain[0])}); expected that of the server, and its certificate first"
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
    from cryptography import x509  # noqa: PLC0415 - the extra is there

    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise ConfigError(
            f"{where} holds no certificate that can be used; expected -----BEGIN CERTIFICATE----- (PEM)"
        ) from error


def _names(certificate: x509.Certificate) -> str:
    """For whom a certificate was made: the names that clients compare, or else its subject."""
    from cryptography import x509  # noqa: PLC0415 - the extra is there

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):  # or extensions that cannot be read
        return certificate.subject.rfc4514_string() or "nobody"
    names = [str(one.value) for one in found]
    return ", ".join([*names[:_NAMES_TOLD], *(["…"] if len(names) > _NAMES_TOLD else [])])


def doubts(certificate: Certificate, tls: Tls, now: datetime) -> Iterator[str]:
    """What an operator should know of a certificate, though it is served.

    Args:
        certificate: What was read.
        tls: From which files.
        now: The time.
    """
    yield from _times(certificate, now)
    if tls.key is not None and _others_can_read(tls.key):
        yield f"the private key {tls.key} can be read by every user of this machine: chmod o-r {tls.key}"


def _times(certificate: Certificate, now: datetime) -> Iterable[str]:
    said = f"the certificate of {certificate.names}"
    if now >= certificate.expires:
        yield f"{said} has expired on {certificate.expires:%Y-%m-%d %H:%M} UTC; clients refuse it"
    elif now < certificate.begins:
        yield f"{said} is valid only from {certificate.begins:%Y-%m-%d %H:%M} UTC on; clients refuse it"


def is_valid(certificate: Certificate, now: datetime) -> bool:
    """Whether it is the certificate's time."""
    return certificate.begins <= now < certificate.expires


def _others_can_read(file: Path) -> bool:
    try:
        return os.name == "posix" and bool(file.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


@contextmanager
def pem_files(certificate: Certificate) -> Iterator[dict[str, Path]]:
    """A certificate as files, for who reads only those: what was checked, whatever is on the disk by now.

    Args:
        certificate: What they hold.
    """
    with ExitStack() as closing:
        contents = {part: getattr(certificate, part) for part in ("chain", "key", "client_ca")}
        yield {part: _file(content, closing) for part, content in contents.items() if content is not None}


def _file(content: bytes, closing: ExitStack) -> Path:
    if sys.platform == "linux":  # in memory only: a private key has no business on a disk
        descriptor = os.memfd_create("headrace-tls")
        closing.callback(os.close, descriptor)
        os.write(descriptor, content)
        return Path(f"/proc/self/fd/{descriptor}")
    import tempfile  # noqa: PLC0415 - only here

    kept = closing.enter_context(tempfile.NamedTemporaryFile())  # noqa: SIM115 - closed there; its owner's alone to read
    kept.write(content)
    kept.flush()
    return Path(kept.name)
