"""ONNX Runtime: ``model.onnx``, with or without external data files beside it.

The first axis of every input and output is rows. A model exported for a fixed number of rows is called with
exactly that many. Sequences of maps (the ZipMap of skl2onnx) become FP32, with one column per class.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from headrace.base.errors import HeadraceError, InvalidRequest, LoadError, ModelError, NotLoadable
from headrace.base.tensors import STRING, Array, Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec
from headrace.runtimes.format_guess import look_of_onnx
from headrace.runtimes.onnx_external import external_names, read_external
from headrace.runtimes.onnx_providers import OPTION, expect_providers, find_providers, provider_options
from headrace.runtimes.options import RuntimeOptions
from headrace.sealed_memory.file_copying import LARGE_BYTES

_DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(bool)": np.dtype(np.bool_),
    "tensor(int8)": np.dtype(np.int8),
    "tensor(int16)": np.dtype(np.int16),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(uint8)": np.dtype(np.uint8),
    "tensor(uint16)": np.dtype(np.uint16),
    "tensor(uint32)": np.dtype(np.uint32),
    "tensor(uint64)": np.dtype(np.uint64),
    "tensor(string)": STRING,
}
_MAPS = ("seq(map(int64,tensor(float)))", "seq(map(string,tensor(float)))")

_OPTIMIZATION = {
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "off": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_FATAL_ONLY = 4  # Everything else that ONNX Runtime would print is also in the exceptions it raises.

_FROM_MEMORY = "add_external_initializers_from_files_in_memory"
_WHERE_THEY_LIE = "session.use_external_initializer_file_buffers_directly"  # older releases copy the data

_NOT_PARSED = "Protobuf parsing failed"
_LONG_TEXT_BYTES = 1024 * 1024

_Convert = Callable[[Any], Array]
_Node = Any  # onnxruntime ships no types: a NodeArg has a name, a type and a shape


def load(file: Path, options: RuntimeOptions) -> OnnxServable:
    """Load an ONNX file.

    Args:
        file: The file; ONNX Runtime reads it by its path, without holding the GIL.
        options: The operator's settings.

    Raises:
        LoadError: ONNX Runtime refuses it, its external data cannot be read, or the first axis of an input or
            output is not rows.
    """
    session_options(options)  # rejects invalid options before anything is read
    find_providers(options.options)
    try:
        external = options.share(lambda: _external(file, options))
        session = options.native(lambda: _session(file, options, external))
    except HeadraceError:
        raise
    except Exception as error:  # the boundary to ONNX Runtime, whose exceptions share no base class
        said = _text(error)
        if _NOT_PARSED in said:
            said = f"{said.rstrip('.')}: {look_of_onnx(file)}"
        raise LoadError(f"ONNX Runtime cannot load {file.name}: {said}") from error
    inputs, outputs = session.get_inputs(), session.get_outputs()
    signature = Signature(
        DEFAULT_SIGNATURE,
        tuple(_input(node) for node in inputs),
        tuple(_output(node) for node in outputs),
        kind=options.signature.kind,
        rows=_fixed_rows(inputs),
    )
    servable = OnnxServable(session, signature, [node.type in _MAPS for node in outputs])
    servable.external = external
    return servable


def checked(file: Path) -> frozenset[str]:
    """Return the large files beside a model whose checksums ``load`` checks, named as in a manifest.

    Raises:
        LoadError: The model cannot be read.
    """
    if not hasattr(onnxruntime.SessionOptions, _FROM_MEMORY):
        return frozenset()
    return frozenset(map(os.path.normpath, external_names(file, LARGE_BYTES)))


def _external(file: Path, options: RuntimeOptions) -> dict[str, Array]:
    if not hasattr(onnxruntime.SessionOptions, _FROM_MEMORY):
        return {}  # an older ONNX Runtime, which maps the files itself
    return read_external(file, options.checksums)


def _session(
    file: Path, options: RuntimeOptions, external: Mapping[str, Array]
) -> onnxruntime.InferenceSession:
    """Create a session; it refers to memory of ``external``, which must outlive it."""
    settings = session_options(options)
    if external:
        settings.add_session_config_entry(_WHERE_THEY_LIE, "1")
        contents = list(external.values())
        getattr(settings, _FROM_MEMORY)(list(external), contents, [*map(len, contents)])
    providers = find_providers(options.options)
    # No fallback: it would print the error, then fail in the same way.
    session = onnxruntime.InferenceSession(str(file), settings, providers=providers, enable_fallback=0)
    expect_providers(session, providers)
    return session


class OnnxServable:
    """A session of ONNX Runtime.

    Attributes:
        metadata: The file's custom metadata, by key, as written by its exporter.
        external: The contents of files beside the model; the session uses them in place.
    """

    platform = "onnxruntime_onnx"
    is_native = True

    def __init__(
        self, session: onnxruntime.InferenceSession, signature: Signature, maps: Sequence[bool]
    ) -> None:
        """Precompute everything that all calls share.

        Args:
            session: The session.
            signature: Its signature.
            maps: For each output, whether it is a sequence of maps.
        """
        self.signatures: Mapping[str, Signature] = {signature.name: signature}
        self.metadata: Mapping[str, str] = session.get_modelmeta().custom_metadata_map
        self.external: Mapping[str, Array] = {}
        self._names = list(signature.output_names)
        self._texts = [spec.name for spec in signature.inputs if spec.dtype == STRING]
        self._converted: list[tuple[str, _Convert]] = [
            (spec.name, _columns if is_map else _as_bytes)
            for spec, is_map in zip(signature.outputs, maps, strict=True)
            if is_map or spec.dtype == STRING
        ]
        # The inner session does not check the inputs, which are checked on arrival. Checking them again would
        # add a tenth to a small model's call.
        self._run: Callable[..., list[Any]] = getattr(session, "_sess", session).run

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Predict a whole batch.

        Args:
            inputs: Every input, checked.
            signature: There is only the default one.

        Raises:
            InvalidRequest: A string is not UTF-8.
            ModelError: ONNX Runtime failed.
        """
        if self._texts:
            inputs = {**inputs, **{name: _as_text(name, inputs[name]) for name in self._texts}}
        try:
            outputs = dict(zip(self._names, self._run(self._names, inputs, None), strict=True))
        except Exception as error:  # the boundary to ONNX Runtime, whose exceptions share no base class
            raise ModelError(f"the model failed: {_text(error)}") from error
        for name, convert in self._converted:
            outputs[name] = convert(outputs[name])
        return outputs

    def close(self) -> None:
        """Free the session, and then the external data that it refers to."""
        del self._run
        self.external = {}


