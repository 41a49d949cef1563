"""The supervisor's loops: when workers are started again, ended, and waited for."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
from collections.abc import Awaitable, Callable

import pytest

from headrace.base.errors import ConfigError, HeadraceError
from headrace.workers.messages import Drain, Failed, Finish
from tests.unit.workers.stage import FakeWorker, Script, Stage, crashes, loads, serves
from tests.virtual_loop import run_virtually

BOTH = [0, 1]


def on_stage(
    act: Callable[[Stage], Awaitable[None]], workers: int = 2, script: Script = serves, **settings: float
) -> None:
    """Act on a stage whose workers have had a second."""

    async def run() -> None:
        async with Stage(workers, script, **settings) as stage:
            await asyncio.sleep(1)
            await act(stage)

    run_virtually(run())


# --- restarts ---


def test_a_failing_worker_is_restarted_with_growing_pauses() -> None:
    async def act(stage: Stage) -> None:
        stage.scripts[0] = crashes
        stage.last(0).exit(-signal.SIGSEGV)
        await asyncio.sleep(30)
        assert stage.pauses(0) == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10])
        assert not stage.pool.failed.done(), "the other one serves"
        stage.scripts[0] = serves
        await asyncio.sleep(75)
        assert stage.leading == BOTH
        stage.last(0).exit(1)
        await asyncio.sleep(1)
        assert stage.pauses(0)[-1] == pytest.approx(0.1)
        assert stage.starts[1] == [1000.0], "it has nothing to do with the other's ends"

    on_stage(act)


def test_the_server_gives_up_when_no_start_brings_a_ready_worker(caplog: pytest.LogCaptureFixture) -> None:
    async def act(stage: Stage) -> None:
        await asyncio.sleep(9)
        assert stage.starts[0] == pytest.approx([1000, 1000.1, 1000.3, 1000.7, 1001.5])
        message = stage.pool.failed.result().message
        assert message.startswith("5 workers have ended within a minute before they were ready")
        assert message.endswith("the last one ended with code 3")
        assert not any(stage.views(1)), "the server has never been ready"
        assert stage.pool.statuses is None
        stage.last(1).say_serving()
        assert await stage.stop(lead=False) == pytest.approx(0.15)

    async def run() -> None:
        stage = Stage()
        stage.scripts = {0: crashes, 1: loads}
        async with stage:
            await act(stage)

    run_virtually(run())
    assert [one.message for one in caplog.records].count("a worker is started again") == 4


def test_a_worker_that_cannot_be_started_is_retried_with_growing_pauses() -> None:
    async def act(stage: Stage) -> None:
        stage.refusing = True
        stage.last(0).exit(1)
        await asyncio.sleep(5)
        assert stage.pauses(0) == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6])
        assert stage.leading == [1]
        stage.refusing = False
        await asyncio.sleep(10)
        assert stage.leading == BOTH
        assert await stage.stop() > 0

    on_stage(act)


def test_a_server_none_of_whose_workers_can_be_started_says_why() -> None:
    async def run() -> None:
        stage = Stage(workers=3)
        stage.refusing = True
        async with stage:
            await asyncio.sleep(1)
            message = stage.pool.failed.result().message
            assert message.endswith("the last one could not be started: Resource temporarily unavailable")
            await stage.stop(lead=False)

    run_virtually(run())


def test_a_supervisor_without_a_free_descriptor_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    async def act(stage: Stage) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socketpair", refuse)
            stage.last(0).exit(1)
            await asyncio.sleep(1)
            assert stage.leading == [1]
            assert not stage.pool.failed.done()
        await asyncio.sleep(10)
        assert stage.leading == BOTH

    on_stage(act)


@pytest.mark.parametrize(("wrong", "kind"), [(True, ConfigError), (False, HeadraceError)])
def test_a_worker_that_cannot_serve_fails_the_server_at_the_first_start_only(
    wrong: bool, kind: type[HeadraceError]
) -> None:
    async def cannot(worker: FakeWorker) -> None:
        worker.send(Failed("port 80 is taken", wrong))
        worker.exit(1)

    async def act(stage: Stage) -> None:
        stage.scripts[0] = cannot
        stage.last(0).exit(1)
        await asyncio.sleep(20)
        assert not stage.pool.failed.done()

    on_stage(act)

    async def first(stage: Stage) -> None:
        error = stage.pool.failed.result()
        assert (type(error), error.message) == (kind, "port 80 is taken")

    on_stage(first, script=cannot)


def test_an_unexpected_error_in_a_loop_ends_the_server(caplog: pytest.LogCaptureFixture) -> None:
    async def act(stage: Stage) -> None:
        stage.processes.error = RuntimeError("no such thing")
        stage.last(0).exit(1)
        await asyncio.sleep(1)
        assert "RuntimeError('no such thing')" in stage.pool.failed.result().message
        await stage.stop(lead=False)

    on_stage(act)
    assert "the task that keeps the workers running has failed" in caplog.text


# --- silence ---


def test_a_silent_worker_gets_no_connections_then_is_replaced() -> None:
    async def act(stage: Stage) -> None:
        silent = stage.last(0)
        silent.hang()
        await asyncio.sleep(12)
        assert (stage.leading, silent.returncode) == ([1], None)
        await asyncio.sleep(17)
        assert silent.returncode is None
        await asyncio.sleep(4)
        assert silent.returncode == -signal.SIGKILL
        assert len(stage.workers[0]) == 2
        assert stage.leading == BOTH
        views = stage.views(1)
        assert all(views[views.index(True) :]), "the server has stayed ready"

    on_stage(act)


def test_a_worker_that_answers_again_stays() -> None:
    async def act(stage: Stage) -> None:
        for _ in range(3):  # silences do not add up
            stage.last(0).hang()
            await asyncio.sleep(27)
            assert stage.leading == [1]
            stage.last(0).go_on()
            await asyncio.sleep(2)
            assert stage.leading == BOTH
        assert len(stage.workers[0]) == 1

    on_stage(act)


@pytest.mark.parametrize("timeout", [1, 30, 600])
def test_a_worker_may_start_slowly(timeout: float) -> None:
    async def act(stage: Stage) -> None:
        slow = stage.last(0)
        slow.hang()
        await asyncio.sleep(max(299, timeout - 1))
        assert slow.returncode is None
        slow.go_on()
        await asyncio.sleep(max(301, timeout + 1))
        assert slow.returncode is None, "it answers, for as long as it loads"
        slow.hang()
        await asyncio.sleep(max(302, timeout + 2))
        assert slow.returncode == -signal.SIGKILL

    on_stage(act, script=loads, worker_timeout_seconds=timeout)


def test_a_silent_start_is_forgiven_to_a_worker_that_serves() -> None:
    """It says so before it answers the beats that have waited for it."""

    async def act(stage: Stage) -> None:
        slow = stage.last(0)
        slow.hang()
        await asyncio.sleep(60)
        slow.say_serving()
        await asyncio.sleep(5)
        slow.go_on()
        await asyncio.sleep(5)
        assert slow.returncode is None

    on_stage(act, script=loads)


def test_a_suspended_machine_replaces_no_worker() -> None:
    async def act(stage: Stage) -> None:
        for _ in range(5):
            stage.loop.stand_still(1000)
            await asyncio.sleep(0.5)
        assert list(map(len, stage.workers)) == [1, 1]
        assert stage.leading == BOTH

    on_stage(act)


# --- the end ---


def test_all_workers_end_at_the_same_time() -> None:
    async def act(stage: Stage) -> None:
        for worker in stage.running:
            worker.finish_seconds = 7.0
        assert await stage.stop() == pytest.approx(2.0 + 0.15 + 7.0)
        for place in BOTH:
            told = [one for one in stage.last(place).heard if isinstance(one, Drain | Finish)]
            assert told == [Drain(), Finish(1031.0, stage.config.first_answer_seconds)]
            assert stage.last(place).returncode == 0

    on_stage(act)


def test_a_worker_that_never_ends_is_ended_after_the_drain_time(caplog: pytest.LogCaptureFixture) -> None:
    async def act(stage: Stage) -> None:
        stage.last(0).finish_seconds = None
        assert await stage.stop() == pytest.approx(30 + 5)
        assert [stage.last(place).returncode for place in BOTH] == [-signal.SIGKILL, 0]

    on_stage(act)
    assert "workers did not finish before the timeout" in caplog.text


def test_a_worker_that_hangs_while_it_drains_is_ended_before_that() -> None:
    async def act(stage: Stage) -> None:
        stage.last(0).hang()
        assert await stage.stop() == pytest.approx(6, abs=1)

    on_stage(act, worker_timeout_seconds=6)


def test_a_server_that_stops_waits_for_no_pause() -> None:
    async def act(stage: Stage) -> None:
        stage.scripts[0] = crashes
        stage.last(0).exit(1)
        await asyncio.sleep(20)
        starts = len(stage.starts[0])
        assert stage.last(0).returncode is not None, "the next one is to come in seconds"
        assert await stage.stop() == pytest.approx(2.15)
        assert len(stage.starts[0]) == starts

    on_stage(act)


def test_a_worker_that_is_still_loading_is_not_waited_for() -> None:
    async def act(stage: Stage) -> None:
        assert await stage.stop(lead=False) == pytest.approx(0.15)
        assert stage.last(0).returncode == -signal.SIGKILL

    on_stage(act, script=loads)


def test_a_worker_that_is_just_being_started_is_ended() -> None:
    async def act(stage: Stage) -> None:
        stage.spawn_seconds = 4.0
        stage.last(0).exit(1)
        await asyncio.sleep(1)
        assert await stage.stop() == pytest.approx(3.1)
        assert stage.last(0).returncode == -signal.SIGKILL

    on_stage(act)


def test_a_worker_that_ends_while_all_drain_is_not_started_again(caplog: pytest.LogCaptureFixture) -> None:
    async def act(stage: Stage) -> None:
        stopping = asyncio.ensure_future(stage.stop())
        await asyncio.sleep(1)
        stage.last(0).exit(-signal.SIGSEGV)
        await stopping
        assert len(stage.workers[0]) == 1

    on_stage(act)
    assert "started again" not in caplog.text


def test_a_worker_that_begins_to_serve_while_all_drain_gets_no_connections() -> None:
    async def act(stage: Stage) -> None:
        stage.scripts[0] = loads
        stage.last(0).exit(1)
        await asyncio.sleep(1)
        stopping = asyncio.ensure_future(stage.stop())
        await asyncio.sleep(1)
        stage.last(0).say_serving()
        stage.last(0).say_ready()
        await asyncio.sleep(0.5)
        assert stage.leading == [1]
        await stopping
        assert [stage.last(place).returncode for place in BOTH] == [0, 0]

    on_stage(act)


def test_another_server_that_follows_is_told_of() -> None:
    async def act(stage: Stage) -> None:
        stage.is_stopping()
        await stage.pool.leave()
        assert not stage.running
        assert [one for one in stage.last(0).heard if isinstance(one, Drain)] == [Drain(is_followed=True)]

    on_stage(act)


def test_a_look_again_reaches_those_that_serve_and_have_not_ended() -> None:
    async def act(stage: Stage) -> None:
        stage.scripts[0] = loads
        stage.last(0).exit(1)
        stage.pool.look_again()  # before its end is seen
        await asyncio.sleep(1)
        stage.pool.look_again()
        assert [stage.last(place).signals for place in BOTH] == [[], [signal.SIGHUP] * 2]

    on_stage(act)


# --- anything ---


def some_script(dice: random.Random) -> Script:
    async def script(worker: FakeWorker) -> None:
        steps = [worker.say_serving, worker.say_ready]
        dice.shuffle(steps)
        for step in steps:
            await asyncio.sleep(dice.uniform(0, dice.choice((0.1, 8.0))))
            if dice.random() < 0.1:
                worker.exit(dice.choice((1, -signal.SIGSEGV)))
            await worker.awake.wait()
            await asyncio.sleep(0.001)  # not in the very moment in which others end
            step()

    return script


def disturb(stage: Stage, dice: random.Random) -> None:
    stage.script = some_script(dice)
    stage.refusing = dice.random() < 0.2
    stage.spawn_seconds = dice.choice((0.0, 0.0, 0.3))
    for worker in stage.running:
        if dice.random() < 0.2:
            worker.exit(dice.choice((0, 1, -signal.SIGKILL)))
        elif dice.random() < 0.3 and worker.stuck_since is None:
            worker.hang()
        elif dice.random() < 0.5 and worker.stuck_since is not None:
            worker.go_on()


@pytest.mark.parametrize("seed", range(40))
def test_invariants_hold_under_random_faults(seed: int) -> None:
    """The stage checks them whenever time passes. Left alone, all serve, or the server has given up."""
    dice = random.Random(seed)

    async def act(stage: Stage) -> None:
        for _ in range(dice.randrange(40)):
            await asyncio.sleep(dice.choice((0.0, 0.05, 1.0, 12.0)))
            disturb(stage, dice)
        if dice.random() < 0.5:
            stage.script, stage.refusing = serves, False
            await asyncio.sleep(400)
            assert stage.pool.failed.done() == stage.gives_up
            if not stage.gives_up:
                assert stage.leading == list(range(len(stage.workers)))
        for worker in stage.running:
            worker.finish_seconds = dice.choice((0.0, 3.0, None))
        assert await stage.stop(lead=dice.random() < 0.5) <= 30 + 5

    on_stage(act, workers=dice.choice((1, 2, 4)), worker_timeout_seconds=dice.choice((1.0, 6.0, 30.0)))
