"""What replies mean in a soak: a truth table."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.soak.judging import Answered, Episode, Failed, Moment, Question, Refused, Reply, judged
from benchmarks.soak.ledger import Outcome
from benchmarks.soak.subjects import SUBJECTS, Array

ROWS = np.arange(5000, 5003)
KILL = Episode("kill worker", "workers", began=100.0, harms=("lost",), ended=120.0)
RESTART = Episode("restart", "workers", began=100.0, harms=("refused", "unsent"), ended=120.0)
CHILD = Episode("kill isolated", "workers", began=100.0, harms=("refused",), model="echo", ended=120.0)
ALL = (KILL, RESTART, CHILD)
UNAVAILABLE, NOT_FOUND = Refused("UNAVAILABLE", "busy"), Refused("NOT_FOUND", "no such version")
INVALID, INTERNAL = Refused("INVALID_ARGUMENT", "no"), Refused("INTERNAL", "its process ended")
LOST, UNSENT, TORN = Failed("lost", "reset"), Failed("unsent", "refused"), Failed("torn", "from Core")
NOW, CHANGED = Moment(100.1), Moment(100.1, is_changed=True)
SILENT = Failed("silent", "60 s")


def judge(
    reply: Reply,
    *episodes: Episode,
    model: str = "counter",
    sent: float = 99.9,
    moment: Moment = NOW,
    version: int | None = None,
    flaw: str = "",
) -> Outcome:
    question = Question("workers", model, ROWS, sent, version, flaw)
    return judged(reply, question, {4, 5}, episodes, moment)[0]


@pytest.mark.parametrize("model", SUBJECTS)
def test_an_answer_is_right_for_its_rows_and_a_version_that_may_answer(model: str) -> None:
    def answer(rows: Array, version: int) -> Answered:
        return Answered(SUBJECTS[model].expected(rows, version))

    assert judge(answer(ROWS, 4), model=model) is Outcome.RIGHT
    assert judge(answer(ROWS, 5), model=model) is Outcome.RIGHT
    assert judge(answer(ROWS, 5), model=model, version=5) is Outcome.RIGHT
    assert judge(answer(ROWS, 4), model=model, version=5) is Outcome.WRONG
    assert judge(answer(ROWS, 3), model=model) is Outcome.WRONG, "a version that is gone"
    assert judge(answer(ROWS + 1, 4), *ALL, model=model) is Outcome.WRONG, "somebody else's rows"
    assert judge(answer(ROWS[::-1], 4), model=model) is Outcome.WRONG, "in another order"
    assert judge(answer(ROWS[:2], 4), model=model) is Outcome.WRONG, "too few"
    assert judge(answer(ROWS, 4), model=model, flaw="wrong shape") is Outcome.WRONG


def test_an_answer_of_two_versions_is_wrong() -> None:
    four, five = (SUBJECTS["counter"].expected(ROWS, version) for version in (4, 5))
    mixed = {name: np.concatenate([four[name][:1], five[name][1:]]) for name in four}
    assert judge(Answered(mixed)) is Outcome.WRONG


@pytest.mark.parametrize(
    ("reply", "episodes", "outcome"),
    [
        (LOST, (), Outcome.LOST_UNEXPLAINED),
        (LOST, (KILL,), Outcome.LOST),
        (LOST, (RESTART, CHILD), Outcome.LOST_UNEXPLAINED),
        (TORN, (), Outcome.LOST_UNEXPLAINED),
        (TORN, (KILL,), Outcome.LOST),
        (TORN, (RESTART,), Outcome.REFUSED),
        (UNSENT, (), Outcome.LOST_UNEXPLAINED),
        (UNSENT, (KILL,), Outcome.LOST_UNEXPLAINED),
        (UNSENT, (RESTART,), Outcome.UNSENT),
        (SILENT, ALL, Outcome.SILENT),
        (UNAVAILABLE, (), Outcome.REFUSED_UNEXPLAINED),
        (UNAVAILABLE, (KILL,), Outcome.REFUSED_UNEXPLAINED),
        (UNAVAILABLE, (RESTART,), Outcome.REFUSED),
        (UNAVAILABLE, (CHILD,), Outcome.REFUSED_UNEXPLAINED),
        (INVALID, (RESTART,), Outcome.REFUSED_UNEXPLAINED),
        (INTERNAL, (RESTART,), Outcome.REFUSED_UNEXPLAINED),
        (Refused("", "a stream's"), (RESTART,), Outcome.REFUSED),
        (Refused("", "a stream's"), (), Outcome.REFUSED_UNEXPLAINED),
    ],
)
def test_what_is_no_answer_needs_a_fault_that_explains_it(
    reply: Reply, episodes: tuple[Episode, ...], outcome: Outcome
) -> None:
    assert judge(reply, *episodes) is outcome


def test_only_the_isolated_model_is_excused_by_the_end_of_its_process() -> None:
    assert judge(UNAVAILABLE, CHILD, model="echo") is Outcome.REFUSED
    assert judge(INTERNAL, CHILD, model="echo") is Outcome.REFUSED
    assert judge(INTERNAL, CHILD, model="counter") is Outcome.REFUSED_UNEXPLAINED


@pytest.mark.parametrize(
    ("sent", "now", "is_explained"),
    [(90.0, 99.9, False), (90.0, 100.0, True), (100.9, 101.5, True), (101.1, 101.5, False)],
)
def test_a_kill_excuses_what_was_under_way_only(sent: float, now: float, is_explained: bool) -> None:
    outcome = judge(LOST, KILL, sent=sent, moment=Moment(now))
    assert outcome is (Outcome.LOST if is_explained else Outcome.LOST_UNEXPLAINED)


def test_a_kill_excuses_who_stood_still_when_it_came() -> None:
    assert judge(LOST, KILL, sent=102.9, moment=Moment(103.0, held_up_seconds=2.0)) is Outcome.LOST
    assert judge(LOST, KILL, sent=103.1, moment=Moment(103.2, 2.0)) is Outcome.LOST_UNEXPLAINED


def test_a_restart_excuses_refusals_until_the_server_is_back() -> None:
    assert judge(UNAVAILABLE, RESTART, sent=119.0, moment=Moment(119.5)) is Outcome.REFUSED
    assert judge(UNAVAILABLE, RESTART, sent=121.1, moment=Moment(121.5)) is Outcome.REFUSED_UNEXPLAINED


@pytest.mark.parametrize(
    ("flaw", "reply", "outcome"),
    [
        ("no such model", NOT_FOUND, Outcome.REFUSED_RIGHTLY),
        ("wrong shape", INVALID, Outcome.REFUSED_RIGHTLY),
        ("no such input", INVALID, Outcome.REFUSED_RIGHTLY),
        ("poison", INTERNAL, Outcome.REFUSED_RIGHTLY),
        ("poison", INVALID, Outcome.REFUSED_UNEXPLAINED),
        ("wrong shape", UNAVAILABLE, Outcome.REFUSED_UNEXPLAINED),
        ("wrong shape", Refused("", "a stream's"), Outcome.REFUSED_RIGHTLY),
    ],
)
def test_a_flawed_question_is_refused_for_its_flaw(flaw: str, reply: Reply, outcome: Outcome) -> None:
    assert judge(reply, flaw=flaw) is outcome


def test_a_version_may_be_missing_only_while_versions_change() -> None:
    assert judge(NOT_FOUND, version=4) is Outcome.REFUSED_UNEXPLAINED
    assert judge(NOT_FOUND, version=4, moment=CHANGED) is Outcome.REFUSED_RIGHTLY
    assert judge(NOT_FOUND, moment=CHANGED) is Outcome.REFUSED_UNEXPLAINED
    assert judge(NOT_FOUND, RESTART, version=4) is Outcome.REFUSED
