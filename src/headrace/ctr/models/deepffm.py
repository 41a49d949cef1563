"""DeepFFM: a field-aware factorization machine and a network whose inputs are the pairs' dot products.

``headrace.ctr.models.deepfm`` names the modules of the network itself.
"""

from __future__ import annotations

import numba
import numpy as np

from headrace.ctr.kernels.compiling import PART
from headrace.jit.intrinsics import one_by_one, read, write


@numba.njit(**PART)
def write_products(shape, room, inputs, row):  # type: ignore[no-untyped-def]
    """Write the dot products of all field pairs to the network's inputs."""
    factors, number = shape.factors, 0
    for first in range(shape.fields):
        for second in range(first + 1, shape.fields):
            one_by_one()
            left, total = first * shape.width + second * factors, np.float32(0)
            for factor in range(factors):
                total += read(room.pooled, left + factor) * read(room.towards, left + factor)
            write(inputs, (row, number), total)
            number += 1


@numba.njit(**PART)
def weigh_products(shape, room, gradients, which):  # type: ignore[no-untyped-def]
    """Set ``towards`` to the gradient with respect to the pooled embeddings: pair terms plus network."""
    row, error = which
    factors, number = shape.factors, 0
    for first in range(shape.fields):
        for second in range(first + 1, shape.fields):
            one_by_one()
            factor_of_pair = error + read(gradients, (row, number))
            left = first * shape.width + second * factors
            right = second * shape.width + first * factors
            for factor in range(factors):
                write(room.towards, left + factor, factor_of_pair * read(room.towards, left + factor))
                write(room.towards, right + factor, factor_of_pair * read(room.towards, right + factor))
            number += 1
