"""Arrays on disk: each a plain ``.npy`` file, a short header and the numbers."""

from __future__ import annotations

import ast
import hashlib
import math
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace import sealed
from headrace.disk import open_file
from headrace.errors import LoadError
from headrace.sealed import SealedCopy
from headrace.tensors import Array

_SEALED_BYTES = 2**20  # smaller arrays are plain memory: a sealed copy costs two file descriptors
_WRITTEN_BYTES = 2**24
_PIECE_BYTES = 2**18  # what is copied, digested and looked through at a time stays in a core's cache
_ALIGNMENT = 16  # NumPy's headers end so; kernels read whole numbers only
_MAGIC = b"\x93NUMPY"
_LARGEST_HEADER_BYTES = 4096
_PLAIN_DTYPE = re.compile(r"[<>|=][biuf][0-9]{1,2}")
_LENGTHS = {1: "<H", 2: "<I", 3: "<I"}  # how the header's length is written, by the format's version


class MissingFile(LoadError):
    """An array's file is not there."""


class WrongChecksum(LoadError):
    """An array's file is not the one that is meant."""


class Header(NamedTuple):
    """What a ``.npy`` file says about itself.

    Attributes:
        dtype: The element type.
        shape: The shape; the last axis varies fastest.
        offset: Where the numbers start.
    """

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    offset: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole file."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize


Expected = tuple[str, tuple[int, ...]]
"""NumPy's name of an element type, and a shape."""


def write_array(file: Path, array: Array) -> None:
    """Write an array as a plain ``.npy`` file, without a copy of it if it is C-contiguous.

    (``np.save`` does the same, but hides why it failed: a full disk is an OSError without a number there.)

    Raises:
        OSError: It cannot be written.
    """
    content = np.ascontiguousarray(array).reshape(array.shape)
    with file.open("wb", buffering=0) as stream:
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(content))
        data = content.reshape(-1).view(np.uint8).data
        while data:
            data = data[stream.write(data[:_WRITTEN_BYTES]) or 0 :]


def load_array(file: Path, expected: Expected, checksum: str | None = None) -> Array:
    """Load an array that is served; what happens to its file afterwards changes nothing.

    Large arrays are sealed copies, mapped privately: they can be written to, and what is written stays the
    array's own. What is checked is what was copied, in the same pass.

    Args:
        file: The file.
        expected: What it must hold.
        checksum: The SHA-256 that the whole file must have, in hexadecimal digits; None for any.

    Raises:
        MissingFile: It is not there.
        WrongChecksum: It has another checksum.
        LoadError: It is damaged, not what is expected, or holds a number that is not finite; or there is no
            memory for it.
    """
    with _Reading(file, checksum is not None) as reading:
        header = reading.header
        _check_expected(header, file.name, expected)
        if header.size_bytes < _SEALED_BYTES:
            array = _in_memory(reading, is_finite=True)
            _check_sum(reading, checksum)
            return array
        copy = sealed.shared(checksum) if checksum else None
        if copy is None:
            sealed.check_room(header.size_bytes)
            copy = SealedCopy(reading.pieces(is_finite=True))
            _check_sum(reading, checksum)
            copy = sealed.share(copy, checksum) if checksum else copy
        else:  # the file may be another one meanwhile: what counts is the header that was copied
            start = os.pread(copy.descriptor, _LARGEST_HEADER_BYTES, 0)
            header = _header(memoryview(start), file.name, copy.size_bytes)
            _check_expected(header, file.name, expected)
        return copy.array(*header)


def read_shape(file: Path, dimensions: int) -> tuple[int, ...]:
    """The shape that an array's file tells; its content is not read.

    Args:
        file: The file.
        dimensions: How many numbers the shape must have.

    Raises:
        LoadError: It is missing or damaged, or has another number of dimensions.
    """
    with _Reading(file, is_digested=False) as reading:
        shape = reading.header.shape
    if len(shape) != dimensions:
        raise _damaged(file.name, f"expected {dimensions} dimensions, got the shape {list(shape)}")
    return shape


def read_array(file: Path) -> Array:
    """Read an array that will learn into memory of its own, whatever numbers it holds.

    Raises:
        LoadError: It is missing or damaged, or there is no memory for it.
    """
    with _Reading(file, is_digested=False) as reading:
        return _in_memory(reading, is_finite=False)


