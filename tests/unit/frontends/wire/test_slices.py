"""Long lists taken apart part by part, and tensors cut into what is printed at once."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import numpy as np
import pytest

from headrace.frontends.wire import slices
from headrace.frontends.wire.lane import Lane
from headrace.frontends.wire.slices import needs_slices, printing_cost, row_slices, used_up
from headrace.tensors import STRING, Array


def texts(*lengths: int) -> Array:
    return np.array([b"x" * length for length in lengths], STRING)


def test_a_list_is_given_back_in_several_turns_when_its_reader_fails() -> None:
    """Giving back a million lists takes a while, in which nobody would be answered."""
    values: list[list[int]] = [[] for _ in range(10 * slices.STEP)]
    left: list[int] = []

    async def fails() -> None:
        async with Lane() as lane:
            async for _ in used_up(values, lane):
                raise ValueError("wrong")

    async def both() -> None:
        with pytest.raises(ValueError, match="wrong"):
            await fails()
        while values:
            left.append(len(values))
            await asyncio.sleep(0)

    asyncio.run(both())
    assert len(left) > 5
    assert max(before - after for before, after in pairwise(left)) <= 2 * slices.STEP


@pytest.mark.parametrize(
    "tensors",
    [
        [np.zeros((100_000, 2))],
        [np.zeros((3, 100_000))],
        [texts(*[10_000_000, *[1] * 5000, *[300_000] * 50, *[1] * 5000])],
        [np.zeros(10_000), texts(*range(10_000))],
        [np.zeros((0, 4))],
        [np.zeros((5, 0))],
    ],
    ids=["rows", "long rows", "long texts", "several", "no rows", "empty rows"],
)
def test_rows_are_cut_into_parts_that_cost_little(tensors: list[Array]) -> None:
    cuts = list(row_slices(tensors))
    rows = [row for cut in cuts for row in range(len(tensors[0]))[cut]]
    assert rows == list(range(len(tensors[0])))
    for cut in cuts:
        for tensor in tensors:
            part = tensor[cut]
            assert len(part) == 1 or printing_cost(part) <= slices.PRINTED_AT_ONCE
    assert len(cuts) < 2 + 2 * sum(map(printing_cost, tensors)) / slices.PRINTED_AT_ONCE + len(rows) / 64


@pytest.mark.parametrize(
    ("tensors", "needed"),
    [
        ([np.zeros(slices.PRINTED_AT_ONCE)], False),
        ([np.zeros(slices.PRINTED_AT_ONCE + 1)], True),
        ([np.zeros(slices.PRINTED_AT_ONCE), np.zeros(1)], True),
        ([texts(*[0] * slices.PRINTED_AT_ONCE)], False),
        ([texts(64 * slices.PRINTED_AT_ONCE)], True),
    ],
)
def test_large_answers_are_printed_in_slices(tensors: list[Array], needed: bool) -> None:
    assert needs_slices(tensors) is needed
