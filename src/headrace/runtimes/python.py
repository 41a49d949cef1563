"""Python code from ``model.py``, if allowed: pre- and post-processing, and models that call other models.

The file has a class ``Model``::

    class Model:
        inputs = [("text", "BYTES", [])]  # name, datatype of the Open Inference Protocol, shape of one row
        outputs = [("length", "INT64", [])]  # None in a shape is a dimension of any size

        def load(self, path, context):  # optional; path is the version directory
            ...

        def predict(self, inputs):  # name -> array, first axis rows, read-only; one call at a time by default
            return {"length": [len(text) for text in inputs["text"]]}

        def close(self):  # optional
            ...

Modules beside it are imported with ``import name`` or ``from . import name``, and take precedence over
installed ones of the same name, as in a script; modules of the standard library cannot be replaced. Each
version is a package of its own, so two versions never share a module, and closing one removes its modules.
While ``load`` and ``predict`` run, ``pickle``, ``joblib`` and ``importlib`` find these modules by their plain
names, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol

import numpy as np

from headrace.base.errors import FailedPrecondition, HeadraceError, LoadError, ModelError
from headrace.base.tensors import BY_OIP, STRING, Array, Tensors, describe
from headrace.model.casting import DoesNotFit, cast, may_cast, name_of
from headrace.model.servable import DEFAULT_SIGNATURE, IS_GENERATED, Signature, TensorSpec
from headrace.runtimes.module_isolation import OwnModules
from headrace.runtimes.options import Option, RuntimeOptions

_log = logging.getLogger(__name__)


class Model(Protocol):
    """Interface of the class in ``model.py``; ``load(path, context)`` and ``close()`` are optional."""

    inputs: Iterable[tuple[str, str, Iterable[int | None]]]
    outputs: Iterable[tuple[str, str, Iterable[int | None]]]

    def predict(self, inputs: Tensors) -> Mapping[str, object]:
        """Predict a whole batch."""


@dataclass(frozen=True, slots=True)
class Context:
    """The second argument of ``load``, beside the version directory.

    Attributes:
        threads: Number of threads that one call should use.
        options: The ``[runtime.options]`` of the model's ``headrace.toml``, unchanged.
    """

    threads: int
    options: Mapping[str, Option]
    _options: RuntimeOptions

    def predict(self, name: str, inputs: Tensors) -> Tensors:
        """Call another model and wait for its answer, from within ``predict``.

        Args:
            name: The model's name.
            inputs: Its inputs.

        Raises:
            HeadraceError: The call failed.
        """
        if self._options.call is None:
            raise FailedPrecondition(
                f"cannot call {name!r}: this model was loaded outside of a server or engine"
            )
        return self._options.call(name, inputs)


def load(file: Path, options: RuntimeOptions) -> PythonServable:
    """Load ``model.py``.

    Args:
        file: The file.
        options: The operator's settings.

    Raises:
        LoadError: Code is not allowed, the code fails, or ``Model`` is invalid.
    """
    options.expect_code_allowed(f"{file.name} is code, and code from model directories is not run")
    own = OwnModules(file)
    try:
        with own.running():
            model = _instance(own.import_model(), file, options)
        signature = Signature(
            DEFAULT_SIGNATURE,
            _specs("inputs", model.inputs),
            _specs("outputs", model.outputs),
            kind=options.signature.kind,
        )
    except BaseException as error:  # the boundary to the model's own code, which may also call sys.exit()
        own.forget()
        if isinstance(error, LoadError) or not isinstance(error, Exception):
            raise
        _log.exception("loading %s failed", file)
        raise LoadError(
            f"{file.name} fails: {type(error).__name__}: {error}",
            told=f"{file.name} fails; the server's log says more",
        ) from error
    return PythonServable(model, signature, own, file.parent)


class PythonServable:
    """An instance of the class ``Model``."""

    platform = "python"

    may_block = True
    """It may wait for other models, so it must not run in the serving thread."""

    def __init__(self, model: Model, signature: Signature, own: OwnModules, directory: Path) -> None:
        """Wrap a model.

        Args:
            model: The model.
            signature: Its declared inputs and outputs.
            own: The modules beside ``model.py``.
            directory: The version directory.
        """
        self.signatures: Mapping[str, Signature] = {signature.name: signature}
        self._model = model
        self._outputs = signature.outputs
        self._own = own
        self._directory = directory

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Predict a whole batch.

        Args:
            inputs: Every input, checked.
            signature: There is only the default one.

        Raises:
            HeadraceError: The model raised it.
            ModelError: The model raised another exception, or its answer does not match its declaration.
        """
        try:
            given = {name: _read_only(array) for name, array in inputs.items()}
            if self._own.names:
                with self._own.running():
                    answer = self._model.predict(given)
            else:
                answer = self._model.predict(given)
            return _checked(self._outputs, answer)
        except HeadraceError:
            raise
        except Exception as error:  # the boundary to the model's own code
            level = logging.DEBUG if IS_GENERATED.get() else logging.ERROR
            _log.log(level, "predict of the model in %s failed", self._directory, exc_info=True)
            said = f"the model raised {type(error).__name__}; the server's log says more"
            raise ModelError(said, told="the model failed; the server's log says more") from error

    def close(self) -> None:
        """Let the model free its resources, and remove its modules."""
        try:
            getattr(self._model, "close", _nothing)()
        except Exception:  # noqa: BLE001 - the boundary to the model's own code; the version is closed anyway
            _log.exception("close of the model in %s failed", self._directory)
        del self._model
        self._own.forget()


