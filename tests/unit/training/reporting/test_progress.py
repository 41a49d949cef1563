"""A run says how it goes: to people on one line, to machines in JSON, to Prometheus when asked."""

from __future__ import annotations

import errno
import io
import json
import os
import urllib.request
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import ConfigError
from headrace.evaluation.progressive_validation import Window
from headrace.evaluation.tallies import Score
from headrace.telemetry.metrics_port import listen
from headrace.training.releasing.publishing import Publication
from headrace.training.reporting.progress import JsonReport, Pace, Progress, TerminalReport, Warnings, summary
from headrace.training.reporting.run_metrics import METRICS, Telemetry

SCORE = Score(rows=100, logloss=0.5, auc=0.75, auc_error=0.0, calibration=1.01, click_rate=0.2)
WINDOW = Window(number=3, last_row=300, score=SCORE, slices={"site": {"x": SCORE}})
PROGRESS = Progress(rows=300, seconds=2.0, idle_seconds=0.5, stream_bytes=9000, versions=(1, 2))
PUBLICATION = Publication(2, Path("2"), None, 10, 0.1)


def test_a_window_is_one_json_object_on_a_line() -> None:
    output = io.StringIO()
    report = JsonReport(output)
    report.closed(WINDOW, Pace(1000.0, 0.25), PROGRESS)
    report.closed(WINDOW, Pace(1000.0, 0.25), PROGRESS._replace(versions=(1, 2, 3)))
    first, second = (json.loads(line) for line in output.getvalue().splitlines())
    assert first["window"] == 3
    assert first["auc"] == 0.75
    assert first["rows_per_second"] == 1000.0
    assert first["slices"]["site"]["x"]["logloss"] == 0.5
    assert (first["versions"], second["versions"]) == ([1, 2], [3])
    assert "optimal_logloss" not in first


def test_a_trend_is_said_to_machines_each_time_and_to_people_once() -> None:
    output, errors, told = io.StringIO(), io.StringIO(), Telemetry()
    observers = (JsonReport(output), Warnings(errors), told)
    for trend in (None, "jumped", "jumped", None, "tired"):
        for one in observers:
            one.closed(msgspec.structs.replace(WINDOW, trend=trend), Pace(1000.0, 0.25), PROGRESS)
    said = [json.loads(line).get("trend") for line in output.getvalue().splitlines()]
    assert said == [None, "jumped", "jumped", None, "tired"]
    lines = errors.getvalue().splitlines()
    assert [line.split(":")[1] for line in lines] == [" window 3, row 300"] * 2
    assert "the input has changed abruptly" in lines[0]
    assert "does not keep up" in lines[1]
    assert (told.values()["jumped"], told.values()["tired"]) == (0.0, 1.0)


def test_lines_that_nobody_reads_do_not_end_a_run() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        before = os.listdir("/proc/self/fd")
        JsonReport(output).write({"rows": 1})
        JsonReport(output).write({"rows": 2})
        assert os.listdir("/proc/self/fd") == before, "no descriptor is left open"


def test_a_full_disk_under_what_is_said_does_not_end_a_run() -> None:
    lines = JsonReport(_Full())
    lines.write({"rows": 1})
    assert lines.problem == "standard output cannot be written: No space left on device"
    Warnings(_Full()).failed("not saved: the disk is full")
    TerminalReport(_Full()).moved(PROGRESS)


class _Full(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_line_on_a_terminal_is_renewed_a_few_times_a_second_and_wiped_away() -> None:
    output, now = io.StringIO(), [0.0]
    report = TerminalReport(output, lambda: now[0])
    report.moved(PROGRESS)
    report.closed(WINDOW, Pace(1000.0, 0.25), PROGRESS)
    report.moved(PROGRESS._replace(rows=400, seconds=3.0, idle_seconds=0.6))
    now[0] = 0.2
    report.moved(PROGRESS._replace(rows=500, seconds=3.0, idle_seconds=0.6, pending_rows=7))
    shown = [text.strip() for text in output.getvalue().split("\r") if text.strip()]
    assert shown == [
        "300 rows  150/s  idle 25%  version 2",
        "500 rows  200/s  logloss 0.50000  AUC 0.75000  calibration 1.01000  idle 10%  7 pending  version 2",
    ]
    report.clear()
    assert output.getvalue().endswith(" \r")


def test_a_resumed_run_shows_its_own_pace_and_lists_only_new_versions() -> None:
    output, now = io.StringIO(), [0.0]
    terminal = TerminalReport(output, lambda: now[0])
    terminal.resumed(PROGRESS)
    terminal.moved(PROGRESS._replace(rows=400, seconds=4.0, idle_seconds=1.5))
    assert output.getvalue().strip() == "400 rows  50/s  idle 50%  version 2"
    output = io.StringIO()
    lines = JsonReport(output)
    lines.resumed(PROGRESS)
    lines.closed(WINDOW, Pace(1000.0, 0.25), PROGRESS._replace(versions=(1, 2, 3)))
    assert json.loads(output.getvalue())["versions"] == [3]


def test_failures_are_printed_to_the_terminal() -> None:
    output = io.StringIO()
    Warnings(output).failed("not published: the disk is full")
    assert output.getvalue() == "headrace: not published: the disk is full\n"


def test_the_summary_has_what_programs_look_for() -> None:
    said = summary(SCORE, PROGRESS, "end")
    assert json.loads(json.dumps(said)) == said
    assert {"rows", "seconds", "logloss", "auc", "versions", "idle_share", "rows_per_second"} <= said.keys()
    assert "optimal_logloss" not in said
    assert said["rows"] == 300
    assert summary(Score(rows=0), Progress(), "end")["logloss"] is None


def test_prometheus_reads_the_last_window_and_the_age_of_the_last_version() -> None:
    now = [10.0]
    telemetry = Telemetry(lambda: now[0])
    telemetry.moved(PROGRESS)
    assert "publication_age_seconds" not in telemetry.values()
    telemetry.closed(WINDOW, Pace(1000.0, 0.25), PROGRESS)
    telemetry.published(PUBLICATION, 300)
    telemetry.failed("not published")
    now[0] = 25.0
    port, close = listen(telemetry, "127.0.0.1", 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
    finally:
        close()
    assert "headrace_training_rows_total 300.0" in lines
    assert "headrace_training_auc 0.75" in lines
    assert "headrace_training_publication_age_seconds 15.0" in lines
    assert "headrace_training_failures_total 1.0" in lines
    assert not any(line.startswith("headrace_training_optimal_logloss") for line in lines)
    assert telemetry.values().keys() <= {metric.name for metric in METRICS}


def test_the_age_of_a_version_that_never_came_is_told_where_one_is_to_come() -> None:
    now = [10.0]
    telemetry = Telemetry(lambda: now[0], publishes=True)
    now[0] = 710.0
    assert telemetry.values()["publication_age_seconds"] == 700.0
    telemetry.published(PUBLICATION, 300)
    assert telemetry.values()["publication_age_seconds"] == 0.0


def test_a_port_that_is_taken_is_an_error_that_says_so() -> None:
    port, close = listen(Telemetry(), "127.0.0.1", 0)
    try:
        with pytest.raises(ConfigError, match=rf"metrics-port: cannot listen on 127.0.0.1:{port}: "):
            listen(Telemetry(), "127.0.0.1", port)
    finally:
        close()
