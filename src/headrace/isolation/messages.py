"""What goes between a server and a model's process, and how it lies in the memory that they share.

A message is a few bytes in a pipe, which wake whoever waits, and say where in the area its head lies. The
head is MessagePack, and says where the arrays lie behind it. Numbers lie as they are; texts as how long each
is, and then all of them. Nothing here trusts the other side: a head that does not fit its area is an error.
"""

from __future__ import annotations

import enum
import errno
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version as installed_version
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import msgspec
import numpy as np

from headrace import errors
from headrace.errors import HeadraceError, InvalidRequest, InvalidRows, ModelError, Refused
from headrace.isolation.area import Area, aligned
from headrace.packed.columns import HEAD, PLACE, PackedTensors
from headrace.servable import Signature
from headrace.tensors import BY_DTYPE, BY_NUMPY, STRING, Array, Tensors, describe

RELEASE = f"{installed_version('headrace')}/1"
"""Of which release messages are; the number behind it grows when they change. Told before any message is."""

_FORM = struct.Struct("<BQQQ")
SIZE = _FORM.size
"""How many bytes of a pipe a message takes."""

NEW_SLOT = struct.Struct("<cQ")
"""An order to a model's process, beside the pipes: a letter; and of a slot, how large its area may become."""

SLOT, CLOSE = b"s", b"c"
"""The orders: to answer by three more descriptors (calls, answers, memory); and to end."""

_MOST_CAUSES = 16


class Kind(enum.IntEnum):
    """What a message is about."""

    LOAD = 1
    PREDICT = 2
    EXPLAIN = 3
    CALL = 4
    """The model asks another model."""
    ANSWER = 5
    FAILURE = 6
    DIED = 7
    """Nobody will answer: the process has ended. Said by whoever watches it."""


KNOWN = 0x40
"""Added to a kind: the arrays lie as in an earlier message, whose layout's number is in the head's place."""

RETAINED = 0x80
"""Added to an answer's kind: the model holds on to its inputs, so nothing may be written over them."""


class Note(NamedTuple):
    """A message, as it goes through a pipe.

    Attributes:
        kind: What it is about.
        offset: Where its head begins in the area.
        size: How many bytes its head has.
        area_bytes: How large the area is.
    """

    kind: int
    offset: int
    size: int
    area_bytes: int

    def packed(self) -> bytes:
        """Its bytes."""
        return _FORM.pack(*self)

    @classmethod
    def of(cls, message: bytes) -> Note:
        """From its bytes.

        Raises:
            ValueError: They are none.
        """
        if len(message) != SIZE:
            raise ValueError(f"expected {SIZE} bytes, got {len(message)}")
        return cls._make(_FORM.unpack(message))


