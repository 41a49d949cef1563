"""Endpoints as the class ``Model`` of a ``model.py``: rows become calls of the function, results outputs.

``headrace.endpoints`` is their user.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from typing import Any

from headrace.base.errors import InvalidRequest, InvalidRows, ModelError
from headrace.base.tensors import Tensors
from headrace.endpoint_types import Part, kind_of, told

_OF_MODELS = ("calls", "load", "close")
"""Attributes of a ``Model`` that the class of an endpoint may have, too."""


@dataclass(frozen=True)
class Endpoint:
    """A function or class that is served as a model.

    Attributes:
        name: The model's name.
        target: The function or the class.
        batch: Whether it gets whole columns.
        parameters: Its parameters.
        result: Its result, or a part of one that answers in parts.
    """

    name: str
    target: Callable[..., Any]
    batch: bool
    parameters: tuple[Part, ...]
    result: Part

    @property
    def inputs(self) -> list[tuple[Any, ...]]:
        """The inputs as ``model.py`` declares them."""
        return [one.declaration for part in self.parameters for one in part.columns]

    @property
    def outputs(self) -> list[tuple[Any, ...]]:
        """The outputs as ``model.py`` declares them."""
        return [one.declaration for one in self.result.columns]


class BoundEndpoint:
    """An endpoint as a ``Model`` without its ``predict``."""

    has_files = False
    """Its version directory is temporary: its user cannot put files there, such as recorded requests."""

    def __init__(self, served: Endpoint) -> None:
        """Bind an endpoint, and make the object of a class.

        Args:
            served: The endpoint.
        """
        self.inputs, self.outputs = served.inputs, served.outputs
        self._endpoint = served
        self._call: Callable[..., Any] = served.target
        if isinstance(served.target, type):
            self._call = served.target()
            for name in _OF_MODELS:
                if hasattr(served.target, name):
                    setattr(self, name, getattr(self._call, name))

    def _batch(self, inputs: Tensors) -> dict[str, Any]:
        """Return the arguments for a whole batch: those of one call, or of each row's call in lists.

        Raises:
            InvalidRows: These rows have text that is not UTF-8, or the class of a parameter refuses them.
            InvalidRequest: The class of an object of columns refuses the batch.
        """
        columns, rows = self._values(inputs), range(_rows(inputs))
        arguments, wrong = dict[str, Any](), dict[int, tuple[str, str]]()
        for part in self._endpoint.parameters:
            try:
                arguments[part.name] = part.of_batch(columns, rows)
            except InvalidRows as error:
                wrong = {**error.rows, **wrong}
        if wrong:
            raise InvalidRows.of(wrong)
        return arguments

    def _each_row(self, inputs: Tensors) -> list[dict[str, Any]]:
        """Return the arguments of the call for each row.

        They are made before the first call: if a row is refused, the others are called again without it.

        Raises:
            InvalidRows: As for ``_batch``.
        """
        arguments = self._batch(inputs)
        return [{name: column[row] for name, column in arguments.items()} for row in range(_rows(inputs))]

    def _values(self, inputs: Tensors) -> dict[str, Any]:
        """Return the rows' values of each input.

        Raises:
            InvalidRows: These rows have text that is not UTF-8.
        """
        values, wrong = dict[str, Any](), dict[int, tuple[str, str]]()
        for one in [one for part in self._endpoint.parameters for one in part.columns]:
            try:
                values[one.name] = one.values(inputs[one.name])
            except InvalidRows as error:
                wrong = {**error.rows, **wrong}
        if wrong:
            raise InvalidRows.of(wrong)
        return values

    def _outputs(self, result: Any) -> dict[str, object]:
        """Return the outputs of a list of results, or of an object of columns.

        Raises:
            ModelError: The result is not as declared.
        """
        columns, where = self._endpoint.result.columns, f"endpoint {self._endpoint.name}: the result"
        if self._endpoint.result.make is None:
            return {columns[0].name: columns[0].join(result, where)}
        names = [one.name for one in columns]
        if not isinstance(result, list):
            fields = _fields_of(result, names, where)
        else:
            rows = [_fields_of(row, names, where) for row in result]
            fields = {name: [row[name] for row in rows] for name in names}
        return {one.name: one.join(fields[one.name], f"{where}: {one.name}") for one in columns}


class EndpointModel(BoundEndpoint):
    """An endpoint with the interface of the class ``Model`` of a ``model.py``."""

    def predict(self, inputs: Tensors) -> Mapping[str, object]:
        """Call the function for each row, or once for the batch.

        Raises:
            InvalidRows: These rows have text that is not UTF-8, the function refuses them with
                InvalidRequest, or the class of a parameter with ValueError.
            InvalidRequest: The function refuses a batch, or the class of an object of columns does.
            ModelError: The function returns something else than it declares.
        """
        if self._endpoint.batch:
            return self._outputs(self._call(**self._batch(inputs)))
        results, wrong = [], dict[int, tuple[str, str]]()
        for row, arguments in enumerate(self._each_row(inputs)):
            try:
                results.append(self._call(**arguments))
            except InvalidRequest as error:
                wrong[row] = told(error)
        if wrong:
            raise InvalidRows.of(wrong)
        return self._outputs(results)


class AsyncEndpointModel(BoundEndpoint):
    """An endpoint of a coroutine function; its calls for the rows of a batch wait at the same time."""

    async def predict(self, inputs: Tensors) -> Mapping[str, object]:
        """Call the function for each row, or once for the batch; the errors are those of EndpointModel."""
        if self._endpoint.batch:
            return self._outputs(await self._call(**self._batch(inputs)))
        wrong = dict[int, tuple[str, str]]()

        async def answer(row: int, arguments: dict[str, Any]) -> Any:
            try:
                return await self._call(**arguments)
            except InvalidRequest as error:
                wrong[row] = told(error)

        results = await _together([answer(*one) for one in enumerate(self._each_row(inputs))])
        if wrong:
            raise InvalidRows.of(wrong)
        return self._outputs(results)


async def _together(calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Return the results of calls that wait at the same time; the first that fails cancels the others.

    Raises:
        Exception: That of the call that failed.
    """
    failed: Exception | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in calls]
    except ExceptionGroup as error:
        failed = error.exceptions[0]
    if failed is not None:
        raise failed
    return [one.result() for one in tasks]


