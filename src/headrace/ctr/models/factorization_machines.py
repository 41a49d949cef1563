"""The logit of lr and factorization machines (fm, fwfm, ffm, deepfm, deepffm), as parts of kernels.

The pair terms of fm, fwfm and ffm share one form. It is half the sum, over the fields, of the dot product of
the field's pooled embedding with a vector ``towards``, which is made from the other fields' embeddings. This
vector is also the logit's gradient with respect to the pooled embedding. So each kind only defines
``towards``; the rest is shared.

- fm: the embeddings of two different fields interact by their dot product.
- fwfm (field-weighted): each pair of fields has a weight that multiplies its dot product. The weights of
  pairs are a learning table of one row: ``[fields, fields]``, flattened. A pair's weight is stored above and
  below the diagonal, so that a field's weights are adjacent. Both copies move alike.
- ffm (field-aware): a value has an embedding for each other field, stored in one row.
- deepfm: an fm, and a network whose inputs are the fields' pooled embeddings.
- deepffm: an ffm, and a network whose inputs are the pairs' dot products.

The network itself is in ``headrace.ctr.learning.network`` for learning, and in
``headrace.ctr.serving.context`` for serving.

The linear part (fields, interactions and dense features) is that of every kind. Online learning and
``headrace.ctr.serving.scoring`` use the logit of a row in lr, fm, fwfm and ffm. Learning in batches has its
own, made of the same parts. Serving has another implementation of the same sums, for many candidates at once:
``headrace.ctr.serving.context``.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from headrace.ctr.models.model_arrays import FM, FWFM, LINE_FLOATS, LR
from headrace.jit.intrinsics import one_by_one, prefetch, read, write
from headrace.jit.kernel_cache import PART

_ZERO, _ONE = np.float32(0), np.float32(1)


@numba.njit(**PART)
def _weight_at(shape, table, row, column):  # type: ignore[no-untyped-def]
    """Return one weight of a Table: float32."""
    if shape.scaled:
        scale = read(table.scales, row >> np.uintp(table.shift))
        return np.float32(read(table.values, (row, column))) * scale
    return np.float32(read(table.values, (row, column)))


@numba.njit(**PART)
def count_values(shape, work, row):  # type: ignore[no-untyped-def]
    """Compute the factor of each field's values: 1 / count where they are averaged, else 1."""
    starts = work.slots.starts
    for field in range(shape.fields):
        count = 0
        for slot in range(starts[field], starts[field + 1]):
            count += read(work.rows.indices, (row, slot)) != 0
        averaged = work.slots.mean[field] and count > 1
        write(work.room.shares, field, _ONE / np.float32(count) if averaged else _ONE)


@numba.njit(**PART)
def pool(shape, table, work, row):  # type: ignore[no-untyped-def]
    """Fill in ``room.pooled``; row 0 is zero, so an empty slot adds nothing."""
    indices, pooled, starts = work.rows.indices, work.room.pooled, work.slots.starts
    for field in range(shape.fields):
        one_by_one()
        first = field * shape.width
        if shape.single:
            place = np.uintp(read(indices, (row, field)))
            for column in range(shape.width):
                write(pooled, first + column, _weight_at(shape, table, place, column))
        else:
            for column in range(shape.width):
                write(pooled, first + column, _ZERO)
            for slot in range(starts[field], starts[field + 1]):
                place, share = np.uintp(read(indices, (row, slot))), read(work.room.shares, field)
                for column in range(shape.width):
                    weight = _weight_at(shape, table, place, column)
                    write(pooled, first + column, read(pooled, first + column) + share * weight)


@numba.njit(**PART)
def half_dot(shape, room):  # type: ignore[no-untyped-def]
    """Return the sum of all pair terms: half of ``pooled`` times ``towards``, which has each pair twice."""
    total = _ZERO
    for place in range(shape.fields * shape.width):
        total += read(room.pooled, place) * read(room.towards, place)
    return np.float32(0.5) * total


@numba.njit(**PART)
def prefetch_rows(values, indices, row, columns):  # type: ignore[no-untyped-def]
    """Prefetch the cache lines of the table rows that a later row needs.

    Args:
        values: The table.
        indices: Rows of the table ``[rows, slots]``.
        row: The later row.
        columns: Number of columns of the table to prefetch.
    """
    for slot in range(indices.shape[1]):
        place = read(indices, (row, slot))
        for column in range(0, columns, LINE_FLOATS):
            prefetch(values, (place, column))


@numba.njit(**PART)
def towards_fm(shape, room):  # type: ignore[no-untyped-def]
    """Write the sum of the other fields' embeddings to ``towards``, for each field."""
    factors = shape.factors
    for factor in range(factors):
        write(room.columns, factor, _ZERO)
    for field in range(shape.fields):
        one_by_one()
        for factor in range(factors):
            total = read(room.columns, factor) + read(room.pooled, field * factors + factor)
            write(room.columns, factor, total)
    for field in range(shape.fields):
        one_by_one()
        for factor in range(factors):
            place = field * factors + factor
            write(room.towards, place, read(room.columns, factor) - read(room.pooled, place))


