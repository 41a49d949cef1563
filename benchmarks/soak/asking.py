"""Makes questions of what was drawn, and closes them in the ledger by what came."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.soak.faults import Faults
from benchmarks.soak.judging import Failed, Moment, Question, Reply, judged
from benchmarks.soak.ledger import DEFECTS, Ledger, Outcome, Place
from benchmarks.soak.plan import ISOLATED, Draw, drawn
from benchmarks.soak.publishing import Library
from benchmarks.soak.subjects import FACTOR, POISON, SUBJECTS, Array
from benchmarks.soak.transports import Asked, Transport

_DAMAGED_ANSWER = (ValueError, KeyError, TypeError, IndexError, AttributeError)
"""What reading an answer raises that is not what was promised."""
_NOBODY_LISTENS_SECONDS = 0.2
_MISSING_MODEL = "missing"


@dataclass(frozen=True)
class Prepared:
    """A question that is in the ledger, and on its way out.

    Attributes:
        number: Its number in the ledger.
        place: Who is asked, and how.
        asked: What goes out.
        question: What the reply is judged by.
    """

    number: int
    place: Place
    asked: Asked
    question: Question


class Asking:
    """Questions and what became of them.

    Attributes:
        ledger: All of them.
        defects: What must not be, with all there is to say of it.
        held_up_seconds: For how long callers once stood still.
    """

    def __init__(self, seed: int, library: Library, faults: Faults, began: float) -> None:
        """Begin with nothing asked.

        Args:
            seed: The soak's.
            library: What versions there are.
            faults: What is done to the servers.
            began: When the soak began, on the monotonic clock.
        """
        self.ledger = Ledger()
        self.defects: list[str] = []
        self.held_up_seconds = 0.0
        self._seed = seed
        self._library = library
        self._faults = faults
        self._began = began

    async def client(self, name: str, place: Place, transport: Transport, ended: asyncio.Event) -> None:
        """Ask one question after the other until it is ended.

        Args:
            name: The client's; what it asks depends on it.
            place: Who is asked, and how.
            transport: Its connection; others may share it.
            ended: Ends it.
        """
        number = 0
        while not ended.is_set():
            draw = drawn(self._seed, name, number)
            number += 1
            await asyncio.sleep(draw.pause_seconds)
            prepared = self.prepare(place, draw)
            try:
                reply = await transport.ask(prepared.asked)
            except _DAMAGED_ANSWER as error:
                self._close(prepared, Outcome.WRONG, f"the answer cannot be read: {error!r}")
                continue
            self.close(prepared, reply)
            if isinstance(reply, Failed):
                await asyncio.sleep(_NOBODY_LISTENS_SECONDS)

    def prepare(self, place: Place, draw: Draw) -> Prepared:
        """Make a question, and note that it is about to be sent."""
        server, _ = place
        model = ISOLATED if draw.flaw == "poison" else draw.model
        subject, standing = SUBJECTS[model], self._library.standings[server, model]
        number = self.ledger.open(place)
        rows = number * FACTOR + np.arange(draw.rows)
        if draw.flaw == "poison":
            rows[draw.form % draw.rows] = POISON
        served = sorted(standing.served)
        version = served[draw.form % len(served)] if draw.numbered and served else None
        question = Question(server, model, rows, time.monotonic(), version, draw.flaw, standing.changes)
        tensors = flawed(subject.inputs(rows), draw.flaw)
        name = _MISSING_MODEL if draw.flaw == "no such model" else model
        outputs = subject.expected(rows[:0], 0)
        return Prepared(
            number, place, Asked(str(number), name, version, tensors, outputs, draw.form), question
        )

    def close(self, prepared: Prepared, reply: Reply) -> None:
        """Judge what came."""
        question = prepared.question
        standing = self._library.standings[question.server, question.model]
        outcome, note = judged(
            reply,
            question,
            standing.allowed(question.sent),
            [one for one in self._faults.episodes if one.server == question.server],
            Moment(time.monotonic(), self.held_up_seconds, standing.changes != question.changes),
        )
        self._close(prepared, outcome, note)

    def cut(self, prepared: Prepared) -> None:
        """Its caller has gone away."""
        self._close(prepared, Outcome.CUT, "")

    def _close(self, prepared: Prepared, outcome: Outcome, note: str) -> None:
        now, question = time.monotonic(), prepared.question
        at, took = now - self._began, now - question.sent
        self.ledger.close(prepared.number, outcome, at, took, note)
        if outcome in DEFECTS:
            self.defects.append(
                f"{outcome.value}: request {prepared.number} to {' by '.join(prepared.place)}, sent at "
                f"{at - took:.2f} s, ended at {at:.2f} s: {question.model}, version {question.version}, "
                f"{len(question.rows)} rows, flaw {question.flaw!r}: {note}"
            )


def flawed(tensors: dict[str, Array], flaw: str) -> dict[str, Array]:
    """The inputs of a question, with its flaw in them.

    Args:
        tensors: Good inputs.
        flaw: What shall be wrong; models and rows that are wrong change nothing here.
    """
    if flaw == "no such input":
        first, *others = tensors
        return {"nothing": tensors[first]} | {name: tensors[name] for name in others}
    if flaw == "wrong shape":
        name = next(name for name, array in tensors.items() if array.dtype != object)
        return tensors | {name: np.stack([tensors[name]] * 3, axis=1)}
    return tensors
