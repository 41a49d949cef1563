"""Publications of click models that are half-written, damaged or without their base are never served."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from headrace.ctr.click_model import Table, Weights
from headrace.ctr.files.arrays import write_array
from headrace.ctr.files.model_files import MODEL_FILE, write_model
from headrace.ctr.model_settings import ModelSettings
from headrace.runtimes import registry
from headrace.runtimes.options import RuntimeOptions
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema
from headrace.training.releasing.publishing import Publication, Publisher, Training
from headrace.versions.manifest import publish, write_manifest
from tests.faults.still_serves import does_it_still_serve
from tests.running_server import RunningServer

BUCKETS = 400_000
"""So many that the table is mapped."""

FEATURES = Features.of(Schema(fields=(Field(name="ad", role="categorical", keys="bucket", buckets=BUCKETS),)))
SETTINGS = ModelSettings(kind="lr")


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The kernels are compiled once, here, and not while a server is waited for."""
    path = release(tmp_path_factory.mktemp("compiled"), 1.0).path
    servable = registry.load(path, RuntimeOptions())
    for rows in (1, 300):
        servable.predict({"ad": np.arange(rows)})
    servable.close()


def weights(answer: float) -> Weights:
    """A model whose logit is the answer, for ad 7."""
    linear = np.zeros((FEATURES.rows, 1), np.float32)
    linear[1 + 7] = answer
    dense = {"bias": np.zeros(1, np.float32), "dense": np.zeros(0, np.float32)}
    return Weights(tables={"linear": Table.of(linear)}, dense=dense)


def release(directory: Path, answer: float, patch: bool = False, keep: int = 0) -> Publication:
    return Publisher(directory, patch=patch, keep=keep).publish(
        SETTINGS, FEATURES, weights(answer), Training(rows=1)
    )


def answer(server: RunningServer) -> float:
    """The logit that the server answers for ad 7."""
    status, body = server.post("/v1/models/ctr:predict", {"instances": [7]})
    assert status == 200, body
    (probability,) = body["predictions"]
    return round(math.log(probability / (1 - probability)), 3)


def error(server: RunningServer, version: int) -> str:
    """What the status says about a version that is not available; "" while nothing is said."""
    status, body = server.get("/v1/models/ctr")
    assert status == 200
    for one in json.loads(body)["model_version_status"]:
        if one["version"] == str(version) and one["state"] != "AVAILABLE":
            return str(one["status"]["error_message"])
    return ""


