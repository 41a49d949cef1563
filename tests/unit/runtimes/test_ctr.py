"""Click models served natively: what is particular to them."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from headrace.base.errors import InvalidRequest, InvalidRows, LoadError
from headrace.batching.concatenation import join
from headrace.ctr.files.model_files import read_model, write_model
from headrace.ctr.model_settings import KINDS, Kind, ModelSettings
from headrace.ctr.models.missing import flag_name
from headrace.ctr.serving.context import GroupedScorer
from headrace.model.packed_columns import PackedColumns, PackedTensors
from headrace.model.servable import EXPLAIN_SIGNATURE
from headrace.runtimes.ctr import PADDING, ROWS_SIGNATURE, load
from headrace.runtimes.ctr_inputs import place_texts
from headrace.runtimes.options import RuntimeOptions, SignatureSettings
from headrace.stream.block import Features
from headrace.stream.hashing import keys_of, rows_of
from headrace.stream.schema import Field, Schema
from tests.conformance.ctr_models import EXACT, SCHEMA, field_inputs, random_weights, write
from tests.unit.model.columns import packed_columns


def test_values_find_the_rows_that_the_stream_gave_them(tmp_path: Path) -> None:
    write(tmp_path, "deepfm")
    settings, features, weights = read_model(tmp_path)
    inputs = field_inputs(30)
    indices = np.concatenate(
        [
            rows_of(inputs[field.name], field, int(start)).reshape(30, -1)
            for field, start in zip(features.categorical, features.table_starts, strict=True)
        ],
        axis=1,
    )
    dense = np.concatenate([inputs[field.name].reshape(30, -1) for field in features.numeric], axis=1)
    wanted = GroupedScorer(settings, features, weights).predict(indices, dense)
    servable = load(tmp_path / "model.ctr", RuntimeOptions())
    assert servable.predict(inputs)["probability"].tolist() == wanted.tolist()


@pytest.mark.parametrize("schema", [SCHEMA, EXACT])
@pytest.mark.parametrize("padded_rows", [4, 7])
def test_packed_texts_are_answered_like_objects_without_becoming_any(
    tmp_path: Path, schema: Schema, padded_rows: int
) -> None:
    write(tmp_path, "lr", schema)
    servable, inputs = load(tmp_path / "model.ctr", RuntimeOptions()), field_inputs(4)
    signature = servable.signatures["serving_default"]
    layout, columns, _ = signature.check(inputs)
    requests = []
    for start, stop in ((0, 1), (1, 4)):
        part = {name: array[start:stop] for name, array in inputs.items()}
        requests.append(packed_columns(signature, part))
    batch = join(layout, requests, 4, padded_rows, packed=True)
    assert isinstance(batch, PackedTensors)
    wanted = servable.predict(join(layout, [columns], 4, padded_rows))["probability"]
    with patch.object(PackedColumns, "_texts", side_effect=AssertionError):
        assert servable.predict(batch)["probability"].tolist() == wanted.tolist()
    # Loading compiles it for objects: were packed texts of another type, the first request would wait.
    assert len(place_texts.signatures) == 1
    for name, array in inputs.items():
        assert batch[name][:4].tolist() == array.tolist()
        assert batch[name].shape == (padded_rows, *array.shape[1:])
    assert [one.contribution for one in servable.explain(batch)[3]] == [
        one.contribution for one in servable.explain(inputs)[3]
    ]


@pytest.mark.parametrize("kind", ["lr", "ffm", "deepfm"])
def test_contributions_of_a_request_add_up_to_its_logits(tmp_path: Path, kind: Kind) -> None:
    write(tmp_path, kind)
    servable, inputs = load(tmp_path / "model.ctr", RuntimeOptions()), field_inputs(5)
    probabilities = servable.predict(inputs)["probability"]
    for contributions, probability in zip(servable.explain(inputs), probabilities, strict=True):
        logit = sum(one.contribution for one in contributions)
        assert 1 / (1 + np.exp(-logit)) == pytest.approx(probability, abs=1e-5)
        assert {one.field for one in contributions} >= {"(bias)", "price"}


@pytest.mark.parametrize("kind", KINDS)
def test_an_explanation_has_each_field_and_adds_up_to_the_logit(tmp_path: Path, kind: Kind) -> None:
    write(tmp_path, kind)
    servable, inputs = load(tmp_path / "model.ctr", RuntimeOptions()), field_inputs(5)
    signature = servable.signatures[EXPLAIN_SIGNATURE]
    fields = tuple(spec.name for spec in signature.inputs)
    assert signature.output_names == (*fields, "expected_value")
    answer = servable.predict(inputs, EXPLAIN_SIGNATURE)
    for row, contributions in enumerate(servable.explain(inputs)):
        logit = sum(one.contribution for one in contributions)
        assert sum(answer[name][row] for name in answer) == pytest.approx(logit)
        for name in fields:
            alone = [one.contribution for one in contributions if one.field in (name, flag_name(name))]
            pairs = [one.contribution / 2 for one in contributions if name in one.field.split(" * ")]
            wanted = sum(alone) + sum(pairs) - sum(one / 2 for one in alone)
            assert answer[name][row] == pytest.approx(wanted, abs=1e-9)


def test_joined_inputs_are_buckets_and_may_be_padded(tmp_path: Path) -> None:
    write(tmp_path, "fm")
    servable = load(tmp_path / "model.ctr", RuntimeOptions())
    signature = servable.signatures[ROWS_SIGNATURE]
    assert [str(spec) for spec in signature.inputs] == [
        "context UINT32 [rows, 5]",
        "context_dense FP32 [rows, 1]",
        "candidate UINT32 [rows, 3]",
        "candidate_dense FP32 [rows, 5]",
    ]
    assert [spec.context for spec in signature.inputs] == [True, True, False, False]
    settings, features, weights = read_model(tmp_path)
    context = np.array([[3, 1, PADDING, PADDING, 7]], np.uint32)
    candidate = np.array([[5, 6, PADDING]], np.uint32)
    numbers = np.ones((1, 6), np.float32)
    starts = [features.tables[field.table_name][0] for field, _ in features.field_slots()]
    given = np.concatenate([context, candidate], axis=1)
    rows = np.where(given == PADDING, 0, given + np.array(starts)).astype(np.uint32)
    inputs = {
        "context": context,
        "candidate": candidate,
        "context_dense": numbers[:, :1],
        "candidate_dense": numbers[:, 1:],
    }
    wanted = GroupedScorer(settings, features, weights).predict(rows, numbers)
    assert servable.predict(inputs, ROWS_SIGNATURE)["probability"].tolist() == wanted.tolist()


def test_inputs_that_would_be_empty_are_left_out(tmp_path: Path) -> None:
    schema = Schema(fields=(Field(name="ad", role="categorical", buckets=9),))
    write(tmp_path, "lr", schema)
    servable = load(tmp_path / "model.ctr", RuntimeOptions())
    assert servable.signatures[ROWS_SIGNATURE].input_names == ("candidate",)
    with pytest.raises(InvalidRequest, match=r"candidate: row 1, column 0 \(ad\): expected .* 0 to 8"):
        servable.predict({"candidate": np.array([[8], [9]], np.uint32)}, ROWS_SIGNATURE)


def test_all_wrong_rows_are_named_at_once_in_both_signatures(tmp_path: Path) -> None:
    fields = (
        Field(name="user", role="categorical", buckets=7, keys="bucket", context=True),
        Field(name="ad", role="categorical", buckets=9, keys="bucket"),
        Field(name="tags", role="categorical", buckets=5, keys="bucket", values=2),
        Field(name="price", role="dense"),
    )
    write(tmp_path, "lr", Schema(fields=fields))
    servable = load(tmp_path / "model.ctr", RuntimeOptions())
    by_field = {
        "user": np.array([0, 1, 7, 3, -1], np.int64),
        "ad": np.array([0, 1, 2, -2, -1], np.int64),
        "tags": np.array([[0, -1], [5, 1], [1, 1], [1, 5], [-1, -1]], np.int64),
        "price": np.array([0, np.nan, 1, 1, 1], np.float32),
    }
    joined = {
        "context": np.array([[0], [1], [7], [3], [PADDING]], np.uint32),
        "candidate": np.array([[0, 0, 0], [1, 1, 5], [2, 1, 1], [9, 1, 5], [PADDING] * 3], np.uint32),
        "candidate_dense": np.array([[0], [1], [2], [3], [-np.inf]], np.float32),
    }
    with pytest.raises(InvalidRows) as of_fields:
        servable.predict(by_field)
    assert {row: field for row, (field, _) in of_fields.value.rows.items()} == {1: "tags", 2: "user", 3: "ad"}
    with pytest.raises(InvalidRows) as of_rows:
        servable.predict(joined, ROWS_SIGNATURE)
    assert of_rows.value.rows == {
        1: (
            "candidate",
            ", column 2 (tags): expected a bucket from 0 to 4, or 4294967295 for no value, got 5",
        ),
        2: ("context", ", column 0 (user): expected a bucket from 0 to 6, or 4294967295 for no value, got 7"),
        3: ("candidate", ", column 0 (ad): expected a bucket from 0 to 8, or 4294967295 for no value, got 9"),
        4: ("candidate_dense", ": expected a finite number, got -inf"),
    }
    own = of_rows.value.within(3, 5)
    assert own is not None
    assert own.message.startswith("candidate: row 0, column 0 (ad): expected a bucket from 0 to 8")
    assert of_rows.value.within(0, 1) is None


def test_exact_values_are_looked_up(tmp_path: Path) -> None:
    schema = Schema(
        fields=(
            Field(name="ad", role="categorical", buckets=16, keys="exact", values=2),
            Field(name="hour", role="categorical", buckets=24, keys="bucket"),
        )
    )
    settings, features = ModelSettings(kind="fm", factors=4), Features.of(schema)
    weights = random_weights(settings, features)
    keys = np.zeros(16, np.uint64)
    field = schema.by_name["ad"]
    hashed = keys_of(np.array([77]), field)[0]
    place = 1 + int(((int(hashed) >> 32) * 15) >> 32)
    keys[place] = hashed
    weights.keys["ad"] = keys  # type: ignore[index]
    write_model(tmp_path, settings, features, weights)
    servable = load(tmp_path / "model.ctr", RuntimeOptions())
    ads = np.array([[77, -1], [78, 77], [-1, 77], [78, -1], [-1, -1]])
    inputs = {"ad": ads, "hour": np.array([1, 2, 2, -1, -1])}
    starts = {name: first for name, (first, _) in features.tables.items()}
    ad, hour = starts["ad"], starts["hour"]
    ad_rows = [[ad + place, 0], [0, ad + place], [0, ad + place], [ad, 0], [ad, 0]]
    rows = np.column_stack([ad_rows, hour + np.array([1, 2, 2, 0, 0])]).astype(np.uint32)
    wanted = GroupedScorer(settings, features, weights).predict(rows, np.zeros((5, 0), np.float32))
    assert servable.predict(inputs)["probability"].tolist() == wanted.tolist()


def test_joined_inputs_have_hashes_where_values_are_exact(tmp_path: Path) -> None:
    write(tmp_path, "fm", EXACT)
    servable = load(tmp_path / "model.ctr", RuntimeOptions())
    assert [str(spec) for spec in servable.signatures[ROWS_SIGNATURE].inputs] == [
        "context UINT32 [rows, 1]",
        "context_keys UINT64 [rows, 4]",
        "context_dense FP32 [rows, 1]",
        "candidate UINT32 [rows, 1]",
        "candidate_keys UINT64 [rows, 2]",
        "candidate_dense FP32 [rows, 5]",
    ]
    given, fields = field_inputs(30), EXACT.by_name
    keys = {name: keys_of(given[name], fields[name]).reshape(30, -1) for name in ("topics", "user", "words")}
    inputs = {
        "context": given["hour"].astype(np.uint32)[:, None],
        "context_keys": np.concatenate([keys["topics"], keys["user"]], axis=1),
        "context_dense": given["age"][:, None],
        "candidate": rows_of(given["ad"], fields["ad"], 0)[:, None],
        "candidate_keys": keys["words"],
        "candidate_dense": np.concatenate([given["image"], given["price"][:, None]], axis=1),
    }
    wanted = servable.predict(given)["probability"]
    assert servable.predict(inputs, ROWS_SIGNATURE)["probability"].tolist() == wanted.tolist()
    inputs["candidate"][3, 0] = 300
    with pytest.raises(InvalidRequest, match=r"candidate: row 3, column 0 \(ad\): expected .* 0 to 299"):
        servable.predict(inputs, ROWS_SIGNATURE)


def test_it_is_a_regression_unless_the_operator_says_otherwise(tmp_path: Path) -> None:
    write(tmp_path, "lr")
    chosen = RuntimeOptions(signature=SignatureSettings(kind="classify"))
    for kind, said in (("regress", RuntimeOptions()), ("classify", chosen)):
        assert load(tmp_path / "model.ctr", said).signatures["serving_default"].kind == kind


def test_a_missing_array_is_a_load_error(tmp_path: Path) -> None:
    write(tmp_path, "fm")
    (tmp_path / "table.embeddings.npy").unlink()
    with pytest.raises(LoadError, match="embeddings"):
        load(tmp_path / "model.ctr", RuntimeOptions())
