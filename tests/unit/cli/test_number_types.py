"""Numbers that nobody can mean are refused by every verb, in a line that names the option."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from headrace.cli.main import main

HUGE = "9" * 400
GENERATE = (
    "--rows",
    "--seed",
    "--from-row",
    "--candidates",
    "--buckets",
    "--batch-rows",
    "--drift",
    "--pace",
)
PACE = ("--pace",)
TRAIN = ("--factors", "--batch-rows", "--threads", "--seed")


@pytest.mark.parametrize("option", GENERATE + PACE)
@pytest.mark.parametrize("number", ["-1", str(2**63), HUGE])
def test_generate_refuses_numbers_out_of_bounds(
    tmp_path: Path, option: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stream", "generate", f"{option}={number}", "--out", str(tmp_path / "x.arrows")]) == 2
    assert f"headrace: {option}: expected " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", TRAIN)
@pytest.mark.parametrize("number", ["-1", str(2**63), HUGE])
def test_train_refuses_numbers_out_of_bounds(
    option: str, number: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    assert main(["train", f"{option}={number}"]) == 2
    assert f"headrace: {option}: expected a number" in capsys.readouterr().err


WHOLE = (
    *("--rows", "--every-rows", "--checkpoint-every-rows", "--keep", "--window-rows", "--pending-mib"),
    *("--metrics-port", *TRAIN),
)
SECONDS = ("--every-seconds", "--checkpoint-every-seconds", "--label-delay-seconds", "--linger-seconds")
COUNTS = ("--rows", "--calls", "--threads", "--batch-rows")
NO_ZERO = ("--rows", "--window-rows", "--pending-mib", "--learning-rate")


def refused(words: list[str], option: str, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, f"{option}={number}"]) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(rf"headrace: {option}: expected .*, got .*\n", said), said
    assert len(said) < 200


@pytest.mark.parametrize("option", [*WHOLE, *SECONDS, "--learning-rate"])
@pytest.mark.parametrize("number", ["-1", "nan", "inf", "1e999", str(2**63), HUGE, "9" * 5000])
def test_training_refuses_in_one_line(option: str, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(["train", "/dev/null"], option, number, capsys)


@pytest.mark.parametrize("option", NO_ZERO)
def test_training_refuses_zero(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(["train", "/dev/null"], option, "0", capsys)


@pytest.mark.parametrize("number", ["-1", "64,", "", "nan", "0", str(2**63), HUGE, "9" * 5000])
def test_widths_are_refused_in_one_line(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(["train", "/dev/null"], "--hidden", number, capsys)


@pytest.mark.parametrize("option", COUNTS)
@pytest.mark.parametrize("number", ["0", "-1", "nan", "inf", str(2**63), HUGE, "9" * 5000])
def test_profiling_refuses_in_one_line(
    tmp_path: Path, option: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(["profile", str(tmp_path)], option, number, capsys)


@pytest.mark.parametrize("number", ["nan", "inf", "1e300", "-1", HUGE])
def test_serve_refuses_intervals_out_of_bounds(
    tmp_path: Path, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(tmp_path), f"--poll-seconds={number}"]) == 2
    assert "headrace: --poll-seconds: expected seconds" in capsys.readouterr().err
