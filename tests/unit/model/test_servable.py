"""A Signature checks and coerces a request once: what is accepted is exact, what is not is named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headrace.base.errors import HeadraceError, InvalidRequest, NotFound
from headrace.base.tensors import DATATYPES, STRING, Array
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec, signature_named


def spec(name: str, dtype: object, *shape: int | None) -> TensorSpec:
    return TensorSpec(name, np.dtype(dtype), shape)


def taking(*inputs: TensorSpec) -> Signature:
    return Signature(DEFAULT_SIGNATURE, inputs, (spec("y", np.float32), spec("z", np.float32)))


def column(dtype: object, value: object, *shape: int | None, exact: bool = False) -> Array:
    """What one input's value becomes."""
    ((array),) = taking(spec("x", dtype, *shape)).check({"x": value}, exact=exact).columns
    assert isinstance(array, np.ndarray)
    return array


def refusal(dtype: object, value: object, *shape: int | None, exact: bool = False) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        column(dtype, value, *shape, exact=exact)
    assert caught.value.field == "x"
    return caught.value


# --- what is taken ---


def test_inputs_become_columns_in_the_signatures_order() -> None:
    signature = taking(spec("cat", np.int32, 2), spec("dense", np.float32, None))
    checked = signature.check({"dense": [[0.5], [1.5]], "cat": [[1, 2], [3, 4]]})
    assert checked.rows == 2
    assert [array.tolist() for array in checked.columns] == [[[1, 2], [3, 4]], [[0.5], [1.5]]]
    assert [array.dtype for array in checked.columns] == [np.int32, np.float32]
    assert checked.layout.shapes == ((2,), (1,))
    assert checked.layout.row_bytes == (8, 4)


@pytest.mark.parametrize("dtype", [known.dtype for known in DATATYPES], ids=str)
def test_an_exact_array_is_not_copied(dtype: np.dtype) -> None:
    value = np.full((3, 2), b"x") if dtype == STRING else np.ones((3, 2), dtype)
    value = value.astype(dtype)
    assert column(dtype, value, 2, exact=True) is value


@pytest.mark.parametrize(
    "value",
    [
        np.ones((2, 6), np.float32)[:, ::2],
        np.asfortranarray(np.ones((2, 3), np.float32)),
        np.ones((2, 3), ">f4"),
        np.ones((2, 3), np.float32)[::-1],
    ],
    ids=["every other", "another order", "another byte order", "backwards"],
)
@pytest.mark.parametrize("exact", [True, False])
def test_arrays_that_lie_otherwise_in_memory_are_laid_out(value: Array, exact: bool) -> None:
    array = column(np.float32, value, 3, exact=exact)
    assert array.flags.c_contiguous
    assert array.dtype == np.dtype("<f4")
    assert array.tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (np.float32, [1, 2], [1.0, 2.0]),
        (np.float32, np.array([1.5], np.float64), [1.5]),
        (np.float32, [True], [1.0]),
        (np.float32, [float("nan"), float("inf"), -1e30], [np.nan, np.inf, -1e30]),
        (np.float16, [65504.0, float("-inf")], [65504.0, -np.inf]),
        (np.int32, np.array([7], np.int64), [7]),
        (np.int64, [2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)]),
        (np.uint64, [2**64 - 1], [2**64 - 1]),
        (np.int8, [-128, 127], [-128, 127]),
        (np.uint8, [0, 255], [0, 255]),
        (np.int16, [True, False], [1, 0]),
        (np.bool_, [True, False], [True, False]),
    ],
)
def test_what_fits_is_taken(dtype: object, value: object, expected: list[object]) -> None:
    array = column(dtype, value)
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, np.array(expected, dtype))


