"""What a click model says of items that nobody has seen: it learns a stream, is published, and is asked."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy import optimize, special, stats

from demo.unseen_data import Items, write_stream
from demo.unseen_scores import LEVELS, Answers
from headrace.base.tensors import STRING, Array, Tensors
from headrace.model.servable import TensorSpec
from headrace.runtimes.ctr import INTERVAL_SIGNATURE, servable_of
from headrace.versions.layout import version_directories

SETTINGS = ("--hidden", "64,32", "--batch-rows", "256")
GENTLY = '[network]\nkind = "adam"\nlearning_rate = 0.0003\n'
"""For vectors of hundreds of numbers: each step moves what all of them say."""

_ROWS_A_CALL = 4096


def learnt(known: Items, unseen: Items, *, with_content: bool, config: str = "") -> Answers:
    """What a version says of items that was learnt from others.

    Args:
        known: What it is learnt from, in one pass.
        unseen: What it is asked about.
        with_content: Whether it gets the vectors.
        config: Settings, as TOML.
    """
    with tempfile.TemporaryDirectory() as folder:
        rows, settings, model = (Path(folder) / name for name in ("rows.arrows", "settings.toml", "model"))
        write_stream(known, rows, with_content=with_content)
        settings.write_text(config)
        words = [sys.executable, "-m", "headrace", "train", str(rows), "--model", "mdn", *SETTINGS]
        words += ["--config", str(settings), "--publish", str(model), "--json"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        versions = version_directories(model)
        servable = servable_of(versions[max(versions)])
    inputs = {
        spec.name: _input(unseen, spec)
        for spec in servable.signatures[INTERVAL_SIGNATURE].inputs
        if spec.name != "level"
    }
    parts = []
    for start in range(0, len(unseen), _ROWS_A_CALL):
        some = {name: one[start : start + _ROWS_A_CALL] for name, one in inputs.items()}
        parts.append([_asked(servable.predict, some, level) for level in LEVELS])
    joined = [
        {
            name: np.concatenate([part[number][name] for part in parts]).astype(np.float64)
            for name in parts[0][0]
        }
        for number in range(len(LEVELS))
    ]
    return Answers(
        joined[0]["probability"],
        {level: (one["lower"], one["upper"]) for level, one in zip(LEVELS, joined, strict=True)},
    )


def _asked(predict, some: Tensors, level: float) -> Tensors:  # type: ignore[no-untyped-def]
    rows = len(next(iter(some.values())))
    answer: Tensors = predict(some | {"level": np.full(rows, level, np.float32)}, INTERVAL_SIGNATURE)
    return answer


def base_rate(known: Items, count: int) -> Answers:
    """What says the same of every item: the click rate, and the Beta distribution that fits items best."""

    def loss(where: Array) -> float:
        a, b = _beta(where)
        fits = special.betaln(known.clicks + a, known.views - known.clicks + b) - special.betaln(a, b)
        return -float(fits.sum())

    a, b = _beta(optimize.minimize(loss, np.zeros(2), method="Nelder-Mead").x)
    mean = np.full(count, known.clicks.sum() / known.views.sum())
    edges = {level: stats.beta.ppf([0.5 - level / 2, 0.5 + level / 2], a, b) for level in LEVELS}
    return Answers(
        mean, {level: (np.full(count, low), np.full(count, high)) for level, (low, high) in edges.items()}
    )


def _beta(where: Array) -> tuple[float, float]:
    mean, size = float(special.expit(where[0])), float(np.exp(where[1]))
    return mean * size, (1 - mean) * size


def _input(items: Items, spec: TensorSpec) -> Array:
    if spec.name == items.content:
        return items.vectors
    column = items.columns[spec.name]
    if spec.dtype != STRING:
        found: Array = column.to_numpy().astype(np.int64)
        return found
    made = np.full((len(items), *spec.shape), b"", object)
    for row, value in enumerate(column.to_pylist()):
        if spec.shape:
            made[row, : len(value)] = [one.encode() for one in value]
        else:
            made[row] = value.encode()
    return made
