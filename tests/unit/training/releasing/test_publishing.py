"""Publication: versions are whole, small, described, old ones go; only where the model's own versions lie."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import threading
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.base.errors import ConfigError, FailedPrecondition, ModelError
from headrace.base.tensors import Array
from headrace.ctr.click_model import LearningTable, Table, Weights
from headrace.ctr.files.arrays import read_array
from headrace.ctr.files.model_files import read_model
from headrace.ctr.files.quantization import Bits, dequantize_table
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema
from headrace.training.releasing import publishing
from headrace.training.releasing.publishing import (
    SCHEMA_KEY,
    Publication,
    Publisher,
    Training,
    check_destination,
)
from headrace.training.running.checkpoint import save_checkpoint
from headrace.versions import pins_and_holds
from headrace.versions.control_record import FileStore, Stamp, number_key, with_pin
from headrace.versions.layout import CONTROL_LOCK
from headrace.versions.manifest import check_manifest, publish
from headrace.versions.pins_and_holds import change, hold, let_go, pin, unpin
from tests.click_weights import FEATURES, SCHEMA, settings_for, weights_for
from tests.model_directories import affine, write

SETTINGS = settings_for("fm")


def release(publisher: Publisher, weights: Weights | None = None, rows: int = 1) -> Publication:
    return publisher.publish(
        SETTINGS, FEATURES, weights_for(SETTINGS) if weights is None else weights, Training(rows=rows)
    )


def nudged(weights: Weights, row: int) -> Weights:
    tables = {name: Table.of(table.values.copy()) for name, table in weights.tables.items()}
    tables["linear"].values[row] += np.float32(0.25)
    return replace(weights, tables=tables)


def versions(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


def test_a_version_tells_where_it_comes_from(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "ctr")
    training = Training(
        rows=1000,
        stream_bytes=64_000,
        newest_timestamp=1_700_000_000_000_000,
        metrics={"logloss": 0.5, "auc": None},
    )
    publisher.publish(SETTINGS, FEATURES, weights_for(SETTINGS), training)
    done = publisher.publish(SETTINGS, FEATURES, weights_for(SETTINGS), training)
    assert (done.version, done.base) == (2, None)
    assert done.size_bytes == sum(file.stat().st_size for file in done.path.iterdir())
    manifest = check_manifest(done.path)
    assert manifest is not None
    assert manifest.parent == 1
    assert manifest.signature == "fm: 3 categorical fields, 5 dense numbers -> probability"
    assert msgspec.convert(manifest.metadata["training"], Training) == training
    assert msgspec.convert(manifest.metadata["settings"], type(SETTINGS)) == SETTINGS
    assert manifest.metadata["table_bits"] == 32
    assert manifest.metadata["base"] is None


def test_a_version_is_at_least_two_thirds_smaller_than_a_checkpoint_with_adams_moments(
    tmp_path: Path,
) -> None:
    weights = weights_for(settings_for("fm", factors=16))
    state: dict[str, Array] = {}
    for name, table in weights.tables.items():
        width = table.values.shape[1]
        moments = np.zeros((len(table.values), 2 * width), np.float32)
        learning = LearningTable(np.hstack([table.values, moments]), width, "adam")
        state[name] = learning.values
        assert learning.strip().values.tobytes() == table.values.tobytes()
    saved = save_checkpoint(tmp_path / "checkpoints", state, {})
    checkpoint = sum(file.stat().st_size for file in saved.iterdir())
    sizes = {}
    for bits in (None, 16, 8):
        done = Publisher(tmp_path / f"m{bits}", quantize=bits).publish(
            settings_for("fm", factors=16), FEATURES, weights, Training(rows=1)
        )
        sizes[bits] = sum((done.path / f"table.{name}.npy").stat().st_size for name in weights.tables)
    assert sizes[None] < 0.34 * checkpoint
    assert sizes[16] < 0.18 * checkpoint
    assert sizes[8] < 0.09 * checkpoint


@pytest.mark.parametrize("bits", [None, 16, 8])
def test_patches_follow_a_whole_version_and_hold_what_was_learnt(tmp_path: Path, bits: Bits | None) -> None:
    publisher = Publisher(tmp_path, keep=0, patch=True, whole_every=3, quantize=bits)
    weights = weights_for(SETTINGS)
    bases = []
    for step in range(5):
        weights = nudged(weights, step * 7)
        done = release(publisher, weights)
        bases.append(done.base)
        found = read_model(done.path)[2]
        for name, table in found.tables.items():
            steps = table.scales[np.arange(len(table.values)) >> table.shift][:, None] if bits else 0
            off = np.abs(dequantize_table(table) - weights.tables[name].values) if bits else 0
            assert np.all(off <= steps * np.float32(0.505))
            if not bits:
                assert table.values.tobytes() == weights.tables[name].values.tobytes()
    assert bases == [None, 1, 1, None, 4]


def test_whole_versions_recur_although_versions_are_deleted(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, keep=2, patch=True, whole_every=4)
    weights, bases = weights_for(SETTINGS), []
    for row in range(9):
        weights = nudged(weights, row)
        bases.append(release(publisher, weights).base)
    assert bases == [None, 1, 1, 1, None, 5, 5, 5, None]


def test_a_patch_of_quantized_tables_holds_little_more_than_what_was_touched(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, patch=True, quantize=8)
    weights = weights_for(SETTINGS)
    release(publisher, weights)
    weights.tables["embeddings"].values[:900:9] *= np.float32(0.95)
    done = release(publisher, weights)
    assert done.base == 1
    rows = read_array(done.path / "table.embeddings.rows.npy")
    assert {*range(0, 900, 9)} >= {*rows.tolist()} - {*range(900)}
    assert len(rows) < 250, "the rows that were touched, and those few whose group has got another scale"


def test_a_new_publisher_goes_on_with_the_base_that_is_there(tmp_path: Path) -> None:
    weights = weights_for(SETTINGS)
    release(Publisher(tmp_path, patch=True), weights)
    assert release(Publisher(tmp_path, patch=True), nudged(weights, 5)).base == 1
    assert release(Publisher(tmp_path, patch=True), weights_for(SETTINGS, seed=1)).base is None


def test_old_versions_go_but_not_what_is_needed(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, keep=2)
    kept = [release(publisher) and versions(tmp_path) for _ in range(4)]
    assert kept == [[1], [1, 2], [2, 3], [3, 4]]
    pin(tmp_path, 3)
    (tmp_path / "headrace.toml").write_text("[versions]\nlabels = { stable = 4 }\n")
    for _ in range(3):
        release(publisher)
    assert versions(tmp_path) == [3, 4, 6, 7]
    hold(tmp_path, 6, "audit")
    unpin(tmp_path)
    release(publisher)
    assert versions(tmp_path) == [4, 6, 7, 8]
    let_go(tmp_path, 6, "audit")
    release(publisher)
    assert versions(tmp_path) == [4, 8, 9]


def test_a_version_pinned_during_retention_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Publisher(tmp_path, keep=1)
    release(publisher)
    released = threading.Thread(target=release, args=(publisher,))
    store, waits = FileStore(tmp_path), threading.Event()

    def undisturbed(directory: Path) -> AbstractContextManager[None]:
        waits.set()
        return pins_and_holds.undisturbed(directory)

    monkeypatch.setattr(publishing, "undisturbed", undisturbed)
    with store.alone():  # as whoever pins it now
        released.start()
        assert waits.wait(120)  # it has looked once, and waits for its turn
        stamp = Stamp("", "ann")
        change(store, lambda record: with_pin(record, number_key(1), 1, stamp))
    released.join(120)
    assert versions(tmp_path) == [1, 2]


def test_versions_labelled_or_pinned_in_a_servers_settings_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, server, other = tmp_path / "ctr", tmp_path / "server.toml", tmp_path / "other.toml"
    server.write_text("[models.ctr.versions]\nlabels = { stable = 1 }\n")
    other.write_text(
        '[models.ads]\npath = "ctr"\n[models.ads.versions]\npolicy = "specific"\nnumbers = [2]\n'
    )
    publisher = Publisher(model, keep=1, server_configs=(server, other))
    for _ in range(5):
        release(publisher)
    assert versions(model) == [1, 2, 5]
    server.write_text("[models.ctr.versions]\nlabels = { stable = 5 }\n")
    release(publisher)
    assert versions(model) == [2, 5, 6], "the file is read anew each time"
    other.unlink()
    release(publisher)
    assert versions(model) == [2, 5, 6, 7]
    assert "old versions are kept, because it is unknown which are needed" in caplog.text


def test_the_base_of_a_patch_that_stays_stays(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, keep=1, patch=True)
    weights = weights_for(SETTINGS)
    for row in range(3):
        weights = nudged(weights, row)
        release(publisher, weights)
    assert versions(tmp_path) == [1, 3]


@pytest.mark.parametrize("name", ["headrace.toml", "headrace.pin", "headrace-control.json"])
def test_nothing_is_deleted_while_it_is_unknown_what_is_needed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    publisher = Publisher(tmp_path, keep=1)
    (tmp_path / name).write_bytes(b"\xff what?")
    release(publisher)
    release(publisher)
    assert versions(tmp_path) == [1, 2]
    assert "old versions are kept" in caplog.text


def test_a_version_is_published_although_old_ones_cannot_be_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(directory: Path) -> dict[int, Path]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(publishing, "version_directories", failing)
    done = release(Publisher(tmp_path, keep=1))
    assert done.version == 1
    assert "old versions are kept, because it is unknown which are needed" in caplog.text


def test_a_version_that_another_publisher_deletes_at_once_was_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish_and_delete(*given: Any, **named: Any) -> Path:
        path = manifest_publish(*given, **named)
        shutil.rmtree(path)
        return path

    manifest_publish = publishing.publish
    monkeypatch.setattr(publishing, "publish", publish_and_delete)
    done = release(Publisher(tmp_path, keep=1))
    assert (done.version, done.size_bytes) == (1, 0)


def test_a_weight_that_is_no_number_is_never_published(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, quantize=8)
    for bad in (np.nan, np.inf, -np.inf):
        weights = weights_for(SETTINGS)
        weights.tables["embeddings"].values[700, 2] = bad
        said = r"table.embeddings holds a weight that is not a finite number.* Start a new run"
        with pytest.raises(ModelError, match=said):
            release(publisher, weights)
    assert not versions(tmp_path)


def test_a_full_disk_is_a_typed_error_and_the_next_publication_succeeds(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: the error comes from the same call."""
    publisher = Publisher(tmp_path)
    release(publisher)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, before[1]))
    try:
        with pytest.raises(FailedPrecondition, match=r"no version can be published in .*: File too large"):
            release(publisher)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    assert release(publisher).version == 2


