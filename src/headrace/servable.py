"""What a runtime makes of a version directory: a Servable, and its Signatures."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from headrace.absent import Expansion, complete, fitted
from headrace.casting import DoesNotFit, cast, may_cast
from headrace.errors import InvalidRequest, NotFound, TooLarge, listed, shown
from headrace.tensors import BY_DTYPE, STRING, Array, Buffer, Tensors, describe, held_bytes

IS_GENERATED: ContextVar[bool] = ContextVar("IS_GENERATED", default=False)
"""Whether a check has generated the inputs of a call, so that a failure is no error in the log."""

DEFAULT_SIGNATURE = "serving_default"
"""The signature that a request means when it names none, as in TensorFlow Serving."""

Shape = tuple[int, ...]
Kind = Literal["predict", "classify", "regress"]

_LAYOUTS_KEPT = 4096
_NAMES_TOLD = 1000

MOST_EXPANDED_BYTES = 256 * 1024 * 1024
"""What one request may take, unless a server's limits say otherwise, for what came once and is spread."""


class Servable(Protocol):
    """One loaded version of a model. Immutable; ``predict`` may be called by many threads at once."""

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The ways to call it, by name; one of them is ``serving_default``."""

    @property
    def platform(self) -> str:
        """What runs it, in Triton's words, for example ``onnxruntime_onnx``."""

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Answer a whole batch.

        Args:
            inputs: Every input of the signature, checked: exact dtypes, ``[rows, *row shape]``. Not to be
                written to.
            signature: Which way to call it.

        Returns:
            Every output of the signature, each with as many rows as the inputs. Answers are views of these
            arrays, so they are not written to again: not even by the next call.
        """

    def close(self) -> None:
        """Free what it holds; called once, when nothing uses it any more."""


def takes_packed(servable: Servable) -> bool:
    """Whether a Servable's ``predict`` takes ``PackedTensors``: batches whose texts are no objects."""
    return getattr(servable, "takes_packed", False)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output: its name, its dtype, and the shape of one row.

    Attributes:
        name: The name in requests and answers.
        dtype: A dtype of ``headrace.tensors.DATATYPES``; object stands for strings.
        shape: The shape without the rows axis; None is a dimension that may differ between requests.
        context: Whether one row of it may stand for all rows of a request: what is known of the user or the
            page is sent once for many candidates.
        absent: What stands for a value that is not there, such as JSON's null; None where nothing does, so
            that each value must be sent. Text where the dtype is that of strings.
        shorter: Whether rows may have fewer values than the shape says, of an input with one axis besides
            rows; they are filled up with what is ``absent``.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    context: bool = False
    absent: float | str | None = None
    shorter: bool = False

    def __str__(self) -> str:
        """The spec as people write it: ``cat INT32 [rows, 26]``."""
        dimensions = ", ".join(["rows", *("any" if size is None else str(size) for size in self.shape)])
        return f"{self.name} {BY_DTYPE[self.dtype].oip} [{dimensions}]"

    def accepts(self, shape: Shape) -> bool:
        """Whether a row of this shape fits."""
        return shape == self.shape or (
            len(shape) == len(self.shape)
            and all(want is None or want == got for want, got in zip(self.shape, shape, strict=True))
        )


class RowLayout:
    """How one row of a request lies in memory; requests of equal layout can share a batch.

    Made by ``Signature.layout`` only, which hands out one object per distinct layout: comparing them is
    comparing identities.

    Attributes:
        signature: The signature's name.
        specs: The inputs, in the signature's order.
        shapes: The concrete row shape of each input.
        row_bytes: The size of one row of each input; 0 for strings, which have no fixed size.
    """

    __slots__ = ("row_bytes", "shapes", "signature", "specs")

    def __init__(self, signature: str, specs: tuple[TensorSpec, ...], shapes: tuple[Shape, ...]) -> None:
        """Lay out rows; called by ``Signature.layout``."""
        self.signature = signature
        self.specs = specs
        self.shapes = shapes
        self.row_bytes = tuple(
            0 if spec.dtype == STRING else spec.dtype.itemsize * math.prod(shape)
            for spec, shape in zip(specs, shapes, strict=True)
        )


