"""Messages that no template knows, decoded: at once, or in the lane, where large ones are counted first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from headrace.frontends.wire.protobuf_cost import AT_ONCE_BYTES, Form, charge, counted
from headrace.frontends.wire.steps import Steps, at_once, in_steps

if TYPE_CHECKING:
    from headrace.frontends.wire.allowance import Allowance
    from headrace.frontends.wire.lane import Lane

Decoded = TypeVar("Decoded")
Result = TypeVar("Result")


async def decode_and_ask(
    message: bytes,
    form: Form,
    steps: Steps[Decoded],
    ask: Callable[[Decoded], Awaitable[Result]],
    allowance: Allowance,
    lane: Lane,
) -> tuple[Decoded, Result]:
    """Decode a message, ask what it asks, and wait for the answer.

    Args:
        message: The serialized message.
        form: What to look into where it is counted.
        steps: Decode it.
        ask: Asks. Called in the turn of the event loop in which decoding ends, which keeps the version loaded
            no longer.
        allowance: What the request may cost.
        lane: Where it is decoded if that takes long, and not waited for.

    Returns:
        What was decoded, and the answer.

    Raises:
        TooLarge: There are more values than the request may have.
    """
    is_large = len(message) > AT_ONCE_BYTES
    found = None if is_large else at_once(steps)
    if found is not None:
        return found, await ask(found)
    async with lane:
        if is_large:
            await charge(counted(message, form), allowance, lane)
            allowance.hold(len(message))  # for the tensors, which are copied out of it
        found = await in_steps(steps, lane)
        answering = ask(found)
    return found, await answering
