"""The groups of weights of a learning model: initialisation, state, and published weights.

Each group is a learning table. The groups ``linear`` and ``embeddings`` have many rows. All others have one
row, whose weights are published as an array of the shape in ``Groups.shapes``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.ctr.click_model import STATE_PER_WEIGHT, LearningTable, Table, Weights
from headrace.ctr.learning.optimizers import fresh_state
from headrace.ctr.model_settings import DEEP, FIELD_AWARE, POOLED, ModelSettings, Optimizer
from headrace.ctr.models.density import first_biases
from headrace.ctr.models.model_arrays import Served, aligned_zeros
from headrace.jit.kernel_cache import cached
from headrace.stream.block import Features

# Initial weights, which depend only on the seed, the row and the column.
#
# So a row starts with the same weights in a table of any size, and can be reinitialised when its value
# expires.


_MASK = np.uint64(0xFFFF)


def draw(out: Array, rows: Array, scale: float, seed: int) -> None:
    """Draw initial weights: approximately normal (a sum of four uniform numbers), with mean 0.

    Args:
        out: Output: float32 ``[rows, width]``, which may be a view of the first columns of a wider table.
        rows: Numbers of the rows in ``out`` to draw: int64. Exclude row 0, which stands for no value.
        scale: Standard deviation.
        seed: Random seed.
    """
    # Four numbers below 2**16, each with variance (2**32 - 1) / 12.
    unit = scale / np.sqrt(4 * (2.0**32 - 1) / 12)
    _draw(out, rows, np.float32(unit), np.uint64(seed & (2**64 - 1)))


@cached(nogil=True, forceinline=True)
def _mix(value):  # type: ignore[no-untyped-def]
    """Mix the bits of a number as in SplitMix64 by Steele, Lea and Flood."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@cached(nogil=True)
def _draw(out: Array, rows: Array, unit: np.float32, seed: np.uint64) -> None:
    width = out.shape[1]
    start = _mix(seed + np.uint64(0x9E3779B97F4A7C15))
    for row in rows:
        base = _mix(start + np.uint64(row))
        for column in range(width):
            bits = _mix(base + np.uint64(column) * np.uint64(0x9E3779B97F4A7C15))
            total = np.int64(0)
            for quarter in range(4):
                total += np.int64((bits >> np.uint64(16 * quarter)) & _MASK)
            out[row, column] = np.float32(total - 2 * 65535) * unit


WIDE = ("linear", "embeddings")
"""The groups with many rows."""


