"""Which URLs may be asked for, as a table."""

from __future__ import annotations

import pytest

from headrace.net.content_failures import Failing
from headrace.net.urls import Target, target

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
        ("http://evil.example\\@images.example/a", "a backslash"),
        ("http://images.example/a b", "a space"),
        ("http://images.example/a\r\nHost: evil.example", "a control character"),
        ("ht\ntp://images.example/", "a control character"),
        ("http://images.example/\0", "a control character"),
        ("http://images.example/\x85", "a control character"),
        ("http://①②⑦.⓪.⓪.①/", "expected a host's name"),
        ("http://bücher.example/", "expected a host's name"),
        ("http://[::1%25eth0]/", "expected a host's name"),
        ("http://[::1/", "invalid URL"),
        ("http://images%2eexample/", "expected a host's name"),
        ("http://images.example/" + "a" * 9000, "at most 8192 characters"),
    ],
)
def test_urls_that_may_not(url: str, said: str) -> None:
    with pytest.raises(Failing, match=said) as caught:
        target(url, HOSTS, (80, 443))
    assert caught.value.failure.is_final


def test_any_host_is_a_star() -> None:
    assert target("http://anything.example/", ("*",), (80,)).host == "anything.example"
    assert target("http://[2a00::1]:8080/", ("*",), (8080,)).origin == "[2a00::1]:8080"
    with pytest.raises(Failing):
        target("http://anything.example/", (), (80,))
