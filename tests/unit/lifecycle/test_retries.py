"""The Manager: when a version that failed to load is tried again."""

from __future__ import annotations

import errno

import pytest

from headrace.base.errors import FailedPrecondition, NotLoadable
from headrace.lifecycle.version_states import State
from tests.unit.lifecycle.stage import Stage, wanted

TWO_TRIES = "[versions]\nload_attempts = 2"


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_after_the_last_attempt_a_version_stays_failed(stage: Stage) -> None:
    stage.loader.fail("load", "m", 1, times=9)
    stage.want(m=wanted(1, toml=TWO_TRIES))
    stage.run()
    stage.advance(100.0)
    assert stage.loader.notes == ["load m/1"] * 2
    assert stage.clock.timers == 0
    with pytest.raises(FailedPrecondition, match="m version 1 failed to load: it is broken"):
        stage.manager.get("m")
    with pytest.raises(FailedPrecondition, match="m version 1 failed to load: it is broken"):
        stage.manager.get("m", 1)


def test_after_a_shortage_of_any_length_a_version_arrives(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.loader.fail("load", "m", 1, times=9, error=OSError(errno.EMFILE, "too many open files"))
    stage.want(m=wanted(1, toml=TWO_TRIES + "\nload_retry_seconds = 20.0"))
    stage.run()
    stage.advance(1.0)
    for _ in range(7):
        stage.advance(20.0)
    assert "(attempt 2 of 2, the next in 20 s)" in caplog.text
    assert "(attempt 9, the next in 20 s)" in caplog.text
    stage.advance(20.0)
    assert (stage.ready(), stage.clock.timers) == ({1}, 0)


def test_a_permanent_failure_is_retried_only_when_files_or_settings_change(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.loader.fail("load", "m", 1, times=9, error=NotLoadable("it holds types that are not trusted"))
    stage.want(m=wanted(1))
    stage.run()
    stage.advance(100.0)
    assert (stage.loader.notes, stage.clock.timers) == (["load m/1"], 0)
    assert "failed to load (attempt 1, tried again when its files or settings change)" in caplog.text
    stage.want(m=wanted(1, fingerprint=2))
    stage.run()
    stage.advance(100.0)
    assert stage.loader.notes == ["load m/1"] * 2
    stage.want(m=wanted(1, fingerprint=2, toml='[runtime]\ntrusted = ["a.B"]'))
    stage.run()
    assert stage.loader.notes == ["load m/1"] * 3
    stage.manager.reload("m")
    stage.run()
    assert stage.loader.notes == ["load m/1"] * 4


def test_a_changed_directory_gives_a_failed_version_new_attempts_at_once(stage: Stage) -> None:
    stage.loader.fail("load", "m", 1, times=2)
    stage.want(m=wanted(1, toml=TWO_TRIES))
    stage.run()
    stage.advance(100.0)
    stage.want(m=wanted(1, toml=TWO_TRIES, fingerprint=2))
    stage.run()
    assert stage.manager.get("m").version == 1


def test_a_directory_that_changes_while_it_loads_is_loaded_again_when_that_failed(stage: Stage) -> None:
    stage.loader.fail("load", "m", 1)
    stage.want(m=wanted(1))
    stage.want(m=wanted(1, fingerprint=2))
    stage.run()
    assert stage.manager.get("m").version == 1


def test_changed_settings_give_a_failed_version_new_attempts_at_once(stage: Stage) -> None:
    stage.loader.fail("load", "m", 1)
    stage.want(m=wanted(1))
    stage.run()
    stage.want(m=wanted(1, toml='[runtime]\ntrusted = ["a.B"]'))
    stage.run()
    assert stage.manager.get("m").config.runtime.trusted == ("a.B",)


@pytest.mark.parametrize("models", [1, 400])
def test_a_load_that_finds_no_thread_is_a_failed_attempt(stage: Stage, models: int) -> None:
    stage.executor.no_thread = models
    stage.want(**{f"m{number}": wanted(1) for number in range(models)})
    stage.run()
    status = stage.manager.status("m0")[0]
    assert (status.state, status.attempts) == (State.FAILED, 1)
    assert status.error == "could not start a loader thread"
    stage.advance(1.0)
    assert all(stage.ready(f"m{number}") == {1} for number in range(models))
    assert stage.clock.timers == 0


def test_a_warm_up_that_finds_no_thread_is_a_failed_attempt(stage: Stage) -> None:
    stage.want(m=wanted(1))
    stage.executor.no_thread = 1
    stage.run()
    assert stage.states() == {1: State.FAILED}
    stage.advance(1.0)
    assert (stage.states(), stage.loader.open) == ({1: State.READY}, {"m/1"})


def test_the_end_comes_between_a_load_that_found_no_thread_and_its_failure(stage: Stage) -> None:
    stage.executor.no_thread = 1
    stage.want(m=wanted(1))
    closed: list[bool] = []
    stage.manager.close(lambda: closed.append(True))
    stage.run()
    assert (closed, stage.manager.hanging, stage.clock.timers) == ([True], 0, 0)
