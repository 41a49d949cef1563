"""What a profiled model is called with, and how long a call takes when nobody looks inside."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from headrace.config import parse_model_config, read_model_config
from headrace.servable import DEFAULT_SIGNATURE, Servable, Signature
from headrace.tensors import STRING, Array, Tensors
from headrace.warmup import first_recorded

WARM_UP_CALLS = 5
"""How many calls are made before any is measured."""

_UNKNOWN = 8


def inputs_for(servable: Servable, directory: Path, rows: int, values_below: int = 1) -> Tensors:
    """Make a call's inputs: those of the recording in ``warm_up.jsonl`` over and over, or made-up ones.

    Args:
        servable: The model.
        directory: Its version directory; recordings lie in it or above it.
        rows: How many rows; a signature that takes a fixed number gets that many.
        values_below: Made-up integers are below this: which are rows of which table is not known here.
    """
    signature = servable.signatures[DEFAULT_SIGNATURE]
    rows = signature.rows or rows
    # Where inputs come from an archive, what was recorded has keys in place of them.
    has_keys = bool(parse_model_config(read_model_config(directory.parent)).inputs)
    recorded = None if has_keys else first_recorded(servable, directory)
    if recorded is None:
        return made_up(signature, rows, values_below)
    return {name: np.resize(array, (rows, *array.shape[1:])) for name, array in recorded.items()}


def made_up(signature: Signature, rows: int, values_below: int = 1) -> Tensors:
    """Inputs that nobody recorded: normal numbers, integers below a limit or texts of them, one context."""
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
    """How long a call takes, after some that are not counted."""
    for _ in range(WARM_UP_CALLS):
        call()
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6
