"""The Manager: swaps, failures, labels, draining, fairness; with virtual time and loads run by hand."""

from __future__ import annotations

import logging

import pytest

from headrace.base.errors import FailedPrecondition, InvalidRequest, LoadError, NotFound, Unavailable
from headrace.lifecycle.version_states import State
from tests.unit.lifecycle.stage import Stage, wanted

TWO_TRIES = "[versions]\nload_attempts = 2"


@pytest.fixture
def stage() -> Stage:
    return Stage()


def serving(stage: Stage, *versions: int, toml: str = "") -> None:
    stage.want(m=wanted(*versions, toml=toml))
    stage.run()
    assert stage.ready() == set(versions)
    stage.loader.notes.clear()
    stage.changes.clear()


# ---- A swap ----


def test_a_version_is_loaded_warmed_up_and_attached_before_it_answers(stage: Stage) -> None:
    stage.want(m=wanted(1))
    seen = []
    for _ in range(2):
        with pytest.raises(Unavailable, match="m is loading") as caught:
            stage.manager.get("m")
        assert caught.value.retry_after_seconds > 0
        seen.append(stage.states()[1])
        stage.step()
    assert seen == [State.LOADING, State.WARMING]
    assert stage.loader.notes == ["load m/1", "warm_up m/1", "attach m/1"]
    assert stage.manager.get("m").version == 1


def test_a_swap_moves_the_default_before_the_old_version_drains(stage: Stage) -> None:
    serving(stage, 1)
    stage.want(m=wanted(2))
    while len(stage.executor):
        assert stage.manager.get("m").version == (1 if "attach m/2" not in stage.loader.notes else 2)
        stage.step()
    assert stage.loader.notes == ["load m/2", "warm_up m/2", "attach m/2", "close m/1"]
    assert stage.changes == ["m/2 loading", "m/2 warming", "m/2 ready", "m/1 draining", "m/1 unloaded"]
    assert stage.states() == {2: State.READY}


def test_the_old_version_is_closed_when_the_last_request_lets_go(stage: Stage) -> None:
    serving(stage, 1)
    old = stage.manager.get("m")
    old.acquire()
    old.acquire()
    stage.want(m=wanted(2))
    stage.run()
    old.release()
    stage.run()
    assert stage.manager.get("m").version == 2
    assert [(status.version, status.state, status.outstanding) for status in stage.manager.status("m")] == [
        (2, State.READY, 0),
        (1, State.DRAINING, 1),
    ]
    assert not old.closed
    old.release()
    stage.run()
    assert old.closed
    assert stage.states() == {2: State.READY}


def test_a_draining_version_is_not_given_to_new_requests(stage: Stage) -> None:
    serving(stage, 1)
    stage.manager.get("m").acquire()
    stage.want(m=wanted(2))
    stage.run()
    with pytest.raises(NotFound, match=r"^Servable not found for request: Specific\(m, 1\); m serves 2$"):
        stage.manager.get("m", 1)


def test_resource_preserving_unloads_first(stage: Stage) -> None:
    toml = '[versions]\ntransition = "resource"'
    serving(stage, 1, toml=toml)
    stage.want(m=wanted(2, toml=toml))
    stage.run()
    assert stage.loader.notes == ["close m/1", "load m/2", "warm_up m/2", "attach m/2"]


def test_going_back_is_the_same_swap(stage: Stage) -> None:
    serving(stage, 2)
    stage.want(m=wanted(1))
    stage.step()
    assert stage.manager.get("m").version == 2
    stage.run()
    assert stage.manager.get("m").version == 1
    assert stage.states() == {1: State.READY}


def test_several_versions_load_from_the_highest_down(stage: Stage) -> None:
    stage.want(m=wanted(1, 3, 2))
    stage.run()
    assert [note for note in stage.loader.notes if note.startswith("load")] == [
        "load m/3",
        "load m/2",
        "load m/1",
    ]
    assert stage.manager.get("m").version == 3
    assert stage.manager.get("m", 1).version == 1


def test_the_last_wanted_set_wins_and_nothing_is_warmed_up_in_vain(stage: Stage) -> None:
    serving(stage, 1)
    stage.want(m=wanted(2))
    stage.want(m=wanted(1))
    stage.run()
    assert stage.loader.notes == ["load m/2", "close m/2"]
    assert stage.states() == {1: State.READY}


def test_versions_published_faster_than_they_load_still_get_to_serve(stage: Stage) -> None:
    serving(stage, 1)
    for newest in range(2, 8):
        stage.want(m=wanted(newest))
        stage.step()
    assert stage.manager.get("m").version > 1


