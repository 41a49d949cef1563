"""Models that are Python code: when they run, how far they see, and how they fail."""

from __future__ import annotations

import gc
import logging
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import joblib
import numpy as np
import pytest

from headrace.base.errors import FailedPrecondition, InvalidRequest, LoadError, ModelError, Overloaded
from headrace.base.tensors import Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, Servable
from headrace.runtimes.registry import RuntimeOptions, load

HEAD = """
import numpy as np
from headrace.base.errors import InvalidRequest

class Model:
    inputs = [("x", "FP64", [])]
    outputs = [("y", "FP64", [])]
"""
PREDICT = "    def predict(self, inputs): ...\n"
X = {"x": np.array([1.0, 2.0])}


def loaded(directory: Path, body: str, head: str = HEAD, **options: object) -> Servable:
    directory.mkdir(exist_ok=True)
    (directory / "model.py").write_text(head + body)
    return load(directory, RuntimeOptions(**{"allow_code": True, **options}))


def answering(directory: Path, expression: str) -> Servable:
    return loaded(directory, f"    def predict(self, inputs): return {expression}\n")


def test_code_is_not_run_unless_the_operator_allows_it(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    with pytest.raises(LoadError, match="--allow-code"):
        loaded(tmp_path, "", head=f"open({str(witness)!r}, 'w')\n", allow_code=False)
    assert not witness.exists()


def test_two_versions_have_modules_of_their_own(tmp_path: Path) -> None:
    servables = []
    for version in ("1", "2"):
        directory = tmp_path / version
        directory.mkdir()
        (directory / "helper.py").write_text(f"VALUE = {version}.0\n")
        body = "    def predict(self, inputs): return {'y': inputs['x'] * helper.VALUE}\n"
        servables.append(loaded(directory, body, head="from . import helper\n" + HEAD))
    assert [servable.predict(X)["y"].tolist() for servable in servables] == [[1.0, 2.0], [2.0, 4.0]]
    for servable in servables:
        servable.close()


AS_SCRIPTS = """
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import helper
from parts import number
import parts.deeper as deeper
import json
"""


def test_versions_whose_code_imports_as_scripts_do_have_modules_of_their_own(tmp_path: Path) -> None:
    """Also what their modules import, and what is imported within a function, while both are loaded."""
    before, servables = list(sys.path), []
    for version in ("1", "2"):
        directory = tmp_path / version
        (directory / "parts").mkdir(parents=True)
        (directory / "helper.py").write_text(f"import other\nVALUE = other.VALUE + {version}.0\n")
        (directory / "other.py").write_text(f"VALUE = {version}0.0\n")
        (directory / "late.py").write_text(f"VALUE = {version}000.0\n")
        (directory / "json.py").write_text("raise ImportError('the standard library has a module json')\n")
        (directory / "parts" / "__init__.py").write_text("")
        (directory / "parts" / "number.py").write_text(f"VALUE = {version}00.0\n")
        (directory / "parts" / "deeper.py").write_text("VALUE = 0.5\n")
        body = (
            "    def predict(self, inputs):\n"
            "        import late\n"
            "        value = helper.VALUE + number.VALUE + deeper.VALUE + late.VALUE\n"
            "        return {'y': inputs['x'] * 0 + value}\n"
        )
        servables.append(loaded(directory, body, head=AS_SCRIPTS + HEAD))
    assert [servable.predict(X)["y"].tolist() for servable in servables] == [[1111.5] * 2, [2222.5] * 2]
    for servable in servables:
        servable.close()
    assert not {"helper", "other", "late", "parts"} & sys.modules.keys()
    assert sys.path == before


@pytest.mark.parametrize("by_path", [False, True], ids=["beside it", "by a path"])
@pytest.mark.parametrize("library", ["pickle", "joblib"])
def test_two_versions_unpickle_classes_of_their_own(tmp_path: Path, library: str, by_path: bool) -> None:
    servables = []
    for version in (1, 2):
        directory = tmp_path / str(version)
        directory.mkdir()
        source = f"class Scaler:\n    def scale(self, x): return x * 0 + {version}\n"
        (directory / "features.py").write_text(source)
        module = ModuleType("features")
        exec(source, vars(module))
        with patch.dict(sys.modules, {"features": module}):
            joblib.dump(module.Scaler(), directory / "scaler")
        paths = "import sys, os\nsys.path.insert(0, os.path.dirname(__file__))\n" if by_path else ""
        body = (
            "    def load(self, path, context):\n"
            f"        with open(path / 'scaler', 'rb') as file: self.scaler = {library}.load(file)\n"
            "    def predict(self, inputs): return {'y': self.scaler.scale(inputs['x'])}\n"
        )
        servables.append(loaded(directory, body, head=f"{paths}import {library}, features\n" + HEAD))
    assert [servable.predict(X)["y"].tolist() for servable in servables] == [[1.0] * 2, [2.0] * 2]
    for servable in servables:
        servable.close()
    assert "features" not in sys.modules


def test_a_library_imports_a_module_of_the_version_while_it_predicts(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("VALUE = 5.0\n")
    body = (
        "    def predict(self, inputs):\n"
        "        return {'y': inputs['x'] * 0 + importlib.import_module('late').VALUE}\n"
    )
    servable = loaded(tmp_path, body, head="import importlib\n" + HEAD)
    assert servable.predict(X)["y"].tolist() == [5.0] * 2
    assert "late" not in sys.modules
    servable.close()


def test_a_folder_of_data_hides_no_installed_package(tmp_path: Path) -> None:
    for folder in ("onnx", "joblib"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "weights.bin").write_bytes(b"\0")
    body = "    def predict(self, inputs): return {'y': inputs['x'] + (joblib.dump is None)}\n"
    servable = loaded(tmp_path, body, head="import onnx, joblib\n" + HEAD)
    assert servable.predict(X)["y"].tolist() == X["x"].tolist()
    servable.close()


def test_a_module_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="No module named 'nowhere'"):
        loaded(tmp_path, PREDICT, head="import nowhere\n" + HEAD)


@pytest.mark.parametrize(
    ("datatype", "given", "expected"),
    [
        ("INT8", "[1, 127]", [1, 127]),
        ("UINT8", "[1, 255]", [1, 255]),
        ("UINT64", "[2**64 - 1, 1]", [2**64 - 1, 1]),
        ("INT16", "np.array([1, -32768])", [1, -32768]),
        ("FP16", "[1.5, 2]", [1.5, 2.0]),
        ("FP32", "[float('inf'), 1e-300]", [float("inf"), 0.0]),
        ("FP64", "[2**70, 1.5]", [2.0**70, 1.5]),
        ("FP32", "[np.float32(0.5), -(2**70)]", [0.5, -(2.0**70)]),
        ("BOOL", "[True, False]", [True, False]),
    ],
)
def test_outputs_that_fit_are_cast(tmp_path: Path, datatype: str, given: str, expected: list[float]) -> None:
    head = HEAD.replace('("y", "FP64", [])', f'("y", "{datatype}", [])')
    servable = loaded(tmp_path, f"    def predict(self, inputs): return {{'y': {given}}}\n", head=head)
    assert servable.predict(X)["y"].tolist() == expected


@pytest.mark.parametrize(
    ("datatype", "given", "said"),
    [
        ("INT8", "[1, 257]", "'y'.*257 does not fit in INT8"),
        ("INT8", "np.array([1, 257])", "'y'.*257 does not fit in INT8"),
        ("UINT32", "[-1, 1]", "'y'.*-1 does not fit in UINT32"),
        ("UINT64", "[2**64, 1]", "'y'.*18446744073709551616"),
        ("FP16", "[70000.0, 1]", "'y'.*70000.0 does not fit in FP16"),
        ("FP32", "np.array([1e300, 1])", "'y'.*1e[+]300 does not fit in FP32"),
        ("FP64", "[10**400, 1]", "'y'.*an integer does not fit in FP64"),
        ("FP32", "[10**60, 1]", "'y'.*1e[+]60 does not fit in FP32"),
        ("FP64", "[2**70, 'a']", "declares y FP64"),
        ("INT64", "[1.5, 2]", "declares y INT64"),
        ("INT64", "[float('nan'), 2]", "declares y INT64"),
        ("BOOL", "[1, 0]", "declares y BOOL"),
        ("FP64", "np.ma.array([1.0, 99.0], mask=[False, True])", "declares y FP64.* masked values; fill"),
        ("BYTES", "np.ma.array(['a', 'b'], object, mask=[False, True])", "declares y BYTES.* masked values"),
    ],
)
def test_outputs_that_do_not_fit_are_the_models_failure(
    tmp_path: Path, datatype: str, given: str, said: str
) -> None:
    head = HEAD.replace('("y", "FP64", [])', f'("y", "{datatype}", [])')
    servable = loaded(tmp_path, f"    def predict(self, inputs): return {{'y': {given}}}\n", head=head)
    with pytest.raises(ModelError, match=said):
        servable.predict(X)


def test_loading_and_closing_leave_no_trace(tmp_path: Path) -> None:
    """Neither in the interpreter nor in the version directory."""
    before = set(sys.modules), list(sys.path), list(sys.meta_path), set(sys.path_importer_cache)
    directory = tmp_path / "1"
    directory.mkdir()
    (directory / "helper.py").write_text("VALUE = 1.0\n")
    body = "    def predict(self, inputs): return {'y': inputs['x'] * helper.VALUE}\n"
    servable = loaded(directory, body, head="from . import helper\n" + HEAD)
    assert any(name.endswith(".helper") for name in set(sys.modules) - before[0])
    assert sys.path == before[1]
    servable.close()
    assert (set(sys.modules), list(sys.path), list(sys.meta_path), set(sys.path_importer_cache)) == before
    assert sorted(path.name for path in directory.iterdir()) == ["helper.py", "model.py"]


def test_a_failed_load_leaves_no_trace_either(tmp_path: Path) -> None:
    before = set(sys.modules), set(sys.path_importer_cache)
    with pytest.raises(LoadError, match="ZeroDivisionError"):
        loaded(tmp_path, "1 / 0\n", head="")
    assert (set(sys.modules), set(sys.path_importer_cache)) == before


def test_code_that_ends_the_process_leaves_no_trace_either(tmp_path: Path) -> None:
    before = set(sys.modules), list(sys.meta_path), set(sys.path_importer_cache)
    (tmp_path / "helper.py").write_text("")
    with pytest.raises(SystemExit):
        loaded(tmp_path, "", head="import sys, helper\nsys.exit(3)\n")
    assert (set(sys.modules), list(sys.meta_path), set(sys.path_importer_cache)) == before


def test_the_model_is_freed_when_its_version_closes(tmp_path: Path) -> None:
    servable = loaded(
        tmp_path,
        "    def predict(self, inputs): return {'y': inputs['x']}\n    def __del__(self): FREED.append(1)\n",
        head="import headrace.runtimes.python as p\nFREED = p.__dict__.setdefault('freed_by_test', [])\n"
        + HEAD,
    )
    servable.close()
    gc.collect()
    from headrace.runtimes import python

    assert vars(python).pop("freed_by_test") == [1]


def test_load_is_given_the_directory_the_threads_and_the_options(tmp_path: Path) -> None:
    body = """
    def load(self, path, context):
        self.value = float((path / "value.txt").read_text()) * context.options["factor"] + context.threads

    def predict(self, inputs):
        return {"y": inputs["x"] + self.value}
"""
    (tmp_path / "value.txt").write_text("100")
    servable = loaded(tmp_path, body, options={"factor": 2.0}, threads=3)
    assert servable.predict(X)["y"].tolist() == [204.0, 205.0]
    servable.close()


CALLING = """
    def load(self, path, context):
        self.context = context

    def predict(self, inputs):
        return {"y": self.context.predict("inner", {"z": inputs["x"]})["out"]}
"""


def test_a_model_may_call_another(tmp_path: Path) -> None:
    def call(name: str, inputs: Tensors) -> Tensors:
        assert name == "inner"
        return {"out": inputs["z"] * 10}

    servable = loaded(tmp_path, CALLING, call=call)
    assert servable.predict(X)["y"].tolist() == [10.0, 20.0]
    servable.close()


def test_the_refusal_of_an_inner_model_comes_out_as_it_is(tmp_path: Path) -> None:
    def call(name: str, inputs: Tensors) -> Tensors:
        raise Overloaded("inner is full", retry_after_seconds=3)

    servable = loaded(tmp_path, CALLING, call=call)
    with pytest.raises(Overloaded, match="inner is full"):
        servable.predict(X)
    servable.close()


def test_there_is_nobody_to_call_outside_of_an_engine(tmp_path: Path) -> None:
    servable = loaded(tmp_path, CALLING)
    with pytest.raises(FailedPrecondition, match="'inner'"):
        servable.predict(X)
    servable.close()


def test_a_model_that_may_wait_says_so(tmp_path: Path) -> None:
    servable = answering(tmp_path, "{'y': inputs['x']}")
    assert getattr(servable, "may_block", False)
    servable.close()


def test_the_traceback_is_logged_and_not_sent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    servable = loaded(tmp_path, "    def predict(self, inputs): raise KeyError('colour')\n")
    with caplog.at_level(logging.ERROR), pytest.raises(ModelError) as raised:
        servable.predict(X)
    assert raised.value.told == "the model failed; the server's log says more"
    assert raised.value.message == "the model raised KeyError; the server's log says more"
    assert "raise KeyError('colour')" in caplog.text
    assert caplog.records[0].name == "headrace.runtimes.python"
    servable.close()


def test_a_model_may_blame_the_request(tmp_path: Path) -> None:
    servable = loaded(
        tmp_path, "    def predict(self, inputs): raise InvalidRequest('too long', field='x')\n"
    )
    with pytest.raises(InvalidRequest, match="x: too long"):
        servable.predict(X)
    servable.close()


def test_inputs_cannot_be_written_to(tmp_path: Path) -> None:
    servable = loaded(
        tmp_path,
        "    def predict(self, inputs):\n        inputs['x'] += 1\n        return {'y': inputs['x']}\n",
    )
    with pytest.raises(ModelError, match="ValueError") as raised:
        servable.predict(X)
    assert "read-only" in str(raised.value.__cause__)
    assert X["x"].tolist() == [1.0, 2.0]
    servable.close()


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("None", "outputs y, but answered with no mapping"),
        ("{}", "outputs y, but answered with none"),
        ("{'y': [1.0, 2.0], 'z': [1.0, 2.0]}", "answered with y, z"),
        ("{'y': 1.0}", r"declares y FP64 \[rows\], but answered with FP64 \[\]"),
        ("{'y': [[1.0], [2.0]]}", r"answered with FP64 \[2, 1\]"),
        ("{'y': [1j, 2j]}", "answered with complex128"),
        ("{'y': ['a', 'b']}", "answered with"),
        ("{'y': [[1.0], [2.0, 3.0]]}", "ValueError"),
    ],
)
def test_an_answer_that_was_not_declared_is_the_models_fault(
    tmp_path: Path, expression: str, said: str
) -> None:
    servable = answering(tmp_path, expression)
    with pytest.raises(ModelError, match=said):
        servable.predict(X)
    servable.close()


