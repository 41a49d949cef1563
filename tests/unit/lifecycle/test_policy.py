"""The version policies as truth tables: one sentence, one situation, one answer."""

from __future__ import annotations

import errno

import pytest

from headrace.base.errors import LoadError, NotLoadable, Unavailable
from headrace.config import VersionPolicy
from headrace.lifecycle.policy import (
    Action,
    VersionView,
    availability_preserving,
    choose,
    default_version,
    pause_before_retry,
    place_labels,
    resource_preserving,
    retry_seconds,
)
from headrace.lifecycle.version_states import Event, State

NOW = 100.0
STATES = {
    "new": State.NEW,
    "loading": State.LOADING,
    "warming": State.WARMING,
    "ready": State.READY,
    "draining": State.DRAINING,
    "failed": State.FAILED,
    "due": State.FAILED,
}


def views(*said: str) -> list[VersionView]:
    """Read ``"3 new wanted"``, ``"2 ready labelled"``; ``due`` is a failed version whose retry is due."""
    found = []
    for one in said:
        number, state, *traits = one.split()
        retry_at = NOW if state == "due" else None
        wanted, labelled = "wanted" in traits, "labelled" in traits
        found.append(VersionView(int(number), STATES[state], wanted, labelled, retry_at))
    return found


def action(said: str) -> Action | None:
    if not said:
        return None
    event, number = said.split()
    return Action(Event(event), int(number))


AVAILABILITY = {
    "nothing is known: nothing to do": ([], ""),
    "a wanted version is loaded": (["1 new wanted"], "load 1"),
    "the highest wanted version is loaded first": (
        ["1 new wanted", "3 new wanted", "2 new wanted"],
        "load 3",
    ),
    "while one loads, the next highest may": (["1 new wanted", "3 loading wanted"], "load 1"),
    "all wanted versions are ready: nothing to do": (["1 ready wanted", "2 ready wanted"], ""),
    "the old version stays while the new one is to be loaded": (["1 ready", "2 new wanted"], "load 2"),
    "the old version stays while the new one loads": (["1 ready", "2 loading wanted"], ""),
    "the old version stays while the new one warms up": (["1 ready", "2 warming wanted"], ""),
    "the old version stays while the new one has failed": (["1 ready", "2 failed wanted"], ""),
    "a failed version is tried again when it is due": (["1 ready", "2 due wanted"], "retry 2"),
    "a failed version that is not due lets a lower one load": (["1 new wanted", "2 failed wanted"], "load 1"),
    "the old version goes once the new one is ready": (["1 ready", "2 ready wanted"], "drain 1"),
    "nothing is wanted: everything goes, the lowest first": (["2 ready", "1 ready"], "drain 1"),
    "nothing is wanted: labels keep nothing": (["1 ready labelled"], "drain 1"),
    "of several unwanted ones the lowest goes at once": (["1 ready", "2 ready", "3 new wanted"], "drain 1"),
    "the last unwanted one stays": (["2 ready", "3 new wanted", "1 draining"], "load 3"),
    "going back: the higher version stays while the lower one loads": (["1 loading wanted", "2 ready"], ""),
    "going back: the higher version goes once the lower one is ready": (
        ["1 ready wanted", "2 ready"],
        "drain 2",
    ),
    "a ready lower wanted one does not replace the default early": (
        ["1 ready wanted", "2 ready", "3 loading wanted"],
        "",
    ),
    "what is not the default goes as soon as it is not wanted": (
        ["1 ready", "2 ready wanted", "3 loading wanted"],
        "drain 1",
    ),
    "a labelled version stays until its label has moved": (
        ["1 ready labelled", "2 new wanted", "3 ready wanted"],
        "load 2",
    ),
    "an unwanted version that loads or failed is left alone": (["1 loading", "2 failed"], ""),
    "a version that drains is not loaded again before it is gone": (["1 draining wanted"], ""),
}
RESOURCE = {
    "nothing is known: nothing to do": ([], ""),
    "a wanted version is loaded": (["1 new wanted"], "load 1"),
    "the old version goes before the new one loads": (["1 ready", "2 new wanted"], "drain 1"),
    "labels keep nothing": (["1 ready labelled", "2 new wanted"], "drain 1"),
    "the lowest unwanted one goes first": (["2 ready", "1 ready", "3 new wanted"], "drain 1"),
    "nothing loads while an unwanted one drains": (["1 draining", "2 new wanted"], ""),
    "nothing loads while a wanted one drains": (["1 draining wanted", "2 new wanted"], ""),
    "nothing loads while an unwanted one loads": (["1 loading", "2 new wanted"], ""),
    "nothing loads while an unwanted one warms up": (["1 warming", "2 new wanted"], ""),
    "an unwanted one that failed holds nothing": (["1 failed", "2 new wanted"], "load 2"),
    "a failed version is tried again when it is due": (["2 due wanted"], "retry 2"),
    "wanted versions load side by side": (["1 new wanted", "2 loading wanted"], "load 1"),
}


@pytest.mark.parametrize("sentence", AVAILABILITY)
def test_availability_preserving(sentence: str) -> None:
    situation, expected = AVAILABILITY[sentence]
    assert availability_preserving(views(*situation), NOW) == action(expected)


@pytest.mark.parametrize("sentence", RESOURCE)
def test_resource_preserving(sentence: str) -> None:
    situation, expected = RESOURCE[sentence]
    assert resource_preserving(views(*situation), NOW) == action(expected)


