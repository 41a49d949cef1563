"""The online click models once more, as plainly as they can be written: NumPy, float64, one row at a time."""

from __future__ import annotations

import math

import numpy as np

from headrace.base.tensors import Array
from headrace.ctr.learning.adagrad_decay import PAIRS_STEP, embeddings_share, share_of, sharing
from headrace.ctr.model_settings import ModelSettings, Optimizer
from headrace.stream.block import Block, Features


class Reference:
    """A model that starts from given arrays: weights, and behind them the optimizers' numbers."""

    def __init__(self, settings: ModelSettings, features: Features, state: dict[str, Array]) -> None:
        self.settings, self.features = settings, features
        self.arrays = {name: array.astype(np.float64) for name, array in state.items()}
        fields = len(features.categorical)
        self.width = settings.factors * (fields if settings.kind == "ffm" else 1)

    def learn(self, block: Block, crossed: Array) -> Array:
        predicted = []
        weights = np.ones(len(block)) if block.weights is None else block.weights
        for row in range(len(block)):
            indices, dense = block.indices[row].astype(np.int64), block.dense[row].astype(np.float64)
            probability = 1 / (1 + math.exp(-self.logit(indices, crossed[row], dense)))
            predicted.append(probability)
            self._update(indices, crossed[row], dense, (probability - block.labels[row]) * weights[row])
        return np.array(predicted)

    def shares(self, indices: Array) -> Array:
        shares = np.zeros(len(indices))
        for number, mean in enumerate(self.features.mean_pooled):
            start, stop = self.features.slot_starts[number : number + 2]
            present = indices[start:stop] != 0
            shares[start:stop] = present / (max(present.sum(), 1) if mean else 1)
        return shares

    def pooled(self, indices: Array) -> Array:
        rows = self.arrays["embeddings"][indices, : self.width] * self.shares(indices)[:, None]
        return np.add.reduceat(rows, self.features.slot_starts[:-1], axis=0)

    def pairs(self) -> Array:
        fields = len(self.features.categorical)
        if self.settings.kind != "fwfm":
            return 1 - np.eye(fields)
        return self.arrays["pairs"][0, : fields * fields].reshape(fields, fields)

    def towards(self, indices: Array) -> Array:
        """The logit's gradient by each field's pooled embedding."""
        pooled, fields = self.pooled(indices), len(self.features.categorical)
        made = np.zeros_like(pooled)
        for one in range(fields):
            for other in range(fields):
                if one == other:
                    continue
                if self.settings.kind == "ffm":
                    factors = self.settings.factors
                    mine, theirs = slice(other * factors, (other + 1) * factors), one * factors
                    made[one, mine] = pooled[other, theirs : theirs + factors]
                else:
                    made[one] += self.pairs()[one, other] * pooled[other]
        return made

    def logit(self, indices: Array, crossed: Array, dense: Array) -> float:
        linear = self.arrays["linear"][:, 0]
        total = self.arrays["bias"][0, 0] + self.arrays["dense"][0, : len(dense)] @ dense
        total += linear[indices] @ self.shares(indices) + linear[crossed].sum()
        if self.settings.kind != "lr":
            total += 0.5 * (self.pooled(indices) * self.towards(indices)).sum()
        return float(total)

    def _update(self, indices: Array, crossed: Array, dense: Array, error: float) -> None:
        settings, shares = self.settings, self.shares(indices)
        free = Optimizer(
            kind=settings.linear.kind,
            learning_rate=settings.linear.learning_rate,
            initial=settings.linear.initial,
            power=settings.linear.power,
        )
        share = share_of(settings, self.features)
        linear = sharing(settings.linear, share)
        embeddings = sharing(settings.embeddings, embeddings_share(settings, share))
        towards, pooled = None, None
        if settings.kind != "lr":
            towards, pooled = self.towards(indices), self.pooled(indices)
        move(free, self.arrays["bias"][0], np.array([error]))
        move(linear, self.arrays["dense"][0], error * dense)
        for row, share in [*zip(indices, shares, strict=True), *((row, 1.0) for row in crossed)]:
            if row:
                move(linear, self.arrays["linear"][row], np.array([error * share]))
        if towards is None or pooled is None:
            return
        starts = self.features.slot_starts
        for slot, row in enumerate(indices):
            if row:
                field = int(np.searchsorted(starts, slot, "right")) - 1
                gradient = error * shares[slot] * towards[field]
                move(embeddings, self.arrays["embeddings"][row], gradient)
        if settings.kind == "fwfm":
            products = pooled @ pooled.T
            np.fill_diagonal(products, 0)
            alone = sharing(settings.embeddings, PAIRS_STEP)
            move(alone, self.arrays["pairs"][0], error * products.reshape(-1))


def move(optimizer: Optimizer, row: Array, gradient: Array, weight: float = 1.0) -> None:
    """Move a row's weights in place; behind them lie its optimizer's numbers. A square counts ``weight``."""
    width = len(gradient)
    if not width:
        return
    weights, state = row[:width], [row[at : at + width] for at in range(width, len(row), width)]
    rate = optimizer.learning_rate
    if optimizer.kind == "ftrl":
        before = state[1].copy()
        state[1] += gradient**2
        state[0] += gradient - (np.sqrt(state[1]) - np.sqrt(before)) / rate * weights
        beyond = np.maximum(np.abs(state[0]) - optimizer.l1, 0)
        weights[:] = -np.sign(state[0]) * beyond / (np.sqrt(state[1]) / rate + optimizer.l2)
        return
    gradient = gradient + optimizer.l2 * weights
    if optimizer.kind == "forgetting":
        state[0] += weight * gradient**2
        weights -= rate * gradient / (state[0] / weight + optimizer.initial) ** optimizer.power
        return
    if optimizer.kind == "sgd":
        weights -= rate * gradient
    else:
        state[0] += gradient**2
        weights -= rate * gradient / state[0] ** optimizer.power