def test_a_directory_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "ctr").write_text("a file")
    with pytest.raises(FailedPrecondition, match="File exists"):
        release(Publisher(tmp_path / "ctr"))


def test_a_directory_without_permission_is_a_typed_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    user = os.geteuid()
    if user == 0:  # root may write anywhere, so be somebody else for a moment
        os.seteuid(65534)
    try:
        with pytest.raises(FailedPrecondition, match=r"no version can be published in .*: Permission denied"):
            release(Publisher(tmp_path))
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o700)


def test_several_publishers_may_publish_at_once(tmp_path: Path) -> None:
    failures: list[Exception] = []

    def run(seed: int) -> None:
        publisher = Publisher(tmp_path, keep=3, patch=True)
        weights = weights_for(SETTINGS, seed=seed)
        try:
            for step in range(6):
                release(publisher, nudged(weights, step))
        except Exception as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert max(versions(tmp_path)) >= 18  # more, where a base went while a patch on it was written
    for number in versions(tmp_path):
        read_model(tmp_path / str(number))
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} <= {CONTROL_LOCK}


def test_settings_of_a_publisher_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep: expected the number"):
        Publisher(tmp_path, keep=-1)
    with pytest.raises(ConfigError, match="expected 16 or 8 bits, got 4"):
        Publisher(tmp_path, quantize=4)  # type: ignore[arg-type]


