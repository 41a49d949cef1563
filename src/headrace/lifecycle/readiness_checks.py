"""Checks that a version must pass before it is ready: its rows are independent, and it answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial

from headrace.base.errors import LoadError, NotLoadable
from headrace.base.tensors import Tensors
from headrace.config import ModelConfig
from headrace.lifecycle.idle_time import stop_if_dropped
from headrace.lifecycle.warmup import WarmUpBatch
from headrace.model.batch_contract import WAY_OUT, check_contract
from headrace.model.call_context import IS_GENERATED
from headrace.model.servable import DEFAULT_SIGNATURE, Servable, Signature

_log = logging.getLogger(__name__)

_WAY_OUT_OF_FAILING = (
    "it fails every generated request, and the version that serves answers them: {}; record real requests in "
    "warm_up.jsonl, or set `[warm_up] must_answer = false` in headrace.toml to replace that version anyway"
)
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
    for signature in servable.signatures.values():
        # For a model whose inputs are looked up, recorded requests contain keys instead of its inputs.
        names = set(signature.input_names)
        own = (one.inputs for one in recorded if one.signature == signature.name)
        batches = [inputs for inputs in own if inputs.keys() == names]
        predict, sizes = partial(_predict, servable, signature), _sizes(signature, config)
        in_rows = config.batching.enabled
        generated = IS_GENERATED.set(True)
        try:
            found = check_contract(predict, signature, sizes, batches, until, in_rows=in_rows)
        finally:
            IS_GENERATED.reset(generated)
        until += found.first_seconds
        if found.breach:
            raise NotLoadable(f"{found.breach}; {WAY_OUT}")
        for said in found.unchecked:
            _say("%s version %d: %s", of, f"{said} (signature {signature.name})")
        is_default = signature.name == DEFAULT_SIGNATURE
        answers = answers or (is_default and found.refused is None)
        if found.refused is not None:
            if is_default and must_answer and config.warm_up.must_answer:
                raise LoadError(_WAY_OUT_OF_FAILING.format(found.refused))
            said = f"every generated request failed ({found.refused}); record some in warm_up.jsonl"
            _say("%s version %d: row independence was not checked: %s", of, said)
    return answers


def _predict(servable: Servable, signature: Signature, inputs: Tensors) -> Tensors:
    stop_if_dropped()
    return servable.predict(inputs, signature.name)


def _sizes(signature: Signature, config: ModelConfig) -> tuple[int, ...]:
    """Return the batch sizes to check, ascending: the allowed ones, or the smallest if all are allowed."""
    if signature.rows:
        return (signature.rows,)
    policy = config.batching
    return policy.allowed_batch_rows or tuple(range(1, min(policy.max_batch_rows, _FEW_ROWS) + 1))


def _say(message: str, of: tuple[str, int], said: str) -> None:
    model, version = of
    _log.warning(message, *of, said, extra={"model": model, "version": version})
