"""`headrace archive status`: what is known is shown, whatever does not answer, and in bounded time."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.main import main


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address where somebody listens, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def status(place: Path, settings: str, *options: str) -> int:
    (place / "archive.toml").write_text(f"{settings}[spaces.items]\ndimension = 3\n")
    return main(["archive", "status", "--archive", str(place / "archive.toml"), *options])


@pytest.fixture
def queue_nowhere(nowhere: str) -> str:
    return f'[queue]\nkind = "kafka"\nservers = ["{nowhere}"]\ntimeout_seconds = 1.0\n'


@pytest.fixture
def store_nowhere(nowhere: str) -> str:
    return f'[store]\nkind = "redis"\naddress = "{nowhere}"\ntimeout_seconds = 1.0\n'


def test_a_queue_that_is_silent_hides_nothing_else(
    tmp_path: Path, queue_nowhere: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(tmp_path, queue_nowhere) == 1
    out, err = capsys.readouterr()
    assert out.startswith("space ")
    assert "items" in out
    assert "queue: not known; dead letters: 0" in out
    (line,) = err.splitlines()
    assert line.startswith("headrace: queue: Kafka: ")


def test_a_store_that_is_silent_hides_nothing_else(
    tmp_path: Path, store_nowhere: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(tmp_path, store_nowhere) == 1
    out, err = capsys.readouterr()
    assert "spaces: items; their state is not known" in out
    assert "queue: 0 keys wait; dead letters: not known" in out
    (line,) = err.splitlines()
    assert line.startswith("headrace: store: ")


def test_programs_learn_what_is_silent(
    tmp_path: Path, queue_nowhere: str, store_nowhere: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(tmp_path, queue_nowhere + store_nowhere, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert [one["part"] for one in told["unanswered"]] == ["queue", "store"]
    assert told["queue_messages"] is told["queue_held"] is told["dead_letters"] is None
    assert [(one["space"], one["hit_rate"]) for one in told["spaces"]] == [("items", None)]


def test_a_status_with_all_parts_available_exits_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(tmp_path, "") == 0
    out, err = capsys.readouterr()
    assert (out.splitlines()[-1], err) == ("queue: 0 keys wait; dead letters: 0", "")


@pytest.mark.parametrize("words", [("versions",), ("default", "items"), ("lookup", "items", "a")])
def test_verbs_do_not_report_absence_if_the_store_does_not_answer(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = '[store]\nkind = "redis"\naddress = "127.0.0.1:1"\n[spaces.items]\ndimension = 3\n'
    (tmp_path / "archive.toml").write_text(settings)
    assert main(["archive", *words, "--archive", str(tmp_path / "archive.toml")]) == 1
    out, err = capsys.readouterr()
    assert "no version yet" not in out
    assert err.splitlines()[-1].startswith("headrace: ")
