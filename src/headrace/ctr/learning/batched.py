"""Models that learn in batches: kinds with a network, and any kind that uses Adam.

A batch is predicted as a whole, its gradients are summed, and each touched weight is updated once. With
several threads, each takes chunks of the batch. They add the gradients of the tables' rows without locks, so
one of two simultaneous additions may be lost.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.click_model import LearningModel, Weights
from headrace.ctr.learning import batched_kernels
from headrace.ctr.learning.adagrad_decay import HalfLife, shared
from headrace.ctr.learning.batched_kernels import Counts, DensityHead, Gathered
from headrace.ctr.learning.first_layer import Distinct
from headrace.ctr.learning.network import CHUNK_ROWS, Layout, NetworkPass
from headrace.ctr.learning.optimizers import (
    Coalescer,
    Touched,
    all_mover,
    code_of,
    flat_mover,
    step_of,
    touched_mover,
)
from headrace.ctr.learning.parameter_groups import Groups, network_widths, pair_inputs
from headrace.ctr.model_settings import DEEP, PAIRS_OF, POOLED, ModelSettings
from headrace.ctr.models.interactions import crossing
from headrace.ctr.models.missing import Missing, flagged
from headrace.ctr.models.model_arrays import (
    NOTHING,
    BlockRows,
    Room,
    Served,
    Shape,
    Slots,
    Work,
    aligned_zeros,
    fixed,
    shape_of,
)
from headrace.ctr.serving.scoring import WeightsScorer
from headrace.stream.block import Block, Features

# Restriction of NumPy's BLAS to one thread: a learner's threads divide the rows themselves.
#
# OpenBLAS's threads wait for each other by spinning. In a measurement, learning a DeepFM with two of them
# took twice the CPU time and no less wall time.


_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


@functools.cache
def use_one_thread() -> bool:
    """Set the OpenBLAS in NumPy's wheels to one thread, for the whole process.

    Returns:
        Whether OpenBLAS was found. Another BLAS has settings of its own, such as ``OMP_NUM_THREADS``.
    """
    package = Path(np.__file__).parent
    places = (package.with_name("numpy.libs"), package / ".dylibs")
    for file in (file for place in places for file in sorted(place.glob("*openblas*"))):
        library = ctypes.CDLL(str(file))  # already loaded by NumPy
        for setter in (getattr(library, name, None) for name in _SETTERS):
            if setter is not None:
                setter(1)
                return True
    return False


class BatchedModel(LearningModel):
    """A model that learns from all rows of a block at once."""

    def __init__(self, settings: ModelSettings, features: Features) -> None:
        """Create an untrained model.

        Args:
            settings: The model's settings.
            features: Layout of the model's rows.

        Raises:
            ConfigError: The settings do not fit the features.
        """
        self.settings, self.features = settings, features
        self._missing, features = Missing.of(settings, features), flagged(settings, features)
        self._crossing, self._slots = crossing(settings, features), Slots.of(features)
        plain = msgspec.structs.replace(settings, kind=PAIRS_OF.get(settings.kind, settings.kind))
        self._shape = shape_of(plain, features)
        self._groups = Groups(settings, features, self._crossing.rows)
        self._coalescer = Coalescer(features.rows + self._crossing.rows)
        self._sums = {name: aligned_zeros((1, table.width)) for name, table in self._groups.wide().items()}
        self._layout: Layout | None = None
        self._distinct: Distinct | None = None
        if settings.kind in DEEP:
            use_one_thread()
            self._layout = Layout(
                network_widths(settings, features), pair_inputs(settings, features), settings.heads
            )
            self._distinct = Distinct(settings, features) if settings.kind in POOLED else None
        components = settings.components if settings.kind == "mdn" else 0
        self._states = [
            _ThreadState(self._shape, self._groups, self._layout, components) for _ in range(settings.threads)
        ]
        self._threads = ThreadPoolExecutor(settings.threads) if settings.threads > 1 else None
        self._steps = np.zeros(1, np.int64)
        self._optimizers = {
            name: shared(self._groups.optimizer(name), name, settings, features)
            for name in self._groups.tables
        }
        self._memory = HalfLife(settings.half_life_rows) if self._groups.has_decaying_squares else None
        self._scorer: WeightsScorer | None = None

    def learn(self, block: Block) -> Array:
        """Predict all rows of a block, then learn from them in one step of the optimizers."""
        probabilities = np.empty(len(block), np.float32)
        if not len(block):
            return probabilities
        self._scorer = None
        odds, views = 0.0 if self._steps[0] else _log_odds(block), NOTHING
        if self.settings.kind == "mdn":
            views = np.ones(len(block), np.float32) if block.views is None else block.views
        else:
            block = block.averaged()
        dense = block.dense if self._missing is None else self._missing.flag(block.dense)
        crossed = self._crossing.of(block.indices)
        rows = BlockRows(
            fixed(block.indices),
            fixed(crossed),
            fixed(dense),
            fixed(block.labels),
            NOTHING if block.weights is None else fixed(block.weights),
        )
        touched = self._coalescer.touched_by(rows.indices, rows.crossed)
        sums = self._summed(rows, views, touched, probabilities)
        if not self._steps[0]:
            self._groups.begin_at(odds)
            sums = self._summed(rows, views, touched, np.empty_like(probabilities))
        self._move(touched, sums, len(block))
        return probabilities

    def _summed(
        self, rows: BlockRows, views: Array, touched: Touched, probabilities: Array
    ) -> Mapping[str, Array]:
        """Predict a batch, write its probabilities, and return the sums of its gradients."""
        sums = {name: self._cleared(name, len(touched.rows)) for name in self._sums}
        served, distinct = self._groups.served(), self._lay_out(touched)
        batch = _Batch(rows, fixed(views), touched, sums, self._slots, served, probabilities, distinct)
        if distinct is not None:
            self._spread(distinct.forward(touched, served.embeddings.values))
        count = len(probabilities)
        chunk = -(-count // self.settings.threads) if self._layout is None else CHUNK_ROWS
        starts = range(0, count, chunk)
        self._spread(
            [
                (state.learn, batch, starts[number :: len(self._states)], chunk)
                for number, state in enumerate(self._states)
            ]
        )
        if distinct is not None:
            self._spread(distinct.backward(sums["embeddings"], self._states[0].sums["layer0.weights"]))
        return sums

    def predict(self, block: Block) -> Array:
        """Return the probabilities of a click: float32 ``[rows]``."""
        if self._scorer is None:
            self._scorer = WeightsScorer(self.settings, self.features, self._groups.live())
        return self._scorer.predict(block.indices, block.dense)

    def forget(self, rows: Array) -> None:
        """Reinitialise rows of the tables; interactions of their values keep their weights."""
        self._groups.forget(rows)

    def state(self) -> dict[str, Array]:
        """Return the arrays needed to resume learning: weights, optimizers' state, and counts."""
        own = {"steps": self._steps} | ({} if self._memory is None else self._memory.state())
        return {name: table.values for name, table in self._groups.tables.items()} | own

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore a state.

        Raises:
            ConfigError: An array is missing or has another shape.
        """
        steps = state.get("steps")
        if steps is None or steps.shape != self._steps.shape:
            raise ConfigError(
                "state: 'steps': expected the number of batches learnt from; the state is another model's"
            )
        self._groups.restore(state)
        if self._memory is not None:
            self._memory.restore(state)
        self._steps[:] = steps
        self._scorer = None

    def strip(self) -> Weights:
        """Return a copy of the weights without the optimizers' state."""
        return self._groups.strip()

    def _lay_out(self, touched: Touched) -> Distinct | None:
        """Lay out the network's weights; return ``Distinct`` if multiplying distinct values pays, or None."""
        if self._layout is None:
            return None
        weights, biases = self._groups.network()
        distinct, beside = self._distinct, None
        if distinct is not None:
            beside = distinct.take(touched, weights[0], biases[0])
        self._layout.take(weights, biases, beside)
        return distinct if beside is not None else None

    def _cleared(self, name: str, rows: int) -> Array:
        """Return zeros for the gradients of a number of rows."""
        if len(self._sums[name]) < rows:
            self._sums[name] = aligned_zeros((rows + rows // 4, self._sums[name].shape[1]))
            return self._sums[name][:rows]
        cleared = self._sums[name][:rows]
        cleared.fill(0)
        return cleared

    def _spread(self, calls: Sequence[tuple[Callable[..., None], *tuple[object, ...]]]) -> None:
        """Run calls, in parallel if there are several threads."""
        if self._threads is None:
            for call, *arguments in calls:
                call(*arguments)
        else:
            for done in [self._threads.submit(call, *arguments) for call, *arguments in calls]:
                done.result()

    def _move(self, touched: Touched, sums: Mapping[str, Array], rows: int) -> None:
        """Take one step of every optimizer."""
        self._steps += 1
        number, weight = int(self._steps[0]), 1.0 if self._memory is None else self._memory.weight
        calls: list[tuple[Callable[..., None], *tuple[object, ...]]] = []
        for name, table in self._groups.wide().items():
            optimizer, values = self._optimizers[name], table.values
            of_table = touched.rows[: touched.embedded] if name == "embeddings" else touched.rows
            given = step_of(optimizer, number, rows, weight=weight), values, of_table, sums[name]
            if optimizer.kind == "adam":
                every, positions = all_mover(table.width), self._coalescer.positions
                calls += [(every, *given, positions, edges) for edges in self._parts(len(values))]
            else:
                mover = touched_mover(code_of(optimizer), table.width)
                calls += [(mover, *given, edges) for edges in self._parts(len(of_table))]
        self._spread(calls)
        for name, table in self._groups.alone().items():
            if table.width:
                optimizer, pulled = self._optimizers[name], not name.endswith("bias")
                step = step_of(optimizer, number, rows, pulled=pulled, weight=weight)
                flat_mover(code_of(optimizer))(step, table.values, self._gradient(name))
        if self._memory is not None and (factor := self._memory.count(rows)) != 1.0:
            self._groups.scale_squares(factor)

    def _parts(self, rows: int) -> list[tuple[int, int]]:
        """Divide rows among threads, without row 0, which is never learnt."""
        threads = self.settings.threads
        edges = [1 + (rows - 1) * part // threads for part in range(threads + 1)]
        return list(pairwise(edges))

    def _gradient(self, name: str) -> Array:
        """Return a group's gradient, summed over all threads."""
        first, *others = (state.sums[name] for state in self._states)
        for other in others:
            first += other
        return first.reshape(-1)


def _log_odds(block: Block) -> float:
    """Return the initial bias: the log odds of the first batch, with one more click and one more non-click.

    Where clicks are rare, the bias would need hundreds of batches to learn this value. Until then, all other
    weights would learn to make up for it.
    """
    views = np.ones(len(block), np.float32) if block.views is None else block.views
    rows, clicks = float(views.sum()), float(block.labels.sum())
    if block.weights is not None and (counted := float(block.weights @ views)) > 0:
        clicks = rows * float(block.weights @ block.labels) / counted
    return math.log((clicks + 1.0) / (rows - clicks + 1.0))


class _Batch(NamedTuple):
    """A batch, shared by all threads."""

    rows: BlockRows
    views: Array  # empty except for an mdn
    touched: Touched
    sums: Mapping[str, Array]
    slots: Slots
    served: Served
    probabilities: Array
    distinct: Distinct | None


class _ThreadState:
    """One thread's working memory and sums of gradients.

    Attributes:
        sums: Gradients of the groups that have one row, by name.
    """

    def __init__(self, shape: Shape, groups: Groups, layout: Layout | None, components: int) -> None:
        self._density = DensityHead(components) if components else None
        self._shape, self._room = shape, Room.of(shape)
        self._network_pass = None if layout is None else NetworkPass(layout, CHUNK_ROWS)
        self.sums: dict[str, Array] = {
            name: np.zeros(table.width, np.float32)
            for name, table in groups.alone().items()
            if not name.startswith("layer")
        }
        self.sums.setdefault("pairs", np.zeros(0, np.float32))
        if self._network_pass is not None:
            for number, (weights, bias) in enumerate(
                zip(self._network_pass.weights, self._network_pass.biases, strict=True)
            ):
                self.sums |= {f"layer{number}.weights": weights, f"layer{number}.bias": bias}

    def learn(self, batch: _Batch, starts: Sequence[int], chunk: int) -> None:
        """Predict chunks of a batch, and sum their gradients."""
        for one in self.sums.values():
            one.fill(0)
        for start in starts:
            self._learn_chunk(batch, start, min(start + chunk, len(batch.probabilities)))

    def _learn_chunk(self, batch: _Batch, start: int, stop: int) -> None:
        work = Work(batch.rows.part(start, stop), batch.slots, self._room)
        gathered = Gathered(
            batch.touched.places[start:stop],
            batch.touched.crossed[start:stop],
            batch.sums["linear"],
            batch.sums.get("embeddings", batch.sums["linear"]),
            self.sums["bias"],
            self.sums["dense"],
            self.sums["pairs"],
        )
        probabilities = batch.probabilities[start:stop]
        if self._network_pass is None:
            batched_kernels.learner(self._shape)(work, batch.served, gathered, probabilities)
            return
        network_pass = self._network_pass
        batched_kernels.forward(self._shape)(work, batch.served, network_pass.exchange)
        network_pass.forward(
            stop - start, None if batch.distinct is None else batch.distinct.part(start, stop)
        )
        if self._density is None:
            network_pass.finish(work.rows.labels, work.rows.weights, probabilities)
        else:
            counts = Counts(work.rows.labels, batch.views[start:stop], work.rows.weights)
            self._density.finish(network_pass, counts, probabilities)
        network_pass.backward(stop - start)
        batched_kernels.backward(self._shape)(work, batch.served, network_pass.exchange, gathered)
