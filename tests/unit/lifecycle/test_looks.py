"""The Source's looks: directories that hang or are slow, and moments without a thread, end none of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.config import ServerConfig
from headrace.lifecycle.desired_state import Wanted
from headrace.lifecycle.source import LOOK_SECONDS, DirectorySource
from headrace.versions.manifest import publish
from tests.unit.lifecycle.watch import POLL_SECONDS, Watch


def test_a_look_that_finds_no_thread_is_followed_by_the_next_one(
    watch: Watch, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(root / "ctr" / "2", root / "ctr", 3)
    watch.executor.no_thread = 5
    watch.look(5)
    assert (watch.now["ctr"], watch.clock.timers) == ([2], 1)
    assert "cannot scan the model directories now, retrying soon" in caplog.text
    assert "does not answer" not in caplog.text
    watch.look()
    assert watch.now["ctr"] == [3]


def test_a_first_look_that_finds_no_thread_is_made_again_even_without_a_poll(root: Path) -> None:
    watch = Watch(root, ServerConfig(poll_seconds=0.0))
    watch.executor.no_thread = 1
    watch.start()
    watch.look()
    assert watch.now == {"ctr": [2], "rank": [7]}
    assert watch.clock.timers == 0


def test_a_result_that_could_not_be_applied_is_reported_again(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch, told = Watch(root), list[Mapping[str, Wanted]]()

    def want(models: Mapping[str, Wanted], _: Mapping[str, str]) -> None:
        told.append(models)
        if len(told) == 1:
            raise RuntimeError("out of luck")

    watch.source = DirectorySource(
        root, want, watch.clock, watch.executor, ServerConfig(poll_seconds=POLL_SECONDS)
    )
    watch.start()
    assert "out of luck" in caplog.text
    watch.look(3)
    assert len(told) == 2
    assert told[1] == told[0]


@contextmanager
def hanging_look(
    watch: Watch, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], None]]:
    """A look whose listing of a directory does not return until what this gives is called."""
    there, free, scandir = threading.Event(), threading.Event(), os.scandir

    def slow(path: Path) -> object:
        if Path(path) == directory and not free.is_set():
            there.set()
            free.wait(120)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", slow)
    watch.clock.advance(POLL_SECONDS)
    thread = threading.Thread(target=watch.executor.put_aside())
    thread.start()

    def come_back() -> None:
        free.set()
        thread.join(120)
        watch.clock.run_ready()

    try:
        assert there.wait(120)
        yield come_back
    finally:
        come_back()


def test_a_directory_that_does_not_answer_holds_up_no_other_model(
    watch: Watch, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(root / "ctr" / "2", root / "ctr", 3)
    publish(root / "rank" / "7", root / "rank", 8)
    with hanging_look(watch, root / "rank", monkeypatch) as come_back:
        watch.look(int(LOOK_SECONDS / POLL_SECONDS))
        assert watch.now == {"ctr": [3], "rank": [7]}
        assert watch.problem("rank") == "its directory does not answer"
        come_back()
        watch.look()
        assert watch.now == {"ctr": [3], "rank": [8]}
        assert watch.problem("rank") == ""


def test_a_model_whose_files_always_take_long_is_served_all_the_same(
    watch: Watch, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look that hung there was overtaken by others, and what it found at last was dropped."""
    for number in (8, 9):
        publish(root / "rank" / "7", root / "rank", number)
        with monkeypatch.context() as patched, hanging_look(watch, root / "rank", patched) as come_back:
            watch.look(int(LOOK_SECONDS / POLL_SECONDS))
            ctr = int(publish(root / "ctr" / "2", root / "ctr").name)
            watch.look()
            assert watch.now == {"ctr": [ctr], "rank": [number - 1]}
            watch.clock.advance(POLL_SECONDS)
            beside = watch.executor.put_aside()
            come_back()
            assert watch.now == {"ctr": [ctr], "rank": [number]}
            beside()  # it began from what was seen before, and avoided the model
            watch.clock.run_ready()
            assert watch.now == {"ctr": [ctr], "rank": [number]}


