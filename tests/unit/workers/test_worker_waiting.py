"""A worker that waits for its models."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.server.server import Server
from headrace.serving.engine import Engine
from headrace.workers.messages import Alone, Begin, Channel
from headrace.workers.restart_rules import ALONE_SECONDS
from headrace.workers.worker import Worker
from headrace.workers.worker_shares import ToldSource
from tests.virtual_loop import run_virtually

SAYS = "connections are accepted while models are still loading"


async def announce(server: Server, begin: Begin) -> None:
    """Say nothing."""


async def waited_seconds(models: Path, then: Callable[[Worker, Channel], object]) -> float:
    """How long a worker waits that is not told which models there are; ``then`` happens after a second."""
    ours, theirs = socket.socketpair()
    supervisor, channel = Channel(), Channel()
    worker = Worker(channel, announce)
    await supervisor.open(ours, lambda message: None)
    await channel.open(theirs, worker.told)
    engine = Engine(models, source=ToldSource().made_for)
    await engine.start(wait=False)
    loop = asyncio.get_running_loop()
    since = loop.time()
    loop.call_later(1.0, then, worker, supervisor)
    await worker._until_tried(engine)
    waited = loop.time() - since
    await engine.close()
    supervisor.close()
    await channel.closed
    return waited


def test_the_wait_for_models_ends_with_the_supervisor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run_virtually(waited_seconds(tmp_path, lambda _, supervisor: supervisor.close())) == 1.0
    assert SAYS not in caplog.text


def test_the_wait_for_models_is_short_if_no_other_worker_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    waited = run_virtually(waited_seconds(tmp_path, lambda worker, _: worker.told(Alone())))
    assert waited == 1.0 + ALONE_SECONDS
    assert SAYS in caplog.text
