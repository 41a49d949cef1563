"""More is asked than can be computed: what would come too late is refused at once, and it passes."""

from __future__ import annotations

import http.client
import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.faults.still_serves import does_it_still_serve, grpc_calls, infer_message
from tests.model_directories import SLOW, write
from tests.running_server import RunningServer

SMALL_QUEUE = "[batching]\ninstances = 1\nmax_batch_rows = 1\nmax_queue_rows = 8\n"
ROW_BY_ROW = "[batching]\ninstances = 1\nmax_batch_rows = 2\n"
WHOLE_SECONDS = 0.2
TRIES = 4


def ask(server: RunningServer, seconds: float, **headers: str) -> tuple[int, str | None, str, float]:
    """Status, Retry-After, error, and how long it took."""
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        body = json.dumps({"instances": [seconds]})
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", "/v1/models/slow:predict", body, named)
        response = connection.getresponse()
        answer = json.loads(response.read())
        took = time.monotonic() - began
        return response.status, response.getheader("retry-after"), answer.get("error", ""), took
    finally:
        connection.close()


def test_a_full_queue_refuses_with_the_time_to_come_back_and_recovers(models: Path) -> None:
    write(models, "slow", 1, SLOW, SMALL_QUEUE)
    with RunningServer(models, "--allow-code") as server, ThreadPoolExecutor(30) as threads:
        answers = list(threads.map(lambda _: ask(server, WHOLE_SECONDS), range(30)))
        statuses = Counter(status for status, *_ in answers)
        assert set(statuses) == {200, 503}
        assert statuses[200] >= 9, "what fits into the queue is answered"
        for status, retry_after, error, took in answers:
            if status == 503:
                assert retry_after is not None
                assert int(retry_after) >= 1
                assert "max_queue_rows = 8" in error
                assert took < 9 * WHOLE_SECONDS, "a refusal waits for nothing"
        assert ask(server, 0.0)[0] == 200
        does_it_still_serve(server)


def test_a_full_queue_is_unavailable_over_grpc(models: Path) -> None:
    write(models, "slow", 1, SLOW, SMALL_QUEUE)
    with RunningServer(models, "--allow-code") as server, grpc_calls(server) as call:
        message = infer_message("slow", WHOLE_SECONDS, name="seconds")
        calls = [call.future(message, timeout=30) for _ in range(30)]
        codes = Counter("OK" if one.exception() is None else one.exception().code().name for one in calls)
        assert set(codes) == {"OK", "UNAVAILABLE"}
        refused = next(one.exception() for one in calls if one.exception() is not None)
        assert "max_queue_rows = 8" in refused.details()
        pushback = dict(refused.trailing_metadata() or ()).get("grpc-retry-pushback-ms")
        assert pushback is not None
        assert int(pushback) > 0
        assert call(infer_message("slow", 0.0, name="seconds"), timeout=30)
        does_it_still_serve(server)


def test_deadlines_that_pass_under_load_are_told_in_time_and_never_computed(models: Path) -> None:
    write(models, "slow", 1, SLOW, ROW_BY_ROW)
    with RunningServer(models, "--allow-code") as server, ThreadPoolExecutor(20) as threads:
        deadline_seconds = 1.0
        answers = list(
            threads.map(
                lambda _: ask(server, WHOLE_SECONDS, x_request_timeout_ms=str(1000 * deadline_seconds)),
                range(20),
            )
        )
        statuses = Counter(status for status, *_ in answers)
        assert set(statuses) <= {200, 503, 504}, statuses
        assert statuses[200] >= 2
        assert statuses[503] + statuses[504] >= 5, "twenty at a fifth of a second, two at a time, take two"
        assert max(took for *_, took in answers) < 2 * deadline_seconds
        began = time.monotonic()
        assert ask(server, 0.0)[0] == 200
        assert time.monotonic() - began < 5 * WHOLE_SECONDS, "what had expired was computed all the same"
        does_it_still_serve(server)


def status_of_what_nobody_can_read(server: RunningServer, path: str, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", path, b"no JSON at all", named)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/v1/models/slow:predict", "/v2/models/slow/infer"])
def test_what_would_come_too_late_is_refused_before_its_body_is_read(models: Path, path: str) -> None:
    """Or refusing would cost about as much as answering, and there would be no time left to answer."""
    write(models, "slow", 1, SLOW, ROW_BY_ROW)
    with RunningServer(models, "--allow-code") as server, ThreadPoolExecutor(20) as threads:
        assert ask(server, WHOLE_SECONDS)[0] == 200
        assert status_of_what_nobody_can_read(server, path, x_request_timeout_ms="50") == 400
        answers = [threads.submit(ask, server, WHOLE_SECONDS) for _ in range(20)]
        statuses = {400}
        while statuses == {400} and not all(answer.done() for answer in answers):
            statuses.add(status_of_what_nobody_can_read(server, path, x_request_timeout_ms="50"))
        assert statuses == {400, 503}
        assert {answer.result()[0] for answer in answers} == {200}
        assert status_of_what_nobody_can_read(server, path, x_request_timeout_ms="50") == 400
        does_it_still_serve(server)


def test_many_expired_grpc_calls_on_one_connection_leave_the_others_alone(models: Path) -> None:
    """All are refused before the client gives up: many resets would end the connection, and all on it.

    On a crowded machine the server may come too late for that, so one of a few tries has to succeed.
    """
    write(models, "slow", 1, SLOW, ROW_BY_ROW)
    with RunningServer(models, "--allow-code") as server:
        ended = []
        while len(ended) < TRIES:
            try:
                with grpc_calls(server) as call:
                    assert ask_patiently_beside_hasty_ones(call)
                break
            except grpc.RpcError as error:
                ended.append(error)
        assert len(ended) < TRIES, f"an innocent call failed: {ended[-1]}"
        does_it_still_serve(server)


def ask_patiently_beside_hasty_ones(call: grpc.UnaryUnaryMultiCallable) -> bytes:
    patient = call.future(infer_message("slow", 2.0, name="seconds"), timeout=30)
    codes: Counter[str] = Counter()
    for _ in range(10):
        hasty = [call.future(infer_message("slow", 0.0, name="seconds"), timeout=0.05) for _ in range(50)]
        for one in hasty:
            error = one.exception()
            codes["OK" if error is None else error.code().name] += 1
    assert set(codes) <= {"OK", "DEADLINE_EXCEEDED", "UNAVAILABLE"}, codes
    answer: bytes = patient.result(timeout=30)
    return answer
