"""Nobody knows the addresses of what an archive needs: the server starts, serves its models, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.archive_processes import Encoder
from tests.faults.still_serves import does_it_still_serve
from tests.running_server import RunningServer

LOCAL_STORE = 'store = { kind = "lmdb", path = "store" }\n'
LOCAL_QUEUE = 'queue = { kind = "lmdb", path = "queue" }\n'
VECTORS = "[spaces.texts]\ndimension = 3\n"
ENCODED = """[spaces.texts]
embedder = "counted"
[embedders.counted]
kind = "model"
model = "encoder"
url = "ENCODER"
"""
REMOTE = """[spaces.texts]
embedder = "remote"
[embedders.remote]
kind = "model"
url = "http://embedder.invalid:8501"
model = "encoder"
"""
NAMES: dict[str, tuple[str, str]] = {
    "redis": (
        f'store = {{ kind = "redis", address = "redis.invalid:6379" }}\n{LOCAL_QUEUE}{VECTORS}',
        "Redis at redis.invalid:6379: ",
    ),
    "cassandra": (
        'store = { kind = "cassandra", contact_points = ["cassandra.invalid:9042"] }\n'
        f"{LOCAL_QUEUE}{VECTORS}",
        "Cassandra at cassandra.invalid:9042: none of these names could be resolved",
    ),
    "kafka": (
        f'queue = {{ kind = "kafka", servers = ["kafka.invalid:9092"] }}\n{LOCAL_STORE}{ENCODED}',
        "the queue does not accept missing keys: ",
    ),
    "embedder": (
        LOCAL_STORE + LOCAL_QUEUE + REMOTE,
        "http://embedder.invalid:8501 (of texts) cannot be opened",
    ),
}


def is_missing(server: RunningServer) -> bool:
    """Whether a lookup says that it has nothing: flagged, or refused where not even the length is known."""
    status, body = server.post("/v1/archive/texts:lookup", {"keys": ["a"]})
    return body.get("found") == [False] if status == 200 else "not known yet" in str(body)


@pytest.mark.rest
@pytest.mark.parametrize("what", NAMES)
def test_models_are_served_and_the_log_says_what_is_missing(
    models: Path, tmp_path: Path, what: str, encoder: Encoder
) -> None:
    settings, expected = NAMES[what]
    (tmp_path / "archive.toml").write_text(settings.replace("ENCODER", encoder.url))
    with RunningServer(models, "--archive", str(tmp_path / "archive.toml")) as server:
        does_it_still_serve(server)
        server.wait_for(lambda: is_missing(server), "a lookup to be answered")
        server.wait_for(lambda: server.count_in_log(expected) > 0, "a word about the name")
        does_it_still_serve(server)
        assert server.stop() == 0
