"""Closes that hang, and moments without a thread: what waits for them goes on all the same."""

from __future__ import annotations

import pytest

from headrace.lifecycle.version_states import State
from tests.unit.lifecycle.stage import Loaded, Stage, wanted

LIMIT_SECONDS = 60.0
TOML = f'[versions]\ntransition = "resource"\nload_timeout_seconds = {LIMIT_SECONDS:g}'


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.want(m=wanted(1, toml=TOML))
    stage.run()
    return stage


def test_a_close_that_hangs_is_waited_for_no_longer_than_the_limit(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.want(m=wanted(2, toml=TOML))
    come_back = stage.executor.put_aside()
    stage.advance(LIMIT_SECONDS - 0.1)
    assert stage.states() == {1: State.DRAINING, 2: State.NEW}
    stage.advance(0.1)
    assert stage.states() == {2: State.READY}
    assert "m version 1: closing took longer than versions.load_timeout_seconds = 60" in caplog.text
    changes = list(stage.changes)
    come_back()
    stage.run()
    assert (stage.loader.open, stage.changes) == ({"m/2"}, changes)


def test_a_close_that_ends_in_time_leaves_no_timer(stage: Stage) -> None:
    stage.want(m=wanted(2, toml=TOML))
    stage.run()
    assert (stage.ready(), stage.clock.timers) == ({2}, 0)


def test_a_close_that_finds_no_thread_is_made_as_soon_as_there_is_one(stage: Stage) -> None:
    stage.executor.no_thread = 2
    stage.want(m=wanted(2, toml=TOML))
    stage.run()
    assert stage.states() == {1: State.DRAINING, 2: State.NEW}
    stage.advance(1.0)
    assert stage.loader.open == {"m/1"}
    stage.advance(1.0)
    assert (stage.states(), stage.loader.open) == ({2: State.READY}, {"m/2"})


def test_a_request_that_lets_go_when_there_is_no_thread_notices_nothing(stage: Stage) -> None:
    held: Loaded = stage.manager.get("m")
    held.acquire()
    stage.want(m=wanted(2, toml=TOML))
    stage.executor.no_thread = 1
    held.release()
    stage.advance(1.0)
    assert held.closed


def test_the_end_comes_when_there_was_no_thread_to_close_in(stage: Stage) -> None:
    closed: list[bool] = []
    stage.executor.no_thread = 1
    stage.manager.close(lambda: closed.append(True))
    stage.run()
    assert closed == []
    stage.advance(1.0)
    assert (closed, stage.loader.open) == ([True], set())
