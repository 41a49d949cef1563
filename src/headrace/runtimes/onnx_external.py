"""Copy the external data of ONNX models to sealed memory; by default, ONNX Runtime maps the files.

Truncating a mapped file kills the process, and overwriting it changes the answers. A sealed copy cannot
change, and several processes may share it. ONNX Runtime uses it in place.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from headrace.base.errors import LoadError
from headrace.base.files import open_file
from headrace.base.tensors import Array
from headrace.sealed_memory.file_copying import Content, NotCopied, sealed_copy

_PIECE_BYTES = 2**20
_BYTE = np.dtype(np.uint8)
_KEY = b"\x0a\x08location\x12"  # precedes the name of a data file in a model's bytes


def read_external(file: Path, checksums: Mapping[str, str] | None) -> dict[str, Array]:
    """Read the external data files that a model refers to.

    Args:
        file: The model.
        checksums: The SHA-256 of the version's files, from its manifest; None without one.

    Returns:
        The bytes of each file, by its name in the model.

    Raises:
        LoadError: A file cannot be read, is not listed, or has another checksum; or memory is exhausted.
    """
    try:
        names = _named(file, sorted(_beside(file)))
        return {name: _content(file.parent / name, name, checksums) for name in names}
    except (OSError, MemoryError) as error:
        said = getattr(error, "strerror", None) or error
        raise LoadError(f"external data of {file.name} cannot be read: {said}") from error


def external_names(file: Path, least_bytes: int = 0) -> list[str]:
    """Return the external data files that a model refers to, as paths relative to its directory.

    Args:
        file: The model.
        least_bytes: Minimum size of a file.

    Raises:
        LoadError: The model cannot be read.
    """
    try:
        beside = [one for one in _beside(file) if (file.parent / one).stat().st_size >= least_bytes]
        return _named(file, sorted(beside))
    except OSError as error:
        raise LoadError(f"{file.name} cannot be read: {error.strerror or error}") from error


def _beside(file: Path) -> Iterator[str]:
    """Yield the usual names, with and without ``./``, of the files below the model's directory."""
    for folder, _, names in os.walk(file.parent):
        for name in names:
            path = Path(folder, name)
            if path != file and path.is_file():
                told = path.relative_to(file.parent).as_posix()
                yield from (told, f"./{told}")


def _named(file: Path, candidates: Iterable[str]) -> list[str]:
    """Return the candidates that the model's bytes name as locations of data."""
    wanted = {name: _KEY + _length(os.fsencode(name)) + os.fsencode(name) for name in candidates}
    longest = max(map(len, wanted.values()), default=0)
    found, before = set[str](), b""
    with open_file(file) as opened:
        while wanted and (piece := opened.read(_PIECE_BYTES)):
            text = before + piece
            if _KEY in text:
                found |= {name for name, written in wanted.items() if written in text}
            before = text[-longest:]
    return sorted(found)


def _length(text: bytes) -> bytes:
    """Return the length of a text as a protobuf varint."""
    low, high = len(text) & 127, len(text) >> 7
    return bytes([low | 128, high]) if high else bytes([low])


def _content(file: Path, name: str, checksums: Mapping[str, str] | None) -> Array:
    listed = os.path.normpath(name)
    if checksums is not None and listed not in checksums:
        raise LoadError(f"{listed} is read, and the manifest does not list it; publish the version again")
    with open_file(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        try:
            copy = sealed_copy(opened, Content(size, None if checksums is None else checksums[listed]))
        except NotCopied as error:
            raise LoadError(f"{listed} {_WRONG[error.refusal.reason]}") from error
    return copy.array(_BYTE, (size,), 0)


_WRONG = {
    "checksum": "does not have the checksum that the manifest lists",
    "changed": "was changed while it was read; publish the version again",
}
