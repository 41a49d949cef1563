"""Warm-up: a version computes batches before it serves, so that its first real answer is not its slowest.

Recorded requests are JSON lines, each ``{"inputs": {"name": values, …}}`` (columns) or ``{"instances":
[{"name": value, …}, …]}`` (rows), with an optional ``"signature_name"``: the bodies of TensorFlow Serving's
predict. They must all succeed. Then generated batches are run, of zeros or of the signature's sample rows.
Their failures are only logged, because a model need not be able to answer zeros.

The same thread also checks that the version is ready: its rows are independent, and it answers.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError, LoadError, ModelError, NotLoadable
from headrace.base.files import open_file
from headrace.base.tensors import STRING, Tensors
from headrace.batching.batcher import Batcher
from headrace.batching.concatenation import cut, join, padded_size
from headrace.batching.cost import BatchCost
from headrace.batching.policy_defaults import inline_seconds
from headrace.config import BatchingPolicy, ModelConfig
from headrace.lifecycle.idle_time import answer, stop_if_dropped
from headrace.model.batch_contract import UNVARIED, WAY_OUT, check_contract
from headrace.model.servable import (
    DEFAULT_SIGNATURE,
    EXPLAIN_SIGNATURE,
    CheckedInputs,
    Servable,
    Signature,
    generated_inputs,
    has_files,
    signature_named,
)
from headrace.runtimes.options import RunGently, at_once

_log = logging.getLogger(__name__)

WELL_KNOWN = "warm_up.jsonl"
"""The recording that is used if the settings name none."""

_NO_REQUEST = (
    ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError, HeadraceError,
)  # fmt: skip  # errors that a malformed line may cause
_LONGEST_LINE_BYTES = 2**26
_ROUNDS = 3
_LONGEST_SECONDS = 2.0
_MOST_SHAPES = 64
_INLINE_MARGIN = 4.0
"""A batch predicted to take up to this many times ``inline_seconds`` may run in the serving thread, too."""


class WarmUpBatch(NamedTuple):
    """A batch that the model has answered.

    Attributes:
        rows: Number of rows.
        signature: Name of the signature.
        inputs: The inputs.
    """

    rows: int
    signature: str
    inputs: Tensors


Probe = Callable[[Sequence[WarmUpBatch]], object]


def _nothing(_: Sequence[WarmUpBatch]) -> None:
    """Probe nothing: the default."""


def warm_up(
    servable: Servable,
    config: ModelConfig,
    path: Path | None,
    cost: BatchCost,
    native: RunGently = at_once,
    probe: Probe = _nothing,
) -> list[WarmUpBatch]:
    """Run recorded requests if there are any, and generated batches.

    Args:
        servable: The loaded version.
        config: The model's settings; ``warm_up.enabled = false`` skips everything.
        path: The version directory; recordings lie in it or in the model's directory above it.
        cost: Learns the cost of the batches.
        native: Runs the probe and the generated batches of a model that computes without the GIL; may run
            each twice concurrently.
        probe: Called with the recorded batches, in the same thread, once they have been answered.

    Returns:
        The batches that were answered: the first of each signature and shape, up to 64.

    Raises:
        LoadError: A recording cannot be read, or one of its requests failed.
    """
    answered: dict[object, WarmUpBatch] = {}
    if not config.warm_up.enabled:
        return []
    for recording in _recordings(path, config.warm_up.requests):
        for number, inputs, signature in _recorded(servable, recording, config):
            try:
                servable.predict(inputs, signature)
            except Exception as error:  # the boundary to a model's own code
                raise LoadError(f"warm-up: line {number} of {recording.name} failed: {error}") from error
            _keep(answered, signature, inputs)
    run = native if _is_native(servable) else at_once
    recorded = list(answered.values())
    run(lambda: probe(recorded))
    run(lambda: _run_zeros(servable, config, cost, answered))
    return list(answered.values())


def warm_up_serving_threads(
    servable: Servable,
    config: ModelConfig,
    path: Path | None,
    batcher: Batcher,
    clock: Clock,
    probe: Probe = _nothing,
) -> None:
    """Warm up a model's own code in each thread that will call it.

    Libraries keep state per thread (cuDNN's handles, an allocator's memory), and unknown code may use any of
    them. The first instance's thread runs the whole warm-up. The threads of the other instances run each
    batch once, one thread after another. So does the serving thread, with the batches that are short enough
    for it.

    Args:
        servable: The loaded version.
        config: The model's settings. If they do not set the number of instances, no thread is started after
            two seconds; threads that are needed later start cold.
        path: As in ``warm_up``.
        batcher: The version's Batcher, before its first request. Its threads get the priority of the calling
            thread.
        clock: The serving thread's Clock. Batches run there one at a time, with other callbacks in between.
        probe: As in ``warm_up``, in the first instance's thread.

    Raises:
        LoadError: As in ``warm_up``; or a batch that one thread answered failed in another.
    """
    if not config.warm_up.enabled:
        return
    try:
        answered = _warm_up_instances(servable, config, path, batcher, probe)
        short = _INLINE_MARGIN * inline_seconds(config.batching, servable)
        for batch in answered:
            if batcher.cost.seconds(batch.rows) < short:
                result: Future[None] = Future()
                clock.call_soon_threadsafe(answer, result, _run_again, (servable, [batch]))
                result.result()
    except BaseException:
        batcher.instances.stop()
        raise


def _warm_up_instances(
    servable: Servable, config: ModelConfig, path: Path | None, batcher: Batcher, probe: Probe
) -> list[WarmUpBatch]:
    answered: list[WarmUpBatch] = []
    until = time.monotonic() + _LONGEST_SECONDS
    warm = partial(warm_up, servable, config, path, batcher.cost, probe=probe)
    batcher.instances.start(lambda: answered.extend(warm()))
    for _ in range(batcher.instances.threads - 1):
        if not answered or (time.monotonic() > until and not config.batching.instances):
            break
        batcher.instances.start(partial(_run_again, servable, answered))
    return answered


def _run_again(servable: Servable, batches: Iterable[WarmUpBatch]) -> None:
    """Run batches that were answered in one thread again in another thread."""
    for batch in batches:
        try:
            servable.predict(batch.inputs, batch.signature)
        except Exception as error:  # the boundary to a model's own code
            raise LoadError(
                f"warm-up: a batch of {batch.rows} rows was answered in one thread and failed in another: "
                f"{error}; for code that has to stay in one thread, set batching.instances = 1 and "
                "batching.inline_seconds = 0"
            ) from error


def _keep(answered: dict[object, WarmUpBatch], signature: str, inputs: Tensors) -> None:
    shapes = tuple(array.shape for array in inputs.values())
    if len(answered) < _MOST_SHAPES:
        answered.setdefault((signature, shapes), WarmUpBatch(shapes[0][0], signature, inputs))


def _is_native(servable: Servable) -> bool:
    return getattr(servable, "is_native", False)


def first_recorded(servable: Servable, path: Path) -> Tensors | None:
    """Return the inputs of the first recorded request for the default signature; None if there is none.

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
    """Yield the recordings that lie in the version directory, or else in the model's directory above it."""
    if path is None:
        return
    for name in names or (WELL_KNOWN,):
        found = next((folder / name for folder in (path, path.parent) if (folder / name).is_file()), None)
        if found is not None:
            yield found
        elif names:
            raise LoadError(f"warm-up: {name} exists neither in the version directory nor beside it")


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
    """Yield the first lines of a recording, numbered from 1."""
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
    """Decode JSON's ``{"b64": "…"}`` to bytes; return other values unchanged."""
    encoded = value.get("b64")
    return base64.b64decode(encoded, validate=True) if len(value) == 1 and isinstance(encoded, str) else value


