"""Files of earlier headraces are read with the same values, and those of a newer one are refused as that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from headrace import Engine
from headrace.access.keys import digest_of, read_keys
from headrace.archive.lookup.dead_letter_records import DeadLetters
from headrace.archive.lookup.miss_queue import wanted_of
from headrace.archive.operations.open_archive import open_archive_file
from headrace.base.errors import ConfigError, FailedPrecondition, HeadraceError, NewerFormat
from headrace.ctr.files.model_files import read_description
from headrace.storage.lmdb_environment import CONTENTS_KEY
from headrace.stream.block_reader import Reader
from headrace.stream.schema import METADATA_KEY
from headrace.training.running.checkpoint import load_checkpoint
from headrace.versions.layout import CONTROL_FILE, MANIFEST_FILE, SIGNATURE_FILE
from headrace.versions.manifest import check_manifest
from headrace.versions.pins_and_holds import read_control, unpin
from headrace.versions.signatures import Verifier
from tests.earlier_files import EARLIER, unpack


class Earlier(NamedTuple):
    """What an earlier headrace wrote.

    Attributes:
        folder: Where that is.
        expected: What must be read from it.
    """

    folder: Path
    expected: Any


@pytest.fixture(params=EARLIER)
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> Earlier:
    return Earlier(tmp_path, unpack(request.param, tmp_path))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The newest of them, to be changed."""
    unpack(EARLIER[-1], tmp_path)
    return tmp_path


def run(folder: Path, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "headrace", *words], cwd=folder, check=True, capture_output=True)


def predictions(models: Path, inputs: dict[str, list[object]]) -> list[float]:
    with Engine.in_thread(models) as engine:
        answer = engine.predict_blocking("clicks", inputs)
        return [float(one) for one in next(iter(answer.values())).ravel()]


def test_versions_and_what_was_decided_about_them(earlier: Earlier) -> None:
    models, expected = earlier.folder / "models", earlier.expected
    control = read_control(models / "clicks")
    assert control.pin is not None
    assert {"number": control.pin.number, "why": control.pin.why} == expected["pin"]
    assert sorted(control.holders(2)) == expected["holders"]
    for version in ("1", "2"):
        assert check_manifest(models / "clicks" / version) is not None
    pinned = predictions(models, expected["inputs"])
    assert pinned == pytest.approx(expected["predictions"]["1"], abs=2e-6)
    unpin(models / "clicks")
    patched = predictions(models, expected["inputs"])
    assert patched == pytest.approx(expected["predictions"]["2"], abs=2e-6)


def test_a_checkpoint_is_gone_on_with(earlier: Earlier) -> None:
    """At the stream's end, it publishes what was learnt: the same as the earlier headrace did."""
    folder, expected = earlier
    found = load_checkpoint(folder / "checkpoints")
    assert found is not None
    assert (found.number, found.meta["position"], found.skipped) == (
        expected["checkpoint"]["number"],
        expected["checkpoint"]["position"],
        (),
    )
    sums = {name: float(np.sum(one, dtype=np.float64)) for name, one in found.state.items()}
    assert sums == expected["checkpoint"]["sums"]
    learning = ("--model", "fm", "--factors", "2", "--batch-rows", "50", "--window-rows", "400")
    where = ("--publish", "again/clicks", "--checkpoint", "checkpoints", "--resume")
    run(folder, "train", *learning, *where, "rows.arrows")
    answer = predictions(folder / "again", expected["inputs"])
    assert answer == pytest.approx(expected["predictions"]["2"], abs=2e-6)


def test_an_archive_and_its_queue(earlier: Earlier) -> None:
    expected = earlier.expected["archive"]
    keys = ["a", "b", "k" * 600]
    with open_archive_file(earlier.folder / "archive.toml") as archive:
        for space in ("halves", "bytes"):
            lookup = archive.lookup(space, keys)
            assert lookup.found.all()
            assert lookup.vectors.tolist() == expected[space]
        assert archive.lookup("users", ["u1", "u2"]).values()["age"].tolist() == expected["age"]
        demand = archive.lookup("demand", ["luigi", "wok"]).values()
        assert {name: column.tolist() for name, column in demand.items()} == expected["demand"]
        assert [letter.key for letter in DeadLetters(archive.store).all()] == expected["dead"]
        with closing(archive.queue.receiver()) as receiver:
            received = [wanted_of(one.message).key for one in receiver.receive(10, 5.0)]
        assert received == expected["wanted"]


