"""``headrace archive join``, and what learns from it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.operations.open_archive import open_archive_file
from headrace.cli.main import main
from headrace.ctr.files.model_files import read_description
from headrace.stream.schema import Field, Schema
from headrace.versions.layout import MANIFEST_FILE
from headrace.versions.manifest import read_manifest, space_versions

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def place(tmp_path: Path, capsys: Captured) -> Path:
    """An archive, rows that need it, and the model's settings."""
    (tmp_path / "archive.toml").write_text("[spaces.images]\ndimension = 3\nhistory_seconds = 0\n")
    (tmp_path / "headrace.toml").write_text('[inputs.image]\nspace = "images"\nkey = "url"\n')
    np.save(tmp_path / "vectors.npy", np.eye(2, 3, dtype=np.float32))
    (tmp_path / "keys.txt").write_text("a\nb\n")
    words = ["images", str(tmp_path / "vectors.npy"), "--keys", str(tmp_path / "keys.txt")]
    assert main(["archive", "put", *words, "--archive", str(tmp_path / "archive.toml")]) == 0
    now = 4_000_000_000_000_000  # later than any vector was written
    lines = [f"{number % 2},{now + number},{'ab?'[number % 3]},{number % 7}" for number in range(300)]
    (tmp_path / "rows.csv").write_text("\n".join(["label,when,url,ad", *lines]))
    words = ["--format", "csv", "--timestamp", "when", str(tmp_path / "rows.csv")]
    assert main(["stream", "encode", *words, "--out", str(tmp_path / "rows")]) == 0
    capsys.readouterr()
    return tmp_path


def join(place: Path, *words: str) -> int:
    paths = ["--archive", str(place / "archive.toml"), "--inputs", str(place / "headrace.toml")]
    return main(["archive", "join", str(place / "rows"), *paths, "--out", str(place / "joined"), *words])


def test_counts_of_found_and_missing_values_are_printed(place: Path, capsys: Captured) -> None:
    assert join(place, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    counts = {"rows": 300, "keys": 300, "found": 200, "too_old": 0, "missing": 100, "lost": 0, "recorded": 0}
    assert said["inputs"] == [{"input": "image", **counts}]
    assert said["spaces"] == {"images": 1}
    assert join(place) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "image   300   300    200        0      100     0         0" in told.err


@pytest.mark.parametrize("words", [[], ["--ignore", "image.written,image.version"]])
def test_rows_of_a_csv_file_may_say_what_they_were_served_with(
    place: Path, capsys: Captured, words: list[str]
) -> None:
    with open_archive_file(place / "archive.toml") as archive:
        written = int(archive.lookup("images", ["a"]).written[0])
    lines = (place / "rows.csv").read_text().splitlines()
    said = [f"{line},{written},1" if ",a," in line else f"{line},," for line in lines[1:]]
    (place / "rows.csv").write_text("\n".join([f"{lines[0]},image.written,image.version", *said]))
    encoded = [
        "--format",
        "csv",
        "--timestamp",
        "when",
        str(place / "rows.csv"),
        "--out",
        str(place / "rows"),
    ]
    assert main(["stream", "encode", *encoded, *words]) == 0
    assert join(place, "--json") == 0
    counts = json.loads(capsys.readouterr().out.splitlines()[-1])["inputs"][0]
    assert (counts["recorded"], counts["found"]) == (100, 200)
    assert (
        main(["train", str(place / "joined"), "--model", "lr", "--publish", str(place / "models/ads")]) == 0
    )
    learnt = read_description(place / "models/ads/1").schema.of("categorical", "dense", "vector")
    assert [one.name for one in learnt] == ["ad", "image", "url"]


def test_lost_values_cause_a_warning(place: Path, capsys: Captured) -> None:
    rows = (place / "rows.csv").read_text().replace("4000000000", "1000000000")
    (place / "rows.csv").write_text(rows)
    words = ["--format", "csv", "--timestamp", "when", str(place / "rows.csv")]
    assert main(["stream", "encode", *words, "--out", str(place / "rows")]) == 0
    assert join(place) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "image: 200 of 300 keys are lost" in told
    assert "images keeps replaced values for 0 seconds (history_seconds)" in told


@pytest.mark.parametrize("is_given", [False, True])
def test_a_model_that_learns_from_it_names_the_versions_of_spaces(place: Path, is_given: bool) -> None:
    assert join(place) == 0
    names = {"label": "label", "when": "timestamp", "ad": "categorical", "url": "ignored"}
    fields = [Field(name=name, role=role) for name, role in names.items()]  # type: ignore[arg-type]
    schema = Schema(fields=(*fields, Field(name="image", role="vector", size=3)))
    (place / "schema.json").write_bytes(schema.encode())
    given = ["--schema", str(place / "schema.json")] if is_given else []
    words = [str(place / "joined"), "--model", "lr", "--publish", str(place / "models/ads"), *given]
    assert main(["train", *words]) == 0
    assert space_versions(read_manifest(place / "models/ads/1")) == {"images": 1}


def test_rows_are_joined_as_the_manifest_of_the_model_that_served_them_says(
    place: Path, capsys: Captured
) -> None:
    assert join(place) == 0
    model = place / "models" / "ads"
    assert main(["train", str(place / "joined"), "--model", "lr", "--publish", str(model)]) == 0
    assert join(place, "--served-by", str(model / "1")) == 0
    manifest = json.loads((model / "1" / MANIFEST_FILE).read_text())
    manifest["metadata"]["spaces"] = {"images": 7, "others": 5}
    (model / "1" / MANIFEST_FILE).write_text(json.dumps(manifest))
    capsys.readouterr()
    assert join(place, "--served-by", str(model)) == 2
    assert "no version 7 of the space 'images'; it has version 1" in capsys.readouterr().err
    assert join(place, "--served-by", str(model), "--served", "images=1") == 0
    assert join(place, "--served-by", str(model / "9")) == 2


def test_a_model_that_learns_from_other_rows_names_none(place: Path) -> None:
    words = [str(place / "rows"), "--model", "lr", "--publish", str(place / "models/ads")]
    assert main(["train", *words]) == 0
    manifest = read_manifest(place / "models/ads/1")
    assert manifest is not None
    assert "spaces" not in manifest.metadata
    assert b"spaces" not in (place / "models/ads/1/model.ctr").read_bytes()


def test_rows_of_other_versions_do_not_follow(place: Path, capsys: Captured) -> None:
    assert join(place) == 0
    first = (place / "joined").read_bytes()
    other = first.replace(b'"spaces":{"images":1}', b'"spaces":{"images":2}')
    assert other != first
    (place / "joined").write_bytes(first + other)
    assert main(["train", str(place / "joined"), "--model", "lr"]) == 1
    assert "row 300: a second stream follows, joined with other versions of spaces" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--versions", "images"], "--versions: expected SPACE=NUMBER, as in images=3, got 'images'"),
        (["--versions", "images=7"], "no version 7 of the space 'images'"),
        (["--inputs", "nowhere.toml"], "--inputs: nowhere.toml cannot be read"),
        (["--schema", "nowhere.toml"], "--schema: nowhere.toml cannot be read"),
    ],
)
def test_a_wrong_command_is_told(place: Path, capsys: Captured, words: list[str], problem: str) -> None:
    assert join(place, *words) in (1, 2)
    assert problem in capsys.readouterr().err
    assert not (place / "joined").exists()
