"""Real SavedModels for the conformance suite: two signatures, strings and a table, any and fixed sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow

from headrace.base.tensors import Tensors
from tests.conformance.runtime_example import Example, RuntimeUnderTest

_RANDOM = np.random.default_rng(4)
_FEATURES = _RANDOM.normal(size=(300, 64)).astype(np.float32)
_KEYS = _RANDOM.integers(0, 1000, (300, 3)).astype(np.int32)

_Module = Any  # TensorFlow ships no types
_Spec = Any


def spec(dtype: str, *shape: int | None, name: str | None = None) -> _Spec:
    """What a signature takes under a name."""
    return tensorflow.TensorSpec(list(shape), dtype, name=name)


def save(module: _Module, directory: Path, **functions: tuple[Callable[..., Any], dict[str, _Spec]]) -> None:
    """Write a SavedModel whose signatures are functions of named inputs."""
    signatures = {
        name: tensorflow.function(function).get_concrete_function(**specs)
        for name, (function, specs) in functions.items()
    }
    module.functions = list(signatures.values())
    tensorflow.saved_model.save(module, str(directory), signatures=signatures)


def write_network(directory: Path, rows: int | None = None) -> None:
    """A layer with a variable, and a second signature without the softmax."""
    random = np.random.default_rng(0)
    module = tensorflow.Module()
    module.weights = tensorflow.Variable(random.normal(size=(64, 10)).astype(np.float32))
    features = {"x": spec("float32", rows, 64, name="x")}
    save(
        module,
        directory,
        serving_default=(lambda x: {"p": tensorflow.nn.softmax(x @ module.weights)}, features),
        logits=(lambda x: {"z": x @ module.weights, "x": x}, features),
    )


def write_lookup(directory: Path) -> None:
    """Several inputs and outputs, and a table of 1.2 megabytes."""
    random = np.random.default_rng(1)
    module = tensorflow.Module()
    module.table = tensorflow.Variable(random.normal(size=(1000, 300)).astype(np.float32))

    def answer(keys: Any, flag: Any) -> dict[str, Any]:
        rows = tensorflow.gather(module.table, keys)
        return {"sum": tensorflow.reduce_sum(rows, 1), "counted": tensorflow.cast(flag, "int64") + 1}

    save(
        module,
        directory,
        serving_default=(
            answer,
            {"keys": spec("int32", None, 3, name="keys"), "flag": spec("bool", None, name="flag")},
        ),
    )


def write_strings(directory: Path) -> None:
    """Strings in; strings, and their numbers in a vocabulary that the model carries, out."""
    module = tensorflow.Module()
    module.table = tensorflow.lookup.StaticHashTable(
        tensorflow.lookup.KeyValueTensorInitializer(
            ["red", "grün", ""], tensorflow.constant([1, 2, 3], "int64")
        ),
        -1,
    )

    def answer(text: Any) -> dict[str, Any]:
        return {"same": tensorflow.identity(text), "number": module.table.lookup(text)}

    save(module, directory, serving_default=(answer, {"text": spec("string", None, 2, name="text")}))


def write_variable(directory: Path) -> None:
    """Rows of any length."""
    save(
        tensorflow.Module(),
        directory,
        serving_default=(
            lambda x: {"mean": tensorflow.reduce_mean(x, 1)},
            {"x": spec("float64", None, None, name="x")},
        ),
    )


def _parsed(serialized: Any) -> tuple[Any, Any]:
    """A score and a word of each Example: its age is required, its city is not."""
    features = {
        "age": tensorflow.io.FixedLenFeature([], tensorflow.float32),
        "city": tensorflow.io.FixedLenFeature([], tensorflow.string, default_value="nowhere"),
    }
    found = tensorflow.io.parse_example(serialized, features)
    return found["age"], found["city"]


def write_estimator(directory: Path) -> None:
    """What TensorFlow's estimators export: signatures for Classify, Regress and Predict of one graph."""
    v1 = tensorflow.compat.v1
    make = v1.saved_model.signature_def_utils
    with v1.Graph().as_default(), v1.Session() as session:
        serialized = v1.placeholder("string", [None], name="input_example_tensor")
        age, city = _parsed(serialized)
        scores = tensorflow.stack([age, age * 2], 1)
        names = tensorflow.stack([city, tensorflow.fill(tensorflow.shape(city), "other")], 1)
        predict = {"examples": v1.saved_model.build_tensor_info(serialized)}
        builder = v1.saved_model.Builder(str(directory / "new"))
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            signature_def_map={
                "serving_default": make.classification_signature_def(serialized, names, scores),
                "regression": make.regression_signature_def(serialized, age * 10),
                "predict": make.build_signature_def(
                    predict,
                    {"scores": v1.saved_model.build_tensor_info(scores)},
                    "tensorflow/serving/predict",
                ),
            },
        )
        builder.save()
    for path in (directory / "new").iterdir():  # the builder wants to make the directory itself
        path.rename(directory / path.name)
    (directory / "new").rmdir()


def write_reader(directory: Path) -> None:
    """What TensorFlow 2 saves: Examples are parsed inside, and the method is Predict's, as always."""

    def answer(examples: Any) -> dict[str, Any]:
        age, _ = _parsed(examples)
        return {"outputs": age * 10}

    save(
        tensorflow.Module(),
        directory,
        serving_default=(answer, {"examples": spec("string", None, name="examples")}),
    )


def _texts(rows: int) -> Tensors:
    words = [b"red", "grün".encode(), b"", b"a\0b\xff"]
    return {"text": np.array([[words[i % 4], words[i % 3]] for i in range(rows)], dtype=object)}


def _keys(rows: int) -> Tensors:
    return {"keys": _KEYS[:rows], "flag": np.arange(rows) % 3 == 0}


def _features(rows: int) -> Tensors:
    return {"x": _FEATURES[:rows]}


TENSORFLOW = RuntimeUnderTest(
    kind="tensorflow",
    file="saved_model.pb",
    broken=(b"", b"not a model", b"\x12\x00"),
    examples=(
        Example("network", write_network, _features, ("x FP32 [rows, 64]", "p FP32 [rows, 10]")),
        Example(
            "lookup",
            write_lookup,
            _keys,
            ("flag BOOL [rows]", "keys INT32 [rows, 3]", "counted INT64 [rows]", "sum FP32 [rows, 300]"),
        ),
        Example(
            "strings",
            write_strings,
            _texts,
            ("text BYTES [rows, 2]", "number INT64 [rows, 2]", "same BYTES [rows, 2]"),
        ),
        Example(
            "variable",
            write_variable,
            lambda rows: {"x": _FEATURES[:rows, :5].astype(np.float64)},
            ("x FP64 [rows, any]", "mean FP64 [rows]"),
        ),
        Example(
            "fixed",
            lambda directory: write_network(directory, rows=4),
            _features,
            ("x FP32 [rows, 64]", "p FP32 [rows, 10]"),
            rows=4,
        ),
    ),
    failing=Example(
        "lookup",
        write_lookup,
        lambda rows: {"keys": _KEYS[:rows] + 1000, "flag": np.zeros(rows, np.bool_)},
        (),
    ),
    large=Example("lookup", write_lookup, _keys, ()),
)
