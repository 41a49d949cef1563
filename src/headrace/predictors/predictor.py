"""The contract of whatever answers requests: a version's Batcher, or what stands around one."""

from __future__ import annotations

from typing import Protocol

from headrace.batching.request import Request


class Predictor(Protocol):
    """Answers requests. Serving thread only.

    A version's Batcher is one. Others stand around one, and submit requests of their own to it. Each keeps
    the Batcher's laws: a request is answered exactly once, with an Answer that knows who gave it or with the
    error why there is none; what nobody waits for is not computed; a request's failure or departure touches
    no other. An answer comes whole: streams are not for Predictors.
    """

    def submit(self, request: Request) -> None:
        """Take a request, or refuse it at once: its ``respond`` is called either way."""
