"""What is wrong in ``archive.toml`` is named by its whole path, and by what it may be meant to be."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from headrace.archive.model.archive_toml import archive_config
from headrace.base.errors import ConfigError

WINDOW = 'feed = { key = "a" }\nwindows.o = '


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            '[tables.u.columns]\nage = "int63"',
            "tables.u.columns.age: expected one of float32, .*, got",
        ),
        ("[tables.u.columns]\nage = 3", "tables.u.columns.age: expected a dtype, or a table with one, got 3"),
        (
            '[tables.u.columns]\nage = { dtype = "int63" }',
            "tables.u.columns.age.dtype: expected one of 'float32', 'float64', 'int32', 'int64', 'text', got",
        ),
        (
            '[tables.u.columns]\nage = { dtype = "int64", bites = 3 }',
            r"tables.u.columns.age.bites: unknown setting; did you mean bytes\?",
        ),
        (
            '[tables.u.columns]\nage = { dtype = "int64", default = "x" }',
            "tables.u.columns.age.default: expected a whole number of int64, got the text 'x'",
        ),
        ('[tables.u.columns]\n"" = "text"', "tables.u.columns: expected a column's name: .*, got ''"),
        ("[tables.u]\ncolumns = 7", "tables.u.columns: expected a table, got `int`"),
        ("[tables.u]\nttl_seconds = -1", "tables.u.ttl_seconds: expected seconds, 0 or more, got -1"),
        ("[tables.u]\nmax_kyes = 1", r"tables.u.max_kyes: unknown setting; did you mean max_keys\?"),
        ("[tables]\nu = 7", "tables.u: expected a table, got 7"),
        ("tables = 7", "tables: expected a table, got `int`"),
        ("[tables.u]\n" + WINDOW + "{ seconds = 60 }", "tables.u.windows.o.count: expected exactly one of"),
        ("[tables.u]\n" + WINDOW + '{ seconds = "x" }', "tables.u.windows.o.seconds: expected `int`, got"),
        (
            "[tables.u]\n" + WINDOW + '{ count = true, seconds = 60, dtype = "text" }',
            "tables.u.windows.o.dtype: expected one of 'float32', 'float64', 'int32', 'int64', got 'text'",
        ),
        (
            "[tables.u]\n" + WINDOW + "{ count = true, seconds = 61 }",
            "tables.u.windows.o.seconds: expected a multiple of every_seconds, 60, .* got 61",
        ),
        ("[tables.u.windows]\no = 7", "tables.u.windows.o: expected a table, got 7"),
        ("[spaces.u]\ndimension = -1", "spaces.u.dimension: expected a whole number, 0 or more, got -1"),
        (
            '[spaces.u]\ndimension = 2\noov = "mean"',
            "spaces.u.oov: expected zeros or a .npy file, as the mean",
        ),
        ('[spaces.u.columns]\na = "text"', r"spaces.u.columns: a space has vectors; write \[tables.u\]"),
        ("[tables.U]", "tables.U: expected a space's name"),
        ("fil = true\n[tables.u]", r"fil: unknown setting; did you mean fill\?"),
        (
            'store = { kind = "redis", database_no = 1 }\n[tables.u]',
            r"store.database_no: .* did you mean database\?",
        ),
        ('queue = { kind = "kafka", hosts = 1 }\n[tables.u]', "queue.hosts: unknown .* known: .*servers, "),
        (
            '[spaces.u]\nembedder = "minilm"\ncontent = "table:flims.title"\n[tables.films]\n[tables.b]',
            r"spaces.u.content: expected a table .* got 'flims'; did you mean 'films'\? There are films, b",
        ),
    ],
)
def test_a_wrong_setting_is_named_with_its_space_or_table_and_column(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^archive.toml: {problem}"):
        archive_config(tomllib.loads(text), "archive.toml", Path())


def test_columns_and_windows_are_read_as_they_are_written() -> None:
    text = (
        '[tables.a.columns]\nage = "int64"\nname = { dtype = "text", bytes = 8 }\n'
        "[tables.b]\n" + WINDOW + "{ count = true, seconds = 60 }"
    )
    spaces = archive_config(tomllib.loads(text), "archive.toml", Path()).spaces
    assert [(one.name, one.dtype, one.bytes) for one in spaces["a"].columns or ()] == [
        ("age", "int64", 64),
        ("name", "text", 8),
    ]
    (window,) = spaces["b"].columns or ()
    assert window.window is not None
    assert (window.name, window.window.seconds) == ("o", 60)
