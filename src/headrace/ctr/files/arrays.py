"""Arrays on disk: plain ``.npy`` files, each a short header and the numbers."""

from __future__ import annotations

import ast
import math
import os
import re
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.base.errors import LoadError
from headrace.base.files import open_file
from headrace.base.tensors import Array
from headrace.sealed_memory.file_copying import (
    LARGE_BYTES,
    Content,
    NotCopied,
    Numbers,
    Refusal,
    patched_copy,
    pieces,
    sealed_copy,
)

_WRITTEN_BYTES = 2**24
_ALIGNMENT = 16  # NumPy aligns the end of its headers; kernels need aligned numbers
_MAGIC = b"\x93NUMPY"
_LARGEST_HEADER_BYTES = 4096
_PLAIN_DTYPE = re.compile(r"[<>|=][biuf][0-9]{1,2}")
_LENGTHS = {1: "<H", 2: "<I", 3: "<I"}  # struct format of the header's length, by format version


class MissingFile(LoadError):
    """An array's file does not exist."""


class WrongChecksum(LoadError):
    """An array's file does not have the expected checksum."""


class Header(NamedTuple):
    """Header of a ``.npy`` file.

    Attributes:
        dtype: Element type.
        shape: Shape; the last axis varies fastest.
        offset: Offset of the numbers in bytes.
    """

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    offset: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole file in bytes."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize


class Replaced(NamedTuple):
    """Replacements for rows of an array.

    Attributes:
        rows: Row numbers: uint32, each less than the array's number of rows.
        values: The new rows.
    """

    rows: Array
    values: Array


Expected = tuple[str, tuple[int, ...]]
"""NumPy's name of the expected element type, and the expected shape."""


def write_array(file: Path, array: Array) -> None:
    """Write an array as a plain ``.npy`` file, without copying it if it is C-contiguous.

    (``np.save`` hides the cause of a failure: its OSError for a full disk has no errno.)

    Raises:
        OSError: The file cannot be written.
    """
    content = np.ascontiguousarray(array).reshape(array.shape)
    with file.open("wb", buffering=0) as stream:
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(content))
        data = content.reshape(-1).view(np.uint8).data
        while data:
            data = data[stream.write(data[:_WRITTEN_BYTES]) or 0 :]


def load_array(
    file: Path, expected: Expected, checksum: str | None = None, replaced: Replaced | None = None
) -> Array:
    """Load an array for serving. Later changes to its file have no effect.

    Large arrays are sealed copies, mapped privately: they are writable, and writes stay private to the array.
    Checks run on the copied bytes, in the same pass.

    Args:
        file: The file.
        expected: Expected dtype and shape.
        checksum: Expected SHA-256 of the whole file, in hexadecimal digits; None to skip the check.
        replaced: Rows to replace; None for none.

    Raises:
        MissingFile: The file does not exist.
        WrongChecksum: The file has another checksum.
        LoadError: The file is damaged, has another dtype or shape, or holds a number that is not finite; or
            memory is exhausted.
    """
    with _Reading(file) as reading:
        header = reading.header
        _check_expected(header, file.name, expected)
        if header.size_bytes < LARGE_BYTES:  # not sealed: a sealed copy costs two descriptors
            return _with(replaced, _in_memory(reading, reading.content(checksum, is_finite=True)))
        content = reading.content(checksum, is_finite=True)
        copy = replaced and patched_copy(reading.opened, content, header.offset, *replaced)
        if copy is not None:
            replaced = None
        else:
            copy = sealed_copy(reading.opened, content)
        # The copy may come from another file with this checksum, so check the header that was copied.
        start = os.pread(copy.descriptor, _LARGEST_HEADER_BYTES, 0)
        header = _header(memoryview(start), file.name, copy.size_bytes)
        _check_expected(header, file.name, expected)
        return _with(replaced, copy.array(*header))


def _with(replaced: Replaced | None, array: Array) -> Array:
    if replaced is not None:
        array[replaced.rows] = replaced.values
    return array


