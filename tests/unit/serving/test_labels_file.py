"""Labels from a file of the version."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from headrace.base.errors import NotLoadable
from headrace.config import ModelConfig, SignatureConfig
from headrace.serving.labels_file import with_labels

CONFIG = ModelConfig(signature=SignatureConfig(labels_file="labels.txt", top=1))


@pytest.mark.parametrize("text", ["cat\ndog\nKühe\n", "cat\r\ndog\r\nKühe", "\ufeffcat \ndog\t\r\nKühe  \n"])
def test_each_line_is_a_label(tmp_path: Path, text: str) -> None:
    (tmp_path / "labels.txt").write_bytes(text.encode())
    assert with_labels(CONFIG, tmp_path, None).signature.labels == ("cat", "dog", "Kühe")
    checksums = {"labels.txt": hashlib.sha256(text.encode()).hexdigest()}
    assert with_labels(CONFIG, tmp_path, checksums).signature.top == 1


def test_blanks_within_and_before_a_label_are_kept(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_bytes(b" a b \n\nc")
    assert with_labels(CONFIG, tmp_path, None).signature.labels == (" a b", "", "c")


def test_settings_without_a_file_stay_as_they_are(tmp_path: Path) -> None:
    config = ModelConfig(signature=SignatureConfig(labels=("a",)))
    assert with_labels(config, tmp_path, None) is config


def test_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "labels.txt"
    with pytest.raises(NotLoadable, match=r"signature.labels_file: labels.txt cannot be read: No such file"):
        with_labels(CONFIG, tmp_path, None)
    file.write_bytes(b"cat\xe9\n")
    with pytest.raises(NotLoadable, match=r"labels.txt is not UTF-8: .* at byte 3"):
        with_labels(CONFIG, tmp_path, None)
    file.write_bytes(b"cat\n")
    for checksums in ({}, {"labels.txt": "0" * 64}):
        with pytest.raises(NotLoadable, match=r"labels.txt does not match the version's manifest"):
            with_labels(CONFIG, tmp_path, checksums)
