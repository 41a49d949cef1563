"""Somebody writes text as it happens: rows are learnt at once, and metrics answer before the first one."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

HEADRACE = [sys.executable, "-m", "headrace"]

HEADERS = {"csv": b"label,user,site\n", "vw": b""}
ROWS = {"csv": b"1,%d,a\n0,8,b\n", "vw": b"1 |user %d |site a\n0 |user 8 |site b\n"}


@contextlib.contextmanager
def headrace(*words: object, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([*HEADRACE, *map(str, words)], **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("given", [False, True], ids=["guessed", "given"])
def test_rows_are_encoded_while_the_source_goes_on(name: str, given: bool, tmp_path: Path) -> None:
    schema = tmp_path / "schema.toml"
    roles = {"label": 'role = "label"', "user": 'role = "categorical"\ntext = true'}
    schema.write_text("".join(f'[[fields]]\nname = "{field}"\n{role}\n' for field, role in roles.items()))
    options = ("--schema", schema) if given else ()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with headrace("stream", "encode", "--format", name, "-", *options, **pipes) as encode:
        assert encode.stdin is not None
        assert encode.stdout is not None
        encode.stdin.write(HEADERS[name] + ROWS[name] % 7)
        encode.stdin.flush()
        # Each of these reads ends the test by its time limit if the encoder waits for more.
        stream = pa.ipc.open_stream(encode.stdout)
        assert stream.read_next_batch().num_rows == 2
        for user in (8, 9):
            encode.stdin.write(ROWS[name] % user)
            encode.stdin.flush()
            assert stream.read_next_batch().num_rows == 2
        encode.stdin.close()
        assert list(stream) == []
        assert encode.wait() == 0
        assert encode.stderr is not None
        assert (b"guessed from 2 rows" in encode.stderr.read()) == (not given)


def scraped(address: str) -> dict[str, float]:
    with urllib.request.urlopen(address, timeout=30) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", text, re.MULTILINE)}


def learnt(address: str, rows: int) -> bool:
    return scraped(address)["headrace_training_rows_total"] >= rows


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.rest
def test_metrics_answer_at_once_and_rows_flow_while_they_trickle() -> None:
    """200 rows a second: they fill no batch, window or block of a file in any time that one waits."""
    with contextlib.ExitStack() as stack:
        encode = stack.enter_context(
            headrace(
                "stream", "encode", "--format", "csv", "-", stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )
        train = stack.enter_context(
            headrace(
                *("train", "--model", "lr", "--batch-rows", 1_000_000, "--metrics-port", 0),
                stdin=encode.stdout,
                stderr=subprocess.PIPE,
            )
        )
        assert train.stderr is not None
        assert encode.stdin is not None
        line = next(line for line in train.stderr if b"metrics at " in line)
        address = line.split()[-1].decode()
        assert scraped(address)["headrace_training_rows_total"] == 0

        ended = threading.Event()
        written = 0

        def write() -> None:
            nonlocal written
            assert encode.stdin is not None
            encode.stdin.write(HEADERS["csv"])
            while not ended.wait(0.005):
                encode.stdin.write(ROWS["csv"] % (written % 50))
                encode.stdin.flush()
                written += 2

        producer = threading.Thread(target=write)
        producer.start()
        try:
            wait_for(partial(learnt, address, 1), 120)  # The first block compiles what learns it.
            for _ in range(3):
                wait_for(partial(learnt, address, written), 60)
        finally:
            ended.set()
            producer.join()
