"""Large answers on their way: who does not read makes room for others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping
from typing import Any

import pytest

from headrace.base.errors import Overloaded
from headrace.frontends.calls import slices
from headrace.frontends.transport import responses
from headrace.frontends.transport.responses import Answers
from tests.unit.frontends.transport.wire import Server, body, message
from tests.waiting import until_in_loop

SMALL, LARGE = 10_000, 2_000_000
ROOM = 8 * SMALL
"""Of which small answers have a quarter: two of them."""


class Reader:
    """A client that takes so many slices, and no more."""

    def __init__(self, takes: int) -> None:
        self.takes, self.came = takes, b""

    async def send(self, event: MutableMapping[str, Any]) -> None:
        if not self.takes:
            await asyncio.Event().wait()
        self.takes -= 1
        self.came += event["body"]


async def sent(answers: Answers, reader: Reader, answer: bytes) -> bool:
    answers.begin(len(answer))
    try:
        return await answers.send(reader.send, slices(answer))
    finally:
        answers.end()


async def unread(answers: Answers, size: int, count: int = 1) -> list[asyncio.Task[bool]]:
    """Answers that wait for their clients."""
    before = answers.held_bytes
    tasks = [asyncio.create_task(sent(answers, Reader(0), bytes(size))) for _ in range(count)]
    await until_in_loop(lambda: answers.held_bytes > before + count * size)
    return tasks


def test_an_answer_counts_until_it_is_sent() -> None:
    async def scenario() -> None:
        answers = Answers(ROOM)
        (task,) = await unread(answers, SMALL)
        task.cancel()  # the client has gone
        with pytest.raises(asyncio.CancelledError):
            await task
        assert answers.held_bytes == 0
        assert await sent(answers, Reader(9), bytes(SMALL))
        assert answers.held_bytes == 0

    asyncio.run(scenario())


def test_nobody_is_ended_before_his_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "_SECONDS", 1000.0)

    async def scenario() -> None:
        answers = Answers(ROOM)
        tasks = await unread(answers, SMALL, 1)
        with pytest.raises(
            Overloaded, match="answers of 11024 bytes are being sent; 10000 more would exceed"
        ):
            await sent(answers, Reader(9), bytes(SMALL))
        assert not tasks[0].done()
        tasks[0].cancel()

    asyncio.run(scenario())


def test_who_takes_too_long_makes_room_the_latest_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(responses, "_SECONDS", 0.0)
    monkeypatch.setattr(responses, "_ENOUGH_SHARE", 1000)

    async def scenario() -> None:
        answers = Answers(16 * SMALL)
        tasks = [*await unread(answers, SMALL), *await unread(answers, SMALL), *await unread(answers, SMALL)]
        with caplog.at_level(logging.WARNING):
            await asyncio.sleep(SMALL / responses._BYTES_A_SECOND)  # which is what they had
            assert await sent(answers, Reader(9), bytes(SMALL))
        assert await asyncio.wait_for(tasks[0], 120) is False
        assert [one.done() for one in tasks] == [True, False, False]
        assert "answers whose clients read too slowly were cancelled" in caplog.text
        for one in tasks:
            one.cancel()

    asyncio.run(scenario())


def test_what_has_not_begun_to_be_sent_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is being compressed, or the server holds it back: no fault of its client."""
    monkeypatch.setattr(responses, "_SECONDS", -1000.0)

    async def scenario() -> None:
        answers, compressed = Answers(ROOM), asyncio.Event()

        async def compressing() -> None:
            answers.begin(SMALL)
            try:
                await compressed.wait()
            finally:
                answers.end()

        task = asyncio.create_task(compressing())
        await until_in_loop(lambda: answers.held_bytes)
        with pytest.raises(Overloaded):
            answers.begin(SMALL)
        compressed.set()
        await task
        assert answers.held_bytes == 0

    asyncio.run(scenario())


def test_a_large_answer_keeps_no_small_one_out() -> None:
    async def scenario() -> None:
        answers = Answers(ROOM)
        (task,) = await unread(answers, LARGE)  # alone, so that it may be larger than all may be together
        assert await sent(answers, Reader(99), bytes(SMALL))
        with pytest.raises(Overloaded):
            await sent(answers, Reader(99), bytes(LARGE))
        task.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize("path", ["/x.Echo/Unary", "/x.Echo/Stream"])
def test_a_call_whose_answer_made_room_ends_without_its_rest(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Over gRPC: nothing more is sent, so that the server resets the stream."""
    monkeypatch.setattr(responses, "_SECONDS", -1000.0)
    server = Server(answer=bytes(SMALL))
    server.application.answers = Answers(SMALL)

    async def scenario() -> None:
        came: list[str] = []

        async def send(event: MutableMapping[str, Any]) -> None:
            came.append(event["type"])
            if event["type"] == "http.response.body":
                await asyncio.Event().wait()

        events = body(message(b"x"))

        async def receive() -> MutableMapping[str, Any]:
            return events.pop(0)

        still = asyncio.create_task(server.application.answer(server.scope("POST", path), receive, send))
        await until_in_loop(lambda: "http.response.body" in came)
        await server.exchange(server.scope("POST", "/x.Echo/Unary"), body(message(b"y")))
        await asyncio.wait_for(still, 120)
        assert came == ["http.response.start", "http.response.body"]
        await until_in_loop(lambda: (server.application.answers.held_bytes, server.held_bytes) == (0, 0))

    asyncio.run(scenario())
