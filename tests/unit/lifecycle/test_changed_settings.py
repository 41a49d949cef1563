"""What the Source says of settings that change while versions are loaded."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.unit.lifecycle.watch import Watch, put


def test_a_change_that_loaded_versions_ignore_is_logged_with_advice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "ctr" / "1")
    watch = Watch(tmp_path)
    watch.start()
    with caplog.at_level(logging.INFO):
        (tmp_path / "ctr" / "headrace.toml").write_text(
            "[versions]\ncount = 2\n[batching]\nmax_batch_rows = 8\n"
        )
        watch.look(5)
    assert caplog.text.count("ctr: headrace.toml: [batching] has changed; loaded versions keep") == 1
    assert "[versions]" not in caplog.text  # followed at once
    assert "publish a new version, or restart the server" in caplog.text
