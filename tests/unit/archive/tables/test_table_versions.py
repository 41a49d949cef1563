"""Files for a table that has columns by now: which are refused, what makes a version, and when it answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.lookup.archive import Archive
from headrace.archive.operations.space_versions import Lacking
from headrace.base.errors import InvalidRequest
from tests.unit.archive.filling_parts import open_parts
from tests.unit.archive.tables.loading_parts import load_table, loader


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with open_parts(tmp_path, "memory", {"dimension": 3}, tables={"films": {}}) as opened:
        yield opened


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            "id,title,ratign\na,Heat,8.5\n",
            r"'ratign' is not a column of the table \(did you mean 'rating'\?\); 'rating' is missing",
        ),
        ("id,title,rating,year\na,Heat,8.5,1995\n", "'year' is not a column of the table"),
        ("id,title\na,Heat\n", "'rating' is missing"),
        ("id,title,rating\na,Heat,good\n", "'rating' is text, in the table float64"),
        (f"id,title,rating\na,{'x' * 17},8.5\n", "'title' has longer texts than the table's 16 bytes"),
        (
            "id,title,rating\na,Heat,\nb,Ran,8\n",
            "'rating' lacks values, and the table's column has no default",
        ),
    ],
)
def test_a_file_of_other_columns_is_refused_and_changes_nothing(
    archive: Archive, tmp_path: Path, content: str, problem: str
) -> None:
    file = tmp_path / "films.csv"
    file.write_text("id,title,rating\na,Heat,8.5\nb,Ran,8\n")
    load_table(archive, "films", file)
    before = archive.catalog.read("films")
    file.write_text(content)
    expected = f"FILE: expected the columns of 'films', as version 1 has them; {problem}. .* --new-columns"
    with pytest.raises(InvalidRequest, match=expected):
        load_table(archive, "films", file)
    assert archive.catalog.read("films") == before
    assert archive.lookup("films", ["a", "b"]).found.all()


def test_a_new_version_answers_when_it_has_all_keys_over_several_files(
    archive: Archive, tmp_path: Path
) -> None:
    file = tmp_path / "films.csv"
    file.write_text("id,title\na,Heat\nb,Ran\nc,Alien\n")
    load_table(archive, "films", file)
    file.write_text("id,title,year\nb,Ran,1985\n")
    load = loader(archive, "films", file)
    target = load.run(
        load.table("", "", lambda rows, share: None, is_other_allowed=True), lambda rows, share: None
    )
    assert load.make_default(target) == Lacking(2, "a")
    assert archive.catalog.read("films").default == 1
    file.write_text("id,title,year\na,Heat,1995\nc,Alien,1979\nd,Jaws,1975\n")
    assert load_table(archive, "films", file, is_other=True).version.number == 2
    assert archive.catalog.read("films").default == 2


def test_settings_of_other_columns_make_a_version_that_answers_when_it_has_all_keys(tmp_path: Path) -> None:
    file = tmp_path / "films.csv"
    file.write_text("id,year,title\na,1995,Heat\nb,1985,Ran\n")
    for columns, rows, default in [
        ({"year": "int64"}, "a,1995,Heat\nb,1985,Ran\n", 1),
        ({"year": "int64", "title": "text"}, "a,1995,Heat\n", 1),
        ({"year": "int64", "title": "text"}, "b,1985,Ran\n", 2),
    ]:
        file.write_text("id,year,title\n" + rows)
        with open_parts(tmp_path, "lmdb", {"dimension": 3}, tables={"films": {"columns": columns}}) as opened:
            load_table(opened, "films", file)
            assert opened.catalog.read("films").default == default


@pytest.mark.parametrize("bad", ["", "x" * 9000])
def test_a_load_that_fails_at_its_first_rows_makes_no_version(
    archive: Archive, tmp_path: Path, bad: str
) -> None:
    file = tmp_path / "films.csv"
    file.write_text(f"id,title\n{bad},Heat\n")
    with pytest.raises(InvalidRequest, match=r"row 1 \(line 2\), column 'id': expected a key"):
        load_table(archive, "films", file)
    assert archive.catalog.read("films").versions == ()


def test_a_failed_first_load_does_not_block_the_next_one(archive: Archive, tmp_path: Path) -> None:
    file = tmp_path / "films.csv"
    rows = "".join(f"f{row},old\n" for row in range(20_000))
    file.write_text("id,age\n" + rows + ",\n")
    with pytest.raises(InvalidRequest, match=r"row 20001 .*, column 'id': expected a key"):
        load_table(archive, "films", file)
    (begun,) = archive.catalog.read("films").versions
    assert not begun.is_full
    file.write_text("id,age\nf1,7\n")  # mended, it is no text any more
    assert load_table(archive, "films", file).version.number == 2
    assert archive.lookup("films", ["f1"]).values()["age"].tolist() == [7]


def test_a_table_that_a_stream_fills_is_loaded_from_no_file(tmp_path: Path) -> None:
    windows = {"feed": {"key": "id"}, "windows": {"orders": {"count": True, "seconds": 60}}}
    with open_parts(tmp_path, "memory", {"dimension": 3}, tables={"films": windows}) as archive:
        (tmp_path / "f.csv").write_text("id,orders\na,7\n")
        expected = "SPACE: expected a table that files fill, got 'films', .*headrace archive feed films"
        with pytest.raises(InvalidRequest, match=expected):
            load_table(archive, "films", tmp_path / "f.csv")
        with pytest.raises(InvalidRequest, match="columns: expected none, as 'films' has windows"):
            archive.put_rows("films", ["a"], {"orders": np.array([7])})
