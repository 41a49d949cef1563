"""Threads that start when needed, do one piece after another, and end."""

from __future__ import annotations

import threading
import weakref
from functools import partial
from threading import Event

import pytest

from headrace.batching.compute_threads import Threads, say_waiting

PATIENCE_SECONDS = 120.0


def named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"{name}/")]


def end(threads: Threads[int], name: str) -> None:
    running = named(name)
    threads.stop()
    for thread in running:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_pieces_are_done_by_as_many_threads_as_are_busy_and_all_before_the_end() -> None:
    done: list[tuple[int, str]] = []
    both = threading.Barrier(2)
    finished = threading.Semaphore(0)

    def work(piece: int) -> None:
        if piece < 2:
            both.wait(PATIENCE_SECONDS)  # two pieces at once need two threads
        done.append((piece, threading.current_thread().name))
        finished.release()

    threads = Threads("working", 2, work)
    assert not named("working")
    workers = [threads.give(0), threads.give(1)]
    for _ in range(2):
        assert finished.acquire(timeout=PATIENCE_SECONDS)
    assert {name for _, name in done} == {"working/0", "working/1"}
    for worker in workers:
        assert worker is not None
        threads.take_back(worker)
    for piece in (2, 3):
        assert threads.give(piece) is not None
    assert len(named("working")) == 2
    end(threads, "working")
    assert sorted(piece for piece, _ in done) == [0, 1, 2, 3]


def test_the_thread_that_worked_last_works_next() -> None:
    threads: Threads[int] = Threads("last", 2, lambda piece: None)
    first, second = threads.give(0), threads.give(1)
    assert first is not None
    assert second is not None
    threads.take_back(second)
    threads.take_back(first)
    for piece in range(2, 5):
        assert threads.give(piece) is first
        threads.take_back(first)
    end(threads, "last")


def test_stopping_what_never_started_is_nothing() -> None:
    Threads("idle", 4, lambda piece: None).stop()


def test_a_thread_may_make_a_call_before_its_first_piece() -> None:
    calls: list[str] = []
    done = threading.Semaphore(0)

    def work(piece: int) -> None:
        calls.append(f"{piece} in {threading.current_thread().name}")
        done.release()

    threads = Threads("first", 3, work)
    for number in range(2):
        threads.start(lambda number=number: calls.append(f"call {number}"))  # type: ignore[misc]
        assert calls[-1] == f"call {number}"  # it is waited for
    threads.give(0)
    assert done.acquire(timeout=PATIENCE_SECONDS)
    assert calls[2:] == ["0 in first/0"]
    held = Event()
    calls_it = partial(held.wait, 0)
    gone = weakref.ref(held)
    threads.start(calls_it)
    del held, calls_it
    for piece in range(3):  # the third thread has gone on when it does a piece
        threads.give(piece)
    for _ in range(3):
        assert done.acquire(timeout=PATIENCE_SECONDS)
    assert gone() is None  # or batches of the warm-up would stay
    end(threads, "first")


def test_what_the_call_raises_is_raised_and_the_thread_works_all_the_same() -> None:
    done = threading.Semaphore(0)
    threads: Threads[int] = Threads("failing", 1, lambda piece: done.release())

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        threads.start(fail)
    threads.give(0)
    assert done.acquire(timeout=PATIENCE_SECONDS)
    end(threads, "failing")


def test_work_that_waits_for_other_work_says_so() -> None:
    waits: list[str] = []
    done = threading.Semaphore(0)

    def work(piece: int) -> None:
        say_waiting()
        done.release()

    threads = Threads("waiting", 1, work)
    threads.on_wait = lambda: waits.append(threading.current_thread().name)
    say_waiting()  # not in one of them: nobody to tell
    threads.give(0)
    assert done.acquire(timeout=PATIENCE_SECONDS)
    assert waits == ["waiting/0"]
    end(threads, "waiting")


def test_without_a_thread_to_start_those_that_there_are_work_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Semaphore(0)
    threads: Threads[int] = Threads("scarce", 2, lambda piece: done.release())
    first = threads.give(0)
    assert first is not None
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert threads.give(1) is first
        assert Threads("none", 1, lambda piece: None).give(0) is None
    for _ in range(2):
        assert done.acquire(timeout=PATIENCE_SECONDS)
        threads.take_back(first)
    assert threads.give(2) is first
    end(threads, "scarce")


def refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
