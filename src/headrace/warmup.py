"""Warm-up: a version answers before anybody asks it, so that its first real answer is not its slowest.

Recorded requests are JSON lines, each ``{"inputs": {"name": values, …}}`` (columns) or ``{"instances":
[{"name": value, …}, …]}`` (rows), with an optional ``"signature_name"``: the bodies of TensorFlow Serving's
predict. They must all succeed. Without a recording, batches of zeros are run; models that cannot answer those
say nothing about themselves by it, so that is no error.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from headrace.batching.cost import BatchCost
from headrace.batching.joining import cut, join, padded_size
from headrace.config import BatchingPolicy, ModelConfig
from headrace.disk import open_file
from headrace.errors import HeadraceError, LoadError
from headrace.lifecycle.idle import stop_if_dropped
from headrace.runtimes.options import RunGently, at_once
from headrace.servable import DEFAULT_SIGNATURE, CheckedInputs, Servable, Signature, signature_named
from headrace.tensors import STRING, Tensors

_log = logging.getLogger(__name__)

WELL_KNOWN = "warm_up.jsonl"
"""The recording that is used when the settings name none."""

_NO_REQUEST = (
    ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError, HeadraceError,
)  # fmt: skip  # what whoever wrote a line may have got wrong in it
_LONGEST_LINE_BYTES = 2**26
_ROUNDS = 3
_LONGEST_SECONDS = 2.0


def warm_up(
    servable: Servable,
    config: ModelConfig,
    path: Path | None,
    cost: BatchCost,
    native: RunGently = at_once,
) -> None:
    """Run recorded requests if there are any, made-up batches otherwise.

    Args:
        servable: The loaded version.
        config: The model's settings; ``warm_up.enabled = false`` skips all of it.
        path: The version directory; recordings lie in it or in the model's directory above it.
        cost: Learns what the batches cost.
        native: Runs made-up batches, if the model computes without Python's lock; perhaps twice side by side.

    Raises:
        LoadError: A recording cannot be read, or one of its requests failed.
    """
    if not config.warm_up.enabled:
        return
    for recording in _recordings(path, config.warm_up.requests):
        for number, inputs, signature in _recorded(servable, recording, config):
            try:
                servable.predict(inputs, signature)
            except Exception as error:  # the boundary to a model's own code
                raise LoadError(f"warm-up: line {number} of {recording.name} failed: {error}") from error
    run = native if _is_native(servable) else at_once
    run(lambda: _run_zeros(servable, config, cost))


def _is_native(servable: Servable) -> bool:
    return getattr(servable, "is_native", False)


def first_recorded(servable: Servable, path: Path) -> Tensors | None:
    """The inputs of the first recorded request for the default signature; None if there is none.

    Args:
        servable: The loaded version.
        path: The version directory; recordings lie in it or in the model's directory above it.

    Raises:
        LoadError: The recording cannot be read.
    """
    for recording in _recordings(path, ()):
        for _, inputs, signature in _recorded(servable, recording, ModelConfig()):
            if signature == DEFAULT_SIGNATURE:
                return inputs
    return None


def _recordings(path: Path | None, names: tuple[str, ...]) -> Iterator[Path]:
    """The recordings that lie in the version directory, or else in the model's directory above it."""
    if path is None:
        return
    for name in names or (WELL_KNOWN,):
        found = next((folder / name for folder in (path, path.parent) if (folder / name).is_file()), None)
        if found is not None:
            yield found
        elif names:
            raise LoadError(f"warm-up: there is no {name} in the version directory or beside it")


def _recorded(servable: Servable, recording: Path, config: ModelConfig) -> Iterator[tuple[int, Tensors, str]]:
    for number, line in _lines(recording, config.warm_up.max_requests):
        if not line.strip():
            continue
        try:
            body = json.loads(line, object_hook=_decoded)
            signature = signature_named(servable.signatures, body.get("signature_name", ""))
            checked = signature.check(_columns(body, signature))
        except _NO_REQUEST as error:
            said = f"warm-up: line {number} of {recording.name} is not a request: {error}"
            raise LoadError(said) from error
        for inputs in _batches(checked, signature, config.batching):
            yield number, inputs, signature.name