class _Reading:
    """A file that is being read, piece by piece, and what is found on the way.

    Attributes:
        header: What the file says about itself.
        digest: Of what has been read so far.
    """

    def __init__(self, file: Path, is_digested: bool) -> None:
        self._file = file
        self._buffer = memoryview(bytearray(_PIECE_BYTES))
        self.digest = hashlib.sha256() if is_digested else None

    @property
    def name(self) -> str:
        """The file's name."""
        return self._file.name

    def __enter__(self) -> _Reading:
        """Open it and read the header."""
        try:
            self._opened = open_file(self._file)
        except FileNotFoundError as error:
            raise MissingFile(f"{self._file.name} cannot be read: {error.strerror}") from error
        except OSError as error:
            raise LoadError(f"{self._file.name} cannot be read: {error.strerror}") from error
        try:
            self._status = os.fstat(self._opened.fileno())
            self._first = self._next()
            self.header = _header(self._first, self._file.name, self._status.st_size)
        except BaseException as error:
            self.__exit__(type(error), error)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object = None) -> None:
        """Close it; what the system refused meanwhile is an error of the version."""
        self._opened.close()
        if isinstance(error, OSError | MemoryError):
            said = (isinstance(error, OSError) and error.strerror) or "there is no memory for it"
            raise LoadError(f"{self._file.name} cannot be loaded: {said}") from error

    def pieces(self, *, is_finite: bool) -> Iterator[memoryview]:
        """The whole content; each piece is valid until the next one.

        Args:
            is_finite: Whether all numbers must be.
        """
        name, header, done, piece = self._file.name, self.header, 0, self._first
        is_looked_through = is_finite and header.dtype.kind == "f"
        while piece and done + len(piece) <= header.size_bytes:
            if self.digest is not None:
                self.digest.update(piece)
            if is_looked_through:
                _check_finite(piece, done, header, name)
            done += len(piece)
            yield piece
            piece = self._next()
        status = os.fstat(self._opened.fileno())
        told, now = self._status, status
        if done != header.size_bytes or (told.st_size, told.st_mtime_ns) != (now.st_size, now.st_mtime_ns):
            raise LoadError(f"{name} was changed while it was read; publish the version again")

    def _next(self) -> memoryview:
        filled = 0
        while filled < _PIECE_BYTES and (count := self._opened.readinto(self._buffer[filled:])):
            filled += count
        return self._buffer[:filled]


def _in_memory(reading: _Reading, *, is_finite: bool) -> Array:
    header = reading.header
    content, done = np.empty(header.size_bytes, np.uint8), 0
    for piece in reading.pieces(is_finite=is_finite):
        content[done : done + len(piece)] = piece
        done += len(piece)
    return content[header.offset :].view(header.dtype).reshape(header.shape)


def _check_expected(header: Header, name: str, expected: Expected) -> None:
    dtype, shape = expected
    if header.dtype.name != dtype or not header.dtype.isnative or header.shape != shape:
        raise LoadError(
            f"{name}: expected {dtype} {list(shape)}, got {header.dtype} {list(header.shape)}; "
            "publish the version again"
        )


def _check_sum(reading: _Reading, checksum: str | None) -> None:
    if reading.digest is not None and reading.digest.hexdigest() != checksum:
        raise WrongChecksum(f"{reading.name} does not have the checksum that is listed for it")


def _check_finite(piece: memoryview, done: int, header: Header, name: str) -> None:
    start = max(0, header.offset - done)
    numbers = np.frombuffer(piece[start:], header.dtype)
    if not numbers.size or (np.isfinite(numbers.max()) and np.isfinite(numbers.min())):
        return  # a NaN is the largest, and the smallest, too
    at = (done + start - header.offset) // header.dtype.itemsize + int(np.argmin(np.isfinite(numbers)))
    row, place = divmod(at, max(1, math.prod(header.shape[1:])))
    found = numbers[int(np.argmin(np.isfinite(numbers)))]
    raise LoadError(f"{name}: row {row}, column {place}: expected a finite number, got {found}; {_WAY_OUT}")


_WAY_OUT = "publish a version whose weights are numbers"


def _header(start: memoryview, name: str, size_bytes: int) -> Header:
    """Read a file's header; NumPy's own reader raises whatever its tokenizer does.

    Raises:
        LoadError: It is none, or the file has not the size that it tells.
    """
    try:
        length_format = _LENGTHS[start[6]]
        (length,) = struct.unpack_from(length_format, start, 8)
        at = 8 + struct.calcsize(length_format)
        if start[:6] != _MAGIC or at + length > min(_LARGEST_HEADER_BYTES, len(start)):
            raise ValueError("not NumPy's format")
        told = ast.literal_eval(str(start[at : at + length], "latin-1").strip())
        descr, shape, is_fortran = told["descr"], tuple(told["shape"]), bool(told["fortran_order"])
        if not _PLAIN_DTYPE.fullmatch(descr) or not all(type(one) is int and one >= 0 for one in shape):
            raise ValueError(f"expected numbers, got {descr!r} {shape}")
        header = Header(np.dtype(descr), shape, at + length)
    except _NO_HEADER as error:
        raise _damaged(name, str(error) or "no header") from error
    if header.offset % _ALIGNMENT:
        raise _damaged(name, f"its header ends at {header.offset}, which is no multiple of {_ALIGNMENT}")
    if header.size_bytes != size_bytes:
        raise _damaged(name, f"it has {size_bytes} bytes where its header tells {header.size_bytes}")
    if is_fortran:
        raise LoadError(f"{name}: expected C order, got Fortran's; publish the version again")
    return header


_NO_HEADER = (
    ValueError, TypeError, LookupError, AttributeError, SyntaxError, OverflowError, MemoryError,
    RecursionError, struct.error,
)  # fmt: skip  # what Python's parser and NumPy's types may raise for a text that is none


def _damaged(name: str, why: str) -> LoadError:
    return LoadError(f"{name} is damaged: {why}; publish the version again")
