"""Rolling back by file, and what ``headrace versions`` lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ConfigError, NotFound
from headrace.versions.layout import MANIFEST_FILE, PIN_FILE
from headrace.versions.manifest import publish
from headrace.versions.pin import list_versions, pin, read_pin, unpin


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "ctr"
    for size in (10, 20, 30):
        publish(lambda draft, size=size: (draft / "model.onnx").write_bytes(b"x" * size), directory)
    return directory


def test_a_pin_is_a_file_that_holds_a_number(model: Path) -> None:
    assert read_pin(model) is None
    pin(model, 2)
    assert (model / PIN_FILE).read_text() == "2\n"
    assert read_pin(model) == 2
    pin(model, 1)
    assert read_pin(model) == 1


def test_unpinning_follows_the_policy_again(model: Path) -> None:
    assert not unpin(model)
    pin(model, 2)
    assert unpin(model)
    assert read_pin(model) is None


def test_a_version_that_is_not_there_cannot_be_gone_back_to(model: Path) -> None:
    with pytest.raises(NotFound, match="ctr has no version 9 to go back to; it has: 1, 2, 3"):
        pin(model, 9)
    assert read_pin(model) is None


@pytest.mark.parametrize("text", ["two", "", "1 2", "-1", "\x00"])
def test_a_pin_that_is_no_number_is_refused(model: Path, text: str) -> None:
    (model / PIN_FILE).write_text(text)
    with pytest.raises(ConfigError, match=f"^{PIN_FILE}: expected the number of a version, got "):
        read_pin(model)


def test_versions_are_listed_newest_first_with_what_is_known_of_them(model: Path) -> None:
    pin(model, 2)
    (model / "1" / MANIFEST_FILE).write_text("{")
    (model / "4").mkdir()
    listed = list_versions(model)
    assert [(one.version, one.pinned) for one in listed] == [(4, False), (3, False), (2, True), (1, False)]
    assert listed[0].created == ""
    assert listed[1].created.endswith("+00:00")
    assert listed[1].size_bytes > listed[2].size_bytes > 20
    assert [bool(one.problem) for one in listed] == [False, False, False, True]


def test_nothing_but_the_pin_is_left_in_the_directory(model: Path) -> None:
    before = {path.name for path in model.iterdir()}
    pin(model, 2)
    assert {path.name for path in model.iterdir()} - before == {PIN_FILE}
