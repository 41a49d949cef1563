"""Which rows batches touch, each once."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as some

from headrace.ctr.kernels.memory import fixed
from headrace.ctr.learning.touched_rows import Coalescer

ROWS = 40


@given(
    some.lists(some.tuples(some.integers(0, 30), some.integers(1, 4), some.integers(0, 2**32)), min_size=1)
)
@settings(deadline=None, max_examples=60)
def test_every_value_has_the_number_of_its_row_whatever_batches_came_before(
    batches: list[tuple[int, int, int]],
) -> None:
    coalescer = Coalescer(ROWS)
    for rows, slots, seed in batches:
        random = np.random.default_rng(seed)
        indices = fixed(random.integers(0, 30, (rows, slots)).astype(np.uint32))
        crossed = fixed(np.where(random.random((rows, 2)) < 0.3, 0, random.integers(30, ROWS, (rows, 2))))
        crossed = fixed(crossed.astype(np.uint32))
        touched = coalescer.touched_by(indices, crossed)
        np.testing.assert_array_equal(touched.rows[touched.places], indices)
        np.testing.assert_array_equal(touched.rows[touched.crossed], crossed)
        assert touched.rows[0] == 0
        np.testing.assert_array_equal(
            np.sort(touched.rows[1 : touched.embedded]), np.unique(indices[indices > 0])
        )
        np.testing.assert_array_equal(
            np.sort(touched.rows[touched.embedded :]), np.unique(crossed[crossed > 0])
        )
