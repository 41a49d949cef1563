"""The embedders of each space as a filler's threads see them, and how a thread calls them."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.archive.embedders.embedder import Embedded, Embedder
from headrace.archive.filling.pooled_embedder import Call, DependencyUnavailable, PooledEmbedder, Where
from headrace.archive.filling.table_contents import TableTexts
from headrace.net.content_failures import Failure

_LOOK_SECONDS = 0.05


class Stopped(Exception):
    """The filler must end before its batch is done."""


class Stop:
    """Stop signal for the threads of a filler.

    Attributes:
        event: Set when the threads must end.
        until: Deadline for embedders' answers after that, on the monotonic clock.
    """

    def __init__(self) -> None:
        """Start unset."""
        self.event = threading.Event()
        self.until = 0.0

    def is_over(self) -> bool:
        """Return whether the stop signal is set and its deadline has passed."""
        return self.event.is_set() and time.monotonic() >= self.until


@dataclass(frozen=True)
class VersionEmbedder:
    """An embedder with the space version that it fills.

    Attributes:
        pooled: The pooled embedder that it belongs to.
        embedder: The opened embedder that makes this version.
        version: Number of the version.
    """

    pooled: PooledEmbedder
    embedder: Embedder
    version: int


@dataclass(frozen=True)
class FillSources:
    """The embedders and tables that fill an archive, shared by all threads of a filler.

    Attributes:
        encoders: By space, the embedders of its versions, the newest last; replaced when another is opened.
        awaited: By space, the embedder that fills it and is not open yet.
        texts: By space, the table of its contents, if they come from one.
    """

    encoders: dict[str, Sequence[VersionEmbedder]] = field(default_factory=dict)
    awaited: dict[str, PooledEmbedder] = field(default_factory=dict)
    texts: Mapping[str, TableTexts] = field(default_factory=dict)

    @property
    def pooled(self) -> set[PooledEmbedder]:
        """All pooled embedders, open or not."""
        those = {encoder.pooled for encoders in self.encoders.copy().values() for encoder in encoders}
        return those | set(self.awaited.copy().values())


class EncoderCalls:
    """Calls embedders for one thread, one call at a time each; collects the results of long calls later."""

    def __init__(self, filled: FillSources, stop: Stop) -> None:
        """Start with no calls.

        Args:
            filled: The embedders.
            stop: Stop signal.
        """
        self._filled, self._stop = filled, stop
        self._calls: dict[Where, Call] = {}  # calls that took too long, with results to collect
        self._awaited: set[Call] = set()  # calls among them whose messages are held until they end

    def stop_awaiting(self, calls: Collection[Call | None]) -> None:
        """Record that no message is held for these calls any more: they are being processed."""
        self._awaited.difference_update(calls)

    def stop_awaiting_all(self) -> None:
        """Record that no message is held for any call."""
        self._awaited.clear()

    def ask(
        self, encoder: VersionEmbedder, where: Where, contents: Sequence[bytes], patience: float
    ) -> Embedded:
        """Return the vectors of contents, using the result of an earlier call that took too long.

        Args:
            encoder: The embedder of the space version.
            where: Space version of the contents.
            contents: As for ``Embedder.embed``.
            patience: Longest wait in seconds, if there are other embedders to call.

        Raises:
            DependencyUnavailable: The embedder cannot be called or has not answered in time; or held messages
                still need its earlier answer.
            Stopped: The filler must end.
            Exception: Any other error of the embedder.
        """
        pooled = encoder.pooled
        before = self._calls.get(where)
        if before is None:
            if any(call.pooled is pooled and not call.ended.is_set() for call in self._calls.values()):
                raise DependencyUnavailable(pooled)
            return self._answer(pooled.begin(encoder.embedder, where, contents), patience)
        known = {content: place for place, content in enumerate(before.contents)}
        rest = [content for content in contents if content not in known]
        is_others = len(rest) == len(contents) and before in self._awaited
        if is_others or not before.ended.is_set():
            raise DependencyUnavailable(pooled, None if rest else before)
        del self._calls[where]
        if len(rest) == len(contents):  # the earlier answer is no longer wanted
            return self.ask(encoder, where, contents, patience)
        made = [before.result()]
        places = [(0, known[content]) for content in contents if content in known]
        if rest:
            made.append(self.ask(encoder, where, rest, patience))
            others = iter(range(len(rest)))
            places = [(0, known[content]) if content in known else (1, next(others)) for content in contents]
        return _joined(made, places)

    def _answer(self, call: Call, patience: float) -> Embedded:
        """Return a call's answer if it comes in time; wait without limit if there is no other embedder."""
        is_only = len(self._filled.pooled) == 1
        until = call.began + patience
        while not call.ended.wait(_LOOK_SECONDS):
            if self._stop.is_over():
                raise Stopped
            if not is_only and not self._stop.event.is_set() and time.monotonic() >= until:
                self._calls[call.where] = call
                self._awaited.add(call)
                raise DependencyUnavailable(call.pooled, call)
        return call.result()


def _joined(made: Sequence[Embedded], places: Sequence[tuple[int, int]]) -> Embedded:
    """Return vectors selected from several results, by the index of the result and of the vector in it."""
    vectors = np.array([made[which].vectors[at] for which, at in places], np.float32)
    failures: dict[int, Failure] = {}
    for place, (which, at) in enumerate(places):
        if at in made[which].failures:
            failures[place] = made[which].failures[at]
    return Embedded(vectors, failures)
