"""The models of a soak: each answer tells the rows that were asked about, and the version that answered."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import skops.io
from onnx import TensorProto, helper
from sklearn.linear_model import LinearRegression

from headrace.ctr.click_model import Table, Weights
from headrace.ctr.files.model_files import write_model
from headrace.ctr.model_settings import ModelSettings
from headrace.runtimes.ctr import servable_of
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]
FACTOR = 1000
"""Versions are added to rows times this, so they stay below it."""
POISON = -1
"""The row that the isolated model raises for."""

_USERS = 37
_PRICES = 1021
_PRICE_WEIGHT = 2.0
_TOLERANCE = 1e-5
_COLUMNS = (7, 11, 13, 17)


@dataclass(frozen=True)
class Subject:
    """One model.

    Attributes:
        name: What it is called.
        settings: Its ``headrace.toml``.
        write: Writes a version's files into a directory.
        inputs: What is asked about rows, by their numbers INT64 ``[rows]``.
        expected: What a version answers for rows, by output.
        rounding: How far an answer may be from that.
    """

    name: str
    settings: str
    write: Callable[[Path, int], None]
    inputs: Callable[[Array], dict[str, Array]]
    expected: Callable[[Array, int], dict[str, Array]]
    rounding: float = 0.0

    def is_answer(self, outputs: Tensors, rows: Array, version: int) -> bool:
        """Whether these are the rows' outputs, as a version gives them."""
        expected = self.expected(rows, version)
        return expected.keys() == outputs.keys() and all(
            len(outputs[name]) == len(array) and _same(outputs[name], array, self.rounding)
            for name, array in expected.items()
        )


def _same(given: Array, expected: Array, rounding: float) -> bool:
    if expected.dtype == object or not rounding:
        return bool(np.array_equal(given, expected))
    return bool(np.abs(np.asarray(given, np.float64) - expected).max() <= rounding)


def _told(rows: Array, version: int) -> Array:
    """One number that tells a row and a version."""
    told: Array = rows * FACTOR + version
    return told


# ---- counter: ONNX ----


def _columns(rows: Array) -> Array:
    """Four numbers of each row which float32 adds up exactly."""
    columns: Array = rows[:, None] * np.array(_COLUMNS) % 4096 / 64
    return columns.astype(np.float32)


