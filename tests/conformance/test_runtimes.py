"""What every runtime's Servables do, whatever runs them; adding a runtime is one line in ``RUNTIMES``."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import InvalidRequest, LoadError, ModelError
from headrace.base.tensors import STRING, Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, Servable, Signature
from headrace.runtimes import registry
from tests.conformance.catboost_models import CATBOOST
from tests.conformance.ctr_models import CTR
from tests.conformance.keras_models import KERAS
from tests.conformance.lightgbm_models import LIGHTGBM
from tests.conformance.litert_models import LITERT
from tests.conformance.onnx_models import ONNX
from tests.conformance.python_models import PYTHON
from tests.conformance.runtime_example import Example, RuntimeUnderTest
from tests.conformance.sklearn_models import SKLEARN
from tests.conformance.tensorflow_models import TENSORFLOW
from tests.conformance.torch_models import TORCH
from tests.conformance.vw_models import VW
from tests.conformance.xgboost_models import XGBOOST

RUNTIMES = (
    ONNX,
    SKLEARN,
    LIGHTGBM,
    XGBOOST,
    CATBOOST,
    PYTHON,
    TENSORFLOW,
    KERAS,
    LITERT,
    VW,
    CTR,
    *([TORCH] if find_spec("torch") else []),
)

EXAMPLES = [
    pytest.param(example, id=f"{runtime.kind}-{example.name}")
    for runtime in RUNTIMES
    for example in runtime.examples
]
each_runtime = pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.kind)

_RELOADS = 50
ROOT = Path(__file__).resolve().parents[2]


def load(example: Example, directory: Path) -> Servable:
    directory.mkdir(parents=True, exist_ok=True)
    if not any(directory.iterdir()):
        example.write(directory)
    return registry.load(directory, example.options)


@pytest.fixture(scope="module", params=EXAMPLES)
def example(request: pytest.FixtureRequest) -> Example:
    return request.param


@pytest.fixture(scope="module")
def servable(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servable]:
    loaded = load(example, tmp_path_factory.mktemp("model") / "1")
    yield loaded
    loaded.close()


def signature_of(servable: Servable) -> Signature:
    return servable.signatures[DEFAULT_SIGNATURE]


def zeros_of(servable: Servable, rows: int) -> Tensors:
    """Zeros and empty texts."""
    return {
        spec.name: np.full((rows, *spec.shape), b"" if spec.dtype == STRING else 0, spec.dtype)
        for spec in signature_of(servable).inputs
    }


def row(tensors: Tensors, index: int) -> Tensors:
    return {name: array[index : index + 1] for name, array in tensors.items()}


def assert_close(left: Tensors, right: Tensors, tolerance: float) -> None:
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert array.shape == right[name].shape
        if array.dtype.kind == "f":
            np.testing.assert_allclose(array, right[name], rtol=tolerance, atol=tolerance)
        else:
            assert array.tolist() == right[name].tolist()


def test_the_signature_says_what_goes_in_and_out(example: Example, servable: Servable) -> None:
    signature = signature_of(servable)
    assert tuple(map(str, (*signature.inputs, *signature.outputs))) == example.signature
    assert signature.name == DEFAULT_SIGNATURE
    assert signature.rows == example.rows
    assert servable.platform


def test_inputs_pass_the_signatures_check(example: Example, servable: Servable) -> None:
    rows = example.row_counts()[-1]
    assert signature_of(servable).check(example.inputs(rows), exact=True).rows == rows


def test_as_many_rows_come_out_as_go_in_and_they_are_as_declared(
    example: Example, servable: Servable
) -> None:
    signature = signature_of(servable)
    for rows in example.row_counts():
        outputs = servable.predict(example.inputs(rows))
        assert tuple(outputs) == signature.output_names
        for spec in signature.outputs:
            array = outputs[spec.name]
            assert array.dtype == spec.dtype
            assert len(array) == rows
            assert spec.accepts(array.shape[1:])
            if spec.dtype == STRING:
                assert {type(element) for element in array.flat} == {bytes}


def test_the_same_inputs_give_the_same_outputs(example: Example, servable: Servable) -> None:
    rows = example.row_counts()[-1]
    assert_close(servable.predict(example.inputs(rows)), servable.predict(example.inputs(rows)), 0)


def test_a_row_is_answered_the_same_alone_and_in_a_batch(example: Example, servable: Servable) -> None:
    rows = example.rows or 7
    inputs = example.inputs(rows)
    batch = servable.predict(inputs)
    for index in range(rows):
        if example.rows is None:
            alone = servable.predict(row(inputs, index))
        else:  # alone among copies of itself
            copies = servable.predict(
                {name: np.repeat(one, rows, 0) for name, one in row(inputs, index).items()}
            )
            alone = row(copies, 0)
        assert_close(alone, row(batch, index), example.tolerance)


def test_inputs_are_not_written_to(example: Example, servable: Servable) -> None:
    rows = example.row_counts()[-1]
    inputs, expected = example.inputs(rows), example.inputs(rows)
    for array in inputs.values():
        array.flags.writeable = False
    servable.predict(inputs)
    assert_close(inputs, expected, 0)


def test_outputs_stay_as_they_are_when_the_next_call_comes(example: Example, servable: Servable) -> None:
    rows = example.row_counts()[-1]
    first = servable.predict(example.inputs(rows))
    kept = {name: array.copy() for name, array in first.items()}
    servable.predict({name: array[::-1].copy() for name, array in example.inputs(rows).items()})
    assert_close(first, kept, 0)


def test_four_threads_may_call_at_once(example: Example, servable: Servable) -> None:
    counts = [example.rows or count for count in (1, 2, 7, 30)] * 5
    expected = {count: servable.predict(example.inputs(count)) for count in set(counts)}
    with ThreadPoolExecutor(4) as threads:
        for count, outputs in zip(
            counts, threads.map(lambda count: servable.predict(example.inputs(count)), counts), strict=True
        ):
            assert_close(outputs, expected[count], example.tolerance)


@each_runtime
def test_a_broken_file_is_a_load_error_that_names_it(runtime: RuntimeUnderTest, tmp_path: Path) -> None:
    for contents in runtime.broken:
        (tmp_path / runtime.file).write_bytes(contents)
        with pytest.raises(LoadError, match=runtime.file):
            registry.load(tmp_path, runtime.examples[0].options)


@pytest.mark.parametrize(
    "runtime", [runtime for runtime in RUNTIMES if runtime.knows_options], ids=lambda runtime: runtime.kind
)
def test_a_setting_that_the_runtime_does_not_have_is_a_load_error(
    runtime: RuntimeUnderTest, tmp_path: Path
) -> None:
    runtime.examples[0].write(tmp_path)
    with pytest.raises(LoadError, match=r"runtime\.options\.spelt_wrong"):
        registry.load(tmp_path, replace(runtime.examples[0].options, options={"spelt_wrong": 1}))


@pytest.mark.parametrize(
    "failing", [pytest.param(one.failing, id=one.kind) for one in RUNTIMES if one.failing is not None]
)
def test_a_failing_call_is_an_error_without_paths_and_the_next_call_works(
    failing: Example, tmp_path: Path
) -> None:
    servable = load(failing, tmp_path)
    with pytest.raises((ModelError, InvalidRequest)) as raised:
        servable.predict(failing.inputs(2))
    assert str(tmp_path) not in raised.value.message
    assert ".cc" not in raised.value.message
    assert servable.predict(zeros_of(servable, 2))
    servable.close()


@each_runtime
def test_a_closed_servable_is_freed(runtime: RuntimeUnderTest, tmp_path: Path) -> None:
    servable = load(runtime.examples[0], tmp_path)
    servable.predict(runtime.examples[0].inputs(2))
    reference = weakref.ref(servable)
    servable.close()
    del servable
    gc.collect()
    assert reference() is None


@pytest.mark.timing
@each_runtime
def test_memory_does_not_grow_with_reloads(runtime: RuntimeUnderTest, tmp_path: Path) -> None:
    """The large models hold over a megabyte each, so fifty leaked ones could not hide.

    A process of its own reloads: others of this one's threads and tests hold memory, too.
    """
    command = [sys.executable, "-m", "tests.conformance.reloads", runtime.kind, tmp_path, str(_RELOADS)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.split()[-1]) < _RELOADS * 1_000_000 / 2
