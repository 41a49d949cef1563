"""Processes that compile the same kernels follow one another."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from headrace.runtimes import kernel_compiling
from headrace.runtimes.kernel_compiling import one_at_a_time


def test_the_second_begins_when_the_first_has_ended(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with one_at_a_time(tmp_path):
            order.append("second")

    with one_at_a_time(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join(120)
    assert order == ["first", "second"]


def test_nobody_waits_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_compiling, "_WAIT_SECONDS", 0.1)
    with (tmp_path / "compiling.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with one_at_a_time(tmp_path):
            pass


@pytest.mark.parametrize("kept", [None, Path("/nowhere")])
def test_without_a_place_for_the_lock_it_goes_on(kept: Path | None) -> None:
    with one_at_a_time(kept):
        pass


def test_what_fails_in_it_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="of the body"), one_at_a_time(tmp_path):
        raise OSError("of the body")