def _write_onnx(directory: Path, version: int) -> None:
    tensor = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Mul", ["row", "factor"], ["many"]),
        helper.make_node("Add", ["many", "version"], ["who"]),
        helper.make_node("ReduceSum", ["x", "axis"], ["sum"], keepdims=0),
        helper.make_node("Add", ["sum", "offset"], ["score"]),
    ]
    constants = [
        helper.make_tensor("factor", TensorProto.INT64, [1], [FACTOR]),
        helper.make_tensor("version", TensorProto.INT64, [1], [version]),
        helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
        helper.make_tensor("offset", TensorProto.FLOAT, [1], [version]),
    ]
    inputs = [
        tensor("row", TensorProto.INT64, ["rows"]),
        tensor("x", TensorProto.FLOAT, ["rows", len(_COLUMNS)]),
    ]
    outputs = [tensor("who", TensorProto.INT64, ["rows"]), tensor("score", TensorProto.FLOAT, ["rows"])]
    graph = helper.make_graph(nodes, "counter", inputs, outputs, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (directory / "model.onnx").write_bytes(made.SerializeToString())


def _counted(rows: Array, version: int) -> dict[str, Array]:
    score = _columns(rows).sum(axis=1) + np.float32(version)
    return {"who": _told(rows, version), "score": score.astype(np.float32)}


# ---- linear: scikit-learn ----


def _write_linear(directory: Path, version: int) -> None:
    estimator = LinearRegression().fit(np.eye(2), np.zeros(2))
    estimator.coef_, estimator.intercept_ = np.array([FACTOR, 1.0]), float(version)
    skops.io.dump(estimator, directory / "model.skops")


def _features(rows: Array) -> dict[str, Array]:
    return {"features": np.stack([rows, np.zeros(len(rows))], axis=1).astype(np.float64)}


# ---- clicks: a click model ----

_FEATURES = Features.of(
    Schema(
        fields=(
            Field(name="user", role="categorical", buckets=500, text=True, context=True),
            Field(name="price", role="dense"),
            Field(name="click", role="label"),
        )
    )
)


def _bias(version: int) -> float:
    """A version's own: those of 61 in a row differ by far more than rounding."""
    return (version * 5 % 61 - 30) * 0.03


def _write_clicks(directory: Path, version: int) -> None:
    values = np.random.default_rng(1).normal(0.0, 0.5, (_FEATURES.rows, 1)).astype(np.float32)
    values[0] = 0.0  # the row of no value
    dense = {
        "bias": np.array([_bias(version)], np.float32),
        "dense": np.array([_PRICE_WEIGHT], np.float32),
    }
    write_model(directory, ModelSettings(kind="lr"), _FEATURES, Weights({"linear": Table.of(values)}, dense))


def _users(rows: Array) -> Array:
    return np.array([f"user {row % _USERS}".encode() for row in rows.tolist()], object)


def _prices(rows: Array) -> Array:
    return (rows * 7 % _PRICES / (_PRICES / 2) - 1).astype(np.float32)


@cache
def _user_logits() -> Array:
    """What each user adds to the logit: only which rows of the table are theirs is asked of the runtime."""
    with tempfile.TemporaryDirectory() as folder:
        _write_clicks(Path(folder), 0)
        numbers = np.arange(_USERS)
        inputs = {"user": _users(numbers), "price": np.zeros(_USERS, np.float32)}
        probability = np.asarray(servable_of(Path(folder)).predict(inputs)["probability"], np.float64)
    return np.log(probability / (1 - probability)) - _bias(0)


def _clicked(rows: Array, version: int) -> dict[str, Array]:
    logit = _user_logits()[rows % _USERS] + _PRICE_WEIGHT * _prices(rows).astype(np.float64) + _bias(version)
    return {"probability": 1 / (1 + np.exp(-logit))}


# ---- echo: Python, isolated ----

_ECHO = """
import numpy as np

class Model:
    inputs = [("row", "INT64", []), ("text", "BYTES", [])]
    outputs = [("who", "INT64", []), ("said", "BYTES", [])]

    def predict(self, inputs):
        if (inputs["row"] == POISON).any():
            raise ValueError("the row that it raises for")
        said = [text + b"/VERSION" for text in inputs["text"].tolist()]
        return {"who": inputs["row"] * FACTOR + VERSION, "said": np.array(said, object)}
"""


def _write_echo(directory: Path, version: int) -> None:
    values = {"POISON": POISON, "FACTOR": FACTOR, "VERSION": version}
    text = _ECHO
    for name, value in values.items():
        text = text.replace(name, str(value))
    (directory / "model.py").write_text(text, "utf-8")


def _echoed(rows: Array, version: int) -> dict[str, Array]:
    said = np.array([f"text of {row}/{version}".encode() for row in rows.tolist()], object)
    return {"who": _told(rows, version), "said": said}


def _texts(rows: Array) -> dict[str, Array]:
    return {"row": rows, "text": np.array([f"text of {row}".encode() for row in rows.tolist()], object)}


_TWO = '[versions]\npolicy = "latest"\ncount = 2\n'

SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject(
            "counter",
            _TWO,
            _write_onnx,
            inputs=lambda rows: {"row": rows, "x": _columns(rows)},
            expected=_counted,
        ),
        Subject(
            "linear",
            _TWO,
            _write_linear,
            inputs=_features,
            expected=lambda rows, version: {"prediction": _told(rows, version).astype(np.float64)},
        ),
        Subject(
            "clicks",
            _TWO,
            _write_clicks,
            inputs=lambda rows: {"user": _users(rows), "price": _prices(rows)},
            expected=_clicked,
            rounding=_TOLERANCE,
        ),
        Subject(
            "echo",
            f"isolate = true\n{_TWO}\n[isolation]\ntimeout_seconds = 20\n",
            _write_echo,
            inputs=_texts,
            expected=_echoed,
        ),
    )
}
