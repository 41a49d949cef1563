"""Messages between two ends, however their bytes arrive."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct

import pytest

from headrace.workers.messages import Beat, Channel, Failed, Finish, Message, encoded
from tests.waiting import until_in_loop


async def ends() -> tuple[Channel, socket.socket, list[Message]]:
    ours, theirs = socket.socketpair()
    heard = list[Message]()
    channel = Channel()
    await channel.open(ours, heard.append)
    theirs.setblocking(False)
    return channel, theirs, heard


@pytest.mark.parametrize("piece", [1, 3, 7, 10_000])
def test_messages_arrive_whole_and_in_order(piece: int) -> None:
    sent = [Beat(), Failed("x" * 300, wrong=True), Finish(1.5), Beat()]
    content = b"".join(struct.pack("<I", len(encoded(one))) + encoded(one) for one in sent)

    async def run() -> None:
        channel, theirs, heard = await ends()
        loop = asyncio.get_running_loop()
        for start in range(0, len(content), piece):
            await loop.sock_sendall(theirs, content[start : start + piece])
        await until_in_loop(lambda: len(heard) == len(sent))
        assert heard == sent
        theirs.close()
        await asyncio.wait_for(channel.closed, 120)
        channel.send(Beat())  # nobody gets it

    asyncio.run(run())


NO_UTF8 = encoded(Failed("no", wrong=True)).replace(b"no", b"\xff\xfe")


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<I", 2**31),
        struct.pack("<I", 3) + b"abc",
        struct.pack("<I", 3) + b"abc" + struct.pack("<I", len(encoded(Beat()))) + encoded(Beat()),
        struct.pack("<I", len(NO_UTF8)) + NO_UTF8,
    ],
)
def test_malformed_bytes_close_the_channel(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> list[Message]:
        channel, theirs, heard = await ends()
        await asyncio.get_running_loop().sock_sendall(theirs, content)
        await asyncio.wait_for(channel.closed, 120)
        theirs.close()
        return heard

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(run()) == []
    assert "between the processes" in caplog.text


def test_a_channel_carries_messages_in_both_directions() -> None:
    async def run() -> tuple[list[Message], list[Message]]:
        ours, theirs = socket.socketpair()
        one, other = Channel(), Channel()
        first, second = list[Message](), list[Message]()
        await one.open(ours, first.append)
        await other.open(theirs, second.append)
        one.send(Finish(2.0))
        await until_in_loop(lambda: second)
        other.send(Beat())
        await until_in_loop(lambda: first)
        one.close()
        await asyncio.wait_for(other.closed, 120)
        return first, second

    assert asyncio.run(run()) == ([Beat()], [Finish(2.0)])