def read_shape(file: Path, dimensions: int) -> tuple[int, ...]:
    """Return the shape from the header of an array's file.

    Args:
        file: The file.
        dimensions: Expected number of dimensions.

    Raises:
        LoadError: The file is missing or damaged, or has another number of dimensions.
    """
    with _Reading(file) as reading:
        shape = reading.header.shape
    if len(shape) != dimensions:
        raise _damaged(file.name, f"expected {dimensions} dimensions, got the shape {list(shape)}")
    return shape


def read_array(file: Path) -> Array:
    """Read an array into private memory, for learning; its numbers may be non-finite.

    Raises:
        LoadError: The file is missing or damaged, or memory is exhausted.
    """
    with _Reading(file) as reading:
        return _in_memory(reading, reading.content(None, is_finite=False))


class _Reading:
    """An open array file with its header.

    Attributes:
        opened: The open file.
        header: The file's header.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> _Reading:
        """Open the file and read its header."""
        name = self._file.name
        try:
            self.opened = open_file(self._file)
        except FileNotFoundError as error:
            raise MissingFile(f"{name} cannot be read: {error.strerror}") from error
        except OSError as error:
            raise LoadError(f"{name} cannot be read: {error.strerror}") from error
        try:
            start = os.pread(self.opened.fileno(), _LARGEST_HEADER_BYTES, 0)
            self.header = _header(memoryview(start), name, os.fstat(self.opened.fileno()).st_size)
        except BaseException as error:
            self.__exit__(type(error), error)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object = None) -> None:
        """Close the file, and turn copy, I/O and memory errors into a LoadError."""
        self.opened.close()
        name = self._file.name
        if isinstance(error, NotCopied):
            raise _refused(name, self.header, error.refusal) from error
        if isinstance(error, OSError | MemoryError):
            said = (isinstance(error, OSError) and error.strerror) or "out of memory"
            raise LoadError(f"{name} cannot be loaded: {said}") from error

    def content(self, checksum: str | None, *, is_finite: bool) -> Content:
        """Return the requirements on the file's content.

        Args:
            checksum: Expected SHA-256, or None to skip the check.
            is_finite: Whether all numbers must be finite.
        """
        header = self.header
        is_looked_through = is_finite and header.dtype.kind == "f"
        finite = Numbers(header.dtype.str, header.offset) if is_looked_through else None
        return Content(header.size_bytes, checksum, finite)


def _in_memory(reading: _Reading, wanted: Content) -> Array:
    header = reading.header
    content, done = np.empty(header.size_bytes, np.uint8), 0
    for piece in pieces(reading.opened.fileno(), wanted):
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


def _refused(name: str, header: Header, refusal: Refusal) -> LoadError:
    if refusal.reason == "checksum":
        return WrongChecksum(f"{name} does not have the checksum that is listed for it")
    if refusal.reason == "number":
        row, place = divmod(refusal.place, max(1, math.prod(header.shape[1:])))
        found = f"expected a finite number, got {refusal.number}"
        return LoadError(f"{name}: row {row}, column {place}: {found}; {_WAY_OUT}")
    return LoadError(f"{name} was changed while it was read; publish the version again")


_WAY_OUT = "publish a version whose weights are finite"


def _header(start: memoryview, name: str, size_bytes: int) -> Header:
    """Parse a file's header; NumPy's own parser lets arbitrary tokenizer errors through.

    Raises:
        LoadError: The header is invalid, or does not match the file's size.
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
        raise _damaged(name, f"its header ends at {header.offset}, which is not a multiple of {_ALIGNMENT}")
    if header.size_bytes != size_bytes:
        raise _damaged(name, f"it has {size_bytes} bytes, but its header says {header.size_bytes}")
    if is_fortran:
        raise LoadError(f"{name}: expected C order, got Fortran order; publish the version again")
    return header


_NO_HEADER = (
    ValueError, TypeError, LookupError, AttributeError, SyntaxError, OverflowError, MemoryError,
    RecursionError, struct.error,
)  # fmt: skip  # what Python's parser and NumPy's types may raise for an invalid header


def _damaged(name: str, why: str) -> LoadError:
    return LoadError(f"{name} is damaged: {why}; publish the version again")
