"""What tests of the real servers do with each by its usual client: write, read, and be refused."""

from __future__ import annotations

import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.waiting import seconds_left
from tools.services.cassandra_server import Cassandra
from tools.services.kafka_server import Kafka
from tools.services.redis_server import Redis
from tools.services.service import Service

KEYSPACE = "CREATE KEYSPACE proof WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"


class Client(ABC):
    """Writes and reads texts."""

    @abstractmethod
    def write(self, server: Any, value: str, *, password: str | None = None) -> None:
        """Write a text, and return when it is acknowledged; ``password`` is instead of the server's."""

    @abstractmethod
    def read(self, server: Any) -> list[str]:
        """Give all texts that were written, sorted."""

    refusal: type[Exception]
    """What a wrong password comes to."""


class RedisClient(Client):
    """redis-py."""

    def __init__(self) -> None:
        self.refusal = pytest.importorskip("redis").exceptions.AuthenticationError

    def write(self, server: Redis, value: str, *, password: str | None = None) -> None:
        with self._connected(server, password) as client:
            client.sadd("proof", value)

    def read(self, server: Redis) -> list[str]:
        with self._connected(server) as client:
            return sorted(value.decode() for value in client.smembers("proof"))

    def _connected(self, server: Redis, password: str | None = None) -> Any:
        import redis

        url = server.url if password is None else server.url.replace(server.password or "", password)
        return redis.Redis.from_url(url, socket_timeout=10)


class CassandraClient(Client):
    """cassandra-driver."""

    def __init__(self) -> None:
        self.refusal = pytest.importorskip("cassandra.cluster").NoHostAvailable

    def write(self, server: Cassandra, value: str, *, password: str | None = None) -> None:
        with self._session(server, password) as session:
            session.execute(KEYSPACE.replace("KEYSPACE", "KEYSPACE IF NOT EXISTS"))
            session.execute("CREATE TABLE IF NOT EXISTS proof.proof (value text PRIMARY KEY)")
            session.execute("INSERT INTO proof.proof (value) VALUES (%s)", (value,))

    def read(self, server: Cassandra) -> list[str]:
        with self._session(server) as session:
            return sorted(row.value for row in session.execute("SELECT value FROM proof.proof"))

    @contextmanager
    def _session(self, server: Cassandra, password: str | None = None) -> Iterator[Any]:
        from cassandra.auth import PlainTextAuthProvider
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        from cassandra.policies import WhiteListRoundRobinPolicy

        profile = ExecutionProfile(
            load_balancing_policy=WhiteListRoundRobinPolicy([server.host]), request_timeout=30
        )
        cluster = Cluster(
            [server.host],
            port=server.port,
            protocol_version=5,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            connect_timeout=20,
            control_connection_timeout=20,
            ssl_context=ssl.create_default_context(cafile=server.ca_file) if server.tls else None,
            ssl_options={"server_hostname": server.host} if server.tls else None,
            auth_provider=PlainTextAuthProvider(server.user, password or server.password)
            if server.password
            else None,
        )
        try:
            yield cluster.connect()
        finally:
            cluster.shutdown()


class KafkaClient(Client):
    """confluent-kafka."""

    def __init__(self) -> None:
        self.refusal = pytest.importorskip("confluent_kafka").KafkaException

    def write(self, server: Kafka, value: str, *, password: str | None = None) -> None:
        from confluent_kafka import KafkaError, KafkaException, Producer
        from confluent_kafka.admin import AdminClient, NewTopic

        settings: dict[str, Any] = dict(server.client_settings())
        if password is not None:
            settings["sasl.password"] = password
        refused: list[Any] = []
        quiet = {"error_cb": refused.append, "log_level": 0}
        admin = AdminClient({**settings, **quiet})
        try:
            made = admin.create_topics([NewTopic("proof", 1, 1)], request_timeout=20)["proof"]
            deadline = time.monotonic() + seconds_left()
            while not made.done():
                assert time.monotonic() < deadline, "the topic is not created"
                admin.poll(0.1)
                for error in refused:  # the client would try again for ever
                    if error.code() == KafkaError._AUTHENTICATION:
                        raise KafkaException(error)
            made.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        producer = Producer({**settings, **quiet, "acks": "all", "message.timeout.ms": 20_000})
        producer.produce("proof", value.encode())
        assert producer.flush(30) == 0

    def read(self, server: Kafka) -> list[str]:
        from confluent_kafka import Consumer, TopicPartition

        settings = {**server.client_settings(), "group.id": "proof", "enable.auto.commit": False}
        consumer = Consumer({**settings, "log_level": 0})
        try:
            partition = TopicPartition("proof", 0, 0)
            _, end = consumer.get_watermark_offsets(partition, timeout=20)
            consumer.assign([partition])
            found = [message.value().decode() for message in consumer.consume(end, timeout=20)]
            return sorted(found)
        finally:
            consumer.close()


def client_of(server: Service) -> Client:
    """Give the client for a server's kind."""
    clients = {"redis": RedisClient, "cassandra": CassandraClient, "kafka": KafkaClient}
    return clients[server.kind]()
