"""Tensors cut into what is printed at once."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.base.tensors import STRING, Array
from headrace.frontends.wire import json_output
from headrace.frontends.wire.json_output import needs_slices, printing_cost, row_slices


def texts(*lengths: int) -> Array:
    return np.array([b"x" * length for length in lengths], STRING)


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
            assert len(part) == 1 or printing_cost(part) <= json_output.PRINTED_AT_ONCE
    assert len(cuts) < 2 + 2 * sum(map(printing_cost, tensors)) / json_output.PRINTED_AT_ONCE + len(rows) / 64


@pytest.mark.parametrize(
    ("tensors", "needed"),
    [
        ([np.zeros(json_output.PRINTED_AT_ONCE)], False),
        ([np.zeros(json_output.PRINTED_AT_ONCE + 1)], True),
        ([np.zeros(json_output.PRINTED_AT_ONCE), np.zeros(1)], True),
        ([texts(*[0] * json_output.PRINTED_AT_ONCE)], False),
        ([texts(64 * json_output.PRINTED_AT_ONCE)], True),
    ],
)
def test_large_answers_are_printed_in_slices(tensors: list[Array], needed: bool) -> None:
    assert needs_slices(tensors) is needed
