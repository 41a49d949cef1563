"""Tensors and errors come out of shared memory as they went in, and what does not fit is an error."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from headrace.base.errors import (
    HeadraceError,
    InvalidRequest,
    InvalidRows,
    LoadError,
    ModelError,
    NotLoadable,
    Overloaded,
    TooLarge,
)
from headrace.base.tensors import DATATYPES, STRING, Tensors
from headrace.isolation.layout_cache import Layouts
from headrace.isolation.messages import (
    KNOWN,
    Kind,
    Note,
    copy_tensors,
    error_of,
    failure_of,
    read_head,
    view_tensors,
    write,
)
from headrace.isolation.shared_area import Area, new_file
from headrace.model.packed_columns import HEAD, PLACE, PackedColumns, PackedInput, PackedTensors
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec


@pytest.fixture
def area() -> Iterator[Area]:
    made = Area(new_file("test"), 2**20)
    yield made
    made.close()


def texts(*values: bytes) -> np.ndarray:
    array = np.empty(len(values), STRING)
    array[:] = values
    return array


def test_every_dtype_and_shape_comes_back(area: Area) -> None:
    sent: dict[str, np.ndarray] = {
        one.oip: np.arange(12).reshape(3, 4).astype(one.dtype) for one in DATATYPES if one.dtype != STRING
    }
    sent |= {"text": texts(b"", b"\x00\xff", b"long" * 1000), "none": np.empty((3, 0), np.float32)}
    sent |= {"askew": np.arange(24.0).reshape(4, 6)[1:, ::2], "no texts": np.empty((0, 2), STRING)}
    note, _ = write(area, 8, Kind.PREDICT, "serving_default", sent)
    note = Note.of(note.packed())
    came = copy_tensors(area.view, read_head(area, note), note)
    assert list(came) == list(sent)
    for name, array in sent.items():
        assert came[name].dtype == array.dtype
        assert came[name].shape == array.shape
        assert came[name].tolist() == array.tolist()


def test_a_layout_that_came_before_has_no_head(area: Area) -> None:
    here, there = Layouts(), Layouts()
    for number in range(3):
        sent: Tensors = {"a": np.full((2, 3), number, np.float32), "b": np.full(2, -number)}
        note = here.write(area, 0, Kind.PREDICT, "s", sent)
        assert bool(note.kind & KNOWN) == (number > 0)
        if number == 0:
            there.hear(area, read_head(area, note), note)
        known = there.told[0]
        assert known.about == "s"
        assert {name: array.tolist() for name, array in known.tensors.items()} == {
            name: array.tolist() for name, array in sent.items()
        }
        assert not known.is_retained
    kept = known.tensors["a"][1:]
    assert known.is_retained
    del kept
    assert not known.is_retained


def test_an_area_is_bounded_and_what_lies_outside_is_refused(area: Area) -> None:
    with pytest.raises(TooLarge, match=r"isolation\.shared_bytes = 1048576"):
        write(area, 0, Kind.PREDICT, "", {"x": np.zeros(2**18)})
    note, head = write(area, 0, Kind.PREDICT, "", {"x": np.zeros(8)})
    head.pieces[0].offset = 2**40
    with pytest.raises(ValueError, match="expected an array within its area"):
        copy_tensors(area.view, head, note)
    with pytest.raises(ValueError, match="expected a head within its area"):
        read_head(area, note._replace(offset=2**40))
    with pytest.raises(ModelError, match="no protocol can carry"):
        write(area, 0, Kind.ANSWER, "", {"x": np.zeros(2, np.complex64)})


def test_arrays_within_one_another_are_refused(area: Area) -> None:
    """Or a megabyte of shared memory would be copied into gigabytes."""
    note, head = write(area, 0, Kind.ANSWER, "", {"x": np.zeros(8), "y": np.zeros(8)})
    head.pieces[1].offset = head.pieces[0].offset
    said = msgspec.msgpack.encode(head)
    area.view[: len(said)] = said
    with pytest.raises(ValueError, match="expected arrays that do not overlap"):
        read_head(area, note._replace(size=len(said)))


@pytest.mark.parametrize("dtype", ["(1 1)i4,i4", "i4,(", "f4," * 1000, "<c8", "V1", ""])
def test_a_dtype_that_there_is_not_is_refused(area: Area, dtype: str) -> None:
    """The first two made NumPy raise Python's SyntaxError, which nobody expects."""
    note, head = write(area, 0, Kind.ANSWER, "", {"x": np.zeros(8)})
    head.pieces[0].dtype = dtype
    said = msgspec.msgpack.encode(head)
    area.view[: len(said)] = said
    with pytest.raises(ValueError, match="expected a supported dtype"):
        read_head(area, note._replace(size=len(said)))


