"""The suite of the Queue, on each of ours."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from headrace.testing.opener import Opener
from headrace.testing.queues import QueueSuite
from tools.services.kafka_server import Kafka

_MOST_MESSAGES = 5000


def opener_of(**table: object) -> Opener:
    return Opener("headrace.testing.queue_process:open_from_settings", {"table": table})


class PatientSuite(QueueSuite):
    """Lets receivers be silent for long where a test does not wait for the end of that."""

    @pytest.fixture(autouse=True)
    def patience(self, request: pytest.FixtureRequest) -> None:
        waits = any(words in request.node.name for words in ("silent", "keeps", "killed_receiver"))
        self.visibility_seconds = 2.0 if waits else 60.0


class TestMemory(PatientSuite):
    is_shared = False
    most_messages = _MOST_MESSAGES

    @pytest.fixture
    def opener(self) -> Opener:
        return opener_of(
            kind="memory", visibility_seconds=self.visibility_seconds, max_messages=_MOST_MESSAGES
        )


class TestLmdb(PatientSuite):
    most_messages = _MOST_MESSAGES

    @pytest.fixture(params=[True, False], ids=["sync", "no sync"])
    def opener(self, tmp_path: Path, request: pytest.FixtureRequest) -> Opener:
        return opener_of(
            kind="lmdb",
            path=str(tmp_path / "queue"),
            visibility_seconds=self.visibility_seconds,
            max_messages=_MOST_MESSAGES,
            sync=request.param,
        )


@pytest.mark.rest
class TestKafka(QueueSuite):
    visibility_seconds = 6.0
    joining_seconds = 4.0
    is_ordered = False
    drops_known = False

    @pytest.fixture
    def opener(self, kafka_server: Kafka, request: pytest.FixtureRequest) -> Opener:
        name = f"queue-{secrets.token_hex(8)}"
        shared = any(word in request.node.name for word in ("share", "many", "at_a_time"))
        if shared:
            self.joining_seconds = 10.0  # 1.5 s usually; who joins later has messages delivered twice
        return opener_of(
            kind="kafka",
            servers=[kafka_server.address],
            topic=name,
            group=name,
            partitions=4 if shared else 1,  # with one, a receiver has all or nothing
            visibility_seconds=self.visibility_seconds,
            timeout_seconds=30.0,  # a broker that has just begun takes its time
        )