class Expanded:
    """The bytes that one request's repeating, spreading and filling take together, limited."""

    __slots__ = ("_most_bytes", "_taken")

    def __init__(self, most_bytes: int = MOST_EXPANDED_BYTES) -> None:
        """Start with none.

        Args:
            most_bytes: The most that one request may take.
        """
        self._most_bytes = most_bytes
        self._taken = 0

    def values(self, count: int, field: str) -> None:
        """Add values that are about to be made: no more than their bytes, to a caller in the same process."""

    def expanded(self, size: int, field: str) -> None:
        """Add bytes that are about to be made; a message's size says nothing about them.

        Args:
            size: How many bytes, texts with their lengths.
            field: What is repeated, spread or filled.

        Raises:
            TooLarge: The request would take too much.
        """
        self._taken += size
        if self._taken > self._most_bytes:
            raise TooLarge(
                f"what came once would take {self._taken} bytes or more for all rows; expected at most "
                f"{self._most_bytes} in a request; send fewer rows at once",
                field=field,
            )


class CheckedInputs(NamedTuple):
    """Inputs that fit a signature: what a Request is made of.

    Attributes:
        layout: How a row lies in memory.
        columns: One buffer an input, in the signature's order.
        rows: How many rows each column holds.
    """

    layout: RowLayout
    columns: Sequence[Buffer]
    rows: int


