"""Messages between a server and a model's process, and their format in shared memory.

A message is a few bytes in a pipe that wake the reader and give the position of its head in the area. With
tensors, the head is MessagePack and gives the positions of the arrays behind it. A setup is JSON; an error
or explanation is MessagePack; neither has arrays. Numeric arrays are stored as raw values.
Text arrays are stored as the length of each text, followed by all texts. The other side is not trusted: a
head that does not fit its area is an error.
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

from headrace.base import errors
from headrace.base.errors import HeadraceError, InvalidRequest, InvalidRows, ModelError, Refused
from headrace.base.tensors import BY_DTYPE, BY_NUMPY, STRING, Array, Tensors, describe
from headrace.isolation.shared_area import Area, aligned
from headrace.model.packed_columns import HEAD, PLACE, PackedTensors
from headrace.model.servable import Signature

RELEASE = f"{installed_version('headrace')}/3"
"""Release of the message format, compared before any message; its last number grows with each change."""

_FORM = struct.Struct("<BQQQ")
SIZE = _FORM.size
"""Size of a message in the pipe in bytes."""

NEW_SLOT = struct.Struct("<cQ")
"""Order on the control socket of a model's process: a letter, and the size limit of a new slot's area."""

SLOT, CLOSE = b"s", b"c"
"""The orders: open a slot from three attached descriptors (requests, answers, memory); and exit."""

_MOST_CAUSES = 16


class Kind(enum.IntEnum):
    """Kind of a message."""

    LOAD = 1
    PREDICT = 2
    CALL = 4
    """The model calls another model."""
    ANSWER = 5
    FAILURE = 6
    DIED = 7
    """The process has ended and will not answer; written by its watcher thread in the server."""


KNOWN = 0x40
"""Flag of a kind: the layout is that of an earlier message, and ``offset`` is the layout's number."""

RETAINED = 0x80
"""Flag of an answer's kind: the model still refers to its inputs, so they must not be overwritten."""


class Note(NamedTuple):
    """A message in a pipe.

    Attributes:
        kind: Kind of the message, with flags.
        offset: Offset of its head in the area; with ``KNOWN``, the layout's number.
        size: Size of its head in bytes.
        area_bytes: Size of the area in bytes.
    """

    kind: int
    offset: int
    size: int
    area_bytes: int

    def packed(self) -> bytes:
        """Return its bytes."""
        return _FORM.pack(*self)

    @classmethod
    def of(cls, message: bytes) -> Note:
        """Decode a message.

        Raises:
            ValueError: The number of bytes is wrong.
        """
        if len(message) != SIZE:
            raise ValueError(f"expected {SIZE} bytes, got {len(message)}")
        return cls._make(_FORM.unpack(message))


class Piece(msgspec.Struct, array_like=True, gc=False):
    """Position of one array.

    Attributes:
        name: The tensor's name.
        dtype: NumPy's name of the dtype; ``|O`` for texts.
        shape: The shape.
        offset: Offset from the aligned end of the head.
        size: Size in bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


class Head(msgspec.Struct, array_like=True, gc=False):
    """Head of a message.

    Attributes:
        about: The signature, the name of the called model, or other text.
        pieces: Positions of the arrays.
        names: For a batch with packed texts, the names of all inputs; otherwise empty. The pieces of such a
            batch are its places, its messages and its numeric inputs.
        rows: Rows of such a batch, without and with padding.
        layout: Number that the layout has from now on; -1 for none.
    """

    about: str
    pieces: tuple[Piece, ...]
    names: tuple[str, ...] = ()
    rows: tuple[int, int] = (0, 0)
    layout: int = -1


class Failure(msgspec.Struct):
    """Serializable form of an error of ``headrace.base.errors``.

    Attributes:
        kind: Name of the class.
        message: The text.
        field: The field of an InvalidRequest.
        rows: The rows of an InvalidRows.
        retry_after_seconds: The retry delay of a Refused.
        errno: Number of the system error that caused it; 0 for none.
        told: Text for callers; "" for ``message``.
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
    """Write tensors to an area.

    Args:
        area: The area; grows if necessary.
        floor: Offset of its free space.
        kind: Kind of the message.
        about: As in ``Head``.
        tensors: The tensors.
        layout: As in ``Head``.

    Returns:
        The message for the pipe, and the head.

    Raises:
        TooLarge: The area would exceed its limit.
        ModelError: A tensor has a dtype that cannot be passed on.
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
    """Write bytes to an area, and return the message for the pipe."""
    area.grow(floor + len(said))
    area.view[floor : floor + len(said)] = said
    return Note(kind, floor, len(said), area.size)


def _texts_of(name: str, array: Array) -> list[bytes]:
    texts: list[bytes] = array.ravel().tolist()
    if any(type(text) is not bytes for text in texts):
        raise ModelError(f"the model gave a text in {name!r} that is not bytes")
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
    """Return the bytes of a message's head.

    Raises:
        ValueError: They are not in the area.
    """
    area.see(note.area_bytes)
    if note.offset + note.size > area.size:
        raise ValueError("expected a head within its area")
    return bytes(area.view[note.offset : note.offset + note.size])


def read_head(area: Area, note: Note) -> Head:
    """Return a message's head.

    Raises:
        ValueError: The head is malformed.
    """
    head, end = _decode_head(read_bytes(area, note)), 0
    for piece in head.pieces:  # without overlaps, copies are no larger than the area
        if piece.offset < end or piece.size < 0:
            raise ValueError(f"expected arrays that do not overlap, got {piece}")
        if piece.dtype not in BY_NUMPY:
            raise ValueError(f"expected a supported dtype, got {piece}")
        end = piece.offset + piece.size
    return head


def start_of(note: Note) -> int:
    """Return the offset of a message's first array."""
    return aligned(note.offset + note.size)