def test_a_model_whose_files_always_take_long_is_found_at_the_start(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(root)
    watch.source.start()
    with hanging_look(watch, root / "rank", monkeypatch) as come_back:
        watch.look(int(LOOK_SECONDS / POLL_SECONDS))
        assert watch.now == {"ctr": [2], "rank": []}
        come_back()
        assert watch.now == {"ctr": [2], "rank": [7]}
        watch.look()
        assert watch.now == {"ctr": [2], "rank": [7]}


def test_a_served_directory_that_does_not_answer_is_waited_for(
    watch: Watch, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with hanging_look(watch, root, monkeypatch) as come_back:
        publish(root / "ctr" / "2", root / "ctr", 3)
        watch.look(int(10 * LOOK_SECONDS / POLL_SECONDS))
        assert len(watch.executor) == 0
        assert caplog.text.count("the served directory does not answer") == 1
        assert watch.now["ctr"] == [2]
        come_back()
        assert watch.now["ctr"] == [3]


def test_a_look_that_takes_long_everywhere_is_as_good_as_any(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a network file system, where each call takes its time."""
    watch, walk, stat = Watch(root), os.walk, os.stat
    for number in range(8):
        (root / "ctr" / "2" / str(number)).write_text("x")

    def slow_walk(path: str) -> object:
        watch.clock.advance(0.5 * LOOK_SECONDS)
        return walk(path)

    def slow_stat(path: str, **options: bool) -> os.stat_result:
        if os.path.dirname(path) == str(root / "ctr" / "2"):
            watch.clock.advance(0.4 * LOOK_SECONDS)
        return stat(path, **options)

    monkeypatch.setattr(os, "walk", slow_walk)
    monkeypatch.setattr(os, "stat", slow_stat)
    watch.source.start()
    watch.executor.run_one()
    watch.clock.run_ready()
    assert watch.clock.now() > 1000.0 + 3 * LOOK_SECONDS
    assert watch.now == {"ctr": [2], "rank": [7]}
    assert "does not answer" not in caplog.text


def test_the_result_of_a_late_scan_is_used_if_no_newer_one_was(
    watch: Watch, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(root / "rank" / "7", root / "rank", 8)
    with hanging_look(watch, root / "rank", monkeypatch) as come_back:
        watch.clock.advance(LOOK_SECONDS)  # the next one begins, and avoids the model
        come_back()
        assert watch.now == {"ctr": [2], "rank": [8]}
        watch.executor.run_all()
        watch.clock.run_ready()
        assert watch.now == {"ctr": [2], "rank": [8]}
        watch.look()
        assert watch.problem("rank") == ""


def test_a_served_directory_that_answers_late_may_have_a_model_that_does_not(
    watch: Watch, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(root / "ctr" / "2", root / "ctr", 3)
    scandir, arrived, go_on = os.scandir, threading.Semaphore(0), threading.Semaphore(0)
    hanging = threading.local()

    def slow(path: Path) -> object:
        if getattr(hanging, "here", False) and Path(path) in (root, root / "rank"):
            arrived.release()
            go_on.acquire(timeout=30)
        return scandir(path)

    def look() -> None:
        hanging.here = True
        call()

    monkeypatch.setattr(os, "scandir", slow)
    watch.clock.advance(POLL_SECONDS)
    call = watch.executor.put_aside()
    thread = threading.Thread(target=look)
    thread.start()
    try:
        assert arrived.acquire(timeout=30)
        watch.look(int(2 * LOOK_SECONDS / POLL_SECONDS))
        go_on.release()
        assert arrived.acquire(timeout=30)
        watch.look(int(2 * LOOK_SECONDS / POLL_SECONDS))
        assert watch.now["ctr"] == [3]
    finally:
        go_on.release(2)
        go_on.release(2)
        thread.join(120)
        watch.clock.run_ready()
