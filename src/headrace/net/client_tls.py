"""TLS contexts of clients: the certificates that they trust, and the certificate that they present."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from headrace.base.errors import ConfigError


def client_context(
    ca_file: Path | str | None,
    certificate_file: Path | str | None = None,
    key_file: Path | str | None = None,
    *,
    name_of: Callable[[str], str] = str,
) -> ssl.SSLContext:
    """Return a context that verifies servers.

    Args:
        ca_file: Trusted certificates; None or "" for those of the system.
        certificate_file: Certificate of the client; None for none.
        key_file: Key of the certificate; None if ``certificate_file`` contains it.
        name_of: Maps the name of a parameter to its name in the caller's settings, for errors.

    Raises:
        ConfigError: A file is missing, or is not of the expected kind.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        file = ca_file or "the system's certificates, or SSLKEYLOGFILE,"
        raise _unusable(name_of("ca_file"), file, "certificates in PEM", error) from error
    if certificate_file is not None:
        try:
            # Without this callback, OpenSSL would ask for an encrypted key's password on the terminal.
            context.load_cert_chain(certificate_file, key_file, password=lambda: "")
        except (OSError, ValueError) as error:
            files = (
                f"{certificate_file}, or its key {key_file}"
                if key_file
                else f"{certificate_file} with its key in it"
            )
            raise _unusable(
                name_of("certificate_file"), files, "a certificate and its key in PEM", error
            ) from error
    return context


def _unusable(name: str, file: object, kind: str, error: Exception) -> ConfigError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    return ConfigError(f"{name}: {file} cannot be used: {why}; expected {kind}")
