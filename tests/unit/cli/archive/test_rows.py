"""A wrong row of a file is named by its number, from 1, and by its line, by every verb that reads files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace.cli.main import main

SETTINGS = """
[tables.users.columns]
age = "int64"
[tables.demand.feed]
key = "id"
[tables.demand.windows]
spent = { sum = "age", seconds = 60 }
"""
GOOD = "id,timestamp,age\na,2026-01-01T12:00:00,1\n"
WRONG = "b,2026-01-01T12:00:01,old\n"


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (GOOD + WRONG, "row 2 (line 3)"),
        (GOOD + "\n" + WRONG, "row 2 (line 4)"),  # a line without anything is no row
        (GOOD + '"a\nb",2026-01-01T12:00:01,2\n' + WRONG, "row 3 (line 5)"),
    ],
)
def test_load_and_feed_report_an_invalid_value_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, where: str
) -> None:
    (tmp_path / "archive.toml").write_text(SETTINGS)
    file, archive = tmp_path / "rows.csv", ["--archive", str(tmp_path / "archive.toml")]
    file.write_text(content)
    assert main(["archive", "load", "users", str(file), *archive]) == 2
    told = f"{where}, column 'age': expected a whole number of int64, got 'old'"
    assert told in capsys.readouterr().err
    assert main(["archive", "feed", "demand", str(file), *archive]) == 1
    told = f"rows.csv: {where}, column 'age': expected a number, got 'old'"
    assert told in capsys.readouterr().err


def test_a_row_that_is_cut_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "archive.toml").write_text(SETTINGS)
    (tmp_path / "rows.csv").write_text(GOOD + "\nb,2\n")
    for verb in (["load", "users"], ["feed", "demand"]):
        words = [*verb, str(tmp_path / "rows.csv"), "--archive", str(tmp_path / "archive.toml")]
        assert main(["archive", *words]) == 2
        assert "rows.csv: row 2 (line 4): Expected 3 columns, got 2: b,2" in capsys.readouterr().err


def test_a_row_of_a_file_that_is_no_text_has_no_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "archive.toml").write_text(SETTINGS)
    rows = pa.table({"id": ["a", "b"], "timestamp": [1, 2], "age": ["1", "old"]})
    pyarrow.parquet.write_table(rows, tmp_path / "rows.parquet")
    for verb in (["load", "users"], ["feed", "demand"]):
        words = [*verb, str(tmp_path / "rows.parquet"), "--archive", str(tmp_path / "archive.toml")]
        assert main(["archive", *words]) > 0
        assert "row 2, column 'age': expected a" in capsys.readouterr().err
