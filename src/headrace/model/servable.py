"""Servables, which runtimes load from version directories, and their Signatures."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from headrace.base.errors import InvalidRequest, NotFound, TooLarge, listed, shown
from headrace.base.tensors import BY_DTYPE, STRING, Array, Buffer, Tensors, held_bytes
from headrace.model.data_frames import Inputs, named_inputs, with_nones
from headrace.model.misfits import misfit
from headrace.model.missing_values import Expansion, complete, fitted
from headrace.model.typed_inputs import typed

DEFAULT_SIGNATURE = "serving_default"
"""The signature of a request that names none, as in TensorFlow Serving."""

EXPLAIN_SIGNATURE = "explain"
"""The signature whose outputs tell what each input adds to the raw score of a prediction."""

EXPECTED_VALUE = "expected_value"
"""The output of an explanation that belongs to no input; the sum of all outputs is the raw score."""

Shape = tuple[int, ...]
Kind = Literal["predict", "classify", "regress"]

_LAYOUTS_KEPT = 4096
_NAMES_TOLD = 1000
MOST_EXPANDED_BYTES = 256 * 1024 * 1024
"""Default limit on the bytes that one request may take for repeated, spread and filled-in values."""


class Servable(Protocol):
    """One loaded version of a model. Immutable; many threads may call ``predict`` at once."""

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The signatures by name; one of them is ``serving_default``."""

    @property
    def platform(self) -> str:
        """Name of the platform that runs it, in Triton's terms, for example ``onnxruntime_onnx``."""

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Run the model on a whole batch.

        Args:
            inputs: Every input of the signature, checked: exact dtypes, ``[rows, *row shape]``. Must not be
                written to.
            signature: Name of the signature.

        Returns:
            Every output of the signature, each with as many rows as the inputs. Answers are views of these
            arrays, so the Servable must not write to them again, not even on the next call.
        """

    def close(self) -> None:
        """Free all resources; called once, when the Servable is no longer used."""


def takes_packed(servable: Servable) -> bool:
    """Return whether ``predict`` accepts ``PackedTensors``, batches whose texts are not Python objects."""
    return getattr(servable, "takes_packed", False)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output: its name, its dtype, and the shape of one row.

    Attributes:
        name: The name in requests and answers.
        dtype: A dtype of ``headrace.base.tensors.DATATYPES``; object stands for strings.
        shape: The shape without the rows axis; None is a dimension that may differ between requests.
        context: Whether one row may stand for all rows of a request: data on the user or the page is sent
            once for many candidates.
        absent: Replacement for a missing value, such as JSON's null; None if each value must be sent. Text
            for a string input.
        shorter: Whether rows may have fewer values than the shape, for an input with one axis besides rows.
            Short rows are filled up with ``absent``.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    context: bool = False
    absent: float | str | None = None
    shorter: bool = False

    def __str__(self) -> str:
        """Return the spec in readable form: ``cat INT32 [rows, 26]``."""
        dimensions = ", ".join(["rows", *("any" if size is None else str(size) for size in self.shape)])
        return f"{self.name} {BY_DTYPE[self.dtype].oip} [{dimensions}]"

    def accepts(self, shape: Shape) -> bool:
        """Return whether a row of this shape fits."""
        return shape == self.shape or (
            len(shape) == len(self.shape)
            and all(want is None or want == got for want, got in zip(self.shape, shape, strict=True))
        )


class RowLayout:
    """The memory layout of one row of a request; requests with the same layout can share a batch.

    Created only by ``Signature.layout``, which returns one object per distinct layout, so layouts are
    compared by identity.

    Attributes:
        signature: The signature's name.
        specs: The inputs, in the signature's order.
        shapes: The concrete row shape of each input.
        row_bytes: The size of one row of each input; 0 for strings, which have no fixed size.
    """

    __slots__ = ("row_bytes", "shapes", "signature", "specs")

    def __init__(self, signature: str, specs: tuple[TensorSpec, ...], shapes: tuple[Shape, ...]) -> None:
        """Create the layout; called by ``Signature.layout``."""
        self.signature = signature
        self.specs = specs
        self.shapes = shapes
        self.row_bytes = tuple(
            0 if spec.dtype == STRING else spec.dtype.itemsize * math.prod(shape)
            for spec, shape in zip(specs, shapes, strict=True)
        )


class Expanded:
    """Limit on the bytes that one request may take for repeating, spreading and filling together."""

    __slots__ = ("_most_bytes", "_taken")

    def __init__(self, most_bytes: int = MOST_EXPANDED_BYTES) -> None:
        """Start at 0 bytes.

        Args:
            most_bytes: Maximum number of bytes per request.
        """
        self._most_bytes = most_bytes
        self._taken = 0

    def values(self, count: int, field: str) -> None:
        """Do nothing: a caller in the same process is charged for bytes only."""

    def expanded(self, size: int, field: str) -> None:
        """Charge for bytes that are about to be allocated, which the message's size does not bound.

        Args:
            size: Number of bytes; texts count with their lengths.
            field: Name of the input that is repeated, spread or filled.

        Raises:
            TooLarge: The request would exceed the limit.
        """
        self._taken += size
        if self._taken > self._most_bytes:
            raise TooLarge(
                f"values sent once would take {self._taken} bytes or more for all rows; expected at most "
                f"{self._most_bytes} in a request; send fewer rows at once",
                field=field,
            )


class CheckedInputs(NamedTuple):
    """Inputs that fit a signature, of which a Request is made.

    Attributes:
        layout: The layout of a row.
        columns: One buffer per input, in the signature's order.
        rows: Number of rows in each column.
    """

    layout: RowLayout
    columns: Sequence[Buffer]
    rows: int


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of one way of calling a model; checks and coerces a request, once.

    Attributes:
        name: The name, ``serving_default`` if the model has only one signature.
        inputs: The inputs, in the order in which columns are kept.
        outputs: The outputs, in the order in which answers list them.
        kind: The kind of TensorFlow Serving method that the signature supports, such as Classify.
        rows: The only number of rows that one call accepts; None if any number is accepted.
        examples: Whether the only input takes whole serialized ``tf.Example``s. Classify and Regress then
            pass each example on as received, instead of its features.
        sample: Rows that the model can answer, if zeros and empty texts may fail; None otherwise.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    kind: Kind = "predict"
    rows: int | None = None
    examples: bool = False
    sample: Tensors | None = field(default=None, repr=False, compare=False)
    _layouts: dict[tuple[Shape, ...], RowLayout] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs, in order."""
        return tuple(spec.name for spec in self.inputs)

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs, in order."""
        return tuple(spec.name for spec in self.outputs)

    @cached_property
    def output_values(self) -> int:
        """Number of values in one row of all outputs; 0 if it is not fixed, or some outputs are texts."""
        if any(spec.dtype == STRING or None in spec.shape for spec in self.outputs):
            return 0
        return sum(math.prod(size or 1 for size in spec.shape) for spec in self.outputs)

    @cached_property
    def _number_inputs(self) -> tuple[tuple[str, np.dtype[Any]], ...]:
        """The names and dtypes of the inputs; empty if any input is text."""
        numbers = tuple((spec.name, spec.dtype) for spec in self.inputs if spec.dtype != STRING)
        return numbers if len(numbers) == len(self.inputs) else ()

    @cached_property
    def counted(self) -> int:
        """Index of the input that determines a request's number of rows: the first without ``context``."""
        return next((index for index, spec in enumerate(self.inputs) if not spec.context), 0)

    def layout(self, shapes: tuple[Shape, ...]) -> RowLayout:
        """Return the layout of rows of these shapes: the same object for the same shapes.

        Args:
            shapes: The row shape of each input, in the signature's order, already known to fit.
        """
        found = self._layouts.get(shapes)
        if found is None:
            if len(self._layouts) >= _LAYOUTS_KEPT:  # bounds the memory taken by ever new shapes
                self._layouts.clear()
            # setdefault: concurrent threads must get the same object.
            found = self._layouts.setdefault(shapes, RowLayout(self.name, self.inputs, shapes))
        return found

    def check(self, inputs: Inputs, *, exact: bool = False, budget: Expansion | None = None) -> CheckedInputs:
        """Check a request's inputs, and coerce them where that is safe.

        Args:
            inputs: Arrays or nested lists by input name; every input of the signature and no other. A data
                frame has one input per column, or all columns of the only input.
            exact: Whether the client declared the dtypes; then only lossless widening is done. Otherwise any
                number is cast if its kind fits, and integers are checked against the range.
            budget: Limit on spreading and filling; if None, ``MOST_EXPANDED_BYTES`` for each step.

        Returns:
            The inputs as C-contiguous buffers of the signature's dtypes.

        Raises:
            InvalidRequest: An input is missing, unknown, of the wrong dtype or shape, or the numbers of rows
                differ; context inputs may have one row if the others have many.
            TooLarge: Spreading context inputs, or filling missing values, would exceed the budget.
        """
        named = inputs if isinstance(inputs, dict) else named_inputs(inputs, self.inputs)
        return self._as_they_are(named) or self._fit(named, exact, budget)

    def _as_they_are(self, inputs: Mapping[str, object]) -> CheckedInputs | None:
        """Return numeric inputs that fit unchanged, in shapes seen before; None for all others."""
        columns, shapes, leads = [], [], set()
        for name, dtype in self._number_inputs:
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.dtype is not dtype or not array.flags.c_contiguous:
                return None
            columns.append(array)
            shapes.append(array.shape[1:])
            leads.add(array.shape[:1])
        layout = self._layouts.get(tuple(shapes))
        if layout is None or len(leads) != 1 or len(inputs) != len(columns):
            return None
        lead = leads.pop()
        return CheckedInputs(layout, tuple(columns), lead[0]) if lead and lead[0] else None

    def _fit(self, inputs: Mapping[str, object], exact: bool, budget: Expansion | None) -> CheckedInputs:
        """Check and coerce the inputs one by one."""
        self.check_names(inputs)
        arrays = [_coerce(spec, inputs[spec.name], exact, budget) for spec in self.inputs]
        rows = len(arrays[self.counted])
        for index, (spec, array) in enumerate(zip(self.inputs, arrays, strict=True)):
            if len(array) != rows:
                budget = budget or Expanded()
                arrays[index] = self._spread(spec, array, rows, budget)
        if rows < 1:
            raise InvalidRequest("expected at least one row, got none", field=self.inputs[0].name)
        return CheckedInputs(self.layout(tuple(array.shape[1:] for array in arrays)), tuple(arrays), rows)

    def check_names(self, inputs: Collection[str]) -> None:
        """Refuse names that are not exactly the signature's inputs, before their values are processed.

        Raises:
            InvalidRequest: An input is missing or unknown.
        """
        if len(inputs) != len(self.inputs) or any(spec.name not in inputs for spec in self.inputs):
            raise self._wrong_names(inputs)

    def _spread(self, spec: TensorSpec, array: Array, rows: int, budget: Expansion) -> Array:
        if spec.context and len(array) == 1:
            budget.expanded(held_bytes(array) * rows, spec.name)
            return np.repeat(array, rows, axis=0)
        counted = self.inputs[self.counted].name
        if spec.context:
            way_out = "send one row, or as many"
        else:
            way_out = "every input needs the same number"
            if 1 in (len(array), rows):  # the client may have meant one row to stand for all
                way_out += f"; repeat the row of {spec.name if len(array) == 1 else counted}"
        has = "1 row" if len(array) == 1 else f"{len(array)} rows"
        raise InvalidRequest(f"has {has} where {counted} has {rows}; {way_out}", field=spec.name)

    def check_outputs(self, names: Iterable[str]) -> tuple[str, ...]:
        """Check a selection of outputs.

        Args:
            names: The outputs that the client wants.

        Returns:
            The names, in the client's order.

        Raises:
            InvalidRequest: A name is unknown or occurs twice.
        """
        known = self.output_names
        chosen: dict[str, None] = {}
        for name in names:  # stops at the first error: a client may send any number of names
            if name not in known:
                raise InvalidRequest(
                    f"unknown output {shown(name)}; the model gives {listed(map(shown, known))}",
                    field="outputs",
                )
            if name in chosen:
                raise InvalidRequest(f"output {shown(name)} is asked for twice", field="outputs")
            chosen[name] = None
        return tuple(chosen)

    def input(self, name: str) -> TensorSpec:
        """Return the spec of an input.

        Raises:
            InvalidRequest: There is no such input.
        """
        for spec in self.inputs:
            if spec.name == name:
                return spec
        raise InvalidRequest(
            f"unknown input {shown(name)}; the model takes {listed(map(shown, self.input_names))}",
            field="inputs",
        )

    def _wrong_names(self, inputs: Collection[str]) -> InvalidRequest:
        given, known = inputs if isinstance(inputs, dict) else set(inputs), set(self.input_names)
        missing = [name for name in self.input_names if name not in given]
        unknown = list(islice((name for name in inputs if name not in known), _NAMES_TOLD))
        said = [f"missing input {listed(map(shown, missing))}"] if missing else []
        said += [f"unknown input {listed(map(shown, map(str, unknown)), _NAMES_TOLD)}"] if unknown else []
        wanted = "; ".join(str(spec) for spec in self.inputs)
        return InvalidRequest(f"{', '.join(said)}; the model takes {wanted}", field="inputs")


