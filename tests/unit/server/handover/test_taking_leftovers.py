"""The new server's part of a handover: connections that wait where nobody accepts any more."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from headrace.frontends.transport.listening_sockets import Listeners, Ports, listen_together
from headrace.server.handover.conversation import Conversation
from headrace.server.handover.messages import Ask, Given, Go, Ready, Take
from headrace.server.handover.taking import Taking


async def hands_over(conversation: Conversation) -> None:
    """A server that gives way, and ends at once."""
    while not isinstance(message := await conversation.hear(), Take):
        assert isinstance(message, Ask)
        await conversation.say(Ready({}))
    await conversation.say(Go())
    await conversation.hear()
    conversation.close()


async def follow(waiting: socket.socket, listeners: Listeners) -> bytes:
    """Take over from a server in whose set a connection waits; what its caller reads then."""
    ours, theirs = socket.socketpair()
    given = Given(1, "1", sets=1, free=(), leading=(0,), has_many=True, admin=0)
    taking = Taking(Path("handover"), Conversation(ours), given, Ports(listeners, is_lent=False))
    async with asyncio.timeout(30):
        giving = asyncio.ensure_future(hands_over(Conversation(theirs)))
        listeners.lead_to([listeners.take()])
        await taking.take(lambda: {}, 30.0)
        await giving
        waiting.setblocking(False)
        read = await asyncio.get_running_loop().sock_recv(waiting, 10)
    await taking.close()
    return read


def test_connections_that_a_dead_worker_has_left_are_closed() -> None:
    (http,) = listen_together("127.0.0.1", 0, "http_port", 1)
    (grpc,) = listen_together("127.0.0.1", 0, "grpc_port", 1)
    listeners = Listeners([[http, grpc]], may_join=True, free=(), leading=(0,))
    try:
        with socket.create_connection(http.getsockname()) as waiting:
            assert asyncio.run(follow(waiting, listeners)) == b""
    finally:
        for one in (http, grpc, *listeners.opened):
            one.close()
