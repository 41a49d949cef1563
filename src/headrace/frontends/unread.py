"""Refusing a request before its inputs are decoded, where decoding them costs about as much as answering."""

from __future__ import annotations

from headrace.frontends.calls import Call
from headrace.loaded import LoadedVersion


def refuse_unread(loaded: LoadedVersion, call: Call) -> None:
    """Refuse a call with a deadline whose answer would come too late, whatever its inputs are.

    Those who have a default, or a cache, have answers even so: they are asked.

    Args:
        loaded: The version that it means.
        call: Its deadline is that of its headers.

    Raises:
        Overloaded: What is ahead of it takes longer than its deadline leaves.
    """
    if loaded.predictor is not loaded.batcher:
        return
    refusal = loaded.batcher.refusal_unread(call.deadline)
    if refusal is not None:
        if call.outcome is not None:
            call.outcome.handed_to(loaded.origin)
        raise refusal
