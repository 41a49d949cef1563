"""``headrace stream``: files in, streams out, and errors that say the way out."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.cli.main import main
from headrace.stream.schema import parse_schema

COMMAND = [sys.executable, "-m", "headrace", "stream"]


def run(*words: str | Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [*COMMAND, *map(str, words)]
    return subprocess.run(command, input=given, capture_output=True, check=False)


@pytest.mark.parametrize("tool", ["", "generate", "encode", "inspect"])
def test_help_tells_what_there_is_with_an_example(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["stream", *tool.split(), "--help"])
    assert left.value.code == 0
    assert f"headrace stream {tool}" in capsys.readouterr().out.partition("examples:")[2]


@pytest.mark.rest
def test_generated_streams_can_be_inspected() -> None:
    generated = run("generate", "--rows", "5000", "--shape", "small", "--seed", "3")
    assert (generated.returncode, generated.stderr) == (0, b"")
    inspected = run("inspect", "--json", given=generated.stdout)
    assert (inspected.returncode, inspected.stderr) == (0, b"")
    said = json.loads(inspected.stdout)
    assert (said["rows"], said["problem"]) == (5000, None)
    assert said["schema"]["generator"]["seed"] == 3


def test_a_file_takes_its_name_when_it_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "clicks.arrows"
    assert main(["stream", "generate", "--rows", "100", "--shape", "small", "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["stream", "inspect", str(out)]) == 0
    assert capsys.readouterr().out.startswith("100 rows in 1 batch, ")
    before = out.read_bytes()
    bad = tmp_path / "bad.csv"
    bad.write_text("label,a\n" + "1,2\n" * 60_000 + "7,2\n")
    assert main(["stream", "encode", "--format", "csv", str(bad), "--out", str(out)]) == 1
    assert "row 60000, field 'label': expected 0 or 1" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.csv", "clicks.arrows"]


def test_an_error_in_a_row_leaves_a_pipe_cut_not_ended() -> None:
    """Whoever reads the pipe must not take the rows before the error for all there are."""
    encoded = run("encode", "--format", "csv", "-", given=b"label,a\n" + b"1,2\n" * 60_000 + b"7,2\n")
    assert encoded.returncode == 1
    inspected = run("inspect", "--json", given=encoded.stdout)
    assert inspected.returncode == 1
    assert b"cut" in inspected.stderr
    assert json.loads(inspected.stdout)["rows"] == 57_344


def test_columns_ignored_by_a_guess_are_reported_with_the_reason(tmp_path: Path) -> None:
    lines = [f"{row % 2},{row}.5,{row % 7},text {row},{row % 3},{row}" for row in range(1000)]
    lines[17] = "1,n/a,oops,text 17,x,17"
    file = tmp_path / "clicks.csv"
    file.write_text("\n".join(["clicked,price,hour,note,page,left", *lines]))
    encoded = run("encode", "--format", "csv", file, "--out", tmp_path / "rows", "--ignore", "left")
    assert encoded.returncode == 0
    start, most = "headrace: the column", "its values stay text: 999 of 1,000 values are numbers"
    missing, schema = "is not (leave missing cells empty)", "to change it, set role ="
    written = "in a schema (--print-schema writes one)"
    category, dense = '"categorical", text = true', '"dense"'
    assert encoded.stderr.decode().splitlines() == [
        f"{start} 'price' is ignored: {most}, but 'n/a' {missing}; {schema} {category} {written}",
        f"{start} 'hour' becomes categorical: {most}, but 'oops' {missing}; {schema} {dense} {written}",
        f"{start} 'note' is ignored: its values hardly ever repeat; {schema} {category} {written}",
        f"{start} 'page' becomes categorical: {most}, but 'x' {missing}; {schema} {dense} {written}",
    ]


@pytest.mark.parametrize(
    ("header", "said"), [("user;clicked", "';'"), ("user\tclicked", "tab"), ("user|y", "'|'")]
)
@pytest.mark.parametrize("label", [(), ("--label", "clicked")])
def test_columns_that_are_separated_otherwise_are_told(
    header: str, said: str, label: tuple[str, ...]
) -> None:
    refused = run("encode", "--format", "csv", "-", *label, given=f"{header}\na1\n".encode())
    assert refused.returncode == 2
    assert refused.stderr.decode().endswith(f"there are {header}; for CSV, set --delimiter {said}\n")


def test_many_doubts_are_few_lines(tmp_path: Path) -> None:
    names = [f"t{column}" for column in range(30)]
    lines = [",".join(["1", *(f"{name} {row}" for name in names)]) for row in range(200)]
    file = tmp_path / "clicks.csv"
    file.write_text("\n".join([",".join(["label", *names]), *lines]))
    said = run("encode", "--format", "csv", file, "--print-schema").stderr.decode().splitlines()
    assert len(said) == 21
    assert said[-1] == "headrace: 10 more columns are doubtful or ignored"


def test_a_printed_schema_is_one_that_can_be_given(tmp_path: Path) -> None:
    rows = b"clicked,site\n1,a\n0,b\n"
    printed = run("encode", "--format", "csv", "-", "--label", "clicked", "--print-schema", given=rows)
    (tmp_path / "schema.toml").write_bytes(printed.stdout)
    encoded = run("encode", "--format", "csv", "-", "--schema", tmp_path / "schema.toml", given=rows)
    assert (encoded.returncode, encoded.stderr) == (0, b"")
    table = pa.ipc.open_stream(encoded.stdout).read_all()
    assert table.to_pydict() == {"clicked": [1, 0], "site": ["a", "b"]}


WRONG = {
    "a setting of the generator": (("generate", "--rows", "-1"), "rows"),
    "a pace that is none": (("generate", "--pace", "0"), "--pace"),
    "a file that cannot be made": (("generate", "--rows", "1", "--out", "no/such/place"), "no/such/place"),
    "a file that is missing": (("inspect", "no-such-file"), "no-such-file"),
    "a schema that is missing": (("inspect", "--schema", "no-such-file"), "no-such-file"),
    "a file to encode that is missing": (("encode", "--format", "vw", "no-such-file"), "no-such-file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_the_argument(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, said = WRONG[case]
    assert main(["stream", *words]) == 2
    assert said in capsys.readouterr().err


def test_an_empty_input_is_not_a_stream() -> None:
    ran = run("inspect")
    assert ran.returncode == 1
    assert b"empty" in ran.stderr
    assert b"Traceback" not in ran.stderr


def test_a_stream_is_not_written_to_a_terminal() -> None:
    ours, theirs = pty.openpty()
    try:
        ran = subprocess.run(
            [*COMMAND, "generate", "--rows", "1"],
            stdout=theirs,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert ran.returncode == 2
    assert b"terminal" in ran.stderr
    assert b"--out" in ran.stderr


def test_progress_is_drawn_on_a_terminal_and_cleared(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [*COMMAND, "generate", "--rows", "3000", "--pace", "6000", "--shape", "small"]
    try:
        ran = subprocess.run([*command, "--out", tmp_path / "rows"], stderr=theirs, check=False)
        drawn = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert ran.returncode == 0
    assert "rows/s" in drawn
    assert "%" in drawn
    assert drawn.endswith("\r")


def test_a_reader_that_has_had_enough_ends_it_quietly() -> None:
    with subprocess.Popen(
        [*COMMAND, "generate", "--rows", "100000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as source:
        assert source.stdout is not None
        assert source.stderr is not None
        source.stdout.read(100_000)
        source.stdout.close()
        assert source.stderr.read() == b""
        assert source.wait(timeout=120) == 141


def test_an_interrupt_is_quiet_also_where_nobody_reads_the_pipe_any_more() -> None:
    with subprocess.Popen(
        [*COMMAND, "generate", "--rows", "100000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as source:
        assert source.stdout is not None
        assert source.stderr is not None
        source.stdout.read(1000)
        source.send_signal(signal.SIGINT)
        assert source.stderr.read() == b""
        assert source.wait(timeout=120) == 130


def test_a_pace_is_kept_from_the_first_row_on() -> None:
    started = time.monotonic()
    ran = run("generate", "--rows", "500", "--pace", "1000", "--shape", "small")
    assert ran.returncode == 0
    assert time.monotonic() - started >= 0.5
    assert pa.ipc.open_stream(ran.stdout).read_all().num_rows == 500


def test_repeated_options_that_hold_names_add_up() -> None:
    rows = b"1,7,a,x,5\n0,8,b,y,6\n"
    words = "--columns label,user --columns site,id,n --context user --context site --ignore id --ignore n"
    printed = run("encode", "--format", "csv", "-", *words.split(), "--print-schema", given=rows)
    schema = parse_schema(printed.stdout)
    assert {field.name for field in schema.fields if field.context} == {"user", "site"}
    assert {field.name for field in schema.of("ignored")} == {"id", "n"}