def test_a_feed_is_gone_on_with(earlier: Earlier) -> None:
    more = "luigi,2026-01-01T12:41:00Z,10.0\n"
    with (earlier.folder / "orders.csv").open("a") as orders:
        orders.write(more)
    saved = ("--archive", "archive.toml", "--checkpoint", "feed", "--resume")
    run(earlier.folder, "archive", "feed", "demand", "orders.csv", *saved)
    with open_archive_file(earlier.folder / "archive.toml") as archive:
        demand = archive.lookup("demand", ["luigi", "wok"]).values()
    assert demand["orders"].tolist() == [3, 2]
    assert demand["basket"].tolist() == [20.0, 17.0]


def test_keys_and_signatures(folder: Path) -> None:
    (entry,) = read_keys(folder / "keys.toml").key
    key = (folder / "key.txt").read_text().strip()
    assert (entry.name, entry.models, entry.digest) == ("ann", ("clicks",), digest_of(key.encode()))
    version = folder / "models/clicks/1"
    manifest = (version / MANIFEST_FILE).read_bytes()
    assert Verifier(folder / "signing.pem.pub").check(version, "clicks", 1, manifest)


# ---- What a newer headrace wrote -------------------------------------------------------------------------


def newer_file(name: str) -> Callable[[Path], object]:
    """Of a newer format, and otherwise: nothing is there that is known of the present one."""
    return lambda folder: (folder / name).write_text('{"format": 2, "else": [{"new": 1}]}')


def newer_checkpoint(folder: Path) -> None:
    file = folder / "checkpoints/2" / MANIFEST_FILE
    manifest = json.loads(file.read_text())
    manifest["metadata"]["format"] = 2
    file.write_text(json.dumps(manifest))


def newer_schema(folder: Path) -> None:
    file = folder / "models/clicks/1/model.ctr"
    description = json.loads(file.read_text())
    description["schema"] = {"format": 2, "columns": []}
    file.write_text(json.dumps(description))


def newer_stream(folder: Path) -> None:
    with pa.ipc.open_stream((folder / "rows.arrows").read_bytes()) as stream:
        table = stream.read_all()
    told = table.replace_schema_metadata({METADATA_KEY: b'{"format": 2, "columns": []}'})
    with pa.ipc.new_stream(folder / "rows.arrows", told.schema) as stream:
        stream.write_table(told)


def newer_keys(folder: Path) -> None:
    (folder / "keys.toml").write_text('format = 2\n[callers]\nann = "hers"\n')


def newer_record(name: str) -> Callable[[Path], object]:
    """A record of the store, by its name."""

    def write(folder: Path) -> None:
        with open_archive_file(folder / "archive.toml") as archive:
            before = archive.store.read(name)
            assert before is not None
            assert archive.store.swap(name, before, b'{"format": 2, "else": 1}')

    return write


