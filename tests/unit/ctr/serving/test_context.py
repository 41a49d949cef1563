"""What depends on the context alone is computed once, and nothing else changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from headrace.base.tensors import Array
from headrace.ctr.factory import scorer
from headrace.ctr.model_settings import KINDS, Interaction, Kind, ModelSettings
from headrace.ctr.serving.context import GroupedScorer
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema
from tests.conformance.ctr_models import LARGE, SCHEMA, random_weights

ROWS = 131  # some tiles, the last one not full, and blocks of every size
CONTEXT_ONLY = Schema(fields=(Field(name="a", role="categorical", buckets=20, context=True),))


def drawn(features: Features, rows: int = ROWS) -> tuple[Array, Array]:
    random = np.random.default_rng(5)
    indices = random.integers(0, features.rows, (rows, features.slots)).astype(np.uint32)
    indices[random.random(indices.shape) < 0.2] = 0
    return indices, random.normal(size=(rows, features.dense_width)).astype(np.float32)


def grouped(features: Features, rows: int = ROWS, size: int = 17) -> tuple[Array, Array]:
    indices, dense = drawn(features, rows)
    first = np.arange(rows) // size * size
    slots, columns = features.context_slots, features.context_dense
    indices[:, :slots], dense[:, :columns] = indices[first, :slots], dense[first, :columns]
    return indices, dense


@pytest.mark.parametrize("schema", [SCHEMA, LARGE, CONTEXT_ONLY], ids=["mixed", "candidates", "context"])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_the_plain_scorer(kind: Kind, schema: Schema) -> None:
    settings, features = ModelSettings(kind=kind, factors=4, hidden=(70, 33)), Features.of(schema)
    weights = random_weights(settings, features)
    ours, plain = GroupedScorer(settings, features, weights), scorer(settings, features, weights)
    for indices, dense in (drawn(features), grouped(features)):
        np.testing.assert_allclose(
            ours.logits(indices, dense), plain.logits(indices, dense), rtol=1e-5, atol=3e-6
        )
        np.testing.assert_allclose(ours.predict(indices, dense), plain.predict(indices, dense), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_answered_to_the_bit_the_same_alone_in_a_group_and_in_a_batch(kind: Kind) -> None:
    settings, features = ModelSettings(kind=kind, factors=4, hidden=(70, 33)), Features.of(SCHEMA)
    ours = GroupedScorer(settings, features, random_weights(settings, features))
    indices, dense = grouped(features)
    together = ours.logits(indices, dense)
    alone = [ours.logits(indices[row : row + 1], dense[row : row + 1])[0] for row in range(ROWS)]
    assert together.tolist() == alone
    order = np.random.default_rng(0).permutation(ROWS)  # neighbours that share nothing
    assert ours.logits(indices[order], dense[order]).tolist() == together[order].tolist()


def assert_plain(settings: ModelSettings, schema: Schema, *, atol: float, rtol: float = 1e-7) -> None:
    """Rows are answered as the plain scorer answers them."""
    features = Features.of(schema)
    weights = random_weights(settings, features)
    indices, dense = drawn(features)
    np.testing.assert_allclose(
        GroupedScorer(settings, features, weights).logits(indices, dense),
        scorer(settings, features, weights).logits(indices, dense),
        rtol=rtol,
        atol=atol,
    )


THREE = Schema(fields=tuple(Field(name=name, role="categorical", buckets=9) for name in "abc"))


@pytest.mark.rest
def test_embeddings_that_are_no_whole_vectors_and_are_read_in_parts() -> None:
    assert_plain(ModelSettings(kind="fm", factors=34), THREE, rtol=1e-5, atol=1e-5)


def test_interactions_count() -> None:
    crossed = (Interaction(fields=("a", "c"), buckets=50), Interaction(fields=("b", "c"), buckets=7))
    assert_plain(ModelSettings(kind="fm", factors=4, interactions=crossed), THREE, atol=3e-6)


def test_no_rows_give_no_answers() -> None:
    settings, features = ModelSettings(kind="deepfm", factors=4), Features.of(SCHEMA)
    ours = GroupedScorer(settings, features, random_weights(settings, features))
    assert ours.logits(*drawn(features, 0)).shape == (0,)


def test_many_threads_may_predict_at_once() -> None:
    settings, features = ModelSettings(kind="deepfm", factors=4), Features.of(SCHEMA)
    ours = GroupedScorer(settings, features, random_weights(settings, features))
    indices, dense = grouped(features)
    expected = ours.logits(indices, dense).tolist()
    with ThreadPoolExecutor(4) as threads:
        for answer in threads.map(lambda _: ours.logits(indices, dense).tolist(), range(50)):
            assert answer == expected
