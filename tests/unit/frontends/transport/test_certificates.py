"""A certificate's files: what is wrong with them is said with the file's name, and what is odd is told.

The certificate in force follows its files, and stays where the new ones cannot be used.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from headrace.base.errors import ConfigError
from headrace.config import Tls
from headrace.frontends.transport.certificates import (
    Certificate,
    ServedCertificate,
    TlsMetrics,
    doubts,
    pem_files,
    read,
    signature,
)
from tests.certificates import Authority
from tests.waiting import until_in_loop

SECONDS = 120.0


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


def run(
    authority: Authority, script: Callable[[ServedCertificate, list[Certificate]], object], look: float
) -> tuple[ServedCertificate, list[Certificate]]:
    """Follow the files while a script changes them.

    Args:
        authority: Whose files.
        script: A coroutine function; gets what is followed, and the list of what was taken up.
        look: How often the files are looked at.
    """

    async def following() -> tuple[ServedCertificate, list[Certificate]]:
        served = ServedCertificate(
            Tls(certificate=authority.path("server.pem"), key=authority.path("server.key"))
        )
        used: list[Certificate] = []

        async def use(certificate: Certificate) -> None:
            if "refused" in certificate.names:
                raise ValueError("no such curve")
            used.append(certificate)

        served.uses.append(use)
        task = asyncio.create_task(served.follow(look))
        async with asyncio.timeout(SECONDS):
            await script(served, used)  # type: ignore[misc]
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return served, used

    return asyncio.run(following())


def test_new_files_are_taken_up_once_and_what_uses_them_is_told(authority: Authority) -> None:
    async def script(served: ServedCertificate, used: list[Certificate]) -> None:
        before = served.current
        authority.write_server("new.example")
        await until_in_loop(lambda: served.reloads == 1)
        assert served.current is used[0] is not before

    served, used = run(authority, script, 0.01)
    assert (len(used), served.failures, used[0].names) == (1, 0, "new.example")


def test_a_certificate_without_its_key_yet_is_waited_for(authority: Authority) -> None:
    """Whoever writes one after the other is not told that it failed."""
    made = authority.ca.issue_cert("new.example")

    async def script(served: ServedCertificate, used: list[Certificate]) -> None:
        authority.replace("server.pem", made.cert_chain_pems[0].bytes())
        await served._look(was_told=False)  # as once in a while
        assert served._doubted is not None
        authority.replace("server.key", made.private_key_pem.bytes())
        served.look()
        await until_in_loop(lambda: served.reloads == 1)

    served, _ = run(authority, script, 3600.0)
    assert served.failures == 0


@pytest.mark.parametrize("spoil", ["broken", "refused by the transport", "gone"])
def test_what_cannot_be_used_leaves_the_one_before_in_force(
    authority: Authority, caplog: pytest.LogCaptureFixture, spoil: str
) -> None:
    async def script(served: ServedCertificate, used: list[Certificate]) -> None:
        before = served.current
        if spoil == "broken":
            authority.replace("server.key", b"no key")
        elif spoil == "gone":
            authority.path("server.pem").unlink()
        else:
            authority.write_server("refused.example")
        await until_in_loop(lambda: served.failures == 1)
        await asyncio.sleep(0.05)
        assert (served.current, served.failures, served.reloads) == (before, 1, 0)
        authority.write_server("good.example")
        await until_in_loop(lambda: served.reloads == 1)

    with caplog.at_level(logging.ERROR):
        _, used = run(authority, script, 0.01)
    assert [one.names for one in used] == ["good.example"]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert told[0].startswith("the new certificate cannot be used; the previous one stays in use: ")


def test_what_the_system_refuses_is_tried_again_and_told_once(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """As when no descriptor is left: nobody would renew the files for that."""

    async def script(served: ServedCertificate, used: list[Certificate]) -> None:
        tries = []

        async def refuses(certificate: Certificate) -> None:
            tries.append(certificate)
            if len(tries) < 4:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        served.uses.insert(0, refuses)
        authority.write_server("new.example")
        await until_in_loop(lambda: served.reloads == 1)
        assert (len(tries), served.failures, served.current.names) == (4, 1, "new.example")

    with caplog.at_level(logging.ERROR):
        _, used = run(authority, script, 0.01)
    assert [one.names for one in used] == ["new.example"]
    assert sum("cannot be used" in record.getMessage() for record in caplog.records) == 1


def test_the_files_are_looked_at_again_after_whatever_went_wrong(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """As when no thread can be started, in which the files are looked at."""

    class Exhausted(ThreadPoolExecutor):
        refusals = 0

        def submit(self, *given: Any, **named: Any) -> Any:
            if self.refusals < 2:
                self.refusals += 1
                raise RuntimeError("can't start new thread")
            return super().submit(*given, **named)

    async def script(served: ServedCertificate, used: list[Certificate]) -> None:
        threads = Exhausted()
        asyncio.get_running_loop().set_default_executor(threads)
        authority.write_server("new.example")
        await until_in_loop(lambda: served.reloads == 1)
        assert threads.refusals == 2

    with caplog.at_level(logging.ERROR):
        run(authority, script, 0.01)
    assert "cannot check the certificate for changes" in caplog.text


def test_being_told_looks_at_once(authority: Authority) -> None:
    async def script(served: ServedCertificate, used: list[Certificate]) -> None:
        await asyncio.sleep(0)
        authority.write_server("new.example")
        served.look()
        await until_in_loop(lambda: served.reloads == 1)

    run(authority, script, 3600.0)


def test_a_certificate_that_expires_while_it_serves_is_told_once(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    authority.write_server(expires=datetime.now(UTC) + timedelta(seconds=1))

    async def script(served: ServedCertificate, used: list[Certificate]) -> None:
        (expires, _) = TlsMetrics(served).collect()
        assert expires.samples[0].value < 2
        await until_in_loop(lambda: bool(caplog.records))
        await asyncio.sleep(0.05)

    run(authority, script, 0.01)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "expired on" in record.getMessage()
