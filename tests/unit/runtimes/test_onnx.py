"""What the ONNX runtime makes of inputs, outputs and settings of every kind."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.base.errors import InvalidRequest, LoadError, NotLoadable
from headrace.base.tensors import STRING, Array
from headrace.model.servable import Servable
from headrace.runtimes import onnx as runtime
from headrace.runtimes.onnx import expect_providers, find_providers, read_external
from headrace.runtimes.options import Option, RuntimeOptions
from headrace.runtimes.registry import load
from tests.conformance.onnx_models import Axis, build, lookup, network, save, strings
from tests.model_directories import affine

DATATYPES = {
    TensorProto.FLOAT: np.float32,
    TensorProto.DOUBLE: np.float64,
    TensorProto.FLOAT16: np.float16,
    TensorProto.BOOL: np.bool_,
    TensorProto.INT8: np.int8,
    TensorProto.INT16: np.int16,
    TensorProto.INT32: np.int32,
    TensorProto.INT64: np.int64,
    TensorProto.UINT8: np.uint8,
    TensorProto.UINT16: np.uint16,
    TensorProto.UINT32: np.uint32,
    TensorProto.UINT64: np.uint64,
}

TABLE = np.random.default_rng(1).standard_normal((50_000, 4)).astype(np.float32)

CPU, CUDA, TENSORRT = (f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "Tensorrt"))


def identity(datatype: int, shape: list[Axis] | None) -> onnx.ModelProto:
    return build(
        [helper.make_node("Identity", ["x"], ["y"])], [("x", datatype, shape)], [("y", datatype, shape)]
    )


def loaded(directory: Path, model: onnx.ModelProto, **options: object) -> Servable:
    save(model, directory)
    return load(directory, RuntimeOptions(**options))


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_goes_through_unchanged(tmp_path: Path, datatype: int) -> None:
    servable = loaded(tmp_path, identity(datatype, ["rows", 2]))
    limits = np.finfo if DATATYPES[datatype] in (np.float16, np.float32, np.float64) else np.iinfo
    if datatype == TensorProto.BOOL:
        values = np.array([[True, False]])
    else:
        edges = limits(DATATYPES[datatype])
        values = np.array([[edges.min, edges.max]], DATATYPES[datatype])
    answer = servable.predict({"x": values})["y"]
    assert answer.dtype == values.dtype
    assert answer.tolist() == values.tolist()
    servable.close()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (identity(TensorProto.FLOAT, []), "input 'x' has no axes .* the first axis must be rows"),
        (identity(TensorProto.FLOAT, None), "input 'x' has no axes"),
        (identity(TensorProto.BFLOAT16, ["rows"]), r"input 'x' is tensor\(bfloat16\)"),
        (
            build(
                [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)],
                [("x", TensorProto.FLOAT, ["rows"])],
                [("y", TensorProto.FLOAT, [])],
            ),
            "output 'y' has no axes",
        ),
        (
            build(
                [helper.make_node("MatMul", ["a", "b"], ["y"])],
                [("a", TensorProto.FLOAT, [2, 3]), ("b", TensorProto.FLOAT, [3, 4])],
                [("y", TensorProto.FLOAT, [2, 4])],
            ),
            r"different fixed first axes \(a 2, b 3\)",
        ),
        (
            build(
                [helper.make_node("SequenceConstruct", ["x"], ["y"])],
                [("x", TensorProto.FLOAT, ["rows"])],
                [],
            ),
            r"output 'y' is seq\(tensor\(float\)\).*zipmap",
        ),
    ],
    ids=["scalar", "rankless", "bfloat16", "scalar-output", "not-rows", "sequence"],
)
def test_what_is_not_rows_is_refused_with_the_way_out(
    tmp_path: Path, model: onnx.ModelProto, said: str
) -> None:
    if not model.graph.output:
        sequence = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, ["rows"])
        model = onnx.ModelProto.FromString(model.SerializeToString())
        model.graph.output.append(sequence)
    with pytest.raises(LoadError, match=said):
        loaded(tmp_path, model)


@pytest.mark.parametrize(
    ("labels", "key_type"),
    [
        ({"classlabels_int64s": [3, 1, 2]}, TensorProto.INT64),
        ({"classlabels_strings": ["c", "a", "b"]}, TensorProto.STRING),
    ],
)
def test_maps_of_classes_become_columns_in_the_classes_order(
    tmp_path: Path, labels: dict[str, list[object]], key_type: int
) -> None:
    model = build(
        [helper.make_node("ZipMap", ["x"], ["p"], domain="ai.onnx.ml", **labels)],
        [("x", TensorProto.FLOAT, ["rows", 3])],
        [],
        opset=[helper.make_opsetid("ai.onnx.ml", 2)],
    )
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(key_type, value))
    model.graph.output.append(helper.make_value_info("p", kind))
    servable = loaded(tmp_path, model)
    assert str(servable.signatures["serving_default"].outputs[0]) == "p FP32 [rows, any]"
    answer = servable.predict({"x": np.array([[0.3, 0.1, 0.2], [0.6, 0.4, 0.0]], np.float32)})["p"]
    np.testing.assert_array_equal(answer, np.array([[0.1, 0.2, 0.3], [0.4, 0.0, 0.6]], np.float32))
    servable.close()


def test_data_beside_the_model_is_found(tmp_path: Path) -> None:
    onnx.save(
        lookup(),
        tmp_path / "model.onnx",
        save_as_external_data=True,
        location="model.data",
        size_threshold=1024,
    )
    assert (tmp_path / "model.data").stat().st_size > 1_000_000
    servable = load(tmp_path, RuntimeOptions())
    keys = np.zeros((2, 3), np.int32)
    inside = loaded(tmp_path, lookup())
    inputs = {"keys": keys, "flag": np.zeros(2, np.bool_)}
    assert servable.predict(inputs)["sum"].tolist() == inside.predict(inputs)["sum"].tolist()
    servable.close()
    inside.close()


def test_text_that_is_not_utf_8_is_the_requests_fault(tmp_path: Path) -> None:
    servable = loaded(tmp_path, strings())
    with pytest.raises(InvalidRequest, match="text: expected UTF-8") as raised:
        servable.predict({"text": np.array([[b"red", b"\xff\xfe"]], dtype=object)})
    assert raised.value.field == "text"
    servable.close()


def test_an_empty_batch_of_text_keeps_its_shape(tmp_path: Path) -> None:
    servable = loaded(tmp_path, strings())
    answer: Array = servable.predict({"text": np.empty((0, 2), dtype=object)})["same"]
    assert (answer.dtype, answer.shape) == (STRING, (0, 2))
    servable.close()


@pytest.mark.parametrize("level", ["all", "extended", "basic", "off"])
def test_graph_optimisation_can_be_chosen(tmp_path: Path, level: str) -> None:
    servable = loaded(tmp_path, network(), options={"optimization": level}, threads=2)
    assert servable.predict({"x": np.zeros((3, 64), np.float32)})["p"].shape == (3, 10)
    servable.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimization": "most"}, "expected all, extended, basic, off, got 'most'"),
        ({"optimization": 3}, "expected str, got 3"),
    ],
)
def test_a_wrong_setting_is_a_load_error(tmp_path: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(LoadError, match=said):
        loaded(tmp_path, network(), options=options)


def test_settings_of_onnx_runtime_are_passed_on(tmp_path: Path) -> None:
    options = {"session.intra_op.allow_spinning": True, "session.disable_prepacking": "1"}
    servable = loaded(tmp_path, network(), options=options)
    assert servable.predict({"x": np.zeros((1, 64), np.float32)})["p"].shape == (1, 10)
    servable.close()


@pytest.mark.parametrize("ending", [b"", b"\0\0", "ä\0€".encode()])
def test_one_long_text_is_answered_byte_by_byte_as_it_came(tmp_path: Path, ending: bytes) -> None:
    """It goes to ONNX Runtime as bytes: none may be taken for padding, and no piece cuts a character."""
    text = ("ä€" * 500_000).encode() + ending
    servable = loaded(tmp_path, identity(TensorProto.STRING, ["rows", 1]))
    assert servable.predict({"x": np.array([[text]], STRING)})["y"].tolist() == [[text]]
    servable.close()


@pytest.mark.parametrize("text", [b"w" * 3_000_000 + b"\xe2\x82", b"\xff" + b"w" * 3_000_000])
def test_one_long_text_that_is_not_utf_8_is_refused(tmp_path: Path, text: bytes) -> None:
    servable = loaded(tmp_path, identity(TensorProto.STRING, ["rows"]))
    with pytest.raises(InvalidRequest, match="x: expected UTF-8"):
        servable.predict({"x": np.array([text], STRING)})
    servable.close()


def model(table: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> onnx.ModelProto:
    asked = helper.make_tensor_value_info("x", TensorProto.INT64, ["rows"])
    answer = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"])]
    graph = helper.make_graph(nodes, "lookup", [asked], [answer], [numpy_helper.from_array(table, "table")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def saved(directory: Path, location: str = "model.data") -> Path:
    file = directory / "model.onnx"
    (directory / location).parent.mkdir(exist_ok=True)
    onnx.save(model(TABLE), file, save_as_external_data=True, location=location, size_threshold=1024)
    return file


@pytest.mark.parametrize("location", ["model.data", "weights/table.bin", "n" * 200])
def test_what_is_answered_does_not_depend_on_the_file_any_more(tmp_path: Path, location: str) -> None:
    file = saved(tmp_path, location)
    (tmp_path / "notes.txt").write_text("not named by the model")
    assert list(read_external(file, None)) == [location]
    servable = runtime.load(file, RuntimeOptions())
    (tmp_path / location).write_bytes(b"")
    rows = np.arange(0, len(TABLE), 100)
    np.testing.assert_array_equal(servable.predict({"x": rows})["y"], TABLE[rows])
    servable.close()


def test_a_model_with_its_weights_inside_reads_nothing_besides(tmp_path: Path) -> None:
    onnx.save(model(TABLE), tmp_path / "model.onnx")
    (tmp_path / "model.data").write_bytes(b"of something else")
    assert read_external(tmp_path / "model.onnx", None) == {}


@pytest.mark.parametrize(
    ("checksums", "said"),
    [
        ({}, "model.data is read, and the manifest does not list it"),
        ({"model.data": "0" * 64}, "model.data does not have the checksum"),
    ],
)
def test_what_is_read_is_what_the_manifest_lists(
    tmp_path: Path, checksums: dict[str, str], said: str
) -> None:
    with pytest.raises(LoadError, match=said):
        runtime.load(saved(tmp_path), RuntimeOptions(checksums=checksums))


def test_the_right_checksum_is_accepted(tmp_path: Path) -> None:
    file = saved(tmp_path)
    digest = hashlib.sha256((tmp_path / "model.data").read_bytes()).hexdigest()
    runtime.load(file, RuntimeOptions(checksums={"model.data": digest})).close()


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of ONNX Runtime that has each provider."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", onnxruntime.get_all_providers)


@pytest.mark.usefixtures("everything")
@pytest.mark.parametrize(
    ("options", "providers"),
    [
        ({}, [(CPU, {})]),
        ({"providers": "cuda"}, [(CUDA, {}), (CPU, {})]),
        ({"providers": "tensorrt, cuda"}, [(TENSORRT, {}), (CUDA, {}), (CPU, {})]),
        ({"providers": "cpu,cuda"}, [(CUDA, {}), (CPU, {})]),
        (
            {"providers": "cuda", "cuda.device_id": 1, "cuda.use_tf32": False},
            [(CUDA, {"device_id": "1", "use_tf32": "0"}), (CPU, {})],
        ),
    ],
)
def test_the_processor_is_last(options: dict[str, Option], providers: list[tuple[str, object]]) -> None:
    assert find_providers(options) == providers


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"providers": "gpu"}, "expected some of cpu, cuda, tensorrt, openvino, coreml, .* got 'gpu'"),
        ({"providers": ""}, "got ''"),
        (
            {"providers": "cuda"},
            "the installed ONNX Runtime has cpu, not cuda; .*pip install onnxruntime-gpu",
        ),
        ({"cuda.device_id": 1}, r"runtime\.options\.cuda\.device_id: .*does not choose cuda"),
    ],
)
def test_a_provider_that_cannot_be_had_is_an_error_that_says_so(
    options: dict[str, Option], said: str, tmp_path: Path
) -> None:
    (tmp_path / "model.onnx").write_bytes(affine(1.0, 2.0))
    with pytest.raises(NotLoadable, match=said):
        load(tmp_path, RuntimeOptions(options=options))


def test_a_provider_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    """ONNX Runtime would compute on the processor instead."""
    session = onnxruntime.InferenceSession(affine(1.0, 2.0), providers=[CPU])
    expect_providers(session, [(CPU, {})])
    with pytest.raises(LoadError, match="could not start CUDAExecutionProvider"):
        expect_providers(session, [(CUDA, {}), (CPU, {})])


def test_the_processor_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(affine(1.0, 2.0))
    load(tmp_path, RuntimeOptions(options={"providers": "cpu"})).close()
