"""Apache Kafka: one node that is broker and controller, from Maven Central's jars."""

from __future__ import annotations

import socket
import struct
import subprocess
import uuid
from base64 import urlsafe_b64encode
from typing import ClassVar

from tools.services.errors import ServiceError
from tools.services.java import Artifact, JavaService
from tools.services.service import receive

LOGGING = """status = warn
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
"""
PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
FORMAT_SECONDS = 60.0
SASL_HANDSHAKE, SASL_AUTHENTICATE, METADATA, API_VERSIONS = 17, 36, 3, 18
ONE_OF_EACH = (
    "offsets.topic.replication.factor",
    "offsets.topic.num.partitions",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
    "transaction.state.log.num.partitions",
    "share.coordinator.state.topic.replication.factor",
    "share.coordinator.state.topic.min.isr",
    "share.coordinator.state.topic.num.partitions",
)


class Kafka(JavaService):
    """A Kafka broker. Topics are made by whoever needs one; a killed one takes work again after some 5 s."""

    kind = "kafka"
    title = "Apache Kafka"
    well_known_ports = (9092, 9093)
    user = "headrace"
    artifacts = (
        Artifact("org.apache.kafka", "kafka_2.13", "4.4.0", without=("org.apache.kafka", "kafka-tools-api")),
        Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.5"),  # without it nothing is logged
    )
    java_versions = range(17, 26)
    main = "kafka.Kafka"
    cluster: ClassVar[uuid.UUID] = uuid.UUID("6b8c2f3e-7a14-4d0b-9c55-2e1f0a7d9b31")

    @property
    def protocol(self) -> str:
        """What clients call ``security.protocol``."""
        plain = "PLAINTEXT" if self.tls is None else "SSL"
        return plain if self.password is None else "SASL_" + plain

    def client_settings(self) -> dict[str, str]:
        """Give what a client of librdkafka (confluent-kafka) is configured with."""
        settings = {"bootstrap.servers": self.address, "security.protocol": self.protocol}
        if self.tls is not None:
            settings["ssl.ca.location"] = str(self.tls.ca)
        if self.password is not None:
            settings |= {
                "sasl.mechanism": "PLAIN",
                "sasl.username": self.user,
                "sasl.password": self.password,
            }
        return settings

    def java_options(self) -> list[str]:
        """Write the settings, and format the data's folder once, as Kafka demands."""
        (self.folder / "logging.properties").write_text(LOGGING, "utf-8")
        properties = self.folder / "server.properties"
        properties.touch(0o600)
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._settings().items()), "utf-8")
        options = [f"-Dlog4j2.configurationFile={(self.folder / 'logging.properties').as_uri()}"]
        if not (self.folder / "data" / "meta.properties").exists():
            self._format(options)
        return options

    def arguments(self) -> list[str]:
        """Give the file of settings."""
        return [str(self.folder / "server.properties")]

    def answers(self) -> bool:
        """Ask for the brokers (Metadata): one that takes no work yet is not among them."""
        with self.connect() as connection:
            if self.password is not None:
                connection.sendall(request(SASL_HANDSHAKE, 1, text("PLAIN")))
                response(connection)
                token = f"\0{self.user}\0{self.password}".encode()
                connection.sendall(request(SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token))
                if response(connection)[:2] != b"\0\0":
                    return False
            connection.sendall(request(METADATA, 1, struct.pack(">i", 0)))
            return struct.unpack_from(">i", response(connection))[0] > 0

    def how_to_connect(self) -> str:
        """The settings of a client, but for the password."""
        settings = self.client_settings() | ({"sasl.password": "…"} if self.password else {})
        return " ".join(f"{key}={value}" for key, value in settings.items() if value != "PLAINTEXT")

    def _settings(self) -> dict[str, object]:
        """Give server.properties."""
        clients, controller = self.ports
        protocol = self.protocol
        settings: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{self.host}:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{protocol}://{self.host}:{clients},CONTROLLER://{self.host}:{controller}",
            "advertised.listeners": f"{protocol}://{self.host}:{clients}",
            "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{protocol}:{protocol}",
            "inter.broker.listener.name": protocol,
            "log.dirs": self.folder / "data",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
            "broker.session.timeout.ms": 3000,  # how long a killed broker's place stays taken
            "broker.heartbeat.interval.ms": 500,
            "log.cleaner.dedupe.buffer.size": 16 << 20,
            "num.network.threads": 2,
            "num.io.threads": 4,
            **dict.fromkeys(ONE_OF_EACH, 1),
        }
        if self.tls is not None:
            settings |= {
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": self.tls.store,
                "ssl.keystore.password": self._secret("store-password"),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": self.tls.ca,
                "ssl.client.auth": "none",
            }
        if self.password is not None:
            login = (
                f'{PLAIN_LOGIN} required username="{self.user}" password="{self.password}" '
                f'user_{self.user}="{self.password}";'
            )
            settings |= {
                "sasl.enabled.mechanisms": ",".join(["PLAIN", *SCRAM]),
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                f"listener.name.{protocol.lower()}.plain.sasl.jaas.config": login,
            }
            for mechanism in SCRAM:
                name = f"listener.name.{protocol.lower()}.{mechanism.lower()}.sasl.jaas.config"
                settings[name] = f"{SCRAM_LOGIN} required;"
        return settings

    def _format(self, options: list[str]) -> None:
        """Run Kafka's own tool on a new folder."""
        name = urlsafe_b64encode(self.cluster.bytes).decode().rstrip("=")
        tool = "kafka.tools.StorageTool"
        arguments = ["format", "-t", name, "-c", str(self.folder / "server.properties"), "--ignore-formatted"]
        if self.password is not None:  # what SCRAM checks is kept in the data, not in the settings
            credential = f"name={self.user},password={self.password}"
            for mechanism in SCRAM:
                arguments += ["--add-scram", f"{mechanism}=[{credential}]"]
        learns, self.learns = self.learns, None  # the tool loads other classes
        try:
            command = self.java_command(tool, *arguments, options=options)
        finally:
            self.learns = learns
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=FORMAT_SECONDS, check=False
        )
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-2000:]
            raise ServiceError(f"Kafka cannot format {self.folder / 'data'}: {said}")


def text(value: str) -> bytes:
    """Write a text as Kafka's protocol does."""
    return struct.pack(">h", len(value)) + value.encode()


def request(api: int, api_version: int, body: bytes) -> bytes:
    """Frame a request of Kafka's protocol."""
    head = struct.pack(">hhi", api, api_version, 1) + text("headrace-services")
    return struct.pack(">i", len(head) + len(body)) + head + body


def response(connection: socket.socket) -> bytes:
    """Read a response of Kafka's protocol, without its number."""
    size = struct.unpack(">i", receive(connection, 4))[0]
    return receive(connection, size)[4:]
