"""A model's process as the server sees it."""

from __future__ import annotations

import threading

import pytest

from headrace.config import IsolationPolicy
from headrace.isolation import model_process as processes
from headrace.isolation.model_process import ModelProcess


def test_a_process_of_another_release_reads_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an update of what is installed, under a server that runs."""
    monkeypatch.setattr(processes, "RELEASE", "0.0.9/1")
    ended = threading.Event()
    process = ModelProcess(
        {"model": "m", "version": 1}, IsolationPolicy(), 1, lambda _: ended.set(), lambda _: None
    )
    process.start()
    assert ended.wait(60)
    assert process.ending is not None
    assert process.ending.reason == "start"
    assert "the installed headrace is not the release that this server started with" in process.ending.said
