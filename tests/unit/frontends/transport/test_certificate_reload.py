"""The certificate in force follows its files, and stays where the new ones cannot be used."""

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

from headrace.config import Tls
from headrace.frontends.transport.certificate_reload import ServedCertificate, TlsMetrics
from headrace.frontends.transport.certificates import Certificate
from tests.certificates import Authority
from tests.waiting import until_in_loop

SECONDS = 120.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path)
    made.write_server()
    return made


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