class Groups:
    """A model's weights with their optimizers' state.

    Attributes:
        tables: The groups, by name.
        shapes: Published shape of each group of one row, by name.
    """

    def __init__(self, settings: ModelSettings, features: Features, interaction_rows: int) -> None:
        """Create fresh weights.

        Args:
            settings: The model's settings.
            features: Layout of the rows.
            interaction_rows: Number of rows of ``linear`` that belong to interactions.

        Raises:
            ConfigError: The network would have no inputs.
        """
        self._settings = settings
        fields = len(features.categorical)
        self.shapes: dict[str, tuple[int, ...]] = {"bias": (1,), "dense": (features.dense_width,)}
        if settings.kind == "fwfm":
            self.shapes["pairs"] = (fields, fields)
        widths = network_widths(settings, features)
        for layer, (size, units) in enumerate(pairwise((*widths, settings.heads) if widths else ())):
            self.shapes |= {f"layer{layer}.weights": (size, units), f"layer{layer}.bias": (units,)}
        self.tables = {"linear": self._fresh("linear", features.rows + interaction_rows, 1)}
        if settings.kind != "lr":
            self.tables["embeddings"] = self._fresh("embeddings", features.rows, row_width(settings, fields))
            self._draw(np.arange(1, features.rows))
        for name, shape in self.shapes.items():
            self.tables[name] = self._fresh(name, 1, math.prod(shape))
        self._draw_alone(fields)

    def optimizer(self, name: str) -> Optimizer:
        """Return the optimizer of a group."""
        if name.startswith("layer"):
            return self._settings.network
        return self._settings.embeddings if name in ("embeddings", "pairs") else self._settings.linear

    def array(self, name: str) -> Array:
        """Return a view of the weights of a group of one row, in its published shape."""
        array: Array = self.tables[name].weights[0].reshape(self.shapes[name])
        return array

    def begin_at(self, bias: float) -> None:
        """Set the initial bias, and FTRL's state, from which FTRL recomputes weights at each step."""
        values, optimizer = self.tables["bias"].values[0], self.optimizer("bias")
        values[0] = bias
        if optimizer.kind == "ftrl":
            values[1] = -bias * math.sqrt(optimizer.initial) / optimizer.learning_rate

    def wide(self) -> dict[str, LearningTable]:
        """Return the groups with many rows."""
        return {name: table for name, table in self.tables.items() if name in WIDE}

    def alone(self) -> dict[str, LearningTable]:
        """Return the groups of one row."""
        return {name: table for name, table in self.tables.items() if name not in WIDE}

    def network(self) -> tuple[list[Array], list[Array]]:
        """Return each layer's weights, and each layer's biases, as views."""
        layers = range(len(self._settings.hidden) + 1)
        kinds = ("weights", "bias")
        weights, biases = ([self.array(f"layer{layer}.{kind}") for layer in layers] for kind in kinds)
        return weights, biases

    def served(self) -> Served:
        """Return the groups in the form that kernels take, without copies."""
        plain = {name: Table.of(table.values) for name, table in self.tables.items()}
        return Served(
            plain["linear"],
            plain.get("embeddings", plain["linear"]),
            plain["bias"].values,
            plain["dense"].values,
            plain.get("pairs", plain["bias"]).values,
        )

    def forget(self, rows: Array) -> None:
        """Reinitialise rows of the tables."""
        for name, table in self.wide().items():
            fresh = (0.0, *fresh_state(self.optimizer(name)))
            table.values[rows] = np.repeat(fresh, table.width).astype(np.float32)
        if "embeddings" in self.tables:
            self._draw(rows)

    def restore(self, state: Mapping[str, Array]) -> None:
        """Copy in the arrays of a state.

        Raises:
            ConfigError: An array is missing or has another shape.
        """
        for name, table in self.tables.items():
            found = state.get(name)
            if found is None or found.shape != table.values.shape:
                got = "nothing" if found is None else f"{found.shape}"
                raise ConfigError(
                    f"state: {name!r}: expected an array of the shape {table.values.shape}, got {got}; "
                    "resume with the settings and the schema that it was saved with"
                )
        for name, table in self.tables.items():
            table.values[:] = state[name]

    @property
    def has_decaying_squares(self) -> bool:
        """Whether any group's sums of squares decay."""
        return any(table.optimizer == "forgetting" for table in self.tables.values())

    def scale_squares(self, factor: float) -> None:
        """Multiply the decaying sums of squares by a factor."""
        for table in self.tables.values():
            if table.optimizer == "forgetting":
                table.values[:, table.width :] *= np.float32(factor)

    def strip(self) -> Weights:
        """Return a copy of the weights without the optimizers' state."""
        return Weights({name: self.tables[name].strip() for name in self.wide()}, self._alone())

    def live(self) -> Weights:
        """Return the weights without copying tables; valid until the next batch."""
        return Weights({name: self.tables[name].as_table() for name in self.wide()}, self._alone())

    def _alone(self) -> dict[str, Array]:
        alone: dict[str, Array] = {name: self.array(name).copy() for name in self.shapes}
        if "pairs" in alone:
            alone["pairs"] = np.triu(alone["pairs"], 1)
        return alone

    def _fresh(self, name: str, rows: int, width: int) -> LearningTable:
        optimizer = self.optimizer(name)
        values = aligned_zeros((rows, width * (1 + STATE_PER_WEIGHT[optimizer.kind])))
        for number, value in enumerate(fresh_state(optimizer), 1):
            if value:  # leave zero pages untouched, so that they stay unallocated
                values[:, width * number : width * (number + 1)] = value
        return LearningTable(values, width, optimizer.kind)

    def _draw(self, rows: Array) -> None:
        draw(self.tables["embeddings"].weights, rows, self._settings.initial_scale, self._settings.seed)

    def _draw_alone(self, fields: int) -> None:
        """Initialise the groups of one row.

        Pairs start at 1, as in an FM. Hidden layers use He initialisation, the output layer LeCun's. An mdn's
        output biases are those of ``first_biases``.
        """
        if "pairs" in self.shapes:
            self.array("pairs")[:] = 1 - np.eye(fields, dtype=np.float32)
        random = np.random.default_rng(self._settings.seed)
        layers = len(self._settings.hidden) if self._settings.kind in DEEP else -1
        for layer in range(layers + 1):
            size, units = self.shapes[f"layer{layer}.weights"]
            scale = math.sqrt((2 if layer < layers else 1) / size)
            drawn = random.normal(size=(size, units)) * scale
            self.array(f"layer{layer}.weights")[:] = drawn.astype(np.float32)
        if self._settings.kind == "mdn":
            self.array(f"layer{layers}.bias")[:] = first_biases(self._settings.components)


def row_width(settings: ModelSettings, fields: int) -> int:
    """Return the number of weights in a row of the embeddings."""
    return settings.factors * (fields if settings.kind in FIELD_AWARE else 1)


def network_widths(settings: ModelSettings, features: Features) -> tuple[int, ...]:
    """Return the inputs of the network's first layer, then the units of its hidden layers; () without one.

    Raises:
        ConfigError: The network would have no inputs.
    """
    if settings.kind not in DEEP:
        return ()
    inputs = pair_inputs(settings, features) + features.dense_width
    if not inputs:
        raise ConfigError(
            f"kind: a {settings.kind} of a single categorical field has a network without inputs; "
            "use lr, which is equivalent"
        )
    return (inputs, *settings.hidden)


def pair_inputs(settings: ModelSettings, features: Features) -> int:
    """Return the number of the network's inputs that come from the embeddings."""
    fields = len(features.categorical)
    return fields * settings.factors if settings.kind in POOLED else fields * (fields - 1) // 2
