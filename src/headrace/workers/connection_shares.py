"""Decide which workers get new connections; ``transport.generation_sockets`` applies the decision."""

from __future__ import annotations

from collections.abc import Sequence

_FEW_SHARE = 0.75
"""A worker has few connections below this share of the mean."""
_LEAST_FEWER = 16
"""Smaller differences are ignored, as workers also have other open files."""


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


def weighted(numbers: Sequence[int], open_files: Sequence[int]) -> list[int]:
    """Name the workers with few connections twice, so that they get twice the share of new ones.

    After a worker has been restarted, the others have all connections. It catches up as clients reconnect,
    but a burst between two counts cannot overload it, because the others go on getting connections.

    Args:
        numbers: The workers that get new connections.
        open_files: By worker, its open files, most of which are connections; 0 if they cannot be counted.
    """
    mean = sum(open_files[one] for one in numbers) / len(numbers)
    limit = min(_FEW_SHARE * mean, mean - _LEAST_FEWER)
    return [one for one in numbers for _ in range(2 if open_files[one] < limit else 1)]
