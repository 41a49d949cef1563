"""Real models of LiteRT for the conformance suite, converted from Keras: floats, integers, fixed rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.tensors import Tensors
from headrace.runtimes.tensorflow import tensorflow
from tests.conformance.keras_models import large, lookup, network
from tests.conformance.runtime_example import Example, RuntimeUnderTest

_RANDOM = np.random.default_rng(6)
_FEATURES = _RANDOM.normal(size=(300, 16)).astype(np.float32)
_KEYS = _RANDOM.integers(0, 100, (300, 3)).astype(np.int32)
_SMALL = _RANDOM.integers(-128, 127, (300, 16)).astype(np.int8)


def converted(model: Any, change: Callable[[Any], object] = lambda converter: None) -> bytes:
    """A Keras model as a file of LiteRT."""
    with tempfile.TemporaryDirectory() as folder:
        model.export(folder, verbose=False)
        converter = tensorflow.lite.TFLiteConverter.from_saved_model(folder)
        change(converter)
        content: bytes = converter.convert()
        return content


def _quantized(converter: Any) -> None:
    def some() -> Iterator[list[Any]]:
        yield from ([_FEATURES[row : row + 1]] for row in range(20))

    converter.optimizations = [tensorflow.lite.Optimize.DEFAULT]
    converter.representative_dataset = some
    converter.target_spec.supported_ops = [tensorflow.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tensorflow.int8


@cache
def floats() -> bytes:
    """Layers one after the other."""
    return converted(network())


@cache
def integers() -> bytes:
    """The same with 8 bits throughout."""
    return converted(network(), _quantized)


@cache
def named() -> bytes:
    """Named inputs and outputs, and a table."""
    return converted(lookup())


@cache
def weights() -> bytes:
    """1.2 megabytes of weights."""
    return converted(large())


def save(content: Callable[[], bytes]) -> Callable[[Path], None]:
    """Writes a version directory."""

    def write(directory: Path) -> None:
        (directory / "model.tflite").write_bytes(content())

    return write


def _named(rows: int) -> Tensors:
    return {"keys": _KEYS[:rows].copy(), "features": _FEATURES[:rows].copy()}


LITERT = RuntimeUnderTest(
    kind="litert",
    file="model.tflite",
    broken=(b"", b"not a file of LiteRT", b"\x1c\x00\x00\x00TFL3" + bytes(20)),
    examples=(
        Example(
            "floats",
            save(floats),
            lambda rows: {"x": _FEATURES[:rows].copy()},
            ("x FP32 [rows, 16]", "output_0 FP32 [rows, 3]"),
        ),
        Example(
            "integers",
            save(integers),
            lambda rows: {"x": _SMALL[:rows].copy()},
            ("x INT8 [rows, 16]", "output_0 INT8 [rows, 3]"),
        ),
        Example(
            "lookup",
            save(named),
            _named,
            (
                "features FP32 [rows, 16]",
                "keys INT32 [rows, 3]",
                "both FP32 [rows, 28]",
                "score FP32 [rows, 1]",
            ),
        ),
    ),
    failing=Example(
        "lookup", save(named), lambda rows: {**_named(rows), "keys": np.full((rows, 3), 999, np.int32)}, ()
    ),
    large=Example("large", save(weights), lambda rows: {"x": _FEATURES[:rows].copy()}, ()),
)
