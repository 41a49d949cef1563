"""Decide which workers get new connections; ``transport.generation_sockets`` applies the decision."""

from __future__ import annotations

from collections.abc import Sequence

_FEW_SHARE = 0.75
"""A worker has few connections below this share of the mean."""
_LEAST_FEWER = 16
"""Smaller differences are ignored: a worker's other open files are not counted exactly."""


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


def weighted(numbers: Sequence[int], connections: Sequence[int | None], most_connections: int) -> list[int]:
    """Name the workers with few connections twice, so that they get twice the share of new ones.

    After a worker has been restarted, the others have all connections. It catches up as clients reconnect,
    but a burst between two counts cannot overload it, because the others go on getting connections. A worker
    at the limit gets none while another one is below it.

    Args:
        numbers: The workers that get new connections.
        connections: By worker, its connections; None if they cannot be counted, or if the worker has not
            answered the last beats: connections that it has not accepted are not counted.
        most_connections: Limit of each worker; 0 for none.
    """
    counts = {one: count for one in numbers if (count := connections[one]) is not None}
    if most_connections:
        free = [one for one in numbers if counts.get(one, 0) < most_connections]
        numbers = free or numbers
    if not counts:
        return list(numbers)
    mean = sum(counts.values()) / len(counts)
    limit = min(_FEW_SHARE * mean, mean - _LEAST_FEWER)
    return [one for one in numbers for _ in range(2 if counts.get(one, mean) < limit else 1)]
