"""What two scrapes say of a server, as decisions: no server is needed for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.cli.main import build_parser
from headrace.cli.metrics_scrape import Interval, MetricsClient, Scrape, parsed
from headrace.cli.status import as_json, as_text, cause, watched
from headrace.config import ServerConfig

BEFORE = """
headrace_ready 1
headrace_load 0.1
headrace_version_state{model="m",version="2",state="ready"} 1
headrace_model_requests_total{model="m"} 100
headrace_objective_requests_total{model="m",result="kept"} 90
headrace_objective_requests_total{model="m",result="late"} 10
headrace_model_request_seconds_bucket{model="m",le="0.001"} 50
headrace_model_request_seconds_bucket{model="m",le="0.002"} 100
headrace_model_request_seconds_bucket{model="m",le="+Inf"} 100
"""
AFTER = """
headrace_ready 1
headrace_load 0.75
headrace_serving_thread_busy 0.2
headrace_calls_total{protocol="REST",code="200"} 30
headrace_errors_total{protocol="REST",code="404"} 4
headrace_version_state{model="m",version="1",state="unloaded"} 1
headrace_version_state{model="m",version="2",state="ready"} 1
headrace_version_state{model="m",version="3",state="failed"} 1
headrace_version_state{model="silent",version="1",state="loading"} 1
headrace_default_version{model="m"} 2
headrace_model_age_seconds{model="m",version="2"} 7300
headrace_model_stale{model="m"} 1
headrace_model_load{model="m"} 0.5
headrace_queued_rows{model="m",version="2"} 7
headrace_batch_rows_sum{model="m",version="2"} 60
headrace_batch_rows_count{model="m",version="2"} 20
headrace_model_requests_total{model="m"} 300
headrace_model_refused_total{model="m"} 6
headrace_queue_seconds_total{model="m",version="2"} 3
headrace_request_seconds_sum{model="m",version="2"} 4
headrace_objective_seconds{model="m"} 0.02
headrace_objective_target{model="m"} 0.99
headrace_objective_budget_remaining{model="m"} -0.5
headrace_objective_requests_total{model="m",result="kept"} 190
headrace_objective_requests_total{model="m",result="late"} 110
headrace_model_request_seconds_bucket{model="m",le="0.001"} 50
headrace_model_request_seconds_bucket{model="m",le="0.002"} 250
headrace_model_request_seconds_bucket{model="m",le="+Inf"} 300
"""


def between(before: str, after: str, seconds: float = 2.0) -> Interval:
    return Interval(Scrape(10.0, parsed(before)), Scrape(10.0 + seconds, parsed(after)))


def test_rates_are_those_of_the_time_between() -> None:
    seen = watched("http://x", between(BEFORE, AFTER))
    assert (seen.is_ready, seen.load, seen.calls_per_second, seen.errors_per_second) == (
        True,
        0.75,
        15.0,
        2.0,
    )
    model, silent = seen.models
    assert (model.default, model.versions) == (2, {3: "failed", 2: "ready", 1: "unloaded"})
    assert (model.requests_per_second, model.errors_per_second) == (100.0, 3.0)
    assert model.p50_seconds == pytest.approx(0.001 + 0.001 * 100 / 150)
    assert model.p99_seconds == 0.002  # the highest bound there is
    assert (model.batch_rows, model.queued_rows, model.age_seconds, model.is_stale) == (3.0, 7, 7300.0, True)
    assert model.objective is not None
    assert (model.objective.kept, model.objective.broken_by) == (0.5, "queue")
    assert (silent.default, silent.p99_seconds, silent.batch_rows, silent.objective) == (
        None,
        None,
        None,
        None,
    )


def test_the_text_output_is_a_line_and_a_table() -> None:
    head, names, model, silent = as_text(watched("http://x", between(BEFORE, AFTER))).splitlines()
    assert head == "http://x: ready, load 0.75, 15.0 calls/s, 2.0 errors/s"
    assert names.split()[:2] == ["model", "versions"]
    assert "2*, 3 failed" in model
    assert "unloaded" not in model
    assert "2 h STALE" in model
    assert model.endswith("BROKEN by queue (0.99 in 20.00 ms)")
    assert "1 loading" in silent
    assert "nan" not in model + silent
    ready_not = watched("http://x", between("headrace_ready 0\n", "headrace_ready 0\n"))
    assert as_text(ready_not) == "http://x: NOT READY, load –, 0.0 calls/s, 0.0 errors/s\nno models"
    assert as_json(ready_not)["models"] == []


def test_a_server_that_was_started_again_counts_from_nothing() -> None:
    again = AFTER.replace(
        'headrace_model_requests_total{model="m"} 300', 'headrace_model_requests_total{model="m"} 8'
    )
    assert watched("http://x", between(BEFORE, again)).models[0].requests_per_second == 4.0


@pytest.mark.parametrize(
    ("ended", "queued", "spent", "busy", "why"),
    [
        ({"kept": 9, "late": 0, "failed": 0, "refused": 0}, 1.0, 2.0, 0.0, "unknown"),
        ({}, 0.0, 0.0, 0.0, "unknown"),
        ({"kept": 9, "late": 3, "failed": 0, "refused": 5}, 1.0, 2.0, 0.9, "refusals"),
        ({"kept": 9, "late": 3, "failed": 5, "refused": 0}, 1.0, 2.0, 0.9, "errors"),
        ({"kept": 9, "late": 3, "failed": 0, "refused": 2}, 0.9, 2.0, 0.9, "compute"),
        ({"kept": 9, "late": 3}, 1.1, 2.0, 0.4, "queue"),
        ({"kept": 9, "late": 3}, 1.1, 2.0, 0.6, "transport"),
        ({"kept": 0, "late": 3}, 0.0, 2.0, 0.0, "compute"),
    ],
)
def test_the_cause_of_a_missed_objective_is_named(
    ended: dict[str, float], queued: float, spent: float, busy: float, why: str
) -> None:
    assert cause(ended, queued, spent, busy) == why


@pytest.mark.parametrize("text", ["", "up 1\n", "<html>", "{", "headrace_ready x\n"])
def test_metrics_of_another_program_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="the answer is not"):
        parsed(text)


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "http://", "http://x:99999999", "http://x?y", "http://[::1", "x y://"]
)
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="url: expected http://HOST:PORT"):
        MetricsClient.of(url, None, None)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (("token", None), "token-file: token cannot be read: No such file"),
        ((None, "ca.pem"), "ca-file: ca.pem cannot be used: No such file"),
        (
            (None, None, "own.pem"),
            "certificate-file: own.pem with its key in it cannot be used: No such",
        ),
        ((None, None, None, "own.key"), "key-file: the key needs its certificate, too"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(files: tuple[str | None, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        MetricsClient.of("https://x", *(one and Path(one) for one in files))


@pytest.mark.parametrize("verb", ["status", "top"])
def test_without_an_address_it_is_that_of_headrace_serve_without_options(verb: str) -> None:
    assert build_parser().parse_args([verb]).url == f"http://127.0.0.1:{ServerConfig().http_port}"
    assert build_parser().parse_args([verb, "http://other:1"]).url == "http://other:1"


def test_an_address_needs_no_scheme() -> None:
    assert MetricsClient.of("localhost:8501", None, None).name == "http://localhost:8501"
    assert MetricsClient.of("https://host/prefix/", None, None).name == "https://host/prefix"


@pytest.mark.parametrize("url", ["https://me:secret@host", "me:secret@host", "http://me:secret@host:1/?x"])
def test_a_password_in_an_address_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="expected no user name or password") as caught:
        MetricsClient.of(url)
    assert "secret" not in str(caught.value)


def test_a_token_is_sent_unencrypted_to_this_machine_only(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("t0ken\n")
    for url in ("http://127.0.0.1:8501", "localhost:8501", "https://models.internal:8501"):
        assert MetricsClient.of(url, file).token == "t0ken"
    with pytest.raises(ConfigError, match="a token is never sent unencrypted to another machine"):
        MetricsClient.of("http://models.internal:8501", file)
