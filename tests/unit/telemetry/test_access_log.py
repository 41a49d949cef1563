"""What a line of the access log says, and of which calls there is one."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import InvalidRequest
from headrace.base.status_codes import OK, Codes, codes
from headrace.base.trace_context import noted
from headrace.batching.request import Origin, Timings
from headrace.telemetry import access_log
from headrace.telemetry.access_log import LineFile, is_always_told, line
from headrace.telemetry.outcomes import Channel, Outcome


def ended(channel: Channel = Channel.REST, code: Codes = OK, seconds: float = 0.25) -> Outcome:
    outcome = Outcome(channel, ("10.1.2.3", 4567), "POST", "/v1/models/m:predict")
    outcome.request_id = "mine"
    outcome.end(code, None if code is OK else InvalidRequest("your secret 42 is no number"))
    outcome.arrived, outcome.ended = 1000.0, 1000.0 + seconds
    return outcome


def test_a_whole_line() -> None:
    outcome = ended()
    outcome.trace = noted([(b"traceparent", f"00-{'1' * 32}-{'2' * 16}-00".encode())])
    outcome.asked = Origin("m", 3)
    outcome.source = Origin("m", 3, is_cached=False)
    outcome.handed, outcome.rows = 1000.05, 2
    outcome.timings = Timings(1000.1, 9, 4)
    outcome.timings.started, outcome.timings.finished = 1000.11, 1000.2
    outcome.weighed(20, 30, 200)
    outcome.key_of = "ranking"
    written = line(outcome, 1_700_000_000.0)
    assert written.endswith(b"}\n")
    assert json.loads(written) == {
        "time": "2023-11-14T22:30:00.000Z",
        "request_id": "mine",
        "trace_id": "1" * 32,
        "span_id": "2" * 16,
        "protocol": "REST",
        "client": "10.1.2.3:4567",
        "caller": "ranking",
        "method": "POST",
        "path": "/v1/models/m:predict",
        "status": 200,
        "code": "OK",
        "model": "m",
        "version": 3,
        "answered_by": "model",
        "rows": 2,
        "batch_rows": 9,
        "batch_requests": 4,
        "seconds": 0.25,
        "queue_seconds": 0.05,
        "compute_seconds": 0.09,
        "request_bytes": 20,
        "response_bytes": 30,
    }


def test_the_line_of_a_refusal_has_its_class_and_no_data_of_the_request() -> None:
    written = line(ended(Channel.GRPC, codes(InvalidRequest("x"))), 0.0)
    assert json.loads(written) == {
        "time": "1970-01-01T00:16:40.000Z",
        "request_id": "mine",
        "protocol": "gRPC",
        "client": "10.1.2.3:4567",
        "method": "POST",
        "path": "/v1/models/m:predict",
        "code": "INVALID_ARGUMENT",
        "error": "InvalidRequest",
        "seconds": 0.25,
    }


@pytest.mark.parametrize("path", ['/a"b', "/a\nb{}", "/\x00\x1b[31m", "/\udcff", "/" + "x" * 5000, "/ä"])
def test_any_path_makes_one_short_line_of_json(path: str) -> None:
    outcome = ended()
    outcome.path = path
    written = line(outcome, 0.0)
    assert written.count(b"\n") == 1
    assert len(written) < 700
    assert json.loads(written)["path"] == path[:256].encode("utf-8", "replace").decode()


@pytest.mark.parametrize(
    ("code", "status", "seconds", "is_told"),
    [
        (OK, 0, 0.5, False),
        (OK, 200, 0.999, False),
        (OK, 0, 1.0, True),
        (OK, 503, 0.0, True),
        (codes(InvalidRequest("x")), 0, 0.0, True),
    ],
)
def test_errors_and_slow_calls_are_always_logged(
    code: Codes, status: int, seconds: float, is_told: bool
) -> None:
    outcome = ended(code=code, seconds=seconds)
    outcome.status = status
    assert is_always_told(outcome, 1.0) == is_told


# The file of the access log: pipes that are full, and lines that are written in part.

LINE = b"x" * 19_999 + b"\n"
PIPE_BYTES = 65_536
FIRST_ABOVE_SELECT = 1024


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LineFile]:
    """A named pipe that holds three lines and a part of the fourth."""
    monkeypatch.setattr(access_log, "_PATIENCE_SECONDS", 0.0)
    os.mkfifo(tmp_path / "pipe")
    file = LineFile(tmp_path / "pipe")
    fcntl.fcntl(file._descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    with pytest.raises(BlockingIOError):
        file.write(LINE * 5)
    yield file
    file.close()


def test_whole_lines_are_counted(full: LineFile) -> None:
    assert full.lines == 3
    read = os.read(full._descriptor, PIPE_BYTES)
    full.write(LINE)
    assert full.lines == 4
    read += os.read(full._descriptor, PIPE_BYTES)
    *_, torn, last = read.splitlines(keepends=True)
    assert len(torn) < len(last)
    assert last == LINE


def test_a_full_pipe_may_have_any_descriptor(full: LineFile) -> None:
    before = full._descriptor
    full._descriptor = fcntl.fcntl(before, fcntl.F_DUPFD_CLOEXEC, FIRST_ABOVE_SELECT)
    os.close(before)
    with pytest.raises(BlockingIOError):
        full.write(LINE)
