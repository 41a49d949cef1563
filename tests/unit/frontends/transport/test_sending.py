"""Large answers on their way: who does not read makes room for others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping
from typing import Any

import pytest

from headrace.errors import Overloaded
from headrace.frontends.pieces import slices
from headrace.frontends.transport import sending
from headrace.frontends.transport.sending import Answers
from tests.unit.frontends.transport.wire import Server, body, message, until

LARGE = 10_000


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


def test_an_answer_counts_until_it_is_sent() -> None:
    async def scenario() -> None:
        answers, reader = Answers(3 * LARGE), Reader(0)
        sending_it = asyncio.create_task(sent(answers, reader, bytes(LARGE)))
        await until(lambda: answers.bytes == LARGE)
        sending_it.cancel()  # the client has gone
        with pytest.raises(asyncio.CancelledError):
            await sending_it
        assert answers.bytes == 0
        assert await sent(answers, Reader(9), bytes(LARGE))
        assert answers.bytes == 0

    asyncio.run(scenario())


def test_what_is_being_read_is_not_ended_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "_STUCK_SECONDS", 1000.0)

    async def scenario() -> None:
        answers = Answers(2 * LARGE)
        one = asyncio.create_task(sent(answers, Reader(0), bytes(2 * LARGE)))
        await until(lambda: answers.bytes == 2 * LARGE)
        with pytest.raises(Overloaded, match="answers of 20000 bytes are being sent; 10000 more would pass"):
            await sent(answers, Reader(9), bytes(LARGE))
        assert answers.bytes == 2 * LARGE
        one.cancel()

    asyncio.run(scenario())


def test_what_nobody_reads_makes_room_the_longest_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sending, "_STUCK_SECONDS", 0.0)

    async def scenario() -> None:
        answers = Answers(3 * LARGE)
        still = [asyncio.create_task(sent(answers, Reader(0), bytes(LARGE))) for _ in range(3)]
        await until(lambda: answers.bytes == 3 * LARGE)
        with caplog.at_level(logging.WARNING):
            assert await sent(answers, Reader(9), bytes(LARGE))
        assert await asyncio.wait_for(still[0], 5) is False
        assert [one.done() for one in still] == [True, False, False]
        assert answers.bytes == 2 * LARGE
        assert "1 answers were ended that nobody had read" in caplog.text
        for one in still:
            one.cancel()

    asyncio.run(scenario())


def test_one_that_is_alone_may_be_larger() -> None:
    async def scenario() -> None:
        assert await sent(Answers(LARGE), Reader(9), bytes(2 * LARGE))

    asyncio.run(scenario())


@pytest.mark.parametrize("path", ["/x.Echo/Unary", "/x.Echo/Stream"])
def test_a_call_whose_answer_made_room_ends_without_its_rest(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Over gRPC: nothing more is sent, so that the server resets the stream."""
    monkeypatch.setattr(sending, "_STUCK_SECONDS", 0.0)
    server = Server(answer=bytes(LARGE))
    server.application.answers.most_bytes = LARGE

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
        await until(lambda: "http.response.body" in came)
        await server.exchange(server.scope("POST", "/x.Echo/Unary"), body(message(b"y")))
        await asyncio.wait_for(still, 5)
        assert came == ["http.response.start", "http.response.body"]
        await until(lambda: (server.application.answers.bytes, server.held_bytes) == (0, 0))

    asyncio.run(scenario())
