"""Files loaded into feature tables, in every store that several processes share."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.archive.operations.open_archive import open_archive_file
from headrace.cli.main import main

ROWS = 2500


@pytest.fixture(params=["lmdb", "redis", pytest.param("cassandra", marks=pytest.mark.rest)])
def toml(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    store = 'kind = "lmdb"'
    if request.param != "lmdb":
        server = request.getfixturevalue(f"{request.param}_server")
        where = f'address = "{server.address}"'
        if request.param == "cassandra":
            where = f'contact_points = ["{server.address}"]'
        store = f'kind = "{request.param}"\n{where}\ntimeout_seconds = 60'
    (tmp_path / "archive.toml").write_text(f"[store]\n{store}\n[tables.loaded_users]\n")
    return tmp_path / "archive.toml"


def test_a_loaded_table_is_found_whole_and_a_wider_one_is_a_new_version(
    toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns: dict[str, object] = {
        "user_id": [f"user {row}" for row in range(ROWS)],
        "age": np.arange(ROWS),
        "city": ["Zürich" if row % 2 else "Wien" for row in range(ROWS)],
    }
    for number, further in enumerate(({}, {}, {"score": np.arange(ROWS) / 2}), 1):
        pq.write_table(pa.table(columns | further), tmp_path / "users.parquet")
        words = ["loaded_users", str(tmp_path / "users.parquet"), "--archive", str(toml), "--json"]
        words += ["--new-columns"] if further else []
        assert main(["archive", "load", *words]) == 0
        said = json.loads(capsys.readouterr().out)
        assert (said["rows"], said["is_default"], said["version"]) == (ROWS, True, 2 if number == 3 else 1)
    with open_archive_file(toml) as archive:
        lookup = archive.lookup("loaded_users", [*columns["user_id"], "nobody"], timeout_seconds=30)  # type: ignore[misc]
        assert lookup.found.tolist() == [True] * ROWS + [False]
        values = lookup.values()
        assert values["age"].tolist() == [*range(ROWS), 0]
        assert set(values["city"].tolist()) == {"Zürich".encode(), b"Wien", b""}
        assert values["score"][1] == 0.5
        old = archive.lookup("loaded_users", ["user 7"], version=1, timeout_seconds=30)
        assert {name: one.tolist() for name, one in old.values().items()} == {
            "age": [7],
            "city": ["Zürich".encode()],
        }