def test_lists_and_narrower_numbers_are_taken_as_declared(tmp_path: Path) -> None:
    servable = answering(tmp_path, "{'y': [1, 2]}")
    assert servable.predict(X)["y"].dtype == np.float64
    servable.close()


@pytest.mark.parametrize(
    ("datatype", "shape", "expected"),
    [
        ("INT64", "[None]", (2, 0)),
        ("BOOL", "[None]", (2, 0)),
        ("BYTES", "[None]", (2, 0)),
        ("INT32", "[None, None, 3]", (2, 0, 0, 3)),
    ],
)
def test_lists_without_elements_are_taken_as_declared(
    tmp_path: Path, datatype: str, shape: str, expected: tuple[int, ...]
) -> None:
    outputs = f'outputs = [("y", "{datatype}", {shape})]'
    head = HEAD.replace('outputs = [("y", "FP64", [])]', outputs)
    assert outputs in head
    body = "    def predict(self, inputs):\n        return {'y': [[], []]}\n"
    servable = loaded(tmp_path, body, head)
    answer = servable.predict(X)["y"]
    assert (answer.shape, answer.dtype) == (expected, servable.signatures[DEFAULT_SIGNATURE].outputs[0].dtype)
    servable.close()


def test_rows_with_masked_values_are_the_models_fault(tmp_path: Path) -> None:
    head = HEAD.replace('("y", "FP64", [])', '("y", "FP64", [2])')
    rows = "list(np.ma.array([[1.0, 2.0], [3.0, 99.0]], mask=[[0, 0], [0, 1]]))"
    servable = loaded(tmp_path, f"    def predict(self, inputs): return {{'y': {rows}}}\n", head=head)
    with pytest.raises(ModelError, match=r"declares y FP64.* masked values"):
        servable.predict(X)
    servable.close()


