"""The inputs of a request as positions in its message, and the inputs of a batch of such requests.

A request's places are one int32 array. It begins with its own length, the number of rows, the message's size
in bytes, and the number of rows received for each text input. Next come the start and size of each text,
input by input, and then the start and end of each numeric input. A batch has the concatenated places of its
requests, and their concatenated messages.

Code unaware of packed texts indexes by an input's number or name; then texts become ``bytes`` objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np

from headrace.base.tensors import STRING, Array, Buffer, Tensors

HEAD = 3
"""Number of leading entries in places: the array's length, the rows, and the message's size in bytes."""

PLACE = np.dtype(np.int32)
"""Dtype of places; messages with packed texts are far shorter than int32 can count."""


class PackedInput(NamedTuple):
    """One input of a kind of request.

    Attributes:
        is_text: Whether it is a text input.
        first: Index of its first entry in the places.
        size: Number of texts, or of bytes, received.
        shape: Its shape for all rows.
        came: Number of rows received: all rows of the request, or one that stands for all.
    """

    is_text: bool
    first: int
    size: int
    shape: tuple[int, ...]
    came: int


class PackedColumns(Sequence[Buffer]):
    """The inputs of one request, as ``CheckedInputs.columns`` accepts them.

    Attributes:
        message: The message that contains the inputs.
        places: Positions of the inputs in the message.
        inputs: The inputs, in the signature's order.
        text_bytes: Bytes of text; a row that stands for all counts once for each row of the request.
    """

    __slots__ = ("inputs", "message", "places", "text_bytes")

    def __init__(
        self, message: bytes, places: Array, inputs: tuple[PackedInput, ...], text_bytes: int
    ) -> None:
        """Store the result of parsing a message."""
        self.message = message
        self.places = places
        self.inputs = inputs
        self.text_bytes = text_bytes

    def __len__(self) -> int:
        """Return the number of inputs."""
        return len(self.inputs)

    @overload
    def __getitem__(self, index: int) -> Buffer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Buffer]: ...

    def __getitem__(self, index: int | slice) -> Buffer | Sequence[Buffer]:
        """Return one input in the form of any other request: texts as an object array, numbers as bytes."""
        if isinstance(index, slice):
            return tuple(self)[index]
        packed = self.inputs[index]
        return self._texts(packed) if packed.is_text else self._numbers(packed)

    def part(self, start: int, stop: int) -> PackedColumns:
        """Return the rows ``start:stop`` of the same message; no text becomes an object."""
        return self._cut(self.inputs, start, stop)

    def of(self, indices: Sequence[int]) -> PackedColumns:
        """Return some of the inputs of the same message; no text becomes an object."""
        return self._cut([self.inputs[index] for index in indices], 0, int(self.places[1]))

    def _cut(self, chosen: Sequence[PackedInput], start: int, stop: int) -> PackedColumns:
        rows, at = stop - start, HEAD + sum(one.is_text for one in chosen)
        came, cut, text_bytes, inputs = list[int](), list[Array](), 0, dict[PackedInput, PackedInput]()
        for one in sorted(chosen, key=lambda one: one.first):
            own, size, whole = self._part_of(one, start, stop)
            inputs[one] = PackedInput(one.is_text, at, size, (rows, *one.shape[1:]), rows if whole else 1)
            if one.is_text:
                came.append(inputs[one].came)
                text_bytes += int(own[1::2].sum()) * (1 if whole else rows)
            cut.append(own)
            at += len(own)
        head = np.array([at, rows, len(self.message), *came], PLACE)
        places = np.concatenate([head, *cut])
        return PackedColumns(self.message, places, tuple(inputs[one] for one in chosen), text_bytes)

    def joined_texts(self, index: int) -> tuple[bytes, bytes]:
        """Return a text input as two byte strings: the texts' sizes as ``PLACE``, and the joined texts."""
        packed = self.inputs[index]
        places = self.places[packed.first : packed.first + 2 * packed.size]
        times = packed.shape[0] // packed.came
        pairs = places.reshape(-1, 2).tolist()
        joined = b"".join([self.message[start : start + size] for start, size in pairs])
        return places[1::2].tobytes() * times, joined * times

    def _part_of(self, one: PackedInput, start: int, stop: int) -> tuple[Array, int, bool]:
        """Return the places of some rows, the count of texts or bytes, and whether each row has its own."""
        whole = one.came == one.shape[0]
        own = self.places[one.first : one.first + (2 * one.size if one.is_text else 2)]
        if not whole:
            return own, one.size, whole
        a_row = one.size // one.came
        if one.is_text:
            return own[2 * a_row * start : 2 * a_row * stop], a_row * (stop - start), whole
        begin = int(own[0])
        return np.array([begin + a_row * start, begin + a_row * stop], PLACE), a_row * (stop - start), whole

    def _numbers(self, packed: PackedInput) -> bytes:
        start, stop = self.places[packed.first : packed.first + 2].tolist()
        found = self.message[start:stop]
        return found if packed.came == packed.shape[0] else found * packed.shape[0]

    def _texts(self, packed: PackedInput) -> Array:
        message = self.message
        places = self.places[packed.first : packed.first + 2 * packed.size].reshape(-1, 2).tolist()
        array = np.empty(packed.size, STRING)
        array[:] = [message[start : start + size] for start, size in places]
        array = array.reshape(packed.came, *packed.shape[1:])
        return array if packed.came == packed.shape[0] else np.repeat(array, packed.shape[0], axis=0)


