"""Concurrent misses of one key, in two servers that share an archive in a file, are one embedding."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.archive_processes import Encoder, check_concurrent_misses


@pytest.mark.rest
@pytest.mark.exact
def test_a_thousand_misses_of_one_key_in_two_servers_are_one_embedding(
    tmp_path: Path, encoder: Encoder
) -> None:
    (tmp_path / "archive.toml").write_text(
        f"""
        cache = {{ absent_seconds = 0.05, poll_seconds = 0.1 }}
        [spaces.texts]
        embedder = "counted"
        [embedders.counted]
        kind = "model"
        model = "encoder"
        url = "{encoder.url}"
        """
    )
    check_concurrent_misses(tmp_path, encoder, "missed by all of LMDB")