def changed(name: str, **settings: object) -> Schema:
    fields = [msgspec.structs.replace(one, **settings) if one.name == name else one for one in SCHEMA.fields]
    return Schema(fields=tuple(fields))


def learnt(directory: Path, schema: Schema = SCHEMA) -> Path:
    settings = settings_for("lr", interactions=())
    features = Features.of(schema)
    weights = weights_for(settings, features)
    return Publisher(directory).publish(settings, features, weights, Training(rows=1)).path


def saved_model(directory: Path, metadata: dict[str, object]) -> None:
    publish(lambda draft: (draft / "saved_model.pb").write_bytes(b"a graph"), directory, metadata=metadata)


def check(directory: Path, schema: Schema = SCHEMA, *, keras: bool = False, replaced: bool = False) -> None:
    check_destination(directory, schema, is_keras=keras, is_replaced=replaced)


def test_a_new_directory_or_the_models_own_is_accepted(tmp_path: Path) -> None:
    check(tmp_path / "new")
    (tmp_path / "empty").mkdir()
    check(tmp_path / "empty")
    learnt(tmp_path / "ctr")
    check(tmp_path / "ctr")
    turned = Schema(fields=(Field(name="shown", role="ignored"), *SCHEMA.fields[::-1]))
    check(tmp_path / "ctr", turned)
    check(tmp_path / "ctr", changed("ad", buckets=2**12, keys="exact", admit=3))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (Schema(fields=SCHEMA.fields[:-1]), "it has image"),
        (Schema(fields=(*SCHEMA.fields, Field(name="site", role="categorical"))), "does not have site"),
        (changed("ad", text=True), "it takes other values for ad"),
        (changed("ad", keys="bucket"), "it takes other values for ad"),
        (changed("tags", values=9), "it takes other values for tags"),
        (changed("image", size=8), "it takes other values for image"),
        (changed("hour", context=False), "it takes other values for hour"),
    ],
)
def test_other_inputs_are_another_model(tmp_path: Path, schema: Schema, message: str) -> None:
    learnt(tmp_path)
    with pytest.raises(ConfigError, match=rf"version 1 in .* another model: .*{message}.*--replace"):
        check(tmp_path, schema)
    check(tmp_path, schema, replaced=True)