def test_text_that_is_neither_text_nor_bytes_is_the_models_fault(tmp_path: Path) -> None:
    head = "class Model:\n    inputs = [('x', 'FP64', [])]\n    outputs = [('y', 'BYTES', [])]\n"
    servable = loaded(tmp_path, "    def predict(self, inputs): return {'y': [b'a', 1]}\n", head=head)
    with pytest.raises(ModelError, match="not text or bytes"):
        servable.predict(X)
    servable.close()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("Model = 3\n", "expected a class Model"),
        ("class Model: inputs = outputs = [('x', 'FP64', [])]\n", r"needs a method predict"),
        (
            "class Model:\n    def predict(self, inputs): ...\n",
            r"needs inputs = \[\(name, datatype, row shape\), …\]",
        ),
        (HEAD.replace("FP64", "float") + PREDICT, "expected .*FP32.* got"),
        (
            HEAD.replace('("x", "FP64", [])', '"x"') + PREDICT,
            "Model.inputs: .* got 'x'",
        ),
        (
            HEAD.replace("[])]", "[]), ('y', 'BOOL', [])]") + PREDICT,
            "declared twice",
        ),
        (
            HEAD.replace('("y", "FP64", [])', '("y", "FP64", [], 0.0)') + PREDICT,
            r"Model.outputs: .* got \('y', 'FP64', \[\], 0.0\)",
        ),
        (
            HEAD.replace('("x", "FP64", [])', '("x", "FP64", [], "none")') + PREDICT,
            "Model.inputs: expected FP64 as the fourth element of 'x', .* got 'none'",
        ),
        (
            HEAD.replace('("x", "FP64", [])', '("x", "INT8", [], 128)') + PREDICT,
            "Model.inputs: expected INT8 as the fourth element of 'x', .* got 128",
        ),
        (
            HEAD.replace('("x", "FP64", [])', '("x", "BYTES", [], 0)') + PREDICT,
            "Model.inputs: expected a text as the fourth element of 'x', .* got 0",
        ),
        (
            HEAD + PREDICT + "    def load(self, path, context): raise OSError('gone')\n",
            "gone",
        ),
    ],
)
def test_a_class_that_is_not_as_it_should_be_is_a_load_error(tmp_path: Path, source: str, said: str) -> None:
    with pytest.raises(LoadError, match=said):
        loaded(tmp_path, "", head=source)


