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

Each method may be ``async``; they then run in an event loop of the version. Many calls of an ``async def
predict`` wait at the same time. A ``predict`` that yields mappings answers in parts, each as soon as it is
computed.

Modules beside it are imported with ``import name`` or ``from . import name``, and take precedence over
installed ones of the same name, as in a script; modules of the standard library cannot be replaced. Each
version is a package of its own, so two versions never share a module, and closing one removes its modules.
While ``load`` and ``predict`` run, ``pickle``, ``joblib`` and ``importlib`` find these modules by their plain
names, too.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterable, Mapping
from contextlib import aclosing, closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

import numpy as np

from headrace.base.errors import FailedPrecondition, HeadraceError, LoadError, ModelError
from headrace.base.event_loop import run_in
from headrace.base.tensors import BY_OIP, STRING, Array, Tensors, describe
from headrace.model.call_context import IS_GENERATED
from headrace.model.casting import DoesNotFit, may_cast, name_of
from headrace.model.casting import cast as cast_array
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec
from headrace.runtimes.model_loop import ENDS, ModelLoop
from headrace.runtimes.module_isolation import OwnModules
from headrace.runtimes.options import Option, RuntimeOptions

_log = logging.getLogger(__name__)

_RAISED_IN_LOOP = (Exception, *ENDS)


class Model(Protocol):
    """Interface of the class in ``model.py``.

    ``load(path, context)``, ``close()`` and ``calls``, the names of the models that it calls, are optional.
    """

    inputs: Iterable[tuple[str, str, Iterable[int | None]]]
    outputs: Iterable[tuple[str, str, Iterable[int | None]]]

    def predict(self, inputs: Tensors) -> Mapping[str, object] | Awaitable[Mapping[str, object]]:
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
    _calls: Collection[str] | None
    _loop: ModelLoop

    def predict(self, name: str, inputs: Tensors) -> Tensors:
        """Call another model and wait for its answer, from within ``predict``.

        Args:
            name: The model's name.
            inputs: Its inputs.

        Raises:
            HeadraceError: The call failed.
        """
        if self._loop.is_this_thread():
            raise FailedPrecondition(
                f"context.predict({name!r}) would block the model's event loop: "
                "await context.predict_async(…) there"
            )
        return self._call(name)(name, inputs)

    async def predict_async(self, name: str, inputs: Tensors) -> Tensors:
        """Call another model and await its answer, from within an ``async def predict``.

        Args:
            name: The model's name, which ``Model.calls`` lists.
            inputs: Its inputs.

        Raises:
            HeadraceError: The call failed.
        """
        call, call_async = self._call(name), self._options.call_async
        if call_async is None:  # in a process of its own, where the server's thread makes the call
            return await asyncio.to_thread(call, name, inputs)
        return await call_async(name, inputs)

    def _call(self, name: str) -> Callable[[str, Tensors], Tensors]:
        if self._calls is not None and name not in self._calls:
            raise FailedPrecondition(
                f"cannot call {name!r}: list it in the class, calls = ({name!r},), so that cycles are found"
            )
        if self._options.call is None:
            raise FailedPrecondition(
                f"cannot call {name!r}: this model was loaded outside of a server or engine"
            )
        return self._options.call


def load(file: Path, options: RuntimeOptions) -> PythonServable:
    """Load ``model.py``.

    Args:
        file: The file.
        options: The operator's settings.

    Raises:
        LoadError: Code is not allowed, the code fails, or ``Model`` is invalid.
    """
    options.expect_code_allowed(f"{file.name} is code, and code from model directories is not run")
    own, loop = OwnModules(file), ModelLoop(f"the model in {file.parent}")
    try:
        with own.running():
            model = _instance(own.import_model(), file, options, loop)
        signature = Signature(
            DEFAULT_SIGNATURE,
            _specs("inputs", model.inputs),
            _specs("outputs", model.outputs),
            kind=options.signature.kind,
        )
    except BaseException as error:  # the boundary to the model's own code, which may also call sys.exit()
        own.forget()
        loop.close()
        if isinstance(error, LoadError) or not isinstance(error, Exception):
            raise
        _log.exception("loading %s failed", file)
        raise LoadError(
            f"{file.name} fails: {type(error).__name__}: {error}",
            told=f"{file.name} fails; the server's log says more",
        ) from error
    return _wrapper(model.predict)(model, signature, own, file.parent, loop)


