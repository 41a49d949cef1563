"""Threads that start when needed, do one piece after another, and end."""

from __future__ import annotations

import threading

from headrace.batching.instances import Instances

PATIENCE_SECONDS = 10.0


def test_pieces_are_done_by_as_many_threads_as_are_busy_and_all_before_the_end() -> None:
    done: list[tuple[int, str]] = []
    both = threading.Barrier(2)
    finished = threading.Semaphore(0)

    def work(piece: int) -> None:
        if piece < 2:
            both.wait(PATIENCE_SECONDS)  # two pieces at once need two threads
        done.append((piece, threading.current_thread().name))
        finished.release()

    instances = Instances("working", 2, work)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("working/")]
    instances.give(0, 0)
    instances.give(1, 1)
    for _ in range(2):
        assert finished.acquire(timeout=PATIENCE_SECONDS)
    assert {name for _, name in done} == {"working/0", "working/1"}
    instances.give(2, 2)
    instances.give(3, 2)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("working/")]
    assert len(threads) <= 2
    instances.stop()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    assert sorted(piece for piece, _ in done) == [0, 1, 2, 3]


def test_stopping_what_never_started_is_nothing() -> None:
    Instances("idle", 4, lambda piece: None).stop()
