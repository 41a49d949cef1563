"""Handles: counting the requests on a version."""

from __future__ import annotations

import pytest

from headrace.lifecycle.handle import Handle


def test_the_last_release_calls_on_idle_once() -> None:
    handle, calls = Handle(), []
    handle.acquire()
    handle.acquire()
    handle.on_idle = lambda: calls.append("idle")
    handle.release()
    assert calls == []
    handle.release()
    assert calls == ["idle"]
    handle.acquire()
    handle.release()
    assert calls == ["idle"]


def test_a_release_too_many_is_refused_and_leaves_the_count_right() -> None:
    handle = Handle()
    with pytest.raises(RuntimeError, match="nobody held"):
        handle.release()
    assert handle.outstanding == 0
