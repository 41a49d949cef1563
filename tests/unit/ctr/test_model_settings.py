"""What learns how, where it is said and where it is not."""

from __future__ import annotations

import msgspec
import pytest

from headrace.base.errors import ConfigError
from headrace.ctr.model_settings import EMBEDDINGS, IN_BATCHES, KINDS, LINEAR, Kind, ModelSettings, Optimizer
from headrace.training.options import settings_of

ADAGRAD = Optimizer(kind="adagrad", learning_rate=0.05)
LINEAR_2 = msgspec.structs.replace(LINEAR, initial=2.0)
EMBEDDINGS_2 = msgspec.structs.replace(EMBEDDINGS, initial=2.0)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"kind": "lr"}, (LINEAR, EMBEDDINGS)),
        ({"kind": "fm"}, (LINEAR, EMBEDDINGS)),
        ({"kind": "fwfm"}, (LINEAR_2, EMBEDDINGS_2)),
        ({"kind": "ffm"}, (LINEAR_2, EMBEDDINGS_2)),
        ({"kind": "deepfm"}, (IN_BATCHES, IN_BATCHES)),
        ({"kind": "deepffm"}, (IN_BATCHES, msgspec.structs.replace(IN_BATCHES, learning_rate=0.07))),
        ({}, (IN_BATCHES, IN_BATCHES)),
        ({"network": {"kind": "sgd"}}, (IN_BATCHES, IN_BATCHES)),
        # A rate is that of the optimizer that is said with it; without one, Adagrad's as ever.
        ({"kind": "fm", "linear": {"learning_rate": 0.1}}, (Optimizer(learning_rate=0.1), ADAGRAD)),
        ({"kind": "fm", "embeddings": {}}, (ADAGRAD, ADAGRAD)),
        ({"kind": "fm", "linear": {"kind": "ftrl"}}, (Optimizer(kind="ftrl"), ADAGRAD)),
        ({"kind": "fm", "embeddings": {"kind": "adam"}}, (ADAGRAD, Optimizer(kind="adam"))),
        ({"kind": "fm", "linear": {"kind": "forgetting"}}, (Optimizer(kind="forgetting"), ADAGRAD)),
    ],
)
def test_how_weights_learn(said: dict[str, object], expected: tuple[Optimizer, Optimizer]) -> None:
    made = settings_of(said, "x")
    assert (made.linear, made.embeddings) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_filled_in_defaults_survive_copies_and_encoding(kind: Kind) -> None:
    """On the way through a checkpoint or a version, and in copies of another kind."""
    made = ModelSettings(kind=kind)
    assert msgspec.convert(msgspec.to_builtins(made), ModelSettings) == made
    copied = msgspec.structs.replace(made, factors=3)
    assert (copied.linear, copied.embeddings) == (made.linear, made.embeddings)
    assert msgspec.structs.replace(made, kind="fm").linear == made.linear


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, True),
        ({"linear": {"kind": "adagrad"}}, False),
        ({"linear": {"kind": "forgetting"}}, True),
        ({"embeddings": {"kind": "forgetting"}}, True),
        ({"network": {"kind": "forgetting"}}, True),
        ({"kind": "fm"}, False),  # row by row it is measured how fast
        ({"kind": "fm", "linear": {"kind": "adam"}, "embeddings": {"kind": "forgetting"}}, True),
    ],
)
def test_half_lives_apply_to_batches_with_decaying_sums(said: dict[str, object], expected: bool) -> None:
    assert settings_of(said, "x").has_half_life is expected


@pytest.mark.parametrize("rows", [0, -1, 2**41])
def test_a_half_life_has_its_bounds(rows: int) -> None:
    with pytest.raises(ConfigError, match="half_life_rows: expected a number, at least 1 and at most"):
        settings_of({"half_life_rows": rows}, "x")


@pytest.mark.parametrize(
    "setting",
    [
        {"initial_scale": 1e300},
        *({"linear": {name: 1e300}} for name in ("learning_rate", "initial", "l1", "l2", "epsilon")),
    ],
)
def test_numbers_that_kernels_cannot_count_with_are_refused(setting: dict[str, object]) -> None:
    """They were infinite there, and the model diverged at its first rows."""
    with pytest.raises(ConfigError, match="at most 1e\\+06, got 1e\\+300"):
        settings_of(setting, "x")
