"""External data of ONNX models, as sealed copies: ONNX Runtime maps the files themselves if it is let.

A mapped file that is cut short ends the process, and one that is written over changes the answers. A sealed
copy is neither, and several processes may share it. ONNX Runtime computes with it where it lies.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from headrace.disk import open_file
from headrace.errors import LoadError
from headrace.sealed.copying import Content, NotCopied, sealed_copy
from headrace.tensors import Array

_PIECE_BYTES = 2**20
_BYTE = np.dtype(np.uint8)
_KEY = b"\x0a\x08location\x12"  # how a model's bytes say where data lie: a key, then the file's name


def read_external(file: Path, checksums: Mapping[str, str] | None) -> dict[str, Array]:
    """Read what lies in the files that a model names for its data.

    Args:
        file: The model.
        checksums: The SHA-256 of each file that is read, as the manifest lists them; None without one.

    Returns:
        The bytes of each file, by the name that the model has for it.

    Raises:
        LoadError: A file cannot be read, is not listed, or is not the one that is; or there is no memory.
    """
    try:
        names = _named(file, sorted(_beside(file)))
        return {name: _content(file.parent / name, name, checksums) for name in names}
    except (OSError, MemoryError) as error:
        said = getattr(error, "strerror", None) or error
        raise LoadError(f"external data of {file.name} cannot be read: {said}") from error


def external_names(file: Path, least_bytes: int = 0) -> list[str]:
    """The files that a model names for its data, as paths below its own directory.

    Args:
        file: The model.
        least_bytes: How large they must be.

    Raises:
        LoadError: The model cannot be read.
    """
    try:
        beside = [one for one in _beside(file) if (file.parent / one).stat().st_size >= least_bytes]
        return _named(file, sorted(beside))
    except OSError as error:
        raise LoadError(f"{file.name} cannot be read: {error.strerror or error}") from error


def _beside(file: Path) -> Iterator[str]:
    """The files that may hold its data: those below its directory, by the names that a model may use."""
    for folder, _, names in os.walk(file.parent):
        for name in names:
            path = Path(folder, name)
            if path != file and path.is_file():
                told = path.relative_to(file.parent).as_posix()
                yield from (told, f"./{told}")


def _named(file: Path, candidates: Iterable[str]) -> list[str]:
    """Those of some names that a model's bytes give as a place of data."""
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
    """The length of a text as protobuf writes it."""
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