def newer_lmdb(name: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        import lmdb

        with (
            lmdb.open(str(folder / name), max_dbs=10) as environment,
            environment.begin(write=True) as transaction,
        ):
            assert transaction.replace(CONTENTS_KEY, f"headrace {name} 2".encode()) is not None

    return write


def verify(folder: Path) -> object:
    version = folder / "models/clicks/1"
    manifest = (version / MANIFEST_FILE).read_bytes()
    return Verifier(folder / "signing.pem.pub").check(version, "clicks", 1, manifest)


def read_stream(folder: Path) -> None:
    with (folder / "rows.arrows").open("rb") as file, Reader(file):
        pass


def read_catalog(folder: Path) -> None:
    with open_archive_file(folder / "archive.toml") as archive:
        archive.catalog.read("bytes")


def go_on_with_feed(folder: Path) -> None:
    from headrace.archive.windows.feed import Feed

    checkpoint = load_checkpoint(folder / "feed")
    assert checkpoint is not None
    with open_archive_file(folder / "archive.toml") as archive:
        Feed(archive, "demand").restore(checkpoint.state, checkpoint.meta["feed"])


def open_archive(folder: Path) -> None:
    open_archive_file(folder / "archive.toml").close()


class Newer(NamedTuple):
    """A file of a newer headrace.

    Attributes:
        write: Puts it in place of the one that is there.
        read: Reads it.
        error: What that raises.
        says: What the error says.
    """

    write: Callable[[Path], object]
    read: Callable[[Path], object]
    error: type[HeadraceError]
    says: str


UPDATE = "format 2 is newer than 1; update headrace"
NEWER = {
    "manifest": Newer(
        newer_file(f"models/clicks/1/{MANIFEST_FILE}"),
        lambda folder: check_manifest(folder / "models/clicks/1"),
        NewerFormat,
        f"{MANIFEST_FILE}: {UPDATE}",
    ),
    "model": Newer(
        newer_file("models/clicks/1/model.ctr"),
        lambda folder: read_description(folder / "models/clicks/1"),
        NewerFormat,
        f"model.ctr: {UPDATE}",
    ),
    "model's schema": Newer(
        newer_schema,
        lambda folder: read_description(folder / "models/clicks/1"),
        NewerFormat,
        f"model.ctr: schema: {UPDATE}",
    ),
    "signature": Newer(
        newer_file(f"models/clicks/1/{SIGNATURE_FILE}"), verify, NewerFormat, f"{SIGNATURE_FILE}: {UPDATE}"
    ),
    "control record": Newer(
        newer_file(f"models/clicks/{CONTROL_FILE}"),
        lambda folder: read_control(folder / "models/clicks"),
        ConfigError,
        f"{CONTROL_FILE}: {UPDATE}",
    ),
    "checkpoint": Newer(
        newer_checkpoint,
        lambda folder: load_checkpoint(folder / "checkpoints"),
        FailedPrecondition,
        f"{UPDATE}, or move this checkpoint away",
    ),
    "checkpoint's manifest": Newer(
        newer_file(f"checkpoints/2/{MANIFEST_FILE}"),
        lambda folder: load_checkpoint(folder / "checkpoints"),
        FailedPrecondition,
        f"{UPDATE}, or move this checkpoint away",
    ),
    "stream": Newer(newer_stream, read_stream, HeadraceError, UPDATE),
    "keys": Newer(newer_keys, lambda folder: read_keys(folder / "keys.toml"), ConfigError, UPDATE),
    "space": Newer(newer_record("space/bytes"), read_catalog, FailedPrecondition, f"'bytes': {UPDATE}"),
    "feed": Newer(newer_record("feed/demand"), go_on_with_feed, FailedPrecondition, UPDATE),
    "store": Newer(newer_lmdb("store"), open_archive, ConfigError, "the release of headrace that wrote it"),
    "queue": Newer(newer_lmdb("queue"), open_archive, ConfigError, "the release of headrace that wrote it"),
}


@pytest.mark.parametrize("name", NEWER)
def test_a_newer_one_is_refused_with_the_way_out_and_left_as_it_is(folder: Path, name: str) -> None:
    one = NEWER[name]
    one.read(folder)  # as it is, it is read: what follows is the number's doing
    one.write(folder)
    there = contents(folder)
    with pytest.raises(one.error) as refused:
        one.read(folder)
    assert one.says in refused.value.message
    assert contents(folder) == there


def contents(folder: Path) -> dict[str, bytes]:
    """All files but those that LMDB keeps for readers."""
    return {
        str(Path(where, name).relative_to(folder)): Path(where, name).read_bytes()
        for where, _, names in os.walk(folder)
        for name in names
        if name != "lock.mdb"
    }


def test_signing_anew_loses_no_signature_of_a_newer_format(folder: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from headrace.versions.signatures import sign_version

    newer_file(f"models/clicks/1/{SIGNATURE_FILE}")(folder)
    there = contents(folder)
    with pytest.raises(NewerFormat, match="update headrace"):
        sign_version(folder / "models/clicks/1", "clicks", 1, Ed25519PrivateKey.generate())
    assert contents(folder) == there
