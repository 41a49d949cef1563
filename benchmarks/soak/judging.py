"""What a reply means, beside what was asked and what was being done to the server: pure decisions."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.soak.ledger import Outcome
from benchmarks.soak.subjects import SUBJECTS, Array, Tensors

Harm = Literal["lost", "refused", "unsent"]
"""What a fault does to a request: its connection ends, it is refused with a reason, nobody listens."""

AFTERWARDS_SECONDS = 1.0
"""So long after a fault a caller may still find out by what it had then, such as a connection."""


@dataclass
class Episode:
    """A time in which something is done to a server.

    Attributes:
        kind: What.
        server: To which.
        began: When, on the monotonic clock.
        harms: What it may do to requests.
        model: The only model that it concerns; empty for all.
        ended: When the server was as before; infinite until it is.
    """

    kind: str
    server: str
    began: float
    harms: Collection[Harm]
    model: str = ""
    ended: float = math.inf

    def explains(self, harm: Harm, question: Question, moment: Moment) -> bool:
        """Whether a request that was under way until then may have been harmed so by it."""
        lasts = min(self.ended, self.began) if harm == "lost" else self.ended
        return (
            harm in self.harms
            and self.server == question.server
            and self.model in ("", question.model)
            and question.sent <= lasts + AFTERWARDS_SECONDS + moment.held_up_seconds
            and moment.now >= self.began
        )


@dataclass(frozen=True)
class Moment:
    """When a reply came.

    Attributes:
        now: On the monotonic clock.
        held_up_seconds: For how long callers may have stood still: what they saw then they act on later.
        is_changed: Whether the model's versions have begun to change since the request was sent.
    """

    now: float
    held_up_seconds: float = 0.0
    is_changed: bool = False


@dataclass(frozen=True)
class Question:
    """What was asked.

    Attributes:
        server: Which server.
        model: Which model.
        rows: The numbers of the rows.
        sent: When, on the monotonic clock.
        version: The version it names; None for the default one.
        flaw: What is wrong with it; empty for a good one.
        changes: How often the model's versions had begun to change by then.
    """

    server: str
    model: str
    rows: Array
    sent: float
    version: int | None = None
    flaw: str = ""
    changes: int = 0


@dataclass(frozen=True)
class Answered:
    """The outputs came."""

    outputs: Tensors = field(repr=False)


@dataclass(frozen=True)
class Refused:
    """The server refused it, with a gRPC code's name and a text; messages of a stream have no code."""

    code: str
    text: str

    def is_one_of(self, codes: Collection[str]) -> bool:
        """Whether it may be one of these codes."""
        return not self.code or self.code in codes


@dataclass(frozen=True)
class Failed:
    """No answer: the connection ended, nobody listened, or nothing came for too long.

    Torn is a stream of which the client cannot tell whether its process or the server itself has ended it.
    """

    how: Literal["lost", "torn", "unsent", "silent"]
    text: str


Reply = Answered | Refused | Failed

REFUSALS = {
    "no such model": ("NOT_FOUND",),
    "wrong shape": ("INVALID_ARGUMENT",),
    "no such input": ("INVALID_ARGUMENT",),
    "poison": ("INTERNAL",),
}
"""What a question with a flaw is refused with."""
BY_FAULTS = ("UNAVAILABLE", "DEADLINE_EXCEEDED")
BY_A_DEATH = (*BY_FAULTS, "INTERNAL")
"""A request that was alone with a process that ended is an internal error: ``ModelDied``."""


def judged(
    reply: Reply,
    question: Question,
    versions: Collection[int],
    episodes: Iterable[Episode],
    moment: Moment,
) -> tuple[Outcome, str]:
    """Say how a request ended.

    Args:
        reply: What came.
        question: What was asked.
        versions: Those that may answer it.
        episodes: What was done to the servers.
        moment: When the reply came.

    Returns:
        The outcome, and what there is to say of it.
    """
    if isinstance(reply, Answered):
        return _answered(reply, question, versions)
    explaining = [
        one for one in episodes if any(one.explains(harm, question, moment) for harm in _harms(reply))
    ]
    if isinstance(reply, Failed):
        return _failed(reply, explaining)
    return _refused(reply, question, explaining, moment)


def _harms(reply: Refused | Failed) -> tuple[Harm, ...]:
    """What must have been done to a request that fared so: one of these."""
    if isinstance(reply, Refused):
        return ("refused",)
    return ("unsent",) if reply.how == "unsent" else ("lost", "refused") if reply.how == "torn" else ("lost",)


def _answered(reply: Answered, question: Question, versions: Collection[int]) -> tuple[Outcome, str]:
    if question.flaw:
        return Outcome.WRONG, f"answered, though it has {question.flaw}"
    allowed = versions if question.version is None else (question.version,)
    subject = SUBJECTS[question.model]
    if any(subject.is_answer(reply.outputs, question.rows, version) for version in allowed):
        return Outcome.RIGHT, ""
    others = range(1, max(versions, default=0) + 100)
    stale = [one for one in others if subject.is_answer(reply.outputs, question.rows, one)]
    wrong = f"version {stale[0]} answered" if stale else f"the rows are others: {dict(reply.outputs)!r:.300}"
    return Outcome.WRONG, f"{wrong}; allowed: {sorted(allowed)}"


def _failed(reply: Failed, explaining: list[Episode]) -> tuple[Outcome, str]:
    if reply.how == "silent":
        return Outcome.SILENT, reply.text
    if not explaining:
        return Outcome.LOST_UNEXPLAINED, reply.text
    if reply.how == "unsent":
        return Outcome.UNSENT, explaining[-1].kind
    is_lost = any("lost" in one.harms for one in explaining)
    return (Outcome.LOST if is_lost else Outcome.REFUSED), explaining[-1].kind


def _refused(
    reply: Refused, question: Question, explaining: list[Episode], moment: Moment
) -> tuple[Outcome, str]:
    said = f"{reply.code}: {reply.text}"
    if question.flaw and reply.is_one_of(REFUSALS[question.flaw]):
        return Outcome.REFUSED_RIGHTLY, question.flaw
    if question.version is not None and reply.is_one_of(["NOT_FOUND"]) and moment.is_changed:
        return Outcome.REFUSED_RIGHTLY, "a version that is not served"
    allowed = BY_A_DEATH if any(one.model for one in explaining) else BY_FAULTS
    if explaining and reply.is_one_of(allowed):
        return Outcome.REFUSED, explaining[-1].kind
    if explaining and reply.is_one_of(["NOT_FOUND"]) and question.version is not None:
        return Outcome.REFUSED, f"{explaining[-1].kind}: the version was not loaded again yet"
    return Outcome.REFUSED_UNEXPLAINED, said
