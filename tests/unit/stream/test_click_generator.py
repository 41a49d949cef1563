"""The generator: a pure function of its settings, whose truth is the truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from headrace.base.errors import ConfigError
from headrace.stream.block import Features
from headrace.stream.click_generator import (
    SHAPES,
    GeneratorSettings,
    ShapeName,
    arrow_schema,
    generate_batches,
    schema_of,
)
from headrace.stream.schema import METADATA_KEY, parse_schema

SMALL = GeneratorSettings(rows=20_000, seed=3, shape="small")

every_shape = pytest.mark.parametrize("shape", SHAPES)


def table(settings: GeneratorSettings) -> pa.Table:
    return pa.Table.from_batches(generate_batches(settings), arrow_schema(settings))


def column(rows: pa.Table, name: str) -> np.ndarray:
    return rows[name].to_numpy()


@every_shape
@pytest.mark.parametrize("drift", [0.0, 5.0])
def test_the_same_settings_give_the_same_rows(shape: ShapeName, drift: float) -> None:
    settings = GeneratorSettings(rows=5000, seed=1, shape=shape, drift=drift)
    assert table(settings).equals(table(settings))


@every_shape
@pytest.mark.parametrize("drift", [0.0, 5.0])
def test_any_part_can_be_drawn_alone_whatever_the_batches(shape: ShapeName, drift: float) -> None:
    settings = GeneratorSettings(rows=5000, shape=shape, drift=drift, candidates=7)
    part = table(replace(settings, from_row=1234, rows=777, batch_rows=100))
    assert part.equals(table(settings).slice(1234, 777).combine_chunks())


def test_another_seed_gives_other_rows_and_another_truth() -> None:
    one, other = table(SMALL), table(replace(SMALL, seed=4))
    assert np.mean(column(one, "c4") == column(other, "c4")) < 0.5
    assert not np.array_equal(column(one, "truth"), column(other, "truth"))


@every_shape
@pytest.mark.parametrize("base_rate", [0.05, 0.2])
def test_labels_are_drawn_with_the_truth_at_about_the_base_rate(shape: ShapeName, base_rate: float) -> None:
    rows = table(GeneratorSettings(rows=60_000, seed=2, shape=shape, base_rate=base_rate))
    truth, labels = column(rows, "truth").astype(float), column(rows, "label")
    assert truth.mean() == pytest.approx(base_rate, rel=0.05)
    for low in (0.0, 0.1, 0.3, 0.6):
        chosen = (truth >= low) & (truth < low + 0.3)
        error = np.sqrt(max(1, chosen.sum())) * 0.5
        assert abs(labels[chosen].sum() - truth[chosen].sum()) < 4 * error


def test_the_schema_travels_with_the_rows() -> None:
    carried = parse_schema(arrow_schema(SMALL).metadata[METADATA_KEY])
    assert carried == schema_of(SMALL)
    assert carried.generator["seed"] == 3.0


@every_shape
@pytest.mark.parametrize("drift", [0.0, 50.0])
def test_values_are_rows_of_their_tables_and_never_the_missing_one(shape: ShapeName, drift: float) -> None:
    settings = GeneratorSettings(rows=30_000, shape=shape, drift=drift, buckets=500)
    rows = table(settings)
    for field in schema_of(settings).of("categorical"):
        values = column(rows, field.name)
        assert values.min() >= 1
        assert values.max() < field.buckets <= 500


def test_hashed_keys_stand_for_the_same_categories() -> None:
    buckets, hashed = table(SMALL), table(replace(SMALL, keys="hash"))
    assert np.array_equal(column(buckets, "truth"), column(hashed, "truth"))
    for number in range(1, 7):
        pairs = np.stack([column(buckets, f"c{number}"), column(hashed, f"c{number}")])
        assert np.unique(pairs, axis=1).shape[1] == len(np.unique(pairs[0])) == len(np.unique(pairs[1]))


def test_candidates_of_a_request_share_its_context() -> None:
    rows = table(replace(SMALL, candidates=10, rows=5000))
    for field in Features.of(schema_of(SMALL)).categorical:
        constant = (column(rows, field.name).reshape(-1, 10) == column(rows, field.name)[::10, None]).all()
        assert constant == field.context
    assert (column(rows, "d1").reshape(-1, 10) == column(rows, "d1")[::10, None]).all()


def test_drift_turns_effects_and_replaces_categories() -> None:
    """Late in a drifting stream, the same category means something else, and large fields hold others."""
    drifting = replace(SMALL, drift=10.0)
    early, late = table(drifting), table(replace(drifting, from_row=50_000))
    still = table(replace(SMALL, from_row=50_000))
    first = column(early, "c1") == 1
    assert (
        abs(column(early, "truth")[first].mean() - column(late, "truth")[column(late, "c1") == 1].mean())
        > 0.03
    )
    assert set(column(still, "c4")) <= set(range(1, 1001))
    assert np.isin(column(late, "c4"), column(early, "c4")).mean() < 0.9


@every_shape
def test_the_base_rate_stays_about_the_same_however_effects_turn(shape: ShapeName) -> None:
    drifting = GeneratorSettings(rows=20_000, seed=1, shape=shape, drift=1.0)
    rates = [
        column(table(replace(drifting, from_row=at)), "truth").mean() for at in range(0, 1_000_000, 125_000)
    ]
    assert min(rates) > 0.14
    assert max(rates) < 0.28


def test_timestamps_advance_as_fast_as_asked() -> None:
    rows = table(replace(SMALL, rows_per_second=100.0, from_row=200, rows=101))
    times = rows["timestamp"].cast(pa.int64()).to_numpy()
    assert times[-1] - times[0] == 1_000_000


def test_pairs_of_categories_say_more_than_each_alone() -> None:
    """The pairs' share of the logit is what separates factorization machines from logistic regression."""
    rows = table(replace(SMALL, rows=200_000))
    truth = column(rows, "truth").astype(float)
    logits = np.log(truth / (1 - truth))
    pairs = np.unique(column(rows, "c1") * 100 + column(rows, "c5"), return_inverse=True)[1]
    explained = logits.copy()
    for name in ("c1", "c5", "c2", "c3", "c4", "c6"):
        values = column(rows, name)
        explained -= (np.bincount(values, explained) / np.maximum(1, np.bincount(values)))[values]
    by_pair = (np.bincount(pairs, explained) / np.bincount(pairs))[pairs]
    assert by_pair.std() > 0.2


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("rows", -1), ("seed", -1), ("seed", 2**53 + 1), ("drift", -0.1), ("drift", float("nan"))),
        *(("base_rate", 0.0), ("base_rate", 1.0), ("candidates", 0), ("buckets", 1), ("batch_rows", 0)),
        *(("rows_per_second", 0.0), ("shape", "round"), ("keys", "exact"), ("from_row", -1)),
    ],
)
def test_a_wrong_setting_is_named(setting: str, value: object) -> None:
    with pytest.raises(ConfigError, match=setting.replace("_", "-")):
        GeneratorSettings(**{setting: value})
