"""Work in small steps: done at once where there are few of them, or in the lane, with others in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

if TYPE_CHECKING:
    from headrace.frontends.wire.lane import Lane

Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, None, Result]
"""Work in small steps, in between which others may go on; ``run`` does it at once."""

_STEPS_AT_ONCE = 8  # half a millisecond, of what takes more than the message itself


def run(steps: Generator[object, None, Result]) -> Result:
    """Do all steps of something at once, and give what they result in."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Result", end.value)


def at_once(steps: Generator[object, None, Result]) -> Result | None:
    """Do the first steps of something; most things have no more of them.

    Args:
        steps: The steps; to be gone on with in the lane where there are more.

    Returns:
        What they result in; None where there are more.
    """
    for _ in range(_STEPS_AT_ONCE):
        try:
            next(steps)
        except StopIteration as end:
            return cast("Result", end.value)
    return None


async def in_steps(steps: Generator[object, None, Result], lane: Lane) -> Result:
    """Do something step by step, with others answered in between, and give what it results in.

    Args:
        steps: The steps.
        lane: Where they are done, entered.
    """
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Result", end.value)
        await lane.breathe()
