"""Real models of Keras 3 for the conformance suite."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.tensors import Tensors
from headrace.runtimes.keras import keras
from tests.conformance.runtime_example import Example, RuntimeUnderTest

_RANDOM = np.random.default_rng(6)
_FEATURES = _RANDOM.normal(size=(300, 16)).astype(np.float32)
_KEYS = _RANDOM.integers(0, 100, (300, 3)).astype(np.int32)


@cache
def network() -> Any:
    """Layers one after the other."""
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((16,), name="x"), keras.layers.Dense(8, "relu"), keras.layers.Dense(3, "softmax")]
    )


@cache
def lookup() -> Any:
    """Named inputs and outputs, and a table."""
    keras.utils.set_random_seed(1)
    keys, features = keras.Input((3,), name="keys", dtype="int32"), keras.Input((16,), name="features")
    rows = keras.layers.Flatten()(keras.layers.Embedding(100, 4)(keys))
    both = keras.layers.Concatenate()([rows, features])
    outputs = {"score": keras.layers.Dense(1)(both), "both": both}
    return keras.Model({"keys": keys, "features": features}, outputs)


@cache
def large() -> Any:
    """1.2 megabytes of weights."""
    return keras.Sequential([keras.Input((16,), name="x"), keras.layers.Dense(19_000)])


def save(model: Callable[[], Any]) -> Callable[[Path], None]:
    """Writes a version directory."""

    def write(directory: Path) -> None:
        model().save(directory / "model.keras")

    return write


def _features(rows: int) -> Tensors:
    return {"x": _FEATURES[:rows].copy()}


def _lookup(rows: int) -> Tensors:
    return {"keys": _KEYS[:rows].copy(), "features": _FEATURES[:rows].copy()}


_SIGNATURE = (
    "features FP32 [rows, 16]",
    "keys INT32 [rows, 3]",
    "both FP32 [rows, 28]",
    "score FP32 [rows, 1]",
)

KERAS = RuntimeUnderTest(
    kind="keras",
    file="model.keras",
    broken=(b"", b"not a file of Keras", b"PK\x05\x06" + bytes(18)),
    examples=(
        Example("network", save(network), _features, ("x FP32 [rows, 16]", "output_0 FP32 [rows, 3]")),
        Example("lookup", save(lookup), _lookup, _SIGNATURE),
    ),
    failing=Example(
        "lookup", save(lookup), lambda rows: {**_lookup(rows), "keys": np.full((rows, 3), 999, np.int32)}, ()
    ),
    large=Example("large", save(large), _features, ()),
)
