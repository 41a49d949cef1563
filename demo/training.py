"""Two models of the same signature, each exported to ONNX and published as a version directory."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from skl2onnx import to_onnx
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from headrace.lifecycle.manifest import publish

MODEL = "films"
INPUT = "features"
OUTPUT = "probabilities"
FIRST_SHARE = 0.1
TRAINED_SHARE = 0.8

Rows = npt.NDArray[np.float32]
Truth = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One trained model.

    Attributes:
        description: For the table.
        onnx: The exported model.
    """

    description: str
    onnx: bytes


def fit(model: Pipeline, rows: Rows, liked: Truth) -> bytes:
    """Train, and export: ``features`` in, ``label`` and ``probabilities`` out."""
    with warnings.catch_warnings():
        # Ten passes are chosen, not a failure to converge: more of them fit the past and lose on the future.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(rows, liked.astype(np.int64))
    exported = to_onnx(model, initial_types=None, X=rows[:1], options={"zipmap": False}, target_opset=17)
    # The exporter names inputs X; a name that says what it is costs one loop.
    for node in exported.graph.node:
        node.input[:] = [INPUT if name == "X" else name for name in node.input]
    exported.graph.input[0].name = INPUT
    return bytes(exported.SerializeToString())


def first(rows: Rows, liked: Truth) -> Candidate:
    """Train what one would begin with: a logistic regression, on the first tenth of the ratings."""
    end = int(len(rows) * FIRST_SHARE)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    return Candidate(f"logistic regression on {end:,} ratings", fit(model, rows[:end], liked[:end]))


def second(rows: Rows, liked: Truth) -> Candidate:
    """Train what replaces it: a small network, on all ratings but the held-out ones."""
    end = int(len(rows) * TRAINED_SHARE)
    network = MLPClassifier((64, 32), max_iter=10, alpha=3.0, batch_size=512, random_state=1)
    model = make_pipeline(StandardScaler(), network)
    return Candidate(f"network of 64 and 32 units on {end:,} ratings", fit(model, rows[:end], liked[:end]))


def release(models: Path, candidate: Candidate) -> Path:
    """Publish a model as its next version: it appears whole, with a manifest, or not at all."""

    def write(draft: Path) -> None:
        (draft / "model.onnx").write_bytes(candidate.onnx)

    return publish(write, models / MODEL, metadata={"description": candidate.description})
