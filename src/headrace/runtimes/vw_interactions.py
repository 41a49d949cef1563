"""The interactions of namespaces in a model of Vowpal Wabbit: which ones there are, in VW's order.

An interaction is the first bytes of its namespaces; ``:`` stands for any namespace. The rules are those of
``interactions.h`` in VW's sources: of interactions of the same namespaces only one is kept, and one that
repeats a namespace beside others is sorted. The order of the others matters, because it is hashed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from headrace.base.tensors import Array

ANY = ord(":")
_FIRST_NAMED, _LAST_NAMED = ord(" "), ord("~")  # the namespaces that a wildcard stands for
_CHOICES_KEPT = 256


class Packed(NamedTuple):
    """Interactions one after the other.

    Attributes:
        terms: First bytes of the namespaces of each: uint8.
        ends: The end of each: int64.
    """

    terms: Array
    ends: Array

    @classmethod
    def of(cls, blocks: Sequence[Array]) -> Packed:
        """Pack interactions.

        Args:
            blocks: First bytes of the namespaces: uint8 ``[length, interactions]`` each.
        """
        terms = [np.empty(0, np.uint8), *(one.T.ravel() for one in blocks)]
        sizes = [np.empty(0, np.int64), *(np.full(one.shape[1], len(one), np.int64) for one in blocks)]
        return cls(np.concatenate(terms), np.concatenate(sizes).cumsum())


def in_order(interactions: Iterable[bytes]) -> tuple[bytes, ...]:
    """Sort interactions, and keep one of those of the same namespaces.

    Args:
        interactions: The interactions, from the options.
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


def expanded(interactions: Iterable[bytes], namespaces: Iterable[int]) -> list[Array]:
    """Replace wildcards by the namespaces of an example, in all combinations, with the rules of ``in_order``.

    Args:
        interactions: The interactions, some with wildcards.
        namespaces: First bytes of the namespaces.

    Returns:
        The interactions of each length, the shortest first: uint8 ``[length, interactions]`` each.
    """
    there = np.array(sorted(one for one in set(namespaces) if _FIRST_NAMED <= one <= _LAST_NAMED), np.uint8)
    by_length: dict[int, list[bytes]] = {}
    for one in interactions:
        by_length.setdefault(len(one), []).append(one)
    return [_of_one_length(by_length[length], there) for length in sorted(by_length)]


def _of_one_length(interactions: Sequence[bytes], there: Array) -> Array:
    if len(interactions) == 1 and set(interactions[0]) == {ANY}:
        return there[_merged_choices(len(there), len(interactions[0]))]
    return _merged([_without_wildcards(one, there) for one in interactions])


def _without_wildcards(interaction: bytes, there: Array) -> Array:
    """Return an interaction with all choices for its wildcards, sorted."""
    terms = np.frombuffer(interaction, np.uint8)
    wild = np.flatnonzero(terms == ANY)
    if not len(wild):
        return terms[:, np.newaxis]
    chosen = there[_choices(len(there), len(wild))]
    made = np.repeat(terms[:, np.newaxis], chosen.shape[1], axis=1)
    made[wild] = chosen
    return made


@lru_cache(_CHOICES_KEPT)
def _choices(things: int, places: int) -> Array:
    """Return how things can fill places, a thing as often as wanted: uint8 ``[places, choices]``, sorted."""
    chosen = itertools.combinations_with_replacement(range(things), places)
    found = np.array(list(chosen), np.uint8).reshape(-1, places).T
    if places == 2:
        return found
    found = found[::-1]  # VW makes pairs in another way
    return found[:, _sorting(found)]


@lru_cache(_CHOICES_KEPT)
def _merged_choices(things: int, places: int) -> Array:
    """Return the choices as ``_merged`` has them: the order of namespaces does not depend on their names."""
    return _merged([_choices(things, places)])


def _merged(blocks: list[Array]) -> Array:
    """Sort interactions of one length, and keep one of those of the same namespaces."""
    made = np.concatenate(blocks, axis=1)
    ordered = np.sort(made, axis=0)
    if len(blocks) > 1:  # each block is sorted, and has none twice
        sorting = _sorting(made)
        kept = sorting[_firsts(ordered[:, sorting])]
        made, ordered = made[:, kept], ordered[:, kept]
    is_same = ordered[1:] == ordered[:-1]
    return np.where(is_same.any(axis=0) & ~is_same.all(axis=0), ordered, made)


def _firsts(columns: Array) -> Array:
    """Return the positions of columns that are like none before, ascending."""
    sorting = _sorting(columns)
    found = columns[:, sorting]
    is_first = np.ones(len(sorting), np.bool_)
    is_first[1:] = (found[:, 1:] != found[:, :-1]).any(axis=0)
    return np.sort(sorting[is_first])


def _sorting(columns: Array) -> Array:
    """Return the positions that sort columns by their first rows, those of like ones ascending."""
    return np.lexsort(columns[::-1])
