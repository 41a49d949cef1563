"""What fills each space, as a filler's threads see it, and how one of them asks it."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.archive.embedders.embedder import Embedded, Embedder, Failure
from headrace.archive.suppliers import Away, Call, Supplier, Where
from headrace.archive.table_contents import TableTexts

_LOOK_SECONDS = 0.05


class Stopped(Exception):
    """The filler is to end before its batch is done."""


class Stop:
    """When the threads of a filler are to end.

    Attributes:
        event: Set when they are.
        until: For how long, on the monotonic clock, an embedder may be waited for then.
    """

    def __init__(self) -> None:
        """Go on for now."""
        self.event = threading.Event()
        self.until = 0.0

    def is_over(self) -> bool:
        """Whether nothing is waited for any more."""
        return self.event.is_set() and time.monotonic() >= self.until


@dataclass(frozen=True)
class Encoder:
    """An embedder with the space version that it fills.

    Attributes:
        supplier: Who is asked.
        embedder: The embedder of it that makes this version.
        version: The version.
    """

    supplier: Supplier
    embedder: Embedder
    version: int


@dataclass(frozen=True)
class Filled:
    """What fills an archive, as all threads of a filler see it.

    Attributes:
        encoders: By space, what fills it, the newest last; replaced when another is opened.
        awaited: By space, what is to fill it, and is not open yet.
        texts: By space, the table that its contents come from, if they do.
    """

    encoders: dict[str, Sequence[Encoder]] = field(default_factory=dict)
    awaited: dict[str, Supplier] = field(default_factory=dict)
    texts: Mapping[str, TableTexts] = field(default_factory=dict)

    @property
    def suppliers(self) -> set[Supplier]:
        """All of them."""
        those = {encoder.supplier for encoders in self.encoders.copy().values() for encoder in encoders}
        return those | set(self.awaited.copy().values())


class Asking:
    """How a thread asks embedders: each one call at a time, which is not waited for if it takes long."""

    def __init__(self, filled: Filled, stop: Stop) -> None:
        """Have asked nothing.

        Args:
            filled: Who may be asked.
            stop: When to end.
        """
        self._filled, self._stop = filled, stop
        self._calls: dict[Where, Call] = {}  # those that were not waited for
        self._awaited: set[Call] = set()  # those of them whose messages are held until they are over

    def come(self, calls: Collection[Call | None]) -> None:
        """Messages come that were held until these calls were over."""
        self._awaited.difference_update(calls)

    def nobody_waits(self) -> None:
        """No message is held for a call any more."""
        self._awaited.clear()

    def ask(self, encoder: Encoder, where: Where, contents: Sequence[bytes], patience: float) -> Embedded:
        """What an embedder makes of contents, or made of them when it was not waited for.

        Args:
            encoder: Which.
            where: The space version that they are for.
            contents: As ``Embedder.embed`` has it.
            patience: For how many seconds to wait where others are to be asked, too.

        Raises:
            Away: It cannot be asked, or has not answered by then; or messages that are held come first, which
                want what it has made.
            Stopped: The filler is to end.
            Exception: What else the embedder has raised.
        """
        supplier = encoder.supplier
        before = self._calls.get(where)
        if before is None:
            if any(call.supplier is supplier and not call.ended.is_set() for call in self._calls.values()):
                raise Away(supplier)
            return self._answer(supplier.begin(encoder.embedder, where, contents), patience)
        known = {content: place for place, content in enumerate(before.contents)}
        rest = [content for content in contents if content not in known]
        is_others = len(rest) == len(contents) and before in self._awaited
        if is_others or not before.ended.is_set():
            raise Away(supplier, None if rest else before)
        del self._calls[where]
        if len(rest) == len(contents):  # nobody wants any more what was asked
            return self.ask(encoder, where, contents, patience)
        made = [before.result()]
        places = [(0, known[content]) for content in contents if content in known]
        if rest:
            made.append(self.ask(encoder, where, rest, patience))
            others = iter(range(len(rest)))
            places = [(0, known[content]) if content in known else (1, next(others)) for content in contents]
        return _joined(made, places)

    def _answer(self, call: Call, patience: float) -> Embedded:
        """The answer of a call, if it comes soon enough; where nobody else is to be asked, any is."""
        is_only = len(self._filled.suppliers) == 1
        until = call.began + patience
        while not call.ended.wait(_LOOK_SECONDS):
            if self._stop.is_over():
                raise Stopped
            if not is_only and not self._stop.event.is_set() and time.monotonic() >= until:
                self._calls[call.where] = call
                self._awaited.add(call)
                raise Away(call.supplier, call)
        return call.result()


def _joined(made: Sequence[Embedded], places: Sequence[tuple[int, int]]) -> Embedded:
    """Vectors picked out of what was made: by which of them, and where in it."""
    vectors = np.array([made[which].vectors[at] for which, at in places], np.float32)
    failures: dict[int, Failure] = {}
    for place, (which, at) in enumerate(places):
        if at in made[which].failures:
            failures[place] = made[which].failures[at]
    return Embedded(vectors, failures)