@dataclass(frozen=True)
class Signature:
    """What one way of calling a model takes and gives; checks and coerces a request, once.

    Attributes:
        name: Its name, ``serving_default`` if the model has only one.
        inputs: The inputs, in the order in which columns are kept.
        outputs: The outputs, in the order in which answers list them.
        kind: What TensorFlow Serving's Classify and Regress may call it for.
        rows: The only number of rows that one call takes; None where any number goes.
        examples: Whether its one input takes whole ``tf.Example``s, serialized: Classify and Regress then
            send each as it came, instead of its features.
        sample: Rows that it can answer, where zeros and empty texts may not do; None where they do.
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
        """How many numbers a row of all outputs has; 0 where that is not fixed, or some are texts."""
        if any(spec.dtype == STRING or None in spec.shape for spec in self.outputs):
            return 0
        return sum(math.prod(size or 1 for size in spec.shape) for spec in self.outputs)

    @cached_property
    def _number_inputs(self) -> tuple[tuple[str, np.dtype[Any]], ...]:
        """The names of the inputs with their dtypes; none where one of them is texts."""
        numbers = tuple((spec.name, spec.dtype) for spec in self.inputs if spec.dtype != STRING)
        return numbers if len(numbers) == len(self.inputs) else ()

    @cached_property
    def counted(self) -> int:
        """Which input says how many rows a request has: the first that is not of the context, if any."""
        return next((index for index, spec in enumerate(self.inputs) if not spec.context), 0)

    def layout(self, shapes: tuple[Shape, ...]) -> RowLayout:
        """The layout of rows of these shapes: the same object for the same shapes.

        Args:
            shapes: The row shape of each input, in the signature's order, already known to fit.
        """
        found = self._layouts.get(shapes)
        if found is None:
            if len(self._layouts) >= _LAYOUTS_KEPT:  # endless distinct shapes must not become endless memory
                self._layouts.clear()
            # One object for all, whichever threads come first.
            found = self._layouts.setdefault(shapes, RowLayout(self.name, self.inputs, shapes))
        return found

    def check(
        self, inputs: Mapping[str, object], *, exact: bool = False, allowance: Expansion | None = None
    ) -> CheckedInputs:
        """Check a request's inputs, and coerce what is safe to coerce.

        Args:
            inputs: Arrays, or nested lists, by input name; every input of the signature and no other.
            exact: Whether dtypes were declared by the client: then only lossless widening is done. Otherwise
                any number goes where its kind fits, and integers are checked against the range.
            allowance: What may be spread and put in; ``MOST_EXPANDED_BYTES`` each time if left out.

        Returns:
            The inputs as C-contiguous buffers of the signature's dtypes.

        Raises:
            InvalidRequest: An input is missing, unknown, of the wrong dtype or shape, or the rows disagree;
                inputs of the context may have one row where the others have many.
            TooLarge: Spreading those, or putting in what is absent, would take too much.
        """
        return self._as_they_are(inputs) or self._fit(inputs, exact, allowance)

    def _as_they_are(self, inputs: Mapping[str, object]) -> CheckedInputs | None:
        """Inputs of numbers that fit without a change, in shapes that came before; None for all others."""
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

    def _fit(self, inputs: Mapping[str, object], exact: bool, allowance: Expansion | None) -> CheckedInputs:
        """The inputs, checked one by one."""
        self.check_names(inputs)
        arrays = [_coerce(spec, inputs[spec.name], exact, allowance) for spec in self.inputs]
        rows = len(arrays[self.counted])
        for index, (spec, array) in enumerate(zip(self.inputs, arrays, strict=True)):
            if len(array) != rows:
                allowance = allowance or Expanded()
                arrays[index] = self._spread(spec, array, rows, allowance)
        if rows < 1:
            raise InvalidRequest("expected at least one row, got none", field=self.inputs[0].name)
        return CheckedInputs(self.layout(tuple(array.shape[1:] for array in arrays)), tuple(arrays), rows)

    def check_names(self, inputs: Collection[str]) -> None:
        """Refuse inputs that are not exactly the signature's, before anything is done with their values.

        Raises:
            InvalidRequest: One is missing or unknown.
        """
        if len(inputs) != len(self.inputs) or any(spec.name not in inputs for spec in self.inputs):
            raise self._wrong_names(inputs)

    def _spread(self, spec: TensorSpec, array: Array, rows: int, allowance: Expansion) -> Array:
        if spec.context and len(array) == 1:
            allowance.expanded(held_bytes(array) * rows, spec.name)
            return np.repeat(array, rows, axis=0)
        counted = self.inputs[self.counted].name
        if spec.context:
            way_out = "send one row, or as many"
        else:
            way_out = "every input needs the same number"
            if 1 in (len(array), rows):  # perhaps meant to stand for all rows
                once = spec.name if len(array) == 1 else counted
                way_out += f"; one row stands for all if a click model was trained with `--context {once}`"
        has = "1 row" if len(array) == 1 else f"{len(array)} rows"
        raise InvalidRequest(f"has {has} where {counted} has {rows}; {way_out}", field=spec.name)

    def check_outputs(self, names: Iterable[str]) -> tuple[str, ...]:
        """Check a selection of outputs.

        Args:
            names: The outputs that the client wants.

        Returns:
            The names, in the client's order.

        Raises:
            InvalidRequest: One is unknown or named twice.
        """
        known = self.output_names
        chosen: dict[str, None] = {}
        for name in names:  # ends at the first wrong one: at the latest, when there are more than outputs
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
        """The spec of an input.

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
        said += [f"unknown input {listed(map(shown, unknown), _NAMES_TOLD)}"] if unknown else []
        wanted = "; ".join(str(spec) for spec in self.inputs)
        return InvalidRequest(f"{', '.join(said)}; the model takes {wanted}", field="inputs")


def charge_spread(spread: Sequence[int], layout: RowLayout, rows: int, allowance: Expansion) -> None:
    """Let a request pay for the columns that ``spread_columns`` repeats.

    Args:
        spread: Which columns came with one row.
        layout: How a row lies in memory.
        rows: How many rows the others have.
        allowance: What may be spread.

    Raises:
        TooLarge: It would take too much.
    """
    for index in spread:
        allowance.expanded(layout.row_bytes[index] * rows, layout.specs[index].name)


def spread_columns(
    columns: Sequence[Buffer], spread: Sequence[int], layout: RowLayout, rows: int
) -> tuple[Buffer, ...]:
    """Repeat the columns of numbers that came with one row for all; ``charge_spread`` comes before it.

    Args:
        columns: One buffer an input, in the signature's order.
        spread: Which of them came with one row.
        layout: How a row lies in memory.
        rows: How many rows the others have.
    """
    whole = list(columns)
    for index in spread:
        whole[index] = bytes(columns[index]) * rows
    return tuple(whole)


