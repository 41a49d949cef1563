"""Click models with inputs from an archive: texts stay where they lie in requests; answers are the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.lookup.archive import Archive
from headrace.archive.model_inputs.lookup_servable import LookupServable
from headrace.base.tensors import STRING, Array, Tensors
from headrace.batching.concatenation import join
from headrace.config import InputSource, ModelConfig
from headrace.model.packed_columns import PackedColumns, PackedInput, PackedTensors
from headrace.model.servable import takes_packed
from headrace.runtimes.ctr import load
from headrace.runtimes.options import RuntimeOptions
from headrace.storage.settings import MemoryStore
from headrace.storage.stores.memory import InMemoryStore
from headrace.stream.schema import Schema
from tests.conformance.ctr_models import EXACT, SCHEMA, field_inputs, write
from tests.unit.archive.model_inputs.test_lookup_servable import archive_of
from tests.unit.model.columns import packed_columns

ROWS = 5
PRICES = {
    "visitor": InputSource(space="users", column="price", key="visitor"),
    "number": InputSource(space="users", column="price", key="number", key_dtype="int64"),
    "user": InputSource(space="users", column="price", key="user"),  # an input of the model as well
}


@pytest.fixture
def archive() -> Iterator[Archive]:
    users = {"columns": {"price": "float32", "country": "text"}}
    with archive_of(InMemoryStore(MemoryStore()), users=users) as opened:
        prices = [0.5, 2.5, -1.5]
        opened.put_rows("users", ["a", "b", "7"], {"price": prices, "country": ["CH", "AT", "DE"]})
        yield opened


def served(archive: Archive, folder: Path, **sources: InputSource) -> LookupServable:
    model = load(folder / "model.ctr", RuntimeOptions())
    return LookupServable(model, archive, "m", ModelConfig(inputs=sources), {})


def requests_of(servable: LookupServable, inputs: Tensors) -> list[PackedColumns]:
    signature = servable.signatures["serving_default"]
    parts = [{name: array[rows] for name, array in inputs.items()} for rows in (slice(0, 2), slice(2, None))]
    return [packed_columns(signature, part) for part in parts]


@pytest.mark.parametrize("schema", [SCHEMA, EXACT], ids=["hashed", "exact"])
@pytest.mark.parametrize("padded_rows", [ROWS, 8])
@pytest.mark.parametrize("key", list(PRICES))
def test_packed_texts_are_answered_like_objects(
    archive: Archive, tmp_path: Path, schema: Schema, padded_rows: int, key: str
) -> None:
    write(tmp_path, "lr", schema)
    servable = served(archive, tmp_path, price=PRICES[key])
    inputs = {name: array for name, array in field_inputs(ROWS).items() if name != "price"}
    texts = np.array([b"a", b"", b"b", b"nobody", b"a"], STRING)
    inputs[key] = np.array([7, -1, 8, 7, 9], np.int64) if key == "number" else texts
    assert takes_packed(servable)
    layout, columns, _ = servable.signatures["serving_default"].check(inputs)
    wanted = servable.predict_padded(join(layout, [columns], ROWS, padded_rows), "serving_default", ROWS)
    batch = join(layout, requests_of(servable, inputs), ROWS, padded_rows, packed=True)
    assert isinstance(batch, PackedTensors)
    became, as_objects = list[PackedInput](), PackedColumns._texts

    def noting(columns: PackedColumns, packed: PackedInput) -> Array:
        became.append(packed)
        return as_objects(columns, packed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackedColumns, "_texts", noting)
        got = servable.predict_padded(batch, "serving_default", ROWS)
    assert len(became) == (0 if key == "number" else 2)  # the keys alone, once a request
    assert got.keys() == wanted.keys()
    assert got["probability"].tolist() == wanted["probability"].tolist()
    assert got["price.written"].tolist() == wanted["price.written"].tolist()
    assert len(set(got["probability"].tolist())) > 1


def test_where_texts_come_from_the_archive_those_of_requests_are_objects(
    archive: Archive, tmp_path: Path
) -> None:
    write(tmp_path, "lr", SCHEMA)
    country = InputSource(space="users", column="country", key="visitor")
    assert not takes_packed(served(archive, tmp_path, user=country))
