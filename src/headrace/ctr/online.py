"""lr, fm, fwfm and ffm that learn from each row before they predict the next.

One thread is repeatable to the bit. Several (``threads``) take a part of each block each and change the same
tables without locks, as Hogwild does: where two change a weight at once, one of the changes may be lost,
which costs little where rows rarely share values, and the result depends on how the threads were scheduled.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from headrace.ctr.initial import draw
from headrace.ctr.interactions import crossing
from headrace.ctr.kernels import Rules, Served, learner
from headrace.ctr.memory import aligned_zeros, fixed
from headrace.ctr.model import LearningModel, Weights
from headrace.ctr.scoring import NOTHING, WeightsScorer, shape_of
from headrace.ctr.settings import ModelSettings, Optimizer
from headrace.ctr.tables import STATE_PER_WEIGHT, LearningTable, Table
from headrace.ctr.updates import code_of, fresh_state, rule_of
from headrace.ctr.work import FWFM, LR, Room, Rows, Slots, Work
from headrace.errors import ConfigError
from headrace.stream.block import Block
from headrace.stream.features import Features
from headrace.tensors import Array

_LEAST_ROWS_A_THREAD = 64


class OnlineModel(LearningModel):
    """A model whose every row is learnt from at once."""

    def __init__(self, settings: ModelSettings, features: Features) -> None:
        """Make a fresh model.

        Args:
            settings: What it is; ``settings.online`` holds.
            features: The layout of its rows.

        Raises:
            ConfigError: The settings do not fit the features.
        """
        if not settings.online:
            raise ConfigError(f"{settings.kind} with these optimizers learns in batches; take BatchedModel")
        self.settings, self.features = settings, features
        linear_code, embedding_code = code_of(settings.linear), code_of(settings.embeddings)
        self._shape = shape_of(settings, features)._replace(
            linear_code=linear_code, embedding_code=embedding_code
        )
        self._crossing, self._slots = crossing(settings, features), Slots.of(features)
        self._tables = self._fresh_tables()
        self._rules = Rules(
            rule_of(settings.linear, pulled=False), rule_of(settings.linear), rule_of(settings.embeddings)
        )
        self._kernel = learner(self._shape)
        self._rooms = [Room.of(self._shape) for _ in range(settings.threads)]
        self._threads = ThreadPoolExecutor(settings.threads) if settings.threads > 1 else None

    def learn(self, block: Block) -> Array:
        """Predict each row of a block, and learn from it before the next is predicted."""
        rows = Rows(
            fixed(block.indices),
            fixed(self._crossing.of(block.indices)),
            fixed(block.dense),
            fixed(block.labels),
            NOTHING if block.weights is None else fixed(block.weights),
        )
        made = np.empty(len(block), np.float32)
        parts = min(self.settings.threads, max(1, len(block) // _LEAST_ROWS_A_THREAD))
        edges = [len(block) * part // parts for part in range(parts + 1)]
        served = self._served()
        work = [
            (Work(rows.part(*edge), self._slots, room), served, self._rules, made[slice(*edge)])
            for room, edge in zip(self._rooms, pairwise(edges), strict=False)
        ]
        if self._threads is None or parts == 1:
            for one in work:
                self._kernel(*one)
        else:
            for done in [self._threads.submit(self._kernel, *one) for one in work]:
                done.result()
        return made

    def predict(self, block: Block) -> Array:
        """The probabilities of a click: float32 ``[rows]``."""
        live = Weights({name: self._tables[name].as_table() for name in self._wide()}, self._alone())
        return WeightsScorer(self.settings, self.features, live).predict(block.indices, block.dense)

    def forget(self, rows: Array) -> None:
        """Make rows of the tables fresh; interactions of their values keep what they have learnt."""
        for name in self._wide():
            table = self._tables[name]
            optimizer = self._optimizer(name)
            table.values[rows] = np.repeat((0.0, *fresh_state(optimizer)), table.width).astype(np.float32)
            if name == "embeddings":
                draw(table.weights, rows, self.settings.initial_scale, self.settings.seed)

    def state(self) -> dict[str, Array]:
        """Everything that learning goes on from: weights with their optimizers' numbers."""
        return {name: table.values for name, table in self._tables.items()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a state.

        Raises:
            ConfigError: An array is missing or of another shape.
        """
        for name, table in self._tables.items():
            found = state.get(name)
            if found is None or found.shape != table.values.shape:
                got = "nothing" if found is None else f"{found.shape}"
                raise ConfigError(
                    f"state: {name!r}: expected an array of the shape {table.values.shape}, got {got}; "
                    "go on with the settings and the schema that it was saved with"
                )
        for name, table in self._tables.items():
            table.values[:] = state[name]

    def strip(self) -> Weights:
        """A copy of what predictions depend on."""
        return Weights({name: self._tables[name].strip() for name in self._wide()}, self._alone())

    def _fresh_tables(self) -> dict[str, LearningTable]:
        rows, fields = self.features.rows, self._shape.fields
        tables = {"linear": self._fresh("linear", rows + self._crossing.rows, 1)}
        if self._shape.kind != LR:
            tables["embeddings"] = self._fresh("embeddings", rows, self._shape.width)
            draw(
                tables["embeddings"].weights,
                np.arange(1, rows),
                self.settings.initial_scale,
                self.settings.seed,
            )
        tables["bias"] = self._fresh("bias", 1, 1)
        tables["dense"] = self._fresh("dense", 1, self.features.dense_width)
        if self._shape.kind == FWFM:
            tables["pairs"] = self._fresh("pairs", 1, fields * fields)
            tables["pairs"].weights[:] = 1 - np.eye(fields, dtype=np.float32).reshape(-1)
        return tables

    def _fresh(self, name: str, rows: int, width: int) -> LearningTable:
        optimizer = self._optimizer(name)
        values = aligned_zeros((rows, width * (1 + STATE_PER_WEIGHT[optimizer.kind])))
        for number, value in enumerate(fresh_state(optimizer), 1):
            values[:, width * number : width * (number + 1)] = value
        return LearningTable(values, width, optimizer.kind)

    def _optimizer(self, name: str) -> Optimizer:
        return self.settings.embeddings if name in ("embeddings", "pairs") else self.settings.linear

    def _wide(self) -> tuple[str, ...]:
        return tuple(name for name in ("linear", "embeddings") if name in self._tables)

    def _served(self) -> Served:
        """The learning tables, where the kernel changes them."""
        plain = {name: Table.of(table.values) for name, table in self._tables.items()}
        return Served(
            plain["linear"],
            plain.get("embeddings", plain["linear"]),
            plain["bias"].values,
            plain["dense"].values,
            plain.get("pairs", plain["bias"]).values,
        )

    def _alone(self) -> dict[str, Array]:
        """A copy of the weights that are in no table."""
        fields = self._shape.fields
        alone = {name: self._tables[name].weights[0].copy() for name in ("bias", "dense")}
        if self._shape.kind == FWFM:
            alone["pairs"] = np.triu(self._tables["pairs"].weights[0].reshape(fields, fields), 1)
        return alone
