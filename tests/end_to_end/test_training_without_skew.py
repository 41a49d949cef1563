"""From serving to training: what a model was served with is logged, joined, learnt, and named afterwards."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pytest

from headrace.archive.lookup.archive import Archive
from headrace.archive.operations.open_archive import open_archive_file
from headrace.cli.main import main
from headrace.serving.engine import Engine
from headrace.stream.schema import METADATA_KEY, Field, Schema
from headrace.versions.manifest import publish, read_manifest, space_versions
from tests.end_to_end.test_model_inputs import echo
from tests.unit.archive.filling_parts import LengthEmbedder

ARCHIVE = """
[spaces.images]
dimension = 4
dtype = "int8"
history_seconds = 600

[tables.users]
columns = { age = "int64", country = { dtype = "text", default = "?" } }
history_seconds = 600
cache_seconds = 0
"""
INPUTS = """
[inputs.image]
space = "images"
key = "url"
answer = true

[inputs.age]
space = "users"
column = "age"
key = "user"
answer = true

[inputs.country]
space = "users"
column = "country"
key = "user"
default = "nowhere"
answer = true
"""
SCHEMA = Schema(
    fields=(
        Field(name="clicked", role="label"),
        Field(name="url", role="categorical", text=True),
        Field(name="image", role="vector", size=4),
        Field(name="age", role="dense"),
        Field(name="country", role="categorical", text=True),
    )
)
ROUNDS = 40


def change(archive: Archive, number: int) -> None:
    """What goes on beside serving: vectors come and are replaced, users change, keys are removed."""
    some = np.random.default_rng(number).normal(size=(2, 4))
    archive.put("images", [f"image {number % 5}", f"image {number % 3}"], some)
    archive.put_rows("users", [f"u{number % 2}"], {"age": np.array([number]), "country": [f"land {number}"]})
    if number % 7 == 0:
        archive.invalidate("images", ["image 1"])
    if number % 11 == 0:
        archive.invalidate("users", ["u1"])


def ask(engine: Engine, number: int) -> dict[str, Any]:
    """A row as a service logs it."""
    url, user = f"image {number % 6}", f"u{number % 3}"
    given = {"bid": np.zeros(1, np.float32), "url": [url], "user": [user]}
    answer = engine.predict_blocking("echo", given)
    return {
        "clicked": number % 2,
        "url": url,
        "user": user,
        "served": (answer["vector"].tobytes(), answer["sum"].item(), answer["land"].item().decode()),
        **{name: answer[name].item() for name in answer if "." in name},
    }


@pytest.fixture
def served(tmp_path: Path) -> list[dict[str, Any]]:
    """Rows as a service logs them, with what the model got beside what answers say of it."""
    publish(lambda draft: onnx.save(echo(), draft / "model.onnx"), tmp_path / "models/echo")
    (tmp_path / "models/echo/headrace.toml").write_text(INPUTS)
    (tmp_path / "archive.toml").write_text(ARCHIVE)
    rows = []
    with (
        open_archive_file(tmp_path / "archive.toml") as archive,
        Engine.in_thread(tmp_path / "models", archive=archive) as engine,
    ):
        for number in range(ROUNDS):
            rows.append(ask(engine, number))
            change(archive, number)
        archive.add_version("images", LengthEmbedder("newer"))
    return rows


def next_millisecond() -> None:
    """Times are no finer."""
    began, deadline = time.time_ns() // 1_000_000, time.monotonic() + 20
    while time.time_ns() // 1_000_000 == began:
        assert time.monotonic() < deadline


def joined(folder: Path, rows: list[dict[str, Any]], *words: str) -> list[tuple[bytes, float, str]]:
    """What ``headrace archive join`` makes of rows."""
    logged = [{name: value for name, value in row.items() if name != "served"} for row in rows]
    batch = pa.RecordBatch.from_pylist(logged).replace_schema_metadata({METADATA_KEY: SCHEMA.encode()})
    with pa.ipc.new_stream(folder / "rows", batch.schema) as writer:
        writer.write_batch(batch)
    command = "archive join rows --inputs models/echo/headrace.toml --out joined"
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *command.split(), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "are lost" not in done.stderr
    table = pa.ipc.open_stream(folder / "joined").read_all()
    vectors = table.column("image").combine_chunks().flatten().to_numpy().reshape(-1, 4)
    found = zip(vectors, table.column("age").to_pylist(), table.column("country").to_pylist(), strict=True)
    return [(vector.tobytes(), age, land) for vector, age, land in found]


@pytest.mark.rest
def test_training_uses_the_values_that_were_served(
    tmp_path: Path, served: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert joined(tmp_path, served) == [row["served"] for row in served]
    assert len({row["served"] for row in served}) > ROUNDS // 2  # they have changed all the while

    where = ["--models", str(tmp_path / "models"), "--archive", str(tmp_path / "archive.toml")]
    published = str(tmp_path / "models/clicks")
    assert main(["train", str(tmp_path / "joined"), "--model", "lr", "--publish", published]) == 0
    assert space_versions(read_manifest(tmp_path / "models/clicks/1")) == {"images": 1, "users": 1}
    capsys.readouterr()
    assert main(["archive", "drop", "images", "1", *where]) == 1
    needed = re.escape("version 1 of the space 'images' is needed: ") + ".*models/clicks/1 was trained on it"
    assert re.search(needed, capsys.readouterr().err)
    assert main(["archive", "drop", "images", "2", *where]) == 0


@pytest.mark.rest
def test_a_model_that_stays_with_a_version_learns_it_while_the_default_moves(tmp_path: Path) -> None:
    """Its manifest names version 1; half way the default becomes 2, and both go on changing."""
    publish(
        lambda draft: onnx.save(echo(), draft / "model.onnx"),
        tmp_path / "models/echo",
        metadata={"spaces": {"images": 1}},
    )
    (tmp_path / "models/echo/headrace.toml").write_text(INPUTS)
    (tmp_path / "archive.toml").write_text(ARCHIVE)
    rows = []
    with (
        open_archive_file(tmp_path / "archive.toml") as archive,
        Engine.in_thread(tmp_path / "models", archive=archive) as engine,
    ):
        newer = archive.add_version("images", LengthEmbedder("newer")).number
        for number in range(ROUNDS):
            if number == ROUNDS // 2:
                archive.catalog.move_default("images", newer)
            next_millisecond()  # in which nothing is written
            rows.append({"at": time.time_ns() // 1000} | ask(engine, number))
            next_millisecond()
            some = np.random.default_rng(number).normal(size=(2, 2, 4))
            archive.put("images", [f"image {number % 5}", f"image {number % 3}"], some[0], version=1)
            archive.put("images", [f"image {number % 4}", f"image {number % 2}"], some[1], version=newer)
            archive.put_rows(
                "users", [f"u{number % 2}"], {"age": np.array([number]), "country": [f"land {number}"]}
            )
            if number % 7 == 0:
                archive.invalidate("images", ["image 1"])
    assert {row["image.version"] for row in rows} == {1}
    wanted = [row["served"] for row in rows]
    one = ("--versions", "images=1")
    assert joined(tmp_path, rows, *one) == wanted
    unsaid = [{name: value for name, value in row.items() if not name.endswith("n")} for row in rows]
    assert not any("." in name for name in unsaid[0])
    assert joined(tmp_path, unsaid, *one, "--served", "images=1", "--time", "at") == wanted