@pytest.mark.parametrize("keras", [False, True])
def test_another_runtime_is_another_model(tmp_path: Path, keras: bool) -> None:
    write(tmp_path, "half", 1, affine(1.0, 0.0))
    kind = "Keras" if keras else "click"
    with pytest.raises(ConfigError, match=rf"another model: it is not a {kind} model, but holds model\.onnx"):
        check(tmp_path / "half", keras=keras)
    check(tmp_path / "half", keras=keras, replaced=True)


def test_the_newest_version_decides(tmp_path: Path) -> None:
    write(tmp_path, "ctr", 1, affine(1.0, 0.0))
    learnt(tmp_path / "ctr")
    check(tmp_path / "ctr")


def test_of_a_damaged_version_the_one_before_it_tells(tmp_path: Path) -> None:
    learnt(tmp_path)
    (learnt(tmp_path, changed("ad", text=True)) / "model.ctr").write_bytes(b"{")
    (tmp_path / "3").mkdir()
    check(tmp_path)
    with pytest.raises(ConfigError, match="version 1 in"):
        check(tmp_path, changed("ad", text=True))


def test_a_keras_model_s_manifest_tells_its_inputs(tmp_path: Path) -> None:
    saved_model(tmp_path / "own", {SCHEMA_KEY: msgspec.to_builtins(SCHEMA)})
    check(tmp_path / "own", keras=True)
    with pytest.raises(ConfigError, match="it takes other values for ad"):
        check(tmp_path / "own", changed("ad", text=True), keras=True)
    for metadata in ({}, {SCHEMA_KEY: "none"}):
        saved_model(tmp_path / "foreign", metadata)
        with pytest.raises(ConfigError, match="it does not contain the schema of its rows"):
            check(tmp_path / "foreign", keras=True)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_directory_of_models_is_none_of_versions(tmp_path: Path, replaced: bool) -> None:
    learnt(tmp_path / "ctr")
    (tmp_path / "notes").mkdir()
    (tmp_path / "README.md").touch()
    with pytest.raises(ConfigError, match=r"holds the directories of models \(ctr\).*--publish .*/NAME"):
        check(tmp_path, replaced=replaced)
    check(tmp_path / "notes")
