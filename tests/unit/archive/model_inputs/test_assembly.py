"""Inputs from the archive: which keys are asked for, and what is made of what was found."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.archive.lookup.space_reader import Lookup
from headrace.archive.model.catalog import SpaceVersion
from headrace.archive.model.columns import Column, default_row, rows_of
from headrace.archive.model_inputs.assembly import ModelInputs, Question, check_fits
from headrace.base.errors import ConfigError, InvalidRows
from headrace.base.tensors import STRING, Array
from headrace.config import InputSource
from headrace.model.servable import TensorSpec
from tests.unit.archive.model_inputs.lookups import fill

NOW = 1_000_000
OOV = np.array([-1, -1], np.float16)
STORED = {"a": (1.0, 999_000), "b": (2.0, 990_000), "7": (7.0, 999_000)}


def look(question: Question) -> Lookup:
    """A space of two numbers a key, the same one twice."""
    vectors = np.tile(OOV, (len(question.keys), 1))
    written = np.zeros(len(question.keys), np.uint64)
    for row, key in enumerate(question.keys):
        if key in STORED:
            vectors[row], written[row] = STORED[key]
    return Lookup(vectors, written, question.version or 3, oov=OOV)


COLUMNS = (
    Column(name="age", dtype="int64", default=30),
    Column(name="country", dtype="text", default="?"),
)


def look_in_a_table(question: Question) -> Lookup:
    """A table that has one key, ``a``."""
    known = [key == "a" for key in question.keys]
    there = rows_of(COLUMNS, {"age": [7], "country": ["de"]}).view(np.uint8).reshape(1, -1)
    oov = default_row(COLUMNS)
    rows = np.concatenate([there if one else oov[None] for one in known]) if known else oov[None][:0]
    return Lookup(rows, np.where(known, 999_000, 0).astype(np.uint64), 1, COLUMNS, oov=oov)


def texts(*keys: str) -> Array:
    return np.array([key.encode() for key in keys], STRING)


def model_inputs(**sources: InputSource) -> ModelInputs:
    specs = {name: TensorSpec(name, np.dtype(np.float32), (2,)) for name in sources}
    return ModelInputs(sources, {}, specs)


IMAGE = InputSource(space="images", key="url")


def test_rows_get_their_own_vectors_as_the_model_takes_them() -> None:
    filled = fill(model_inputs(image=IMAGE), {"url": texts("b", "x", "a", "b")}, look, NOW)
    assert filled.inputs["image"].dtype == np.float32
    assert filled.inputs["image"].tolist() == [[2, 2], [-1, -1], [1, 1], [2, 2]]
    version, written = filled.looked_up["image"]
    assert version.tolist() == [3, 3, 3, 3]
    assert written.tolist() == [990_000, 0, 999_000, 990_000]
    assert (filled.counts["image"].keys, filled.counts["image"].found) == (4, 3)


def test_the_empty_text_is_no_key() -> None:
    asked: list[list[str]] = []

    def looking(question: Question) -> Lookup:
        asked.append(question.keys)
        return look(question)

    filled = fill(model_inputs(image=IMAGE), {"url": texts("", "a", "")}, looking, NOW)
    assert asked == [["a"]]
    assert filled.inputs["image"].tolist() == [[-1, -1], [1, 1], [-1, -1]]
    assert filled.looked_up["image"].written.tolist() == [0, 999_000, 0]
    assert filled.counts["image"].keys == 1


def test_a_key_may_have_any_letter_in_it() -> None:
    (question,) = model_inputs(image=IMAGE).questions({"url": texts("a\x1fb", "", "ä\x00")})
    assert question.keys == ["a\x1fb", "ä\x00"]
    assert question.rows.tolist() == [0, 2]


def test_integers_are_keys_but_for_minus_one() -> None:
    source = InputSource(space="images", key="item", key_dtype="int64")
    filled = fill(model_inputs(image=source), {"item": np.array([7, -1, 8])}, look, NOW)
    assert filled.inputs["image"].tolist() == [[7, 7], [-1, -1], [-1, -1]]
    assert filled.counts["image"].keys == 2


def test_one_lookup_a_space_and_key_input() -> None:
    inputs = ModelInputs(
        {
            "one": IMAGE,
            "two": InputSource(space="images", key="url", default=0.5),
            "three": InputSource(space="images", key="other"),
            "four": InputSource(space="titles", key="url"),
        },
        {"titles": 9},
        {},
    )
    asked = inputs.questions({"url": texts("a"), "other": texts("b")})
    assert [(one.space, one.version, one.key, one.inputs) for one in asked] == [
        ("images", 0, "url", ("one", "two")),
        ("images", 0, "other", ("three",)),
        ("titles", 9, "url", ("four",)),
    ]


def test_a_default_stands_for_what_is_missing_in_its_own_input_only() -> None:
    sources = {"plain": IMAGE, "half": InputSource(space="images", key="url", default=0.5)}
    filled = fill(ModelInputs(sources, {}, {}), {"url": texts("x", "a")}, look, NOW)
    assert filled.inputs["half"].tolist() == [[0.5, 0.5], [1, 1]]
    assert filled.inputs["plain"].tolist() == [[-1, -1], [1, 1]]
    assert filled.inputs["plain"].dtype == np.float32  # of a float16 space, where no model says otherwise


def test_too_old_vectors_are_missing_and_counted() -> None:
    young = InputSource(space="images", key="url", max_age_seconds=5)
    filled = fill(
        ModelInputs({"image": IMAGE, "young": young}, {}, {}), {"url": texts("a", "b", "x")}, look, NOW
    )
    assert filled.inputs["young"].tolist() == [[1, 1], [-1, -1], [-1, -1]]
    assert filled.inputs["image"].tolist() == [[1, 1], [2, 2], [-1, -1]]
    assert filled.looked_up["young"].written.tolist() == [999_000, 0, 0]
    assert filled.counts["young"].too_old == 1


def test_each_row_may_have_a_time_of_its_own() -> None:
    young = InputSource(space="images", key="url", max_age_seconds=5)
    times = np.array([991_000, 996_000], np.uint64)
    filled = fill(model_inputs(image=young), {"url": texts("b", "b")}, look, times)
    assert filled.looked_up["image"].written.tolist() == [990_000, 0]


def test_recorded_write_times_decide_what_is_learnt() -> None:
    """A value that was too old by an hour when it was served is missing, whatever the row's time says."""
    sources = {"image": IMAGE, "young": InputSource(space="images", key="url", max_age_seconds=5)}
    recorded = {"image": np.array([990_000, 0], np.uint64), "young": np.array([0, 0], np.uint64)}
    inputs = ModelInputs(sources, {}, {})
    (question,) = inputs.questions({"url": texts("b", "a")}, recorded)
    assert question.written is not None
    assert question.written.tolist() == [990_000, 0]
    filled = fill(inputs, {"url": texts("b", "a")}, look, 0, recorded)
    assert filled.inputs["image"].tolist() == [[2, 2], [-1, -1]]
    assert filled.inputs["young"].tolist() == [[-1, -1], [-1, -1]]


