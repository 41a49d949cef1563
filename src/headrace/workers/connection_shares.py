"""Decide which workers get new connections; ``transport.connection_steering`` applies the decision."""

from __future__ import annotations

from collections.abc import Sequence


def taking(
    serving: Sequence[bool], late: Sequence[bool], suspect: Sequence[bool], ready: Sequence[bool]
) -> list[int]:
    """Return the workers that get new connections.

    Args:
        serving: By worker, whether it accepts connections.
        late: By worker, whether it began to accept after shutdown had begun.
        suspect: By worker, whether it has not answered recent beats.
        ready: By worker, whether its models have been tried and one is ready.

    Returns:
        The workers that accept, answer beats and are ready; if there are none, those that accept and answer
        beats; else those that accept. If none accepts, all workers: connections then wait in the backlog for
        the process that starts there. Late workers count only if no other accepts.
    """
    numbers = range(len(serving))
    early = [serving[one] and not late[one] for one in numbers]
    if any(early):
        serving = early
    return (
        [one for one in numbers if serving[one] and not suspect[one] and ready[one]]
        or [one for one in numbers if serving[one] and not suspect[one]]
        or [one for one in numbers if serving[one]]
        or list(numbers)
    )
