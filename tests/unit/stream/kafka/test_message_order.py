"""The recorded order: only whole lines count, and each topic has its own files."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from headrace.stream.kafka.message_order import OrderLog


def test_a_torn_last_line_does_not_count_and_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "order-clicks-0.log"
    path.write_text("picked 1233 11\npicked 1234 1")
    log = OrderLog(tmp_path, "clicks", 0)
    assert log.known.picked == {1233: 11}
    log.picked(1234, 12)
    log.close()
    assert path.read_text() == "picked 1233 11\npicked 1234 12\n"


def test_a_line_that_fits_only_in_part_is_reported_and_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "order-clicks-0.log"
    log = OrderLog(tmp_path, "clicks", 0)
    log.picked(1233, 11)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 13, before[1]))
    try:
        log.picked(1234, 12)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert OrderLog(tmp_path, "clicks", 0).known.picked == {1233: 11}
    assert "cannot be written" in caplog.text
    log.picked(1235, 13)
    log.close()
    assert path.read_text() == "picked 1233 11\npicked 1235 13\n"


def test_files_of_a_topic_with_a_longer_name_are_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "order-a-1-5.log"
    other.write_text("picked 5 1\n")
    log = OrderLog(tmp_path, "a", 0)
    assert log.known.picked == {}
    for number in (10, 20, 30):
        log.saved(number)
    assert other.exists()