def session_options(options: RuntimeOptions) -> onnxruntime.SessionOptions:
    """Translate the operator's settings for ONNX Runtime.

    Raises:
        LoadError: An option is unknown or invalid.
    """
    entries = {name: value for name, value in options.options.items() if name.startswith("session.")}
    others = {**entries, **provider_options(options.options)}
    types = {name: type(value) for name, value in others.items()}
    options.check_known({"optimization": str, OPTION: str, **types})
    level = str(options.options.get("optimization", "all"))
    if level not in _OPTIMIZATION:
        raise NotLoadable(f"runtime.options.optimization: expected {', '.join(_OPTIMIZATION)}, got {level!r}")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    settings.inter_op_num_threads = 1
    settings.graph_optimization_level = _OPTIMIZATION[level]
    settings.log_severity_level = _FATAL_ONLY
    # Threads that spin while they wait take cores away from the serving thread.
    for name, value in {"session.intra_op.allow_spinning": False, **entries}.items():
        settings.add_session_config_entry(name, str(int(value) if isinstance(value, bool) else value))
    return settings


def _input(node: _Node) -> TensorSpec:
    dtype = _DTYPES.get(node.type)
    if dtype is None:
        raise NotLoadable(f"input {node.name!r} is {node.type}, which no request can carry; make it a tensor")
    return TensorSpec(node.name, dtype, _row_shape("input", node))


def _output(node: _Node) -> TensorSpec:
    if node.type in _MAPS:
        return TensorSpec(node.name, np.dtype(np.float32), (None,))
    dtype = _DTYPES.get(node.type)
    if dtype is None:
        raise NotLoadable(
            f"output {node.name!r} is {node.type}, which no answer can carry; make it a tensor "
            "(skl2onnx: options={'zipmap': False}; torch: cast bfloat16 to float32)"
        )
    return TensorSpec(node.name, dtype, _row_shape("output", node))


def _row_shape(side: str, node: _Node) -> tuple[int | None, ...]:
    if not node.shape:
        raise NotLoadable(
            f"{side} {node.name!r} has no axes (or none declared), but the first axis must be rows: "
            "export the model with a batch axis, or run onnx.shape_inference over it"
        )
    return tuple(size if isinstance(size, int) else None for size in node.shape[1:])


def _fixed_rows(inputs: Sequence[_Node]) -> int | None:
    fixed = {node.name: node.shape[0] for node in inputs if isinstance(node.shape[0], int)}
    if len(set(fixed.values())) > 1:
        said = ", ".join(f"{name} {rows}" for name, rows in fixed.items())
        raise NotLoadable(
            f"the inputs have different fixed first axes ({said}), which cannot all be rows; "
            "export the model with a batch axis"
        )
    return next(iter(fixed.values()), None)


def _as_text(name: str, array: Array) -> Array:
    try:
        if array.size == 1 and len(array.flat[0]) > _LONG_TEXT_BYTES:
            return _as_void(array)
        return np.array([element.decode() for element in array.flat], dtype=object).reshape(array.shape)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"expected UTF-8 text, got {error.object[:40]!r}", field=name) from error


def _as_void(array: Array) -> Array:
    """Return one long text as raw bytes: ONNX Runtime copies them once, a Python string twice.

    UTF-8 is validated piece by piece, so that other threads can run in between.
    """
    text: bytes = array.flat[0]
    decoder, view = codecs.getincrementaldecoder("utf-8")(), memoryview(text)
    for start in range(0, len(text), _LONG_TEXT_BYTES):
        decoder.decode(view[start : start + _LONG_TEXT_BYTES], final=start + _LONG_TEXT_BYTES >= len(text))
    void: Array = np.frombuffer(text, np.dtype((np.void, len(text)))).reshape(array.shape)
    return void


def _as_bytes(array: Array) -> Array:
    return np.array([element.encode() for element in array.flat], dtype=object).reshape(array.shape)


def _columns(maps: Sequence[Mapping[object, float]]) -> Array:
    return np.array([list(row.values()) for row in maps], dtype=np.float32)


def _text(error: Exception) -> str:
    """Return ONNX Runtime's error text without its prefix and without paths."""
    said = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error))
    said = re.sub(r"^Load model from .*? failed: ?", "", said)
    said = re.sub(r"(?<!\S)(?:[A-Za-z]:)?[/\\]\S+", "", said)
    return " ".join(said.split())