def test_a_layout_of_objects_is_refused(area: Area) -> None:
    """An array of objects in shared memory would be pointers that the other side has chosen."""
    note, head = write(area, 0, Kind.ANSWER, "", {"x": texts(b"a")}, layout=0)
    there = Layouts()
    with pytest.raises(ValueError, match="expected a layout of numbers only"):
        there.hear(area, head, note)
    assert there.told == {}


def test_an_area_that_the_other_side_says_is_larger_than_allowed_is_not_mapped(area: Area) -> None:
    with pytest.raises(ValueError, match="at most 1048576 bytes"):
        area.see(2**62)


def test_packed_texts_stay_packed_and_can_be_had_as_objects(area: Area) -> None:
    specs = (
        TensorSpec("a", STRING, ()),
        TensorSpec("n", np.dtype(np.int64), ()),
        TensorSpec("b", STRING, (2,)),
    )
    signature = Signature(DEFAULT_SIGNATURE, specs, ())
    message = b"xyzuvw"
    places = np.array([HEAD + 2 + 12, 2, 6, 2, 2, 0, 1, 1, 2, 3, 1, 4, 1, 5, 1, 3, 0], PLACE)
    places[0] = len(places)
    inputs = (
        PackedInput(True, HEAD + 2, 2, (2,), 2),
        PackedInput(False, 0, 0, (2,), 2),
        PackedInput(True, HEAD + 6, 4, (2, 2), 2),
    )
    request = PackedColumns(message, places, inputs, 6)
    sent = PackedTensors(["a", "n", "b"], [request, request], (4, 5), {"n": np.arange(5)})
    note, _ = write(area, 0, Kind.PREDICT, DEFAULT_SIGNATURE, sent)
    came = view_tensors(area.view, read_head(area, note), note, {DEFAULT_SIGNATURE: signature})
    assert isinstance(came, PackedTensors)
    assert came.places.tolist() == sent.places.tolist()
    assert came.data.tobytes() == sent.data.tobytes()
    assert (came.rows, came.padded_rows) == (4, 5)
    for name in ("a", "n", "b"):
        assert came[name].tolist() == sent[name].tolist()


ERRORS = [
    InvalidRequest("expected this, got that", field="x"),
    InvalidRows.of({3: ("x", ": expected a bucket"), 7: ("y", ": no")}),
    ModelError("it failed"),
    NotLoadable("never"),
    Overloaded("later", retry_after_seconds=4.5),
    LoadError("not now"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_come_through_as_they_are(error: HeadraceError) -> None:
    came = error_of(failure_of(error))
    assert type(came) is type(error)
    assert came.message == error.message
    for name in ("field", "rows", "retry_after_seconds"):
        assert getattr(came, name, None) == getattr(error, name, None)


def test_the_errno_of_a_cause_is_passed_on() -> None:
    error = LoadError("no room")
    error.__cause__ = OSError(errno.ENOSPC, "full")
    cause = error_of(failure_of(error)).__cause__
    assert isinstance(cause, OSError)
    assert cause.errno == errno.ENOSPC


def test_an_unexpected_error_passes_on_its_class_only() -> None:
    came = error_of(failure_of(ZeroDivisionError("secret")))
    assert came.message == "the model failed with ZeroDivisionError; the server's log says more"
    assert came.told == "the model failed; the server's log says more"