class PackedTensors(Mapping[str, Array]):
    """The inputs of a batch, for a Servable that ``takes_packed``; texts become objects on access.

    Attributes:
        requests: The inputs of each request.
        rows: Total number of rows.
        padded_rows: Number of rows that the Servable sees; the last row is repeated.
        numbers: The numeric inputs, with ``padded_rows`` rows.
    """

    def __init__(
        self,
        names: Sequence[str],
        requests: Sequence[PackedColumns],
        rows: tuple[int, int],
        numbers: Tensors,
    ) -> None:
        """Store the inputs of a batch.

        Args:
            names: The names of all inputs, in the signature's order.
            requests: The inputs of each request.
            rows: Total number of rows, and the number that the Servable sees.
            numbers: The numeric inputs.
        """
        self._names = names
        self.requests = requests
        self.rows, self.padded_rows = rows
        self.numbers = numbers

    def with_numbers(self, kept: Sequence[str], numbers: Tensors) -> PackedTensors:
        """Return these inputs with only some of the text inputs, and with further numeric inputs.

        Args:
            kept: The names of the text inputs to keep, in the signature's order; numeric inputs always stay.
            numbers: The further inputs, with ``padded_rows`` rows.
        """
        names, requests = self._names, self.requests
        if any(name not in kept and name not in self.numbers for name in names):  # texts
            places = [names.index(name) for name in kept]
            names, requests = kept, [each.of(places) for each in requests]
        every = {**self.numbers, **numbers}
        others = [name for name in every if name not in names]
        return PackedTensors([*names, *others], requests, (self.rows, self.padded_rows), every)

    @cached_property
    def data(self) -> Array:
        """All messages, concatenated."""
        requests = self.requests
        one = requests[0].message if len(requests) == 1 else b"".join([each.message for each in requests])
        return np.frombuffer(one, np.uint8)

    @cached_property
    def places(self) -> Array:
        """The places of all requests, concatenated."""
        requests = self.requests
        return np.frombuffer(b"".join([each.places.data for each in requests]), PLACE)

    def __getitem__(self, name: str) -> Array:
        """Return one input in the form of any other batch."""
        found = self.numbers.get(name)
        return self._texts(name) if found is None else found

    def _texts(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        index = self._names.index(name)
        parts = [np.asarray(each[index]) for each in self.requests]
        if self.padded_rows > self.rows:
            parts.append(np.repeat(parts[-1][-1:], self.padded_rows - self.rows, axis=0))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the inputs, in the signature's order."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return the number of inputs."""
        return len(self._names)
