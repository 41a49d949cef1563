"""The private copy is what was checked, whatever becomes of the files that it is a copy of."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from headrace.base.errors import LoadError
from headrace.versions.manifest import publish, read_manifest
from headrace.versions.private_copies import StagedVersion


@pytest.fixture
def version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "made/variables").mkdir(parents=True)
    (tmp_path / "made/model.bin").write_bytes(b"weights")
    (tmp_path / "made/variables/one").write_bytes(b"1")
    return publish(tmp_path / "made", tmp_path / "models/m")


def staged(version: Path, between: object = lambda: None) -> StagedVersion:
    manifest = read_manifest(version)
    assert manifest is not None
    return StagedVersion(version, manifest, between)  # type: ignore[arg-type]


def test_what_is_listed_is_copied_and_nothing_else(version: Path) -> None:
    (version / "not_listed.py").write_text("import os")
    copy = staged(version)
    found = {path.relative_to(copy.path).as_posix() for path in copy.path.rglob("*") if path.is_file()}
    assert found == {"model.bin", "variables/one"}
    assert copy.path.stat().st_mode & 0o777 == 0o700
    copy.close()


def test_a_file_that_is_exchanged_later_is_not_the_one_that_is_read(version: Path) -> None:
    copy = staged(version)
    (version / "model.bin").write_bytes(b"another")
    assert (copy.path / "model.bin").read_bytes() == b"weights"
    copy.close()


def test_a_file_that_is_exchanged_before_it_is_copied_is_refused(version: Path) -> None:
    def exchange() -> None:
        (version / "variables/one").write_bytes(b"2")

    with pytest.raises(LoadError, match="corrupt: variables/one was changed while it was loaded"):
        staged(version, exchange)
    assert os.listdir(tempfile.gettempdir()) == []


def test_no_more_is_copied_than_is_listed(version: Path) -> None:
    """A file of a terabyte that takes a listed one's place does not fill the disk first."""
    with (version / "model.bin").open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(LoadError, match=r"corrupt: model.bin was changed"):
        staged(version)


def test_it_goes_when_it_is_closed_or_dropped(version: Path) -> None:
    copy = staged(version)
    copy.close()
    assert os.listdir(tempfile.gettempdir()) == []
    copy = staged(version)
    del copy
    assert os.listdir(tempfile.gettempdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_is_in_use_stays(version: Path) -> None:
    left = Path(tempfile.mkdtemp(prefix="headrace-version-"))
    (left / "model.bin").write_bytes(b"old")
    os.utime(left, (1, 1))
    first = staged(version)
    assert not left.exists()
    os.utime(first.path, (1, 1))
    second = staged(version)
    assert first.path.exists()
    first.close()
    second.close()