def charge_spread(spread: Sequence[int], layout: RowLayout, rows: int, budget: Expansion) -> None:
    """Charge a request for the columns that ``spread_columns`` repeats.

    Args:
        spread: Indices of the columns that came with one row.
        layout: The layout of a row.
        rows: Number of rows of the other columns.
        budget: Limit on spreading.

    Raises:
        TooLarge: The request would exceed the budget.
    """
    for index in spread:
        budget.expanded(layout.row_bytes[index] * rows, layout.specs[index].name)


def spread_columns(
    columns: Sequence[Buffer], spread: Sequence[int], layout: RowLayout, rows: int
) -> tuple[Buffer, ...]:
    """Repeat the numeric columns that came with one row; call ``charge_spread`` first.

    Args:
        columns: One buffer per input, in the signature's order.
        spread: Indices of the columns that came with one row.
        layout: The layout of a row.
        rows: Number of rows of the other columns.
    """
    whole = list(columns)
    for index in spread:
        whole[index] = bytes(columns[index]) * rows
    return tuple(whole)


def signature_named(signatures: Mapping[str, Signature], name: str) -> Signature:
    """Return a signature by name; the empty name means the default one.

    Raises:
        NotFound: There is no signature of that name.
    """
    found = signatures.get(name or DEFAULT_SIGNATURE)
    if found is None:
        raise NotFound(f"signature {shown(name)} not found; the model has {listed(map(shown, signatures))}")
    return found


def _coerce(spec: TensorSpec, value: object, exact: bool, budget: Expansion | None) -> Array:
    try:
        array = typed(spec, value, exact=exact)
    except InvalidRequest:
        completed = complete(spec, with_nones(value), budget or Expanded())
        if completed is value:
            raise
        array = typed(spec, completed, exact=exact)
    if array.ndim == 0 or not spec.accepts(array.shape[1:]):
        array = fitted(spec, array, budget or Expanded())
        if array.ndim == 0 or not spec.accepts(array.shape[1:]):
            if array.ndim == 0:
                raise misfit(spec, array.item(), ())
            raise InvalidRequest(f"expected {spec}, got shape {list(array.shape)}", field=spec.name)
    return array if array.flags.c_contiguous and array.dtype.isnative else np.ascontiguousarray(array)
