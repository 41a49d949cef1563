"""Servables that answer in parts, each as soon as it is computed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, closing
from typing import Protocol, TypeGuard

from headrace.base.event_loop import run_in
from headrace.base.tensors import Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, Servable, Signature

Parts = Generator[Tensors, None, None] | AsyncGenerator[Tensors, None]
"""The parts of one answer, each with every output of the signature; rows may differ from part to part."""


class StreamingServable(Servable, Protocol):
    """A Servable whose answers are streams of parts.

    Its ``predict`` raises FailedPrecondition.

    Attributes:
        streams: True.
        loop: The event loop in which ``parts`` must run; None for a generator without coroutines.
    """

    streams: bool
    loop: asyncio.AbstractEventLoop | None

    def parts(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Parts:
        """Return a generator of the answer's parts; an async generator if there is a ``loop``.

        Args:
            inputs: Every input of the signature, checked, as for ``predict``.
            signature: Name of the signature.
        """


def is_streaming(servable: Servable) -> TypeGuard[StreamingServable]:
    """Return whether a Servable answers in parts."""
    return getattr(servable, "streams", False)


class FirstPart:
    """A StreamingServable as a Servable that answers with the first part and ends the stream, for warm-up."""

    def __init__(self, servable: StreamingServable) -> None:
        """Wrap a Servable, which the caller closes."""
        self.signatures: Mapping[str, Signature] = servable.signatures
        self.platform = servable.platform
        self._servable = servable

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Return the first part; nothing for an answer without parts."""
        parts = self._servable.parts(inputs, signature)
        if isinstance(parts, Generator):
            with closing(parts):
                return next(parts, {})
        loop = self._servable.loop
        if loop is None:
            raise TypeError("an async generator needs a loop")
        return run_in(loop, _first(parts))

    def close(self) -> None:
        """Do nothing: the wrapped Servable belongs to the caller."""


async def _first(parts: AsyncGenerator[Tensors, None]) -> Tensors:
    async with aclosing(parts):
        return await anext(parts, {})
