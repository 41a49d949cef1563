"""What checking the batch contract adds to loading a version, in milliseconds, for four kinds of models."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.rounds import Effort, interleaved, middle, print_lines, spread, verdict
from benchmarks.sides import model_path
from headrace import Engine
from headrace.config import ServerConfig
from tests.conformance.sklearn_models import digits, save
from tests.model_directories import UNPROBED, affine, write

_COPIES = 20
_MOST_MILLISECONDS = 50.0
_DOUBLES = """
class Model:
    inputs = [("x", "FP32", [8])]
    outputs = [("y", "FP32", [8])]

    def predict(self, inputs):
        return {"y": inputs["x"] * 2}
"""


def run(effort: Effort) -> None:
    """Load 20 copies of each model in one process, with the check and without, in turns.

    Args:
        effort: How much measuring is done: its rounds.
    """
    network = Path(model_path()).read_bytes()
    kinds: dict[str, Callable[[Path, str], object]] = {
        "ONNX, y = x + a": lambda folder, settings: _copies(folder, affine(1.0, 1.0), settings),
        "ONNX, the network of `throughput`": lambda folder, settings: _copies(folder, network, settings),
        "model.py": lambda folder, settings: _copies(folder, _DOUBLES, settings),
        "scikit-learn, digits": _estimators,
    }
    with tempfile.TemporaryDirectory() as folder:
        measures = {}
        for number, (kind, make) in enumerate(kinds.items()):
            for is_checked in (True, False):
                models = Path(folder) / f"{number}-{is_checked}"
                make(models, "" if is_checked else UNPROBED)
                measures[f"{kind}, {is_checked}"] = partial(_load, models)
        found = interleaved(measures, effort.rounds)
    rows = [("milliseconds a version", "checked", "not checked", "added")]
    added = {}
    for kind in kinds:
        checked, bare = found[f"{kind}, True"], found[f"{kind}, False"]
        added[kind] = middle(checked) - middle(bare)
        rows.append((kind, spread(checked, 1), spread(bare, 1), f"{added[kind]:.1f}"))
    print_lines(rows)
    most = max(added.values())
    verdict(
        f"checking adds ≤ {_MOST_MILLISECONDS:g} ms to a version",
        most <= _MOST_MILLISECONDS,
        f"{most:.1f} ms",
    )


def _copies(folder: Path, content: bytes | str, settings: str) -> None:
    for number in range(_COPIES):
        write(folder, f"m{number}", 1, content, settings)


def _estimators(folder: Path, settings: str) -> None:
    for number in range(_COPIES):
        version = folder / f"m{number}" / "1"
        version.mkdir(parents=True)
        save(digits)(version)
        (version.parent / "headrace.toml").write_text(settings)


def _load(models: Path) -> float:
    began = time.monotonic()
    with Engine.in_thread(models, config=ServerConfig(allow_code=True)) as engine:
        took = time.monotonic() - began
        if any(engine.manager.ready_now(f"m{number}") is None for number in range(_COPIES)):
            raise RuntimeError(f"not all models in {models} are ready")
    return took * 1e3 / _COPIES
