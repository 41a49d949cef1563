"""Manifests and publishing: a version is whole, or it is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from headrace.base.errors import Conflict, FailedPrecondition, LoadError
from headrace.sealed_memory.file_copying import NotCopied, Refusal
from headrace.versions import manifest as manifests
from headrace.versions.layout import MANIFEST_FILE, version_directories, version_number
from headrace.versions.manifest import (
    LARGEST_MANIFEST_BYTES,
    check_manifest,
    publish,
    read_manifest,
    write_manifest,
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    (directory / "assets").mkdir(parents=True)
    (directory / "model.onnx").write_bytes(b"weights" * 1000)
    (directory / "assets" / "words.txt").write_text("one two")
    return directory


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "models" / "ctr"


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_directory_without_a_manifest_is_fine(source: Path) -> None:
    assert check_manifest(source) is None
    assert check_manifest(source / "not there") is None


def test_a_written_manifest_passes_its_check_and_is_read_back(source: Path) -> None:
    written = write_manifest(source, signature="x FP32 [rows]", parent=3, metadata={"auc": 0.78, "by": ["a"]})
    assert check_manifest(source) == written
    assert set(written.files) == {"model.onnx", "assets/words.txt"}
    assert (written.parent, written.signature, written.metadata["auc"]) == (3, "x FP32 [rows]", 0.78)
    assert written.files["model.onnx"].size_bytes == 7000


def test_a_manifest_that_could_not_be_read_again_is_not_written(source: Path, model: Path) -> None:
    publish(source, model)
    much = {"by": "x" * LARGEST_MANIFEST_BYTES}
    with pytest.raises(FailedPrecondition, match="bytes, but at most 16777216 are read"):
        publish(source, model, metadata=much)
    assert names(model) == ["1"]


def test_files_beyond_the_manifest_are_fine(source: Path) -> None:
    write_manifest(source)
    (source / "more.txt").write_text("later")
    assert check_manifest(source) is not None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "model.onnx, which headrace-manifest.json lists, is missing"),
        (b"weights" * 999, "model.onnx has 6993 bytes, but headrace-manifest.json lists 7000"),
        (b"wrights" * 1000, "model.onnx does not have the checksum that headrace-manifest.json lists"),
    ],
    ids=["missing", "half-written", "damaged"],
)
def test_a_directory_that_differs_from_its_manifest_is_corrupt(
    source: Path, content: bytes | None, expected: str
) -> None:
    write_manifest(source)
    (source / "model.onnx").unlink()
    if content is not None:
        (source / "model.onnx").write_bytes(content)
    with pytest.raises(LoadError, match=f"^corrupt: {expected}; publish the version again$"):
        check_manifest(source)


def test_a_file_that_changes_while_a_keeper_reads_it_gets_no_checksum(
    source: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*_: object) -> str:
        raise NotCopied(Refusal("changed"))

    write_manifest(source)
    monkeypatch.setattr(manifests, "kept_checksum", changed)
    expected = r"^(assets/words\.txt|model\.onnx) changed while it was read; publish the version again$"
    with pytest.raises(LoadError, match=expected):
        check_manifest(source)
    with pytest.raises(LoadError, match=expected):
        publish(source, model)
    assert not model.exists()


def test_a_check_can_be_ended_between_the_pieces_that_it_reads(source: Path) -> None:
    class Ended(BaseException):
        pass

    def end() -> None:
        raise Ended

    write_manifest(source)
    with pytest.raises(Ended):
        check_manifest(source, between=end)


def test_all_sizes_are_checked_before_any_checksum(source: Path) -> None:
    first, last = list(write_manifest(source).files)
    for name in (first, last):
        content = (source / name).read_bytes()
        (source / name).write_bytes(content[:-1] + (b"?" if name == first else b""))
    with pytest.raises(LoadError, match=f"{last} has"):
        check_manifest(source)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not a manifest"),
        ('{"format": 1}', "missing required field `files`"),
        ('{"format": 2, "files": {}}', "format 2 is newer than 1; update headrace"),
        ('{"format": 1, "files": {"../x": {"bytes": 1, "sha256": ""}}}', "not a path below"),
        ('{"format": 1, "files": {"/etc/passwd": {"bytes": 1, "sha256": ""}}}', "not a path below"),
    ],
)
def test_a_manifest_that_cannot_be_followed_says_why(source: Path, text: str, expected: str) -> None:
    (source / MANIFEST_FILE).write_text(text)
    with pytest.raises(LoadError, match=expected):
        check_manifest(source)


def test_a_manifest_with_fields_of_a_later_headrace_is_read(source: Path) -> None:
    write_manifest(source)
    file = source / MANIFEST_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), "evidence": {"auc": 1}}))
    assert check_manifest(source) is not None


# ---- Publishing ----


def test_publishing_takes_the_next_number_and_says_where_it_comes_from(source: Path, model: Path) -> None:
    assert publish(source, model) == model / "1"
    assert publish(source, model, 41) == model / "41"
    assert publish(source, model) == model / "42"
    assert names(model) == ["1", "41", "42"]
    manifest = check_manifest(model / "42")
    assert manifest is not None
    assert manifest.parent == 41
    assert (model / "42" / "assets" / "words.txt").read_text() == "one two"


def test_a_published_version_is_readable_as_any_new_directory_is(source: Path, model: Path) -> None:
    plain = model.parent / "plain"
    plain.mkdir(parents=True)
    assert publish(source, model).stat().st_mode == plain.stat().st_mode


def test_a_writer_may_write_the_files_itself(model: Path) -> None:
    published = publish(
        lambda directory: (directory / "model.onnx").write_bytes(b"x"), model, metadata={"k": 1}
    )
    manifest = read_manifest(published)
    assert manifest is not None
    assert manifest.metadata == {"k": 1}


@pytest.mark.parametrize("existing", ["7", "007"])
def test_a_number_that_exists_is_a_conflict_and_stays_as_it_is(
    source: Path, model: Path, existing: str
) -> None:
    (model / existing).mkdir(parents=True)
    with pytest.raises(Conflict, match="ctr has a version 7 already"):
        publish(source, model, 7)
    assert names(model) == [existing]


def test_of_two_publishers_of_one_number_one_gets_a_conflict(source: Path, model: Path) -> None:
    def write(directory: Path) -> None:
        publish(source, model, 1)
        (directory / "model.onnx").write_bytes(b"slower")

    with pytest.raises(Conflict):
        publish(write, model, 1)
    assert names(model) == ["1"]
    assert (model / "1" / "model.onnx").stat().st_size == 7000


def test_of_two_that_take_the_next_number_each_gets_its_own(source: Path, model: Path) -> None:
    def write(directory: Path) -> None:
        publish(source, model)
        (directory / "model.onnx").write_bytes(b"slower")

    assert publish(write, model) == model / "2"


def test_a_file_that_has_the_next_number_ends_the_publication(source: Path, model: Path) -> None:
    publish(source, model)
    (model / "2").write_text("a file")
    with pytest.raises(NotADirectoryError, match="ctr/2 is a file; remove it"):
        publish(source, model)
    assert names(model) == ["1", "2"]


def test_no_version_follows_the_largest_one(source: Path, model: Path) -> None:
    publish(source, model, 2**63 - 1)
    with pytest.raises(FailedPrecondition, match=f"expected a version of at most {2**63 - 1}, got {2**63}"):
        publish(source, model)
    assert names(model) == [str(2**63 - 1)]


def test_there_must_be_something_to_publish(tmp_path: Path, model: Path) -> None:
    with pytest.raises(LoadError, match="not a directory"):
        publish(tmp_path / "missing", model)
    with pytest.raises(LoadError, match="no files"):
        publish(lambda directory: None, model)
    assert not model.exists()


def test_a_writer_that_fails_leaves_nothing_behind(model: Path) -> None:
    def write(directory: Path) -> None:
        (directory / "model.onnx").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish(write, model)
    assert not model.exists()


def test_drafts_of_killed_publishers_are_removed_by_the_next_one(source: Path, model: Path) -> None:
    program = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from headrace.versions.manifest import publish
        publish(lambda draft: os.kill(os.getpid(), signal.SIGKILL), Path(sys.argv[1]))
        """
    )
    subprocess.run([sys.executable, "-c", program, str(model)], check=False)
    (left,) = model.iterdir()
    os.utime(left, (0, 0))
    publish(source, model)
    assert [path.name for path in model.iterdir()] == ["1"]


