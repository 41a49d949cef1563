"""More is asked than can be computed: what would come too late is refused at once, and it passes."""

from __future__ import annotations

import http.client
import json
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.held import held_until
from tests.faults.still_serves import does_it_still_serve, grpc_calls, infer_message
from tests.faults.test_client_leaves_mid_batch import counted
from tests.model_directories import write
from tests.running_server import RunningServer

SMALL_QUEUE = "[batching]\ninstances = 1\nmax_batch_rows = 1\nmax_queue_rows = 8\n"
ROW_BY_ROW = "[batching]\ninstances = 1\nmax_batch_rows = 2\n"
UNKNOWN_COST = f"{ROW_BY_ROW}[warm_up]\nenabled = false\n"
HELD = 1.0
"""Holds the model until the test opens its gate."""
DEADLINE_SECONDS = 1.0

Answer = tuple[int, str | None, str]


def ask(server: RunningServer, seconds: float, **headers: str) -> Answer:
    """Status, Retry-After, and error."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        body = json.dumps({"instances": [seconds]})
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", "/v1/models/slow:predict", body, named)
        response = connection.getresponse()
        answer = json.loads(response.read())
        return response.status, response.getheader("retry-after"), answer.get("error", "")
    finally:
        connection.close()


def computing(server: RunningServer) -> bool:
    """Whether the model has one request, and no other waits."""
    return counted(server, "outstanding_requests") == 1 and counted(server, "queued_rows") == 0


@pytest.mark.exact
def test_a_full_queue_refuses_with_the_time_to_come_back_and_recovers(models: Path) -> None:
    """Eight wait behind one; the others are refused while nobody is answered: a refusal waits for nothing."""
    write(models, "slow", 1, held_until(gate := models.parent / "gate"), SMALL_QUEUE)
    with ThreadPoolExecutor(30) as threads, RunningServer(models, "--allow-code") as server:
        answers = [threads.submit(ask, server, HELD)]
        server.wait_for(lambda: computing(server), "the model to be busy")
        answers += [threads.submit(ask, server, HELD) for _ in range(29)]
        server.wait_for(lambda: sum(answer.done() for answer in answers) == 21, "the refusals")
        refused = [answer.result() for answer in answers if answer.done()]
        gate.touch()
        statuses = Counter(answer.result()[0] for answer in answers)
        assert statuses == {200: 9, 503: 21}
        for status, retry_after, error in refused:
            assert status == 503
            assert retry_after is not None
            assert int(retry_after) >= 1
            assert "max_queue_rows = 8" in error
        assert ask(server, 0.0)[0] == 200
        does_it_still_serve(server)


@pytest.mark.exact
def test_a_full_queue_is_unavailable_over_grpc(models: Path) -> None:
    write(models, "slow", 1, held_until(gate := models.parent / "gate"), SMALL_QUEUE)
    with RunningServer(models, "--allow-code") as server, grpc_calls(server) as call:
        message = infer_message("slow", HELD, name="seconds")
        calls = [call.future(message, timeout=120)]
        server.wait_for(lambda: computing(server), "the model to be busy")
        calls += [call.future(message, timeout=120) for _ in range(29)]
        server.wait_for(lambda: sum(one.done() for one in calls) == 21, "the refusals")
        gate.touch()
        codes = Counter("OK" if one.exception() is None else one.exception().code().name for one in calls)
        assert codes == {"OK": 9, "UNAVAILABLE": 21}
        refused = next(one.exception() for one in calls if one.exception() is not None)
        assert "max_queue_rows = 8" in refused.details()
        pushback = dict(refused.trailing_metadata() or ()).get("grpc-retry-pushback-ms")
        assert pushback is not None
        assert int(pushback) > 0
        assert call(infer_message("slow", 0.0, name="seconds"), timeout=30)
        does_it_still_serve(server)


@pytest.mark.exact
def test_deadlines_that_pass_under_load_are_told_in_time_and_never_computed(models: Path) -> None:
    """All are told while the model still computes what came before them."""
    write(models, "slow", 1, held_until(gate := models.parent / "gate"), ROW_BY_ROW)
    with ThreadPoolExecutor(21) as threads, RunningServer(models, "--allow-code") as server:
        first: Future[Answer] = threads.submit(ask, server, HELD)
        server.wait_for(lambda: computing(server), "the model to be busy")
        limit = str(1000 * DEADLINE_SECONDS)
        hasty = [threads.submit(ask, server, 0.0, x_request_timeout_ms=limit) for _ in range(20)]
        server.wait_for(lambda: all(one.done() for one in hasty), "the deadlines to be told")
        assert not first.done()
        gate.touch()
        assert set(Counter(one.result()[0] for one in hasty)) <= {503, 504}
        assert first.result()[0] == 200
        assert ask(server, 0.0)[0] == 200
        assert counted(server, "batch_rows_sum") == 2, "what had expired was computed all the same"
        does_it_still_serve(server)


def status_of_what_nobody_can_read(server: RunningServer, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        limit = {"x-request-timeout-ms": str(1000 * DEADLINE_SECONDS)}
        connection.request("POST", path, b"no JSON at all", limit)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.exact
@pytest.mark.parametrize("path", ["/v1/models/slow:predict", "/v2/models/slow/infer"])
def test_requests_that_would_expire_are_refused_before_their_body_is_read(models: Path, path: str) -> None:
    """Or refusing would cost about as much as answering, and there would be no time left to answer.

    The server learns from the first request that a batch takes half a second at least; warm-up would have
    told it that batches are short. Ten batches are ahead of what it refuses.
    """
    write(models, "slow", 1, held_until(gate := models.parent / "gate"), UNKNOWN_COST)
    with ThreadPoolExecutor(20) as threads, RunningServer(models, "--allow-code") as server:
        first = threads.submit(ask, server, HELD)
        server.wait_for(lambda: computing(server), "the model to be busy")
        time.sleep(DEADLINE_SECONDS / 2)
        gate.touch()
        assert first.result()[0] == 200
        assert status_of_what_nobody_can_read(server, path) == 400
        gate.unlink()
        answers = [threads.submit(ask, server, HELD) for _ in range(20)]
        server.wait_for(lambda: counted(server, "outstanding_requests") == 20, "all to wait")
        assert status_of_what_nobody_can_read(server, path) == 503
        gate.touch()
        assert {answer.result()[0] for answer in answers} == {200}
        assert status_of_what_nobody_can_read(server, path) == 400
        does_it_still_serve(server)


@pytest.mark.rest
@pytest.mark.exact
def test_many_expired_grpc_calls_on_one_connection_leave_the_others_alone(models: Path) -> None:
    """The server ends all of them: their client has no deadline of its own, and resets nothing.

    It ends them a little before the deadline that it was told (``deadline_in``): many calls that a client
    resets would end the connection, and all on it.
    """
    write(models, "slow", 1, held_until(gate := models.parent / "gate"), ROW_BY_ROW)
    with RunningServer(models, "--allow-code") as server, grpc_calls(server) as call:
        patient = call.future(infer_message("slow", HELD, name="seconds"), timeout=120)
        server.wait_for(lambda: computing(server), "the model to be busy")
        told: Counter[str] = Counter()
        message, deadline = infer_message("slow", 0.0, name="seconds"), (("grpc-timeout", "50m"),)
        for _ in range(10):
            hasty = [call.future(message, metadata=deadline) for _ in range(50)]
            server.wait_for(lambda hasty=hasty: all(one.done() for one in hasty), "the deadlines")  # type: ignore[misc]
            told.update(one.exception().code().name for one in hasty)
        assert told.total() == 500
        assert set(told) <= {"DEADLINE_EXCEEDED", "UNAVAILABLE"}, told
        assert not patient.done()
        gate.touch()
        assert patient.result(timeout=30)
        assert call(message, timeout=30)
        assert counted(server, "batch_rows_sum") == 2, "what had expired was computed all the same"
        does_it_still_serve(server)
