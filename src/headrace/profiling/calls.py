"""Inputs for a profiled model, and the duration of a call without profiling."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from headrace.base.tensors import STRING, Array, Tensors
from headrace.config import parse_model_config, read_model_config
from headrace.lifecycle.warmup import first_recorded
from headrace.model.servable import DEFAULT_SIGNATURE, Servable, Signature

WARM_UP_CALLS = 5
"""Number of calls before the measurement."""

_UNKNOWN = 8


def inputs_for(servable: Servable, directory: Path, rows: int, values_below: int = 1) -> Tensors:
    """Return a call's inputs: the first request's rows in ``warm_up.jsonl``, repeated, or generated rows.

    Args:
        servable: The model.
        directory: Its version directory; recordings lie in it or above it.
        rows: Number of rows; a signature with a fixed number of rows gets that number.
        values_below: Generated integers are below this; table sizes are not known here.
    """
    signature = servable.signatures[DEFAULT_SIGNATURE]
    rows = signature.rows or rows
    # For a model with inputs from an archive, recorded requests contain keys instead of its inputs.
    has_keys = bool(parse_model_config(read_model_config(directory.parent)).inputs)
    recorded = None if has_keys else first_recorded(servable, directory)
    if recorded is None:
        return made_up(signature, rows, values_below)
    return {name: np.resize(array, (rows, *array.shape[1:])) for name, array in recorded.items()}


def made_up(signature: Signature, rows: int, values_below: int = 1) -> Tensors:
    """Generate inputs: normal floats, integers below a limit, also as texts; all rows share a context."""
    random = np.random.default_rng(0)
    tensors: dict[str, Array] = {}
    for spec in signature.inputs:
        shape = (rows, *(_UNKNOWN if size is None else size for size in spec.shape))
        if spec.dtype == STRING:
            texts = [
                b"" if values_below == 1 else b"%d" % one
                for one in random.integers(0, values_below, shape).flat
            ]
            tensors[spec.name] = np.array([*texts, None], dtype=object)[:-1].reshape(shape)
        elif spec.dtype.kind == "f":
            tensors[spec.name] = random.normal(size=shape).astype(spec.dtype)
        else:
            most = 2 if spec.dtype.kind == "b" else min(values_below, np.iinfo(spec.dtype).max)
            tensors[spec.name] = random.integers(0, most, shape).astype(spec.dtype)
        if spec.context:
            tensors[spec.name][:] = tensors[spec.name][:1]
    return tensors


def median_microseconds(call: Callable[[], object], calls: int) -> float:
    """Return the median duration of a call in µs, after some uncounted calls."""
    for _ in range(WARM_UP_CALLS):
        call()
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6