@numba.njit(**PART)
def towards_fwfm(shape, room, pairs):  # type: ignore[no-untyped-def]
    """Write the sum of the other fields' embeddings, times the pairs' weights, to ``towards``.

    The pairs' dot products are left in ``room.products``, with zeros on the diagonal.
    """
    fields, factors = shape.fields, shape.factors
    for field in range(fields):
        one_by_one()
        for factor in range(factors):
            write(room.columns, factor * fields + field, read(room.pooled, field * factors + factor))
    for field in range(fields):
        one_by_one()
        _weigh(shape, room, pairs, field)
        _multiply(shape, room, field)


@numba.njit(**PART)
def _weigh(shape, room, pairs, field):  # type: ignore[no-untyped-def]
    fields, factors = shape.fields, shape.factors
    first = field * factors
    for factor in range(factors):
        write(room.towards, first + factor, _ZERO)
    for other in range(fields):
        one_by_one()
        weight = read(pairs, (0, field * fields + other))
        for factor in range(factors):
            drawn = weight * read(room.pooled, other * factors + factor)
            write(room.towards, first + factor, read(room.towards, first + factor) + drawn)


@numba.njit(**PART)
def _multiply(shape, room, field):  # type: ignore[no-untyped-def]
    fields, factors = shape.fields, shape.factors
    first = field * fields
    for other in range(fields):
        write(room.products, first + other, _ZERO)
    for factor in range(factors):
        one_by_one()
        value = read(room.pooled, field * factors + factor)
        for other in range(fields):
            product = value * read(room.columns, factor * fields + other)
            write(room.products, first + other, read(room.products, first + other) + product)
    write(room.products, first + field, _ZERO)


@numba.njit(**PART)
def towards_ffm(shape, room):  # type: ignore[no-untyped-def]
    """Write the other fields' embeddings for each field to ``towards``; the block for itself stays zero."""
    fields, factors, width = shape.fields, shape.factors, shape.width
    for field in range(fields):
        for other in range(fields):
            one_by_one()
            if field != other:
                here, there = field * width + other * factors, other * width + field * factors
                for factor in range(factors):
                    write(room.towards, here + factor, read(room.pooled, there + factor))


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


# ---- The logit ----


@numba.njit(**PART)
def sigmoid(logit):  # type: ignore[no-untyped-def]
    """Return the probability of a logit: float32."""
    return _ONE / (_ONE + np.float32(math.exp(-logit)))


@numba.njit(**PART)
def linear_sum(shape, table, work, row):  # type: ignore[no-untyped-def]
    """Return the contribution of a row's fields and interactions to its logit."""
    indices, crossed, starts = work.rows.indices, work.rows.crossed, work.slots.starts
    total = _ZERO
    for field in range(shape.fields):
        one_by_one()
        if shape.single:
            total += _weight_at(shape, table, np.uintp(read(indices, (row, field))), 0)
        else:
            for slot in range(starts[field], starts[field + 1]):
                weight = _weight_at(shape, table, np.uintp(read(indices, (row, slot))), 0)
                total += read(work.room.shares, field) * weight
    for number in range(crossed.shape[1]):
        total += _weight_at(shape, table, np.uintp(read(crossed, (row, number))), 0)
    return total


@numba.njit(**PART)
def dense_sum(weights, dense, row):  # type: ignore[no-untyped-def]
    """Return the contribution of a row's dense features; ``weights`` is ``[1, at least dense_width]``."""
    total = _ZERO
    for column in range(dense.shape[1]):
        total += read(weights, (0, column)) * read(dense, (row, column))
    return total


AHEAD = 8
"""Prefetch distance of linear weights, in rows."""

AHEAD_WIDE = 2
"""Prefetch distance of embeddings, in rows; each may span many cache lines."""


@numba.njit(**PART)
def prefetch_coming(shape, work, served, row):  # type: ignore[no-untyped-def]
    """Prefetch the table rows that a later row needs, with their optimizer's state."""
    indices, last = work.rows.indices, work.rows.indices.shape[0] - 1
    coming = min(row + AHEAD, last)
    prefetch_rows(served.linear.values, indices, coming, 1)
    prefetch_rows(served.linear.values, work.rows.crossed, coming, 1)
    if shape.kind != LR:
        coming, values = min(row + AHEAD_WIDE, last), served.embeddings.values
        prefetch_rows(values, indices, coming, values.shape[1])


@numba.njit(**PART)
def logit(shape, work, served, row):  # type: ignore[no-untyped-def]
    """Return the logit of a row; leave its intermediate results in ``work.room``."""
    if not shape.single:
        count_values(shape, work, row)
    total = served.bias[0, 0] + dense_sum(served.dense, work.rows.dense, row)
    total += linear_sum(shape, served.linear, work, row)
    if shape.kind != LR:
        pool(shape, served.embeddings, work, row)
        if shape.kind == FM:
            towards_fm(shape, work.room)
        elif shape.kind == FWFM:
            towards_fwfm(shape, work.room, served.pairs)
        else:
            towards_ffm(shape, work.room)
        total += half_dot(shape, work.room)
    return total