def _wrapper(predict: object) -> type[PythonServable]:
    """Return the class for a ``predict`` of this kind."""
    if inspect.isasyncgenfunction(predict):
        return AsyncStreamingPythonServable
    if inspect.isgeneratorfunction(predict):
        return StreamingPythonServable
    return AsyncPythonServable if inspect.iscoroutinefunction(predict) else PythonServable


class PythonServable:
    """An instance of the class ``Model``."""

    platform = "python"

    may_block = True
    """It may wait for other models, so it must not run in the serving thread."""

    def __init__(
        self, model: Model, signature: Signature, own: OwnModules, directory: Path, loop: ModelLoop
    ) -> None:
        """Wrap a model.

        Args:
            model: The model.
            signature: Its declared inputs and outputs.
            own: The modules beside ``model.py``.
            directory: The version directory.
            loop: Runs the model's coroutines.
        """
        self.calls: Collection[str] = getattr(model, "calls", None) or ()
        self.signatures: Mapping[str, Signature] = {signature.name: signature}
        self._model = model
        self._outputs = signature.outputs
        self._own = own
        self._directory = directory
        self._model_loop = loop

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
            given = _all_read_only(inputs)
            if self._own.names:
                with self._own.running():
                    answer = self._model.predict(given)
            else:
                answer = self._model.predict(given)
            return _checked(self._outputs, answer)
        except HeadraceError:
            raise
        except Exception as error:  # the boundary to the model's own code
            raise self._failure(error) from error

    def _failure(self, error: BaseException) -> HeadraceError:
        """Log an exception of the model's own code, and return the error for its caller."""
        if isinstance(error, BaseExceptionGroup) and error.split(HeadraceError)[1] is None:
            return _first_leaf(error)  # of a TaskGroup in the model
        level = logging.DEBUG if IS_GENERATED.get() else logging.ERROR
        _log.log(level, "predict of the model in %s failed", self._directory, exc_info=error)
        said = f"the model raised {type(error).__name__}; the server's log says more"
        return ModelError(said, told="the model failed; the server's log says more")

    def close(self) -> None:
        """Let the model free its resources, and remove its modules."""
        try:
            self._model_loop.result(getattr(self._model, "close", _nothing))
        except (Exception, SystemExit):  # noqa: BLE001 - the boundary to the model's own code; the version is closed anyway
            _log.exception("close of the model in %s failed", self._directory)
        del self._model
        self._own.forget()
        self._model_loop.close()


class AsyncPythonServable(PythonServable):
    """An instance of a class ``Model`` whose ``predict`` is a coroutine function.

    Attributes:
        loop: The event loop in which ``predict_async`` must run.
    """

    def __init__(
        self, model: Model, signature: Signature, own: OwnModules, directory: Path, loop: ModelLoop
    ) -> None:
        """Wrap a model; see ``PythonServable``."""
        super().__init__(model, signature, own, directory, loop)
        self._awaited: Callable[[Tensors], Awaitable[object]] = model.predict  # type: ignore[assignment]
        self.loop = loop.start()

    def close(self) -> None:
        """Close the model; see ``PythonServable``."""
        super().close()
        del self._awaited  # it refers to the model

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Predict a whole batch, and wait for it in the calling thread; see ``PythonServable``."""
        return run_in(self.loop, self.predict_async(inputs, signature))

    async def predict_async(self, inputs: Tensors, _signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Predict a whole batch.

        Args:
            inputs: Every input, checked.

        Raises:
            HeadraceError: The model raised it.
            ModelError: The model raised another exception, or its answer does not match its declaration.
        """
        try:
            with self._own.running():
                answer = await self._awaited(_all_read_only(inputs))
            return _checked(self._outputs, answer)
        except HeadraceError:
            raise
        except _RAISED_IN_LOOP as error:  # the boundary to the model's own code
            raise self._failure(error) from error


