"""Certificates for tests: an authority, what it signs, and files of them that can be replaced."""

from __future__ import annotations

import os
import ssl
from datetime import datetime
from pathlib import Path

import trustme


class Authority:
    """A certificate authority, and the files of a server that it signs for.

    Attributes:
        ca: The authority.
        directory: Where its files are.
    """

    def __init__(self, directory: Path) -> None:
        self.ca = trustme.CA()
        self.directory = directory
        self.ca.cert_pem.write_to_path(str(self.path("ca.pem")))

    def path(self, name: str) -> Path:
        return self.directory / name

    def write_server(self, *names: str, expires: datetime | None = None) -> None:
        """Put a new certificate and its key where ``options`` says, each by a rename."""
        made = self.ca.issue_cert(*(names or ("localhost", "127.0.0.1")), not_after=expires)
        self.replace("server.pem", b"".join(one.bytes() for one in made.cert_chain_pems))
        self.replace("server.key", made.private_key_pem.bytes())

    def replace(self, name: str, content: bytes) -> None:
        new = self.path(f"new-{name}")
        new.write_bytes(content)
        new.chmod(0o600)
        os.replace(new, self.path(name))

    def options(self, *, mutual: bool = False) -> tuple[str, ...]:
        """The options of a server with this certificate."""
        given = ("--tls-certificate", str(self.path("server.pem")), "--tls-key", str(self.path("server.key")))
        return (*given, "--tls-client-ca", str(self.path("ca.pem"))) if mutual else given

    def context(self, *, as_client: bool = False) -> ssl.SSLContext:
        """What a client asks with."""
        context = ssl.create_default_context(cafile=str(self.path("ca.pem")))
        if as_client:
            context.load_cert_chain(*self.client_files())
        return context

    def client_files(self) -> tuple[Path, Path]:
        """A client's certificate and key."""
        chain, key = self.path("client.pem"), self.path("client.key")
        if not chain.exists():
            made = self.ca.issue_cert("client@example.org")
            self.replace("client.pem", made.cert_chain_pems[0].bytes())
            self.replace("client.key", made.private_key_pem.bytes())
        return chain, key
