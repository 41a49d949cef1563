"""Which URLs may be asked for, as a table."""

from __future__ import annotations

import pytest

from headrace.base.errors import ConfigError
from headrace.net.allowed_destinations import Target, forbidden, networks, target
from headrace.net.content_failures import Failing

HOSTS = ("images.example", "*.cdn.example", "[::1]", "127.0.0.1", "xn--bcher-kva.example")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://images.example/a.jpg", Target("http", "images.example", 80, "/a.jpg")),
        ("HTTPS://Images.Example./a?b=c#d", Target("https", "images.example", 443, "/a?b=c")),
        ("https://eu.cdn.example:443", Target("https", "eu.cdn.example", 443, "/")),
        ("http://images.example/ü?q=ß", Target("http", "images.example", 80, "/%C3%BC?q=%C3%9F")),
        ("http://images.example/%2e%2e/a", Target("http", "images.example", 80, "/%2e%2e/a")),
        ("http://127.0.0.1/a", Target("http", "127.0.0.1", 80, "/a")),
    ],
)
def test_urls_that_may_be(url: str, expected: Target) -> None:
    assert target(url, HOSTS, (80, 443)) == expected


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://images.example/a", "expected a URL of http or https"),
        ("//images.example/a", "expected a URL of http or https"),
        ("http:///a", "expected a host's name"),
        ("http://other.example/a", "'other.example' is not among"),
        ("http://cdn.example/a", "'cdn.example' is not among"),
        ("http://evilcdn.example/a", "is not among"),
        ("http://images.example.evil.example/a", "is not among"),
        ("http://images.example:22/a", "the port 22 is not among"),
        ("http://images.example:99999/a", "invalid URL"),
        ("http://images.example@evil.example/a", "a user name"),
        ("http://user:password@images.example/a", "a user name"),
        ("http://evil.example\\@images.example/a", "without spaces, backslashes"),
        ("http://images.example/a b", "without spaces"),
        (
            "http://images.example/a\r\nHost: evil.example",
            "and control characters",
        ),
        ("ht\ntp://images.example/", "and control characters"),
        ("http://images.example/\0", "and control characters"),
        ("http://images.example/\x85", "and control characters"),
        ("http://①②⑦.⓪.⓪.①/", "expected a host's name"),
        ("http://bücher.example/", "expected a host's name"),
        ("http://[::1%25eth0]/", "expected a host's name"),
        ("http://[::1/", "invalid URL"),
        ("http://images%2eexample/", "expected a host's name"),
        ("http://images.example/" + "a" * 9000, "at most 8192 characters"),
    ],
)
def test_forbidden_urls_are_refused(url: str, said: str) -> None:
    with pytest.raises(Failing, match=said) as caught:
        target(url, HOSTS, (80, 443))
    assert caught.value.failure.is_final


def test_any_host_is_a_star() -> None:
    assert target("http://anything.example/", ("*",), (80,)).host == "anything.example"
    assert target("http://[2a00::1]:8080/", ("*",), (8080,)).origin == "[2a00::1]:8080"
    with pytest.raises(Failing):
        target("http://anything.example/", (), (80,))


# Which addresses may be connected to, as a table.


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "93.184.215.14",
        "172.32.0.1",
        "192.167.255.255",
        "2606:4700:4700::1111",
        "2a00:1450:4001::1",
        "::ffff:1.1.1.1",
        "64:ff9b::1.1.1.1",
    ],
)
def test_public_addresses_may_be(address: str) -> None:
    assert not forbidden(address, ())


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("0.0.0.0", "this machine"),
        ("0.1.2.3", "this machine"),
        ("10.0.0.1", "private"),
        ("172.16.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.168.1.1", "private"),
        ("100.64.0.1", "shared"),
        ("169.254.169.254", "link-local"),
        ("168.63.129.16", "cloud"),
        ("192.0.0.8", "reserved"),
        ("192.0.2.1", "documentation"),
        ("192.88.99.1", "6to4 relay"),
        ("198.19.0.1", "measurements"),
        ("224.0.0.1", "multicast"),
        ("239.255.255.250", "multicast"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "reserved"),
        ("::", "this machine"),
        ("::1", "loopback"),
        ("::127.0.0.1", "reserved"),  # the old way to write an IPv4 address
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:7f00:1", "loopback"),
        ("::ffff:169.254.169.254", "link-local"),
        ("::ffff:0:127.0.0.1", "reserved"),
        ("64:ff9b::10.0.0.1", "private"),
        ("64:ff9b::7f00:1", "loopback"),
        ("64:ff9b:1::1", "reserved"),
        ("100::1", "reserved"),
        ("2001::1", "Teredo"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "Teredo"),
        ("2001:2::1", "reserved"),
        ("2001:db8::1", "documentation"),
        ("2002:7f00:1::1", "6to4"),
        ("2002:c0a8:101::1", "6to4"),
        ("2a00::5efe:10.0.0.1", "ISATAP"),
        ("2a00::200:5efe:127.0.0.1", "ISATAP"),
        ("3fff::1", "documentation"),
        ("4000::1", "reserved"),
        ("5f00::1", "reserved"),
        ("fc00::1", "private"),
        ("fd12:3456::1", "private"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "network interface"),
        ("2a00::1%1", "network interface"),
        ("fec0::1", "private"),
        ("ff02::1", "multicast"),
        ("localhost", "not an IP address"),
        ("2130706433", "not an IP address"),
        ("0x7f.1", "not an IP address"),
        ("127.1", "not an IP address"),
        ("", "not an IP address"),
    ],
)
def test_forbidden_addresses_are_refused_with_the_reason(address: str, what: str) -> None:
    assert what in forbidden(address, ())


def test_networks_may_be_allowed_in_any_form() -> None:
    allowed = networks("allow_networks", ["127.0.0.0/8", "10.1.0.0/16", "::1"])
    for address in ("127.0.0.1", "::ffff:127.0.0.1", "10.1.2.3", "64:ff9b::10.1.0.1", "::1"):
        assert not forbidden(address, allowed)
    assert forbidden("10.2.0.1", allowed)
    assert forbidden("::ffff:10.2.0.1", allowed)
    with pytest.raises(ConfigError, match=r"allow_networks: expected networks like .*, got 'home'"):
        networks("allow_networks", ["home"])