def test_a_version_wanted_again_while_it_drains_is_loaded_afresh(stage: Stage) -> None:
    serving(stage, 1)
    held = stage.manager.get("m")
    held.acquire()
    stage.want(m=wanted(2))
    stage.run()
    stage.want(m=wanted(1))
    stage.run()
    assert stage.states() == {2: State.READY, 1: State.DRAINING}
    held.release()
    stage.run()
    assert stage.states() == {1: State.READY}
    assert stage.manager.get("m") is not held


# ---- Leaving out ----


def test_a_model_that_is_left_out_is_unloaded_and_forgotten(stage: Stage) -> None:
    stage.want(m=wanted(1), other=wanted(1))
    stage.run()
    stage.want(other=wanted(1))
    stage.run()
    assert stage.manager.models() == ["other"]
    assert stage.loader.open == {"other/1"}
    with pytest.raises(NotFound, match=r"^Servable not found for request: Latest\(m\); there is other$"):
        stage.manager.get("m")


def test_a_version_left_out_while_it_loads_never_serves(stage: Stage) -> None:
    stage.want(m=wanted(1))
    stage.want()
    stage.run()
    assert stage.loader.notes == ["load m/1", "close m/1"]
    assert stage.manager.models() == []


# ---- Failures ----


def test_a_failed_load_leaves_the_old_version_serving_and_keeps_its_error(stage: Stage) -> None:
    serving(stage, 1)
    stage.loader.fail("load", "m", 2, times=9)
    stage.want(m=wanted(2))
    stage.run()
    assert stage.manager.get("m").version == 1
    newest = stage.manager.status("m")[0]
    assert (newest.version, newest.state, newest.error, newest.attempts) == (
        2,
        State.FAILED,
        "it is broken",
        1,
    )
    assert stage.manager.ready()


@pytest.mark.parametrize("step", ["load", "warm_up", "attach"])
def test_a_failed_step_is_retried_with_back_off_and_then_serves(stage: Stage, step: str) -> None:
    serving(stage, 1)
    stage.loader.fail(step, "m", 2, times=2)
    stage.want(m=wanted(2))
    stage.run()
    for seconds, states in (
        (0.9, State.FAILED),
        (0.2, State.FAILED),
        (1.8, State.FAILED),
        (0.2, State.READY),
    ):
        stage.advance(seconds)
        assert stage.states()[2] is states, stage.loader.notes
    assert stage.manager.get("m").version == 2
    assert stage.manager.status("m")[0].error == ""
    assert stage.loader.open == {"m/2"}


def test_a_failed_version_that_is_not_wanted_any_more_is_forgotten_with_its_retry(stage: Stage) -> None:
    stage.loader.fail("load", "m", 2)
    stage.want(m=wanted(2))
    stage.run()
    stage.want(m=wanted(1))
    stage.run()
    assert stage.clock.timers == 0
    assert stage.states() == {1: State.READY}


@pytest.mark.parametrize("error", [ValueError("bad weights"), MemoryError(), SystemExit(3)])
def test_an_exception_of_a_model_fails_only_that_model(stage: Stage, error: BaseException) -> None:
    stage.loader.fail("load", "bad", 1, times=9, error=error)
    stage.want(bad=wanted(1), good=wanted(1))
    stage.run()
    assert stage.manager.get("good").version == 1
    assert stage.manager.status("bad")[0].error == "an unexpected error; the server's log says more"
    assert stage.manager.ready()


def test_errors_name_the_version_and_not_where_it_lies(stage: Stage) -> None:
    stage.loader.fail("load", "m", 1, error=LoadError("no model in /nowhere/1"))
    stage.want(m=wanted(1))
    stage.run()
    assert stage.manager.status("m")[0].error == "no model in m/1"


