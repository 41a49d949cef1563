"""Work in small steps: run at once if there are few, or in the time slicer with other requests in between."""

from __future__ import annotations

from collections.abc import Generator
from io import BytesIO
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

if TYPE_CHECKING:
    from headrace.frontends.wire.time_slicer import TimeSlicer

# Join the parts of a body or a response in small steps.


_JOINED_BYTES = 256 * 1024


def joined(parts: list[bytes | memoryview]) -> Generator[None, None, bytes]:
    """Join parts in small steps, freeing each once it is copied.

    Args:
        parts: Parts to join; each is replaced by empty bytes.
    """
    # The initial bytes are overwritten in place and returned without another copy. A growing buffer would be
    # copied several times where the system cannot move its pages.
    whole, written = BytesIO(bytes(sum(map(len, parts)))), 0
    for index, part in enumerate(parts):
        view = memoryview(part)
        for start in range(0, len(view), _JOINED_BYTES):
            written += whole.write(view[start : start + _JOINED_BYTES])
            if written >= _JOINED_BYTES:
                written = 0
                yield
        parts[index] = b""
    return whole.getvalue()


Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, None, Result]
"""Work in small steps, between which other tasks may run; ``run`` does it at once."""

_STEPS_AT_ONCE = 8  # half a millisecond, where the work exceeds the message itself


def run(steps: Generator[object, None, Result]) -> Result:
    """Run all steps at once, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Result", end.value)


def at_once(steps: Generator[object, None, Result]) -> Result | None:
    """Run the first steps; most work has no more of them.

    Args:
        steps: Steps to run; if some remain, continue them in the time slicer.

    Returns:
        Result of the steps; None if some remain.
    """
    for _ in range(_STEPS_AT_ONCE):
        try:
            next(steps)
        except StopIteration as end:
            return cast("Result", end.value)
    return None


async def in_steps(steps: Generator[object, None, Result], slicer: TimeSlicer) -> Result:
    """Run steps with other requests served in between, and return their result.

    Args:
        steps: Steps to run.
        slicer: Time slicer, entered by the caller.
    """
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Result", end.value)
        await slicer.breathe()
