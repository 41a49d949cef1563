"""Finds rows with equal vectors in linear time: by a hash of their numbers, then by comparison."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.base.tensors import Array
from headrace.similarity.stored_rows import Numbers, Rows

_SEED = 0x5EED


def first_equal(rows: Rows) -> Numbers:
    """Return for each row the first row with the same vector, ``[N]``; itself if there is none before it.

    int8 vectors that differ in their scales only are equal for ``cosine``, which ignores scales.
    """
    hashes = np.empty(rows.count, np.uint64)
    for some in rows.blocks():
        hashes[some] = _hashed(rows.stored(some)[0])
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    found = first[which].astype(np.int64)
    repeated = np.flatnonzero(found != np.arange(rows.count))
    for start in range(0, len(repeated), rows.block):
        later = repeated[start : start + rows.block]
        # Keep different vectors of one hash apart. Equal ones may then be missed; they are compared later.
        different = ~_same(rows, later, found[later])
        found[later[different]] = later[different]
    return found


def _same(rows: Rows, one: Numbers, other: Numbers) -> npt.NDArray[np.bool_]:
    (left, left_scales), (right, right_scales) = rows.stored(one), rows.stored(other)
    same = (left == right).all(axis=1)
    if left_scales is not None and right_scales is not None and rows.metric != "cosine":
        same &= left_scales == right_scales
    return np.asarray(same)


def _hashed(vectors: Array) -> npt.NDArray[np.uint64]:
    """Return a hash of each row: the dot product of its bits with random odd numbers, modulo 2**64."""
    bits = np.ascontiguousarray(vectors + vectors.dtype.type(0))  # -0 is 0
    words = bits.view(np.dtype(f"u{bits.itemsize}"))
    random = np.random.default_rng(_SEED)
    factors = random.integers(0, 2**63, words.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    made = words.astype(np.uint64) @ factors
    made ^= made >> np.uint64(32)
    return np.asarray(made)
