"""What a resumed run goes on with, where what was not said has come to mean something else."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import FailedPrecondition
from headrace.ctr.model_settings import DEEP, Kind, ModelSettings, Optimizer, forgetting_of
from headrace.training.model_toml import settings_of
from headrace.training.running.checkpoint import Checkpoint, only_run
from headrace.training.running.resumption import difference, find_checkpoint, settings_with_saved_optimizers

ADAGRAD = Optimizer(kind="adagrad", learning_rate=0.05)


def saved_with(linear: Optimizer = ADAGRAD, embeddings: Optimizer = ADAGRAD, kind: Kind = "fm") -> Checkpoint:
    settings = ModelSettings(kind=kind, linear=linear, embeddings=embeddings)
    return Checkpoint(1, {}, {"model": msgspec.to_builtins(settings)})


@pytest.mark.parametrize(
    ("said", "checkpoint", "expected"),
    [
        ({}, None, "forgetting"),
        ({}, saved_with(), "adagrad"),  # nothing was said, or just that
        ({"linear": {"kind": "forgetting"}}, saved_with(), "forgetting"),  # refused later: the two differ
        ({}, saved_with(Optimizer(learning_rate=0.1)), "forgetting"),  # it was said, and must be said again
        ({}, saved_with(embeddings=Optimizer(learning_rate=0.1)), "forgetting"),
        ({}, saved_with(Optimizer(kind="forgetting"), Optimizer(kind="forgetting")), "forgetting"),
        ({}, Checkpoint(1, {}, {"model": "film.py:build"}), "forgetting"),  # of a Keras model
    ],
)
def test_what_weights_go_on_with(
    said: dict[str, object], checkpoint: Checkpoint | None, expected: str
) -> None:
    made = settings_of({"kind": "fm", **settings_with_saved_optimizers(said, checkpoint)}, "x")
    assert made.linear.kind == expected


@pytest.mark.parametrize(
    "saved",
    [
        (ADAGRAD, ADAGRAD),
        (
            Optimizer(kind="forgetting", learning_rate=0.2),
            Optimizer(kind="forgetting", learning_rate=0.1, initial=4.0),
        ),
        forgetting_of("ffm"),
    ],
)
def test_what_defaults_were_once_goes_on(saved: tuple[Optimizer, Optimizer]) -> None:
    """Whatever nothing being said meant when a checkpoint was saved."""
    made = settings_of({"kind": "ffm", **settings_with_saved_optimizers({}, saved_with(*saved))}, "x")
    assert (made.linear, made.embeddings) == saved


@pytest.mark.parametrize(
    ("saved", "wanted", "told"),
    [
        (
            {"kind": "lr", "linear": {"kind": "forgetting"}},
            {"kind": "lr", "linear": {"kind": "adagrad"}},
            "model.linear.kind is 'forgetting' in the checkpoint, and 'adagrad' in this run",
        ),
        ({"a": 1}, {"a": 1, "b": 0.5}, "model.b is missing in the checkpoint, and 0.5 in this run"),
        ({"a": 1, "b": None}, {"a": 1}, "model.b is null in the checkpoint, and missing in this run"),
        (
            {"a": [1, {"b": 2}]},
            {"a": [1, {"b": 3}]},
            "model.a[1].b is 2 in the checkpoint, and 3 in this run",
        ),
        ({"a": [1]}, {"a": [1, 2]}, "model.a is a list of 1 in the checkpoint, and a list of 2 in this run"),
        (1000, 500, "model is 1000 in the checkpoint, and 500 in this run"),
        (None, {"a": 1}, "model is null in the checkpoint, and a table of 1 in this run"),
        ({"a": [1]}, {"a": [1]}, ""),
    ],
)
def test_the_first_difference_is_told(saved: object, wanted: object, told: str) -> None:
    assert difference(saved, wanted, "model") == told


@pytest.mark.parametrize("kind", DEEP)
def test_kinds_with_a_network_go_on_with_adagrad(kind: Kind) -> None:
    """Where that was the default when the checkpoint was saved; half-lives were no part of it then."""
    made = settings_of({"kind": kind, **settings_with_saved_optimizers({}, saved_with(kind=kind))}, "x")
    assert (made.linear, made.embeddings) == (ADAGRAD, ADAGRAD)
    assert not made.halves


@pytest.mark.parametrize("resume", [False, True])
def test_a_directory_that_cannot_be_looked_at_is_a_typed_error(tmp_path: Path, *, resume: bool) -> None:
    """A directory that one may not enter; to the superuser, who may, a name is too long."""
    directory = tmp_path / ("x" * 300)
    with pytest.raises(FailedPrecondition, match="the checkpoints in"), only_run(directory):
        find_checkpoint(directory, io.StringIO(), resume=resume)