class _InParts(BoundEndpoint):
    def _arguments(self, inputs: Tensors) -> dict[str, Any]:
        """Return the arguments of the call for a stream.

        Raises:
            InvalidRequest: There are several rows, but the function takes one, or they are refused.
        """
        if self._endpoint.batch:
            return self._batch(inputs)
        if (rows := _rows(inputs)) != 1:
            raise InvalidRequest(
                f"expected one row, because {self._endpoint.name} answers in parts, got {rows}; "
                "send a request for each row",
                field=self.inputs[0][0],
            )
        return self._each_row(inputs)[0]

    def _part(self, part: Any) -> dict[str, object]:
        return self._outputs(part if self._endpoint.batch else [part])


class StreamingEndpointModel(_InParts):
    """An endpoint of a generator function."""

    def predict(self, inputs: Tensors) -> Generator[Mapping[str, object], None, None]:
        """Call the function, and yield the outputs of each part; the errors are those of EndpointModel."""
        with closing(self._call(**self._arguments(inputs))) as parts:
            for part in parts:
                yield self._part(part)


class AsyncStreamingEndpointModel(_InParts):
    """An endpoint of an async generator function."""

    async def predict(self, inputs: Tensors) -> AsyncGenerator[Mapping[str, object], None]:
        """Call the function, and yield the outputs of each part; the errors are those of EndpointModel."""
        async with aclosing(self._call(**self._arguments(inputs))) as parts:
            async for part in parts:
                yield self._part(part)


def model_class(served: Endpoint) -> type[BoundEndpoint]:
    """Return the class ``Model`` of an endpoint: its ``predict`` is of the function's kind."""
    base = _kind_of(served.target.__call__ if isinstance(served.target, type) else served.target)

    class Model(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__(served)

    return Model


def _kind_of(function: Callable[..., Any]) -> type[BoundEndpoint]:
    if inspect.isasyncgenfunction(function):
        return AsyncStreamingEndpointModel
    if inspect.isgeneratorfunction(function):
        return StreamingEndpointModel
    return AsyncEndpointModel if inspect.iscoroutinefunction(function) else EndpointModel


def _rows(inputs: Tensors) -> int:
    return len(next(iter(inputs.values())))


def _fields_of(result: Any, names: list[str], where: str) -> dict[str, Any]:
    try:
        return {
            name: result[name] if isinstance(result, Mapping) else getattr(result, name) for name in names
        }
    except (AttributeError, KeyError) as error:
        raise ModelError(
            f"{where}: expected an object with {', '.join(names)}, "
            f"but the function returned {kind_of(result)}"
        ) from error
