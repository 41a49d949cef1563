"""The tests' own event loop keeps what it promises."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import pytest

from tests.virtual_loop import VirtualLoop, run_virtually


def test_timers_run_in_the_order_of_their_time_and_see_that_time() -> None:
    async def run() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[str, float]] = []
        loop.call_later(3600.0, lambda: seen.append(("second", loop.time())))
        loop.call_later(0.5, lambda: seen.append(("first", loop.time())))
        await asyncio.sleep(7200)
        return seen

    assert run_virtually(run()) == [("first", 1000.5), ("second", 4600.0)]


def test_what_was_sent_is_read_before_time_passes() -> None:
    async def run() -> None:
        loop = cast(VirtualLoop, asyncio.get_running_loop())
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        seen: list[float] = []
        loop.before_time_passes = lambda: seen.append(loop.time())
        with ours, theirs:
            theirs.sendall(b"x")
            assert await asyncio.wait_for(loop.sock_recv(ours, 1), 0.1) == b"x"
            assert seen == []
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(loop.sock_recv(ours, 1), 5)
        assert (seen, loop.time()) == ([1000.0], 1005.0)

    run_virtually(run())


def test_who_waits_for_nothing_is_told() -> None:
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    async def go_on() -> None:
        cast(VirtualLoop, asyncio.get_running_loop()).waits_left = 100
        while True:  # noqa: ASYNC110 - the loop ends it
            await asyncio.sleep(1)

    for never, message in ((wait, "no timer is set"), (go_on, "still not done")):
        with pytest.raises(RuntimeError, match=message):
            run_virtually(never())
