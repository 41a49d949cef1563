"""A vector of zeros is one that is missing, and an mdn learns what that means."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headrace.base.errors import ConfigError
from headrace.ctr.factory import create, scorer
from headrace.ctr.model_settings import ModelSettings
from headrace.ctr.models.missing import Missing, check_names, flagged
from headrace.stream.block import Block, Features
from tests.streams import schema_of

SCHEMA = schema_of(
    clicks={"role": "label"},
    ad={"buckets": 8},
    image={"role": "vector", "size": 2, "context": True},
    price={"role": "dense"},
    title={"role": "vector", "size": 3},
)
FEATURES = Features.of(SCHEMA)
MDN = ModelSettings(kind="mdn", factors=2, hidden=(8,))


def test_flags_stand_behind_the_dense_features() -> None:
    missing = Missing.of(MDN, FEATURES)
    assert missing is not None
    dense = np.array([[1, 0, 5, 0, 0, 2], [0, 0, 5, 0, 0, 0], [0, 0, 0, -1, 0, 0]], np.float32)
    made = missing.flag(dense)
    assert made[:, :6].tolist() == dense.tolist()
    assert made[:, 6:].tolist() == [[0, 0], [1, 1], [1, 0]]
    assert missing.flag(dense[:0]).shape == (0, 8)
    names = [field.name for field in flagged(MDN, FEATURES).numeric]
    assert names == ["image", "price", "title", "image (missing)", "title (missing)"]
    assert flagged(MDN, FEATURES).context_dense == FEATURES.context_dense


def test_other_kinds_and_streams_without_vectors_have_none() -> None:
    deepfm = ModelSettings(kind="deepfm")
    assert Missing.of(deepfm, FEATURES) is None
    assert flagged(deepfm, FEATURES) is FEATURES
    plain = Features.of(schema_of(ad={}, price={"role": "dense"}))
    assert Missing.of(MDN, plain) is None


@pytest.mark.parametrize("name", ["level", "title (missing)"])
def test_names_that_it_needs_are_refused(name: str) -> None:
    features = Features.of(schema_of(**{"title": {"role": "vector", "size": 2}, name: {"role": "dense"}}))
    with pytest.raises(ConfigError, match="rename the field"):
        create(MDN, features)
    check_names(ModelSettings(kind="fm"), features)


def test_the_effect_of_a_missing_value_is_learnt_and_explained() -> None:
    """Items without a title are clicked half as often as others; the title itself says nothing."""
    random = np.random.default_rng(0)
    model = create(MDN, FEATURES)
    for _ in range(60):
        dense = random.normal(size=(256, 6)).astype(np.float32) / 2
        gone = random.random(256) < 0.5
        dense[gone, 3:] = 0
        clicks = random.binomial(50, np.where(gone, 0.2, 0.4)).astype(np.float32)
        indices = random.integers(1, 9, (256, 1)).astype(np.uint32)
        model.learn(Block(indices, dense, clicks, views=np.full(256, 50, np.float32)))
    whole = random.normal(size=(200, 6)).astype(np.float32) / 2
    block = Block(np.ones((200, 1), np.uint32), whole, np.zeros(200, np.float32))
    without = whole.copy()
    without[:, 3:] = 0
    assert model.predict(block).mean() == pytest.approx(0.4, abs=0.05)
    assert model.predict(replace(block, dense=without)).mean() == pytest.approx(0.2, abs=0.05)
    served = scorer(model.settings, model.features, model.strip())
    (explained,) = served.explain(block.indices[:1], without[:1])
    (flag,) = (one for one in explained if one.field == "title (missing)")
    assert flag.contribution < -0.2
