"""Decides which URLs may be requested, from their text alone; the address is checked later."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urlsplit

from headrace.base.addresses import bracketed
from headrace.base.errors import shown
from headrace.net.content_failures import never

LONGEST_URL = 8192
"""Maximum length of a URL in characters."""

DEFAULT_PORTS = {"http": 80, "https": 443}
"""Allowed schemes with their default ports."""

KEPT_IN_PATHS = "/%:;=@!$&'()*+,~?-._"
"""Characters of paths and queries that are not percent-encoded, beside letters and digits."""

# URL parsers disagree on these characters: another one could see another host.
_NEVER_IN_URLS = re.compile(r"[\x00-\x20\x7f-\x9f\\]")
_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9_])?|\[[0-9a-f:.]{2,45}\]")


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that may be requested.

    Attributes:
        scheme: ``http`` or ``https``.
        host: Host in lower case; an IPv6 address without brackets.
        port: Port number.
        path: Path and query, as in a request line.
    """

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> str:
        """Value of the ``Host`` header."""
        host = bracketed(self.host)
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def target(url: str, hosts: Sequence[str], ports: Sequence[int]) -> Target:
    """Parse and check a URL.

    Args:
        url: URL to request.
        hosts: Allowed hosts: names, ``*.example.com`` for all subdomains, ``*`` for any.
        ports: Allowed ports.

    Raises:
        Failing: The URL is invalid or not allowed; final.
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
        raise never(f"a URL with a user name or a password is not allowed: {shown(parts.hostname or '')}")
    if not _HOST.fullmatch(bracketed(host)):
        raise never(f"expected a host's name (an international one as xn--…), got {shown(parts.netloc)}")
    if not is_listed(host, hosts):
        raise never(f"the host {shown(host)} is not among the allowed hosts")
    port = DEFAULT_PORTS[scheme] if port is None else port
    if port not in ports:
        raise never(f"the port {port} is not among the allowed ports")
    path = quote(parts.path or "/", safe=KEPT_IN_PATHS)
    if parts.query:
        path += "?" + quote(parts.query, safe=KEPT_IN_PATHS)
    return Target(scheme, host, port, path)


def is_listed(host: str, hosts: Sequence[str]) -> bool:
    """Return whether a host is in a list of allowed hosts."""
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
        raise never(f"invalid URL: {shown(url)}: {error}") from error
