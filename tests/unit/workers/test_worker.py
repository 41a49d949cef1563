"""A worker whose start fails, or whose supervisor says nothing: the supervisor is told why."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.config import ServerConfig
from headrace.serving.engine import Engine
from headrace.workers import worker
from headrace.workers.messages import RELEASE, Beat, Begin, Channel, Failed, Message
from tests.virtual_loop import run_virtually

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def kept_signals() -> Iterator[None]:
    """A worker ignores signals; this process does not go on doing so."""
    kept = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


async def announce(*_: object) -> None:
    raise AssertionError("nothing is served")


async def run(*messages: Message) -> tuple[int, list[Message], float]:
    """Run a worker that is sent messages: its exit code, its answers, and when it ended."""
    ours, theirs = socket.socketpair()
    heard = list[Message]()
    channel = Channel()
    await channel.open(ours, heard.append)
    for one in messages:
        channel.send(one)
    began = asyncio.get_running_loop().time()
    code = await worker.run(theirs, RELEASE, lambda _: None, announce)
    await channel.closed
    return code, heard, asyncio.get_running_loop().time() - began


def begin(models: Path, *owners: str) -> Begin:
    return Begin(
        worker=0,
        models=models,
        config=ServerConfig(trusted_owners=owners),
        sockets=(-1, -1),
        workers=2,
        announces=False,
        json=False,
        begun=0.0,
        waits=False,
        fills=False,
        keeper=None,
    )


def test_an_error_in_the_settings_is_sent_to_the_supervisor(tmp_path: Path) -> None:
    code, heard, seconds = run_virtually(run(begin(tmp_path, "nobody of this name"), Beat()))
    assert (code, seconds) == (2, 0.0)
    failed = [one for one in heard if isinstance(one, Failed)]
    assert [(one.wrong, one.message.startswith("trusted_owners: ")) for one in failed] == [(True, True)], (
        heard
    )


def test_any_other_error_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(Engine, "__init__", fail)

    async def scenario() -> None:
        started = worker.Worker(Channel(), announce)
        started.told(begin(tmp_path))
        with pytest.raises(OSError, match="no"):
            await started.begun

    run_virtually(scenario())


def test_settings_that_do_not_come_are_an_error() -> None:
    code, heard, seconds = run_virtually(run())
    assert (code, seconds) == (1, 60.0)
    assert heard == [Failed("the supervisor has sent no settings for 60 s", wrong=False)]