class Piece(msgspec.Struct, array_like=True, gc=False):
    """Where one array lies.

    Attributes:
        name: Its tensor's name.
        dtype: As NumPy writes it; ``|O`` for texts.
        shape: Its shape.
        offset: Where it begins, from the end of the head on.
        size: How many bytes it takes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


class Head(msgspec.Struct, array_like=True, gc=False):
    """What a message says.

    Attributes:
        about: The signature; the name of the model that is called; or what else there is to say.
        pieces: Its arrays.
        names: Of a batch with packed texts, the names of all inputs; the pieces are then its places, its
            messages, and its inputs of numbers.
        rows: Of such a batch, how many rows it has, and how many the model shall see.
        layout: What its layout is called from now on; -1 for nothing.
    """

    about: str
    pieces: tuple[Piece, ...]
    names: tuple[str, ...] = ()
    rows: tuple[int, int] = (0, 0)
    layout: int = -1


class Failure(msgspec.Struct):
    """An error of ``headrace.errors``, on its way.

    Attributes:
        kind: The name of its class.
        message: Its text.
        field: An InvalidRequest's.
        rows: An InvalidRows' rows.
        retry_after_seconds: A Refused's.
        errno: What of the system was behind it; 0 for nothing.
        told: What callers are told of it; "" for its text.
    """

    kind: str
    message: str
    field: str = ""
    rows: dict[int, tuple[str, str]] = {}
    retry_after_seconds: float = 1.0
    told: str = ""
    errno: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(Head).decode
_decode_failure = msgspec.msgpack.Decoder(Failure).decode


# --- writing ---


def write(
    area: Area, floor: int, kind: Kind, about: str, tensors: Tensors, *, layout: int = -1
) -> tuple[Note, Head]:
    """Put tensors into an area.

    Args:
        area: It grows if it must.
        floor: Where it is free from.
        kind: What the message is about.
        about: What its head says besides.
        tensors: What it says.
        layout: What its layout is to be called.

    Returns:
        What goes through the pipe, and the head.

    Raises:
        TooLarge: The area may not become that large.
        ModelError: A tensor is of a dtype that cannot be passed on.
    """
    names: tuple[str, ...] = ()
    rows = (0, 0)
    if isinstance(tensors, PackedTensors):
        names, rows = tuple(tensors), (tensors.rows, tensors.padded_rows)
        tensors = {"": tensors.places, " ": tensors.data, **tensors.numbers}
    pieces, at = [], 0
    arrays: list[tuple[int, Array | list[bytes]]] = []
    for name, array in tensors.items():
        if array.dtype == STRING:
            texts = _texts_of(name, array)
            size = PLACE.itemsize * len(texts) + sum(map(len, texts))
            arrays.append((at, texts))
        elif array.dtype in BY_DTYPE:
            size = array.nbytes
            arrays.append((at, array))
        else:
            raise ModelError(f"the model gave {describe(array)} as {name!r}, which no protocol can carry")
        pieces.append(Piece(name, array.dtype.str, array.shape, at, size))
        at = aligned(at + size)
    made = Head(about, tuple(pieces), names, rows, layout)
    head = _encode(made)
    start = aligned(floor + len(head))
    area.grow(start + at)
    view = area.view
    view[floor : floor + len(head)] = head
    for offset, values in arrays:
        _put(view, start + offset, values)
    return Note(kind, floor, len(head), area.size), made


def write_bytes(area: Area, floor: int, kind: Kind, said: bytes) -> Note:
    """Put bytes into an area, as ``write`` does tensors."""
    area.grow(floor + len(said))
    area.view[floor : floor + len(said)] = said
    return Note(kind, floor, len(said), area.size)


def _texts_of(name: str, array: Array) -> list[bytes]:
    texts: list[bytes] = array.ravel().tolist()
    if any(type(text) is not bytes for text in texts):
        raise ModelError(f"the model gave something in {name!r} that is not bytes")
    return texts


def _put(view: memoryview, at: int, array: Array | list[bytes]) -> None:
    if isinstance(array, list):
        lengths = np.fromiter(map(len, array), PLACE, len(array)).tobytes()
        view[at : at + len(lengths)] = lengths
        at += len(lengths)
        joined = b"".join(array)
        view[at : at + len(joined)] = joined
    elif array.size:
        np.copyto(np.ndarray(array.shape, array.dtype, view, at), array)


# --- reading ---


def read_bytes(area: Area, note: Note) -> bytes:
    """The bytes that a message's head is.

    Raises:
        ValueError: They are not in the area.
    """
    area.see(note.area_bytes)
    if note.offset + note.size > area.size:
        raise ValueError("a head that is not in its area")
    return bytes(area.view[note.offset : note.offset + note.size])


def read_head(area: Area, note: Note) -> Head:
    """What a message says.

    Raises:
        ValueError: It is none.
    """
    head, end = _decode_head(read_bytes(area, note)), 0
    for piece in head.pieces:  # one after the other: what is copied is no larger than the area
        if piece.offset < end or piece.size < 0:
            raise ValueError(f"an array within another one: {piece}")
        if piece.dtype not in BY_NUMPY:
            raise ValueError(f"an array of no dtype that can be passed on: {piece}")
        end = piece.offset + piece.size
    return head


def start_of(note: Note) -> int:
    """Where a message's arrays begin."""
    return aligned(note.offset + note.size)


def end_of(head: Head, note: Note) -> int:
    """Where the area is free behind a message."""
    last = head.pieces[-1] if head.pieces else None
    return aligned(start_of(note) + (last.offset + last.size if last is not None else 0))


def view_tensors(view: memoryview, head: Head, note: Note, signatures: Mapping[str, Signature]) -> Tensors:
    """The tensors of a message where they lie: to be read only, and only until it is answered.

    Args:
        view: The area; each array of numbers holds on to this very object.
        head: From ``read_head``.
        note: The message.
        signatures: The model's.

    Raises:
        ValueError: An array does not fit.
    """
    start = start_of(note)
    tensors: dict[str, Array] = {piece.name: _view(view, start, piece) for piece in head.pieces}
    if not head.names:
        return tensors
    places, data = tensors.pop(""), tensors.pop(" ")
    return SharedPacked(head, signatures[head.about], tensors, places, data)


def copy_tensors(view: memoryview, head: Head, note: Note) -> dict[str, Array]:
    """The tensors of a message, for whoever keeps them.

    Raises:
        ValueError: An array does not fit.
    """
    start = start_of(note)
    return {
        piece.name: array if array.dtype == STRING else array.copy()
        for piece in head.pieces
        for array in [_view(view, start, piece)]
    }


def _view(view: memoryview, start: int, piece: Piece) -> Array:
    at = start + piece.offset
    count = math.prod(piece.shape)
    if min(piece.shape, default=0) < 0 or at < 0 or at + piece.size > len(view):
        raise ValueError(f"an array that is not in its area: {piece}")
    dtype = BY_NUMPY[piece.dtype]
    if dtype == STRING:
        return _texts(view, at, piece, count)
    if count * dtype.itemsize != piece.size:
        raise ValueError(f"no array: {piece}")
    array: Array = np.ndarray(piece.shape, dtype, view, at) if count else np.empty(piece.shape, dtype)
    array.flags.writeable = False
    return array


