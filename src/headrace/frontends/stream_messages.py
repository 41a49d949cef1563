"""Answer the messages of a gRPC stream, each as a call of its own with an Outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from headrace.base.errors import HeadraceError
from headrace.frontends.calls import GrpcCall
from headrace.telemetry.outcomes import Outcomes

ReplyT = TypeVar("ReplyT")


class Streamed:
    """A reply to a message that follows in parts, and ends the message's call itself."""


def answering(
    handle: Callable[[bytes, GrpcCall], Awaitable[ReplyT]],
    outcomes: Outcomes,
    response: Callable[[ReplyT], ReplyT],
    error_response: Callable[[bytes, HeadraceError], ReplyT],
) -> Callable[[bytes, GrpcCall], Coroutine[None, None, ReplyT]]:
    """Return a function that answers one message; the error of a message does not end its stream.

    Args:
        handle: Handler of the unary method.
        outcomes: Records the messages as calls.
        response: Makes the stream's response of the unary method's.
        error_response: Makes the response to a message that failed.
    """

    async def answer(message: bytes, of_stream: GrpcCall) -> ReplyT:
        call = of_stream.of_message()
        if of_stream.outcome is not None:
            outcomes.begin_message(call, of_stream.outcome)
        try:
            written = await handle(message, call)
        except HeadraceError as error:
            outcomes.failed(call, error)
            return error_response(message, error)
        except BaseException as error:
            outcomes.failed(call, error)
            raise
        if type(written) is not bytes and isinstance(written, Streamed):
            return written
        outcomes.answered(call)
        return response(written)

    return answer
