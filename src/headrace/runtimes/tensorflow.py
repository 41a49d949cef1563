"""TensorFlow on the CPU: SavedModel directories in TensorFlow Serving's layout.

A model has all its signatures that can be served; a warning names the others. The one that the option
``default_signature`` names replaces the model's own ``serving_default``.

A SavedModel is loaded into a session of its own, as in TensorFlow Serving's C++. Each signature is a prepared
call into that session in the calling thread, which costs a tenth of calling the signature as a Python
function. Closing a version ends its session and frees its memory. Needs the extra ``tensorflow``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

# TensorFlow reads this when it is imported. The messages that it suppresses are also in the exceptions.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

if importlib.util.find_spec("triton"):
    # PyTorch imports triton on demand. Importing it after TensorFlow ends the process, as both contain LLVM.
    importlib.import_module("triton")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TensorFlow's own modules warn about each other
    import tensorflow
    from tensorflow.core.protobuf import config_pb2, saved_model_pb2
    from tensorflow.errors import InvalidArgumentError

from headrace.base.errors import InvalidRequest, LoadError, ModelError, NotLoadable
from headrace.base.tensors import BY_TENSORFLOW, STRING, Array, Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, Kind, Signature, TensorSpec
from headrace.runtimes.options import RuntimeOptions

_log = logging.getLogger(__name__)

_OPTIONS: dict[str, type] = {"default_signature": str}
_SERVE = "serve"
_INITIAL = "__saved_model_init_op"
_KINDS: dict[str, Kind] = {"tensorflow/serving/classify": "classify", "tensorflow/serving/regress": "regress"}
_PARSERS = ("ParseExample", "ParseExampleV2", "ParseSingleExample")

_Session = Any  # TensorFlow ships no types
_SignatureDef = Any
_TensorInfo = Any
_MetaGraph = Any


class Prepared(NamedTuple):
    """A signature that is prepared for calls.

    Attributes:
        call: Takes the inputs in order, and returns the outputs in order.
        inputs: The names of its inputs, in order.
        outputs: The names of its outputs, in order.
        feeds: The names of the inputs in the graph.
        fetches: The names of the outputs in the graph.
    """

    call: Callable[..., list[Array]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    feeds: list[str]
    fetches: list[str]


def load(file: Path, options: RuntimeOptions) -> TensorflowServable:
    """Load a SavedModel.

    Args:
        file: Its ``saved_model.pb``; the variables lie beside it.
        options: The operator's settings; docs/runtimes.md lists the options.

    Raises:
        LoadError: It is damaged, is not for serving, or the first axis of an input or output is not rows.
    """
    options.check_known(_OPTIONS)
    tags = _tags(file)
    _keep_to_threads(options.threads)
    session = _session(options.threads)
    try:
        signatures, calls = _prepare(session, file, tags, options)
    except BaseException:
        session.close()
        raise
    return TensorflowServable(session, signatures, calls)


class TensorflowServable:
    """A SavedModel in a session of its own."""

    platform = "tensorflow_savedmodel"

    def __init__(
        self, session: _Session, signatures: Mapping[str, Signature], calls: Mapping[str, Prepared]
    ) -> None:
        """Store the session and its prepared calls.

        Args:
            session: The session that holds the variables.
            signatures: The signatures, by name.
            calls: The prepared call of each signature.
        """
        self.signatures = signatures
        self._session = session
        self._calls = dict(calls)

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Predict a whole batch.

        Args:
            inputs: Every input, checked.
            signature: The name of one of the model's signatures.

        Raises:
            InvalidRequest: An Example cannot be parsed, or lacks a feature that the model reads.
            ModelError: TensorFlow failed.
        """
        prepared = self._calls[signature]
        try:
            answers = prepared.call(*[inputs[name] for name in prepared.inputs])
        except Exception as error:  # the boundary to TensorFlow, whose exceptions share no base class
            if self.signatures[signature].examples and isinstance(error, InvalidArgumentError):
                # Only the model knows which features an Example needs. A wrong Example is the caller's fault.
                (name,) = prepared.inputs
                raise InvalidRequest(f"the model cannot read it: {_text(error)}", field=name) from error
            raise ModelError(f"the model failed: {_text(error)}") from error
        return dict(zip(prepared.outputs, answers, strict=True))

    def predict_traced(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Any:
        """Run a batch and return a trace of it: TensorFlow's ``StepStats``, for ``headrace profile``."""
        prepared = self._calls[signature]
        record = config_pb2.RunMetadata()
        self._session.run(
            prepared.fetches,
            {feed: inputs[name] for name, feed in zip(prepared.inputs, prepared.feeds, strict=True)},
            options=config_pb2.RunOptions(trace_level=config_pb2.RunOptions.FULL_TRACE),
            run_metadata=record,
        )
        return record.step_stats

    def close(self) -> None:
        """Close the session, which frees its memory."""
        self._calls.clear()
        self._session.close()


def _tags(file: Path) -> list[str]:
    """Return the tags of the graph for serving; of several such graphs, the one with the fewest tags."""
    model = saved_model_pb2.SavedModel()
    try:
        model.ParseFromString(file.read_bytes())
    except OSError as error:
        raise LoadError(f"cannot read {file.name}: {error.strerror}") from error
    except Exception as error:  # the boundary to protobuf, whose errors differ between its implementations
        raise LoadError(f"{file.name} is not a SavedModel: {error}") from error
    found = [list(graph.meta_info_def.tags) for graph in model.meta_graphs]
    serving = sorted((tags for tags in found if _SERVE in tags), key=len)
    if not serving:
        raise NotLoadable(
            f"{file.name}: expected a graph with the tag {_SERVE!r}, got {found or 'no graph'}; "
            "export the model with tf.saved_model.save or Keras' model.export"
        )
    return serving[0]


_threads_lock = threading.Lock()
_first_threads: list[int] = []


def _keep_to_threads(threads: int) -> None:
    """Warn if the setting has no effect: TensorFlow has one thread pool for the whole process."""
    with _threads_lock:
        if not _first_threads:
            _first_threads.append(threads)
    if _first_threads[0] != threads:
        _log.warning(
            "TensorFlow took its number of threads from the first model that was loaded, and keeps it",
            extra={"threads": _first_threads[0], "wanted": threads},
        )


def _session(threads: int) -> _Session:
    settings = tensorflow.compat.v1.ConfigProto(
        device_count={"GPU": 0},
        intra_op_parallelism_threads=threads,
        # Negative: operations run in the calling thread, without the delay of a thread switch. They still
        # divide their work among the threads above.
        inter_op_parallelism_threads=-1,
    )
    settings.experimental.optimize_for_static_graph = True
    settings.experimental.disable_output_partition_graphs = True
    return tensorflow.compat.v1.Session(graph=tensorflow.Graph(), config=settings)


def _prepare(
    session: _Session, file: Path, tags: Sequence[str], options: RuntimeOptions
) -> tuple[dict[str, Signature], dict[str, Prepared]]:
    try:
        with session.graph.as_default(), _without_advice():
            graph = tensorflow.compat.v1.saved_model.load(session, tags, str(file.parent))
    except Exception as error:  # the boundary to TensorFlow, whose exceptions share no base class
        raise LoadError(f"TensorFlow cannot load {file.name}: {_text(error)}") from error
    found = {name: one for name, one in graph.signature_def.items() if name != _INITIAL}
    default = _default(sorted(found), str(options.options.get("default_signature", "")))
    signatures: dict[str, Signature] = {}
    calls: dict[str, Prepared] = {}
    for served, name in _served(sorted(found), default):
        try:
            signatures[served] = _signature(served, found[name], options, graph)
        except LoadError as error:
            if served == DEFAULT_SIGNATURE:
                raise
            _log.warning("a signature cannot be served", extra={"signature": name, "reason": error.message})
            continue
        calls[served] = _prepared(session, signatures[served], found[name])
    return signatures, calls


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """Suppress messages about files, and that the loader is deprecated: no other loader uses sessions."""
    log = logging.getLogger("tensorflow")

    def is_news(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING and "is deprecated" not in str(record.msg)

    log.addFilter(is_news)
    try:
        yield
    finally:
        log.removeFilter(is_news)


def _default(names: Sequence[str], chosen: str) -> str:
    """Return the signature for requests that name none."""
    if chosen and chosen not in names:
        raise NotLoadable(
            f"runtime.options.default_signature: the model has {', '.join(names) or 'none'}, not {chosen!r}"
        )
    default = chosen or (names[0] if len(names) == 1 else DEFAULT_SIGNATURE)
    if default not in names:
        raise NotLoadable(
            f"expected a signature {DEFAULT_SIGNATURE!r}, got {', '.join(names) or 'none'}; set "
            "runtime.options.default_signature, or save the model with signatures"
        )
    return default


def _served(names: Sequence[str], default: str) -> list[tuple[str, str]]:
    """Return the names to serve under, each with the model's own name; the default comes first."""
    others = [(name, name) for name in names if name != DEFAULT_SIGNATURE]
    return [(DEFAULT_SIGNATURE, default), *others]


def _prepared(session: _Session, signature: Signature, definition: _SignatureDef) -> Prepared:
    feeds = [definition.inputs[name].name for name in signature.input_names]
    fetches = [definition.outputs[name].name for name in signature.output_names]
    make = getattr(session, "_make_callable_from_options", None)
    if make is None:
        # The public method then also inspects each value in Python, and takes five times as long.
        call = session.make_callable(fetches, feeds)
    else:
        call = make(config_pb2.CallableOptions(feed=feeds, fetch=fetches))
    return Prepared(call, signature.input_names, signature.output_names, feeds, fetches)


def _signature(name: str, definition: _SignatureDef, options: RuntimeOptions, graph: _MetaGraph) -> Signature:
    inputs, outputs = definition.inputs, definition.outputs
    fixed = {one: size for one in sorted(inputs) for size in [_sizes("input", one, inputs[one])[0]] if size}
    if len(set(fixed.values())) > 1:
        said = ", ".join(f"{one} {rows}" for one, rows in fixed.items())
        raise NotLoadable(
            f"signature {name!r}: the inputs have different fixed first axes ({said}), which cannot all be "
            "rows; export the model with a batch axis"
        )
    chosen = options.signature.kind if name == DEFAULT_SIGNATURE else "predict"
    own = _KINDS.get(definition.method_name, "predict")
    # TensorFlow's maps are unordered; sorting by name makes the order stable.
    specs = tuple(_spec("input", one, inputs[one]) for one in sorted(inputs))
    texts = len(specs) == 1 and specs[0].dtype == STRING and specs[0].shape == ()
    return Signature(
        name,
        specs,
        tuple(_spec("output", one, outputs[one]) for one in sorted(outputs)),
        kind=own if chosen == "predict" else chosen,
        rows=next(iter(fixed.values()), None),
        examples=texts and (own != "predict" or _parses_examples(graph)),
    )


def _parses_examples(graph: _MetaGraph) -> bool:
    """Whether an operation of the graph parses serialized Examples; if so, a lone text input holds Examples.

    TensorFlow 2 marks all signatures as Predict's, even those that take Examples.
    """
    functions = graph.graph_def.library.function
    nodes = chain(graph.graph_def.node, *(function.node_def for function in functions))
    return any(node.op in _PARSERS for node in nodes)


def _spec(side: str, name: str, info: _TensorInfo) -> TensorSpec:
    datatype = BY_TENSORFLOW.get(info.dtype)
    if datatype is None or not info.name:
        kind = tensorflow.dtypes.as_dtype(info.dtype).name if info.name else "composite"
        raise NotLoadable(f"{side} {name!r} is {kind}, which no message can carry; make it a plain tensor")
    return TensorSpec(name, datatype.dtype, tuple(_sizes(side, name, info)[1:]))


def _sizes(side: str, name: str, info: _TensorInfo) -> list[int | None]:
    shape = info.tensor_shape
    if shape.unknown_rank or not shape.dim:
        raise NotLoadable(
            f"{side} {name!r} has {'no declared' if shape.unknown_rank else 'no'} axes, but the first axis "
            "must be rows: export the model with tf.TensorSpec([None, …])"
        )
    return [dimension.size if dimension.size >= 0 else None for dimension in shape.dim]


def _text(error: Exception) -> str:
    """Return TensorFlow's error text without its graph stack, source files and paths."""
    said = str(getattr(error, "message", "") or error)
    said = re.sub(r"(?s)(Original stack trace|Errors may have originated).*", "", said)
    said = re.sub(r"\[\[\{?\{?[^\]]*\]\]|\d+ (?:root error|successful|derived error).*", "", said)
    said = re.sub(r"(?<!\S)(?:[A-Za-z]:)?[/\\]\S+|\S*\.(?:cc|h|py):\d+\S*", "", said)
    return " ".join(said.split()) or type(error).__name__
