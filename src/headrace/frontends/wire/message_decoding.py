"""Decode messages that match no template: at once, or in slices, where large ones are counted first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from headrace.frontends.wire.protobuf_cost import AT_ONCE_BYTES, Form, charge, counted
from headrace.frontends.wire.time_slicer import Steps, TimeSlicer, at_once, in_steps

if TYPE_CHECKING:
    from headrace.frontends.wire.request_budget import RequestBudget

Decoded = TypeVar("Decoded")
Result = TypeVar("Result")


async def decode_and_ask(
    message: bytes,
    form: Form,
    steps: Steps[Decoded],
    ask: Callable[[Decoded], Awaitable[Result]],
    budget: RequestBudget,
    slicer: TimeSlicer,
) -> tuple[Decoded, Result]:
    """Decode a message, submit its request, and wait for the answer.

    Args:
        message: Serialized message.
        form: Fields to inspect when the message is counted.
        steps: Steps that decode the message.
        ask: Function that submits the request. It is called in the event-loop iteration in which decoding
            ends, because nothing keeps the version loaded after that.
        budget: Limits on the cost of the request.
        slicer: Time slicer in which a long decode runs, and which is left before the answer is awaited.

    Returns:
        The decoded request, and the answer.

    Raises:
        TooLarge: The request has too many values.
    """
    is_large = len(message) > AT_ONCE_BYTES
    found = None if is_large else at_once(steps)
    if found is not None:
        return found, await ask(found)
    async with slicer:
        if is_large:
            await charge(counted(message, form), budget, slicer)
            budget.hold(len(message))  # for the tensors, which are copied from it
        found = await in_steps(steps, slicer)
        answering = ask(found)
    return found, await answering
