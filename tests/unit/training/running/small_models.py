"""A model that is small enough to be checked by hand, and blocks for it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.base.tensors import Array
from headrace.stream.block import Block, Slice


class RateModel:
    """Predicts the click rate of each category so far, starting from one click in two rows."""

    def __init__(self, categories: int = 4) -> None:
        self.counts = np.tile(np.array([1.0, 2.0]), (categories, 1))
        self.learnt: list[int] = []

    def predict(self, block: Block) -> Array:
        clicks, rows = self.counts[block.indices[:, 0]].T
        return (clicks / rows).astype(np.float32)

    def learn(self, block: Block) -> Array:
        predicted = self.predict(block)
        np.add.at(self.counts, (block.indices[:, 0], 0), block.labels)
        np.add.at(self.counts, (block.indices[:, 0], 1), 1.0)
        self.learnt.append(block.first_row)
        return predicted

    def state(self) -> dict[str, Array]:
        return {"counts": self.counts}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.counts[:] = state["counts"]


class DivergingModel(RateModel):
    """Predicts what is no number from some row on."""

    def __init__(self, from_row: int) -> None:
        super().__init__()
        self._from_row = from_row

    def predict(self, block: Block) -> Array:
        predicted = super().predict(block)
        return predicted if block.first_row < self._from_row else np.full_like(predicted, np.nan)


def make_block(rows: int, first_row: int = 0, seconds_per_row: float = 1.0) -> Block:
    """Rows whose contents depend on their numbers only."""
    source = np.random.default_rng(7)
    categories, uniform = source.integers(0, 4, 100_000), source.random(100_000)
    numbers = np.arange(first_row, first_row + rows)
    category = categories[numbers]
    truth = (0.1 + 0.2 * category).astype(np.float32)
    return Block(
        indices=category[:, None].astype(np.uint32),
        dense=np.zeros((rows, 0), np.float32),
        labels=(uniform[numbers] < truth).astype(np.float32),
        timestamps=(numbers * seconds_per_row * 1e6).astype(np.int64),
        truth=truth,
        slices={"category": Slice(category.astype(np.int32), ("a", "b", "c", "d"))},
        first_row=first_row,
    )


def make_blocks(rows: int, size: int, first_row: int = 0) -> list[Block]:
    """The same rows in blocks of one size."""
    return [make_block(min(size, rows - at), at) for at in range(first_row, rows, size)]