def _columns(body: Mapping[str, object], signature: Signature) -> Mapping[str, object]:
    """Return the inputs of a body in rows or columns; a single input needs no name."""
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
    """Yield a request as the batches that the model would receive: split and padded to allowed sizes."""
    layout, columns, rows = checked
    allowed = (signature.rows,) if signature.rows else policy.allowed_batch_rows
    most = allowed[-1] if allowed else policy.max_batch_rows if policy.enabled else rows
    for start in range(0, rows, most):
        stop = min(start + most, rows)
        part = cut(layout, columns, start, stop)
        yield join(layout, [part], stop - start, padded_size(stop - start, allowed))


def _run_zeros(
    servable: Servable, config: ModelConfig, cost: BatchCost, answered: dict[object, WarmUpBatch]
) -> None:
    """Run batches of zeros or sample rows: each allowed size, or a few sizes within the time limit."""
    until = time.monotonic() + _LONGEST_SECONDS
    for signature in servable.signatures.values():
        # An explanation takes many times as long: `cost` is that of predictions.
        rounds = 0 if signature.name == EXPLAIN_SIGNATURE else _ROUNDS
        for rows in _sizes(signature, config.batching):
            inputs = _zeros(signature, rows)
            in_time = time.monotonic() + (_ROUNDS + 1) * cost.seconds(rows) <= until
            if inputs is None or not (in_time or config.batching.allowed_batch_rows):
                break
            try:
                with generated_inputs():
                    _run_timed(servable, signature, inputs, cost, rounds if in_time else 0)
            except Exception as error:  # noqa: BLE001 - the boundary to a model's own code, on generated data
                _log.warning("a generated warm-up batch of %d rows failed: %s", rows, _reason(error))
                break
            _keep(answered, signature.name, inputs)


