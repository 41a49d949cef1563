"""A certificate's files: what is wrong with them is said with the file's name, and what is odd is told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from headrace.base.errors import ConfigError
from headrace.config import Tls
from headrace.frontends.transport.certificates import doubts, pem_files, read, signature
from tests.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path)
    made.write_server()
    return made


def settings(authority: Authority) -> Tls:
    return Tls(
        certificate=authority.path("server.pem"),
        key=authority.path("server.key"),
        client_ca=authority.path("ca.pem"),
    )


def test_a_good_certificate_is_read_whole(authority: Authority) -> None:
    found = read(settings(authority))
    assert found.chain == authority.path("server.pem").read_bytes()
    assert found.key == authority.path("server.key").read_bytes()
    assert found.client_ca == authority.path("ca.pem").read_bytes()
    assert found.names == "localhost, 127.0.0.1"
    assert list(doubts(found, settings(authority), datetime.now(UTC))) == []


def encrypted(authority: Authority) -> None:
    key = load_pem_private_key(authority.path("server.key").read_bytes(), None)
    content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    authority.path("server.key").write_bytes(content)


def of_another(authority: Authority) -> None:
    authority.replace("server.key", authority.ca.issue_cert("other").private_key_pem.bytes())


def authority_first(authority: Authority) -> None:
    chain = authority.path("ca.pem").read_bytes() + authority.path("server.pem").read_bytes()
    authority.path("server.pem").write_bytes(chain)


WRONG: dict[str, tuple[Callable[[Authority], object], str]] = {
    "no certificate there": (
        lambda authority: authority.path("server.pem").unlink(),
        r"^tls\.certificate: .*server\.pem cannot be read: No such file or directory",
    ),
    "a directory": (
        lambda authority: (authority.path("server.key").unlink(), authority.path("server.key").mkdir()),
        r"^tls\.key: .*server\.key cannot be read: expected a file, got a directory",
    ),
    "no PEM": (
        lambda authority: authority.path("server.pem").write_bytes(b"\x30\x82"),
        r"^tls\.certificate: .*server\.pem contains no usable certificate; expected .*BEGIN CERTIFICATE",
    ),
    "cut": (
        lambda authority: authority.path("server.pem").write_bytes(
            authority.path("server.pem").read_bytes()[:300]
        ),
        r"^tls\.certificate: .*server\.pem contains no usable certificate",
    ),
    "endless": (
        lambda authority: authority.path("ca.pem").write_bytes(bytes(1024 * 1024 + 1)),
        r"^tls\.client_ca: .*ca\.pem has more than 1048576 bytes",
    ),
    "an empty authority": (
        lambda authority: authority.path("ca.pem").write_bytes(b""),
        r"^tls\.client_ca: .*ca\.pem contains no usable certificate",
    ),
    "no key": (
        lambda authority: authority.path("server.key").write_bytes(b"secret"),
        r"^tls\.key: .*server\.key contains no usable private key",
    ),
    "an encrypted key": (encrypted, r"^tls\.key: .*server\.key is encrypted.*openssl pkey"),
    "another's key": (of_another, r"^tls\.key: .*not the private key of the first certificate.*localhost"),
    "the authority's certificate first": (authority_first, r"^tls\.key: .*not the private key of the first"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_file_is_said_with_its_name(authority: Authority, case: str) -> None:
    spoil, message = WRONG[case]
    spoil(authority)
    with pytest.raises(ConfigError, match=message) as caught:
        read(settings(authority))
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(("days", "told"), [(-1, "expired on"), (1, None)])
def test_an_expired_certificate_is_read_and_told(authority: Authority, days: int, told: str | None) -> None:
    expires = datetime.now(UTC) + timedelta(days=days)
    authority.write_server(expires=expires)
    found = read(settings(authority))
    assert found.expires == expires.replace(microsecond=0)
    said = list(doubts(found, settings(authority), datetime.now(UTC)))
    assert [told in one for one in said] == ([True] if told else [])


def test_one_before_its_time_and_a_key_for_everybody_are_told(authority: Authority) -> None:
    authority.path("server.key").chmod(0o644)
    found = read(settings(authority))
    early, readable = doubts(found, settings(authority), found.begins - timedelta(seconds=1))
    assert "is not valid before" in early
    assert "chmod o-r" in readable


def test_the_signature_changes_with_each_file_and_only_then(authority: Authority) -> None:
    tls = settings(authority)
    seen = [signature(tls)]
    assert signature(tls) == seen[0]
    for name in ("server.pem", "server.key", "ca.pem"):
        authority.replace(name, authority.path(name).read_bytes())
        seen.append(signature(tls))
    authority.path("ca.pem").unlink()
    assert len({*seen, signature(tls)}) == 5


def test_files_for_libraries_hold_what_was_checked_and_are_gone_after(authority: Authority) -> None:
    found = read(settings(authority))
    authority.write_server("replaced")
    with pem_files(found) as files:
        assert {name: file.read_bytes() for name, file in files.items()} == {
            "chain": found.chain,
            "key": found.key,
            "client_ca": found.client_ca,
        }
    assert not any(file.exists() for file in files.values())