def signature_named(signatures: Mapping[str, Signature], name: str) -> Signature:
    """Find a signature; the empty name means the default one.

    Raises:
        NotFound: There is none of that name.
    """
    found = signatures.get(name or DEFAULT_SIGNATURE)
    if found is None:
        raise NotFound(f"signature {shown(name)} not found; the model has {listed(map(shown, signatures))}")
    return found


def _coerce(spec: TensorSpec, value: object, exact: bool, allowance: Expansion | None) -> Array:
    array = _as_array(spec, value, allowance)
    if array.dtype != spec.dtype:
        array = _cast(spec, array, exact)
    if array.ndim == 0 or not spec.accepts(array.shape[1:]):
        array = fitted(spec, array, allowance or Expanded())
        if array.ndim == 0 or not spec.accepts(array.shape[1:]):
            raise InvalidRequest(f"expected {spec}, got shape {list(array.shape)}", field=spec.name)
    return array if array.flags.c_contiguous and array.dtype.isnative else np.ascontiguousarray(array)


def _as_array(spec: TensorSpec, value: object, allowance: Expansion | None) -> Array:
    read = _as_strings if spec.dtype == STRING else _as_numbers
    try:
        return read(spec, value)
    except InvalidRequest:
        completed = complete(spec, value, allowance or Expanded())
        if completed is value:
            raise
        return read(spec, completed)


def _as_numbers(spec: TensorSpec, value: object) -> Array:
    if isinstance(value, np.ndarray):
        return value
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidRequest(f"expected {spec}, got a ragged or mixed list", field=spec.name) from error
    if array.dtype == STRING:
        raise InvalidRequest(f"expected {spec}, got a mix of types ({array.dtype})", field=spec.name)
    return array


def _as_strings(spec: TensorSpec, value: object) -> Array:
    try:
        array = np.asarray(value, dtype=object) if not isinstance(value, np.ndarray) else value
    except ValueError as error:
        raise InvalidRequest(f"expected {spec}, got a ragged list", field=spec.name) from error
    if array.dtype.kind in "US":
        array = array.astype(object)
    if array.dtype != STRING:
        raise InvalidRequest(f"expected {spec}, got {describe(array)}; send text or bytes", field=spec.name)
    if any(type(element) is not bytes for element in array.flat):
        flat = [_as_bytes(spec, element) for element in array.flat]
        array = np.array([*flat, None], dtype=object)[:-1].reshape(
            array.shape
        )  # None: or NumPy makes them fixed-size
    return array


def _as_bytes(spec: TensorSpec, element: object) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        try:
            return element.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"text that is not Unicode: {error.reason}", field=spec.name) from error
    raise InvalidRequest(
        f"expected text or bytes, got {type(element).__name__} {element!r:.40}", field=spec.name
    )


def _cast(spec: TensorSpec, array: Array, exact: bool) -> Array:
    wanted = BY_DTYPE[spec.dtype].oip
    if array.dtype.kind in "US":
        raise InvalidRequest(f"expected {wanted}, got text", field=spec.name)
    if array.dtype not in BY_DTYPE and array.dtype.newbyteorder("=") not in BY_DTYPE:
        raise InvalidRequest(f"expected {wanted}, got a mix of types ({array.dtype})", field=spec.name)
    # Where no dtype was declared, integers only have to be in range: [1] arrives as INT64 for UINT8, too.
    if not (np.can_cast(array.dtype, spec.dtype) if exact else may_cast(array.dtype, spec.dtype)):
        raise InvalidRequest(
            f"expected {spec}, got {describe(array)}; convert it before sending, nothing is lost silently",
            field=spec.name,
        )
    try:
        return cast(array, spec.dtype)
    except DoesNotFit as error:
        raise InvalidRequest(str(error), field=spec.name) from None