def _sizes(signature: Signature, policy: BatchingPolicy) -> Iterable[int]:
    """Return the sizes of generated batches, ascending."""
    if signature.rows:
        return (signature.rows,)
    if signature.name == EXPLAIN_SIGNATURE:
        return policy.allowed_batch_rows[:1] or (1,)
    most = policy.max_batch_rows
    return policy.allowed_batch_rows or sorted({min(size, most) for size in (1, 8, 64, most)})


def _zeros(signature: Signature, rows: int) -> Tensors | None:
    if signature.sample is not None:
        return {name: some[np.arange(rows) % len(some)] for name, some in signature.sample.items()}
    tensors = {}
    for spec in signature.inputs:
        shape = [size for size in spec.shape if size is not None]
        if len(shape) != len(spec.shape):
            return None
        tensors[spec.name] = np.full((rows, *shape), b"" if spec.dtype == STRING else 0, spec.dtype)
    return tensors


def _run_timed(
    servable: Servable, signature: Signature, inputs: Tensors, cost: BatchCost, rounds: int
) -> None:
    rows = len(next(iter(inputs.values())))
    # A low-priority thread may wait for a processor longer than the model computes; count CPU time only.
    clock = time.thread_time if _is_native(servable) else time.monotonic
    servable.predict(inputs, signature.name)  # not timed: the first call of a size allocates memory
    for _ in range(rounds):
        stop_if_dropped()
        started = clock()
        servable.predict(inputs, signature.name)
        cost.observe(rows, clock() - started)


_FAILS = "it fails every generated request, but the version that serves answers them: {}; {}"
_WAY_OUT_OF_FAILING = (
    "record real requests in warm_up.jsonl, or set `[warm_up] must_answer = false` in headrace.toml to "
    "replace that version anyway"
)
_WAY_OUT_OF_ENDPOINTS = (
    "to replace that version anyway, set `must_answer = false` in the file of --config, under "
    "[models.NAME.warm_up]"
)
_LOG_SAYS_MORE = "; the server's log says more"
_RECORD_SOME = "; record some in warm_up.jsonl"
_NOT_OF_THE_MODEL = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    "<",
)
"""Beginnings of the files whose lines say nothing about a model's code."""
_FEW_ROWS = 8
_LEAST_SECONDS, _LOAD_SHARE = 1.0, 0.1
"""Time limit of the checks: the longer of this many seconds, and this share of the loading time."""