def test_a_version_that_cannot_be_closed_is_gone_all_the_same(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    serving(stage, 1)
    stage.loader.fail("close", "m", 1, error=RuntimeError("will not"))
    stage.want(m=wanted(2))
    with caplog.at_level(logging.ERROR):
        stage.run()
    assert stage.states() == {2: State.READY}
    assert "will not" in caplog.text


# ---- Many models ----


def test_one_load_at_a_time_and_models_without_a_version_first(stage: Stage) -> None:
    stage.want(a=wanted(1), b=wanted(1))
    stage.run()
    stage.loader.notes.clear()
    stage.want(a=wanted(2), b=wanted(1), c=wanted(2, 1))
    assert len(stage.executor) == 1
    stage.run()
    loads = [note for note in stage.loader.notes if note.startswith("load")]
    assert loads == ["load c/2", "load a/2", "load c/1"]


def test_two_threads_load_two_models_but_not_two_versions_of_one() -> None:
    stage = Stage(load_threads=2)
    stage.want(a=wanted(1, 2), b=wanted(1))
    loading = [change for change in stage.changes if change.endswith("loading")]
    assert loading == ["a/2 loading", "b/1 loading"]
    stage.run()
    assert stage.ready("a") == {1, 2}


def test_a_model_that_fails_again_and_again_lets_new_ones_load_first(stage: Stage) -> None:
    stage.loader.fail("load", "a", 1, times=9)
    stage.want(a=wanted(1))
    stage.run()
    stage.want(a=wanted(1), b=wanted(1), c=wanted(1))
    stage.clock.advance(1.0)  # a is due again, b is loading, c waits
    stage.run()
    assert [note for note in stage.loader.notes if note.startswith("load")][1:4] == [
        "load b/1",
        "load c/1",
        "load a/1",
    ]


# ---- Labels ----


def test_a_label_answers_once_its_version_is_ready(stage: Stage) -> None:
    stage.want(m=wanted(1, 2, labels={"stable": 1}))
    with pytest.raises(Unavailable, match="m version 1, label 'stable', is not ready yet"):
        stage.manager.get("m", label="stable")
    stage.run()
    assert stage.manager.get("m", label="stable").version == 1
    assert stage.manager.labels("m") == {"stable": 1}


def test_a_label_keeps_its_version_loaded_until_the_next_one_is_ready(stage: Stage) -> None:
    stage.want(m=wanted(1, 2, labels={"canary": 1}))
    stage.run()
    stage.want(m=wanted(2, 3, labels={"canary": 3}))
    while 3 not in stage.ready():
        assert stage.manager.get("m", label="canary").version == 1
        assert stage.manager.warnings("m") == ["label 'canary': version 3 is not ready; the label stays on 1"]
        stage.step()
    assert stage.manager.get("m", label="canary").version == 3
    stage.run()
    assert stage.states() == {2: State.READY, 3: State.READY}
    assert stage.manager.warnings("m") == []


def test_an_unknown_label_is_not_found_and_the_known_ones_are_named(stage: Stage) -> None:
    stage.want(m=wanted(1, labels={"stable": 1}))
    stage.run()
    with pytest.raises(NotFound, match="Unrecognized servable version label: 'canary'; m has 'stable'"):
        stage.manager.get("m", label="canary")


def test_a_version_and_a_label_together_are_refused(stage: Stage) -> None:
    with pytest.raises(InvalidRequest, match="not both"):
        stage.manager.get("m", 1, "stable")


# ---- Readiness ----


def test_not_ready_before_anything_is_known(stage: Stage) -> None:
    assert not stage.manager.ready()


def test_ready_when_there_is_nothing_to_serve(stage: Stage) -> None:
    stage.want()
    assert stage.manager.ready()


def test_ready_once_each_model_serves_or_has_failed(stage: Stage) -> None:
    stage.loader.fail("load", "b", 1, times=9)
    stage.want(a=wanted(1), b=wanted(1))
    seen = []
    while len(stage.executor):
        seen.append(stage.manager.ready())
        stage.step()
    assert not any(seen)
    assert stage.manager.ready()


def test_not_ready_while_everything_has_failed(stage: Stage) -> None:
    stage.loader.fail("load", "m", 1)
    stage.want(m=wanted(1))
    stage.run()
    assert not stage.manager.ready()
    stage.advance(1.0)
    assert stage.manager.ready()


def test_ready_stays_true_whatever_loads_or_fails_later(stage: Stage) -> None:
    serving(stage, 1)
    stage.loader.fail("load", "n", 1, times=9)
    stage.want(n=wanted(1))
    assert stage.manager.ready()
    stage.run()
    assert stage.manager.ready()


def test_a_model_with_invalid_settings_is_reported_and_does_not_delay_readiness(stage: Stage) -> None:
    stage.want(m=wanted(problem="headrace.toml: not TOML"), n=wanted(1))
    stage.run()
    assert stage.manager.ready()
    assert stage.manager.warnings("m") == ["headrace.toml: not TOML"]
    with pytest.raises(FailedPrecondition, match="not TOML"):
        stage.manager.get("m")


# ---- The operator ----


def test_unload_takes_a_model_out_whatever_is_wanted_and_reload_brings_it_back(stage: Stage) -> None:
    serving(stage, 1)
    stage.manager.unload("m")
    stage.want(m=wanted(1, 2))
    stage.run()
    assert stage.manager.models() == ["m"]
    assert stage.states() == {1: State.UNLOADED}
    assert stage.loader.open == set()
    with pytest.raises(NotFound):
        stage.manager.get("m")
    stage.manager.reload("m")
    stage.run()
    assert stage.ready() == {1, 2}


def test_reload_gives_failed_versions_new_attempts(stage: Stage) -> None:
    stage.loader.fail("load", "m", 1, times=2)
    stage.want(m=wanted(1, toml=TWO_TRIES))
    stage.run()
    stage.advance(100.0)
    stage.manager.reload("m")
    stage.run()
    assert stage.manager.get("m").version == 1


def test_asking_for_an_unknown_model_is_not_found(stage: Stage) -> None:
    for ask in (
        stage.manager.status,
        stage.manager.reload,
        stage.manager.unload,
        stage.manager.labels,
        stage.manager.warnings,
        stage.manager.default_version,
    ):
        with pytest.raises(NotFound, match=r"^Servable not found for request: Latest\(m\)$"):
            ask("m")


def test_the_error_for_an_unknown_model_lists_the_first_known_ones(stage: Stage) -> None:
    stage.want(**{f"m{number:02}": wanted(1) for number in range(10, 0, -1)})
    told = r"; there are m01, m02, m03, m04, m05, m06, m07, m08 and 2 more$"
    with pytest.raises(NotFound, match=r"^Servable not found for request: Specific\(m, 1\)" + told):
        stage.manager.get("m", 1)
    with pytest.raises(NotFound, match=r"^Servable not found for request: Latest\(m\)" + told):
        stage.manager.status("m")


def test_the_error_for_an_unusable_model_gives_the_reason(stage: Stage) -> None:
    stage.manager.want({"good": wanted(1)}, {"flat": "no version in it"})
    told = r"^Servable not found for request: {}; 'flat' is not served: no version in it$"
    with pytest.raises(NotFound, match=told.format(r"Latest\(flat\)")):
        stage.manager.get("flat")
    with pytest.raises(NotFound, match=told.format(r"Specific\(flat, 1\)")):
        stage.manager.get("flat", 1)
    with pytest.raises(NotFound, match=told.format(r"Latest\(flat\)")):
        stage.manager.status("flat")
    stage.manager.want({"good": wanted(1)})
    with pytest.raises(NotFound, match=r"there is good$"):
        stage.manager.get("flat")


@pytest.mark.parametrize("version", [None, 1])
def test_a_model_without_versions_says_why_for_whatever_is_asked(stage: Stage, version: int | None) -> None:
    stage.want(m=wanted(problem="its directory cannot be listed"))
    with pytest.raises(FailedPrecondition, match="m serves nothing: its directory cannot be listed"):
        stage.manager.get("m", version)


def test_the_error_for_an_unloaded_model_says_so_after_a_failure(stage: Stage) -> None:
    stage.loader.fail("load", "m", 1, times=2)
    stage.want(m=wanted(1, toml=TWO_TRIES))
    stage.run()
    stage.manager.unload("m")
    assert stage.manager.status("m") == []
    assert stage.manager.warnings("m") == ["it was unloaded; load it to serve it"]


# ---- The end ----


def test_close_waits_for_requests_and_closes_everything(stage: Stage) -> None:
    stage.loader.fail("load", "failed", 1, times=9)
    stage.want(m=wanted(1), failed=wanted(1))
    stage.run()
    held = stage.manager.get("m")
    held.acquire()
    stage.want(m=wanted(1, 2), failed=wanted(1))  # one is loading when the end comes
    closed: list[bool] = []
    stage.manager.close(lambda: closed.append(True))
    assert not stage.manager.ready()
    stage.run()
    with pytest.raises(Unavailable, match="the server is stopping"):
        stage.manager.get("m")
    assert (closed, stage.loader.open) == ([], {"m/1"})
    held.release()
    stage.run()
    assert (closed, stage.loader.open, stage.clock.timers) == ([True], set(), 0)


def test_close_of_nothing_is_done_at_once(stage: Stage) -> None:
    closed: list[bool] = []
    stage.manager.close(lambda: closed.append(True))
    assert closed == [True]


def test_fifty_reloads_leave_nothing_behind(stage: Stage) -> None:
    for number in range(1, 51):
        stage.want(m=wanted(number, labels={"newest": number}))
        stage.run()
        assert stage.loader.open == {f"m/{number}"}
    assert stage.states() == {50: State.READY}
    assert stage.clock.timers == 0


def test_default_version_is_the_highest_ready_one(stage: Stage) -> None:
    stage.want(m=wanted(1, 2))
    assert stage.manager.default_version("m") is None
    stage.run()
    assert stage.manager.default_version("m") == 2
