"""Loads that hang: others go on beside them, they fail in the end, and what they bring too late is closed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.base.errors import FailedPrecondition
from headrace.lifecycle.load_attempts import MOST_HANGING, SLOW_SECONDS, TOO_MANY_HANG
from headrace.lifecycle.version_states import State
from tests.unit.lifecycle.stage import Stage, wanted

LIMIT_SECONDS = 60.0
TOML = f"[versions]\nload_timeout_seconds = {LIMIT_SECONDS:g}"


@pytest.fixture
def stage() -> Stage:
    return Stage()


def hang(stage: Stage) -> Callable[[], None]:
    """Let what a loader thread is to do next hang until what this returns is called."""
    go_on = stage.executor.put_aside()

    def come_back() -> None:
        go_on()
        stage.run()

    return come_back


def hung_version(stage: Stage, version: int) -> Callable[[], None]:
    """Want a version whose load hangs until it has failed for it."""
    stage.want(m=wanted(version, toml=TOML))
    come_back = hang(stage)
    stage.advance(LIMIT_SECONDS)
    assert stage.states()[version] is State.FAILED
    return come_back


def test_other_models_load_beside_one_that_takes_long(stage: Stage) -> None:
    stage.want(bad=wanted(1, toml=TOML), good=wanted(1))
    hang(stage)
    stage.advance(SLOW_SECONDS - 0.1)
    assert stage.states("good") == {1: State.NEW}
    stage.advance(0.1)
    assert stage.states("good") == {1: State.READY}
    assert stage.states("bad") == {1: State.LOADING}


def test_a_load_that_takes_too_long_fails_and_the_error_names_the_limit(stage: Stage) -> None:
    stage.want(m=wanted(1, toml=TOML))
    hang(stage)
    stage.advance(LIMIT_SECONDS - 0.1)
    assert stage.states() == {1: State.LOADING}
    stage.advance(0.1)
    assert stage.states() == {1: State.FAILED}
    with pytest.raises(
        FailedPrecondition, match=r"loading took longer than .*load_timeout_seconds = 60, and was abandoned"
    ):
        stage.manager.get("m")


def test_a_load_that_ends_in_time_leaves_no_timer(stage: Stage) -> None:
    stage.want(m=wanted(1, toml=TOML))
    come_back = hang(stage)
    stage.advance(LIMIT_SECONDS - 0.1)
    come_back()
    assert stage.states() == {1: State.READY}
    assert stage.clock.timers == 0


def test_a_hung_version_is_tried_again_when_its_thread_has_come_back_and_not_before(stage: Stage) -> None:
    come_back = hung_version(stage, 1)
    stage.advance(1000.0)
    assert stage.manager.status("m")[0].attempts == 1
    assert stage.manager.hanging == 1
    come_back()
    assert stage.manager.hanging == 0
    assert stage.loader.notes == ["load m/1", "close m/1"]
    stage.advance(1.0)
    assert stage.states() == {1: State.READY}
    assert stage.loader.open == {"m/1"}


def test_a_warm_up_that_hangs_keeps_what_it_uses_until_it_comes_back(stage: Stage) -> None:
    stage.want(m=wanted(1, toml=TOML))
    stage.step()
    come_back = hang(stage)
    stage.advance(LIMIT_SECONDS)
    assert "warming up took longer than" in stage.manager.status("m")[0].error
    assert stage.loader.open == {"m/1"}
    come_back()
    assert stage.loader.notes == ["load m/1", "warm_up m/1", "close m/1"]


def test_a_load_that_fails_too_late_changes_nothing(stage: Stage) -> None:
    come_back = hung_version(stage, 1)
    stage.loader.fail("load", "m", 1)
    come_back()
    assert stage.loader.open == set()
    assert "took longer" in stage.manager.status("m")[0].error


def test_a_newer_version_serves_while_the_load_of_an_older_one_hangs(stage: Stage) -> None:
    come_back = hung_version(stage, 1)
    stage.want(m=wanted(2, toml=TOML))
    stage.run()
    assert stage.manager.get("m").version == 2
    come_back()
    assert stage.loader.open == {"m/2"}
    assert stage.states() == {2: State.READY}


def test_the_number_of_hanging_loads_of_a_model_is_bounded_and_reported(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    hung = [hung_version(stage, number) for number in range(1, MOST_HANGING + 1)]
    assert stage.manager.warnings("m")[-1] == TOO_MANY_HANG
    assert TOO_MANY_HANG in caplog.text
    stage.want(m=wanted(9, toml=TOML), other=wanted(1))
    stage.run()
    assert (stage.states(), stage.states("other")) == ({9: State.NEW}, {1: State.READY})
    hung[0]()
    assert stage.states() == {9: State.READY}
    assert stage.manager.warnings("m") == []


def test_a_model_that_is_left_out_and_comes_back_is_bounded_all_the_same(stage: Stage) -> None:
    for number in range(1, MOST_HANGING + 1):
        hung_version(stage, number)
        stage.want()
        stage.run()
        assert stage.manager.models() == []
    stage.want(m=wanted(9, toml=TOML))
    stage.run()
    assert stage.states() == {9: State.NEW}


def test_a_load_that_comes_back_when_its_model_was_forgotten_is_closed(stage: Stage) -> None:
    come_back = hung_version(stage, 1)
    stage.want()
    stage.run()
    come_back()
    assert stage.loader.open == set()
    assert stage.manager.models() == []


def test_the_end_does_not_wait_for_loads(stage: Stage) -> None:
    stage.want(m=wanted(1, toml=TOML))
    come_back = hang(stage)
    closed: list[bool] = []
    stage.manager.close(lambda: closed.append(True))
    assert (closed, stage.manager.hanging, stage.clock.timers) == ([True], 1, 0)
    come_back()
    assert (stage.loader.open, stage.manager.hanging) == (set(), 0)


def test_a_version_that_loads_after_the_event_loop_has_ended_is_closed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.want(m=wanted(1, toml=TOML))
    come_back = hang(stage)
    stage.manager.close()

    def refuse(*_: object) -> None:
        raise RuntimeError("Event loop is closed")

    monkeypatch.setattr(stage.clock, "call_soon_threadsafe", refuse)
    come_back()
    assert stage.loader.notes == ["load m/1", "close m/1"]
