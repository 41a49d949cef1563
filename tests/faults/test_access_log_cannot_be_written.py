"""An access log on a full disk, in a pipe that nobody reads, or moved away: no call waits or fails for it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import example
from headrace.base.errors import ConfigError
from headrace.base.status_codes import OK
from headrace.config import AccessLog as Settings
from headrace.telemetry.access_log import AccessLog, LineFile
from headrace.telemetry.outcomes import Channel, Outcome, Outcomes
from tests.outcome_doors import Ask, world
from tests.running_server import RunningServer
from tests.waiting import until

BODY = {"instances": [1.0]}
PREDICT = "/v1/models/half_plus_two:predict"


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(one) for one in file.read_text("utf-8").splitlines()]


def ended() -> Outcome:
    outcome = Outcome(Channel.REST, None, "POST", "/x")
    outcome.end(OK, None)
    return outcome


def test_a_server_goes_on_in_a_new_file_when_the_old_one_is_moved_away(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    log, moved, again = (tmp_path / name for name in ("access.log", "access.log.1", "access.log.2"))
    with RunningServer(tmp_path / "models", "--access-log-path", str(log)) as server:
        server.request("POST", PREDICT, json.dumps(BODY).encode(), {"x-request-id": "first"})
        until(lambda: log.exists() and "first" in log.read_text())
        log.rename(moved)
        until(log.exists)  # by itself
        server.request("POST", PREDICT, json.dumps(BODY).encode(), {"x-request-id": "second"})
        until(lambda: "second" in log.read_text())
        log.rename(again)
        server.process.send_signal(signal.SIGHUP)
        until(log.exists)
        server.request("POST", PREDICT, b'{"instances": ["sesame"]}', {"authorization": "Bearer sesame"})
        server.request("POST", PREDICT, json.dumps(BODY).encode(), {"x-request-id": "last"})
        assert server.stop() == 0
    assert lines(log)[-1]["request_id"] == "last", "what waits is written when the server stops"
    assert lines(log)[-2]["error"] == "InvalidRequest"
    told = [one for file in (moved, again, log) for one in lines(file)]
    assert {"first", "second", "last"} <= {one["request_id"] for one in told}
    assert "sesame" not in log.read_text(), "no bodies, and no tokens"
    assert log.stat().st_mode & 0o777 & ~0o640 == 0


def test_lines_go_on_to_the_open_file_while_the_path_cannot_be_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs, moved = tmp_path / "logs", tmp_path / "moved"
    logs.mkdir()
    access = AccessLog(Settings(path=logs / "access.log"), Outcomes())

    def log_one(count: int) -> None:
        access.reopen()
        access._observe(ended())
        until(lambda: access.written + access.dropped == count)

    with caplog.at_level(logging.INFO):
        logs.rename(moved)
        for count in (1, 2, 3):
            log_one(count)
        assert access.dropped == 0
        logs.mkdir()
        log_one(4)
        assert access.close(30)
    assert len(lines(moved / "access.log")) == 3
    assert len(lines(logs / "access.log")) == 1
    said = [record.message for record in caplog.records if "access log" in record.message]
    assert said == [
        "cannot reopen the access log; lines go to the file that is open",
        "the access log can be reopened again",
    ]


def test_a_file_that_cannot_grow_costs_lines_and_no_calls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a full disk does: the write ends within a line, and later ones are refused."""
    log, whole = tmp_path / "access.log", resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    async def scenario() -> None:
        async with world(is_observed=False) as made:
            access = AccessLog(Settings(path=log), made.engine.outcomes)
            resource.setrlimit(resource.RLIMIT_FSIZE, (700, whole[1]))
            try:
                for _ in range(10):
                    await made.ask("REST", Ask())
                await asyncio.to_thread(until, lambda: access.dropped + access.written == 10)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, whole)
            assert access.dropped > 0
            await made.ask("gRPC", Ask())
            await asyncio.to_thread(until, lambda: access.dropped + access.written == 11)
            await asyncio.to_thread(access.close, 30)
            assert made.tally().total() == 11

    try:
        with caplog.at_level(logging.INFO):
            asyncio.run(scenario())
    finally:
        signal.signal(signal.SIGXFSZ, before)
    said = [record.message for record in caplog.records if "access log" in record.message]
    assert said == [
        "cannot write the access log; lines are being dropped and counted",
        "the access log can be written again",
    ]
    *torn, last = log.read_text().splitlines()
    assert json.loads(last)["protocol"] == "gRPC", "a torn line is ended before the next one"
    assert torn


def test_dev_full_costs_no_call(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    with RunningServer(tmp_path / "models", "--access-log-path", "/dev/full") as server:
        for _ in range(20):
            assert server.post(PREDICT, BODY)[0] == 200
        server.wait_for(
            lambda: b'headrace_access_log_lines_total{result="dropped"} 2' in server.get("/metrics")[1],
            "the lost lines to be counted",
        )
        assert server.stop() == 0
    assert sum("cannot write the access log" in one for one in server.errors) == 1


def test_a_pipe_that_nobody_reads_drops_lines_and_delays_neither_calls_nor_the_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def scenario() -> None:
        async with world(is_observed=False) as made:
            access = AccessLog(Settings(path=pipe), made.engine.outcomes, most_waiting=50)
            async with asyncio.timeout(60):
                while not access.dropped:
                    await made.ask("REST", Ask())
            await asyncio.to_thread(access.close, 0.05)

    asyncio.run(scenario())


def test_a_slow_reader_of_standard_output_gets_whole_lines(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    command = [sys.executable, "-m", "headrace", "serve", str(tmp_path / "models"), "--http-port", "0"]
    command += ["--grpc-port", "0", "--access-log-path", "-", "--drain-lead-seconds", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["http"]["port"]
        # Nobody reads meanwhile.
        sent = subprocess.run([sys.executable, "-c", _MANY, str(port)], check=True, capture_output=True)
        process.send_signal(signal.SIGTERM)
        told = [json.loads(one) for one in process.stdout]
        assert process.wait() == 0
    assert sent.stdout == b"1000"
    assert {one["status"] for one in told} == {200}
    assert len(told) == 1000


_MANY = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
for _ in range(1000):
    connection.request("GET", "/v2/health/live")
    response = connection.getresponse()
    assert response.read() is not None and response.status == 200
sys.stdout.write("1000")
"""


def test_a_sample_is_told_of_answers_and_every_error(tmp_path: Path) -> None:
    outcomes, drawn = Outcomes(), iter([0.1, 0.9, 0.4, 0.6])
    access = AccessLog(
        Settings(path=tmp_path / "log", sample=0.5, slow_seconds=9), outcomes, draw=lambda: next(drawn)
    )
    for _ in range(4):
        access._observe(ended())
    in_process = Outcome(Channel.IN_PROCESS)
    access._observe(in_process)
    assert access.close(30)
    assert len(lines(tmp_path / "log")) == 2


def test_a_path_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"access_log.path: .* cannot be opened: No such file"):
        LineFile(tmp_path / "nowhere" / "log")
    with pytest.raises(ConfigError, match=r"access_log.path: .* cannot be opened: Is a directory"):
        LineFile(tmp_path)
