"""The interactions of namespaces in a model of Vowpal Wabbit: which ones there are, in VW's order.

An interaction is the first bytes of its namespaces; ``:`` stands for any namespace. The rules are those of
``interactions.h`` in VW's sources: of interactions of the same namespaces only one is kept, and one that
repeats a namespace beside others is sorted. The order of the others matters, because it is hashed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

ANY = ord(":")
_FIRST_NAMED, _LAST_NAMED = ord(" "), ord("~")  # the namespaces that a wildcard stands for


def in_order(interactions: Iterable[bytes]) -> tuple[bytes, ...]:
    """Sort interactions, and keep one of those of the same namespaces.

    Args:
        interactions: The interactions, from the options or from ``expanded``.
    """
    kept: dict[bytes, bytes] = {}
    for one in sorted(interactions, key=lambda one: (len(one), one)):
        kept.setdefault(bytes(sorted(one)), one)
    return tuple(ordered if 1 < len(set(ordered)) < len(ordered) else one for ordered, one in kept.items())


def count_expanded(interactions: Sequence[bytes], namespaces: int) -> int:
    """Return the number of interactions that ``expanded`` makes at most.

    Args:
        interactions: The interactions, some with wildcards.
        namespaces: Number of namespaces of an example.
    """
    wildcards = (one.count(ANY) for one in interactions)
    return sum(math.comb(namespaces + count - 1, count) if count else 1 for count in wildcards)


def expanded(interactions: Iterable[bytes], namespaces: Iterable[int]) -> tuple[bytes, ...]:
    """Replace wildcards by the namespaces of an example, in all combinations.

    Args:
        interactions: The interactions, some with wildcards.
        namespaces: First bytes of the namespaces.
    """
    there = sorted(one for one in set(namespaces) if _FIRST_NAMED <= one <= _LAST_NAMED)
    return in_order(made for one in interactions for made in _without_wildcards(one, there))


def _without_wildcards(interaction: bytes, there: Sequence[int]) -> Iterable[bytes]:
    count = interaction.count(ANY)
    if not count:
        yield interaction
        return
    for chosen in itertools.combinations_with_replacement(there, count):
        made = bytearray(chosen if count == 2 else chosen[::-1])  # VW makes pairs in another way
        for place, namespace in enumerate(interaction):
            if namespace != ANY:
                made.insert(place, namespace)
        yield bytes(made)
