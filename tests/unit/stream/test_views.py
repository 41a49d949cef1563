"""Rows of several views: clicks among them are checked, learnt and scored as so many rows of one view."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.base.errors import ConfigError, StreamError
from headrace.ctr.factory import create
from headrace.ctr.model_settings import Kind, ModelSettings, Optimizer
from headrace.evaluation.progressive_validation import Window, Windows
from headrace.evaluation.tallies import Scored
from headrace.stream.block import Block, Features, Slice
from headrace.stream.block_joining import Joiner
from headrace.stream.encode import EncodeSettings, encode
from headrace.stream.inspection import inspect
from headrace.stream.schema_inference import Hints
from tests.streams import batch_of, schema_of, stream_of

COUNTED = schema_of(
    clicks={"role": "label"},
    views={"role": "views"},
    item={"keys": "bucket", "buckets": 10},
    image={"role": "vector", "size": 2},
)


def rows_of(clicks: Sequence[object], views: Sequence[object], **columns: object) -> pa.RecordBatch:
    count = len(clicks)
    vectors = pa.array([[1.0, 2.0]] * count, pa.list_(pa.float16(), 2))
    return batch_of(**{"clicks": clicks, "views": views, "item": [1] * count, "image": vectors} | columns)


def test_clicks_and_views_are_taken_as_they_are() -> None:
    block = Joiner(Features.of(COUNTED)).join(rows_of([0, 3, 70_000], [0, 3, 100_000]))
    assert block.labels.tolist() == [0, 3, 70_000]
    assert block.views is not None
    assert block.views.tolist() == [0, 3, 100_000]
    assert block.part(1, 2).views is not None


@pytest.mark.parametrize(
    ("clicks", "views", "field", "said"),
    [
        ([1, 4], [1, 3], "clicks", "the number of the row's clicked views"),
        ([1, -1], [1, 3], "clicks", "the number of the row's clicked views"),
        ([1, 0.5], [1.0, 1.0], "clicks", "the number of the row's clicked views"),
        ([1, 1], [1.0, 1.5], "views", "a whole number"),
        ([1, 1], [1, -2], "views", "a whole number"),
        ([1, 1], [1, 2**24 + 2], "views", "a whole number"),
        ([1, 1], [1, None], "views", "a whole number"),
    ],
)
def test_invalid_counts_name_row_and_field(
    clicks: list[float], views: list[float | None], field: str, said: str
) -> None:
    with pytest.raises(StreamError, match=said) as told:
        Joiner(Features.of(COUNTED)).join(rows_of(clicks, views), 1000)
    assert (told.value.row, told.value.field) == (1001, field)


def test_views_need_a_label() -> None:
    with pytest.raises(ConfigError, match="views without a label"):
        schema_of(views={"role": "views"}, item={})


def counted_and_plain() -> tuple[Block, Block]:
    """The same views as rows of several, and as rows of one each."""
    random = np.random.default_rng(3)
    views = random.integers(0, 6, 40)
    clicks = random.binomial(views, 0.3)
    features = Features.of(COUNTED)
    indices = random.integers(1, 11, (40, 1)).astype(np.uint32)
    dense = random.normal(size=(40, features.dense_width)).astype(np.float32)
    counted = Block(indices, dense, clicks.astype(np.float32), views=views.astype(np.float32))
    which = np.repeat(np.arange(40), views)
    labels = np.concatenate([np.arange(n) < k for n, k in zip(views, clicks, strict=True)])
    return counted, Block(indices[which], dense[which], labels.astype(np.float32))


@pytest.mark.rest
@pytest.mark.parametrize("kind", ["lr", "fm", "deepfm"])
def test_views_move_weights_as_rows_of_one_do(kind: Kind) -> None:
    """With SGD, where a step is the gradient; what learns in batches takes its mean over rows."""
    states = []
    for block in counted_and_plain():
        rate = 1e-3 * (len(block) / 40 if kind == "deepfm" else 1)
        chosen = Optimizer(kind="sgd", learning_rate=rate)
        settings = ModelSettings(
            kind=kind, factors=2, hidden=(4,), linear=chosen, embeddings=chosen, network=chosen
        )
        model = create(settings, Features.of(COUNTED))
        model.learn(block)
        states.append(model.state())
    for name in ("linear", "bias", "dense"):
        np.testing.assert_allclose(states[0][name], states[1][name], rtol=0.02, atol=1e-5)


def test_scores_are_those_of_rows_of_one() -> None:
    counted, plain = counted_and_plain()
    random = np.random.default_rng(1)
    predicted = random.random(40).astype(np.float32)
    assert counted.views is not None
    which = np.repeat(np.arange(40), counted.views.astype(int))
    found: list[Window] = []
    for block, predictions in ((counted, predicted), (plain, predicted[which])):
        windows = Windows(1000, ("site",))
        codes = (predictions > 0.5).astype(np.int32)[None]
        windows.encode({"site": _slice(len(block))}, len(block))
        windows.add(Scored(predictions, block.labels, None, None, codes, block.views))
        arrays, meta = windows.state()
        again = Windows(1000, ("site",))
        again.restore(arrays, meta)
        found += again.finish()
        assert again.total().logloss == pytest.approx(found[-1].score.logloss)
    one, other = found
    assert (one.score.rows, other.score.rows) == (40, len(plain))
    for name in ("logloss", "auc", "calibration", "normalized_entropy", "click_rate"):
        assert getattr(one.score, name) == pytest.approx(getattr(other.score, name)), name
        for value in one.slices["site"]:
            ours, theirs = (getattr(each.slices["site"][value], name) for each in found)
            assert ours == pytest.approx(theirs), name


def _slice(rows: int) -> Slice:
    return Slice(np.zeros(rows, np.int32), ("low", "high"))


def test_inspect_counts_views() -> None:
    batch = rows_of([1, 2, 0], [4, 4, 2])
    found = inspect(io.BytesIO(stream_of(batch, COUNTED)), None, lambda _: None)  # type: ignore[arg-type]
    assert (found.views, found.click_rate) == (10, pytest.approx(0.3))


def test_encode_takes_counts_and_vectors_that_are_missing(tmp_path: Path) -> None:
    """A vector may be null; half of the bytes stay half where they came so."""
    file = tmp_path / "rows.arrow"
    vectors = pa.array([[1.0, 2.0], None, [3.0, 4.0], None], pa.list_(pa.float16(), 2))
    table = pa.table({"clicks": [1, 2, 0, 300], "views": [4, 4, 2, 500], "image": vectors})
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    hints = Hints(label="clicks", views="views")
    encoded = encode(EncodeSettings(format="arrow", hints=hints), file)
    (batch,) = encoded.batches
    assert encoded.schema.by_name["image"].role == "vector"
    assert batch.column("image").type == vectors.type
    assert batch.to_pydict() == table.to_pydict()
    batch.validate(full=True)
    block = Joiner(Features.of(encoded.schema)).join(batch)
    assert block.dense.tolist() == [[1, 2], [0, 0], [3, 4], [0, 0]]


def test_vectors_of_text_may_be_missing_too(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("label,v\n1,1|2\n0,\n")
    schema = schema_of(label={"role": "label"}, v={"role": "vector", "size": 2, "separator": "|"})
    (batch,) = encode(EncodeSettings(format="csv", schema=schema), file).batches
    assert batch.to_pylist() == [{"label": 1, "v": [1.0, 2.0]}, {"label": 0, "v": None}]


def test_encode_refuses_counts_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("label,views,a\n1,2.5,1\n")
    schema = schema_of(label={"role": "label"}, views={"role": "views"}, a={"role": "dense"})
    with pytest.raises(StreamError, match=r"views.*whole number"):
        list(encode(EncodeSettings(format="csv", schema=schema), file).batches)
