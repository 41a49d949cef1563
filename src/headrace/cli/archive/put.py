"""``headrace archive put SPACE FILE --keys FILE``: store vectors that were made elsewhere."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import InvalidRequest
from headrace.base.files import saying
from headrace.cli import common
from headrace.cli.archive import archive_options

if TYPE_CHECKING:
    from headrace.base.tensors import Array


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="put",
            help="store vectors, or rows, that were made elsewhere",
            description="Store the rows of a NumPy file under the keys in a text file, one per line. "
            "Existing vectors are replaced; repeating the command changes nothing. A feature table takes a "
            "structured array, whose fields are its columns; headrace archive load takes other files.",
            examples="examples:\n  headrace archive put items vectors.npy --keys keys.txt",
            failure="the store does not answer; some rows may be stored, run it again",
            run=run,
        ),
    )
    archive_options.add_space(parser)
    parser.add_argument(
        "vectors", metavar="FILE", type=Path, help="numbers, one row per key (.npy); fields for a table"
    )
    parser.add_argument(
        "--keys", metavar="FILE", type=Path, required=True, help="the keys in UTF-8, one per line"
    )
    archive_options.add_archive(parser)
    archive_options.add_version(parser)


def run(options: argparse.Namespace) -> int:
    """Store the vectors or rows."""
    vectors, keys = _read_vectors(options.vectors), _read_keys(options.keys)
    if len(keys) != len(vectors):
        expected = f"as many lines as {options.vectors} has rows, {len(vectors)}"
        raise InvalidRequest(f"expected {expected}, got {len(keys)}", field="--keys")
    with archive_options.open_archive_of(options) as archive:
        if vectors.dtype.names:
            values = {name: vectors[name] for name in vectors.dtype.names}
            archive.put_rows(options.space, keys, values, version=options.version)
        else:
            archive.put(options.space, keys, vectors, version=options.version)
    archive_options.tell(options, "stored", {"space": options.space, "keys": len(keys)})
    return common.DONE


def _check_there(what: str, file: Path) -> None:
    """Raise InvalidRequest for a missing file or a directory: the command is wrong, not the disk."""
    if not file.exists() or file.is_dir():
        reason = "it is a directory" if file.is_dir() else "it does not exist"
        raise InvalidRequest(f"expected a file, got {file}: {reason}", field=what)


def _read_vectors(file: Path) -> Array:
    import numpy as np  # noqa: PLC0415 - not needed to list the verbs

    _check_there("FILE.npy", file)
    with saying(f"{file} cannot be read"):
        try:
            vectors = np.load(file, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            way_out = "numpy.save writes one; headrace archive load takes Parquet, Arrow and CSV"
            raise InvalidRequest(f"{file}: expected a NumPy file (.npy) of numbers; {way_out}") from error
    if not isinstance(vectors, np.ndarray) or vectors.ndim == 0:
        raise InvalidRequest(f"{file}: expected one array with one row per key")
    return vectors


def _read_keys(file: Path) -> list[str]:
    _check_there("--keys", file)
    with saying(f"{file} cannot be read"):
        try:
            return file.read_text("utf-8").removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{file}: expected texts in UTF-8: {error}", field="--keys") from error
