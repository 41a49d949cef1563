"""Passwords and TLS for remote stores, checked when the store is opened."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from headrace.base.errors import ConfigError
from headrace.base.files import read_text
from headrace.storage.stores.store_settings import RemoteStore

_LONGEST_PASSWORD_BYTES = 64 * 1024


def password(settings: RemoteStore) -> str | None:
    """Read the current password; return None if none is configured.

    Raises:
        ConfigError: The password's environment variable or file is missing or cannot be read.
    """
    if settings.password_variable:
        found = os.environ.get(settings.password_variable)
        if found is None:
            raise ConfigError(
                f"store.password_variable: there is no environment variable {settings.password_variable!r}"
            )
        return found
    if settings.password_file is None:
        return None
    try:
        return read_text(settings.password_file, _LONGEST_PASSWORD_BYTES, ordinary=False).rstrip("\r\n")
    except OSError as error:
        raise ConfigError(
            f"store.password_file: {settings.password_file} cannot be read: {error.strerror}"
        ) from error


def tls_context(settings: RemoteStore) -> ssl.SSLContext | None:
    """Return the TLS context for connections, or None if TLS is off.

    Raises:
        ConfigError: A file is missing or invalid.
    """
    if not settings.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=_name(settings.ca_file))
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise ConfigError(f"store.ca_file: {settings.ca_file} cannot be used: {error}") from error
    context.check_hostname = settings.check_hostname
    if settings.certificate_file is not None:
        try:
            # Without this, OpenSSL would prompt on the terminal for the password of an encrypted key.
            context.load_cert_chain(settings.certificate_file, _name(settings.key_file), password=lambda: "")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"store.certificate_file: {settings.certificate_file} cannot be used: {error}"
            ) from error
    return context


def _name(file: Path | None) -> str | None:
    return None if file is None else str(file)
