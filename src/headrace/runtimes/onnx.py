"""ONNX Runtime: ``model.onnx``, with or without external data files beside it.

The first axis of every input and output is rows. A model exported for a fixed number of rows is called with
exactly that many. Sequences of maps (the ZipMap of skl2onnx) become FP32, with one column per class.

By default, ONNX Runtime maps external data. Truncating a mapped file kills the process, and overwriting it
changes the answers. So the data are copied to sealed memory, which cannot change, and which several processes
may share; ONNX Runtime uses it in place.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from headrace.base.errors import HeadraceError, InvalidRequest, LoadError, ModelError, NotLoadable, listed
from headrace.base.files import open_file
from headrace.base.tensors import STRING, Array, Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec
from headrace.runtimes.format_guess import look_of_onnx
from headrace.runtimes.options import Option, RuntimeOptions
from headrace.sealed_memory.file_copying import LARGE_BYTES, Content, NotCopied, sealed_copy

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

_PIECE_BYTES = 2**20
_BYTE = np.dtype(np.uint8)
_KEY = b"\x0a\x08location\x12"  # precedes the name of a data file in a model's bytes

_PROVIDERS = {
    "cpu": ("CPUExecutionProvider", "onnxruntime"),
    "cuda": ("CUDAExecutionProvider", "onnxruntime-gpu"),
    "tensorrt": ("TensorrtExecutionProvider", "onnxruntime-gpu"),
    "openvino": ("OpenVINOExecutionProvider", "onnxruntime-openvino"),
    "coreml": ("CoreMLExecutionProvider", "onnxruntime, on macOS"),
}
"""The name and the package of each provider, by its name in settings."""
_OPTION = "providers"

_Provider = tuple[str, dict[str, str]]


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
    others = {**entries, **_provider_options(options.options)}
    types = {name: type(value) for name, value in others.items()}
    options.check_known({"optimization": str, _OPTION: str, **types})
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


# ---- External data ----


def read_external(file: Path, checksums: Mapping[str, str] | None) -> dict[str, Array]:
    """Read the external data files that a model refers to.

    Args:
        file: The model.
        checksums: The SHA-256 of the version's files, from its manifest; None without one.

    Returns:
        The bytes of each file, by its name in the model.

    Raises:
        LoadError: A file cannot be read, is not listed, or has another checksum; or memory is exhausted.
    """
    try:
        names = _named(file, sorted(_beside(file)))
        return {name: _content(file.parent / name, name, checksums) for name in names}
    except (OSError, MemoryError) as error:
        said = getattr(error, "strerror", None) or error
        raise LoadError(f"external data of {file.name} cannot be read: {said}") from error


def external_names(file: Path, least_bytes: int = 0) -> list[str]:
    """Return the external data files that a model refers to, as paths relative to its directory.

    Args:
        file: The model.
        least_bytes: Minimum size of a file.

    Raises:
        LoadError: The model cannot be read.
    """
    try:
        beside = [one for one in _beside(file) if (file.parent / one).stat().st_size >= least_bytes]
        return _named(file, sorted(beside))
    except OSError as error:
        raise LoadError(f"{file.name} cannot be read: {error.strerror or error}") from error


def _beside(file: Path) -> Iterator[str]:
    """Yield the usual names, with and without ``./``, of the files below the model's directory."""
    for folder, _, names in os.walk(file.parent):
        for name in names:
            path = Path(folder, name)
            if path != file and path.is_file():
                told = path.relative_to(file.parent).as_posix()
                yield from (told, f"./{told}")


def _named(file: Path, candidates: Iterable[str]) -> list[str]:
    """Return the candidates that the model's bytes name as locations of data."""
    wanted = {name: _KEY + _length(os.fsencode(name)) + os.fsencode(name) for name in candidates}
    longest = max(map(len, wanted.values()), default=0)
    found, before = set[str](), b""
    with open_file(file) as opened:
        while wanted and (piece := opened.read(_PIECE_BYTES)):
            text = before + piece
            if _KEY in text:
                found |= {name for name, written in wanted.items() if written in text}
            before = text[-longest:]
    return sorted(found)


def _length(text: bytes) -> bytes:
    """Return the length of a text as a protobuf varint."""
    low, high = len(text) & 127, len(text) >> 7
    return bytes([low | 128, high]) if high else bytes([low])


def _content(file: Path, name: str, checksums: Mapping[str, str] | None) -> Array:
    listed = os.path.normpath(name)
    if checksums is not None and listed not in checksums:
        raise LoadError(f"{listed} is read, and the manifest does not list it; publish the version again")
    with open_file(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        try:
            copy = sealed_copy(opened, Content(size, None if checksums is None else checksums[listed]))
        except NotCopied as error:
            raise LoadError(f"{listed} {_WRONG[error.refusal.reason]}") from error
    return copy.array(_BYTE, (size,), 0)


_WRONG = {
    "checksum": "does not have the checksum that the manifest lists",
    "changed": "was changed while it was read; publish the version again",
}


# ---- Execution providers ----


def _provider_options(options: Mapping[str, Option]) -> dict[str, Option]:
    """Return the options of providers, such as ``cuda.device_id``."""
    return {name: value for name, value in options.items() if name.partition(".")[0] in _PROVIDERS}


def find_providers(options: Mapping[str, Option]) -> list[_Provider]:
    """Return the chosen providers with their options, first the preferred one; the processor is always last.

    Args:
        options: The options of the runtime.

    Raises:
        NotLoadable: A provider is unknown, not in the installed build, or has options without being chosen.
    """
    chosen = [name.strip() for name in str(options.get(_OPTION, "cpu")).split(",")]
    if unknown := [name for name in chosen if name not in _PROVIDERS]:
        raise NotLoadable(
            f"runtime.options.providers: expected some of {listed(_PROVIDERS)}, separated by commas, "
            f"got {unknown[0]!r}"
        )
    available = onnxruntime.get_available_providers()
    for name in chosen:
        provider, package = _PROVIDERS[name]
        if provider not in available:
            has = listed(one for one, (known, _) in _PROVIDERS.items() if known in available)
            raise NotLoadable(
                f"runtime.options.providers: the installed ONNX Runtime has {has}, not {name}; replace it: "
                f"pip uninstall onnxruntime, then pip install {package}"
            )
    settings: dict[str, dict[str, str]] = {name: {} for name in dict.fromkeys([*chosen, "cpu"])}
    for option, value in _provider_options(options).items():
        name, _, key = option.partition(".")
        if name not in settings:
            raise NotLoadable(f"runtime.options.{option}: runtime.options.providers does not choose {name}")
        settings[name][key] = str(int(value) if isinstance(value, bool) else value)
    settings["cpu"] = settings.pop("cpu")  # it computes whatever the others cannot
    return [(_PROVIDERS[name][0], given) for name, given in settings.items()]


def expect_providers(session: onnxruntime.InferenceSession, wanted: Sequence[_Provider]) -> None:
    """Refuse a session without a chosen provider: ONNX Runtime falls back to the processor with a warning.

    Raises:
        LoadError: A provider did not start, such as CUDA without a GPU or its libraries.
    """
    missing = [name for name, _ in wanted if name not in session.get_providers()]
    if missing:
        raise LoadError(
            f"ONNX Runtime could not start {listed(missing)}: check the device, its driver and its libraries "
            "(the error output has ONNX Runtime's reason), or leave it out of runtime.options.providers"
        )
