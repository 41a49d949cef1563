"""Links, owners and permissions: what may be loaded, and what may not."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError, LoadError
from headrace.config import ServerConfig, parse_server_config
from headrace.versions.file_trust import StagedVersion, TrustedFiles, owners_named, trusted_files
from headrace.versions.manifest import publish, read_manifest, write_manifest
from headrace.versions.signatures import new_keys, signer

STRANGER, OTHER = 54321, 54322
OTHERS_FILES = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
PLACES = ("model.py", "assets/words", "assets", ".")


def write_version(path: Path) -> Path:
    (path / "assets").mkdir(parents=True)
    (path / "model.py").write_text("")
    (path / "assets/words").write_text("")
    return path


@pytest.fixture
def version(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("secret")
    return write_version(tmp_path / "models/m/1")


def trusting(version: Path, **how: object) -> TrustedFiles:
    return trusted_files(version.parents[1], ServerConfig(**how))  # type: ignore[arg-type]


def test_ordinary_files_are_loaded(version: Path) -> None:
    trusting(version).check(version, is_code=True)


# ---- Links ----


def test_links_inside_a_version_are_followed(version: Path) -> None:
    (version / "words").symlink_to("assets/words")
    (version / "again").symlink_to(".")
    (version / "absolute").symlink_to(version / "assets")
    trusting(version).check(version, is_code=True)


def test_the_served_directory_a_model_and_a_version_may_be_links_to_any_place(
    version: Path, tmp_path: Path
) -> None:
    (tmp_path / "current").symlink_to("models")
    (version.parent / "2").symlink_to(write_version(tmp_path / "releases/7"))
    (version.parents[1] / "far").symlink_to(tmp_path / "releases")
    for path in ("m/1", "m/2", "far/7"):
        for served in (tmp_path / "models", tmp_path / "current"):
            trusted_files(served, ServerConfig()).check(served / path, is_code=True)


@pytest.mark.parametrize(
    ("name", "link"),
    [
        ("weights", lambda path, out: (path / "weights").symlink_to(out / "file")),
        ("assets/weights", lambda path, out: (path / "assets/weights").symlink_to(out / "file")),
        ("weights", lambda path, out: (path / "weights").symlink_to("../../../outside/file")),
        ("folder", lambda path, out: (path / "folder").symlink_to(out)),
        ("passwords", lambda path, out: (path / "passwords").symlink_to("/etc/passwd")),
        ("sibling", lambda path, _: (path / "sibling").symlink_to("../2/model.py")),
        ("prefix", lambda path, _: (path / "prefix").symlink_to("../10/model.py")),
        ("model", lambda path, _: (path / "model").symlink_to("../../other/1")),
        ("up", lambda path, _: (path / "up").symlink_to("..")),
        ("later", lambda path, out: (path / "later").symlink_to(out / "nothing yet")),
    ],
)
def test_a_link_that_leaves_its_version_is_refused_by_name(
    version: Path, tmp_path: Path, name: str, link: Callable[[Path, Path], None]
) -> None:
    for sibling in ("m/2", "m/10", "other/1"):
        write_version(version.parents[1] / sibling)
    link(version, tmp_path / "outside")
    (version.parent / "3").symlink_to(version)
    for path in (version, version.parent / "3"):
        with pytest.raises(LoadError, match=f"^{name} is a link that leads out of the version's directory"):
            trusting(version).check(path, is_code=False)
        trusting(version, follow_links=True).check(path, is_code=False)


def test_links_to_nothing_and_in_circles_end(version: Path) -> None:
    (version / "loop").symlink_to("loop")
    (version / "nothing").symlink_to("nowhere")
    (version / "assets/up").symlink_to("..")
    trusting(version).check(version, is_code=True)


def mount_volume(path: Path, folder: str = "") -> None:
    """Write what the kubelet mounts for a ConfigMap: links to ``..data``, in a directory of mode 0777."""
    (path / "..2026_11_28" / folder).mkdir(parents=True)
    (path / "..2026_11_28" / folder / "model.py").write_text("")
    (path / "..data").symlink_to("..2026_11_28")
    name = folder.partition("/")[0] or "model.py"
    (path / name).symlink_to(f"..data/{name}")
    path.chmod(0o777)


@OTHERS_FILES
def test_volumes_of_kubernetes_are_loaded(tmp_path: Path) -> None:
    mount_volume(tmp_path / "models/version/1")
    mount_volume(tmp_path / "models/model", "1")
    mount_volume(tmp_path / "models/all", "m/1")
    for served, path in (("models", "version/1"), ("models", "model/1"), ("models/all", "m/1")):
        trusted = trusted_files(tmp_path / served, ServerConfig())
        trusted.check(tmp_path / served / path, is_code=True)


@OTHERS_FILES
@pytest.mark.parametrize("how", ["a stranger's link", "a directory"])
def test_an_imitation_of_a_kubernetes_volume_is_refused(version: Path, how: str) -> None:
    version.chmod(0o777)
    if how == "a directory":
        (version / "..data").mkdir()
    else:
        (version / "..data").symlink_to("assets")
        os.chown(version / "..data", STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(LoadError, match=r"^others may write its directory"):
        trusting(version).check(version, is_code=False)


@OTHERS_FILES
def test_files_in_a_volume_of_kubernetes_that_others_may_write_are_refused(tmp_path: Path) -> None:
    mount_volume(tmp_path / "m/1")
    (tmp_path / "m/1/..data/model.py").chmod(0o666)
    with pytest.raises(LoadError, match=r"^others may write \S*model\.py \(mode 0666, owner 0\)"):
        trusted_files(tmp_path, ServerConfig()).check(tmp_path / "m/1", is_code=False)


# ---- Owners ----


@OTHERS_FILES
@pytest.mark.parametrize("whose", PLACES)
@pytest.mark.parametrize("is_code", [False, True])
def test_files_of_a_stranger_are_refused_with_the_setting_that_accepts_them(
    version: Path, whose: str, *, is_code: bool
) -> None:
    os.chown(version / whose, STRANGER, STRANGER)
    name = "its directory" if whose == "." else whose
    name += ", which is code," if is_code else ""
    with pytest.raises(
        LoadError, match=f"^{name} belongs to user {STRANGER}, .* --trusted-owners {STRANGER} "
    ):
        trusting(version).check(version, is_code=is_code)
    trusting(version, trusted_owners=(str(STRANGER),)).check(version, is_code=is_code)
    with pytest.raises(LoadError, match=f"--trusted-owners {STRANGER} "):
        trusting(version, trusted_owners=(str(OTHER),)).check(version, is_code=is_code)


@OTHERS_FILES
def test_data_of_the_served_directory_s_owner_is_loaded_and_code_is_not(version: Path) -> None:
    for path in (version.parents[1], *(version / place for place in PLACES)):
        os.chown(path, STRANGER, STRANGER)
    trusting(version).check(version, is_code=False)
    trusting(version, trusted_owners=(str(OTHER),)).check(version, is_code=False)
    with pytest.raises(LoadError, match=f"^its directory, which is code, belongs to user {STRANGER}"):
        trusting(version).check(version, is_code=True)


@OTHERS_FILES
def test_the_owner_of_one_served_directory_is_not_trusted_in_another(version: Path, tmp_path: Path) -> None:
    far = write_version(tmp_path / "far/1")
    os.chown(tmp_path / "far", STRANGER, STRANGER)
    for path in (far, version):
        os.chown(path / "assets/words", STRANGER, STRANGER)
    config = parse_server_config(f'[models.far]\npath = "{tmp_path}/far"\n', "server.toml", tmp_path)
    trusted = trusted_files(version.parents[1], config)
    trusted.check(far, is_code=False)
    with pytest.raises(LoadError, match=f"^assets/words belongs to user {STRANGER}"):
        trusted.check(version, is_code=False)


@OTHERS_FILES
def test_a_link_to_a_stranger_s_version_is_refused(version: Path, tmp_path: Path) -> None:
    theirs = write_version(tmp_path / "theirs")
    os.chown(theirs / "model.py", STRANGER, STRANGER)
    (version.parent / "2").symlink_to(theirs)
    with pytest.raises(LoadError, match=f"^model.py belongs to user {STRANGER}"):
        trusting(version).check(version.parent / "2", is_code=False)


@pytest.fixture
def as_another_user() -> Iterator[Path]:
    """Run as a user who is not root, beside a version in a place that everybody may enter."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        path = write_version(Path(place, "models/m/1"))
        os.seteuid(OTHER)
        try:
            yield path
        finally:
            os.seteuid(0)


