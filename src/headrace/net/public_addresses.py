"""Decides which addresses may be connected to: public ones, and those in allowed networks.

URLs may come from strangers who aim at services of this machine, its neighbours, or a cloud's metadata
service. So the decision is about the address that is connected to, not about the host name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from headrace.base.errors import ConfigError

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
        address = _meant(address)
    if any(address in network for network in allowed):
        return ""
    found = next((what for network, what in _NOT_PUBLIC if address in network), "")
    if found or isinstance(address, ipaddress.IPv4Address):
        return found
    if address not in _PUBLIC_V6:
        return "a reserved address"
    return "an ISATAP address" if int(address) >> 32 & 0xFFFFFFFF in _ISATAP else ""


def _meant(address: ipaddress.IPv6Address) -> Address:
    """Return the IPv4 address embedded in an IPv4-mapped or NAT64 address, else the address itself."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address
