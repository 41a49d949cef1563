"""External data of ONNX models, read into memory: ONNX Runtime maps the files itself if it is let.

A mapped file that is cut short ends the process, and one that is written over changes the answers. What is
read here is copied while the session is made, so that the files do not matter afterwards. Data that only a
subgraph names ONNX Runtime still maps, whatever it is given.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from headrace import sealed
from headrace.disk import open_file
from headrace.errors import LoadError
from headrace.tensors import Array

_PIECE_BYTES = 2**20
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


def external_names(file: Path) -> list[str]:
    """The files that a model names for its data, as paths below its own directory.

    Raises:
        LoadError: The model cannot be read.
    """
    try:
        return _named(file, sorted(_beside(file)))
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
        sealed.check_room(2 * size)  # here, and what ONNX Runtime copies
        content, done = np.empty(size, np.uint8), 0
        while done < size and (count := opened.readinto(content[done : done + _PIECE_BYTES].data)):
            done += count
    if done < size:
        raise LoadError(f"{listed} was changed while it was read; publish the version again")
    if checksums is not None and hashlib.sha256(content.data).hexdigest() != checksums[listed]:
        raise LoadError(f"{listed} does not have the checksum that the manifest lists")
    return content
