"""DeepFM: a factorization machine and a network whose inputs are the fields' pooled embeddings.

The network itself is in ``headrace.ctr.learning.network`` for learning, and in
``headrace.ctr.serving.context`` for serving.
"""

from __future__ import annotations

import numba

from headrace.ctr.kernels.compiling import PART
from headrace.jit.intrinsics import one_by_one, read, write


@numba.njit(**PART)
def read_pooled(shape, room, network, row):  # type: ignore[no-untyped-def]
    """Copy the pooled embeddings back from the network's inputs."""
    for field in range(shape.fields):
        one_by_one()
        place, column = field * shape.width, read(network.columns, field * shape.width)
        for factor in range(shape.width):
            write(room.pooled, place + factor, read(network.inputs, (row, column + factor)))


@numba.njit(**PART)
def add_network(shape, room, network, which):  # type: ignore[no-untyped-def]
    """Set ``towards`` to the gradient with respect to the pooled embeddings: pair terms plus network."""
    row, error = which
    for field in range(shape.fields):
        one_by_one()
        place, column = field * shape.width, read(network.columns, field * shape.width)
        if column < network.wanted:
            for factor in range(shape.width):
                gradient = read(network.gradients, (row, column + factor))
                write(room.towards, place + factor, error * read(room.towards, place + factor) + gradient)
        else:
            for factor in range(shape.width):
                write(room.towards, place + factor, error * read(room.towards, place + factor))
