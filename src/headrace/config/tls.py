"""The settings of encrypted connections: ``[tls]`` of ``headrace serve --config FILE``."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.base.errors import ConfigError


class Tls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server's certificate, and its requirements for client certificates; the same for REST and gRPC.

    Attributes:
        certificate: A PEM file: the server's own certificate first, then the chain to its authority.
        key: A PEM file: the private key of the server's own certificate, not encrypted.
        client_ca: A PEM file of authorities, one of which must have signed a client's certificate; None if
            clients need no certificate.
    """

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None

    @property
    def wanted(self) -> bool:
        """Whether connections are encrypted.

        Raises:
            ConfigError: A setting is missing beside another one.
        """
        if self.certificate is None and self.key is None and self.client_ca is None:
            return False
        for key, other, value in (
            ("tls.certificate", "tls.key" if self.key else "tls.client_ca", self.certificate),
            ("tls.key", "tls.certificate", self.key),
        ):
            if value is None:
                way_out = f"it is required with {other}: set --{key.replace('.', '-')} FILE"
                raise ConfigError(f"{key}: expected a file, got none; {way_out}")
        return True

    def below(self, base: Path) -> Tls:
        """Return a copy with relative files resolved against ``base``."""
        files = {name: getattr(self, name) for name in self.__struct_fields__}
        return Tls(**{name: None if file is None else base / file for name, file in files.items()})
