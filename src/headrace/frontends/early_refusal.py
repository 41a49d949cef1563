"""Refusal of requests before their inputs are decoded, as decoding may cost as much as answering."""

from __future__ import annotations

from headrace.frontends.calls import Call
from headrace.serving.loaded_version import LoadedVersion


def refuse_unread(loaded: LoadedVersion, call: Call) -> None:
    """Refuse a call that cannot be answered by its deadline, whatever its inputs are.

    Versions with a default or a prediction cache are exempt, as they may answer anyway.

    Args:
        loaded: The version that the call asks for.
        call: The call, with the deadline from its headers.

    Raises:
        Overloaded: The rows ahead of it take longer than its deadline allows.
    """
    if loaded.predictor is not loaded.batcher:
        return
    refusal = loaded.batcher.refusal_unread(call.deadline)
    if refusal is not None:
        if call.outcome is not None:
            call.outcome.handed_to(loaded.origin)
        raise refusal
