"""Isolate failures of an encoder: a content that it fails on does not fail its batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headrace.base.errors import InvalidRequest, ModelError
from headrace.net.failures import Failure


def each_alone(
    runs: Iterable[Sequence[int]], encode: Callable[[Sequence[int]], object], probe: Callable[[], object]
) -> dict[int, Failure]:
    """Encode contents in batches; encode those of a batch that fails again, one by one.

    Args:
        runs: Batches, each with the indices of its contents.
        encode: Encodes the contents with some indices.
        probe: Encodes an input that has worked before; called if nothing else succeeds.

    Returns:
        The contents that fail alone, by index.

    Raises:
        ModelError: Everything fails, including the probe, so no content is at fault.
    """
    failures: dict[int, Failure] = {}
    worked, last = False, None
    for run in runs:
        try:
            encode(run)
            worked = True
        except (ModelError, InvalidRequest) as error:
            last = error
            failures |= _one_by_one(run, encode, error)
            worked = worked or any(place not in failures for place in run)
    if last is not None and not worked:
        try:
            probe()
        except (ModelError, InvalidRequest) as error:
            raise ModelError(f"the encoder fails on every input: {error.message}") from last
    return failures


def _one_by_one(
    run: Sequence[int], encode: Callable[[Sequence[int]], object], error: ModelError | InvalidRequest
) -> dict[int, Failure]:
    if len(run) == 1:
        return {run[0]: Failure(f"the encoder fails: {error.message}", is_final=True)}
    failures = {}
    for place in run:
        try:
            encode([place])
        except (ModelError, InvalidRequest) as alone:
            failures[place] = Failure(f"the encoder fails: {alone.message}", is_final=True)
    return failures