def _lines(recording: Path, most: int) -> Iterator[tuple[int, bytes]]:
    """The first lines of a recording, numbered from 1."""
    try:
        with io.BufferedReader(open_file(recording)) as lines:
            for number in range(1, most + 1):
                line = lines.readline(_LONGEST_LINE_BYTES + 1)
                if len(line) > _LONGEST_LINE_BYTES:
                    longest = f"longer than {_LONGEST_LINE_BYTES} bytes"
                    raise LoadError(f"warm-up: line {number} of {recording.name} is {longest}")
                if not line:
                    return
                yield number, line
    except OSError as error:
        raise LoadError(f"warm-up: {recording.name} cannot be read: {error.strerror or error}") from error


def _decoded(value: dict[str, object]) -> object:
    """Bytes where JSON says ``{"b64": "…"}``."""
    encoded = value.get("b64")
    return base64.b64decode(encoded, validate=True) if len(value) == 1 and isinstance(encoded, str) else value


def _columns(body: Mapping[str, object], signature: Signature) -> Mapping[str, object]:
    """The inputs of a body in rows or columns; a single input needs no name."""
    inputs = body.get("inputs")
    if inputs is not None:
        return inputs if isinstance(inputs, dict) else {signature.input_names[0]: inputs}
    rows = body["instances"]
    if not isinstance(rows, list) or not rows:
        raise ValueError("expected `inputs`, or a list `instances` with at least one row")
    if isinstance(rows[0], dict):
        return {name: [row[name] for row in rows] for name in rows[0]}
    return {signature.input_names[0]: rows}


def _batches(checked: CheckedInputs, signature: Signature, policy: BatchingPolicy) -> Iterator[Tensors]:
    """A request as the model would get it: in parts of allowed sizes, filled up."""
    layout, columns, rows = checked
    allowed = (signature.rows,) if signature.rows else policy.allowed_batch_rows
    most = allowed[-1] if allowed else policy.max_batch_rows
    for start in range(0, rows, most):
        stop = min(start + most, rows)
        part = cut(layout, columns, start, stop)
        yield join(layout, [part], stop - start, padded_size(stop - start, allowed))


def _run_zeros(servable: Servable, config: ModelConfig, cost: BatchCost) -> None:
    """Run batches of zeros of a few sizes, smallest first, for no longer than it helps."""
    policy = config.batching
    until = time.monotonic() + _LONGEST_SECONDS
    for signature in servable.signatures.values():
        most = signature.rows or (policy.allowed_batch_rows or (policy.max_batch_rows,))[-1]
        for rows in sorted(
            {padded_size(min(size, most), policy.allowed_batch_rows) for size in (1, 8, 64, most)}
        ):
            inputs = _zeros(signature, most if signature.rows else rows)
            if inputs is None or time.monotonic() + (_ROUNDS + 1) * cost.seconds(rows) > until:
                break
            try:
                _run_timed(servable, signature, inputs, cost)
            except Exception as error:  # noqa: BLE001 - the boundary to a model's own code, asked about made-up data
                _log.debug("a made-up warm-up batch failed", exc_info=error, extra={"rows": rows})
                break


def _zeros(signature: Signature, rows: int) -> Tensors | None:
    if signature.sample is not None:
        return {name: np.repeat(row, rows, axis=0) for name, row in signature.sample.items()}
    tensors = {}
    for spec in signature.inputs:
        shape = [size for size in spec.shape if size is not None]
        if len(shape) != len(spec.shape):
            return None
        tensors[spec.name] = np.full((rows, *shape), b"" if spec.dtype == STRING else 0, spec.dtype)
    return tensors


def _run_timed(servable: Servable, signature: Signature, inputs: Tensors, cost: BatchCost) -> None:
    rows = len(next(iter(inputs.values())))
    # A thread that gives way may wait for a processor for longer than the model computes.
    clock = time.thread_time if _is_native(servable) else time.monotonic
    servable.predict(inputs, signature.name)  # the first call of a size pays for memory; it is no measure
    for _ in range(_ROUNDS):
        stop_if_dropped()
        started = clock()
        servable.predict(inputs, signature.name)
        cost.observe(rows, clock() - started)