@pytest.mark.parametrize("names", [("young", "image"), ("image", "young")])
def test_inputs_of_one_lookup_are_asked_for_as_any_of_them_was_served(names: tuple[str, ...]) -> None:
    """One may have had no value, as it was too old for it: what another had is what is looked up."""
    written = {"young": [0, 0, 0], "image": [990_000, 0, 999_000]}
    recorded = {name: np.array(written[name], np.uint64) for name in names}
    ages = {"young": 5.0, "image": 0.0}
    sources = {name: InputSource(space="images", key="url", max_age_seconds=ages[name]) for name in names}
    inputs = ModelInputs(sources, {}, {})
    request = {"url": texts("b", "", "a")}
    (question,) = inputs.questions(request, recorded)
    assert (question.keys, question.rows.tolist()) == (["b", "a"], [0, 2])
    assert question.written is not None
    assert question.written.tolist() == [990_000, 999_000]
    filled = fill(inputs, request, look, 0, recorded)
    assert filled.inputs["image"].tolist() == [[2, 2], [-1, -1], [1, 1]]
    assert filled.inputs["young"].tolist() == [[-1, -1]] * 3


def test_a_key_that_is_no_text_is_its_rows_error() -> None:
    keys = np.array([b"a", b"\xff", b"", b"b\xfe"], STRING)
    with pytest.raises(InvalidRows, match=r"url: row 1: expected a key in UTF-8") as raised:
        fill(model_inputs(image=IMAGE), {"url": keys}, look, NOW)
    assert list(raised.value.rows) == [1, 3]


def test_vectors_lie_as_the_model_wants_them() -> None:
    specs = {"image": TensorSpec("image", np.dtype(np.float64), (1, None))}
    filled = fill(ModelInputs({"image": IMAGE}, {}, specs), {"url": texts("a")}, look, NOW)
    assert filled.inputs["image"].shape == (1, 1, 2)
    assert filled.inputs["image"].dtype == np.float64


