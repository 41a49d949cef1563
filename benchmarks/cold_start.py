"""A cold start: how long from the command to the first answer, with kernels that are kept, and without?"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.rounds import Effort, middle, spread
from tests.conformance.ctr_models import field_inputs
from tests.conformance.ctr_models import write as write_clicks
from tests.faults.still_serves import MODEL
from tests.model_directories import affine, write
from tests.running_server import RunningServer

_CLICKS = "clicks"


def run(effort: Effort) -> None:
    """Start servers of one small model each, over and over.

    Args:
        effort: How much measuring is done: its rounds.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        onnx, clicks, kept = place / "onnx", place / _CLICKS, place / "kernels"
        write(onnx, MODEL, 1, affine(1.0, 1.0))
        version = clicks / _CLICKS / "1"
        version.mkdir(parents=True)
        write_clicks(version, "lr")
        kernels = {**os.environ, "NUMBA_CACHE_DIR": str(kept)}
        compiling = [sys.executable, "-m", "headrace", "compile", str(clicks)]
        subprocess.run(compiling, env=kernels, stdout=subprocess.DEVNULL, check=True)
        waits: dict[str, list[float]] = {"ONNX": [], "click model, kernels kept": []}
        for _ in range(effort.rounds):
            waits["ONNX"].append(_first_answer(onnx, MODEL, {"x": [1.0]}, dict(os.environ)))
            inputs = {name: _plain(values) for name, values in field_inputs(1).items()}
            waits["click model, kernels kept"].append(_first_answer(clicks, _CLICKS, inputs, kernels))
        nowhere = {**os.environ, "NUMBA_CACHE_DIR": str(place / "empty")}
        waits["click model, none kept"] = [_first_answer(clicks, _CLICKS, inputs, nowhere)]
    for name, seconds in waits.items():
        ratio = middle(seconds) / middle(waits["ONNX"])
        print(f"  {name:<28}{spread(seconds):>24} s{ratio:>8.1f} × ONNX")


def _first_answer(models: Path, model: str, inputs: dict[str, object], environment: dict[str, str]) -> float:
    began = time.monotonic()
    with RunningServer(models, environment=environment) as server:
        status, answer = server.post(f"/v1/models/{model}:predict", {"inputs": inputs})
        seconds = time.monotonic() - began
        assert status == 200, answer
    return seconds


def _plain(values: np.ndarray) -> object:
    texts = values.astype(np.bytes_).astype(np.str_) if values.dtype == object else values
    plain: object = texts.tolist()
    return plain