@pytest.mark.parametrize(
    ("dtype", "value", "shape"),
    [
        (np.float32, [float("nan"), -1e300], ()),
        (np.float16, [65504.0, 1e6], ()),
        (np.float16, np.array([70000]), ()),
        (np.int32, [1.0], ()),
        (np.int32, [1.5], ()),
        (np.bool_, [1], ()),
        (np.int8, [128], ()),
        (np.int8, [-129], ()),
        (np.uint8, [-1], ()),
        (np.uint64, [-1], ()),
        (np.int64, [2**63], ()),
        (np.int64, [2**70], ()),
        (np.float32, ["1.0"], ()),
        (np.float32, [None], ()),
        (np.float32, [{}], ()),
        (np.float32, [1, "a"], ()),
        (np.float32, [1j], ()),
        (np.float32, [[1.0], [1.0, 2.0]], (None,)),
        (np.float32, [[1.0], 2.0], (None,)),
        (np.float32, 1.0, ()),
        (np.float32, [[1.0, 2.0]], ()),
        (np.float32, [1.0], (None,)),
        (np.float32, [[1.0, 2.0]], (3,)),
        (np.float32, [], (3,)),
        (np.float32, np.array(["2020-01-01"], "M8[D]"), ()),
        (STRING, [1], ()),
        (STRING, [b"a", 1], ()),
        (STRING, [None], ()),
        (STRING, [[b"a"], [b"a", b"b"]], (2,)),
        (STRING, np.ones(2), ()),
        (STRING, b"alone", ()),
        (STRING, {"b64": "eA=="}, ()),
        (STRING, ["\ud800"], ()),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    dtype: object, value: object, shape: tuple[int | None, ...]
) -> None:
    assert refusal(dtype, value, *shape).message.startswith("x: ")


def test_a_refusal_says_what_was_expected_and_what_came() -> None:
    assert refusal(np.int8, [1, 300]).message == "x: 300 does not fit in INT8 (-128 … 127)"
    said = refusal(np.int32, np.ones((1, 2)), 2).message
    assert "expected x INT32 [rows, 2], got FP64 [1, 2]" in said
    assert (
        "expected x FP32 [rows, any, 3], got shape [1, 2]"
        in refusal(np.float32, [[1.0, 2.0]], None, 3).message
    )


@pytest.mark.parametrize(
    ("wanted", "declared", "taken"),
    [
        (np.float64, np.float32, True),
        (np.int64, np.int32, True),
        (np.int16, np.uint8, True),
        (np.float64, np.int32, True),
        (np.int32, np.bool_, True),
        (np.float32, np.float64, False),
        (np.int32, np.int64, False),
        (np.float32, np.int32, False),
        (np.int8, np.uint8, False),
    ],
)
def test_declared_dtypes_are_only_widened(wanted: object, declared: object, taken: bool) -> None:
    value = np.ones(2, declared)
    if taken:
        assert column(wanted, value, exact=True).tolist() == [1, 1]
    else:
        message = refusal(wanted, value, exact=True).message
        assert "convert it before sending, as headrace does not" in message


@pytest.mark.parametrize(
    "value",
    [
        ["é", b"\x00\xff"],
        np.array(["é", b"\x00\xff"], object),
        ("é", b"\x00\xff"),
    ],
)
def test_text_becomes_bytes(value: object) -> None:
    array = column(STRING, value)
    assert array.dtype == STRING
    assert array.tolist() == ["é".encode(), b"\x00\xff"]


def test_fixed_size_strings_of_numpy_become_bytes() -> None:
    assert column(STRING, np.array([["ab", "é"]]), 2).tolist() == [[b"ab", "é".encode()]]
    assert column(STRING, np.array([b"ab", b"c"])).tolist() == [b"ab", b"c"]


integers = st.sampled_from([known.dtype for known in DATATYPES if known.dtype.kind in "iu"])


@given(
    integers, arrays.arrays(st.sampled_from(["i8", "u8", "i4", "u2", "i1"]), st.integers(1, 5)), st.booleans()
)
def test_no_integer_ever_changes_its_value(dtype: np.dtype, value: Array, exact: bool) -> None:
    try:
        array = column(dtype, value, exact=exact)
    except InvalidRequest:
        fits = np.iinfo(dtype).min <= int(value.min()) and int(value.max()) <= np.iinfo(dtype).max
        assert exact or not fits
    else:
        assert array.dtype == dtype
        assert array.tolist() == value.tolist()


nonsense = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)


@given(st.sampled_from([known.dtype for known in DATATYPES]), nonsense, st.booleans())
def test_whatever_comes_fits_or_is_refused_with_a_typed_error(
    dtype: np.dtype, value: object, exact: bool
) -> None:
    try:
        array = column(dtype, value, None, exact=exact)
    except InvalidRequest:
        pass
    else:
        assert array.dtype == dtype
        assert array.ndim == 2
        assert len(array) > 0
        assert dtype != STRING or all(type(element) is bytes for element in array.flat)


# --- names, rows, layouts ---


def test_inputs_are_all_there_and_no_others() -> None:
    signature = taking(spec("a", np.float32), spec("b", np.float32))
    with pytest.raises(InvalidRequest, match=r"missing input 'b'.*takes a FP32 \[rows\]; b FP32"):
        signature.check({"a": [1.0]})
    with pytest.raises(InvalidRequest, match="missing input 'b', unknown input 'c'"):
        signature.check({"a": [1.0], "c": [1.0]})
    with pytest.raises(InvalidRequest, match="unknown input 'c'"):
        signature.check({"a": [1.0], "b": [1.0], "c": [1.0]})


def test_every_input_has_the_same_number_of_rows_and_at_least_one() -> None:
    signature = taking(spec("a", np.float32), spec("b", np.float32))
    with pytest.raises(InvalidRequest, match="b: has 1 row where a has 2"):
        signature.check({"a": [1.0, 2.0], "b": [1.0]})
    with pytest.raises(InvalidRequest, match="at least one row"):
        signature.check({"a": [], "b": []})


def test_the_same_shapes_are_the_same_layout() -> None:
    signature = taking(spec("x", np.float32, None))
    assert signature.layout(((3,),)) is signature.layout(((3,),))
    assert signature.layout(((3,),)) is not signature.layout(((4,),))
    assert signature.check({"x": [[1.0] * 3]}).layout is signature.layout(((3,),))


