"""Which workers get new connections; how the kernel is told: ``headrace.frontends.transport.steering``."""

from __future__ import annotations

from collections.abc import Sequence


def taking(
    serving: Sequence[bool], late: Sequence[bool], suspect: Sequence[bool], ready: Sequence[bool]
) -> list[int]:
    """Say which workers get new connections.

    Args:
        serving: By worker: whether it accepts connections.
        late: By worker: whether it began to accept when the server was about to end.
        suspect: By worker: whether it does not answer.
        ready: By worker: whether its models have been tried, and one answers.

    Returns:
        Those that accept, answer and are ready; if there are none, those that accept and answer; else those
        that accept; if there are none of them either, all: connections wait then, and are taken by whoever
        starts there. Those that are late count only where no other accepts.
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