@pytest.mark.parametrize(
    ("datatype", "absent", "sent", "given"),
    [
        ("FP64", "float('nan')", [1.5, None], [1.5, float("nan")]),
        ("INT64", "-(2**63)", [5, None], [5, -(2**63)]),
        ("BOOL", "False", [True, None], [True, False]),
        ("BYTES", "'unknown'", ["a", None], [b"a", b"unknown"]),
        ("FP64", "None", [1.5, 2.5], [1.5, 2.5]),
    ],
)
def test_a_missing_value_is_replaced_by_the_fourth_element(
    tmp_path: Path, datatype: str, absent: str, sent: list[object], given: list[object]
) -> None:
    inputs = f'[("x", "{datatype}", [], {absent})]'
    head = HEAD.replace('[("x", "FP64", [])]', inputs).replace('("y", "FP64"', '("y", "BYTES"')
    assert inputs in head
    body = "    def predict(self, inputs): return {'y': [repr(one) for one in inputs['x'].tolist()]}\n"
    servable = loaded(tmp_path, body, head)
    signature = servable.signatures[DEFAULT_SIGNATURE]
    checked = signature.check({"x": sent})
    answer = servable.predict({"x": np.asarray(checked.columns[0])})["y"].tolist()
    assert answer == [repr(one).encode() for one in given]
    servable.close()


def test_a_model_is_closed_with_its_version_even_when_that_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = "    def predict(self, inputs): ...\n    def close(self): raise OSError('stuck')\n"
    servable = loaded(tmp_path, body)
    with caplog.at_level(logging.ERROR):
        servable.close()
    assert "stuck" in caplog.text


class _ImportedMeanwhile(str):
    """The name of a module that has another module imported when it is looked at, as another thread may."""

    __slots__ = ()

    def startswith(self, *_: object) -> bool:
        sys.modules["headrace_test_imported_meanwhile"] = ModuleType("x")
        return False


def test_a_version_closes_while_modules_are_imported(tmp_path: Path) -> None:
    servable = answering(tmp_path, "{'y': inputs['x']}")
    with patch.dict(sys.modules):
        sys.modules[_ImportedMeanwhile("headrace_test_importing")] = ModuleType("x")
        servable.close()
        assert "headrace_test_imported_meanwhile" in sys.modules
