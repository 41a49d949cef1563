"""A certificate authority and a server's certificate, for servers that are tried out with TLS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tools.services.errors import ServiceError

NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files for TLS.

    Attributes:
        ca: The authority's certificate (PEM), which clients trust.
        certificate: The server's certificate (PEM).
        key: The server's key (PEM).
        store: Both in one file (PKCS 12), as Java's servers want them, encrypted with a password.
    """

    ca: Path
    certificate: Path
    key: Path
    store: Path


def certificates(folder: Path, password: str) -> Certificates:
    """Give the files in a folder; they are made if they are not there.

    Args:
        folder: Where they lie.
        password: What the PKCS 12 file is encrypted with.

    Raises:
        ServiceError: trustme is not installed.
    """
    found = Certificates(
        folder / "ca.pem", folder / "server.pem", folder / "server-key.pem", folder / "server.p12"
    )
    if found.store.exists():
        return found
    try:
        import trustme  # noqa: PLC0415 - only TLS needs it
    except ImportError as error:
        raise ServiceError(
            "TLS needs certificates, which trustme makes: make install (or pip install trustme)"
        ) from error
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - comes with trustme
    from cryptography.hazmat.primitives.serialization import pkcs12  # noqa: PLC0415
    from cryptography.x509 import load_pem_x509_certificate  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    issued = authority.issue_cert(*NAMES)
    authority.cert_pem.write_to_path(str(found.ca))
    issued.cert_chain_pems[0].write_to_path(str(found.certificate))
    found.key.touch(0o600)
    found.key.write_bytes(issued.private_key_pem.bytes())
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    store = pkcs12.serialize_key_and_certificates(
        b"server",
        key,  # type: ignore[arg-type]
        load_pem_x509_certificate(issued.cert_chain_pems[0].bytes()),
        [load_pem_x509_certificate(authority.cert_pem.bytes())],
        serialization.BestAvailableEncryption(password.encode()),
    )
    partial = found.store.with_suffix(".partial")
    partial.touch(0o600)
    partial.write_bytes(store)
    partial.rename(found.store)  # the last one: what comes later finds all
    return found
