"""Reading bodies: by what they announce, chunk by chunk, joined with others answered in between."""

from __future__ import annotations

import asyncio

import pytest

from headrace.base.errors import TooLarge
from headrace.config import Limits
from headrace.frontends.transport.bodies import Bodies, whole
from tests.unit.frontends.transport.wire import Server, Wire, body, part


def test_a_body_of_the_declared_length_is_answered_without_waiting_for_its_end() -> None:
    server = Server()
    events = [part(b"he"), part(b""), part(b"llo")]
    response = server.http("POST", "/echo/x", events, {b"content-length": b"5"})
    assert (response.status, response.body) == (200, b"hello")
    assert server.held_bytes == 0


@pytest.mark.parametrize(
    ("sizes", "wanted", "read"),
    [
        ([5], 5, 1),
        ([2, 3], 5, 2),
        ([2, 3, 4], 5, 2),
        ([2, 4], 5, 2),
        ([2, 3], -1, 2),
        ([2, 3], 0, 2),
        ([5], 6, 1),
    ],
)
def test_chunks_are_read_until_what_was_announced_is_there(sizes: list[int], wanted: int, read: int) -> None:
    bodies, wire = Bodies(Limits()), Wire(body(*[b"a" * size for size in sizes]))

    async def scenario() -> list[bytes | memoryview]:
        async with asyncio.timeout(30):
            return await bodies.read(await wire.receive(), wire.receive, wanted)

    chunks = asyncio.run(scenario())
    assert list(map(len, chunks)) == sizes[:read]
    assert len(wire.events) == len(sizes) - read
    assert bodies.held_bytes == sum(sizes[:read])


@pytest.mark.parametrize("sizes", [[12], [6, 6]])
def test_a_prefix_does_not_count_in_the_limit(sizes: list[int]) -> None:
    async def read(most: int) -> None:
        bodies, wire = Bodies(Limits(max_message_bytes=most)), Wire(body(*[b"a" * size for size in sizes]))
        try:
            await bodies.read(await wire.receive(), wire.receive, 12, prefix_bytes=2)
            assert bodies.held_bytes == 12
        except TooLarge:
            assert bodies.held_bytes == 0
            raise

    asyncio.run(read(10))
    with pytest.raises(TooLarge):
        asyncio.run(read(9))


def test_a_body_that_is_announced_to_be_too_large_is_not_awaited() -> None:
    bodies, wire = Bodies(Limits(max_message_bytes=9)), Wire([part(b"ab")])

    async def read(wanted: int) -> None:
        event = await wire.receive()
        await bodies.read(event, wire.receive, wanted, prefix_bytes=2)

    with pytest.raises(TooLarge, match="10 bytes or more"):
        asyncio.run(read(12))
    assert bodies.held_bytes == 0


@pytest.mark.parametrize("size", [0, 1000, 3 * 1024 * 1024])
@pytest.mark.parametrize("count", [1, 3])
def test_chunks_are_joined_with_others_going_on_while_many_are(size: int, count: int) -> None:
    chunks: list[bytes | memoryview] = [memoryview(b"-" + bytes([n]) * size)[1:] for n in range(count)]
    expected, turns = b"".join(chunks), 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scenario() -> bytes:
        other = asyncio.create_task(others())
        joined = await whole(chunks)
        other.cancel()
        return joined

    assert asyncio.run(scenario()) == expected
    assert chunks == []
    assert (turns > 5) == (size > 1_000_000)


def test_a_single_chunk_is_not_copied() -> None:
    chunk = bytes(3 * 1024 * 1024)
    assert asyncio.run(whole([chunk])) is chunk
