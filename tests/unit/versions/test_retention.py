"""Which versions go, and that they go whole."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.config import Table, parse_server_config
from headrace.ctr.files.arrays import load_array, write_array
from headrace.versions.pins_and_holds import hold, let_go, pin
from headrace.versions.retention import (
    delete_versions,
    hide_versions,
    named_versions,
    read_named_versions,
    settings_of,
    sweep,
    versions_to_delete,
)

WHOLE = dict.fromkeys(range(1, 8))


@pytest.mark.parametrize(
    ("versions", "keep", "named", "going"),
    [
        ({}, 3, (), []),
        (WHOLE, 3, (), [1, 2, 3, 4]),
        (WHOLE, 0, (), []),
        (WHOLE, 100, (), []),
        (WHOLE, 1, (2, 5), [1, 3, 4, 6]),
        (WHOLE, 2, (99,), [1, 2, 3, 4, 5]),
        ({1: None, 2: 1, 3: 1, 4: 1}, 1, (), [2, 3]),
        ({1: None, 2: 1, 3: None, 4: 3}, 2, (), [1, 2]),
        ({1: None, 2: 1, 3: None, 4: 3}, 1, (2,), []),
        ({2: 1, 3: None}, 1, (), [2]),
    ],
)
def test_the_newest_the_named_and_their_bases_stay(
    versions: dict[int, int | None], keep: int, named: tuple[int, ...], going: list[int]
) -> None:
    assert versions_to_delete(versions, keep, named) == going


def test_a_loaded_version_can_be_read_after_it_was_deleted(tmp_path: Path) -> None:
    import numpy as np

    (tmp_path / "1").mkdir()
    content = np.arange(2**20, dtype=np.float32)
    write_array(tmp_path / "1/a.npy", content)
    mapped = load_array(tmp_path / "1/a.npy", ("float32", (2**20,)))
    assert delete_versions(tmp_path, [1, 2]) == [1]
    assert not list(tmp_path.iterdir())
    np.testing.assert_array_equal(mapped, content)


def test_of_a_version_that_is_a_link_only_the_link_goes(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "2").symlink_to(tmp_path / "elsewhere")
    assert delete_versions(tmp_path, [2]) == [2]
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


def test_a_hidden_link_that_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/file").touch()
    (tmp_path / "7").symlink_to(tmp_path / "elsewhere")
    assert list(hide_versions(tmp_path, [7])) == [7]
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]
    assert (tmp_path / "elsewhere/file").exists()


def age(path: Path) -> None:
    os.utime(path, (0, 0))


def test_only_hidden_versions_and_abandoned_drafts_are_swept(tmp_path: Path) -> None:
    names = (
        ".deleting-3-abc",
        ".publishing-1-dead",
        ".publishing-2-alive",
        ".publishing-3-young",
        ".other",
        "1",
    )
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
        if "young" not in name:
            age(tmp_path / name)
    descriptor = os.open(tmp_path / ".publishing-2-alive", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        sweep(tmp_path)
    finally:
        os.close(descriptor)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".other",
        ".publishing-2-alive",
        ".publishing-3-young",
        "1",
    ]


# Which versions stay because the operator has named them, beside the model or in a server's settings.

OWN = "[versions]\nlabels = { stable = 4 }\n"


def laid_over(**versions: object) -> Table:
    return {"versions": versions}


@pytest.mark.parametrize(
    ("settings", "overrides", "decided", "named"),
    [
        ("", [], set(), set()),
        ("", [], {3}, {3}),
        (OWN, [], {3}, {3, 4}),
        ('[versions]\npolicy = "specific"\nnumbers = [1, 2]\n', [], set(), {1, 2}),
        ("", [laid_over(labels={"stable": 7, "canary": 9})], set(), {7, 9}),
        ("", [laid_over(policy="specific", numbers=[5, 6])], set(), {5, 6}),
        (OWN, [laid_over(labels={"stable": 7})], set(), {4, 7}),
        (OWN, [laid_over(labels={"a": 7}), laid_over(labels={"b": 8}), {}], {2, 8}, {2, 4, 7, 8}),
        ('[versions]\npolicy = "all"\n', [{"batching": {"instances": 2}}], set(), set()),
    ],
)
def test_labelled_listed_and_pinned_versions_are_named(
    settings: str, overrides: list[Table], decided: set[int], named: set[int]
) -> None:
    assert named_versions(settings, overrides, decided) == named


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", 0),
        ("[models.ctr.versions]\nlabels = { a = 1 }", 1),
        ("[models.other.versions]\nlabels = { a = 1 }", 0),
        ("[models.ctr]", 1),
        ('[models.ads]\npath = "models/ctr"', 1),
        ('[models.ads]\npath = "/srv/models/ctr/../ctr"\n[models.ctr]', 2),
        ('[models.ctr]\npath = "elsewhere/ctr"', 0),
    ],
)
def test_a_servers_settings_are_a_models_by_its_name_or_path(text: str, found: int) -> None:
    config = parse_server_config(text, "server.toml", Path("/srv"))
    assert len(settings_of(config, Path("/srv/models/ctr"), ("ctr",))) == found


def test_links_to_a_models_directory_are_followed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "ctr").symlink_to(tmp_path / "data")
    server = tmp_path / "server.toml"
    server.write_text('[models.ads]\npath = "ctr"\n[models.ads.versions]\nlabels = { a = 1 }\n')
    assert read_named_versions(tmp_path / "data", [server]) == {1}
    server.write_text("[models.ctr.versions]\nlabels = { a = 2 }\n")
    assert read_named_versions(tmp_path / "ctr", [server]) == {2}


def test_a_model_that_is_not_there_yet_has_named_versions_too(tmp_path: Path) -> None:
    server = tmp_path / "server.toml"
    server.write_text("[models.ctr.versions]\nlabels = { a = 2 }\n")
    assert read_named_versions(tmp_path / "ctr") == set()
    assert read_named_versions(tmp_path / "ctr", [server]) == {2}


def test_versions_pinned_or_held_by_the_control_record_are_named(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / str(number)).mkdir()
    hold(tmp_path, 1, "audit")
    hold(tmp_path, 3, "audit")
    pin(tmp_path, 2)
    assert read_named_versions(tmp_path) == {1, 2, 3}
    let_go(tmp_path, 3, "audit")
    assert read_named_versions(tmp_path) == {1, 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file"),
        ("models = 3", "models: expected one table a model"),
        ("[models.ctr.versions]\nlabel = { a = 2 }", "unknown setting; did you mean labels"),
        (
            "http_port = 1\n[models.other]",
            r"does not mention the model in .*ctr; if that is intended, add an empty \[models\.ctr\] to it",
        ),
    ],
)
def test_unreadable_or_unrelated_settings_are_an_error(
    tmp_path: Path, text: str | None, message: str
) -> None:
    server = tmp_path / "server.toml"
    if text is not None:
        server.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_named_versions(tmp_path / "ctr", [server])
