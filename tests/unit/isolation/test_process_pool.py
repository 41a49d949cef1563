"""Which process gets the next call, where each computes one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from headrace.isolation.servable import ProcessPool

SECONDS = 120.0


@dataclass(eq=False)
class Member:
    """Someone who is ready or not."""

    is_ready: bool = True


@pytest.mark.parametrize(
    ("ready", "busy", "taken"),
    [
        ([True], [], 0),
        ([True, True], [], 0),
        ([True, True], [0], 1),
        ([False, True], [], 1),
        ([True, False, True], [0], 2),
        ([True, True, True], [0, 1], 2),
        ([False, False], [], None),
        ([False], [], None),
    ],
)
def test_the_first_that_is_ready_and_idle_is_taken(
    ready: list[bool], busy: list[int], taken: int | None
) -> None:
    members = [Member() for _ in ready]
    pool = ProcessPool(members)
    for number in busy:
        assert pool.take() is members[number]
    for member, is_ready in zip(members, ready, strict=True):
        member.is_ready = is_ready
    assert pool.take() is (None if taken is None else members[taken])


def returns(_pool: ProcessPool[Member], members: list[Member]) -> Member | None:
    _pool.give_back(members[1])
    return members[1]


def comes_back(pool: ProcessPool[Member], members: list[Member]) -> Member | None:
    members[2].is_ready = True
    pool.look()
    return members[2]


def all_go(pool: ProcessPool[Member], members: list[Member]) -> Member | None:
    for member in members:
        member.is_ready = False
    pool.look()
    return None


@pytest.mark.parametrize("happens", [returns, comes_back, all_go])
def test_a_call_waits_while_all_members_are_busy_until_one_is_idle_or_none_is_ready(
    happens: Callable[[ProcessPool[Member], list[Member]], Member | None],
) -> None:
    members = [Member(), Member(), Member(is_ready=False)]
    pool = ProcessPool(members)
    assert [pool.take(), pool.take()] == members[:2]
    with ThreadPoolExecutor(1) as threads:
        waiting: Future[Member | None] = threads.submit(pool.take)
        expected = happens(pool, members)
        assert waiting.result(SECONDS) is expected


def test_each_member_computes_one_call_at_a_time() -> None:
    members = [Member(), Member(), Member()]
    pool, held, most = ProcessPool(members), set[Member](), list[int]()
    lock = threading.Lock()

    def call() -> None:
        for _ in range(200):
            member = pool.take()
            assert member is not None
            with lock:
                assert member not in held
                held.add(member)
                most.append(len(held))
            with lock:
                held.remove(member)
            pool.give_back(member)

    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(call) for _ in range(6)]:
            done.result(SECONDS)
    assert len(most) == 1200
    assert max(most) <= len(members)
