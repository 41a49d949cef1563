"""A Block's part is a Block of views."""

from __future__ import annotations

import numpy as np

from headrace.stream.block import Block, Slice


def test_a_part_has_the_rows_in_between_as_views() -> None:
    whole = Block(
        indices=np.arange(12, dtype=np.uint32).reshape(6, 2),
        dense=np.zeros((6, 0), np.float32),
        labels=np.arange(6, dtype=np.float32),
        slices={"site": Slice(np.arange(6, dtype=np.int32), ("a",))},
        first_row=100,
    )
    part = whole.part(2, 5)
    assert len(part) == 3
    assert part.first_row == 102
    assert part.indices.base is not None
    assert part.indices[0, 0] == 4
    assert part.labels.tolist() == [2, 3, 4]
    assert part.weights is None
    assert part.slices["site"].codes.tolist() == [2, 3, 4]
