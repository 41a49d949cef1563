"""Which URLs may be asked for. A pure decision about a text; what its name leads to is checked later."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urlsplit

from headrace.archive.embedders.failing import never
from headrace.errors import shown

LONGEST_URL = 8192
"""The most characters of a URL."""

DEFAULT_PORTS = {"http": 80, "https": 443}
"""The schemes that there are, with their ports."""

# Whoever reads one of these in another way than we do would ask another server.
_NEVER_IN_URLS = re.compile(r"[\x00-\x20\x7f-\x9f\\]")
_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9_])?|\[[0-9a-f:.]{2,45}\]")
_KEPT_IN_PATHS = "/%:;=@!$&'()*+,~?-._"


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that may be asked for.

    Attributes:
        scheme: ``http`` or ``https``.
        host: In small letters; an address of IPv6 without its brackets.
        port: Where.
        path: With the query, as a request line has it.
    """

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> str:
        """The host as a ``Host`` header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def target(url: str, hosts: Sequence[str], ports: Sequence[int]) -> Target:
    """Read a URL, and check it.

    Args:
        url: What is asked for.
        hosts: Hosts that may be: names, ``*.example.com`` for all below one, ``*`` for any.
        ports: Ports that may be.

    Raises:
        Failing: It may not be asked for; final.
    """
    if len(url) > LONGEST_URL:
        raise never(f"expected a URL of at most {LONGEST_URL} characters, got {len(url)}")
    if _NEVER_IN_URLS.search(url):
        raise never(f"a URL with a space, a backslash or a control character: {shown(url)}")
    parts, port = _split(url)
    host = (parts.hostname or "").removesuffix(".")
    scheme = parts.scheme.lower()
    if scheme not in DEFAULT_PORTS:
        raise never(f"expected a URL of http or https, got {shown(url)}")
    if "@" in parts.netloc:
        raise never(f"a URL with a user's name or a password is not asked for: {shown(parts.hostname or '')}")
    if not _HOST.fullmatch(f"[{host}]" if ":" in host else host):
        raise never(f"expected a host's name (an international one as xn--…), got {shown(parts.netloc)}")
    if not is_listed(host, hosts):
        raise never(f"the host {shown(host)} is not among those that are allowed")
    port = DEFAULT_PORTS[scheme] if port is None else port
    if port not in ports:
        raise never(f"the port {port} is not among those that are allowed")
    path = quote(parts.path or "/", safe=_KEPT_IN_PATHS)
    if parts.query:
        path += "?" + quote(parts.query, safe=_KEPT_IN_PATHS)
    return Target(scheme, host, port, path)


def is_listed(host: str, hosts: Sequence[str]) -> bool:
    """Whether a host is among some that are allowed."""
    for listed in hosts:
        wanted = listed.lower().removesuffix(".")
        if wanted in ("*", host) or (wanted.startswith("*.") and host.endswith(wanted[1:])):
            return True
    return False


def _split(url: str) -> tuple[SplitResult, int | None]:
    try:
        parts = urlsplit(url)
        return parts, parts.port
    except ValueError as error:
        raise never(f"no URL: {shown(url)}: {error}") from error