def half_written(directory: Path) -> None:
    """Copied by hand, without a manifest, and not to the end."""
    elsewhere = directory.parent / ".elsewhere"
    path = release(elsewhere, 2.0).path
    (directory / "2").mkdir()
    content = (path / "table.linear.npy").read_bytes()
    (directory / "2/table.linear.npy").write_bytes(content[: len(content) // 2])
    for name in (MODEL_FILE, "table.linear.scales.npy", "dense.bias.npy", "dense.dense.npy"):
        shutil.copy(path / name, directory / "2" / name)


def without_base(directory: Path) -> None:
    """A patch was copied, its base was not."""
    elsewhere = directory.parent / ".elsewhere"
    for value in (1.5, 2.0):
        done = release(elsewhere, value, patch=True)
    assert done.base == 1
    manifest = json.loads((done.path / MODEL_FILE).read_text())
    manifest["base"]["version"] = "9"
    (done.path / MODEL_FILE).write_text(json.dumps(manifest))
    write_manifest(done.path)
    done.path.rename(directory / "2")


def on_another_base(directory: Path) -> None:
    """A patch was made for another version 1."""
    elsewhere = directory.parent / ".elsewhere"
    release(elsewhere, 1.5)
    release(elsewhere, 2.0, patch=True).path.rename(directory / "2")


def flipped_bit(directory: Path) -> None:
    elsewhere = directory.parent / ".elsewhere"
    release(elsewhere, 1.5)
    path = release(elsewhere, 2.0).path
    content = bytearray((path / "table.linear.npy").read_bytes())
    content[-1] ^= 1
    (path / "table.linear.npy").write_bytes(content)
    path.rename(directory / "2")


def too_small(directory: Path) -> None:
    """Whole, with checksums that are right: but the table has fewer rows than requests may name."""

    def write(draft: Path) -> None:
        write_model(draft, SETTINGS, FEATURES, weights(2.0))
        write_array(draft / "table.linear.npy", np.zeros((10, 1), np.float32))

    publish(write, directory, 2)


def not_a_number(directory: Path) -> None:
    """Copied by hand, without a manifest, from a training that had come apart."""
    made = weights(2.0)
    made.tables["linear"].values[12_345] = np.nan
    (directory / ".2").mkdir()
    write_model(directory / ".2", SETTINGS, FEATURES, made)
    (directory / ".2").rename(directory / "2")


def unlisted(directory: Path) -> None:
    """The manifest is right about what it lists, and does not list the table."""

    def write(draft: Path) -> None:
        write_model(draft, SETTINGS, FEATURES, weights(2.0))
        (draft / "table.linear.npy").rename(directory / ".table")

    path = publish(write, directory.parent / ".elsewhere")
    (directory / ".table").rename(path / "table.linear.npy")
    path.rename(directory / "2")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (half_written, "table.linear.npy is damaged"),
        (without_base, "a patch of version 9, which does not exist; restore it, or publish a whole version"),
        (on_another_base, "is not the one that the patch was made from; publish a whole version"),
        (flipped_bit, "table.linear.npy does not have the checksum"),
        (not_a_number, "table.linear.npy: row 12345, column 0: expected a finite number, got nan"),
        (unlisted, "table.linear.npy is read, and the manifest does not list it"),
        (too_small, "table.linear.npy: expected float32 [400001, 1], got float32 [10, 1]"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_the_version_before_goes_on_and_the_status_says_why(models: Path, damage: object, says: str) -> None:
    directory = models / "ctr"
    release(directory, 1.0)
    with RunningServer(models) as server:
        assert answer(server) == 1.0
        damage(directory)  # type: ignore[operator]
        server.wait_for(lambda: says in error(server, 2), "the status to say why version 2 does not load")
        assert answer(server) == 1.0
        does_it_still_serve(server)
        release(directory, 3.0)  # and the way out: publish the next one
        server.wait_for(lambda: answer(server) == 3.0, "the next version")


def test_a_version_whose_files_are_deleted_while_it_serves_goes_on(models: Path) -> None:
    directory = models / "ctr"
    release(directory, 1.0)
    assert release(directory, 2.0, patch=True).base == 1
    with RunningServer(models) as server:
        assert answer(server) == 2.0
        (directory / "1").rename(directory / ".gone-1")  # the base of what serves
        shutil.rmtree(directory / ".gone-1")
        (directory / "2").rename(directory / ".gone-2")  # and itself: no version is left, so it stays loaded
        shutil.rmtree(directory / ".gone-2")
        ads = list(range(0, BUCKETS, 1009))
        status, body = server.post("/v1/models/ctr:predict", {"instances": ads})
        assert (status, len(body["predictions"])) == (200, len(ads))
        assert answer(server) == 2.0
        release(directory, 3.0)
        server.wait_for(lambda: answer(server) == 3.0, "the next version")
        does_it_still_serve(server)


def test_retention_under_a_server_fails_no_request(models: Path) -> None:
    """Versions are published, and old ones deleted, faster than the server looks."""
    directory = models / "ctr"
    release(directory, 1.0)
    with RunningServer(models) as server:
        for number in range(2, 30):
            release(directory, float(number % 9), patch=number % 3 > 0, keep=2)
            answer(server)
        server.wait_for(lambda: answer(server) == 29 % 9, "the last version")
        does_it_still_serve(server)