def test_a_full_disk_leaves_nothing_behind(source: Path, model: Path) -> None:
    # A limit on the size of files is how a process meets ENOSPC's sibling, EFBIG, without a disk of its own.
    program = textwrap.dedent(
        """
        import resource, signal, sys
        from pathlib import Path
        from headrace.versions.manifest import publish
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            publish(Path(sys.argv[1]), Path(sys.argv[2]))
        except OSError as error:
            print("refused:", error)
        """
    )
    command = [sys.executable, "-c", program, str(source), str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("refused:")
    assert "File too large" in done.stdout
    assert not model.exists()


def test_while_it_is_written_no_version_is_to_be_seen(source: Path, model: Path) -> None:
    seen = []

    def write(directory: Path) -> None:
        (directory / "model.onnx").write_bytes(b"x")
        seen.append(version_directories(model))

    publish(write, model)
    assert seen == [{}]


# ---- Names ----


def test_versions_are_read_as_tensorflow_serving_reads_them(tmp_path: Path) -> None:
    for name in ("7", "007", "0", "12", ".13", "v1", "1.5", "-1", "９", "99999999999999999999", "1_0"):
        (tmp_path / name).mkdir()
    (tmp_path / "15").write_text("a file")
    assert {number: path.name for number, path in version_directories(tmp_path).items()} == {
        0: "0",
        7: "7",
        12: "12",
    }
    assert version_number(str(2**63 - 1)) == 2**63 - 1


def test_versions_may_be_links(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "3")
    os.symlink(tmp_path / "nowhere", tmp_path / "4")
    assert list(version_directories(tmp_path)) == [3]
