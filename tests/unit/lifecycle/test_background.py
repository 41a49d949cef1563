"""Loader threads give way to all others."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from headrace.lifecycle.background import background_executor


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
def test_its_threads_have_the_lowest_priority_and_the_others_keep_theirs() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with background_executor(1) as executor:
        there = executor.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result(10)
    assert there == 19
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_it_works_where_priorities_may_not_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    with background_executor(1) as executor:
        assert executor.submit(lambda: 7).result(10) == 7
