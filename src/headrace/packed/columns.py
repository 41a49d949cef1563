"""A request's inputs where they lie in its message, and those of a batch.

A request's places are one array of int32: how long that array is, how many rows the request has and how many
bytes its message; how many rows each input of texts came with; then for each text where it begins in the
message and how long it is, input by input; then where each input of numbers begins and ends. A batch has the
places of its requests one after the other, and their messages one after the other.

Whoever does not know packed texts asks for them by an input's number or name, and gets an array of ``bytes``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np

from headrace.tensors import STRING, Array, Buffer, Tensors

HEAD = 3
"""How much places begin with: their length, the request's rows, and its message's bytes."""

PLACE = np.dtype(np.int32)
"""One of the places; messages whose texts are packed are far shorter than what this can count."""


class PackedInput(NamedTuple):
    """One input of a kind of request.

    Attributes:
        is_text: Whether it is one of texts.
        first: Where its own begin among the places.
        size: How many texts, or bytes, came.
        shape: Its shape for all rows.
        came: How many rows came: the request's, or one that stands for all.
    """

    is_text: bool
    first: int
    size: int
    shape: tuple[int, ...]
    came: int


class PackedColumns(Sequence[Buffer]):
    """One request's inputs; what ``CheckedInputs.columns`` may be.

    Attributes:
        message: The message that they lie in.
        places: Where in the message the inputs lie.
        inputs: The inputs, in the signature's order.
        text_bytes: How many bytes of text it has, those of one row that stands for all counted for each.
    """

    __slots__ = ("inputs", "message", "places", "text_bytes")

    def __init__(
        self, message: bytes, places: Array, inputs: tuple[PackedInput, ...], text_bytes: int
    ) -> None:
        """Keep what was found out about a message."""
        self.message = message
        self.places = places
        self.inputs = inputs
        self.text_bytes = text_bytes

    def __len__(self) -> int:
        """How many inputs there are."""
        return len(self.inputs)

    @overload
    def __getitem__(self, index: int) -> Buffer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Buffer]: ...

    def __getitem__(self, index: int | slice) -> Buffer | Sequence[Buffer]:
        """One input as any request has it: texts in an array of objects, numbers as bytes."""
        if isinstance(index, slice):
            return tuple(self)[index]
        packed = self.inputs[index]
        return self._texts(packed) if packed.is_text else self._numbers(packed)

    def part(self, start: int, stop: int) -> PackedColumns:
        """The rows ``start:stop``, in the same message: no text becomes an object for it."""
        return self._cut(self.inputs, start, stop)

    def of(self, indices: Sequence[int]) -> PackedColumns:
        """Some of the inputs, in the same message; as ``part`` does it."""
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
        """An input of texts without an array of them: how long each is, as places say it, and all joined."""
        packed = self.inputs[index]
        places = self.places[packed.first : packed.first + 2 * packed.size]
        times = packed.shape[0] // packed.came
        pairs = places.reshape(-1, 2).tolist()
        joined = b"".join([self.message[start : start + size] for start, size in pairs])
        return places[1::2].tobytes() * times, joined * times

    def _part_of(self, one: PackedInput, start: int, stop: int) -> tuple[Array, int, bool]:
        """Where some rows of an input lie, how many texts or bytes that is, and whether each has its own."""
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
    """A batch's inputs, for a Servable that ``takes_packed``; texts become objects where they are asked for.

    Attributes:
        requests: Each request's inputs.
        rows: How many rows they have together.
        padded_rows: How many rows the Servable shall see: the last one is repeated.
        numbers: The inputs of numbers, of ``padded_rows``.
    """

    def __init__(
        self,
        names: Sequence[str],
        requests: Sequence[PackedColumns],
        rows: tuple[int, int],
        numbers: Tensors,
    ) -> None:
        """Keep a batch.

        Args:
            names: The names of all inputs, in the signature's order.
            requests: Each request's inputs.
            rows: How many rows they have, and how many the Servable shall see.
            numbers: The inputs of numbers.
        """
        self._names = names
        self.requests = requests
        self.rows, self.padded_rows = rows
        self.numbers = numbers

    def with_numbers(self, kept: Sequence[str], numbers: Tensors) -> PackedTensors:
        """Some of the inputs of texts, and others of numbers beside them.

        Args:
            kept: The names of those inputs, in the signature's order; those of numbers may all stay.
            numbers: The others, of ``padded_rows``.
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
        """All messages, one after the other."""
        requests = self.requests
        one = requests[0].message if len(requests) == 1 else b"".join([each.message for each in requests])
        return np.frombuffer(one, np.uint8)

    @cached_property
    def places(self) -> Array:
        """The places of all requests, one after the other."""
        requests = self.requests
        return np.frombuffer(b"".join([each.places.data for each in requests]), PLACE)

    def __getitem__(self, name: str) -> Array:
        """One input as any batch has it."""
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
        """The names of the inputs, in the signature's order."""
        return iter(self._names)

    def __len__(self) -> int:
        """How many inputs there are."""
        return len(self._names)
