"""Warm-up: recorded requests must succeed, made-up ones need not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from headrace.batching.cost import BatchCost
from headrace.config import BatchingPolicy, ModelConfig, WarmUpPolicy
from headrace.errors import LoadError
from headrace.warmup import WELL_KNOWN, warm_up
from tests.models import Doubling

T = TypeVar("T")


def record(folder: Path, *bodies: object, name: str = WELL_KNOWN) -> None:
    (folder / name).write_text("".join(json.dumps(body) + "\n" for body in bodies))


def test_without_a_recording_batches_of_several_sizes_are_made_up_and_their_cost_is_learnt() -> None:
    model, cost = Doubling(), BatchCost()
    warm_up(model, ModelConfig(batching=BatchingPolicy(max_batch_rows=32)), None, cost)
    assert set(model.batches) == {1, 8, 32}
    assert cost.known


def test_only_allowed_sizes_are_made_up() -> None:
    model = Doubling()
    policy = BatchingPolicy(max_batch_rows=16, allowed_batch_rows=(4, 16))
    warm_up(model, ModelConfig(batching=policy), None, BatchCost())
    assert set(model.batches) == {4, 16}


def test_rows_and_columns_are_replayed_from_beside_the_versions(tmp_path: Path) -> None:
    version = tmp_path / "1"
    version.mkdir()
    record(
        tmp_path, {"inputs": {"x": [[1, 2], [3, 4], [5, 6]]}}, {"instances": [{"x": [1, 2]}, {"x": [3, 4]}]}
    )
    model = Doubling()
    warm_up(model, ModelConfig(), version, BatchCost())
    assert model.batches[:2] == [3, 2]


def test_no_more_requests_than_allowed_are_replayed(tmp_path: Path) -> None:
    record(tmp_path, *[{"inputs": {"x": [[1, 2]] * 5}}] * 9)
    model = Doubling()
    warm_up(model, ModelConfig(warm_up=WarmUpPolicy(max_requests=2)), tmp_path, BatchCost())
    assert model.batches.count(5) == 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"inputs": {"x": [[-1, 2]]}}, "line 2 .* failed"),
        ({"inputs": {"y": [[1, 2]]}}, "line 2 .* is not a request"),
        ({"signature_name": "other", "inputs": {}}, "line 2 .* is not a request"),
        ([1], "line 2 .* is not a request"),
        ({}, "line 2 .* is not a request"),
    ],
)
def test_a_recorded_request_that_fails_fails_the_version(tmp_path: Path, body: object, said: str) -> None:
    record(tmp_path, {"inputs": {"x": [[1, 2]]}}, body)
    with pytest.raises(LoadError, match=said):
        warm_up(Doubling(), ModelConfig(), tmp_path, BatchCost())


def test_a_recording_that_the_settings_name_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"no gone\.jsonl"):
        warm_up(
            Doubling(), ModelConfig(warm_up=WarmUpPolicy(requests=("gone.jsonl",))), tmp_path, BatchCost()
        )


def test_a_model_that_cannot_answer_zeros_is_not_held_to_it() -> None:
    def refuse() -> None:
        raise ValueError("not zeros")

    warm_up(Doubling(before=refuse), ModelConfig(), None, BatchCost())


def test_warm_up_can_be_switched_off() -> None:
    model = Doubling()
    warm_up(model, ModelConfig(warm_up=WarmUpPolicy(enabled=False)), None, BatchCost())
    assert model.batches == []


def test_a_single_input_needs_no_name_and_a_large_request_comes_in_parts_filled_up(tmp_path: Path) -> None:
    record(tmp_path, {"instances": [[1, 2]] * 5}, {"inputs": [[1, 2]]})
    model = Doubling()
    policy = BatchingPolicy(max_batch_rows=4, allowed_batch_rows=(2, 4))
    warm_up(model, ModelConfig(batching=policy), tmp_path, BatchCost())
    assert model.batches[:3] == [4, 2, 2]


@pytest.mark.parametrize("is_native", [True, False])
def test_only_made_up_batches_of_models_without_pythons_lock_are_left_to_idle_time(
    tmp_path: Path, *, is_native: bool
) -> None:
    record(tmp_path, {"inputs": {"x": [[1, 2]] * 5}})
    model, gently = Doubling(), list[int]()
    model.is_native = is_native  # type: ignore[attr-defined]

    def native(call: Callable[[], T]) -> T:
        assert model.batches == [5]  # a recording is read by Python
        result = call()
        gently.extend(model.batches[1:])
        return result

    warm_up(model, ModelConfig(batching=BatchingPolicy(max_batch_rows=8)), tmp_path, BatchCost(), native)
    assert set(model.batches) == {5, 1, 8}
    assert set(gently) == ({1, 8} if is_native else set())