def test_endless_shapes_do_not_become_endless_memory() -> None:
    signature = taking(spec("x", np.float32, None))
    for length in range(10_000):
        signature.layout(((length,),))
    assert len(signature._layouts) <= 4096


def test_strings_have_no_size_in_a_layout() -> None:
    assert taking(spec("x", STRING, 3)).layout(((3,),)).row_bytes == (0,)


def test_outputs_are_chosen_by_name_once_each() -> None:
    signature = taking(spec("x", np.float32))
    assert signature.check_outputs(["z", "y"]) == ("z", "y")
    assert signature.check_outputs([]) == ()
    with pytest.raises(InvalidRequest, match="unknown output 'w'; the model gives 'y', 'z'"):
        signature.check_outputs(["y", "w"])
    with pytest.raises(InvalidRequest, match="'y' is asked for twice"):
        signature.check_outputs(["y", "z", "y"])


def test_a_text_instead_of_names_of_outputs_is_told_from_a_wrong_name() -> None:
    signature = Signature("", (spec("x", np.float32),), (spec("label", STRING), spec("l", np.float32)))
    for names in ("label", tuple("label"), list("label")):
        with pytest.raises(
            InvalidRequest, match=r"unknown output 'a'; .*; put the name into a list: \['label'\]$"
        ):
            signature.check_outputs(names)
    for names in ("labels", tuple("labels"), ["label", "s"], ["a", "label"], iter("label")):
        with pytest.raises(InvalidRequest, match=r"unknown output '[as]'; the model gives 'label', 'l'$"):
            signature.check_outputs(names)


def test_a_spec_is_written_as_people_write_it() -> None:
    assert str(spec("cat", np.int32, 26)) == "cat INT32 [rows, 26]"
    assert str(spec("text", STRING, None, 2)) == "text BYTES [rows, any, 2]"


def test_an_input_is_found_by_its_name() -> None:
    signature = taking(spec("a", np.float32), spec("b", np.int32))
    assert signature.input("b").dtype == np.int32
    with pytest.raises(InvalidRequest, match="unknown input 'c'; the model takes 'a', 'b'"):
        signature.input("c")


def test_the_empty_name_is_the_default_signature() -> None:
    default = taking(spec("x", np.float32))
    signatures = {DEFAULT_SIGNATURE: default}
    assert signature_named(signatures, "") is default
    assert signature_named(signatures, DEFAULT_SIGNATURE) is default
    with pytest.raises(NotFound, match="'other' not found; the model has 'serving_default'"):
        signature_named(signatures, "other")
    assert issubclass(NotFound, HeadraceError)


def test_text_where_numbers_are_wanted_is_called_text() -> None:
    signature = Signature(
        "s", (TensorSpec("x", np.dtype(np.float32), ()),), (TensorSpec("y", np.dtype(np.float32), ()),)
    )
    with pytest.raises(InvalidRequest, match=r"^x: row 0: expected a number \(FP32\), got 'a'$"):
        signature.check({"x": ["a"]})


PLAIN = Signature(
    DEFAULT_SIGNATURE,
    (TensorSpec("x", np.dtype(np.float32), (2,)), TensorSpec("n", np.dtype(np.int64), ())),
    (TensorSpec("y", np.dtype(np.float32), ()),),
)
X, N = np.ones((3, 2), np.float32), np.arange(3)


def test_arrays_that_fit_are_taken_as_they_are() -> None:
    first = PLAIN.check({"x": X, "n": N})
    again = PLAIN.check({"n": N, "x": X})
    assert again.layout is first.layout
    assert again.columns[0] is X
    assert again.columns[1] is N
    assert again.rows == 3


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": X, "n": N[:2]},
        {"x": X[:0], "n": N[:0]},
        {"x": X, "n": np.array(3)},
        {"x": np.float32(1).reshape(()), "n": np.array(3)},
        {"x": X},
        {"x": X, "n": N, "z": N},
        {"x": X[:, :1], "n": N},
        {"x": X, "n": np.array(["a", "b", "c"])},
    ],
    ids=["rows", "no rows", "no axis", "no axes", "missing", "unknown", "shape", "dtype"],
)
def test_after_one_that_fits_what_does_not_is_still_refused(inputs: dict[str, object]) -> None:
    PLAIN.check({"x": X, "n": N})
    with pytest.raises(InvalidRequest):
        PLAIN.check(inputs)


def test_what_lies_otherwise_is_still_made_to_fit() -> None:
    PLAIN.check({"x": X, "n": N})
    turned = PLAIN.check(
        {"x": np.asfortranarray(np.arange(6, dtype=np.float64).reshape(3, 2)), "n": [1, 2, 3]}
    )
    assert np.asarray(turned.columns[0]).flags.c_contiguous
    assert np.asarray(turned.columns[0]).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert np.asarray(turned.columns[1]).dtype == np.int64
