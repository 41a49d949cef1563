"""Compiled kernels that sum the weights of features, and of interactions, as Vowpal Wabbit does.

The hashes are those of ``interactions_predict.h`` in VW's sources. Sums are float32 in VW's order, and so
equal to VW's, bit by bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headrace.base.tensors import Array
from headrace.jit.kernel_cache import kernel, part
from headrace.runtimes.vw_text_kernels import Features

_PRIME = np.uint64(16777619)


class Weights(NamedTuple):
    """The weights of a model.

    Attributes:
        keys: Indices of the weights, ascending: uint32; empty if ``values`` has all weights.
        values: The weights: float32.
        mask: The bits of a hash that are an index.
        not_linear: Namespaces that only interactions use, by first byte: bool ``[256]``.
    """

    keys: Array
    values: Array
    mask: int
    not_linear: Array


class Interactions(NamedTuple):
    """The interactions of some rows.

    Attributes:
        terms: First bytes of the namespaces of each, one after the other: uint8.
        ends: Their ends: int64.
        first: The first of the rows.
        rows: First of each row's interactions, and the one after its last: int64 ``[some rows, 2]``.
        most: Maximum number of products of features of a row.
    """

    terms: Array
    ends: Array
    first: int
    rows: Array
    most: int


class Scratch(NamedTuple):
    """Room to work in.

    Attributes:
        spans: Zeros: start and end of the row's features by first byte: int64 ``[256, 2]``.
        places: Place of the feature of each term of an interaction: int64.
        hashes: Hash of the terms before each: uint64.
        products: Product of their values: float32.
    """

    spans: Array
    places: Array
    hashes: Array
    products: Array

    @classmethod
    def of(cls, longest: int) -> Scratch:
        """Return room to work in.

        Args:
            longest: Number of terms of the longest interaction.
        """
        return cls(
            np.zeros((256, 2), np.int64),
            np.empty(longest, np.int64),
            np.empty(longest, np.uint64),
            np.empty(longest, np.float32),
        )


@part(inline="always")
def _weight(weights: Any, hashed: Any) -> Any:
    index = hashed & np.uint64(weights.mask)
    if len(weights.keys) == 0:
        return weights.values[index]
    low, high = 0, len(weights.keys)
    while low < high:
        middle = (low + high) >> 1
        if weights.keys[middle] < index:
            low = middle + 1
        else:
            high = middle
    is_there = low < len(weights.keys) and weights.keys[low] == index
    return weights.values[low] if is_there else np.float32(0)


@part()
def _interacted(terms: Any, features: Any, weights: Any, state: Any, most: int) -> tuple[Any, int]:
    """Add the products of an interaction.

    Args:
        terms: Its namespaces.
        features: The features of all rows.
        weights: The weights.
        state: The sum so far; start and end of the row's features by namespace; and room for the place, hash
            and product of each term.
        most: Maximum number of products.

    Returns:
        The sum, and the number of products that may still be made; -1 if there are too many.
    """
    sum_, spans, at, hashes, products = state
    last = len(terms) - 1
    for term in terms:
        if spans[term, 0] == spans[term, 1]:
            return sum_, most
    level, at[0] = 0, spans[terms[0], 0]
    hashes[0], products[0] = np.uint64(0), np.float32(1)
    while level >= 0:
        place = at[level]
        if level < last and place < spans[terms[level], 1]:
            hashes[level + 1] = _PRIME * (hashes[level] ^ np.uint64(features.hashes[place]))
            products[level + 1] = np.float32(products[level] * features.values[place])
            # Of a namespace with itself, each combination of features is taken once.
            is_same = terms[level + 1] == terms[level]
            at[level + 1] = place if is_same else spans[terms[level + 1], 0]
            level += 1
            continue
        if level == last:
            end = spans[terms[last], 1]
            most -= end - place
            if most < 0:
                return sum_, -1
            for other in range(place, end):
                product = np.float32(products[last] * features.values[other])
                weight = _weight(weights, hashes[last] ^ np.uint64(features.hashes[other]))
                sum_ = np.float32(sum_ + np.float32(weight * product))
        level -= 1
        if level >= 0:
            at[level] += 1
    return sum_, most


@kernel()
def add_up(
    features: Features,
    weights: Weights,
    interactions: Interactions,
    scratch: Scratch,
    sums: Array,
    refused: Array,
) -> None:
    """Sum the weights of some rows' features and of their interactions.

    Args:
        features: The features of all rows, from ``read_lines``.
        weights: The weights.
        interactions: The interactions of the rows to sum.
        scratch: Room to work in.
        sums: Receives the sums: float32 ``[rows]``.
        refused: Receives whether a row's interactions have too many products: bool ``[rows]``.
    """
    spans = scratch.spans
    room = scratch.places, scratch.hashes, scratch.products
    begins = interactions.first
    first = features.row_ends[begins - 1] if begins else 0
    at = features.group_ends[first - 1] if first else 0
    for row in range(begins, begins + len(interactions.rows)):
        sum_, last = features.bases[row], features.row_ends[row]
        for index in range(first, last):
            group, end = features.groups[index], features.group_ends[index]
            spans[group, 0], spans[group, 1] = at, end
            if not weights.not_linear[group]:
                for place in range(at, end):
                    weight = _weight(weights, np.uint64(features.hashes[place]))
                    sum_ = np.float32(sum_ + np.float32(weight * features.values[place]))
            at = end
        most = interactions.most
        for index in range(interactions.rows[row - begins, 0], interactions.rows[row - begins, 1]):
            begin = interactions.ends[index - 1] if index else 0
            terms = interactions.terms[begin : interactions.ends[index]]
            sum_, most = _interacted(terms, features, weights, (sum_, spans, *room), most)
            if most < 0:
                break
        for index in range(first, last):
            spans[features.groups[index], 0] = spans[features.groups[index], 1] = 0
        sums[row], refused[row], first = sum_, most < 0, last