@OTHERS_FILES
def test_files_of_root_and_of_the_server_s_own_user_are_loaded(as_another_user: Path) -> None:
    version = as_another_user
    trusting(version).check(version, is_code=True)
    for user, is_loaded in ((OTHER, True), (STRANGER, False)):
        os.seteuid(0)
        os.chown(version / "model.py", user, user)
        os.seteuid(OTHER)
        if is_loaded:
            trusting(version).check(version, is_code=True)
        else:
            with pytest.raises(LoadError, match=f"^model.py, which is code, belongs to user {STRANGER}"):
                trusting(version).check(version, is_code=True)


def test_users_are_named_by_name_or_number() -> None:
    assert owners_named(()) == frozenset()
    assert owners_named(("root", "17")) == {0, 17}
    for name in ("nobody-is-called-this", "", "9" * 11, "\N{SUPERSCRIPT TWO}", "a\0b"):
        with pytest.raises(ConfigError, match=r"^trusted_owners: expected users of this machine"):
            owners_named((name,))


# ---- Permissions ----


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("is_code", [False, True])
def test_files_and_directories_that_others_may_write_are_refused(
    version: Path, where: str, *, is_code: bool
) -> None:
    mode = 0o666 if (version / where).is_file() else 0o1777
    (version / where).chmod(mode)
    name, owner = "its directory" if where == "." else where, os.geteuid()
    for how in ({}, {"trusted_owners": (str(owner),)}, {"follow_links": True}):
        said = rf"^others may write {name} \(mode {mode:04o}, owner {owner}\); run `chmod -R o-w` on "
        with pytest.raises(LoadError, match=said):
            trusting(version, **how).check(version, is_code=is_code)


