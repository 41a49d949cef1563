"""Passwords and TLS for remote stores, checked when the store is opened."""

from __future__ import annotations

import os
import ssl

from headrace.base.errors import ConfigError
from headrace.base.files import read_text
from headrace.net.client_tls import client_context
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
    context = client_context(
        settings.ca_file, settings.certificate_file, settings.key_file, name_of="store.{}".format
    )
    context.check_hostname = settings.check_hostname
    return context