def test_columns_of_a_table_are_looked_up_together() -> None:
    asked: list[Question] = []

    def looking(question: Question) -> Lookup:
        asked.append(question)
        return look_in_a_table(question)

    sources = {
        "age": InputSource(space="users", column="age", key="user"),
        "country": InputSource(space="users", column="country", key="user"),
        "land": InputSource(space="users", column="country", key="user", default="none"),
    }
    specs = {
        "age": TensorSpec("age", np.dtype(np.float32), (1,)),
        "country": TensorSpec("country", STRING, ()),
        "land": TensorSpec("land", STRING, ()),
    }
    inputs, looked_up, _ = fill(ModelInputs(sources, {}, specs), {"user": texts("a", "b", "")}, looking, NOW)
    assert len(asked) == 1
    assert inputs["age"].dtype == np.float32
    assert inputs["age"].tolist() == [[7], [30], [30]]
    assert inputs["country"].tolist() == [b"de", b"?", b"?"]
    assert inputs["land"].tolist() == [b"de", b"none", b"none"]
    assert looked_up["land"].written.tolist() == [999_000, 0, 0]


def version(dimension: int = 2, dtype: str = "int8") -> SpaceVersion:
    return SpaceVersion(number=3, embedder="", fingerprint="", dimension=dimension, dtype=dtype, created=0)


@pytest.mark.parametrize(
    ("source", "spec", "said"),
    [
        ({"column": "x"}, ("f4", (2,)), r"inputs.image.column: version 3 of the space 'images' has vectors"),
        ({}, ("i8", (2,)), r"inputs.image: expected INT64, as the model takes it, got FP32 from version 3"),
        ({}, ("f4", (3,)), r"inputs.image: expected image FP32 \[rows, 3\], got 2 values per row"),
        ({}, ("f4", (None, None)), r"got 2 values per row"),
        ({}, ("O", (2,)), r"expected BYTES, as the model takes it, got FP32"),
        ({"default": "x"}, ("f4", (2,)), r"inputs.image.default: expected a number of FP32, got 'x'"),
        ({"default": 1e300}, ("f4", (2,)), r"expected a number of FP32, got 1e.300"),
    ],
)
def test_a_source_that_does_not_fit_its_input_is_refused(
    source: dict[str, str], spec: tuple[str, tuple[int | None, ...]], said: str
) -> None:
    made = InputSource(space="images", key="url", **source)  # type: ignore[arg-type] # one has a number
    with pytest.raises(ConfigError, match=said):
        check_fits("image", made, TensorSpec("image", np.dtype(spec[0]), spec[1]), version())


@pytest.mark.parametrize(
    ("source", "dtype", "said"),
    [
        ({}, "f4", r"inputs.x.column: expected one of age, country, got ''"),
        ({"column": "name"}, "f4", r"inputs.x.column: expected one of age, country, got 'name'"),
        ({"column": "country"}, "f4", r"inputs.x: expected FP32, as the model takes it, got BYTES"),
        ({"column": "age"}, "i4", r"inputs.x: expected INT32, as the model takes it, got INT64"),
        ({"column": "age", "default": 0.5}, "f4", r"inputs.x.default: expected a number of INT64, got 0.5"),
        ({"column": "country", "default": 1}, "O", r"inputs.x.default: expected a text, got 1"),
    ],
)
def test_columns_that_a_table_cannot_provide_are_refused(
    source: dict[str, str], dtype: str, said: str
) -> None:
    table = SpaceVersion(
        number=1,
        embedder="",
        fingerprint="",
        dimension=len(default_row(COLUMNS)),
        dtype="row",
        created=0,
        columns=COLUMNS,
    )
    made = InputSource(space="users", key="user", **source)  # type: ignore[arg-type] # some are numbers
    with pytest.raises(ConfigError, match=said):
        check_fits("x", made, TensorSpec("x", np.dtype(dtype), ()), table)


def test_inputs_of_matching_shape_and_dtype_fit() -> None:
    for shape in ((2,), (None,), (1, 2), (None, 2), (2, None, 1)):
        check_fits("image", IMAGE, TensorSpec("image", np.dtype(np.float16), shape), version())
    check_fits("image", IMAGE, TensorSpec("image", np.dtype(np.float32), ()), version(1))
