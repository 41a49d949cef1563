"""The limits that ``headrace key new`` puts into the file of keys."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.access.caller import CallerLimits
from headrace.access.keys import KeyEntry, read_keys
from headrace.cli.main import main


def made(file: Path, *options: str) -> KeyEntry:
    """What the file says of a key that was made with these options."""
    assert main(["key", "new", "jobs", "--file", str(file), *options]) == 0
    return read_keys(file).key[-1]


def test_a_key_has_the_limits_that_were_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--requests-per-second 100 --rows-per-second 5e4 --burst-seconds 2 --concurrent-requests 16"
    entry = made(tmp_path / "keys.toml", *options.split(), "--priorities", "3,1,3", "--json")
    assert CallerLimits.of(entry) == CallerLimits(100.0, 50_000.0, 2.0, 16)
    assert entry.priorities == (1, 3)
    said = json.loads(capsys.readouterr().out)
    assert {**CallerLimits.of(entry)._asdict(), "priorities": [1, 3]}.items() <= said.items()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "the key permits predict, but names no models; create one with --models NAMES"),
        (
            ("--verbs", "archive-read,predict", "--models", "*"),
            "the key permits archive-read, but names no spaces; create one with --spaces NAMES",
        ),
        (("--models", "*"), ""),
        (("--verbs", "metrics"), ""),
        (("--verbs", "archive-write", "--spaces", "a"), ""),
    ],
)
def test_a_key_that_is_good_for_nothing_is_told(
    options: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "keys.toml", *options)
    told = capsys.readouterr().err
    assert said in told
    assert bool(said) == bool(told)


def test_a_key_has_no_limits_unless_they_were_asked_for(tmp_path: Path) -> None:
    entry = made(tmp_path / "keys.toml")
    assert entry.caller().limits is None
    assert entry.priorities == (2, 3)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--requests-per-second", "0"), "--requests-per-second: expected a number, more than 0"),
        (("--rows-per-second", "nan"), "--rows-per-second: expected a number, more than 0"),
        (("--rows-per-second", "1e10"), "--rows-per-second: expected a number, more than 0"),
        (("--burst-seconds", "-1"), "--burst-seconds: expected seconds"),
        (("--concurrent-requests", "-1"), "--concurrent-requests: expected a whole number"),
        (("--priorities", "4"), "--priorities: expected some of 1, 2, 3, got 4"),
        (("--priorities", "high"), "--priorities: expected some of 1, 2, 3, got high"),
    ],
)
def test_limits_that_cannot_be_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, str], told: str
) -> None:
    assert main(["key", "new", "jobs", "--file", str(tmp_path / "keys.toml"), *options]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "keys.toml").exists()


def test_keys_that_are_made_at_once_are_all_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"

    def make(number: int) -> int:
        return main(["key", "new", f"n{number}", "--models", "*", "--file", str(file)])

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(make, range(24))) == [0] * 24
    assert sorted(entry.name for entry in read_keys(file).key) == sorted(f"n{number}" for number in range(24))