def probe(
    servable: Servable,
    config: ModelConfig,
    of: tuple[str, int],
    load_seconds: float,
    must_answer: bool,
    recorded: Sequence[WarmUpBatch],
) -> bool:
    """Check a version in the thread that warms it up.

    Args:
        servable: The version.
        config: The model's settings.
        of: The model's name and the version's number.
        load_seconds: Time that loading took, in seconds.
        must_answer: Whether the version that serves now has answered generated requests of this signature.
        recorded: Batches of recorded requests that the version has answered.

    Returns:
        Whether the version answers generated requests for its default signature.

    Raises:
        LoadError: Its rows are not independent, or it must answer generated requests and fails all of them.
    """
    answers = False
    if not (config.warm_up.enabled and config.warm_up.probe):
        return answers
    until = time.monotonic() + max(_LEAST_SECONDS, _LOAD_SHARE * load_seconds)
    record_some = _RECORD_SOME if has_files(servable) else ""
    for signature in servable.signatures.values():
        # For a model whose inputs are looked up, recorded requests contain keys instead of its inputs.
        names = set(signature.input_names)
        own = (one.inputs for one in recorded if one.signature == signature.name)
        batches = [inputs for inputs in own if inputs.keys() == names]
        predict, sizes = partial(_predict, servable, signature), _sizes_to_check(signature, config)
        in_rows = config.batching.enabled
        with generated_inputs():
            found = check_contract(predict, signature, sizes, batches, until, in_rows=in_rows)
        until += found.first_seconds
        if found.breach:
            raise NotLoadable(f"{found.breach}; {WAY_OUT}")
        for said in found.unchecked:
            hint = record_some if said == UNVARIED else ""
            _say("%s version %d: %s", of, f"{said}{hint} (signature {signature.name})")
        is_default = signature.name == DEFAULT_SIGNATURE
        answers = answers or (is_default and found.refused is None)
        if found.refused is not None:
            if is_default and must_answer and config.warm_up.must_answer:
                way_out = _WAY_OUT_OF_FAILING if has_files(servable) else _WAY_OUT_OF_ENDPOINTS
                raise LoadError(
                    _FAILS.format(_reason(found.refused), way_out), told=_FAILS.format(found.refused, way_out)
                )
            said = f"every generated request failed ({_reason(found.refused)}){record_some}"
            _say("%s version %d: row independence was not checked: %s", of, said)
    return answers


def _reason(error: Exception) -> str:
    """Return why generated rows failed, for the log: the exception of the model's own code, if any."""
    own = error.__cause__ if isinstance(error, ModelError) else None
    if own is None:  # of an isolated model the log has the traceback
        return str(error).removesuffix(_LOG_SAYS_MORE)
    return f"{_place(own)}{type(own).__name__}: {own}"


def _place(error: BaseException) -> str:
    """Return the line of the model's own code that failed, such as ``app.py:12: ``; "" if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if not one.filename.startswith(_NOT_OF_THE_MODEL)]
    if not own:
        return ""
    last = [one for one in own if one.filename == own[0].filename][-1]
    return f"{Path(last.filename).name}:{last.lineno}: "


def _predict(servable: Servable, signature: Signature, inputs: Tensors) -> Tensors:
    stop_if_dropped()
    return servable.predict(inputs, signature.name)


def _sizes_to_check(signature: Signature, config: ModelConfig) -> tuple[int, ...]:
    """Return the batch sizes to check, ascending: the allowed ones, or the smallest if all are allowed."""
    if signature.rows:
        return (signature.rows,)
    policy = config.batching
    return policy.allowed_batch_rows or tuple(range(1, min(policy.max_batch_rows, _FEW_ROWS) + 1))


def _say(message: str, of: tuple[str, int], said: str) -> None:
    model, version = of
    _log.warning(message, *of, said, extra={"model": model, "version": version})
