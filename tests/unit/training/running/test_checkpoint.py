"""Checkpoints come back bit for bit, or the one before them does; what a resumed run goes on with."""

from __future__ import annotations

import io
import resource
from pathlib import Path

import msgspec
import numpy as np
import pytest

from headrace.base.errors import FailedPrecondition, LoadError
from headrace.base.tensors import Array
from headrace.ctr.model_settings import DEEP, Kind, ModelSettings, Optimizer, forgetting_of
from headrace.training.options import settings_of
from headrace.training.running.checkpoint import (
    Checkpoint,
    difference,
    find_checkpoint,
    load_checkpoint,
    only_run,
    save_checkpoint,
    settings_with_saved_optimizers,
)
from headrace.versions.layout import MANIFEST_FILE

STATE: dict[str, Array] = {
    "linear": np.random.default_rng(0).normal(size=(70, 3)).astype(np.float32),
    "layer0.weights/m": np.array([np.nan, -0.0, np.inf]),
    "vocabulary.user id.keys": np.array([2**64 - 1, 0], np.uint64),
    "a step": np.array(7),
    "empty": np.zeros((0, 4), np.int8),
}


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    meta = {"rows": 2**60 + 1, "sum": 0.1 + 0.2, "nothing": None, "nested": {"a": [1, "b"]}}
    saved = save_checkpoint(tmp_path / "deep/er", STATE, meta)
    loaded = load_checkpoint(tmp_path / "deep/er")
    assert loaded is not None
    assert (loaded.number, loaded.meta, loaded.skipped) == (1, meta, ())
    assert saved == tmp_path / "deep/er/1"
    assert loaded.state.keys() == STATE.keys()
    for name, array in STATE.items():
        found = loaded.state[name]
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_nothing_saved_is_no_error(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    assert load_checkpoint(tmp_path / "not there") is None


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    for rows in range(5):
        save_checkpoint(tmp_path, STATE, {"rows": rows})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "5"]


@pytest.mark.parametrize("damage", ["flipped bit", "cut", "missing file", "no manifest", "garbage manifest"])
def test_a_damaged_one_is_put_aside_and_the_one_before_it_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    for rows in (1, 2):
        newest = save_checkpoint(tmp_path, STATE, {"rows": rows})
    file = newest / "linear.npy"
    content = bytearray(file.read_bytes())
    if damage == "flipped bit":
        content[-1] ^= 1
        file.write_bytes(content)
    elif damage == "cut":
        file.write_bytes(content[:-1])
    elif damage == "missing file":
        file.unlink()
    else:
        (manifest,) = newest.glob("*.json")
        manifest.unlink() if damage == "no manifest" else manifest.write_bytes(b"{")
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    assert (loaded.number, loaded.meta) == (1, {"rows": 1})
    assert "checkpoint 2 is damaged" in loaded.skipped[0]
    assert "checkpoint 2 is damaged" in caplog.text
    save_checkpoint(tmp_path, STATE, {"rows": 3})
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["1", "2"]
    (aside,) = tmp_path.glob(".*")
    assert aside.name in caplog.text


def damaged(directory: Path) -> None:
    """Save one more, and damage it."""
    (save_checkpoint(directory, STATE, {}) / "linear.npy").unlink()


def test_one_after_the_other_may_be_damaged_and_the_last_ones_are_kept_aside(tmp_path: Path) -> None:
    """The number of one that was put aside is used again."""
    save_checkpoint(tmp_path, STATE, {"rows": 1})
    for _ in range(4):
        damaged(tmp_path)
        loaded = load_checkpoint(tmp_path)
        assert loaded is not None
        assert loaded.number == 1
        assert "checkpoint 2 is damaged" in loaded.skipped[0]
    assert len(list(tmp_path.glob(".damaged-*-2"))) == 2
    assert not list(tmp_path.glob("2"))


def test_old_damaged_checkpoints_are_deleted_with_a_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_checkpoint(tmp_path, STATE, {})
    damaged(tmp_path)
    load_checkpoint(tmp_path)
    (aside,) = tmp_path.glob(".damaged-*")
    old = tmp_path / ".damaged-20200101T000000.000000-2"
    aside.rename(old)
    with caplog.at_level("INFO"):
        save_checkpoint(tmp_path, STATE, {})
    assert not old.exists()
    assert f"deleted: {old.name}" in caplog.text


def test_when_all_are_damaged_that_is_an_error_with_the_way_out_however_often_it_is_tried(
    tmp_path: Path,
) -> None:
    """A supervisor's second attempt must not begin with fresh weights."""
    damaged(tmp_path)
    damaged(tmp_path)
    for _ in range(3):
        with pytest.raises(LoadError, match=r"the directory away.*: checkpoint 2 is damaged.*checkpoint 1"):
            load_checkpoint(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


@pytest.mark.parametrize("name", ["linear.npy", MANIFEST_FILE])
def test_an_unreadable_checkpoint_is_not_taken_for_damaged(tmp_path: Path, name: str) -> None:
    """A name that leads in a circle stands for all that the system may refuse: it may be whole tomorrow."""
    save_checkpoint(tmp_path, STATE, {"rows": 1})
    file = save_checkpoint(tmp_path, STATE, {"rows": 2}) / name
    content = file.read_bytes()
    file.unlink()
    file.symlink_to(file.name)
    with pytest.raises(FailedPrecondition, match=r"checkpoint 2 in .* cannot be read.*Too many levels"):
        load_checkpoint(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]
    file.unlink()
    file.write_bytes(content)
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    assert (loaded.number, loaded.skipped) == (2, ())


def test_an_unwritable_checkpoint_is_a_typed_error_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: the error comes from the same call."""
    save_checkpoint(tmp_path, STATE, {"rows": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, before[1]))
    try:
        with pytest.raises(FailedPrecondition, match="cannot be written: File too large"):
            save_checkpoint(tmp_path, STATE, {"rows": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    assert loaded.meta == {"rows": 1}


def test_a_file_where_the_directory_should_be_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FailedPrecondition, match="File exists"):
        save_checkpoint(tmp_path / "file", STATE, {})


def test_two_runs_do_not_go_on_from_each_others_checkpoints(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    with only_run(directory):
        save_checkpoint(directory, {"a": np.zeros(1)}, {})
        with (
            pytest.raises(FailedPrecondition, match="another run has its checkpoints in"),
            only_run(directory),
        ):
            pytest.fail("two at a time")
        assert load_checkpoint(directory) is not None
    with only_run(directory):
        pass


def test_a_run_that_saves_nothing_leaves_no_directory(tmp_path: Path) -> None:
    with only_run(tmp_path / "checkpoints"):
        pass
    assert not any(tmp_path.iterdir())


def test_where_no_directory_can_be_made_a_run_begins_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with only_run(tmp_path / "file"):
        pass


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
def test_weights_continue_with_the_saved_optimizer(
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
def test_saved_default_optimizers_are_kept(saved: tuple[Optimizer, Optimizer]) -> None:
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
    assert not made.has_half_life


@pytest.mark.parametrize("resume", [False, True])
def test_a_directory_that_cannot_be_looked_at_is_a_typed_error(tmp_path: Path, *, resume: bool) -> None:
    """A directory that one may not enter; to the superuser, who may, a name is too long."""
    directory = tmp_path / ("x" * 300)
    with pytest.raises(FailedPrecondition, match="the checkpoints in"), only_run(directory):
        find_checkpoint(directory, io.StringIO(), resume=resume)
