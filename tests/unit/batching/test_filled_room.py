"""Where rows are filled up to the longest: how far a batch goes."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.config import BatchingPolicy
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec
from tests.unit.batching.stage import FLOAT, SUMS, Model, Stage


@pytest.mark.parametrize("shapes", [((4000, 1), (1, 4000)), ((0, 1 << 14), (1 << 14, 0))])
def test_a_batch_ends_before_filling_up_multiplies_what_came(shapes: list[tuple[int, int]]) -> None:
    """Two requests of a few bytes whose rows are long in one direction each: together they took gigabytes."""
    square = Signature(DEFAULT_SIGNATURE, (TensorSpec("x", FLOAT, (None, None)),), SUMS.outputs)
    model = Model(square, answer=lambda inputs: {"y": inputs["x"].sum(axis=(1, 2), dtype=np.float32)})
    with Stage(BatchingPolicy(pad_variable_length=True), model=model) as stage:
        stage.ask(np.ones((1, 1, 1), np.float32))
        stage.turn(enter=1)
        asked = [stage.ask(np.ones((1, *shape), np.float32)) for shape in shapes]
        stage.finish(enter=1)
        stage.finish(enter=1)
        stage.finish()
        assert [call.shape[1:] for call in model.calls[1:]] == list(shapes)
        assert [one.sums for one in asked] == [[float(np.prod(shape))] for shape in shapes]


def test_rows_that_are_much_alike_share_batches_however_large_they_are() -> None:
    with Stage(BatchingPolicy(pad_variable_length=True)) as stage:
        stage.occupy()
        asked = [stage.ask(np.ones((1, length << 20), np.float32)) for length in (2, 3, 4)]
        stage.finish(enter=1)
        stage.finish()
        assert stage.model.calls[-1].shape == (3, 4 << 20)
        assert all(one.answered_right for one in asked)
