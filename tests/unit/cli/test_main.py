"""What all verbs have in common: how they end where nobody reads what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import example

COMMAND = [sys.executable, "-m", "headrace"]
CSV = "label,user\n" + "1,7\n0,8\n" * 50_000

VERBS = {
    "generate": ("stream", "generate", "--rows", "100", "--shape", "small"),
    "encode": ("stream", "encode", "--format", "csv", "{rows}"),
    "encode's schema": ("stream", "encode", "--format", "csv", "{rows}", "--print-schema"),
    "inspect": ("stream", "inspect", "{stream}"),
    "example": ("example", "{models}/other"),
    "versions": ("versions", "{models}"),
    "profile": ("profile", "{models}/half_plus_two"),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Something of each kind that a verb wants."""
    directory = tmp_path_factory.mktemp("places")
    made = {name: directory / name for name in ("rows", "stream", "models")}
    made["rows"].write_text(CSV)
    with made["stream"].open("wb") as out:
        subprocess.run([*COMMAND, "stream", "generate", "--rows", "9"], stdout=out, check=True)
    example.write(made["models"])
    return made


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_whose_reader_has_gone_ends_quietly_and_says_so(verb: str, places: dict[str, Path]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = [word.format_map(places) for word in VERBS[verb]]
    done = subprocess.run([*COMMAND, *words], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("verb", ["inspect", "versions"])
def test_unwritable_standard_output_is_a_one_line_error(verb: str, places: dict[str, Path]) -> None:
    words = [word.format_map(places) for word in VERBS[verb]]
    with open("/dev/full", "wb") as full:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        done = subprocess.run(
            [*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, check=False, env=environment
        )
    said = b"headrace: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_without_standard_output_a_verb_does_its_work(places: dict[str, Path]) -> None:
    command = ["sh", "-c", '"$@" >&-', "sh", *COMMAND, "versions", str(places["models"])]
    done = subprocess.run(command, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


WITHOUT_ANY = """
import sys
from headrace.cli.main import main
try:
    main(["--version"])
except SystemExit:
    with open(sys.argv[1], "w") as opened:
        opened.write(str(opened.fileno()))
"""


def test_descriptors_closed_at_the_start_are_not_reused_as_standard_streams(tmp_path: Path) -> None:
    """A server's socket had the number of standard output: what is printed went there, and libuv aborted."""
    said = tmp_path / "said"
    command = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", sys.executable, "-c", WITHOUT_ANY, str(said)]
    subprocess.run(command, check=True)
    assert int(said.read_text()) > 2


def test_an_encoder_whose_reader_goes_while_more_is_to_come_ends_quietly() -> None:
    """Arrow's reading thread was in standard input when Python ended, which aborted the process."""
    endless = "print('label,user')\nwhile True: print('1,7\\n0,8', flush=True)"
    with (
        subprocess.Popen(
            [sys.executable, "-c", endless], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as source,
        subprocess.Popen(
            [*COMMAND, "stream", "encode", "--format", "csv", "-"],
            stdin=source.stdout,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as encode,
    ):
        assert source.stdout is not None
        assert encode.stdout is not None
        assert encode.stderr is not None
        source.stdout.close()
        assert len(encode.stdout.read(1000)) == 1000
        encode.stdout.close()
        assert encode.wait() == 141
        assert b"error" not in encode.stderr.read().lower()
        source.wait(120)