def end_of(head: Head, note: Note) -> int:
    """Return the offset of the free space behind a message."""
    last = head.pieces[-1] if head.pieces else None
    return aligned(start_of(note) + (last.offset + last.size if last is not None else 0))


def view_tensors(view: memoryview, head: Head, note: Note, signatures: Mapping[str, Signature]) -> Tensors:
    """Return read-only views of a message's tensors, valid until the message is answered.

    Args:
        view: The area's bytes; each numeric array keeps a reference to this object.
        head: The head from ``read_head``.
        note: The message.
        signatures: The model's signatures, by name.

    Raises:
        ValueError: An array does not fit the area.
    """
    start = start_of(note)
    tensors: dict[str, Array] = {piece.name: _view(view, start, piece) for piece in head.pieces}
    if not head.names:
        return tensors
    places, data = tensors.pop(""), tensors.pop(" ")
    return SharedPacked(head, signatures[head.about], tensors, places, data)


def copy_tensors(view: memoryview, head: Head, note: Note) -> dict[str, Array]:
    """Return copies of a message's tensors.

    Raises:
        ValueError: An array does not fit the area.
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
        raise ValueError(f"expected an array within its area, got {piece}")
    dtype = BY_NUMPY[piece.dtype]
    if dtype == STRING:
        return _texts(view, at, piece, count)
    if count * dtype.itemsize != piece.size:
        raise ValueError(f"expected a size that fits the shape and dtype, got {piece}")
    array: Array = np.ndarray(piece.shape, dtype, view, at) if count else np.empty(piece.shape, dtype)
    array.flags.writeable = False
    return array


def _texts(view: memoryview, at: int, piece: Piece, count: int) -> Array:
    lengths = np.frombuffer(view, PLACE, count, at).tolist() if count else []
    joined = bytes(view[at + PLACE.itemsize * count : at + piece.size])
    if PLACE.itemsize * count + sum(lengths) != piece.size or min(lengths, default=0) < 0:
        raise ValueError(f"expected texts whose lengths fit the size, got {piece}")
    ends = list(accumulate(lengths))
    texts = np.empty(count, STRING)
    texts[:] = [joined[end - size : end] for size, end in zip(lengths, ends, strict=True)]
    return texts.reshape(piece.shape)


class SharedPacked(PackedTensors):
    """A batch with packed texts in an area."""

    def __init__(
        self, head: Head, signature: Signature, numbers: Tensors, places: Array, data: Array
    ) -> None:
        """View a batch.

        Args:
            head: Head of its message, with the names and the numbers of rows.
            signature: The signature with which the model is called.
            numbers: The numeric inputs.
            places: See the property.
            data: See the property.
        """
        super().__init__(head.names, (), head.rows, numbers)
        self._signature, self._places, self._data = signature, places, data

    @cached_property
    def data(self) -> Array:
        """All messages, concatenated."""
        return self._data

    @cached_property
    def places(self) -> Array:
        """The places of all requests, concatenated."""
        return self._places

    def _texts(self, name: str) -> Array:
        """Return a text input as an array of objects."""
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
    """Encode an error. Anything but a HeadraceError becomes a ModelError; the caller should log it."""
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
    """Decode the result of ``failure_of``.

    Raises:
        ValueError: The bytes are not an encoded error.
    """
    failure = _decode_failure(said)
    kind = getattr(errors, failure.kind, None)
    if not isinstance(kind, type) or not issubclass(kind, HeadraceError):
        raise ValueError(f"expected the name of an error class, got {failure.kind}")
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
    """Return the name of its class, or of the nearest base class in ``headrace.base.errors``."""
    return next(one.__name__ for one in type(error).__mro__ if one.__module__ == errors.__name__)


def _errno_of(error: BaseException) -> int:
    """Return the errno of an error's cause, which decides whether to retry; 0 for none."""
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
