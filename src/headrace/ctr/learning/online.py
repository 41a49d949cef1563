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

from headrace.ctr.interfaces import LearningModel, Weights
from headrace.ctr.kernels.memory import fixed
from headrace.ctr.learning.online_kernels import Rules, learner
from headrace.ctr.learning.pace import Pace
from headrace.ctr.learning.parameter_groups import Groups
from headrace.ctr.learning.sharing import PAIRS_STEP, embeddings_share, share_of, sharing
from headrace.ctr.learning.update_rules import code_of, rule_of
from headrace.ctr.models.arguments import NOTHING, Room, Rows, Slots, Work, shape_of
from headrace.ctr.models.interactions import crossing
from headrace.ctr.serving.scoring import WeightsScorer
from headrace.ctr.settings import ModelSettings
from headrace.ctr.tables import STATE_PER_WEIGHT
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
            linear_code=linear_code,
            embedding_code=embedding_code,
            slots=features.slots,
            dense=features.dense_width,
            crossed=len(settings.interactions),
            linear_width=1 + STATE_PER_WEIGHT[settings.linear.kind],
        )
        self._crossing, self._slots = crossing(settings, features), Slots.of(features)
        self._groups = Groups(settings, features, self._crossing.rows)
        self._shared = share_of(settings, features)
        forgetting = self._groups.forgetting
        self._pace = (
            None
            if forgetting is None
            else Pace(features.rows, features.slots, sharing(forgetting, self._shared))
        )
        self._kernel = learner(self._shape)
        self._rooms = [Room.of(self._shape) for _ in range(settings.threads)]
        self._threads = ThreadPoolExecutor(settings.threads) if settings.threads > 1 else None

    def learn(self, block: Block) -> Array:
        """Predict each row of a block, and learn from it before the next is predicted."""
        if self._pace is None:
            return self._learn(block, 1.0)
        made = np.empty(len(block), np.float32)
        for start, stop in self._pace.parts(len(block)):
            part = block if stop - start == len(block) else block.part(start, stop)
            made[start:stop] = self._learn(part, self._pace.weight)
            if (factor := self._pace.watch(part, made[start:stop])) != 1.0:
                self._groups.scale_squares(factor)
        return made

    def _learn(self, block: Block, weight: float) -> Array:
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
        served, rules = self._groups.served(), self._rules(weight)
        work = [
            (Work(rows.part(*edge), self._slots, room), served, rules, made[slice(*edge)])
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
        scorer = WeightsScorer(self.settings, self.features, self._groups.live())
        return scorer.predict(block.indices, block.dense)

    def forget(self, rows: Array) -> None:
        """Make rows of the tables fresh; interactions of their values keep what they have learnt."""
        self._groups.forget(rows)
        if self._pace is not None:
            self._pace.forget(rows)

    def state(self) -> dict[str, Array]:
        """Everything that learning goes on from: weights with their optimizers' numbers."""
        own = {} if self._pace is None else self._pace.state()
        return {name: table.values for name, table in self._groups.tables.items()} | own

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a state.

        Raises:
            ConfigError: An array is missing or of another shape.
        """
        self._groups.restore(state)
        if self._pace is not None:
            self._pace.restore(state)

    def _rules(self, weight: float) -> Rules:
        linear, embeddings, share = self.settings.linear, self.settings.embeddings, self._shared
        return Rules(
            rule_of(linear, pulled=False, weight=weight),
            rule_of(sharing(linear, share), weight=weight),
            rule_of(sharing(embeddings, embeddings_share(self.settings, share)), weight=weight),
            rule_of(sharing(embeddings, PAIRS_STEP), weight=weight),
        )

    def strip(self) -> Weights:
        """A copy of what predictions depend on."""
        return self._groups.strip()
