"""Copy the files that a user names into the directory of a version that is being written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from headrace.base.errors import InvalidRequest, NotFound
from headrace.base.files import is_visible, open_file
from headrace.versions.layout import SIGNATURE_FILE

_PIECE_BYTES = 2**24


def named_files(sources: Sequence[Path]) -> dict[str, Path]:
    """Return the files to publish, by their paths in the version, with slashes.

    A single directory is the version itself: its content goes to the top of the version. Beside other
    sources, a directory keeps its name, so that the shell's ``out/*`` gives the same version as ``out``. A
    signature file is left out, because it is for another manifest.

    Args:
        sources: Files and directories.

    Raises:
        NotFound: A source does not exist.
        InvalidRequest: Two files have the same name, or a directory is a link, which may be circular.
        OSError: A directory cannot be listed.
    """
    found: dict[str, Path] = {}
    for source in sources:
        if not source.exists():
            raise NotFound(f"FILE: {source} does not exist")
        if not source.is_dir():
            inside = iter([(source.name, source)])
        elif len(sources) == 1:
            inside = _inside(source, "")
        else:
            inside = _inside(source, f"{source.resolve().name}/")
        for name, file in inside:
            if name in found:
                both = f"{found[name]} and {file}"
                raise InvalidRequest(f"FILE: {both} would both be {name} in the version; rename one of them")
            found[name] = file
    found.pop(SIGNATURE_FILE, None)
    return found


def _inside(directory: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    for folder, directories, names in os.walk(directory, onerror=_raise):
        directories[:] = filter(is_visible, directories)
        for name in directories:
            if os.path.islink(link := os.path.join(folder, name)):
                raise InvalidRequest(f"FILE: {link} is a link to a directory; replace it with the directory")
        for name in sorted(filter(is_visible, names)):
            file = Path(folder, name)
            yield prefix + file.relative_to(directory).as_posix(), file


def _raise(error: OSError) -> None:
    raise error


def copy_files(files: Mapping[str, Path], directory: Path, copied: Callable[[int], object]) -> None:
    """Copy files to their paths below a directory.

    Args:
        files: The files, by their paths below the directory.
        directory: The target directory; must exist.
        copied: Called with the size of each copied piece, in bytes; an exception from it ends the copying.

    Raises:
        OSError: A file cannot be read, is not a regular file, or cannot be written.
    """
    piece = memoryview(bytearray(_PIECE_BYTES))
    for name, file in files.items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_file(file) as opened, target.open("xb") as written:
            while size := opened.readinto(piece):
                written.write(piece[:size])
                copied(size)
