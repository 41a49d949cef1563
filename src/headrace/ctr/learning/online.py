"""Online learning: lr, fm, fwfm and ffm that predict and learn row by row.

A thread learns from each row before it predicts its next. With one thread, results are reproducible to the
bit. With several (``threads``), each takes a part of each block, and all change the same tables without
locks, as in Hogwild. If two threads change a weight at once, one change may be lost, which costs little where
rows rarely share values. The result then depends on the scheduling of the threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.interfaces import LearningModel, Weights
from headrace.ctr.kernels.memory import fixed
from headrace.ctr.learning.forgetting_rate import UNWATCHED, Pace, shift_of
from headrace.ctr.learning.learning_rate_scaling import PAIRS_STEP, embeddings_share, share_of, sharing
from headrace.ctr.learning.online_kernels import Rules, learner
from headrace.ctr.learning.parameter_groups import Groups
from headrace.ctr.learning.update_rules import code_of, rule_of, weighed
from headrace.ctr.model_settings import ModelSettings
from headrace.ctr.models.arguments import NOTHING, BlockRows, Room, Slots, Work, shape_of
from headrace.ctr.models.interactions import crossing
from headrace.ctr.serving.scoring import WeightsScorer
from headrace.ctr.tables import STATE_PER_WEIGHT
from headrace.stream.block import Block
from headrace.stream.features import Features

_LEAST_ROWS_A_THREAD = 64


class OnlineModel(LearningModel):
    """A model that learns row by row: a thread learns from each row before it predicts its next."""

    def __init__(self, settings: ModelSettings, features: Features) -> None:
        """Create an untrained model.

        Args:
            settings: The model's settings; ``settings.online`` must be true.
            features: Layout of the model's rows.

        Raises:
            ConfigError: The settings are not those of an online model, or do not fit the features.
        """
        if not settings.online:
            raise ConfigError(f"{settings.kind} with these optimizers learns in batches; use BatchedModel")
        self.settings, self.features = settings, features
        linear_code, embedding_code = code_of(settings.linear), code_of(settings.embeddings)
        self._shape = shape_of(settings, features)._replace(
            linear_code=linear_code,
            embedding_code=embedding_code,
            slots=features.slots,
            dense=features.dense_width,
            crossed=len(settings.interactions),
            linear_width=1 + STATE_PER_WEIGHT[settings.linear.kind],
            shift=shift_of(features.slots),
        )
        self._crossing, self._slots = crossing(settings, features), Slots.of(features)
        self._groups = Groups(settings, features, self._crossing.rows)
        self._shared = share_of(settings, features)
        self._pace = (
            Pace(features.rows, features.slots, settings.threads) if self._groups.forget_squares else None
        )
        self._watched = [UNWATCHED] * settings.threads if self._pace is None else self._pace.watched
        self._kernel, self._served = learner(self._shape), self._groups.served()
        self._weight, self._weighed = 1.0, _fresh_rules(settings, self._shared)
        self._rooms = [Room.of(self._shape) for _ in range(settings.threads)]
        self._threads = ThreadPoolExecutor(settings.threads) if settings.threads > 1 else None

    def learn(self, block: Block) -> Array:
        """Predict each row of a block, and learn from it before its thread predicts the next one."""
        block = block.averaged()
        rows = BlockRows(
            fixed(block.indices),
            fixed(self._crossing.of(block.indices)),
            fixed(block.dense),
            fixed(block.labels),
            NOTHING if block.weights is None else fixed(block.weights),
        )
        made = np.empty(len(block), np.float32)
        if self._pace is None:
            self._learn(rows, made)
            return made
        for start, stop in self._pace.parts(len(made)):
            whole = stop - start == len(made)
            self._learn(rows if whole else rows.part(start, stop), made[start:stop])
            if (factor := self._pace.count(stop - start)) != 1.0:
                self._groups.scale_squares(factor)
        return made

    def _learn(self, rows: BlockRows, made: Array) -> None:
        """Predict rows and learn from them, in several threads if configured."""
        rules = self._rules(1.0 if self._pace is None else self._pace.weight)
        parts = min(self.settings.threads, max(1, len(made) // _LEAST_ROWS_A_THREAD))
        if self._threads is None or parts == 1:
            self._kernel(Work(rows, self._slots, self._rooms[0]), self._served, rules, made, self._watched[0])
            return
        edges = pairwise(len(made) * part // parts for part in range(parts + 1))
        running = [
            self._threads.submit(
                self._kernel,
                Work(rows.part(*edge), self._slots, room),
                self._served,
                rules,
                made[slice(*edge)],
                watched,
            )
            for room, watched, edge in zip(self._rooms, self._watched, edges, strict=False)
        ]
        for one in running:
            one.result()

    def predict(self, block: Block) -> Array:
        """Return the probabilities of a click: float32 ``[rows]``."""
        scorer = WeightsScorer(self.settings, self.features, self._groups.live())
        return scorer.predict(block.indices, block.dense)

    def forget(self, rows: Array) -> None:
        """Give rows of the tables their initial values; the weights of interactions are kept."""
        self._groups.forget(rows)
        if self._pace is not None:
            self._pace.forget(rows)

    def state(self) -> dict[str, Array]:
        """Return the arrays needed to resume learning: weights, optimizers' state and pace."""
        own = {} if self._pace is None else self._pace.state()
        return {name: table.values for name, table in self._groups.tables.items()} | own

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore a state.

        Raises:
            ConfigError: An array is missing or has another shape.
        """
        self._groups.restore(state)
        if self._pace is not None:
            self._pace.restore(state)

    def _rules(self, weight: float) -> Rules:
        """Return the update rules that add new squares with a given weight."""
        if self._weight != weight:
            self._weight = weight
            self._weighed = Rules._make(weighed(one, weight) for one in self._weighed)
        return self._weighed

    def strip(self) -> Weights:
        """Return a copy of the weights without the optimizers' state."""
        return self._groups.strip()


def _fresh_rules(settings: ModelSettings, share: float) -> Rules:
    linear, embeddings = settings.linear, settings.embeddings
    return Rules(
        rule_of(linear, pulled=False),
        rule_of(sharing(linear, share)),
        rule_of(sharing(embeddings, embeddings_share(settings, share))),
        rule_of(sharing(embeddings, PAIRS_STEP)),
    )