def _texts(view: memoryview, at: int, piece: Piece, count: int) -> Array:
    lengths = np.frombuffer(view, PLACE, count, at).tolist() if count else []
    joined = bytes(view[at + PLACE.itemsize * count : at + piece.size])
    if PLACE.itemsize * count + sum(lengths) != piece.size or min(lengths, default=0) < 0:
        raise ValueError(f"texts of other lengths: {piece}")
    ends = list(accumulate(lengths))
    texts = np.empty(count, STRING)
    texts[:] = [joined[end - size : end] for size, end in zip(lengths, ends, strict=True)]
    return texts.reshape(piece.shape)


class SharedPacked(PackedTensors):
    """A batch with packed texts, as it lies in an area."""

    def __init__(
        self, head: Head, signature: Signature, numbers: Tensors, places: Array, data: Array
    ) -> None:
        """View a batch.

        Args:
            head: Its names, and how many rows it has.
            signature: How the model is called.
            numbers: The inputs of numbers.
            places: As the attribute.
            data: As the attribute.
        """
        super().__init__(head.names, (), head.rows, numbers)
        self._signature, self._places, self._data = signature, places, data

    @cached_property
    def data(self) -> Array:
        """All messages, one after the other."""
        return self._data

    @cached_property
    def places(self) -> Array:
        """The places of all requests, one after the other."""
        return self._places

    def _texts(self, name: str) -> Array:
        """An input of texts, as objects."""
        specs = [spec for spec in self._signature.inputs if spec.dtype == STRING and spec.name in self._names]
        index = next((at for at, spec in enumerate(specs) if spec.name == name), None)
        if index is None:
            raise KeyError(name)
        values = [math.prod(size or 1 for size in spec.shape) for spec in specs]
        places, data = self._places.tolist(), self._data.tobytes()
        found, at, message = list[bytes](), 0, 0
        while at < len(places):
            came = places[at + HEAD : at + HEAD + len(specs)]
            skipped = sum(map(mul, came[:index], values[:index]))
            first = at + HEAD + len(specs) + 2 * skipped
            pairs = places[first : first + 2 * came[index] * values[index]]
            texts = [data[message + start : message + start + size] for start, size in _pairs(pairs)]
            found += texts * (places[at + 1] // came[index])
            message += places[at + 2]
            at += places[at]
        found += found[-values[index] :] * (self.padded_rows - self.rows)
        texts_array = np.empty(len(found), STRING)
        texts_array[:] = found
        return texts_array.reshape(self.padded_rows, *(size or 1 for size in specs[index].shape))


def _pairs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(numbers[::2], numbers[1::2], strict=True)


# --- errors ---


def failure_of(error: BaseException) -> bytes:
    """An error's bytes; what is no HeadraceError becomes a ModelError, and should have been logged."""
    if not isinstance(error, HeadraceError):
        said = f"the model failed with {type(error).__name__}; the server's log says more"
        return _encode(Failure("ModelError", said, told="the model failed; the server's log says more"))
    message = error.message
    failure = Failure(_kind_of(error), message, errno=_errno_of(error))
    failure.told = "" if error.told == message else error.told
    if isinstance(error, InvalidRequest):
        failure.field = error.field
        prefix = f"{error.field}: "
        failure.message = message.removeprefix(prefix) if error.field else message
    if isinstance(error, InvalidRows):
        failure.rows = dict(error.rows)
    if isinstance(error, Refused):
        failure.retry_after_seconds = error.retry_after_seconds
    return _encode(failure)


def error_of(said: bytes) -> HeadraceError:
    """The error of ``failure_of``.

    Raises:
        ValueError: It is none.
    """
    failure = _decode_failure(said)
    kind = getattr(errors, failure.kind, None)
    if not isinstance(kind, type) or not issubclass(kind, HeadraceError):
        raise ValueError(f"no error: {failure.kind}")
    error: HeadraceError
    if issubclass(kind, InvalidRows):
        error = kind(failure.message, field=failure.field, rows=failure.rows)
    elif issubclass(kind, InvalidRequest):
        error = kind(failure.message, field=failure.field)
    elif issubclass(kind, Refused):
        error = kind(failure.message, retry_after_seconds=failure.retry_after_seconds, told=failure.told)
    else:
        error = kind(failure.message, told=failure.told)
    if failure.errno:
        error.__cause__ = OSError(failure.errno, os.strerror(failure.errno))
    return error


def _kind_of(error: HeadraceError) -> str:
    """The name of its class, or of the first one above it that is in ``headrace.errors``."""
    return next(one.__name__ for one in type(error).__mro__ if one.__module__ == errors.__name__)


def _errno_of(error: BaseException) -> int:
    """The number of the system's error behind one, which decides whether to try again; 0 for none."""
    cause: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if cause is None:
            break
        if isinstance(cause, MemoryError):
            return errno.ENOMEM
        if isinstance(cause, OSError) and cause.errno:
            return cause.errno
        cause = cause.__cause__ or cause.__context__
    return 0
