"""Links and owners: what may be loaded, and what may not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError, LoadError
from headrace.config import ServerConfig
from headrace.versions.file_trust import TrustedFiles, owners_named, trusted_files
from headrace.versions.manifest import write_manifest

STRANGER = 54321
OTHERS_FILES = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def version(tmp_path: Path) -> Path:
    path = tmp_path / "models/m/1"
    (path / "assets").mkdir(parents=True)
    (path / "model.py").write_text("")
    (path / "assets/words").write_text("")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("secret")
    return path


def trusting(version: Path, **how: object) -> TrustedFiles:
    return trusted_files(version.parents[1], ServerConfig(**how))  # type: ignore[arg-type]


def test_ordinary_files_are_loaded(version: Path) -> None:
    trusting(version).check(version, is_code=True)


def test_links_within_the_served_directory_are_followed(version: Path) -> None:
    (version.parent / "..data").symlink_to(version.name)
    (version.parents[1] / "other").symlink_to("m/..data")
    (version / "words").symlink_to("assets/words")
    (version / "again").symlink_to(".")
    trusting(version).check(version, is_code=True)
    trusting(version).check(version.parents[1] / "other", is_code=True)


def test_the_served_directory_may_be_a_link(version: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to("models")
    trusted_files(tmp_path / "current", ServerConfig()).check(tmp_path / "current/m/1", is_code=False)


@pytest.mark.parametrize(
    ("name", "link"),
    [
        ("weights", lambda path, out: (path / "weights").symlink_to(out / "file")),
        ("assets/weights", lambda path, out: (path / "assets/weights").symlink_to(out / "file")),
        ("weights", lambda path, out: (path / "weights").symlink_to("../../../outside/file")),
        ("folder", lambda path, out: (path / "folder").symlink_to(out)),
        ("passwords", lambda path, out: (path / "passwords").symlink_to("/etc/passwd")),
    ],
)
def test_a_link_that_leads_out_is_refused_by_name(
    version: Path, tmp_path: Path, name: str, link: Callable[[Path, Path], None]
) -> None:
    link(version, tmp_path / "outside")
    with pytest.raises(LoadError, match=f"^{name} is a link that leads out of the model directory"):
        trusting(version).check(version, is_code=False)
    trusting(version, follow_links=True).check(version, is_code=False)


def test_a_version_that_is_a_link_that_leads_out_is_refused(version: Path, tmp_path: Path) -> None:
    (version.parent / "2").symlink_to(tmp_path / "outside")
    with pytest.raises(LoadError, match=r"^its directory is a link that leads out"):
        trusting(version).check(version.parent / "2", is_code=False)


def test_a_directory_whose_name_begins_like_the_served_one_is_outside(version: Path, tmp_path: Path) -> None:
    (tmp_path / "models-2").mkdir()
    (tmp_path / "models-2/file").write_text("")
    (version / "weights").symlink_to(tmp_path / "models-2/file")
    with pytest.raises(LoadError, match="leads out"):
        trusting(version).check(version, is_code=False)


def test_links_to_nothing_and_in_circles_end(version: Path) -> None:
    (version / "loop").symlink_to("loop")
    (version / "nothing").symlink_to("nowhere")
    (version / "assets/up").symlink_to("..")
    trusting(version).check(version, is_code=True)


@OTHERS_FILES
@pytest.mark.parametrize("whose", ["model.py", "assets/words", "assets", "."])
def test_code_of_a_stranger_is_refused_and_data_is_not(version: Path, whose: str) -> None:
    os.chown(version / whose, STRANGER, STRANGER)
    trusting(version).check(version, is_code=False)
    with pytest.raises(LoadError, match=f"is code, which belongs to user {STRANGER}"):
        trusting(version).check(version, is_code=True)


def test_code_that_everybody_may_write_is_refused(version: Path) -> None:
    (version / "model.py").chmod(0o666)
    trusting(version).check(version, is_code=False)
    with pytest.raises(LoadError, match=r"^model.py is code, which everybody may write"):
        trusting(version).check(version, is_code=True)


@OTHERS_FILES
def test_whom_the_operator_names_is_trusted_and_nobody_else(version: Path) -> None:
    for path in (version, version / "assets", version / "model.py", version / "assets/words"):
        os.chown(path, STRANGER, STRANGER)
    trusting(version, trusted_owners=(str(STRANGER),)).check(version, is_code=True)
    os.chown(version / "assets/words", 0, 0)
    with pytest.raises(LoadError, match=r"^assets/words is a file that belongs to user 0"):
        trusting(version, trusted_owners=(str(STRANGER),)).check(version, is_code=False)
    trusting(version, trusted_owners=(str(STRANGER), "root")).check(version, is_code=False)


def test_users_are_named_by_name_or_number() -> None:
    assert owners_named(()) is None
    assert owners_named(("root", "17")) == {0, 17}
    for name in ("nobody-is-called-this", "", "9" * 11, "\N{SUPERSCRIPT TWO}", "a\0b"):
        with pytest.raises(ConfigError, match=r"^trusted_owners: expected users of this machine"):
            owners_named((name,))


def test_what_is_loaded_again_must_be_what_was_checked(version: Path) -> None:
    manifest = write_manifest(version)
    trusting(version).check_again(version, manifest, is_code=True)
    (version / "model.py").write_text("another")
    with pytest.raises(LoadError, match=r"corrupt: model.py has 7 bytes"):
        trusting(version).check_again(version, manifest, is_code=True)
    write_manifest(version)
    with pytest.raises(LoadError, match="its manifest was changed"):
        trusting(version).check_again(version, manifest, is_code=True)
