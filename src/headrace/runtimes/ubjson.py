"""Decode UBJSON (Universal Binary JSON, draft 12) as XGBoost writes it, arrays of numbers as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.base.tensors import Array

_NUMBERS: dict[int, np.dtype[Any]] = {
    ord("i"): np.dtype(">i1"),
    ord("U"): np.dtype(">u1"),
    ord("C"): np.dtype(">u1"),
    ord("I"): np.dtype(">i2"),
    ord("l"): np.dtype(">i4"),
    ord("L"): np.dtype(">i8"),
    ord("d"): np.dtype(">f4"),
    ord("D"): np.dtype(">f8"),
}
_CONSTANTS = {ord("Z"): None, ord("T"): True, ord("F"): False}
_MOST_DEPTH = 64


def decode(data: bytes) -> object:
    """Decode one value.

    Args:
        data: The whole value.

    Returns:
        Dictionaries, lists, texts, numbers, booleans and None; arrays of one type of numbers as arrays of
        that dtype, big-endian.

    Raises:
        ValueError: The data is not UBJSON, is cut, or is nested too deeply.
    """
    decoder = _Decoder(data)
    try:
        value = decoder.value(decoder.byte(), 0)
    except IndexError:
        raise ValueError("it is cut") from None
    if decoder.position != len(data):
        raise ValueError(f"{len(data) - decoder.position} bytes follow its end")
    return value


class _Decoder:
    """A position in the data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def byte(self) -> int:
        self.position += 1
        return self._data[self.position - 1]

    def value(self, mark: int, depth: int) -> object:
        if depth > _MOST_DEPTH:
            raise ValueError(f"it is nested more than {_MOST_DEPTH} deep")
        if mark in _NUMBERS:
            return self._numbers(mark, 1)[0].item()
        if mark in _CONSTANTS:
            return _CONSTANTS[mark]
        if mark == ord("S"):
            return self._text()
        if mark == ord("["):
            return self._array(depth)
        if mark == ord("{"):
            return self._object(depth)
        raise ValueError(f"byte {self.position - 1} is {mark}, which begins no value")

    def _numbers(self, mark: int, count: int) -> Array:
        dtype = _NUMBERS[mark]
        if count * dtype.itemsize > len(self._data) - self.position:
            raise IndexError
        numbers: Array = np.frombuffer(self._data, dtype, count, self.position)
        self.position += count * dtype.itemsize
        return numbers

    def _count(self) -> int:
        count = self.value(self.byte(), 0)
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ValueError(f"byte {self.position - 1} ends a length that is not a number of items")
        return count

    def _text(self) -> str:
        count = self._count()
        text = self._data[self.position : self.position + count]
        if len(text) < count:
            raise IndexError
        self.position += count
        return text.decode()

    def _array(self, depth: int) -> object:
        mark, kind = self.byte(), None
        if mark == ord("$"):
            kind, mark = self.byte(), self.byte()
            if kind not in _NUMBERS or mark != ord("#"):
                raise ValueError(f"byte {self.position - 1}: expected an array of numbers with a length")
        if mark == ord("#"):
            count = self._count()
            if kind is not None:
                return self._numbers(kind, count)
            if count > len(self._data) - self.position:  # each value takes a byte or more
                raise IndexError
            return [self.value(self.byte(), depth + 1) for _ in range(count)]
        values = []
        while mark != ord("]"):
            values.append(self.value(mark, depth + 1))
            mark = self.byte()
        return values

    def _object(self, depth: int) -> dict[str, object]:
        pairs: dict[str, object] = {}
        while self._data[self.position] != ord("}"):
            name = self._text()
            if name in pairs:  # readers differ in which one counts
                raise ValueError(f"{name!r} is there twice")
            pairs[name] = self.value(self.byte(), depth + 1)
        self.position += 1
        return pairs
