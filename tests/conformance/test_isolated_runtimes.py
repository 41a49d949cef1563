"""What every runtime's Servables do, they do in processes of their own, too: by the same suite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.base.errors import InvalidRequest, LoadError, ModelError
from headrace.base.tensors import Tensors
from headrace.config import ModelConfig
from headrace.isolation.replica import Which
from headrace.isolation.servable import IsolatedServable
from headrace.model.servable import EXPLAIN_SIGNATURE, Servable
from headrace.runtimes import registry
from headrace.serving.engine import Engine
from headrace.stream.schema import Schema
from tests.conformance import ctr_models
from tests.conformance.runtime_example import Example, RuntimeUnderTest

# Collected here, too, and given this module's `servable`.
from tests.conformance.test_runtimes import (
    RUNTIMES,
    assert_close,
    test_a_row_is_answered_the_same_alone_and_in_a_batch,
    test_as_many_rows_come_out_as_go_in_and_they_are_as_declared,
    test_four_threads_may_call_at_once,
    test_inputs_are_not_written_to,
    test_inputs_pass_the_signatures_check,
    test_outputs_stay_as_they_are_when_the_next_call_comes,
    test_the_same_inputs_give_the_same_outputs,
    test_the_signature_says_what_goes_in_and_out,
    zeros_of,
)
from tests.model_directories import affine, write

__all__ = [
    "test_a_row_is_answered_the_same_alone_and_in_a_batch",
    "test_as_many_rows_come_out_as_go_in_and_they_are_as_declared",
    "test_four_threads_may_call_at_once",
    "test_inputs_are_not_written_to",
    "test_inputs_pass_the_signatures_check",
    "test_outputs_stay_as_they_are_when_the_next_call_comes",
    "test_the_same_inputs_give_the_same_outputs",
    "test_the_signature_says_what_goes_in_and_out",
]


def isolated(directory: Path, options: registry.RuntimeOptions) -> IsolatedServable:
    return IsolatedServable(Which("example", 1, directory), options, ModelConfig())


def marks_of(runtime: RuntimeUnderTest) -> list[pytest.MarkDecorator]:
    """These, or what their models are made with, take two seconds or more to import."""
    slow = ("tensorflow", "keras", "sklearn", "catboost", "litert")
    return [pytest.mark.rest] if runtime.kind in slow else []


# What differs by the model and not by the runtime is tested in process: a process takes a second to start.
EXAMPLES = [
    pytest.param(example, id=f"{runtime.kind}-{example.name}", marks=marks_of(runtime))
    for runtime in RUNTIMES
    for example in runtime.examples[:2]
]


@pytest.fixture(scope="module", params=EXAMPLES)
def example(request: pytest.FixtureRequest) -> Example:
    return request.param


@pytest.fixture(scope="module")
def servable(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servable]:
    directory = tmp_path_factory.mktemp("model") / "1"
    directory.mkdir()
    example.write(directory)
    loaded = isolated(directory, example.options)
    yield loaded
    loaded.close()


@pytest.mark.parametrize(
    "failing",
    [
        pytest.param(one.failing, id=one.kind, marks=marks_of(one))
        for one in RUNTIMES
        if one.failing is not None
    ],
)
def test_a_failing_call_has_the_error_of_a_model_in_process(failing: Example, tmp_path: Path) -> None:
    failing.write(tmp_path)
    here, there = (load(tmp_path, failing.options) for load in (registry.load, isolated))
    said = []
    for servable in (here, there):
        with pytest.raises((ModelError, InvalidRequest)) as raised:
            servable.predict(failing.inputs(2))
        said.append((type(raised.value), raised.value.message, getattr(raised.value, "rows", None)))
    assert said[0] == said[1]
    zeros = zeros_of(there, 2)
    assert_close(there.predict(zeros), here.predict(zeros), 1e-6)
    here.close()
    there.close()


@pytest.mark.parametrize("runtime", [pytest.param(one, id=one.kind, marks=marks_of(one)) for one in RUNTIMES])
def test_a_version_that_cannot_be_loaded_has_the_error_of_a_model_in_process(
    runtime: RuntimeUnderTest, tmp_path: Path
) -> None:
    """A damaged file, and a runtime that does not exist."""
    (tmp_path / runtime.file).write_bytes(runtime.broken[0])
    options = runtime.examples[0].options
    for tried in (options, replace(options, kind="nothing_of_that_name")):
        said = []
        for load in (registry.load, isolated):
            with pytest.raises(LoadError) as raised:
                load(tmp_path, tried)
            said.append((type(raised.value), raised.value.message))
        assert said[0] == said[1]


@pytest.mark.parametrize(
    ("schema", "inputs"),
    [(ctr_models.SCHEMA, ctr_models.field_inputs(5)), (ctr_models.LARGE, ctr_models.bucket_inputs(5))],
    ids=["texts", "numbers"],
)
def test_a_click_model_explains_itself_as_in_process(schema: Schema, inputs: Tensors, tmp_path: Path) -> None:
    """Also in turns with predictions, and when inputs of the same shapes come again."""
    ctr_models.write(tmp_path, "fm", schema)
    here, there = (load(tmp_path, registry.RuntimeOptions()) for load in (registry.load, isolated))
    said = here.predict(inputs, EXPLAIN_SIGNATURE)
    for _ in range(3):
        assert_close(there.predict(inputs, EXPLAIN_SIGNATURE), said, 1e-6)
        assert_close(there.predict(inputs), here.predict(inputs), 1e-6)
    assert all(len(values) == 5 for values in said.values())
    assert sum(abs(values).sum() for values in said.values()) > 0
    here.close()
    there.close()


def test_an_answer_is_repeated_from_the_prediction_cache(tmp_path: Path) -> None:
    write(tmp_path, "m", 1, affine(2.0, 1.0))
    (tmp_path / "m/headrace.toml").write_text("isolate = true\n[cache]\nsize_bytes = 1000000\n")
    with Engine.in_thread(tmp_path) as engine:
        for _ in range(3):
            assert engine.predict_blocking("m", {"x": [3.0]})["y"].tolist() == [7.0]
        (loaded,) = engine.manager.all_loaded()
        assert loaded.isolated is not None
        counted = loaded.statistics
        assert (counted.cache_misses, counted.cache_hits, counted.requests) == (1, 2, 3)


def test_an_engine_loads_a_model_in_as_many_processes_as_are_asked_for(tmp_path: Path) -> None:
    write(tmp_path, "m", 1, affine(2.0, 1.0), "[batching]\ninstance_processes = 2\n")
    with Engine.in_thread(tmp_path) as engine:
        assert engine.predict_blocking("m", {"x": [3.0]})["y"].tolist() == [7.0]
        (loaded,) = engine.manager.all_loaded()
        assert loaded.isolated is not None
        assert (loaded.isolated.process_count, loaded.trouble) == (2, "")
        assert loaded.isolated.memory_bytes > 0
