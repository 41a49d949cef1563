"""Which of the versions that wait is loaded next."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import ModelConfig
from headrace.lifecycle.load_attempts import WaitingLoads
from headrace.lifecycle.model_records import ModelRecord, Place, VersionRecord
from tests.unit.lifecycle.stage import Loaded


def _put(
    waiting: WaitingLoads[Loaded],
    name: str,
    number: int = 1,
    attempts: int = 0,
    *,
    is_replacement: bool = False,
) -> None:
    version: VersionRecord[Loaded] = VersionRecord(number, Place(Path(name), None, ModelConfig()))
    version.attempts = attempts
    waiting.put(ModelRecord(name), version, is_replacement=is_replacement)


def _all_taken(waiting: WaitingLoads[Loaded]) -> list[tuple[str, int]]:
    taken = []
    while waiting:
        model, version = waiting.take()
        taken.append((model.name, version.number))
    return taken


def test_models_with_nothing_ready_come_first_then_the_least_tried_then_by_name() -> None:
    waiting: WaitingLoads[Loaded] = WaitingLoads()
    _put(waiting, "a", is_replacement=True)
    _put(waiting, "b", attempts=1)
    _put(waiting, "d")
    _put(waiting, "c")
    assert _all_taken(waiting) == [("c", 1), ("d", 1), ("b", 1), ("a", 1)]


def test_one_version_of_a_model_waits_the_one_that_was_put_last() -> None:
    waiting: WaitingLoads[Loaded] = WaitingLoads()
    _put(waiting, "a", 1)
    _put(waiting, "a", 2, attempts=3)
    _put(waiting, "b")
    _put(waiting, "gone")
    waiting.drop("gone")
    waiting.drop("never there")
    assert _all_taken(waiting) == [("b", 1), ("a", 2)]
    with pytest.raises(IndexError):
        waiting.take()


def test_a_model_that_is_put_again_and_again_leaves_nothing_behind() -> None:
    waiting: WaitingLoads[Loaded] = WaitingLoads()
    for attempt in range(1000):
        _put(waiting, "a", attempts=attempt)
        _put(waiting, "b")
    assert len(waiting._in_order) <= 5
    assert _all_taken(waiting) == [("b", 1), ("a", 1)]
