"""Arrays on disk: what is written is what is read, and checked on the very bytes that are kept."""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import LoadError
from headrace.ctr.files.arrays import (
    MissingFile,
    WrongChecksum,
    load_array,
    read_array,
    read_shape,
    write_array,
)
from headrace.sealed_memory import copies as sealed

LARGE = ("float32", (2**16, 8))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A large array: 0, 1, 2, …"""
    write_array(tmp_path / "a.npy", np.arange(2**19, dtype=np.float32).reshape(LARGE[1]))
    return tmp_path / "a.npy"


def checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_arrays_of_any_layout_and_shape_are_written_as_numpy_reads_them(tmp_path: Path) -> None:
    wide = np.arange(60, dtype=np.int64).reshape(5, 12)
    zero = np.zeros(())
    for array in (wide[:, ::3], wide.T, np.float64(3.5).reshape(()), np.zeros((0, 4)), wide > 30, zero):
        write_array(tmp_path / "a.npy", array)
        np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), array)
        for read in (
            read_array(tmp_path / "a.npy"),
            load_array(tmp_path / "a.npy", (array.dtype.name, array.shape)),
        ):
            assert (read.dtype, read.shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(read, array)
            assert read.flags.writeable
            assert read.flags.c_contiguous
            assert read.flags.aligned
        assert read_shape(tmp_path / "a.npy", array.ndim) == array.shape


@pytest.mark.parametrize("damage", ["cut", "overwritten", "removed", "replaced"])
def test_later_changes_of_the_file_do_not_change_the_array(file: Path, damage: str) -> None:
    read, again = load_array(file, LARGE), load_array(file, LARGE)
    expected = np.load(file)
    if damage == "cut":
        os.truncate(file, 0)
    elif damage == "overwritten":
        with file.open("r+b") as opened:
            opened.write(bytes(2**21))
    elif damage == "removed":
        file.unlink()
    else:
        write_array(file, np.ones(LARGE[1], np.float32))
    for array in (read, again):
        np.testing.assert_array_equal(array, expected)


def test_writing_to_a_loaded_array_reaches_neither_the_file_nor_another_one(file: Path) -> None:
    one, other = (load_array(file, LARGE, checksum(file)) for _ in range(2))
    one[5] = -1.0
    np.testing.assert_array_equal(other, np.load(file))
    assert (one[5] == -1.0).all()


def times_mapped(inode: int) -> int:
    return sum(line.split()[4] == str(inode) for line in Path("/proc/self/maps").read_text().splitlines())


def test_equal_content_is_there_once_and_goes_with_its_last_array(file: Path) -> None:
    meant = checksum(file)
    one = load_array(file, LARGE, meant)
    copy = sealed.shared(meant)
    assert copy is not None
    inode = os.fstat(copy.descriptor).st_ino
    other = load_array(file, LARGE, meant)
    assert sealed.shared(meant) is copy
    assert times_mapped(inode) == 2
    del one, copy
    np.testing.assert_array_equal(other, np.load(file))
    del other
    assert sealed.shared(meant) is None
    assert times_mapped(inode) == 0


def test_a_file_that_was_changed_is_told_even_where_the_right_content_is_shared(file: Path) -> None:
    meant = checksum(file)
    kept = load_array(file, LARGE, meant)
    os.truncate(file, 1000)
    with pytest.raises(LoadError, match=r"a\.npy is damaged: it has 1000 bytes"):
        load_array(file, LARGE, meant)
    del kept


@pytest.mark.parametrize("rows", [4, 2**17])
def test_the_checksum_is_that_of_what_was_copied(tmp_path: Path, rows: int) -> None:
    file = tmp_path / "a.npy"
    write_array(file, np.ones((rows, 4), np.float32))
    meant = checksum(file)
    load_array(file, ("float32", (rows, 4)), meant)
    with file.open("r+b") as opened:
        opened.seek(-4, os.SEEK_END)
        opened.write(b"\0\0\0\0")
    with pytest.raises(WrongChecksum, match=r"a\.npy does not have the checksum"):
        load_array(file, ("float32", (rows, 4)), meant)


@pytest.mark.parametrize("rows", [4, 2**17 + 3])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", ["first", "middle", "last"])
def test_a_number_that_is_not_finite_is_told_with_its_row(
    tmp_path: Path, rows: int, number: float, at: str
) -> None:
    array = np.ones((rows, 4), np.float32)
    row = {"first": 0, "middle": rows // 2, "last": rows - 1}[at]
    array[row, 3] = number
    write_array(tmp_path / "a.npy", array)
    with pytest.raises(
        LoadError, match=rf"^a\.npy: row {row}, column 3: expected a finite number, got {number}"
    ):
        load_array(tmp_path / "a.npy", ("float32", (rows, 4)))
    np.testing.assert_array_equal(read_array(tmp_path / "a.npy"), array)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.uint64])
def test_whole_numbers_are_all_finite(tmp_path: Path, dtype: type[np.integer]) -> None:
    write_array(tmp_path / "a.npy", np.full((2**18, 4), -1, np.int64).astype(dtype))
    load_array(tmp_path / "a.npy", (np.dtype(dtype).name, (2**18, 4)))


def test_headers_of_every_version_of_the_format_are_read(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32)
    for version in ((1, 0), (2, 0), (3, 0)):
        with (tmp_path / "a.npy").open("wb") as opened:
            np.lib.format.write_array(opened, array, version)
        np.testing.assert_array_equal(read_array(tmp_path / "a.npy"), array)


def header(text: bytes, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is damaged"),
        (b"PK\3\4", "is damaged"),
        (header(b"{"), "is damaged"),
        (header(b"(" * 3000), "is damaged"),
        (header(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"), "expected numbers, got '|O'"),
        (header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}"), "expected numbers"),
        (header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}"), "expected numbers"),
        (header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (2**99,)}"), "is damaged"),
        (header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", b"1234"), "not a multiple of 16"),
        (header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (9,)}".ljust(118)), "bytes, but its"),
        (b"\x93NUMPY\2\0\xff\xff\xff\xff", "is damaged"),
    ],
)
def test_files_that_are_no_arrays_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(LoadError, match=says.replace("|", r"\|")):
        read_array(tmp_path / "a.npy")
    with pytest.raises(LoadError, match=r"a\.npy"):
        load_array(tmp_path / "a.npy", LARGE)


def test_a_file_that_is_not_there_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="No such file"):
        load_array(tmp_path / "a.npy", LARGE)


# ---- What the system refuses ----


def run(program: str, file: Path) -> str:
    command = [sys.executable, "-c", textwrap.dedent(program), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(
    ("limit", "says"),
    [("RLIMIT_FSIZE", "File too large"), ("RLIMIT_NOFILE", "Too many open files")],
)
def test_a_limit_of_the_process_is_an_error_that_says_so(file: Path, limit: str, says: str) -> None:
    assert hasattr(resource, limit)
    program = f"""
        import os, resource, signal, sys
        from pathlib import Path
        from headrace.ctr.files.arrays import load_array
        from headrace.base.errors import LoadError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        most = 4096 if "{limit}" == "RLIMIT_FSIZE" else len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.{limit}, (most, most))
        try:
            load_array(Path(sys.argv[1]), {LARGE!r})
        except LoadError as error:
            print(error.message)
    """
    assert run(program, file).strip() == f"a.npy cannot be loaded: {says}"


def test_arrays_larger_than_memory_are_refused_before_they_are_copied(tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as opened:
        np.lib.format.write_array_header_1_0(
            opened, {"descr": "<f4", "fortran_order": False, "shape": (2**40,)}
        )
        opened.truncate(opened.tell() + 2**42)
    with pytest.raises(
        LoadError, match=r"a\.npy cannot be loaded: it takes 4398046511232 bytes of memory, and only"
    ):
        load_array(tmp_path / "a.npy", ("float32", (2**40,)))