class StreamingPythonServable(PythonServable):
    """An instance of a class ``Model`` whose ``predict`` is a generator function: a ``StreamingServable``."""

    streams = True

    loop: asyncio.AbstractEventLoop | None = None

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Refuse: a stream has no whole answer.

        Raises:
            FailedPrecondition: Always.
        """
        raise FailedPrecondition("the model answers in parts, and this call needs a whole answer")

    def parts(
        self, inputs: Tensors, _signature: str = DEFAULT_SIGNATURE
    ) -> Generator[Tensors, None, None] | AsyncGenerator[Tensors, None]:
        """Yield the parts of an answer, checked; see ``StreamingServable``.

        Args:
            inputs: Every input, checked.

        Raises:
            HeadraceError: The model raised it.
            ModelError: The model raised another exception, or a part does not match its declaration.
        """
        return self._checked_parts(inputs)

    def _checked_parts(self, inputs: Tensors) -> Generator[Tensors, None, None]:
        yields: Callable[[Tensors], Generator[object, None, None]] = self._model.predict  # type: ignore[assignment]
        try:
            with self._own.running(), closing(yields(_all_read_only(inputs))) as parts:
                for part in parts:
                    yield _checked(self._outputs, part)
        except HeadraceError:
            raise
        except Exception as error:  # the boundary to the model's own code
            raise self._failure(error) from error


class AsyncStreamingPythonServable(StreamingPythonServable):
    """An instance of a class ``Model`` whose ``predict`` is an async generator function.

    Attributes:
        loop: The event loop in which ``parts`` must run.
    """

    def __init__(
        self, model: Model, signature: Signature, own: OwnModules, directory: Path, loop: ModelLoop
    ) -> None:
        """Wrap a model; see ``PythonServable``."""
        super().__init__(model, signature, own, directory, loop)
        self.loop = loop.start()

    def parts(self, inputs: Tensors, _signature: str = DEFAULT_SIGNATURE) -> AsyncGenerator[Tensors, None]:
        """Yield the parts of an answer, checked; see ``StreamingPythonServable``."""
        return self._awaited_parts(inputs)

    async def _awaited_parts(self, inputs: Tensors) -> AsyncGenerator[Tensors, None]:
        yields: Callable[[Tensors], AsyncGenerator[object, None]] = self._model.predict  # type: ignore[assignment]
        try:
            with self._own.running():
                async with aclosing(yields(_all_read_only(inputs))) as parts:
                    async for part in parts:
                        yield _checked(self._outputs, part)
        except HeadraceError:
            raise
        except BaseExceptionGroup as error:  # of a TaskGroup around a `yield`, when the generator is closed
            failed = error.split(GeneratorExit)[1]
            if isinstance(failed, Exception):
                raise self._failure(failed) from error
            if failed is not None:
                raise
        except _RAISED_IN_LOOP as error:  # the boundary to the model's own code
            raise self._failure(error) from error


def _instance(module: ModuleType, file: Path, options: RuntimeOptions, loop: ModelLoop) -> Model:
    made = getattr(module, "Model", None)
    if not isinstance(made, type):
        raise LoadError(f"{file.name}: expected a class Model, found none")
    model: Model = made()
    if not callable(getattr(model, "predict", None)):
        raise LoadError(f"{file.name}: class Model needs a method predict(self, inputs)")
    context = Context(options.threads, dict(options.options), options, _declared_calls(model), loop)
    loop.result(getattr(model, "load", _nothing), file.parent, context)
    for name in ("inputs", "outputs"):
        if not getattr(model, name, None):
            raise LoadError(f"{file.name}: class Model needs {name} = [(name, datatype, row shape), …]")
    return model


def _declared_calls(model: Model) -> Collection[str] | None:
    """Return the models that a model may call; None for any, which only a synchronous ``predict`` may."""
    calls = getattr(model, "calls", None)
    if calls is None:
        waits = inspect.iscoroutinefunction(model.predict) or inspect.isasyncgenfunction(model.predict)
        return () if waits else None
    if isinstance(calls, str) or not all(isinstance(name, str) for name in calls):
        raise LoadError(f"Model.calls: expected names of models, such as ('ranker',), got {calls!r}")
    return frozenset(calls)


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


def _all_read_only(inputs: Tensors) -> dict[str, Array]:
    return {name: _read_only(array) for name, array in inputs.items()}


def _read_only(array: Array) -> Array:
    """Return a view that cannot be written to: the array may belong to a caller."""
    view = array.view()
    view.flags.writeable = False
    return view


def _first_leaf(error: BaseException) -> HeadraceError:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return cast("HeadraceError", error)


def _checked(specs: tuple[TensorSpec, ...], answer: object) -> Tensors:
    if inspect.iscoroutine(answer) or inspect.isasyncgen(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise ModelError(
            "predict returned a coroutine: mark the method (and its decorators' functions) `async def`, or "
            "return the awaited value"
        )
    if inspect.isgenerator(answer):
        raise ModelError(
            "predict returned a generator: a decorator hides that it yields; decorate it with a generator "
            "function (`yield from`), or without a decorator"
        )
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
        return cast_array(array, spec.dtype)
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
    if not array.size:
        # A list without elements has neither a datatype nor inner axes: NumPy reads it as FP64.
        inner = tuple(size or 0 for size in spec.shape[array.ndim - 1 :])
        array = np.empty(array.shape + inner, spec.dtype)
    elif spec.dtype == STRING:
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
