"""The Predictor contract, fulfilled by a version's Batcher and by Predictors that wrap one."""

from __future__ import annotations

from typing import Protocol

from headrace.batching.request import Request


class Predictor(Protocol):
    """Answers requests. Serving thread only.

    A version's Batcher is a Predictor. Others wrap one and submit requests of their own to it. Each keeps the
    Batcher's laws. A request is answered exactly once, with an Answer that has an Origin, or with an error.
    Requests that nobody waits for are not computed. A request's failure or cancellation affects no other
    request. An answer is delivered whole: Predictors do not stream.
    """

    def submit(self, request: Request) -> None:
        """Submit a request, or refuse it at once; ``respond`` is called either way."""