def test_a_linked_file_that_others_may_write_is_refused_where_links_are_followed(
    version: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside/file").chmod(0o606)
    (version / "weights").symlink_to(tmp_path / "outside/file")
    with pytest.raises(LoadError, match=r"^others may write weights \(mode 0606"):
        trusting(version, follow_links=True).check(version, is_code=False)


def test_files_that_a_group_may_write_are_loaded(version: Path) -> None:
    for place in PLACES:
        (version / place).chmod(0o775)
    trusting(version).check(version, is_code=True)


def test_a_version_published_and_signed_with_a_umask_of_0_is_loaded(version: Path, tmp_path: Path) -> None:
    (version / "assets/words").chmod(0o666)
    (version / "assets").chmod(0o777)
    new_keys(tmp_path / "key.pem")
    sign = signer(tmp_path / "key.pem")
    before = os.umask(0)
    try:
        published = publish(version, version.parent, 2, sign=sign)
        trusting(published).check(published, is_code=True)
        sign(published, "m", 2)
    finally:
        os.umask(before)
    trusting(published).check(published, is_code=True)
    assert (published / "assets/words").stat().st_mode & 0o777 == 0o664


def test_a_version_that_changed_since_its_check_is_not_reloaded(version: Path) -> None:
    manifest = write_manifest(version)
    trusting(version).check_again(version, manifest, is_code=True)
    (version / "model.py").write_text("another")
    with pytest.raises(LoadError, match=r"corrupt: model.py has 7 bytes"):
        trusting(version).check_again(version, manifest, is_code=True)
    write_manifest(version)
    with pytest.raises(LoadError, match="its manifest was changed"):
        trusting(version).check_again(version, manifest, is_code=True)


# The private copy is what was checked, whatever becomes of the files that it is a copy of.


@pytest.fixture
def signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "made/variables").mkdir(parents=True)
    (tmp_path / "made/model.bin").write_bytes(b"weights")
    (tmp_path / "made/variables/one").write_bytes(b"1")
    return publish(tmp_path / "made", tmp_path / "models/m")


def staged(signed: Path, between: object = lambda: None) -> StagedVersion:
    manifest = read_manifest(signed)
    assert manifest is not None
    return StagedVersion(signed, manifest, between)  # type: ignore[arg-type]


def test_only_listed_files_are_copied(signed: Path) -> None:
    (signed / "not_listed.py").write_text("import os")
    copy = staged(signed)
    found = {path.relative_to(copy.path).as_posix() for path in copy.path.rglob("*") if path.is_file()}
    assert found == {"model.bin", "variables/one"}
    assert copy.path.stat().st_mode & 0o777 == 0o700
    copy.close()


def test_a_file_that_is_exchanged_later_is_not_the_one_that_is_read(signed: Path) -> None:
    copy = staged(signed)
    (signed / "model.bin").write_bytes(b"another")
    assert (copy.path / "model.bin").read_bytes() == b"weights"
    copy.close()


def test_a_file_that_is_exchanged_before_it_is_copied_is_refused(signed: Path) -> None:
    def exchange() -> None:
        (signed / "variables/one").write_bytes(b"2")

    with pytest.raises(LoadError, match="corrupt: variables/one was changed while it was loaded"):
        staged(signed, exchange)
    assert os.listdir(tempfile.gettempdir()) == []


def test_no_more_is_copied_than_is_listed(signed: Path) -> None:
    """A file of a terabyte that takes a listed one's place does not fill the disk first."""
    with (signed / "model.bin").open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(LoadError, match=r"corrupt: model.bin was changed"):
        staged(signed)


def test_a_private_copy_is_removed_when_it_is_closed_or_collected(signed: Path) -> None:
    copy = staged(signed)
    copy.close()
    assert os.listdir(tempfile.gettempdir()) == []
    copy = staged(signed)
    del copy
    assert os.listdir(tempfile.gettempdir()) == []


def test_copies_of_killed_processes_are_removed_and_those_in_use_stay(signed: Path) -> None:
    left = Path(tempfile.mkdtemp(prefix="headrace-version-"))
    (left / "model.bin").write_bytes(b"old")
    os.utime(left, (1, 1))
    first = staged(signed)
    assert not left.exists()
    os.utime(first.path, (1, 1))
    second = staged(signed)
    assert first.path.exists()
    first.close()
    second.close()