def _instance(module: ModuleType, file: Path, options: RuntimeOptions) -> Model:
    made = getattr(module, "Model", None)
    if not isinstance(made, type):
        raise LoadError(f"{file.name}: expected a class Model, found none")
    model: Model = made()
    if not callable(getattr(model, "predict", None)):
        raise LoadError(f"{file.name}: class Model needs a method predict(self, inputs)")
    getattr(model, "load", _nothing)(file.parent, Context(options.threads, dict(options.options), options))
    for name in ("inputs", "outputs"):
        if not getattr(model, name, None):
            raise LoadError(f"{file.name}: class Model needs {name} = [(name, datatype, row shape), …]")
    return model


def _nothing(*_: object) -> None:
    """Stand in for an optional method that a model lacks."""


def _specs(side: str, declared: Iterable[tuple[str, str, Iterable[int | None]]]) -> tuple[TensorSpec, ...]:
    specs: list[TensorSpec] = []
    for entry in declared:
        try:
            name, datatype, shape = entry
            specs.append(TensorSpec(name, BY_OIP[datatype].dtype, tuple(shape)))
        except (TypeError, ValueError, KeyError) as error:
            raise LoadError(
                f"Model.{side}: expected (name, one of {', '.join(BY_OIP)}, row shape), got {entry!r}"
            ) from error
    if len({spec.name for spec in specs}) < len(specs):
        raise LoadError(f"Model.{side}: a name is declared twice")
    return tuple(specs)


def _read_only(array: Array) -> Array:
    """Return a view that cannot be written to: the array may belong to a caller."""
    view = array.view()
    view.flags.writeable = False
    return view


def _checked(specs: tuple[TensorSpec, ...], answer: object) -> Tensors:
    if not isinstance(answer, Mapping) or answer.keys() != {spec.name for spec in specs}:
        got = ", ".join(map(str, answer)) if isinstance(answer, Mapping) else "no mapping"
        declared = ", ".join(spec.name for spec in specs)
        raise ModelError(f"the model declares the outputs {declared}, but answered with {got or 'none'}")
    return {spec.name: _as_declared(spec, answer[spec.name]) for spec in specs}


def _as_numbers(spec: TensorSpec, value: object, array: Array) -> Array:
    if spec.dtype.kind in "iu" and array.dtype.kind not in "biu" and not isinstance(value, np.ndarray):
        # NumPy reads lists of integers beyond INT64 as floats or as objects.
        array = _whole(spec, np.asarray(value, STRING), array)
    if not may_cast(array.dtype, spec.dtype):
        return array
    try:
        return cast(array, spec.dtype)
    except DoesNotFit as error:
        raise ModelError(f"the output {spec.name!r} of the model: {error}") from None


def _whole(spec: TensorSpec, objects: Array, array: Array) -> Array:
    """Return the integers of a list; the given array if the list has other elements."""
    if not objects.size or not all(isinstance(one, int | np.integer) for one in objects.flat):
        return array
    limits = np.iinfo(spec.dtype)
    for one in objects.flat:
        if not limits.min <= one <= limits.max:
            said = f"{one} does not fit in {name_of(spec.dtype)}"
            raise ModelError(f"the output {spec.name!r} of the model: {said}")
    return np.array(objects, spec.dtype)


def _as_declared(spec: TensorSpec, value: object) -> Array:
    array = np.asarray(value, dtype=STRING if spec.dtype == STRING else None)
    if spec.dtype == STRING:
        texts = [text.encode() if isinstance(text, str) else text for text in array.flat]
        if any(not isinstance(text, bytes) for text in texts):
            raise ModelError(
                f"the model declares {spec}, but answered with something that is not text or bytes"
            )
        array = np.array(texts, dtype=object).reshape(array.shape)
    else:
        array = _as_numbers(spec, value, array)
    if array.dtype != spec.dtype or array.ndim == 0 or not spec.accepts(array.shape[1:]):
        raise ModelError(f"the model declares {spec}, but answered with {describe(array)}")
    return array
