"""Somebody sets the clock, a day forward and a day back: what tells the time moves, and nothing else does."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace.archive.operations.open_archive import open_archive_file
from headrace.versions.manifest import publish
from tests.faults.archive_processes import Encoder, filler, lookup, serving
from tests.faults.jumping_clock import DAY_SECONDS, JumpingClock
from tests.faults.neighbours import Connection
from tests.faults.still_serves import MODEL, does_it_still_serve, http_request
from tests.faults.strict_callers import Callers, http1
from tests.faults.worker_processes import scrape, workers_of, workers_ready
from tests.model_directories import SLOW, affine, write
from tests.running_server import RunningServer
from tests.unit.access.keys_of_tests import entry, key_of, written
from tests.unit.access.tokens_of_tests import AUDIENCE, ISSUER, jwks, token
from tests.waiting import until

JUMPS = (DAY_SECONDS, -DAY_SECONDS, 0)
AGE = 'headrace_model_age_seconds{model="fresh",version="1"}'
STALE = 'headrace_model_stale{model="fresh"}'
SLOW_SECONDS = 0.8


@pytest.fixture
def clock(tmp_path: Path) -> JumpingClock:
    return JumpingClock(tmp_path)


def told(server: RunningServer) -> datetime:
    """The time of the last line of the log."""
    stamps = [line.split(" ", 1)[0] for line in server.errors if line[:2] == "20"]
    return datetime.fromisoformat(stamps[-1])


def slowly(server: RunningServer, seconds: float, deadline_seconds: float) -> int:
    head = f"x-request-timeout-ms: {1000 * deadline_seconds:.0f}"
    body = b'{"instances": [%f]}' % seconds
    with closing(Connection(server.http_port)) as caller:
        return caller.send(http_request("/v1/models/slow:predict", body, head))


@pytest.mark.rest
def test_requests_deadlines_and_polls_go_on_and_ages_tell_the_time(models: Path, clock: JumpingClock) -> None:
    """No request is lost, none ends before or after its deadline, and each version is found and served."""
    write(models, "slow", 1, SLOW)
    write(models, "m", 1, affine(0.0, 1.0))
    write(models, "bad", 1, b"no model", "[versions]\nload_retry_seconds = 0.2\nload_attempts = 1000\n")
    publish(lambda draft: (draft / "model.onnx").write_bytes(affine(1.0, 0.0)), models / "fresh", 1)
    (models / "fresh/headrace.toml").write_text(f"[versions]\nmax_age_seconds = {DAY_SECONDS // 2}\n")
    tries = 'headrace_load_attempts{model="bad",version="1"}'
    with (
        RunningServer(models, "--allow-code", environment=clock.environment) as server,
        (callers := Callers(http1, server, 2, 0.002)) as tally,
        ThreadPoolExecutor(2) as threads,
    ):
        for number, seconds in enumerate(JUMPS, 2):
            in_time = threads.submit(slowly, server, SLOW_SECONDS, 60.0)
            too_late = threads.submit(slowly, server, SLOW_SECONDS, SLOW_SECONDS / 4)
            time.sleep(SLOW_SECONDS / 8)  # within both
            clock.jump(seconds)
            assert in_time.result() == 200
            assert too_late.result() in {503, 504}, "told at its deadline, or at once that it would be late"
            before = scrape(server)[tries]
            write(models, "m", number, affine(0.0, float(number)))
            server.wait_for(
                lambda number=number: (
                    server.post("/v1/models/m:predict", {"instances": [0.0]})
                    == (200, {"predictions": [float(number)]})
                ),
                "the next version",
            )
            server.wait_for(
                lambda there=timedelta(seconds=seconds): (
                    abs(told(server) - datetime.now(UTC) - there) < timedelta(hours=1)
                ),
                "a line of the log that tells the time",
            )
            counted = scrape(server)
            assert abs(counted[AGE] - seconds) < 3600
            assert counted[STALE] == (seconds > 0)
            server.wait_for(lambda before=before: scrape(server)[tries] > before, "another attempt")
        callers.end()
        assert server.stop() == 0
    assert tally.lost == []
    assert tally.answered > 100


@pytest.mark.rest
def test_workers_are_not_taken_for_silent(models: Path, clock: JumpingClock) -> None:
    options = ("--workers", "2", "--worker-timeout-seconds", "20")
    with RunningServer(models, *options, environment=clock.environment) as server:
        server.wait_for(lambda: workers_ready(server) == 2, "both to serve")
        first = workers_of(server)
        for number, seconds in enumerate(JUMPS, 2):
            clock.jump(seconds)
            write(models, MODEL, number, affine(1.0, 1.0))
            ready = f"/v2/models/{MODEL}/versions/{number}/ready"
            server.wait_for(lambda ready=ready: server.get(ready)[0] == 200, "the next version")
            does_it_still_serve(server)
        assert (workers_of(server), workers_ready(server)) == (first, 2)
        assert server.count_in_log("gets no new connections") == 0
        assert server.stop() == 0


def test_keys_and_tokens_end_by_the_clock_and_are_good_again_before_their_end(
    models: Path, tmp_path: Path, clock: JumpingClock
) -> None:
    """Also tokens that were verified before and are remembered."""
    jwks(tmp_path / "jwks.json")
    written(tmp_path / "keys.toml", entry("ann", ["predict"]), entry("bob", ["predict"]))
    ends = f"expires = {datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}\n"
    with (tmp_path / "keys.toml").open("a") as file:
        file.write(ends)  # of the last one, bob's
    (config := tmp_path / "server.toml").write_text(
        '[access]\nfile = "keys.toml"\n[access.jwt]\nkeys = "jwks.json"\n'
        f'issuer = "{ISSUER}"\naudience = "{AUDIENCE}"\n'
    )
    mine = token(headrace_models=["*"]).decode()
    bearers = [mine, key_of("ann").text, key_of("bob").text]
    body = json.dumps({"instances": [1.0]}).encode()
    with RunningServer(models, "--config", str(config), environment=clock.environment) as server:

        def statuses() -> list[int]:
            path = f"/v1/models/{MODEL}:predict"
            return [
                server.request("POST", path, body, {"authorization": f"Bearer {one}"})[0] for one in bearers
            ]

        assert statuses() == [200, 200, 200]
        clock.jump(DAY_SECONDS)
        assert statuses() == [401, 200, 401]
        clock.jump(0)
        assert statuses() == [200, 200, 200]
        clock.jump(-DAY_SECONDS)
        assert statuses()[1:] == [200, 200]


@pytest.mark.rest
def test_an_archive_is_filled_all_the_same(
    tmp_path: Path, encoder: Encoder, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases of its queue and marks of what is absent run on, as one clock of the machine does."""
    (tmp_path / "archive.toml").write_text(
        f"""
        cache = {{ absent_seconds = 0.05, poll_seconds = 0.1 }}
        [queue]
        kind = "lmdb"
        visibility_seconds = 2.0
        [spaces.texts]
        embedder = "counted"
        pending_seconds = 600
        [embedders.counted]
        kind = "model"
        model = "encoder"
        url = "{encoder.url}"
        """
    )
    open_archive_file(tmp_path / "archive.toml").close()
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    with serving(tmp_path) as port, filler(tmp_path):
        for number, seconds in enumerate((0, *JUMPS)):
            clock.jump(seconds)
            key = f"missed at the jump {number}"
            until(lambda key=key: lookup(port, key) == [True])
            assert encoder.embedded()[key] == 1
