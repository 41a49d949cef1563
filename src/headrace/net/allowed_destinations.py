"""Decides which URLs may be requested, from their text alone, and which addresses may be connected to.

URLs may come from strangers who aim at services of this machine, its neighbours, or a cloud's metadata
service. So the final check is of the address to connect to, not of the host name: public addresses are
allowed, and those in allowed networks.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urlsplit

from headrace.base.addresses import bracketed
from headrace.base.errors import ConfigError, shown
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
        raise never(f"expected a URL without spaces, backslashes and control characters, got {shown(url)}")
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


Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# From IANA's registries of special-purpose addresses (RFC 6890 and its updates).
_NOT_PUBLIC = tuple(
    (ipaddress.ip_network(network), what)
    for network, what in (
        ("0.0.0.0/8", "an address of this machine"),
        ("10.0.0.0/8", "a private address"),
        ("100.64.0.0/10", "an address shared by a provider's customers"),
        ("127.0.0.0/8", "a loopback address"),
        ("168.63.129.16/32", "an address of a cloud's own services"),
        ("169.254.0.0/16", "a link-local address"),
        ("172.16.0.0/12", "a private address"),
        ("192.0.0.0/24", "a reserved address"),
        ("192.0.2.0/24", "an address for documentation"),
        ("192.88.99.0/24", "an address of a 6to4 relay"),
        ("192.168.0.0/16", "a private address"),
        ("198.18.0.0/15", "an address for measurements"),
        ("198.51.100.0/24", "an address for documentation"),
        ("203.0.113.0/24", "an address for documentation"),
        ("224.0.0.0/4", "a multicast address"),
        ("240.0.0.0/4", "a reserved address"),
        ("::/128", "an address of this machine"),
        ("::1/128", "a loopback address"),
        ("2001::/32", "a Teredo address"),
        ("2001::/23", "a reserved address"),
        ("2001:db8::/32", "an address for documentation"),
        ("2002::/16", "a 6to4 address"),
        ("3fff::/20", "an address for documentation"),
        ("fc00::/7", "a private address"),
        ("fe80::/10", "a link-local address"),
        ("fec0::/10", "a private address"),
        ("ff00::/8", "a multicast address"),
    )
)
_PUBLIC_V6 = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)


def networks(key: str, texts: Sequence[str]) -> tuple[Network, ...]:
    """Parse networks.

    Args:
        key: Name of the setting, for errors.
        texts: Texts such as ``10.1.0.0/16``, ``fd00::/8`` or a single address.

    Raises:
        ConfigError: A text is not a network.
    """
    made = []
    for text in texts:
        try:
            made.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise ConfigError(f"{key}: expected networks like 10.1.0.0/16, got {text!r}: {error}") from error
    return tuple(made)


def forbidden(text: str, allowed: Sequence[Network]) -> str:
    """Check whether an address may be connected to.

    Args:
        text: Address in canonical form, exactly as passed to ``connect``.
        allowed: Networks that are allowed, even if they are not public.

    Returns:
        The reason why it is forbidden, as in "a loopback address"; "" if it is allowed.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return "not an IP address"
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return "an address of one network interface"
        address = _embedded_ipv4(address)
    if any(address in network for network in allowed):
        return ""
    found = next((what for network, what in _NOT_PUBLIC if address in network), "")
    if found or isinstance(address, ipaddress.IPv4Address):
        return found
    if address not in _PUBLIC_V6:
        return "a reserved address"
    return "an ISATAP address" if int(address) >> 32 & 0xFFFFFFFF in _ISATAP else ""


def _embedded_ipv4(address: ipaddress.IPv6Address) -> Address:
    """Return the IPv4 address embedded in an IPv4-mapped or NAT64 address, else the address itself."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address