LATEST = VersionPolicy()
LATEST_2 = VersionPolicy(count=2)
ALL = VersionPolicy(policy="all")
SPECIFIC = VersionPolicy(policy="specific", numbers=(2, 4, 9))
LABELLED = VersionPolicy(labels={"stable": 2, "gone": 8})
CHOICES = {
    "latest takes the highest number, not the last name": (LATEST, {9, 10, 2}, None, {10}),
    "latest of nothing is nothing": (LATEST, set(), None, set()),
    "latest(2) takes two": (LATEST_2, {1, 5, 3}, None, {3, 5}),
    "latest(2) of one takes one": (LATEST_2, {5}, None, {5}),
    "all takes all": (ALL, {1, 5, 3}, None, {1, 3, 5}),
    "specific takes those that are there": (SPECIFIC, {1, 2, 3, 4}, None, {2, 4}),
    "a pin hides what is above it from latest": (LATEST, {1, 2, 3}, 2, {2}),
    "a pin hides what is above it from latest(2)": (LATEST_2, {1, 2, 3}, 2, {1, 2}),
    "a pin hides what is above it from all": (ALL, {1, 2, 3}, 2, {1, 2}),
    "a pin is served beside specific numbers below it": (SPECIFIC, {1, 2, 3, 4}, 3, {2, 3}),
    "a pin to what is not there still hides what is above it": (LATEST, {1, 5}, 3, {1}),
    "labelled versions are served beside the latest": (LABELLED, {1, 2, 3, 4}, None, {2, 4}),
    "a label does not lift a pin": (LABELLED, {1, 2, 3}, 1, {1}),
}


@pytest.mark.parametrize("sentence", CHOICES)
def test_choose(sentence: str) -> None:
    policy, numbers, pin, expected = CHOICES[sentence]
    assert choose(policy, numbers, pin) == expected


DEFAULTS = {
    "nothing is ready": ([], {1}, None),
    "the highest wanted one that is ready": ([1, 2], {1, 2}, 2),
    "the wanted one, though a higher one is ready": ([1, 2], {1}, 1),
    "the old one while the new one is not ready": ([1], {2}, 1),
    "the old one while only a lower wanted one is ready": ([1, 2], {1, 3}, 2),
    "the newest that is ready when nothing is wanted": ([1, 2], set(), 2),
}


@pytest.mark.parametrize("sentence", DEFAULTS)
def test_default_version(sentence: str) -> None:
    ready, wanted, expected = DEFAULTS[sentence]
    assert default_version(ready, wanted) == expected


def test_labels_point_at_ready_versions_only() -> None:
    assert place_labels({"stable": 2}, {}, {1}) == {}
    assert place_labels({"stable": 2}, {}, {1, 2}) == {"stable": 2}


def test_a_label_stays_where_it_was_until_its_target_is_ready() -> None:
    assert place_labels({"stable": 3}, {"stable": 2}, {1, 2}) == {"stable": 2}
    assert place_labels({"stable": 3}, {"stable": 2}, {2, 3}) == {"stable": 3}


def test_a_label_that_is_not_set_any_more_is_gone() -> None:
    assert place_labels({}, {"stable": 2}, {2}) == {}


def test_a_label_whose_old_version_is_gone_points_nowhere() -> None:
    assert place_labels({"stable": 3}, {"stable": 2}, {1}) == {}


def test_retries_wait_a_second_and_then_twice_as_long_each_time() -> None:
    assert [retry_seconds(attempts, 60.0) for attempts in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert retry_seconds(1, 0.25) == 0.25
    assert retry_seconds(100_000, 60.0) == 60.0


@pytest.mark.parametrize(
    ("error", "attempts", "pause"),
    [
        (LoadError("the disk"), 1, 1.0),
        (ValueError("the model's own"), 2, 2.0),
        (LoadError("the disk"), 3, None),
        (NotLoadable("an unknown option"), 1, None),
    ],
)
def test_a_failed_load_is_tried_again_while_that_can_help(
    error: Exception, attempts: int, pause: float | None
) -> None:
    assert pause_before_retry(error, attempts, VersionPolicy(load_attempts=3)) == pause


def caused(by: BaseException) -> LoadError:
    """What a Runtime raises, two layers above the cause."""
    middle, top = ValueError("a library's own"), LoadError("table.npy cannot be loaded")
    middle.__context__, top.__cause__ = by, middle
    return top


@pytest.mark.parametrize(
    ("cause", "goes_on"),
    [
        (OSError(errno.EMFILE, "too many open files"), True),
        (OSError(errno.ENFILE, "too many open files in the system"), True),
        (OSError(errno.ENOMEM, "no memory"), True),
        (OSError(errno.EIO, "a disk"), True),
        (OSError(errno.EAGAIN, "no thread can be started"), True),
        (RuntimeError("can't start new thread"), True),
        (MemoryError(), True),
        (Unavailable("the store has not answered since the start"), True),
        (OSError(errno.ENOENT, "no such file"), False),
        (OSError(errno.EACCES, "forbidden"), False),
        (RuntimeError("the model's own"), False),
    ],
)
def test_shortages_of_the_system_are_retried_without_limit(cause: Exception, goes_on: bool) -> None:
    policy = VersionPolicy(load_attempts=3, load_retry_seconds=20.0)
    for error in (cause, caused(cause)):
        pauses = [pause_before_retry(error, attempts, policy) for attempts in (1, 2, 3, 1000)]
        assert pauses == [1.0, 2.0, *([20.0] * 2 if goes_on else [None] * 2)]


def test_a_shortage_is_never_tried_again_without_a_pause_for_good() -> None:
    policy = VersionPolicy(load_attempts=1, load_retry_seconds=0.0)
    assert pause_before_retry(MemoryError(), 9, policy) == 1.0
