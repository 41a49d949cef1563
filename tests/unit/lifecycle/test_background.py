"""Loader threads give way to all others."""

from __future__ import annotations

import os
import sys

import pytest

from headrace.lifecycle.background import background_executor


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
def test_its_threads_have_the_lowest_priority_and_the_others_keep_theirs() -> None:
    before = os.sched_getscheduler(0)
    with background_executor(1) as executor:
        there = executor.submit(os.sched_getscheduler, 0).result(10)
    assert there == os.SCHED_IDLE
    assert os.sched_getscheduler(0) == before != os.SCHED_IDLE


def test_it_works_where_priorities_may_not_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with background_executor(1) as executor:
        assert executor.submit(lambda: 7).result(10) == 7
